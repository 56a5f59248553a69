"""T-12, T-14, T-15: shared memory and semaphores, device nodes and /dev/stdout, wake-ups of event loops."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import socket
import sys
import uuid

import pytest
from conftest import REFUSED, TIER

import sandboxed_subprocess as sp
from sandboxed_subprocess import danger
from sandboxed_subprocess.testing import enforceable

# -- T-12 -----------------------------------------------------------------------------------------------------------

MULTIPROCESSING = """
import multiprocessing as m, os
if __name__ == "__main__":
    context = m.get_context({method!r})
    lock, event, queue = context.Lock(), context.Event(), context.Queue()
    with lock:
        pass
    with context.Pool(2) as pool:
        print(pool.map(abs, [-1, -2, 3]))
    process = context.Process(target=queue.put, args=("from a child",))
    process.start(); print(queue.get(timeout=30)); process.join()
    with context.Manager() as manager:
        manager.dict(a=1)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works(run, ws, method):
    """sem_open and AF_UNIX sockets: the first thing that a data program does."""
    (ws / "program.py").write_text(MULTIPROCESSING.format(method=method))
    result = run([sys.executable, "program.py"])
    assert (result.stdout, result.returncode) == ("[1, 2, 3]\nfrom a child\n", 0), result.stderr


def test_shared_memory_of_50_megabytes_works(py):
    """A 64 KiB tmpfs would give SIGBUS at the last byte."""
    code = """
from multiprocessing.shared_memory import SharedMemory
s = SharedMemory(create=True, size=50_000_000)
s.buf[0] = s.buf[-1] = 7
t = SharedMemory(name=s.name)
print(t.buf[0], t.buf[-1], len(t.buf) >= 50_000_000)
t.close(); s.close(); s.unlink()
"""
    result = py(code)
    assert (result.stdout, result.returncode) == ("7 7 True\n", 0), result.stderr


def test_shared_memory_is_private(py, sh):
    """Neither direction: what the host shares is not seen, and what the command shares does not stay."""
    name, other = (f"ss-test-{uuid.uuid4().hex[:12]}" for _ in range(2))
    shared = pathlib.Path("/dev/shm", name)
    shared.write_bytes(bytes(100))
    try:
        result = sh(f"ls -A /dev/shm; echo made > /dev/shm/{other}; cat /dev/shm/{other}; stat -c %a /dev/shm")
        assert result.stdout == "made\n1777\n"
        inside = py(f"from multiprocessing.shared_memory import SharedMemory\nSharedMemory(name={name!r})")
        assert "FileNotFoundError" in inside.stderr
        assert shared.read_bytes() == bytes(100) and not os.path.exists(f"/dev/shm/{other}")
    finally:
        shared.unlink()


# -- T-14 -----------------------------------------------------------------------------------------------------------

SHAPES = {
    "workspace-write": lambda ws: sp.Policy.workspace_write(ws),
    "no root": lambda ws: sp.Policy.workspace_write(),
    "write=/dev": lambda ws: sp.Policy.workspace_write(ws, "/dev"),
    "write=/dev only": lambda ws: sp.Policy.workspace_write("/dev"),
    "read-only": lambda ws: sp.Policy.read_only(),
    "read=minimal": lambda ws: sp.Policy.workspace_write(ws, read="minimal"),
    "read=paths": lambda ws: sp.Policy(read=[ws]),
    "tmp=none": lambda ws: sp.Policy.workspace_write(ws, tmp="none"),
    "tmp=shared": lambda ws: sp.Policy.workspace_write(ws, tmp="shared"),
    "tmp=directory": lambda ws: sp.Policy.workspace_write(ws, tmp=ws),
    "network": lambda ws: sp.Policy.workspace_write(ws, network=danger.UNRESTRICTED_NETWORK),
    "git=writable": lambda ws: sp.Policy.workspace_write(ws, git="writable"),
    "devices": lambda ws: sp.Policy.workspace_write(ws, devices=["/dev/null", "/dev/zero"]),
    "full access": lambda ws: sp.Policy.danger_full_access(),
}
DEVICES = """
echo x > /dev/null && echo x >> /dev/null && : < /dev/null && cat /dev/null &&
test "$(head -c 3 /dev/zero | od -An -tx1 | tr -d ' ')" = 000000 && echo x > /dev/zero &&
test "$(head -c 20 /dev/urandom | wc -c)" = 20 && test "$(head -c 20 /dev/random | wc -c)" = 20 &&
! (echo x > /dev/full) 2> /dev/null && test -c /dev/tty && test -c /dev/null && test -d /dev/pts &&
echo error > /dev/stderr && cat /dev/fd/0 < /dev/null && echo input | cat /dev/stdin && echo ok > /dev/stdout
"""


@pytest.fixture(params=SHAPES)
def shape(request, ws, tier):
    policy = SHAPES[request.param](ws)
    if not policy.unconfined:
        policy = policy.replace(backend=tier)
        if enforceable(policy):
            pytest.skip(f"this host or version cannot enforce the shape: {enforceable(policy)}")
    return policy


def test_device_nodes_work_under_every_policy(sh, shape, ws):
    """Bind mounts in a user namespace are nodev, and Landlock needs rules of its own for nodes."""
    result = sh(DEVICES, policy=shape)
    assert (result.stdout, result.stderr, result.returncode) == ("input\nok\n", "error\n", 0)
    assert os.path.exists("/dev/null") and os.stat("/dev/null").st_rdev == os.makedev(1, 3)


def test_device_nodes_work_where_the_streams_are_dev_null(sh, shape):
    """A descriptor of the host's /dev/null is opened anew through /dev/stdout; its mount is another one."""
    script = "{ echo a > /dev/stdout && cat /dev/stdin && echo x > /dev/null && cat < /dev/null && echo fine > /dev/stderr; }"
    result = sh(script, policy=shape, capture_output=False, stdin=sp.DEVNULL, stdout=sp.DEVNULL, stderr=sp.PIPE)
    assert (result.stderr, result.returncode) == ("fine\n", 0)
    assert sh("echo a > /dev/stdout", policy=shape, capture_output=False, stderr=sp.DEVNULL, stdout=sp.DEVNULL).returncode == 0


def read_to_hangup(master: int) -> bytes:
    """Everything that was written to a terminal whose other side is closed (a kernel thread brings it over, in pieces)."""
    parts = []
    while True:
        try:
            parts.append(os.read(master, 1000))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b"".join(parts)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("kind", ["pipe", "file", "append", "pty", "null", "socket"])
def test_standard_output_can_be_opened_by_its_name(sh, place, policy, kind, name):
    """`echo > /dev/stdout` is in countless scripts; the stream was opened outside, on a file that no rule covers."""
    script = f"echo one > {name} && echo two >> {name} && printf three | dd of={name} status=none"
    keywords = {"capture_output": False, "stderr": sp.PIPE, "text": False}
    if kind == "pipe":
        result = sh(script, stdout=sp.PIPE, **keywords)
        got = result.stdout
    elif kind in ("file", "append", "null"):
        with open("/dev/null" if kind == "null" else place / "log", "ab" if kind == "append" else "wb") as file:
            result = sh(script, stdout=file, **keywords)
        got = b"one\ntwo\nthree" if kind == "null" else (place / "log").read_bytes()
    elif kind == "socket":
        # A socket cannot be opened by any name, outside either (ENXIO); what matters is that writing to it works.
        ours, theirs = socket.socketpair()
        with ours, theirs:
            result = sh("printf 'one\ntwo\nthree'", stdout=theirs, **keywords)
            theirs.close()
            got = ours.recv(100)
    else:
        ours, theirs = os.openpty()
        try:
            result = sh(script, stdout=theirs, **keywords)
            os.close(theirs)
            theirs = -1
            got = read_to_hangup(ours).replace(b"\r\n", b"\n")
        finally:
            os.close(ours)
            if theirs >= 0:
                os.close(theirs)
    assert (result.returncode, result.stderr) == (0, b"")
    # `>` truncates a file that is opened again, outside as well.
    assert got in ((b"three",) if kind in ("file", "append") else (b"one\ntwo\nthree",))


def test_a_file_given_as_output_opens_no_other_file(sh, place, outside):
    """The rule for an inherited stream is for that file, not for its directory."""
    (outside / "other").write_text("other\n")
    with open(outside / "log", "w") as file:
        attack = f"echo evil > {outside}/other; echo evil > {outside}/new; rm {outside}/log"
        result = sh(f"echo x > /dev/stdout; {attack}", capture_output=False, stdout=file, stderr=sp.PIPE)
    assert REFUSED in result.stderr
    assert (outside / "log").read_text() == "x\n" and (outside / "other").read_text() == "other\n"
    assert sorted(os.listdir(outside)) == ["log", "other"]


def test_process_substitution_and_terminals_of_its_own(run):
    """/dev/fd for `<(...)`, and a private devpts: `script` and pexpect make terminals inside."""
    assert run(["bash", "-c", "cat <(echo a) <(echo b)"]).stdout == "a\nb\n"
    code = "a, b = os.openpty(); os.write(b, b'x'); print(os.read(a, 1), os.ttyname(b), sorted(os.listdir('/dev/pts')))"
    result = run([sys.executable, "-c", f"import os; {code}"])
    assert result.stdout == "b'x' /dev/pts/0 ['0', 'ptmx']\n", result.stderr


def test_devices_of_the_host_are_not_there(sh):
    """Disks, memory, consoles and the terminals of other people."""
    result = sh("ls /dev; for d in mem kmsg console vda sda loop0; do test -e /dev/$d && echo there; done; true")
    links = {"fd", "ptmx", "random", "stderr", "stdin", "stdout"}
    if TIER == "bubblewrap":
        # Two names of its own: a mask, and a link to /proc/kcore that leads nowhere a command could read.
        links |= {"console", "core", "there"}
    assert set(result.stdout.split()) - links == {"full", "null", "pts", "shm", "tty", "urandom", "zero"}


# -- T-15 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["none", "unrestricted"])
def test_event_loops_are_woken_by_other_threads(py, policy, network):
    """A filter on sendto also hits send() on a connected socketpair: then the loop never wakes, with no error at all."""
    code = """
import asyncio, socket, threading
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
print(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, result=42), loop).result(timeout=20))
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    a.send(b"x"); a.sendall(b"y"); a.sendmsg([b"z"])
    print(b.recv(1), b.recvfrom(1)[0], b.recvmsg(1)[0])

async def subprocesses():
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    print(await process.communicate())
    server = await asyncio.start_server(lambda r, w: (w.write(b"served"), w.close()), "localhost", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    print(await reader.read())
    writer.close()

asyncio.run(subprocesses())
"""
    if network == "unrestricted":
        policy = policy.replace(network=danger.UNRESTRICTED_NETWORK)
        if enforceable(policy):
            pytest.skip(f"unrestricted network cannot be enforced here: {enforceable(policy)}")
    result = py(code, policy=policy)
    expected = "42\n" + "b'x' b'y' b'z'\n" * 3 + "(b'child\\n', None)\nb'served'\n"
    assert (result.stdout, result.returncode) == (expected, 0), result.stderr


def test_an_event_loop_in_the_caller_is_not_disturbed(run):
    """Launches from a thread of an asyncio program, as every agent does it."""
    async def main():
        results = await asyncio.gather(*(asyncio.to_thread(run, ["echo", str(n)]) for n in range(4)))
        return [r.stdout for r in results]

    assert asyncio.run(main()) == ["0\n", "1\n", "2\n", "3\n"]
