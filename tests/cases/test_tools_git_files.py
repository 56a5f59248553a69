"""T-03, T-04, T-06, T-07: git keeps working on what the sandbox protects or hides, and finds nothing new."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from conftest import ROOT, git

import sandboxed_subprocess as sp
from sandboxed_subprocess import Glob


@pytest.fixture
def repo(ws):
    """The workspace, as a repository with one commit."""
    git("init", "-q", "-b", "main", cwd=ws)
    for name, value in (("user.name", "t"), ("user.email", "t@example.org"), ("commit.gpgsign", "false")):
        git("config", name, value, cwd=ws)
    (ws / "tracked").write_text("1\n")
    git("add", "tracked", cwd=ws)
    git("commit", "-q", "-m", "first", cwd=ws)
    return ws


def listing(path):
    """Names, types, sizes, times and inodes of everything below a directory."""
    found = {}
    for directory, names, files in os.walk(path):
        for name in [".", *names, *files]:
            st = os.lstat(os.path.join(directory, name))
            found[os.path.normpath(os.path.join(directory, name))] = (st.st_mode, st.st_size, st.st_mtime_ns, st.st_ino)
    return found


# -- T-03 -----------------------------------------------------------------------------------------------------------


def test_protected_git_configuration_can_be_read_and_not_written(sh, repo):
    """Masked instead of read-only, config.worktree makes every git command die."""
    git("config", "extensions.worktreeConfig", "true", cwd=repo)
    git("config", "--worktree", "core.x", "y", cwd=repo)
    before = {name: (repo / ".git" / name).read_bytes() for name in ("config", "config.worktree", "HEAD", "description")}
    assert sh("git status --porcelain && git config --get core.x").stdout == "y\n"
    attack = f"for f in {' '.join(before)}; do echo evil >> .git/$f && echo wrote; done; git config a.b c && echo set"
    result = sh(attack)
    assert result.stdout == "" and result.stderr.count("Read-only file system") >= 4
    assert {name: (repo / ".git" / name).read_bytes() for name in before} == before
    # HEAD has to be written by `git switch`, and nothing acts on the description.
    sh(attack, policy=sp.Policy.workspace_write(repo, git="commit"))
    for name in ("config", "config.worktree"):
        assert (repo / ".git" / name).read_bytes() == before[name]


def test_reading_git_commands_work_in_a_protected_repository(sh, repo):
    """log, diff, blame, grep and an index that cannot be refreshed: none of them needs to write."""
    (repo / "tracked").write_text("2\n")
    script = "git log --oneline | wc -l; git diff --stat | tail -1; git blame -s tracked | wc -l; git grep -c 2; git ls-files"
    result = sh(script)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split("\n")[0].strip() == "1" and "1 file changed" in result.stdout and "tracked:1" in result.stdout


# -- T-04 -----------------------------------------------------------------------------------------------------------

SAFE = {
    "plain": "[safe]\n\tdirectory = {repo}\n",
    "quoted": '[safe]\n\tdirectory = "{repo}"\n',
    "everything": "[safe]\n\tdirectory = *\n",
    "comment": "[Safe] # mine\n\tDirectory = {repo} ; trusted\n",
    "one line": "[safe] directory = {repo}\n",
    "reset": "[safe]\n\tdirectory = /nowhere\n\tdirectory =\n\tdirectory = {repo}\n",
}


@pytest.mark.skipif(not ROOT, reason="needs root: a repository that belongs to another user has to be made")
@pytest.mark.parametrize("hidden", ["home", "file", "xdg"])
@pytest.mark.parametrize("form", SAFE)
def test_trust_in_a_repository_survives_a_hidden_git_configuration(sh, place, repo, tier, form, hidden):
    """Where `git status` works outside it works inside, although ~/.gitconfig is denied; nothing else of it shows."""
    home = place / "home"
    config = home / (".config/git/config" if hidden == "xdg" else ".gitconfig")
    config.parent.mkdir(parents=True)
    config.write_text(SAFE[form].format(repo=repo) + "[credential]\n\thelper = store-TOPSECRET\n")
    for directory, names, files in os.walk(repo):
        for name in [".", *names, *files]:
            os.chown(os.path.join(directory, name), 1234, 1234)
    env = {**os.environ, "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    outside = subprocess.run(["git", "status", "--porcelain"], cwd=repo, env=env, capture_output=True, text=True, check=False)
    assert (outside.returncode, outside.stdout) == (0, ""), outside.stderr
    policy = sp.Policy.workspace_write(repo, deny_read=[home if hidden == "home" else config], backend=tier)
    script = f"git status --porcelain && sh -c 'git log --format=%s' && env; git config --list; cat {config}"
    result = sh(script, env=env, policy=policy)
    assert "first\n" in result.stdout, result.stderr
    assert "dubious" not in result.stderr and "TOPSECRET" not in result.stdout


@pytest.mark.skipif(not ROOT, reason="needs root: a repository that belongs to another user has to be made")
def test_a_repository_that_nobody_trusted_is_not_trusted_inside(sh, place, repo, tier):
    """The sandbox repeats what the user said; it does not say it for him."""
    home = place / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[safe]\n\tdirectory = /somewhere/else\n[user]\n\tname = x\n")
    for directory, names, files in os.walk(repo):
        for name in [".", *names, *files]:
            os.chown(os.path.join(directory, name), 1234, 1234)
    repo.chmod(0o777)  # without this, or trust, it is refused before: root's command could not write there
    policy = sp.Policy.workspace_write(repo, deny_read=[home], backend=tier)
    result = sh("git status --porcelain", env={**os.environ, "HOME": str(home)}, policy=policy)
    assert result.returncode != 0 and "dubious ownership" in result.stderr


# -- T-06 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".env", "a/b/.env", "s p.env", "ünï.env", 'q"uote.env', "gl[o]b*.env", "#x.env", "!y.env"])
@pytest.mark.parametrize("how", ["path", "pattern"])
def test_git_stays_usable_beside_a_denied_tracked_file(sh, repo, tier, how, name):
    """A mask of another type or size makes git see a change: status, stash and diff fail for the whole tree."""
    secret = repo / name
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("A=SECRET\n")
    git("add", "--", name, cwd=repo)
    git("commit", "-qm", "secret", cwd=repo)
    denied = secret if how == "path" else Glob("**/*.env")
    policy = sp.Policy.workspace_write(repo, deny_read=[denied], git="commit", backend=tier)
    script = "git status --porcelain && git diff HEAD && echo x > b && git add -A && git commit -qm b && echo done"
    result = sh(script, policy=policy)
    assert (result.stdout, result.returncode) == ("done\n", 0), result.stderr
    assert git("log", "--format=%s", cwd=repo).split() == ["b", "secret", "first"]
    assert git("show", "--name-only", "--format=", cwd=repo).split() == ["b"]
    assert secret.read_text() == "A=SECRET\n"
    assert git("status", "--porcelain", cwd=repo) == ""


def test_a_denied_tracked_file_cannot_be_read_nor_replaced(run, repo, tier):
    """What git is shown instead must hold nothing of the content."""
    (repo / ".env").write_text("A=SECRET\n")
    git("add", ".env", cwd=repo)
    git("commit", "-qm", "secret", cwd=repo)
    (repo / ".env").write_text("A=SECRET-AND-NEWER\n")
    policy = sp.Policy.workspace_write(repo, deny_read=[repo / ".env"], git="commit", backend=tier)
    script = "cat .env | tr -d '\\0'; echo x > .env; mv .env away; rm -f .env; cp .env copy; cat copy | tr -d '\\0'; echo ran"
    result = run(["sh", "-c", script], policy=policy)
    assert result.stdout == "ran\n"
    assert (repo / ".env").read_text() == "A=SECRET-AND-NEWER\n"


def test_git_works_in_a_tree_with_a_denied_directory(sh, repo, tier):
    """Hidden directories with tracked files are seen as deleted at most; other files can be committed."""
    (repo / "keys").mkdir()
    (repo / "keys/one").write_text("SECRET\n")
    git("add", "keys", cwd=repo)
    git("commit", "-qm", "keys", cwd=repo)
    policy = sp.Policy.workspace_write(repo, deny_read=[repo / "keys"], git="commit", backend=tier)
    result = sh("echo b > b && git add b && git commit -qm b -- b && cat keys/one", policy=policy)
    assert "SECRET" not in result.stdout
    assert git("log", "--format=%s", cwd=repo).split() == ["b", "keys", "first"], result.stderr
    assert git("ls-tree", "--name-only", "HEAD", "keys/", cwd=repo) == "keys/one\n"


# -- T-07 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["read-only", "commit", "writable"])
def test_a_run_leaves_nothing_in_a_repository(sh, repo, tier, mode):
    """Placeholders for protected names that do not exist would show up in git status, for ever."""
    before = listing(repo)
    policy = sp.Policy.workspace_write(
        repo, git=mode, deny_read=[repo / "no/such", Glob("**/.env"), "no-such"], deny_write=[repo / "none"], backend=tier
    )
    result = sh("git --no-optional-locks status --porcelain -uall; ls -A", policy=policy)
    assert (result.stdout, result.returncode) == (".git\ntracked\n", 0)
    assert listing(repo) == before


def test_no_git_directory_appears_where_there_is_none(sh, ws):
    """An empty .git changes how other tools find the repository, inside and afterwards."""
    before = listing(ws)
    result = sh("git rev-parse --show-toplevel; ls -A")
    assert result.stdout == "" and "not a git repository" in result.stderr
    assert listing(ws) == before


def test_a_repository_above_the_workspace_is_found(sh, repo, tier):
    """The workspace is often one package of a repository."""
    (repo / "package").mkdir()
    policy = sp.Policy.workspace_write(repo / "package", backend=tier)
    result = sh("git rev-parse --show-toplevel --show-prefix; git status --porcelain -uall", cwd=repo / "package", policy=policy)
    assert result.stdout == f"{repo}\npackage/\n"
    assert os.listdir(repo / "package") == []


@pytest.mark.parametrize("fault", ["program", "cwd"])
def test_a_failed_run_leaves_nothing_either(run, repo, fault):
    """The way out of an error is where cleaning up gets forgotten."""
    before = listing(repo)
    with pytest.raises(FileNotFoundError):
        run(["/no/such/program"] if fault == "program" else ["true"], cwd=repo if fault == "program" else repo / "missing")
    assert listing(repo) == before


def test_a_workspace_removed_by_its_command_stays_removed(run, ws, place):
    """Nothing is put back at the end, and the end is not an error."""
    (ws / "sub").mkdir()
    (ws / "sub/f").write_text("x")
    result = run(["rm", "-r", ws / "sub"])
    assert result.returncode == 0 and os.listdir(ws) == []
    shutil.rmtree(ws)
    with pytest.raises(sp.PolicyError, match="ws"):
        run(["true"], cwd=place)
    assert os.listdir(place) == []
