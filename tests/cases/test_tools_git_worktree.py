"""T-01: git where `.git` is not a plain directory: linked worktrees, submodules, separate git directories, forgeries."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest
from conftest import git

import sandboxed_subprocess as sp


def repository(path, *init):
    path.mkdir(parents=True, exist_ok=True)
    git("init", "-q", "-b", "main", *init, cwd=path)
    for name, value in (("user.name", "t"), ("user.email", "t@example.org"), ("commit.gpgsign", "false")):
        git("config", name, value, cwd=path)
    (path / "tracked").write_text("1\n")
    git("add", "tracked", cwd=path)
    git("commit", "-q", "-m", "first", cwd=path)
    return path


def tree(path):
    """Everything below a directory: type, mode, mtime and content."""
    found = {}
    for directory, names, files in os.walk(path):
        for name in names + files:
            full = os.path.join(directory, name)
            st = os.lstat(full)
            content = pathlib.Path(full).read_bytes() if stat.S_ISREG(st.st_mode) else b""
            found[os.path.relpath(full, path)] = (st.st_mode, st.st_mtime_ns if not stat.S_ISDIR(st.st_mode) else 0, content)
    return found


def subjects(path):
    return git("log", "--format=%s", cwd=path).split()


@pytest.fixture
def main(place):
    return repository(place / "main")


@pytest.fixture
def worktree(main, place):
    git("worktree", "add", "-q", "../wt", cwd=main)
    return place / "wt"


@pytest.fixture
def commits(worktree, tier):
    return sp.Policy.workspace_write(worktree, git="commit", backend=tier)


@pytest.mark.parametrize("packed", [False, True], ids=["loose refs", "packed refs"])
def test_a_commit_in_a_linked_worktree_arrives(sh, main, worktree, commits, packed):
    """Index, refs and objects lie in another repository's .git, outside the writable root: agents work like this."""
    if packed:
        git("pack-refs", "--all", cwd=main)
    result = sh("echo a > a && git add a && git commit -qm second && git status --porcelain", cwd=worktree, policy=commits)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert subjects(worktree) == ["second", "first"]
    assert git("show", "wt:a", cwd=main) == "a\n"
    assert subjects(main) == ["first"]
    git("fsck", "--strict", cwd=main)


def test_branches_and_tags_are_made_in_a_linked_worktree(sh, main, worktree, commits):
    """A commit is not all that writes refs and logs of the common directory."""
    script = "git branch b && git tag t && echo 2 > tracked && git commit -qam second && git switch -qc c"
    result = sh(script, cwd=worktree, policy=commits)
    assert (result.returncode, result.stderr) == (0, "")
    assert set(git("for-each-ref", "--format=%(refname:short)", cwd=main).split()) == {"main", "wt", "b", "t", "c"}
    assert git("symbolic-ref", "HEAD", cwd=worktree) == "refs/heads/c\n"


def test_refs_are_removed_in_a_linked_worktree(sh, main, worktree, commits):
    """`git stash pop` and `git branch -d` lock packed-refs in the common directory; in a main worktree they work."""
    git("branch", "old", cwd=main)
    script = "echo 2 > tracked && git stash -q && git stash pop -q && git branch -qD old"
    result = sh(script, cwd=worktree, policy=commits)
    # The branch's section in the configuration stays, which git says and does not mind.
    assert result.returncode == 0 and "config" in result.stderr.replace("could not write", "")
    assert (worktree / "tracked").read_text() == "2\n"
    assert set(git("for-each-ref", "--format=%(refname:short)", cwd=main).split()) == {"main", "wt"}


def test_a_worktree_of_a_bare_repository_takes_commits(sh, place, main, tier):
    """One bare clone and many worktrees is a usual layout; its common directory may have no logs yet."""
    git("clone", "-q", "--bare", "main", "bare.git", cwd=place)
    for name, value in (("user.name", "t"), ("user.email", "t@example.org")):
        git("config", name, value, cwd=place / "bare.git")
    git("worktree", "add", "-q", "-b", "side", "../bwt", cwd=place / "bare.git")
    policy = sp.Policy.workspace_write(place / "bwt", git="commit", backend=tier)
    result = sh("echo a > a && git add a && git commit -qm second", cwd=place / "bwt", policy=policy)
    assert (result.returncode, result.stderr) == (0, "")
    assert subjects(place / "bwt") == ["second", "first"]


def test_what_git_executes_stays_read_only_beside_a_worktree(sh, main, worktree, commits):
    """Hooks and configuration of the main repository run on the host with the user's rights."""
    git("worktree", "add", "-q", "../other", cwd=main)
    own = main / ".git/worktrees/wt"
    targets = [
        *(main / ".git" / n for n in ("config", "HEAD", "index", "hooks/post-commit", "info/attributes")),
        *(main / ".git/worktrees/other" / n for n in ("HEAD", "gitdir")),
        main / "tracked", own / "commondir", own / "gitdir", worktree / ".git",
    ]  # fmt: skip
    before = {path: path.read_bytes() if path.exists() else None for path in targets}
    script = "".join(f"echo evil > {path} && echo wrote {path}\n" for path in targets)
    result = sh(script + "rm -f .git; echo a > a; git add a; git commit -qm second", cwd=worktree, policy=commits)
    assert "wrote" not in result.stdout
    assert {path: path.read_bytes() if path.exists() else None for path in targets} == before
    assert subjects(worktree) == ["second", "first"]


def test_configuration_planted_beside_a_worktrees_index_is_inert(sh, main, worktree, commits):
    """The worktree's own git directory must be writable for index.lock; a config.worktree made there would be obeyed."""
    git("config", "extensions.worktreeConfig", "true", cwd=main)
    result = sh("git config --worktree core.fsmonitor /bin/false; git rev-parse --git-dir", cwd=worktree, policy=commits)
    assert result.stdout == f"{main}/.git/worktrees/wt\n"
    assert git("config", "--get", "--default", "none", "core.fsmonitor", cwd=worktree) == "none\n"


def test_without_the_git_option_a_commit_is_clearly_denied(sh, main, worktree, tier):
    """Read-only means a message that says so and a repository that is as whole as before."""
    before = tree(main)
    policy = sp.Policy.workspace_write(worktree, backend=tier)
    result = sh("git status --porcelain && echo a > a && git add a", cwd=worktree, policy=policy)
    assert result.returncode == 128 and result.stdout == ""
    assert "index.lock" in result.stderr and "Read-only file system" in result.stderr
    assert (worktree / "a").read_text() == "a\n"
    assert tree(main) == before
    git("fsck", "--strict", cwd=worktree)


@pytest.mark.parametrize("how", ["file", "link"])
@pytest.mark.parametrize("target", ["repository", "worktree", "directory"])
def test_a_forged_pointer_to_somewhere_else_grants_nothing(sh, ws, outside, tier, target, how):
    """A command may write `.git` files in its workspace. The next run must not take them for the user's own."""
    victim = repository(outside / "victim")
    git("worktree", "add", "-q", "../victim-wt", cwd=victim)
    (outside / "plain").mkdir()
    (outside / "plain/data").write_text("data\n")
    to = {"repository": victim / ".git", "worktree": victim / ".git/worktrees/victim-wt", "directory": outside / "plain"}[target]
    policy = sp.Policy.workspace_write(ws, git="commit", backend=tier)
    forge = f"echo 'gitdir: {to}' > d/.git" if how == "file" else f"ln -s {to} d/.git"
    assert sh(f"mkdir d && {forge} && test -e d/.git", policy=policy).returncode == 0
    before = tree(outside)
    places = [to, to / "objects", to / "refs/heads", to / "hooks", victim / ".git", victim / ".git/objects", victim / ".git/refs"]
    attack = "".join(f"test -d {p} && echo evil > {p}/planted && echo wrote {p}\n" for p in places)
    result = sh(attack + "cd d && echo a > a && git add a && git commit -qm evil; echo done", policy=policy)
    assert result.stdout == "done\n"
    assert tree(outside) == before


@pytest.mark.parametrize("how", ["file", "link"])
@pytest.mark.parametrize("target", [".claude/commands", ".vscode/nested", ".git/hooks/lib", ".hg/store"])
def test_a_forged_pointer_inside_the_workspace_opens_nothing_protected(sh, ws, tier, target, how):
    """The pointer may name a place in the workspace as well: there it must not win over the protection of that place."""
    repository(ws)
    (ws / target).mkdir(parents=True)
    (ws / target / "data").write_text("good\n")
    policy = sp.Policy.workspace_write(ws, git="commit", backend=tier)
    forge = f"echo 'gitdir: ../{target}' > d/.git" if how == "file" else f"ln -s ../{target} d/.git"
    assert sh(f"mkdir d && {forge} && test -e d/.git", policy=policy).returncode == 0
    result = sh(f"echo ran; echo evil > {target}/data; echo evil > {target}/planted; rm -rf {target}", policy=policy)
    assert result.stdout == "ran\n"
    assert os.listdir(ws / target) == ["data"]
    assert (ws / target / "data").read_text() == "good\n"


def test_a_commit_in_a_submodule_arrives_and_its_hooks_stay(sh, place, ws, tier):
    """A submodule's git directory lies in the superproject's, whose hooks and configuration are as dangerous."""
    library = repository(place / "library")
    repository(ws)
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "sub", cwd=ws)
    git("commit", "-qm", "submodule", cwd=ws)
    for name, value in (("user.name", "t"), ("user.email", "t@example.org")):
        git("config", name, value, cwd=ws / "sub")
    inner = ws / ".git/modules/sub"
    guarded = [inner / "config", inner / "hooks/post-commit", ws / ".git/config", ws / ".git/hooks/post-commit", ws / "sub/.git"]
    before = [p.read_bytes() if p.exists() else None for p in guarded]
    policy = sp.Policy.workspace_write(ws, git="commit", backend=tier)
    attack = "".join(f"echo evil > {p}; " for p in guarded)
    commit = "cd sub && echo a > a && git add a && git commit -qm second && cd .. && git commit -qam up"
    result = sh(attack + commit, policy=policy)
    assert result.returncode == 0, result.stderr
    assert subjects(ws / "sub") == ["second", "first"]
    assert subjects(ws) == ["up", "submodule", "first"]
    assert [p.read_bytes() if p.exists() else None for p in guarded] == before


def test_a_separate_git_directory_in_the_workspace_is_protected(sh, ws, tier):
    """`git init --separate-git-dir`: the name of the directory says nothing, the `.git` file beside the code does."""
    repository(ws / "code", f"--separate-git-dir={ws}/store")
    config = (ws / "store/config").read_bytes()
    attack = "echo evil > ../store/config; echo evil > ../store/hooks/post-commit; echo a > a; git add a; git commit -qm second"
    readonly = sp.Policy.workspace_write(ws, backend=tier)
    before = tree(ws / "store")
    assert "Read-only file system" in sh(attack, cwd=ws / "code", policy=readonly).stderr
    assert tree(ws / "store") == before
    sh(attack, cwd=ws / "code", policy=readonly.replace(git="commit"))
    assert subjects(ws / "code") == ["second", "first"]
    assert (ws / "store/config").read_bytes() == config
    assert not (ws / "store/hooks/post-commit").exists()
