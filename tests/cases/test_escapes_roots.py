"""Which directories are writable is decided by the policy alone: not by a working directory, a link or a race."""

from __future__ import annotations

import ctypes
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import warnings

import pytest

import sandboxed_subprocess as sp

TOUCH = "touch ss-escape; echo $?; echo ran"


def test_the_working_directory_of_the_command_adds_nothing(sh, ws, outside, place):
    """The model picks `cwd=`; if the writable root follows from it, the model picks what it may write (CVE-2025-59532)."""
    (ws / "link-out").symlink_to(outside)
    (ws / "sub").mkdir()
    home = pathlib.Path.home()
    for cwd in ("/", home, place, ws / "..", ws / "sub" / ".." / "..", ws / "link-out", outside, "/proc/self/cwd/..", "/etc", "/usr/bin"):
        status, ran = sh(TOUCH, cwd=cwd).stdout.split()
        assert (status != "0", ran) == (True, "ran"), cwd
        for directory in (cwd, outside, place, home, "/"):
            assert not os.path.lexists(os.path.join(directory, "ss-escape")), cwd
    assert sh(TOUCH, cwd=ws / "sub").stdout.split()[0] == "0"
    assert (ws / "sub" / "ss-escape").exists()


@pytest.mark.parametrize("policy", [None, "workspace-write"])
def test_the_default_root_is_the_callers_directory_and_not_cwd(policy, ws, outside, monkeypatch, tier):
    """The same without a policy, where it is most tempting to take `cwd=`."""
    monkeypatch.chdir(ws)
    result = sp.run(TOUCH, shell=True, cwd=outside, capture_output=True, text=True, policy=policy)
    assert result.stdout.split()[1] == "ran"
    assert list(outside.iterdir()) == []
    sp.run(TOUCH, shell=True, capture_output=True, policy=policy)
    assert (ws / "ss-escape").exists()


@pytest.mark.parametrize("where", ["/", "home"])
def test_the_root_directory_and_the_home_directory_are_no_default_workspace(where, ws):
    """A daemon starts in "/", a shell in the home directory: neither was chosen as what a command may overwrite."""
    directory = os.path.expanduser("~") if where == "home" else "/"
    code = f"""
import sandboxed_subprocess as sp
result = sp.run({TOUCH!r}, shell=True, capture_output=True, text=True)
print(result.stdout)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False)
    assert result.stdout.split()[1] == "ran", result.stderr
    assert not os.path.lexists(os.path.join(directory, "ss-escape"))
    assert "SandboxWarning" in result.stderr


def test_the_whole_system_is_no_root(ws):
    """`write=["/"]` is `danger_full_access` by another name; spelled in any way."""
    (ws / "link").symlink_to("/")
    for path in ("/", "//", "/..", "/proc/self/root", ws / "link", ws / ".." / ".." / ".." / "..", "/proc", "/sys", "/proc/self/fd"):
        with pytest.raises(sp.PolicyError):
            sp.run(["touch", ws / "ran"], policy=sp.Policy.workspace_write(path))
    assert not (ws / "ran").exists()


def test_a_home_directory_as_a_root_keeps_its_start_up_files(place, monkeypatch, sh):
    """Who asks for it gets it, but not what the user's next login would run."""
    home = place / "home"
    for name in (".bashrc", ".profile", ".ssh/authorized_keys", ".config/systemd/user/x.service", ".local/bin/ls", ".gitconfig"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("host\n")
    monkeypatch.setenv("HOME", str(home))
    names = ".bashrc .profile .zshrc .ssh/authorized_keys .config/systemd/user/x.service .config/autostart/x .local/bin/ls .gitconfig"
    result = sh(
        f"for f in {names}; do mkdir -p $(dirname $f); echo planted > $f; rm -f $f; done; rm -rf .ssh .local; echo ok > made; echo ran",
        policy=sp.Policy.workspace_write(home), cwd=home,
    )  # fmt: skip
    assert result.stdout == "ran\n"
    assert (home / "made").read_text() == "ok\n"
    for name in (".bashrc", ".profile", ".ssh/authorized_keys", ".config/systemd/user/x.service", ".local/bin/ls", ".gitconfig"):
        assert (home / name).read_text() == "host\n", name
    assert not (home / ".zshrc").exists()
    assert not (home / ".config" / "autostart").exists()


def test_a_relative_root_is_what_it_was_when_the_policy_was_built(place, ws, outside, monkeypatch, tier):
    """Whoever changes the directory later must not move the root with it; nor a worker that unpickles the policy elsewhere."""
    monkeypatch.chdir(ws)
    policies = [sp.Policy.workspace_write("."), sp.Policy.workspace_write(pathlib.Path("."))]
    monkeypatch.chdir(outside)
    for policy in (*policies, pickle.loads(pickle.dumps(policies[0])), sp.Policy.from_json(policies[0].to_json()), policies[0].replace(git="commit")):
        result = sp.run(f"{TOUCH}; touch {ws}/made", shell=True, policy=policy, capture_output=True, text=True)
        assert "ran" in result.stdout
        assert list(outside.iterdir()) == []
        (ws / "made").unlink()


def test_a_directory_that_an_earlier_command_turned_into_a_link_is_no_root(sh, ws, outside, tier):
    """Run 1: `rm -rf build; ln -s ~/.ssh build`. Run 2 mounts what it finds under the name that was approved."""
    (ws / "build").mkdir()
    first = sh(f"rmdir build && ln -s {outside} build; ln -s {outside} new; mkdir real; ln -s real alias; echo done")
    assert first.stdout == "done\n"
    for root in ("build", "new", "build/.", "new/sub/..", "alias"):
        with pytest.raises(sp.PolicyError):
            sp.run("touch build/x new/x; touch ran", shell=True, cwd=ws, policy=sp.Policy.workspace_write(ws, ws / root))
        with pytest.raises(sp.PolicyError):
            sp.run("touch build/x new/x; touch ran", shell=True, cwd=ws, policy=sp.Policy.workspace_write(ws / root))
    assert list(outside.iterdir()) == []
    assert not (ws / "ran").exists()


def test_a_root_that_is_a_link_of_the_hosts_own_is_followed(place, ws, outside, tier):
    """Links outside every root are the user's: /home -> /data/home must go on working."""
    (place / "link").symlink_to(ws)
    result = sp.run(f"echo x > {place}/link/made; touch {outside}/made", shell=True, policy=sp.Policy.workspace_write(place / "link"), stderr=sp.DEVNULL)
    assert result.returncode != 0
    assert (ws / "made").exists()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("field", ["write", "parent of write", "deny_write", "deny_read"])
def test_a_root_replaced_between_two_runs_of_one_policy_is_noticed(field, place, ws, outside, tier):
    """What a policy's paths mean is looked up once and kept; the second run must not act on what is no longer there."""
    (outside / "d").mkdir()
    (outside / "d" / "cfg").write_text("host")
    parent = ws / "p" if field == "parent of write" else ws
    (parent / "d").mkdir(parents=True)
    (parent / "d" / "cfg").write_text("kept")
    policy = {
        "write": sp.Policy.workspace_write(ws, ws / "d"),
        "parent of write": sp.Policy.workspace_write(ws, parent / "d"),
        "deny_write": sp.Policy.workspace_write(ws, deny_write=[ws / "d" / "cfg"]),
        "deny_read": sp.Policy.workspace_write(ws, deny_read=[ws / "d" / "cfg"]),
    }[field]
    swapped = f"mv {parent} {parent}2 && ln -s {outside} {parent}" if field == "parent of write" else f"mv d e && ln -s {outside}/d d"
    script = f"[ -L d ] || [ -L p ] || {{ {swapped}; }}; touch d/x p/d/x; echo pwned > d/cfg; cat d/cfg; true"
    ran = 0
    for _ in range(3):
        try:
            sp.run(script, shell=True, policy=policy, cwd=ws, stderr=sp.DEVNULL, stdout=sp.DEVNULL)
            ran += 1
        except sp.SandboxError:
            continue
    assert ran >= 1
    assert os.listdir(outside) == ["d"]
    assert os.listdir(outside / "d") == ["cfg"]
    assert (outside / "d" / "cfg").read_text() == "host"


def exchange(a, b):
    """Two names swapped at once, so that at each moment there is one or the other (RENAME_EXCHANGE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.parametrize("kind", ["root", "below the root", "formerly below a root", "deny_write"])
def test_a_race_of_links_against_the_mounts_is_lost(kind, place, ws, outside, tier):
    """Text that is checked and then mounted can be another directory by then (firejail#1158): here a neighbour flips it all
    the time, and whatever wins, nothing may reach the other side."""
    (outside / "d").mkdir()
    (outside / "d" / "cfg").write_text("host")
    (place / "out").symlink_to(outside / "d")
    flipped = ws if kind == "root" else ws / "d"
    flipped.mkdir(exist_ok=True)
    (flipped / "cfg").write_text("kept")
    link = place / "other" if kind == "root" else ws / "other"
    link.symlink_to(outside / "d")
    stop = threading.Event()

    def flip():
        while not stop.is_set():
            try:
                exchange(flipped, link)
                exchange(flipped, link)
            except FileNotFoundError:
                return  # taken for planted, as it might have been, and put out of action

    try:
        exchange(flipped, link)
        exchange(flipped, link)
    except OSError as error:
        pytest.skip(str(error))
    # Approved while it was a directory; or a new policy each time, of which nothing is cached yet.
    approved = sp.Policy.workspace_write(ws)
    sp.run(["true"], policy=approved, cwd="/", check=True)
    policy = {
        "root": lambda n: approved,
        "below the root": lambda n: sp.Policy.workspace_write(ws, ws / "d", exclude=[f"N{n}"]),
        "formerly below a root": lambda n: sp.Policy.workspace_write(ws / "d", exclude=[f"N{n}"]),
        "deny_write": lambda n: sp.Policy.workspace_write(ws, deny_write=[ws / "d" / "cfg"], exclude=[f"N{n}"]),
    }[kind]
    results = {"ran": 0, "refused": 0}
    flipper = threading.Thread(target=flip)
    flipper.start()
    try:
        for number in range(40):
            try:
                for _ in range(2):
                    sp.run(["sh", "-c", f"echo pwned > {flipped}/cfg; touch {flipped}/made"], policy=policy(number), cwd="/", stderr=sp.DEVNULL)
                    results["ran"] += 1
            except (sp.SandboxError, OSError):
                results["refused"] += 1
    finally:
        stop.set()
        flipper.join()
    assert os.listdir(outside / "d") == ["cfg"]
    assert (outside / "d" / "cfg").read_text() == "host"
    assert sum(results.values()) >= 40
    if kind != "deny_write":
        sp.run(["sh", "-c", f"echo x > {flipped}/made"], policy=policy(-1), cwd="/", check=True)
        assert (flipped / "made").read_text() == "x\n"


def test_a_replaced_root_is_refused_even_if_it_is_a_directory(ws, place, tier):
    """The identity that was approved is (device, inode), not a name; but each run looks anew, so that a rebuilt workspace works."""
    policy = sp.Policy.workspace_write(ws)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sp.run(["touch", ws / "a"], policy=policy).returncode == 0
        ws.rename(place / "old")
        with pytest.raises(sp.PolicyError):
            sp.run(["touch", place / "old" / "b"], policy=policy, cwd="/")
        ws.mkdir()
        assert sp.run(["touch", ws / "c"], policy=policy, cwd="/").returncode == 0
    assert (os.listdir(place / "old"), os.listdir(ws)) == (["a"], ["c"])
