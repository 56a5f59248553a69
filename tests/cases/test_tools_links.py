"""T-09 and T-10: protected names that are symbolic links; workspaces, homes and directories reached through links."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile

import pytest
from conftest import git

import sandboxed_subprocess as sp

NAMES = (".git", ".vscode", ".envrc", ".mcp.json")


# -- T-09 -----------------------------------------------------------------------------------------------------------


def linked(ws, base, name, kind):
    """`name` in the workspace, a link to something below `base`. Returns the target."""
    target = base / "store" / name.lstrip(".")
    target.parent.mkdir(exist_ok=True)
    if kind == "dir":
        target.mkdir()
        (target / "data").write_text("good\n")
    elif kind == "file":
        target.write_text("good\n")
    (ws / name).symlink_to(os.path.relpath(target, ws))
    return target


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("kind", ["file", "dir", "dangling"])
@pytest.mark.parametrize("name", NAMES)
def test_commands_run_beside_a_protected_name_that_is_a_link(sh, ws, outside, name, kind, where):
    """Dotfile managers, repo and Nix make such links; a mount on one must not fail every command."""
    linked(ws, ws if where == "inside" else outside, name, kind)
    text = os.readlink(ws / name)
    result = sh("echo ok > made && cat made")
    assert (result.stdout, result.returncode) == ("ok\n", 0)
    assert (ws / "made").read_text() == "ok\n"
    assert os.readlink(ws / name) == text


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("kind", ["file", "dir"])
@pytest.mark.parametrize("name", NAMES)
def test_the_target_of_a_protected_link_is_protected(sh, ws, outside, name, kind, where):
    """Protecting only the link would leave open what it stands for; it can be read all the same."""
    target = linked(ws, ws if where == "inside" else outside, name, kind)
    data = target / "data" if kind == "dir" else target
    through = f"{name}/data" if kind == "dir" else name
    attacks = f"echo evil > {through}; echo evil > {data}; rm -f {through} {data}; rm -rf {target}; mv {target} away"
    result = sh(f"cat {through}; {attacks}; echo ran")
    assert result.stdout == "good\nran\n"
    assert data.read_text() == "good\n"
    assert (ws / name).resolve() == target


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("kind", ["file", "dir", "dangling"])
@pytest.mark.parametrize("name", NAMES)
def test_a_protected_link_cannot_be_replaced(sh, ws, outside, name, kind, where):
    """`rm .git && mkdir -p .git/hooks` is all it takes, where only the target is protected."""
    linked(ws, ws if where == "inside" else outside, name, kind)
    text = os.readlink(ws / name)
    attacks = f"rm -f {name}; mv {name} away; ln -sfn /evil {name}; mkdir -p new/hooks; mv -T new {name}; mv -T new/hooks {name}"
    result = sh(f"({attacks}); mkdir -p {name}/hooks && touch {name}/hooks/evil; echo ran")
    assert result.stdout.endswith("ran\n")
    # Refused, or undone at the end: then the name is free and the report says so.
    if os.path.lexists(ws / name):
        assert os.path.islink(ws / name) and os.readlink(ws / name) == text
    else:
        assert result.sandbox.quarantined
    assert not (ws / name / "hooks").exists()


@pytest.mark.parametrize("name, mode", [*((name, "read-only") for name in NAMES), (".git", "commit")])
def test_the_missing_target_of_a_protected_link_cannot_be_supplied(sh, ws, tier, name, mode):
    """A dangling link to a place in the workspace: whoever makes that place decides what the name stands for."""
    target = linked(ws, ws, name, "dangling")
    script = f"mkdir -p {target}/hooks && echo evil > {target}/config; echo ran"
    result = sh(script, policy=sp.Policy.workspace_write(ws, git=mode, backend=tier))
    assert result.stdout == "ran\n"
    assert not (ws / name / "config").exists(), "the name now stands for what the command made"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", ["link", "directory"])
def test_nothing_on_the_way_to_a_protected_target_can_be_replaced(sh, ws, name, step):
    """The target stays as it is, and the name leads elsewhere: a link or a directory on the way was exchanged."""
    target = linked(ws, ws, name, "dir")
    if step == "link":
        (ws / "step").symlink_to("store")
        (ws / name).unlink()
        (ws / name).symlink_to(f"step/{target.name}")
    way = "step" if step == "link" else "store"
    result = sh(f"cat {name}/data; mv {way} away; mkdir -p {way}/{target.name} && echo evil > {way}/{target.name}/data; echo ran")
    assert result.stdout == "good\nran\n"
    assert not os.path.exists(ws / name) or (ws / name / "data").read_text() == "good\n"


def test_git_works_where_its_directory_is_a_link(sh, ws, tier):
    """The link's target lies in the workspace, so a commit may be allowed there too."""
    git("init", "-q", "-b", "main", cwd=ws)
    git("config", "user.name", "t", cwd=ws)
    git("config", "user.email", "t@example.org", cwd=ws)
    shutil.move(ws / ".git", ws / "store")
    (ws / ".git").symlink_to("store")
    commit = "echo a > a; git add a && git commit -qm first && git log --format=%s"
    assert "Read-only file system" in sh(commit).stderr
    policy = sp.Policy.workspace_write(ws, git="commit", backend=tier)
    result = sh(f"{commit}; echo evil > .git/config; echo evil > store/hooks/x", policy=policy)
    assert result.stdout == "first\n"
    assert "evil" not in (ws / "store/config").read_text() and not (ws / "store/hooks/x").exists()


# -- T-10 -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["elsewhere", "below /tmp"])
def spot(request, place):
    """A directory for workspaces: an ordinary one, and one that the private /tmp would hide."""
    if request.param == "elsewhere":
        yield place
        return
    path = pathlib.Path(tempfile.mkdtemp(prefix="ss-test-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("form", ["link", "relative", "chain", "parent", "dots"])
@pytest.mark.parametrize("cwd", ["given", "real"])
def test_a_workspace_is_reached_by_its_link_and_by_its_name(sh, spot, tier, form, cwd):
    """Mounting only the real path makes the alias vanish, mounting on the alias fails: both names have to work."""
    real = spot / "real"
    real.mkdir()
    (spot / "other").mkdir()
    if form == "link":
        given = spot / "link"
        given.symlink_to(real)
    elif form == "relative":
        given = spot / "link"
        given.symlink_to(f"../{spot.name}/./real")
    elif form == "chain":
        given = spot / "link"
        given.symlink_to(spot / "second")
        (spot / "second").symlink_to("real")
    elif form == "parent":
        (real / "sub").mkdir()
        (spot / "link").symlink_to(real)
        given, real = spot / "link/sub", real / "sub"
    else:
        (real / "sub").mkdir()
        given = pathlib.Path(f"{real}/sub/..")
    policy = sp.Policy.workspace_write(given, backend=tier)
    script = f"touch x && touch {given}/y && touch {real}/z && touch {spot}/other/no; pwd -P"
    result = sh(script, cwd=given if cwd == "given" else real, policy=policy)
    assert (result.stdout, result.returncode) == (f"{real}\n", 0)
    assert {"x", "y", "z"} <= set(os.listdir(real))
    assert os.listdir(spot / "other") == []


@pytest.mark.parametrize("where", ["elsewhere", "in the workspace"])
def test_secrets_of_a_home_that_is_a_link_are_hidden_by_both_names(sh, spot, tier, monkeypatch, where):
    """/home is a link on some systems; a denial that knows one name only is none."""
    (spot / "work").mkdir()
    base = spot if where == "elsewhere" else spot / "work"
    home = base / "real-home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("SECRET\n")
    (home / ".netrc").write_text("SECRET\n")
    (home / "plain").write_text("plain\n")
    (spot / "home").symlink_to(home)
    monkeypatch.setenv("HOME", str(spot / "home"))
    policy = sp.Policy.workspace_write(spot / "work", read="all", backend=tier)
    names = " ".join(f"{h}/{n}" for h in (home, spot / "home", '"$HOME"') for n in (".ssh/id", ".netrc"))
    result = sh(f"cat {names}; echo evil > ~/.ssh/authorized_keys; cat {home}/plain; echo ran", cwd=spot / "work", policy=policy)
    assert "SECRET" not in result.stdout and result.stdout.endswith("ran\n")
    if where == "in the workspace" or not str(spot).startswith("/tmp"):
        assert "plain\n" in result.stdout
    assert os.listdir(home / ".ssh") == ["id"]


def test_a_secret_that_is_a_link_is_hidden_at_its_target(sh, place, ws, monkeypatch):
    """~/.ssh -> /data/ssh: hiding the link alone leaves the keys in the open."""
    (place / "home").mkdir()
    (place / "keys").mkdir()
    (place / "keys/id").write_text("SECRET\n")
    (place / "home/.ssh").symlink_to(place / "keys")
    monkeypatch.setenv("HOME", str(place / "home"))
    result = sh(f"cat {place}/home/.ssh/id {place}/keys/id; echo ran")
    assert result.stdout == "ran\n"


def test_the_callers_directory_may_be_a_link(sh, spot, tier, monkeypatch):
    """The default policy's root is os.getcwd(), which the kernel has resolved; PWD may still name the link."""
    (spot / "real").mkdir()
    (spot / "link").symlink_to("real")
    monkeypatch.chdir(spot / "link")
    monkeypatch.setenv("PWD", str(spot / "link"))
    result = sp.run(["sh", "-c", "echo x > made; cd -P . && pwd"], capture_output=True, text=True)
    assert result.stdout == f"{spot}/real\n"
    assert (spot / "real/made").read_text() == "x\n"


def test_a_link_in_one_root_cannot_become_another_root(ws, outside, tier):
    """A command could have planted it; what it points to was never the user's choice."""
    (ws / "evil").symlink_to(outside)
    with pytest.raises(sp.PolicyError, match="evil"):
        sp.run(["true"], policy=sp.Policy.workspace_write(ws, ws / "evil", backend=tier))


def test_system_directories_that_are_links_work(sh):
    """/bin, /lib and /lib64 are links on every current distribution; /var/run and /var/lock often are."""
    result = sh("/bin/echo a; /usr/bin/env echo b; test -d /lib && test -d /var/run && echo c")
    assert (result.stdout, result.returncode) == ("a\nb\nc\n", 0)
