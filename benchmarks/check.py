"""What asking the command rules costs, in ratios to a plain `subprocess.run(["true"])`, interleaved, by the median.

    python benchmarks/check.py [--rounds N] [--json FILE]

Rows: a typical vector; a script of about 1 kB, as an agent writes them, read anew each time, and again (what was read once is
remembered); one that is as full of commands as 1 kB can be; 1,000 rules against 10; and a run with rules against one without.
"""

from __future__ import annotations

import sys

if sys.path[0] == __file__.rpartition("/")[0]:
    # In this directory concurrent.py has the name of a package of the standard library.
    sys.path.pop(0)

import argparse
import json
import statistics
import subprocess
import tempfile
import time

import sandboxed_subprocess as sp
from sandboxed_subprocess import ExecPolicy, prefix_rule
from sandboxed_subprocess.commands import _shell

BARS = {
    "a typical vector / plain spawn": 0.1,
    "a script of 1 kB / plain spawn": 1.0,
    "1,000 rules / 10 rules": 2.0,
}
BATCH = 10
ARGV = ["git", "-C", "/srv", "log", "--oneline", "-n", "20"]
# What an agent sends when it looks, changes something and tests it: 1 kB, 17 commands, a file in it.
SCRIPT = """cd /srv/project
git status --short
git diff --stat HEAD~1 -- src tests

# what did the last change do to the parser?
grep -rn "def parse_header" src tests --include='*.py' | head -n 20
sed -n '120,180p' src/project/parser.py

cat > /tmp/check.py <<'EOF'
import json, sys
from project import parser

with open("tests/data/headers.json") as file:
    cases = json.load(file)
failed = [case for case in cases if parser.parse_header(case["text"]) != case["want"]]
print(len(cases), "cases,", len(failed), "failed")
for case in failed[:5]:
    print(repr(case["text"]), "is", parser.parse_header(case["text"]), "not", case["want"])
sys.exit(bool(failed))
EOF
python3 -m pytest -q -x tests/unit/test_parser.py 2>&1 | tail -n 30
python3 /tmp/check.py && echo "all headers are read" || echo "some are not"

git add -A src tests && git commit -m "parser: keep a header that is continued; see tests/data/headers.json"
git log --oneline -n 3
"""
# The most that goes into 1 kB: 34 commands, a loop, a condition, substitutions.
DENSE = """set -euo pipefail
cd /srv/project && git status --short
for name in core web tools; do
    echo "== $name"
    grep -rn --include='*.py' "TODO|FIXME" "src/$name" | head -n 20 | sort -u
done
if [ -f package.json ]; then
    npm ci --no-audit 2>&1 | tail -n 5
    npm test -- --reporter=dot || echo "tests failed: $?"
fi
python3 -m pytest -q -x tests/unit 2>/dev/null | tail -n 3
git diff --stat HEAD~1 -- src | cat
find src -name '*.py' -newer setup.cfg -not -path '*/build/*' | xargs wc -l | sort -n | tail -n 10
cat <<'EOF' | grep -v '^#'
# a list; of things && others
one
two | three
EOF
echo "$(git rev-parse --short HEAD) built on $(uname -m) by ${USER:-nobody}"
test -d dist && ls -la dist | wc -l
timeout 60 make -j4 lint type-check
git log --since="2 weeks ago" --author="$(git config --get user.name)" --pretty=format:'%h %s'
git add -A src tests && git commit -m "fix: a; b && c | d"
"""


def rules(count):
    found = [
        prefix_rule(["git", ["log", "status", "diff", "add", "commit"]]),
        prefix_rule(["git", "push"], "forbidden"),
        prefix_rule(["rm"], "deny"),
    ]
    others = [prefix_rule([f"program-{n}", "x"], ("allow", "prompt")[n % 2]) for n in range(count - len(found))]
    return ExecPolicy([*found, *others])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--json")
    options = parser.parse_args()
    few, many = rules(10), rules(1000)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        plain = sp.Policy.workspace_write(place)
        ruled = plain.replace(commands=few.with_rules(prefix_rule(["true"])))
        empty = sp.Policy.workspace_write(place, tmp="private")

        def anew(script):
            _shell.parse.cache_clear()
            few.check(script, shell=True)

        actions = {
            "plain spawn": lambda: subprocess.run(["true"]),
            "a typical vector": lambda: few.check(ARGV),
            "a typical vector, 1,000 rules": lambda: many.check(ARGV),
            "a script of 1 kB": lambda: anew(SCRIPT),
            "a dense script of 1 kB": lambda: anew(DENSE),
            "the same script again": lambda: few.check(SCRIPT, shell=True),
            "run": lambda: sp.run(["true"], policy=empty),
            "run with rules": lambda: sp.run(["true"], policy=ruled),
        }
        times: dict[str, list[float]] = {name: [] for name in [*actions, "a typical vector, once"]}
        for number in range(options.rounds + 5):
            for name, action in actions.items():
                begin = time.perf_counter()
                if "spawn" in name or "run" in name:
                    action()
                    spent = time.perf_counter() - begin
                else:
                    # What comes right after a spawn finds the caches full of something else: once, and then ten times.
                    action()
                    if name == "a typical vector" and number >= 5:
                        times["a typical vector, once"].append(time.perf_counter() - begin)
                    begin = time.perf_counter()
                    for _ in range(BATCH):
                        action()
                    spent = (time.perf_counter() - begin) / BATCH
                if number >= 5:
                    times[name].append(spent)
    median = {name: statistics.median(values) for name, values in times.items()}
    spawn = median["plain spawn"]
    ratios = {
        "a typical vector / plain spawn": median["a typical vector"] / spawn,
        "a script of 1 kB / plain spawn": median["a script of 1 kB"] / spawn,
        "a dense script of 1 kB / plain spawn": median["a dense script of 1 kB"] / spawn,
        "1,000 rules / 10 rules": median["a typical vector, 1,000 rules"] / median["a typical vector"],
        "the first vector after a spawn / plain spawn": median["a typical vector, once"] / spawn,
        "the same script again / plain spawn": median["the same script again"] / spawn,
        "run with rules / without": median["run with rules"] / median["run"],
    }
    print(f"a plain spawn: {spawn * 1e6:.0f} µs; the scripts have {len(SCRIPT)} and {len(DENSE)} bytes")
    for name, ratio in ratios.items():
        bar = BARS.get(name)
        print(f"{name:<45} {ratio:6.3f}" + (f"   bar {bar}{'' if ratio <= bar else '   MISSED'}" if bar else ""))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"microseconds": {name: value * 1e6 for name, value in median.items()}, "ratios": ratios}, file, indent=1)


if __name__ == "__main__":
    main()
