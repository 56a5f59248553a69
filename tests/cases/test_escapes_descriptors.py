"""Descriptors that come with the command: what was opened before the mounts leads past them."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest
from helpers.escapes_probe import PROBE, outcomes

import sandboxed_subprocess as sp

USE = PROBE + """
fd = int(sys.argv[1])
attempt("fstat", os.fstat, fd)
attempt("list", os.listdir, fd)
attempt("create", lambda: os.close(os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=fd)))
attempt("read", lambda: os.close(os.open("secret", os.O_RDONLY, dir_fd=fd)))
attempt("fchdir", os.fchdir, fd)
attempt("proc", lambda: open(f"/proc/self/fd/{fd}/secret").close())
print("ran OK")
"""


@pytest.mark.parametrize("close_fds", [True, False])
def test_an_inheritable_directory_is_not_inherited(close_fds, run, outside):
    """A leaked directory descriptor lets openat() write past every read-only mount (netblue30/firejail#4845); `close_fds=False`
    is how it leaks."""
    (outside / "secret").write_text("x")
    directory = os.open(outside, os.O_RDONLY)
    try:
        os.set_inheritable(directory, True)
        found = outcomes(run([sys.executable, "-c", USE, str(directory)], close_fds=close_fds))
    finally:
        os.close(directory)
    assert found.pop("ran") == "OK"
    assert "OK" not in found.values()
    assert os.listdir(outside) == ["secret"]


def directory(path):
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def path_only(path):
    return os.open(path, os.O_PATH)


def path_to_file(path):
    return os.open(path / "secret", os.O_PATH)


def namespace(path):
    return os.open("/proc/self/ns/mnt", os.O_RDONLY)


def user_namespace(path):
    return os.open("/proc/self/ns/user", os.O_RDONLY)


def process_directory(path):
    return os.open("/proc/self", os.O_RDONLY)


def mount(path):
    import ctypes

    fd = ctypes.CDLL(None, use_errno=True).syscall(428, -100, os.fsencode(path), 1 | os.O_CLOEXEC)      # open_tree(CLONE)
    if fd < 0:
        pytest.skip("not allowed to clone a mount")
    return fd


@pytest.mark.parametrize("opened", [directory, path_only, path_to_file, namespace, user_namespace, process_directory, mount])
@pytest.mark.parametrize("way", ["stdin", "stdout", "stderr", "pass_fds", "own stdin"])
def test_a_descriptor_that_leads_past_the_mounts_is_refused(opened, way, ws, outside, policy):
    """Landlock stops writes through such a descriptor and nothing stops reads: it has to be an error before anything runs."""
    (outside / "secret").write_text("x")
    fd = opened(outside)
    saved = os.dup(0)
    try:
        options = {"pass_fds": [fd]} if way == "pass_fds" else {} if way == "own stdin" else {way: fd}
        if way == "own stdin":
            os.dup2(fd, 0)
        with pytest.raises(sp.PolicyError, match="descriptor"):
            sp.run(["touch", ws / "ran"], policy=policy, cwd=ws, **options)
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(fd)
    assert not (ws / "ran").exists()


def test_files_and_sockets_in_pass_fds_are_a_grant(py, outside):
    """Handing over one open file or one connection is the precise way to give a command something."""
    (outside / "given").write_text("content")
    here, there = socket.socketpair()
    with here, there, open(outside / "given", "r+") as file:
        fds = (file.fileno(), there.fileno())
        code = f"import os, socket; os.write({fds[1]}, os.read({fds[0]}, 100)); os.write({fds[0]}, b'+')"
        assert py(code, pass_fds=fds).returncode == 0
        assert here.recv(100) == b"content"
    assert (outside / "given").read_text() == "content+"


def test_nothing_but_the_streams_is_open_inside(run):
    """The launcher's own descriptors (its plan, its sockets, the mounts it cloned) would lead out as well as the caller's."""
    code = """
import os
for name in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        print(name, os.readlink("/proc/self/fd/" + name))
    except OSError:
        pass                # the listing itself
"""
    result = run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, close_fds=False)
    lines = [line.split(" ", 1) for line in result.stdout.splitlines()]
    assert [number for number, _ in lines] == ["0", "1", "2"]
    assert lines[0][1] == "/dev/null"
    assert all(target.startswith("pipe:") for _, target in lines[1:])


REOPEN = PROBE + """
attempt("write", os.write, 0, b"x")
attempt("reopen", os.open, "/proc/self/fd/0", os.O_WRONLY)
attempt("reopen dev", os.open, "/dev/stdin", os.O_RDWR)
attempt("truncate", os.truncate, "/proc/self/fd/0", 0)
attempt("ftruncate", os.ftruncate, 0, 0)
attempt("above", os.listdir, "/proc/self/fd/0/..")
attempt("link", lambda: os.link("/proc/self/fd/0", "alias", follow_symlinks=True))
print("linkat", call(265 if X86 else 37, 0, ctypes.c_char_p(b""), -100, ctypes.c_char_p(b"alias2"), 0x1000))
print("read", "OK" if os.read(0, 100) == b"content" else "EIO")
"""


def test_a_file_given_for_reading_stays_as_it_is(py, outside):
    """The descriptor lies on the caller's writable mount, so that /proc/self/fd/0 opened anew, or truncate(), would write."""
    (outside / "given").write_text("content")
    with open(outside / "given") as file:
        found = outcomes(py(REOPEN, stdin=file))
    assert found.pop("read") == "OK"
    assert "OK" not in found.values(), found
    assert (outside / "given").read_text() == "content"


METADATA = PROBE + """
attempt("fchmod", os.fchmod, 0, 0o777)
attempt("chmod", os.chmod, "/proc/self/fd/0", 0o777)
attempt("utime", os.utime, 0, (1, 1))
attempt("utime by path", os.utime, "/proc/self/fd/0", (1, 1))
attempt("setxattr", os.setxattr, 0, "user.escape", b"x")
print("ran OK")
"""


def test_a_file_given_for_reading_keeps_its_content(py, outside):
    """Landlock does not see fchmod(), and a descriptor does not need the write mode for it: mode, times and attributes of a
    file that its owner hands over can be changed, as with `subprocess`. The README says so; the content is safe."""
    file = outside / "given"
    file.write_text("content")
    file.chmod(0o600)
    os.utime(file, (1_000_000, 1_000_000))
    with open(file) as opened:
        assert outcomes(py(METADATA, stdin=opened))["ran"] == "OK"
    with open(file) as opened:
        result = py("import os\nfor n in (0, '/proc/self/fd/0'):\n  try: os.truncate(n, 0)\n  except OSError as e: print('refused')", stdin=opened)
    assert result.stdout == "refused\nrefused\n" and file.read_text() == "content"
    readme = (pathlib.Path(__file__).parents[2] / "README.md").read_text()
    assert "handed over as a stream" in readme


@pytest.mark.parametrize(("way", "node"), [("path", "/dev/full"), ("stdin", "/dev/zero")])
def test_device_nodes_of_the_host_keep_their_mode_and_times(way, node, py, sh):
    """`chmod 600 /dev/null` by a root caller's command breaks every program of the host: the node inside is the host's own."""
    before = os.stat(node)
    try:
        if way == "path":
            result = sh(f"touch -d 2001-01-01 {node}; chmod 0640 {node}; chmod +t {node}; echo ran")
        else:
            with open(node, "r+b", buffering=0) as opened:
                result = py(METADATA, stdin=opened)
        after = os.stat(node)
    finally:
        if os.geteuid() == 0:
            os.chmod(node, 0o666)
            os.utime(node, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "ran" in result.stdout
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (before.st_mode, before.st_mtime_ns, before.st_uid)


@pytest.mark.parametrize("where", ["ws", "outside"])
def test_a_working_directory_that_was_deleted_leads_nowhere(where, ws, outside, policy, place):
    """The inherited working directory is a descriptor like any other: a nameless one must not lead ("..") around the masks."""
    (place / "hidden").mkdir()
    (place / "hidden" / "secret").write_text("hush")
    here = (ws if where == "ws" else outside) / "gone"
    here.mkdir()
    script = "cd .. 2>/dev/null; cat hidden/secret ../hidden/secret ../../hidden/secret; touch made; echo $?; /bin/echo ran"
    caller = f"""
import os
import sandboxed_subprocess as sp
os.chdir({str(here)!r})
os.rmdir({str(here)!r})
policy = sp.Policy.workspace_write({str(ws)!r}, deny_read=[{str(place / "hidden")!r}])
print(sp.run(["/bin/sh", "-c", {script!r}], policy=policy, capture_output=True, text=True).stdout)
"""
    result = subprocess.run([sys.executable, "-c", caller], capture_output=True, text=True, check=False, cwd="/")
    assert "ran" in result.stdout, result.stderr
    assert "hush" not in result.stdout
    assert list(outside.iterdir()) == []


def test_a_denied_working_directory_shows_nothing(ws, place, policy):
    """The process starts with the host's directory as its own, before the mask lies over it."""
    hidden = place / "hidden"
    hidden.mkdir()
    (hidden / "secret").write_text("hush")
    (hidden / "sub").mkdir()
    denied = policy.with_deny_read(hidden)
    for cwd in (hidden, hidden / "sub"):
        try:
            result = sp.run("cat secret ../secret; ls . ..; echo ran", shell=True, policy=denied, cwd=cwd, capture_output=True, text=True)
        except (OSError, sp.SandboxError):
            continue
        assert "hush" not in result.stdout + result.stderr
        assert "secret" not in result.stdout
    if os.geteuid() == 0 and shutil.which("cat"):
        assert (hidden / "secret").read_text() == "hush"
