"""Git repositories in and around the workspace: nothing that git on the host would execute can be put there."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
from conftest import git
from helpers.escapes_git import fires, repository, snapshot

import sandboxed_subprocess as sp

ATTACKS = """
cd $1 || exit 1
echo planted > .git/hooks/pre-commit; echo planted > .git/hooks/post-checkout; chmod +x .git/hooks/*
echo '[core] fsmonitor = touch own' >> .git/config
git config core.fsmonitor 'touch own'; git config core.hooksPath /tmp
echo '* filter=x' > .git/info/attributes
rm -rf .git/hooks; mv .git/hooks .git/hooks2; mv .git/config .git/config2; ln -sf /tmp/config .git/config
mv .git .git2; [ $2 = commit ] || rm -rf .git; ln -sT /tmp .git; cp -r .git copy && mv -T copy .git; rm -rf copy
ln .git/config alias && echo x >> alias; rm -f alias
truncate -s 0 .git/config; chmod 777 .git/hooks; touch -d 2001-01-01 .git/config
echo tried
"""


@pytest.mark.parametrize("mode", ["read-only", "commit"])
@pytest.mark.parametrize("where", ["top", "nested", "deep", "second root", "file in nested dot directory"])
def test_hooks_and_configuration_of_every_repository_stay(mode, where, sh, ws, place, policy):
    """Codex protected the .git of the first root only: vendored repositories, submodules and further roots had their hooks
    rewritten, which the user's next commit executed (openai/codex#37081)."""
    extra = place / "extra"
    extra.mkdir()
    path = {"top": ws, "nested": ws / "vendor" / "sub", "deep": ws / "a" / "b" / "c" / "d", "second root": extra,
            "file in nested dot directory": ws / ".cache" / ".hidden" / "r"}[where]  # fmt: skip
    if where in ("nested", "deep"):
        repository(ws)
    repository(path)
    before = snapshot(path / ".git")
    assert "config" in before
    result = sh(f"set -- {path} {mode}\n{ATTACKS}", policy=policy.with_write(extra).replace(git=mode))
    assert result.stdout.splitlines()[-1] == "tried"
    assert snapshot(path / ".git") == before
    assert git("status", "--short", cwd=path) == ""
    assert not (path / "own").exists()


def test_a_commit_goes_through_in_commit_mode_and_not_in_read_only(sh, ws, policy):
    """The tests above would pass just as well if git did not run at all."""
    repository(ws)
    command = "echo two > file; git -c user.name=t -c user.email=t@e commit -qam second; git log --format=%s"
    refused = sh(command)
    assert refused.stdout == "first\n"
    allowed = sh(command, policy=policy.replace(git="commit"))
    assert allowed.stdout == "second\nfirst\n", allowed.stderr
    assert git("log", "--format=%s", cwd=ws) == "second\nfirst\n"
    assert allowed.sandbox.quarantined == ()


# Each makes a repository where there was none, or puts another one in the place of one.
PLANTS = {
    "init": "git init -q . && git config core.fsmonitor 'touch {mark}'",
    "file": "git init -q --separate-git-dir=elsewhere . && git config core.fsmonitor 'touch {mark}'",
    "link": "git init -q --bare elsewhere; git -C elsewhere config core.bare false; git -C elsewhere config core.fsmonitor 'touch {mark}'; "
    "ln -s elsewhere .git",
    "bare layout": "git init -q --bare x && mv x/* . && git config core.bare false; git config core.worktree .; git config core.fsmonitor 'touch {mark}'",
    "by rename": "git init -q x && git -C x config core.fsmonitor 'touch {mark}' && mv x/.git .git",
    "moved parent": "mv lib lib2 && mkdir lib && cd lib && git init -q . && git config core.fsmonitor 'touch {mark}'",
    "moved grandparent": "mv group group2 && mkdir -p group/lib && cd group/lib && git init -q . && git config core.fsmonitor 'touch {mark}'",
}


@pytest.mark.parametrize("directory", ["new/sub", "old/dir"])
def test_a_new_repository_deeper_down_is_a_documented_limit(directory, sh, ws):
    """`git clone` of a dependency is ordinary work, and to rename its `.git` would break it: below the top of a root only
    what was there before is compared. The README says so."""
    (ws / "old" / "dir").mkdir(parents=True)
    result = sh(f"mkdir -p {directory} && git init -q {directory} && echo made")
    assert result.stdout == "made\n" and (ws / directory / ".git" / "HEAD").exists()
    readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    assert "deeper down it is not looked for" in " ".join(readme.split())


@pytest.mark.parametrize("name", PLANTS)
def test_a_repository_made_inside_does_not_run_anything_outside(name, sh, ws, place):
    """What does not exist cannot be mounted read-only: in a fresh workspace `git init` with an executing configuration waits
    for the user's next `git status` (openai/codex#18446). It is put out of action after the run, kept, and reported."""
    (ws / "old" / "dir").mkdir(parents=True)
    for path in (ws / "lib", ws / "group" / "lib"):
        repository(path)
    mark = place / "own"
    result = sh(PLANTS[name].format(mark=mark) + "; echo tried")
    assert result.stdout.splitlines()[-1] == "tried", result.stderr
    for path in (ws, ws / "new" / "sub", ws / "old" / "dir", ws / "lib", ws / "group" / "lib"):
        if path.is_dir():
            assert not fires(path, mark), path
    assert result.sandbox.quarantined != ()
    for was, now in result.sandbox.quarantined:
        assert ".quarantined-" in now
        assert os.path.lexists(now)
        assert not os.path.lexists(was)
    assert {v.kind for v in result.sandbox.violations} == {"planted"}


@pytest.mark.parametrize("end", ["fails", "is killed", "times out", "kills itself", "leaves a process"])
def test_the_sweep_happens_however_the_run_ends(end, ws, policy):
    """Whoever plants also chooses how to die."""
    tail = {"fails": "exit 3", "is killed": "echo ready; sleep 600", "times out": "sleep 600", "kills itself": "kill -9 $$",
            "leaves a process": "(sleep 600; rm -rf .git) & exit 0"}[end]  # fmt: skip
    command = ["sh", "-c", f"git init -q . && git config core.fsmonitor 'touch own'; {tail}"]
    if end == "times out":
        with pytest.raises(sp.TimeoutExpired) as caught:
            sp.run(command, policy=policy, cwd=ws, timeout=1)
        report = caught.value.sandbox
    else:
        with sp.Popen(command, policy=policy, cwd=ws, stdout=sp.PIPE) as process:
            if end == "is killed":
                process.stdout.readline()
                process.kill()
            process.wait(30)
        report = process.sandbox
    assert not (ws / ".git").exists()
    assert [was for was, _ in report.quarantined] == [str(ws / ".git")]
    assert (pathlib.Path(report.quarantined[0][1]) / "config").exists()


@pytest.mark.parametrize("name", [".vscode", ".idea", ".envrc", ".mcp.json", ".claude", ".codex", ".agents", ".hg", ".svn"])
def test_names_that_tools_of_the_host_trust_are_like_git(name, sh, ws):
    """Editors run tasks, direnv runs .envrc, agents read their rules: from the directory that the command has just written."""
    planted = sh(f"mkdir {name} && echo x > {name}/tasks.json; echo ran")
    assert planted.stdout == "ran\n"
    assert not (ws / name).exists()
    assert [was for was, _ in planted.sandbox.quarantined] == [str(ws / name)]
    (ws / name).mkdir()
    (ws / name / "tasks.json").write_text("host")
    kept = sh(f"echo x > {name}/tasks.json; rm -rf {name}; mv {name} y; echo ran")
    assert kept.stdout == "ran\n"
    assert (ws / name / "tasks.json").read_text() == "host"
    assert kept.sandbox.quarantined == ()


def test_a_writable_repository_is_left_alone(sh, ws, policy):
    """git="writable" is for those who want `git init` and `git clone` to work."""
    result = sh("git init -q . && git config core.fsmonitor x", policy=policy.replace(git="writable"))
    assert result.sandbox.quarantined == ()
    assert "fsmonitor" in (ws / ".git" / "config").read_text()


def test_the_parent_repository_of_a_subdirectory_is_found(sh, place, ws, policy):
    """A placeholder .git in the workspace would hide the repository around it from git."""
    repository(place / "repo")
    below = place / "repo" / "package"
    below.mkdir()
    result = sh("git rev-parse --show-toplevel; git status --short", policy=sp.Policy.workspace_write(below), cwd=below)
    assert result.stdout == f"{place / 'repo'}\n", result.stderr
    assert list(below.iterdir()) == []
    refused = sh("echo x > ../.git/hooks/pre-commit; echo ran", policy=sp.Policy.workspace_write(below), cwd=below)
    assert refused.stdout == "ran\n"
    assert not (place / "repo" / ".git" / "hooks" / "pre-commit").exists()


def test_hooks_that_the_configuration_keeps_in_the_workspace(sh, ws, place):
    """With core.hooksPath=.husky the hooks are ordinary files of the workspace, which the command may write by design
    (anthropics/claude-code#61909): they are protected, or the documentation says that they are not."""
    repository(ws)
    (ws / "hooks").mkdir()
    git("config", "core.hooksPath", "hooks", cwd=ws)
    result = sh(f"printf '#!/bin/sh\\ntouch {place}/own\\n' > hooks/pre-commit; chmod +x hooks/pre-commit; echo ran")
    assert result.stdout == "ran\n"
    root = pathlib.Path(sp.__file__).parents[1]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    documented = any("hooksPath" in page.read_text() for page in pages if page.exists())
    assert documented or not fires(ws, place / "own")


def test_git_is_there():
    """The attacks above are written with it."""
    assert shutil.which("git")
