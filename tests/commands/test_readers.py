"""Programs that are allowed because they only read: with the options that they themselves say they have, really run."""

from __future__ import annotations

import os
import random
import re
import shutil
import string

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess import ExecPolicy
from sandboxed_subprocess.commands import _heuristics

SAFE = ExecPolicy.heuristics()
# They wait, or show what is different each time.
NOT_RUN = {"sleep", "tail", "ps", "uptime", "free", "tty"}
HEADS = [[name] for name in sorted(_heuristics._READERS) if name not in NOT_RUN] + [["find"], ["sed"], *[["git", verb] for verb in _heuristics._GIT_READERS]]


@pytest.fixture
def files(ws, policy):
    """A few files, in a repository."""
    for name, text in (("a", "1\n2\n3\n"), ("b", "2\n3\n"), ("in.json", '{"a": 1}\n'), ("d/f", "f\n")):
        (ws / name).parent.mkdir(exist_ok=True)
        (ws / name).write_text(text)
    opened = policy.replace(git="writable")
    commit = "git init -q . && git add -A && git -c user.name=x -c user.email=y commit -qm x"
    assert sp.run(commit, shell=True, cwd=ws, policy=opened).returncode == 0
    return ws


def content(root):
    """What is there, but for git's index, which `git status` refreshes."""
    found = {}
    for directory, directories, names in os.walk(root):
        if ".git" in directories:
            directories.remove(".git")
        for name in (*names, *directories):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            found[path] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def options_of(head, policy, cwd):
    """What its help names."""
    flag = "-h" if head[0] == "git" else "--help"
    try:
        said = sp.run([*head, flag], policy=policy, cwd=cwd, capture_output=True, text=True, errors="replace", stdin=sp.DEVNULL, timeout=10)
    except (sp.TimeoutExpired, OSError):
        return []
    return sorted(set(re.findall(r"--[a-z][a-z0-9-]+", (said.stdout + said.stderr).replace("[no-]", ""))))


@pytest.mark.parametrize("seed", range(2))
def test_what_is_allowed_as_a_reader_writes_nothing(files, policy, seed):
    """An option that nobody thought of is found by asking the program. `file -p` was one: it sets times."""
    pick = random.Random(seed)
    opened = policy.replace(git="writable", tmp="none", limits=sp.Limits(wall_seconds=5, file_bytes=1 << 20))
    before = content(files)
    tried = 0
    for head in HEADS:
        if shutil.which(head[0]) is None:
            continue
        known = [*options_of(head, opened, files), *[f"-{c}" for c in string.ascii_letters + string.digits]]
        forms = [[o, *rest] for o in known for rest in ([], ["out"], ["a"], ["out", "a"], ["a", "out"])]
        forms += [[f"{o}=out", *rest] for o in known if o.startswith("--") for rest in ([], ["a"])]
        forms += [[f"{o}out", "a"] for o in known if not o.startswith("--")] + [["a", "out"], ["a", "b", "out"], ["out"]]
        allowed = [[*head, *form] for form in forms if SAFE.check([*head, *form], cwd=files, writable_roots=[]).decision == "allow"]
        for argv in pick.sample(allowed, min(len(allowed), 4)):
            tried += 1
            try:
                sp.run(argv, policy=opened, cwd=files, stdin=sp.DEVNULL, stdout=sp.DEVNULL, stderr=sp.DEVNULL, timeout=5)
            except (sp.TimeoutExpired, OSError):
                pass
            assert content(files) == before, argv
    assert tried > 150
