"""Nothing below what is read-only is writable, whatever else the policy names in there; and what git="commit" opens leads nowhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import git

import sandboxed_subprocess as sp
from sandboxed_subprocess._plan import Access, compile_view

# A directory that leads to something denied was made a mount of its own, to stay in its place, and a writable one: also where
# all around it was read-only.


@pytest.fixture
def repository(ws):
    git("init", "-q", ".", cwd=ws)
    (ws / "file").write_text("x")
    git("add", "file", cwd=ws)
    git("commit", "-qm", "first", cwd=ws)
    return ws


def test_a_denied_file_in_the_hooks_does_not_open_them(sh, repository, policy):
    """A hook that a run could write there ran with the user's next commit."""
    inner = repository / ".git" / "hooks" / "deeper"
    inner.mkdir(parents=True)
    (inner / ".env").write_text("secret")
    result = sh(
        "echo evil > .git/hooks/pre-commit; echo evil > .git/hooks/deeper/x; cat .git/hooks/deeper/.env",
        policy=policy.with_deny_read(sp.Glob("**/.env")),
    )
    assert result.stderr.count("Read-only file system") == 2 and "secret" not in result.stdout
    assert not (repository / ".git/hooks/pre-commit").exists() and not (inner / "x").exists()


def test_a_linked_worktree_in_the_root_does_not_open_the_repository(sh, repository, policy):
    """No option was needed: .git/worktrees could be written, and a link planted in it led `git gc` to delete what it leads to."""
    git("worktree", "add", "-q", "linked", cwd=repository)
    result = sh("ln -s /srv .git/worktrees/x; mkdir .git/worktrees/y; echo x > .git/worktrees/linked/HEAD; echo x > linked/.git")
    assert result.stderr.count("Read-only file system") == 4
    assert os.listdir(repository / ".git" / "worktrees") == ["linked"]


def test_a_submodule_does_not_open_the_repository(sh, repository, place, policy):
    """The same with .git/modules."""
    other = place / "other"
    other.mkdir()
    git("init", "-q", ".", cwd=other)
    git("commit", "-qm", "first", "--allow-empty", cwd=other)
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "lib", cwd=repository)
    result = sh("touch .git/modules/x; mkdir .git/modules/new; ln -s /etc .git/modules/lib/hooks/x")
    assert result.stderr.count("Read-only file system") == 3
    assert os.listdir(repository / ".git" / "modules") == ["lib"]


@pytest.mark.parametrize("inner", [{"deny_write": "dw/a/b/c"}, {"deny_read": "dw/a/b/secret"}])
def test_what_is_read_only_stays_so_around_what_is_denied_in_it(sh, ws, policy, inner):
    """deny_write= was lost for the directories on the way."""
    (ws / "dw/a/b/c").mkdir(parents=True)
    (ws / "dw/a/b/secret").write_text("secret")
    changes = {name: [str(ws / path)] for name, path in inner.items()}
    changes["deny_write"] = [*changes.get("deny_write", []), str(ws / "dw")]
    result = sh("touch dw/x; touch dw/a/x; touch dw/a/b/x; mv dw/a dw/y; touch fine", policy=policy.replace(**changes))
    assert result.stderr.count("Read-only file system") == 4, result.stderr
    assert (ws / "fine").exists() and sorted(os.listdir(ws / "dw/a/b")) == ["c", "secret"] and os.listdir(ws / "dw/a") == ["b"]


def test_no_plan_has_a_writable_path_below_a_read_only_one(ws, repository):
    """As a property of plans: only a root, or a part of git that was asked for, opens what lies in something closed."""
    git("worktree", "add", "-q", "linked", cwd=repository)
    (ws / "dw/a/b/c").mkdir(parents=True)
    policy = sp.Policy.workspace_write(
        ws, deny_write=[ws / "dw", ws / "dw/a/b/c"], deny_read=[ws / "dw/a/b/c/d", ws / "linked/x", ws / ".git/hooks/y/z"]
    )
    from sandboxed_subprocess._plan import Command, compile_plan

    plan = compile_plan(compile_view(policy), Command((b"true",), (b"/bin/true",)), {}, (), inherits=True)
    rules = {rule.path: rule for rule in plan.rules}
    for path, rule in rules.items():
        above = os.path.dirname(path)
        while above not in rules and above != "/":
            above = os.path.dirname(above)
        if rule.access is Access.WRITE and above in rules:
            assert rules[above].access is Access.WRITE or rule.rank == 1, (path, above)


def test_links_planted_for_git_are_put_away(sh, repository, place, policy):
    """git="commit" lets the index, the logs and the messages be written: a link among them had the user's own git write the
    command's text wherever it leads."""
    target = place / "bashrc"
    target.write_text("mine\n")
    script = (
        f"cd .git; ln -sf {target} COMMIT_EDITMSG; ln -s {target} FETCH_HEAD; ln -sf {target} logs/HEAD;"
        f"mkdir -p refs/a/b; ln -s {target} refs/a/b/c; ln -s {place} objects/zz"
    )
    result = sh(script, policy=policy.replace(git="commit"))
    assert sorted(os.path.relpath(was, repository / ".git") for was, _ in result.sandbox.quarantined) == [
        "COMMIT_EDITMSG", "FETCH_HEAD", "logs/HEAD", "objects/zz", "refs/a/b/c",
    ]  # fmt: skip
    git("commit", "-q", "--allow-empty", "-m", "text of the command", cwd=repository)
    assert target.read_text() == "mine\n"


def test_planted_links_are_found_in_what_cannot_be_listed(sh, repository, place, policy):
    """A directory without "r" hides its names from whoever looks, and git follows a link in it all the same."""
    target = place / "bashrc"
    target.write_text("mine\n")
    script = f"cd .git; ln -sf {target} logs/HEAD; mkdir -p refs/a; ln -s {target} refs/a/b; chmod 333 logs refs/a refs"
    result = sh(script, policy=policy.replace(git="commit"))
    assert sorted(os.path.relpath(was, repository / ".git") for was, _ in result.sandbox.quarantined) == ["logs/HEAD", "refs/a/b"]
    git("commit", "-q", "--allow-empty", "-m", "second", cwd=repository)
    assert target.read_text() == "mine\n"


def test_a_link_that_was_there_is_left_alone(sh, repository, place, policy):
    """It is the user's."""
    (repository / ".git" / "description").unlink()
    (repository / ".git" / "description").symlink_to(place / "elsewhere")
    result = sh(
        "echo y > file; git -c user.name=a -c user.email=a@example.org -c safe.directory='*' commit -qam second",
        policy=policy.replace(git="commit"),
    )
    assert (result.returncode, result.sandbox.quarantined) == (0, ()), result.stderr
    assert (repository / ".git" / "description").is_symlink()


def test_no_lease_and_no_flow_label(py, outside):
    """A lease on a readable file makes the host's own open() wait; a flow label is found by the next run in the namespace."""
    (outside / "file").write_text("x")
    code = f"""
import fcntl, socket
file = open({str(outside / "file")!r})
labels = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
labels.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
for attempt in (lambda: fcntl.fcntl(file, 1024, fcntl.F_WRLCK), lambda: fcntl.fcntl(file, 1024, fcntl.F_RDLCK),
                lambda: labels.setsockopt(41, 32, b"\\0" * 32)):
    try: attempt(); print("done")
    except PermissionError: print("refused")
fcntl.flock(file, fcntl.LOCK_SH)
"""
    result = py(code)
    assert (result.stdout, result.stderr) == ("refused\n" * 3, "")


def test_a_timeout_that_is_infinite(ws, policy):
    """As long as it takes, as in the stdlib; it was an OverflowError, after the spawn."""
    assert sp.run(["true"], timeout=float("inf"), policy=policy, cwd=ws).returncode == 0
    assert sp.call(["true"], timeout=float("inf"), policy=policy, cwd=ws) == 0
    with sp.Popen(["true"], policy=policy, cwd=ws) as process:
        assert process.wait(float("inf")) == 0


def test_nothing_is_said_at_the_end_of_the_interpreter(ws):
    """A Popen that nobody refers to any more was cleaned up when the modules were gone already."""
    code = f"import sandboxed_subprocess as sp\nsp.Popen(['sleep', '1'], policy=sp.Policy.workspace_write({str(ws)!r}))\n"
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ws.parent, check=False)
    assert (result.returncode, result.stderr) == (0, "")
