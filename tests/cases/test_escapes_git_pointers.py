"""Worktrees, submodules, links: `.git` is a name that leads somewhere, and what a commit mode must not open."""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import git
from helpers.escapes_git import fires, repository, snapshot

import sandboxed_subprocess as sp

COMMIT = "git -c user.name=t -c user.email=t@e commit -q --allow-empty -m inside && git log -1 --format=%s"


def linked_worktree(place, ws):
    main = repository(place / "main")
    git("worktree", "add", "-q", "-b", "topic", str(ws / "wt"), cwd=main)
    return main, ws / "wt"


def submodule(place, ws):
    library = repository(place / "library")
    repository(ws)
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "sub", cwd=ws)
    git("commit", "-qm", "sub", cwd=ws)
    return ws, ws / "sub"


def separate(place, ws):
    git("init", "-q", "-b", "main", f"--separate-git-dir={place / 'gitdir'}", str(ws / "r"), cwd=ws)
    repository(ws / "r")
    return place / "gitdir", ws / "r"


def symbolic_link(place, ws):
    repository(place / "real")
    (ws / "r").mkdir()
    (ws / "r" / ".git").symlink_to(place / "real" / ".git")
    return place / "real", ws / "r"


def relative_link(place, ws):
    repository(ws / "real")
    (ws / "r").mkdir()
    (ws / "r" / ".git").symlink_to("../real/.git")
    return ws / "real", ws / "r"


LAYOUTS = [linked_worktree, submodule, separate, symbolic_link, relative_link]


@pytest.mark.parametrize("mode", ["read-only", "commit"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_pointer_stays_and_so_does_what_it_names(layout, mode, sh, ws, place, policy):
    """Where .git is a file or a link, protecting what it leads to leaves the name itself to be replaced by a directory with
    hooks (openai/codex#25664)."""
    _, tree = layout(place, ws)
    pointer = tree / ".git"
    text = os.readlink(pointer) if pointer.is_symlink() else pointer.read_text()
    gitdir = git("rev-parse", "--absolute-git-dir", cwd=tree).strip()
    common = git("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=tree).strip()
    before = [snapshot(type(tree)(path)) for path in (gitdir, common)]
    result = sh(
        f"""cd {tree}
rm -f .git; mv -T .git .git2; mkdir -p .git/hooks; ln -sfT /tmp .git; echo 'gitdir: /tmp/x' > .git
cp -T /dev/null .git; mv -fT /etc/hostname .git; sed -i s/gitdir/x/ .git
for d in {gitdir} {common}; do
    echo x > $d/hooks/post-checkout; echo x >> $d/config; echo x > $d/config.worktree; echo /tmp > $d/commondir
    echo /tmp > $d/gitdir; echo x > $d/info/attributes; mkdir -p $d/hooks; mv $d $d.moved; rm -rf $d/hooks
done
git config extensions.worktreeConfig true; git config core.fsmonitor x; git config --worktree core.fsmonitor x
echo tried""",
        policy=policy.replace(git=mode),
    )
    assert result.stdout.splitlines()[-1] == "tried"
    assert (os.readlink(pointer) if pointer.is_symlink() else pointer.read_text()) == text
    after = [snapshot(type(tree)(path)) for path in (gitdir, common)]
    inert = [{n: c for n, c in found.items() if ".quarantined-" not in n} for found in after]
    assert [set(i) ^ set(b) for i, b in zip(inert, before)] == [set(), set()]
    assert inert == before
    assert git("rev-parse", "--absolute-git-dir", cwd=tree).strip() == gitdir


@pytest.mark.parametrize("layout", [linked_worktree, submodule, relative_link])
def test_a_commit_works_there_in_commit_mode(layout, sh, ws, place, policy):
    """The usual way to make it work, a writable main .git, hands over its hooks."""
    _, tree = layout(place, ws)
    result = sh(COMMIT, policy=policy.replace(git="commit"), cwd=tree)
    assert result.stdout == "inside\n", result.stderr
    assert git("log", "-1", "--format=%s", cwd=tree) == "inside\n"
    assert result.sandbox.quarantined == ()


HOSTILE = """[core]
	repositoryformatversion = 0
	fsmonitor = touch {mark}
	hooksPath = {ws}/evil
"""
PLANTS = {
    "commondir": "cp -r .git/objects .git/refs evil/; echo ../evil > .git/commondir",
    "config.worktree": "cp evil/config .git/config.worktree",
    "hooks": "mkdir .git/hooks && cp evil/post-checkout evil/pre-commit .git/hooks/",
    "info": "mkdir .git/info && echo '* filter=x' > .git/info/attributes",
    "rebase todo": "mkdir .git/rebase-merge && echo 'exec touch {mark}' > .git/rebase-merge/git-rebase-todo; "
    "git rev-parse HEAD | tee .git/rebase-merge/onto > .git/rebase-merge/orig-head; echo refs/heads/main > .git/rebase-merge/head-name; "
    "echo 0 > .git/rebase-merge/msgnum; echo 1 > .git/rebase-merge/end; touch .git/rebase-merge/interactive .git/rebase-merge/done",
    "sequencer": "mkdir .git/sequencer && echo 'pick HEAD' > .git/sequencer/todo",
    "rebase-apply": "mkdir .git/rebase-apply && echo 1 > .git/rebase-apply/next",
    "modules": "mkdir -p .git/modules/sub && cp evil/config .git/modules/sub/",
    "worktrees": "mkdir -p .git/worktrees/x && echo {ws}/wt/.git > .git/worktrees/x/gitdir",
    "config.lock": "cp evil/config .git/config.lock",
    "gitdir": "echo {ws}/evil > .git/gitdir",
}


@pytest.mark.parametrize("name", PLANTS)
def test_what_a_commit_mode_lets_appear_in_the_repository_is_put_out_of_action(name, sh, ws, place, policy):
    """Lock files are made beside what they lock, so a commit needs the directory itself; there, `commondir` sends git to a
    configuration of the command's choice, and a rebase todo says `exec`."""
    repository(ws)
    for part in ("hooks", "info"):
        if name == part:
            for file in (ws / ".git" / part).iterdir():
                file.unlink()
            (ws / ".git" / part).rmdir()
    (ws / "evil").mkdir()
    mark = place / "own"
    (ws / "evil" / "config").write_text(HOSTILE.format(mark=mark, ws=ws))
    for hook in ("pre-commit", "post-checkout"):
        (ws / "evil" / hook).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (ws / "evil" / hook).chmod(0o755)
    names = set(os.listdir(ws / ".git"))
    result = sh(PLANTS[name].format(mark=mark, ws=ws) + f"; echo planted; {COMMIT}", policy=policy.replace(git="commit"))
    assert "planted" in result.stdout
    assert not fires(ws, mark)
    for command in (["rebase", "--continue"], ["worktree", "list"], ["am", "--continue"], ["submodule", "status"]):
        try:
            git(*command, cwd=ws, GIT_EDITOR="true")
        except subprocess.CalledProcessError:
            continue
    assert not mark.exists()
    assert result.sandbox.quarantined != ()
    new = {n for n in set(os.listdir(ws / ".git")) - names if ".quarantined-" not in n}
    assert new <= {"COMMIT_EDITMSG", "ORIG_HEAD", "index", "logs"}, new


def test_the_todo_of_a_rebase_in_progress_stays_as_the_user_left_it(sh, ws, place, policy):
    """It is there already, so it is not new; but `exec` in it runs on the user's `git rebase --continue` all the same."""
    repository(ws)
    (ws / "file").write_text("two\n")
    git("commit", "-qam", "second", cwd=ws)
    git("rebase", "-q", "-i", "HEAD~1", cwd=ws, GIT_SEQUENCE_EDITOR="sed -i '1ibreak'")
    todo = ws / ".git" / "rebase-merge" / "git-rebase-todo"
    assert todo.exists()
    mark = place / "own"
    result = sh(f"echo 'exec touch {mark}' >> .git/rebase-merge/git-rebase-todo; echo ran; {COMMIT}", policy=policy.replace(git="commit"))
    assert "ran" in result.stdout
    try:
        git("rebase", "--continue", cwd=ws, GIT_EDITOR="true")
    except subprocess.CalledProcessError:
        pass
    assert not mark.exists()


def test_a_pointer_forged_by_an_earlier_run_opens_no_other_repository(sh, ws, place, policy):
    """`git="commit"` follows `.git` files to what they name: a forged one must not make the user's other repository
    writable (dirge-code/dirge#774)."""
    victim = repository(place / "victim")
    before = snapshot(victim / ".git"), git("rev-parse", "main", cwd=victim)
    (ws / "a").mkdir()
    first = sh(
        f"""echo 'gitdir: {victim}/.git' > a/.git
mkdir -p fake b/c && cp -r {victim}/.git/HEAD fake/ && echo {victim}/.git > fake/commondir && echo {ws}/b/.git > fake/gitdir
echo 'gitdir: {ws}/fake' > b/.git; ln -s {victim}/.git b/c/.git
mkdir -p worktrees/x && cp {victim}/.git/HEAD worktrees/x/ && echo ../.. > worktrees/x/commondir
echo done"""
    )
    assert first.stdout == "done\n", first.stderr
    second = sh(
        f"""for d in a b b/c; do (cd $d && {COMMIT}; git update-ref refs/heads/main 0000000000000000000000000000000000000001); done
echo x > {victim}/.git/hooks/pre-commit; echo x >> {victim}/.git/config; touch {victim}/.git/made {victim}/.git/objects/made
rm -rf {victim}/.git/refs/heads/main; echo done""",
        policy=policy.replace(git="commit"),
    )
    assert second.stdout.splitlines()[-1] == "done"
    assert (snapshot(victim / ".git"), git("rev-parse", "main", cwd=victim)) == before
    assert not (victim / ".git" / "objects" / "made").exists()


def test_a_root_inside_a_repository_does_not_open_it(sh, place):
    """The workspace is often a package of a larger repository: its .git lies above every root, and stays shut."""
    repository(place / "mono")
    package = place / "mono" / "package"
    package.mkdir()
    before = snapshot(place / "mono" / ".git")
    for mode in ("read-only", "commit", "writable"):
        policy = sp.Policy.workspace_write(package, git=mode)
        result = sh("echo x > ../.git/hooks/pre-commit; git config core.fsmonitor x; echo ran", policy=policy, cwd=package)
        assert result.stdout == "ran\n"
        assert snapshot(place / "mono" / ".git") == before
