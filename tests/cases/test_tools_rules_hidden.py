"""T-33, continued: what makes a path read-only must not make it readable where it is hidden."""

from __future__ import annotations

import shutil
import uuid

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess import Glob


def put(path, text="SECRET\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("git", ["read-only", "commit", "writable"])
@pytest.mark.parametrize("how", ["path", "pattern"])
def test_protected_names_inside_a_denied_directory_stay_hidden(sh, ws, tier, how, git):
    """That .git and .envrc are read-only in a workspace must not make them readable again where all is denied."""
    names = [".envrc", ".git/config", ".vscode/settings.json", ".mcp.json", "deep/.git/config", "deep/.claude/x", "plain"]
    for name in names:
        put(ws / "private" / name)
    (ws / "private/.git/objects").mkdir()
    denied = ws / "private" if how == "path" else Glob("**/private")
    policy = sp.Policy.workspace_write(ws, deny_read=[denied], git=git, backend=tier)
    attack = "".join(f"cat private/{n}; echo evil > private/{n}; " for n in names)
    result = sh(f"{attack} echo evil > private/.git/planted; echo ran", policy=policy)
    assert result.stdout == "ran\n"
    assert all((ws / "private" / n).read_text() == "SECRET\n" for n in names) and not (ws / "private/.git/planted").exists()


def test_repositories_among_the_secrets_of_a_home_stay_hidden(sh, place, tier, monkeypatch):
    """`pass` keeps its store in git: a workspace that covers the home directory must not show it."""
    home = place / "home"
    put(home / ".password-store/.git/config")
    put(home / ".aws/.envrc")
    put(home / "project/f", "plain\n")
    monkeypatch.setenv("HOME", str(home))
    policy = sp.Policy.workspace_write(home, backend=tier)
    result = sh("cat .password-store/.git/config .aws/.envrc; cat project/f", cwd=home, policy=policy)
    assert result.stdout == "plain\n"


def test_start_up_files_in_a_denied_directory_of_a_home_stay_hidden(sh, place, tier, monkeypatch):
    """~/.config/pip and ~/.config/git are read-only in a home that is writable, and hidden with ~/.config."""
    home = place / "home"
    names = [".config/pip/pip.conf", ".config/git/config", ".config/fish/config.fish", ".vim/x"]
    for name in names:
        put(home / name)
    put(home / "f", "plain\n")
    monkeypatch.setenv("HOME", str(home))
    policy = sp.Policy.workspace_write(home, deny_read=[home / ".config", home / ".vim"], backend=tier)
    assert sh(f"cat {' '.join(names)}; cat f", cwd=home, policy=policy).stdout == "plain\n"


@pytest.mark.parametrize("how", ["path", "pattern"])
def test_a_path_in_deny_write_stays_hidden_inside_a_denied_directory(sh, ws, tier, how):
    """deny_write takes a right away; it gives none, however specific."""
    put(ws / "private/go.lock")
    put(ws / "private/locks/one")
    put(ws / "go.lock", "plain\n")
    deny = [ws / "private/go.lock", ws / "private/locks"] if how == "path" else [Glob("**/*.lock"), Glob("**/locks")]
    policy = sp.Policy.workspace_write(ws, deny_read=[ws / "private"], deny_write=deny, backend=tier)
    assert sh("cat private/go.lock private/locks/one; cat go.lock", policy=policy).stdout == "plain\n"


@pytest.fixture(params=["secret of the home", "denied", "below /tmp", "below /dev/shm"])
def hidden(request, place, monkeypatch):
    """A directory of the host's that the policy hides, with a file in a directory in it."""
    home = place / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    token = f"ss-test-{uuid.uuid4().hex[:12]}"
    base = {"secret of the home": home / ".ssh", "denied": place / "private"}.get(request.param)
    if base is None:
        base = type(place)("/tmp" if request.param == "below /tmp" else "/dev/shm", token)
    put(base / "sub/key")
    put(base / "sub/HEAD", "ref: refs/heads/main\n")
    (base / "sub/objects").mkdir()
    (base / "sub/refs").mkdir()
    yield base
    shutil.rmtree(base)


@pytest.mark.parametrize("git", ["read-only", "commit"])
@pytest.mark.parametrize("plant", ["ln -s {hidden}/sub/key {at}/.envrc", "ln -s {hidden}/sub {at}/.vscode",
                                   "ln -s {hidden}/sub {at}/.git", "echo gitdir: {hidden}/sub > {at}/.git"])  # fmt: skip
def test_a_planted_protected_name_does_not_reveal_what_is_hidden(sh, place, ws, tier, hidden, plant, git):
    """One command leaves a link with a protected name in the workspace; the next one must not find its target shown."""
    policy = sp.Policy.workspace_write(ws, deny_read=[place / "private"], git=git, backend=tier)
    attack = f"cat {hidden}/sub/key; echo evil > {hidden}/sub/key; touch {hidden}/sub/new; echo ran"
    assert sh(attack, policy=policy).stdout.endswith("ran\n")
    assert sh(f"mkdir -p a/b; {plant.format(hidden=hidden, at='a/b')}; ls -A a/b", policy=policy).stdout.startswith(".")
    assert sh(attack, policy=policy).stdout == "ran\n"
    assert sorted(p.name for p in (hidden / "sub").iterdir()) == ["HEAD", "key", "objects", "refs"]
    assert (hidden / "sub/key").read_text() == "SECRET\n"
