"""Coverage-guided fuzzing of the command rules, for a bounded time.

    python tests/commands/fuzz.py [SECONDS] [SEED]
    python tests/commands/fuzz.py --same

A third of the time each: scripts (no error, no blow-up with the size), rules files (a policy or a `RulesError`), and scripts that are
allowed, in a real shell with stubs for programs: what runs has to be among what was found. `--same` tries a fixed number of inputs from a fixed seed: a run that finds nothing finds
nothing again, so that what fails is a change. Needs `atheris`; ends with 1 at the first finding, which it prints.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "helpers")]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["sandboxed_subprocess.commands"]):
    from sandboxed_subprocess.commands import _evaluate, _execpolicy, _heuristics, _programs, _shell, _starlark  # noqa: F401

from sandboxed_subprocess import ExecPolicy, RulesError, prefix_rule  # noqa: E402

PIECES = [
    *" ;|&<>()'\"\\$`\n\t#{}!=*?[]~^%@:,./-0aé", "ls", "cat", "git", "touch", "a", "rm", "rm x", "sudo", "$(", "$((", "))", "${", "<(", "<<E\n", "<<'E'\n",
    "<<-E\n", "\nE\n", "<<<", "&&", "||", "|&", "&>", ">&", "2>&1", ">/dev/null", "if ", "then ", "else ", "fi", "for i in ", "do ", "done", "while ", "case ",
    " in ", "esac", ";;", "function ", "f()", "{ ", "; }", "[[ ", " ]]", "[ ", " ]", "! ", "time ", "coproc ", "eval ", "exec ", "trap ", "env ", "sh -c ",
    "bash -c ", "xargs ", "timeout 3 ", "nice ", "$'", "\\\n", "\\\n ", "A=1 ", "PATH=x ", "export ", "set -e", "cd ", "\"$X\"", "$X", "${X:-", "@P}", "\\'", "\r",
    "\x0b", "\u00a0", "{a,b}", "~/", "#", "find . -exec ", "python3 -c ", "awk ", "sed ", "-n ", "--", "git -c a=b ", "0<a ", "0>a ", "0<<<a ", "12>a ", "{v}<a ", "0&>a ", "&>>a ",
]  # fmt: skip
OPEN = ExecPolicy([prefix_rule(["rm"], "forbidden"), prefix_rule(["sudo"], "forbidden")], default="allow")
POLICIES = [OPEN, ExecPolicy([prefix_rule(["ls"]), prefix_rule(["git", "status"])]), ExecPolicy.heuristics() | OPEN]
SLOW = 2.0  # seconds, on a machine under load


def script(data: bytes) -> str:
    return "".join(PIECES[byte % len(PIECES)] for byte in data[:80])


def scripts(data: bytes) -> None:
    text = script(data[1:]) if data[:1] < b"\xc0" else data[1:].decode("utf-8", "surrogateescape")
    text = text.replace("\0", "")
    begin = time.monotonic()
    for policy in POLICIES:
        for shell in ("bash", "sh"):
            assert policy.check([shell, "-c", text]).decision in ("allow", "prompt", "forbidden")
        words = text.split(" ")
        if words[0]:
            policy.check(words)
    # The same, many times over: what takes long must not take long squared.
    _shell.parse.cache_clear()
    long = (text + "\n") * min(200, 20_000 // (len(text) + 1))
    OPEN.check(["bash", "-c", long])
    assert time.monotonic() - begin < SLOW * 5, f"{time.monotonic() - begin:.1f} s for {text!r}"


RULES = ["prefix_rule(", "exact_rule(", "network_rule(", "host_executable(", ")", "[", "]", '"', "'", ",", "pattern=", "decision=", "match=", "not_match=", "host=", "\n", "\n    ",
         "allow", "deny", "git", "x", " ", "=", "+", "def f(x):", "return ", "for i in range(3):", "if ", "True", "None", "f(1)", "{", "}", ":", "#", "\\", "lambda x: x", "*", "1", "-", ".",
         "name=", "paths=", '["/bin/git"]', '"git"', '["git"]', '"prompt"', "é", "load("]  # fmt: skip


def rules(data: bytes) -> None:
    text = "".join(RULES[byte % len(RULES)] for byte in data[:60])
    try:
        policy = ExecPolicy.from_text(text, "fuzz.rules")
    except RulesError as error:
        assert error.file == "fuzz.rules", repr(text)
        return
    policy.check(["git", "status"])


class Run:
    def __init__(self) -> None:
        from stub_shell import Shell

        base = "/srv" if os.geteuid() == 0 else os.path.expanduser("~")
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="ss-test-", dir=base))
        self.place.chmod(0o755)
        self.shell = Shell(self.place)
        self.compared = 0

    def __call__(self, data: bytes) -> None:
        import test_differential

        said = test_differential.check_one(self.shell, script(data))
        self.compared += said is not None
        assert not said, said


def child(target: str, bound: str, seed: int) -> None:
    """One target, in a process of its own: libFuzzer ends the process it runs in."""
    if target == "run":
        run = Run()

        def one(data: bytes) -> None:
            run(data)

    else:
        one = {"scripts": scripts, "rules": rules}[target]
    atheris.Setup([sys.argv[0], bound, f"-seed={seed}", "-max_len=96", "-timeout=30", "-verbosity=0", "-print_final_stats=1",
                   "-rss_limit_mb=4096", f"-artifact_prefix={tempfile.gettempdir()}/"], one)  # fmt: skip
    atheris.Fuzz()


def main() -> int:
    import subprocess

    same = sys.argv[1:] == ["--same"]
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 and not same else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    base = "/srv" if os.geteuid() == 0 else os.path.expanduser("~")
    before = set(pathlib.Path(base).glob("ss-test-*"))
    status = 0
    for target, runs in (("scripts", 1500), ("rules", 60_000), ("run", 8000)):
        bound = f"-runs={runs}" if same else f"-max_total_time={int(seconds / 3)}"
        ended = subprocess.run([sys.executable, __file__, "--child", target, bound, str(seed)], capture_output=True, text=True, errors="replace",
                               env={**os.environ, "PYTHONHASHSEED": "0"})  # fmt: skip
        units = [line.split()[-1] for line in ended.stderr.splitlines() if "number_of_executed_units" in line]
        print(f"{target}: {units[0] if units else '?'} inputs, {'nothing found' if ended.returncode == 0 else 'FOUND'}", flush=True)
        if ended.returncode or not units or int(units[0]) < 20:
            print(ended.stdout[-4000:], ended.stderr[-8000:], sep="\n")
            status = 1
    for place in set(pathlib.Path(base).glob("ss-test-*")) - before:
        shutil.rmtree(place, ignore_errors=True)
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    sys.exit(main())
