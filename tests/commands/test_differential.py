"""What is allowed is what runs: scripts in a real shell, whose programs are stubs that say how they were called."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import tempfile

import pytest
import short_scripts
from conftest import BASE
from stub_shell import NAMES, Shell, explained

from sandboxed_subprocess import ExecPolicy, prefix_rule
from sandboxed_subprocess.commands._shell import parse

# Everything is allowed but the last of them, and what cannot be taken apart: so most scripts are, and are compared.
POLICY = ExecPolicy([prefix_rule(["rm"], "forbidden"), prefix_rule(["sudo"], "forbidden")], default="allow")

WORDS = ["a", "b", "-x", "'q w'", '"d e"', "\\;", "x=y", "\"$X\"", "$X", "*", "''", "#c", "a#b", "é", "$'t\\x41'", "'$(rm x)'", "\\rm", "~", "{}", "-", "!", "2", "if", "}",
         "a\\\n  b", "'\n'", "\"`ls z`\"", "$(cat y)", "<(ls p)", "${X:-k}", "$((1+2))", "\"a'b\"", "'a\"b'", "$", "[", "]", "\\\\", "=", "%", "@"]  # fmt: skip
GLUE = ["; ", " && ", " || ", " | ", "\n", " & ", " |& ", ";\n", "\n\n", " ;\\\n  "]
FORMS = ["{}", "( {} )", "{{ {}; }}", "if {}; then {}; fi", "for i in 1 2; do {}; done", "while {}; do {}; break; done", "case $X in a) {};; *) {};; esac",
         "f() {{ {}; }}; f", "! {}", "time {}", "$({})", "`{}`", "echo \"$({})\"", "env {}", "nice {}", "timeout 3 {}", "A=1 {}", "{} >/dev/null", "{} 2>&1",
         ">/dev/null {}", "{} <<E\nrm x\n$(ls h)\nE", "{} <<'E'\n$(rm x)\nE", "{} <<< 'rm x'", "eval '{}'", "sh -c '{}'", "{} # rm x", "until {}; do {}; break; done",
         "[ -n \"$X\" ] && {}", "X=$({})", "export Y=$({})", "cat <({})", "exec {}", "command {}", "trap '{}' EXIT", "xargs {} </dev/null", "{} \\\n  && {}", "a=({}) ",
         "{} | while read l; do {}; done", "if ! {}; then {}; elif {}; then {}; else {}; fi", "bash -c '{}'", "cat <<-E\n\t$({})\n\tE", "{} <<E | {}\nbody\nE"]  # fmt: skip


def script(pick: random.Random, depth: int = 3) -> str:
    """`$'...'` is read as bash reads it for every shell: where it is none, the words begin with a dollar and mean nothing."""
    if depth == 0 or pick.random() < 0.25:
        words = [pick.choice(WORDS) for _ in range(pick.randint(0, 3))]
        return " ".join([pick.choice(NAMES), *words])
    if pick.random() < 0.35:
        return script(pick, depth - 1) + pick.choice(GLUE) + script(pick, depth - 1)
    form = pick.choice(FORMS)
    out = form.format(*[script(pick, depth - 1) for _ in range(form.count("{}"))])
    return mutated(pick, out) if pick.random() < 0.15 else out


def mutated(pick: random.Random, text: str) -> str:
    for _ in range(pick.randint(1, 3)):
        place = pick.randrange(len(text) + 1)
        text = text[:place] + pick.choice([*" ;|&<>()'\"\\$`\n\t#{}!=*", "", "rm", " rm x "]) + text[place + pick.randint(0, 2) :]
    return text


@pytest.fixture(scope="module", params=["bash", "sh", "zsh"])
def shell(request):
    if not os.path.exists(f"/bin/{request.param}"):
        (pytest.fail if request.param.upper() in os.environ.get("MUST_WORK", "").split() else pytest.skip)(f"no {request.param} here")
    place = pathlib.Path(tempfile.mkdtemp(prefix="ss-test-", dir=BASE))
    place.chmod(0o755)
    yield Shell(place, request.param)
    shutil.rmtree(place)


def check_one(shell: Shell, text: str) -> str | None:
    """What was run, and was not known to be, where the script is allowed."""
    found = POLICY.check([f"/bin/{shell.shell}", "-c", text], env={"PATH": str(shell.programs), "HOME": "/nowhere"}, cwd=shell.work, writable_roots=[shell.work])
    if found.decision != "allow":
        return None
    parts = tuple(part.argv for part in found.parts)
    for vector in shell.run(text):
        if vector[0] in ("rm", "sudo") or not explained(vector, parts):
            return f"{text!r} ran {vector}, and its parts are {parts}"
    return ""


@pytest.mark.parametrize("seed", range(4))
def test_nothing_runs_that_was_not_seen(shell, seed):
    """Two parsers that read a script differently are a way around the rules: the shell's is the one that counts."""
    pick = random.Random(seed)
    wrong, allowed = [], 0
    for _ in range(150):
        text = script(pick)
        said = check_one(shell, re.sub(r"\$+'", "'", text) if shell.shell == "sh" else text)
        allowed += said is not None
        if said:
            wrong.append(said)
    assert wrong == []
    assert allowed >= 30  # or nothing was compared


@pytest.mark.parametrize("kind", ["redirections", "short"])
def test_short_scripts_of_every_kind(shell, kind):
    """`0<f rm x`, `A=$ rm x`, `ls &>f rm x` under dash: the grammar saw another command than the shell, which ran `rm`. A part of
    them all; see short_scripts.py."""
    texts = short_scripts.redirections() if kind == "redirections" else short_scripts.short(7, 97)
    said = [check_one(shell, re.sub(r"\$+'", "'", text) if shell.shell == "sh" else text) for text in texts]
    assert [one for one in said if one] == []
    assert sum(one is not None for one in said) >= 200


def test_threads_ask_at_the_same_time():
    """One parser, one table of what is known: agents run side by side in one process."""
    texts = [f"for i in a b; do ls {n}; done; git log {n} | head -n {n} && cat <<E\n$(touch {n})\nE\n" for n in range(200)]
    expected = [[part.argv for part in POLICY.check(text, shell=True).parts] for text in texts]

    def ask(text):
        parse.cache_clear()
        return [part.argv for part in POLICY.check(text, shell=True).parts]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, texts)) == expected


def test_the_stubs_see_what_runs(shell):
    """Else the comparison compares nothing."""
    assert ("ls", "a b") in shell.run("ls 'a b'; git $(cat y)") and ("cat", "y") in shell.run("git $(cat y)")
    assert explained(("git", "x"), (("git", "$(cat y)"),)) and not explained(("git", "x"), (("git", "y"),))
