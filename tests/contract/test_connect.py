"""connect() is made by another process; programs must not notice, and nothing may be reached or kept alive by it."""

from __future__ import annotations

import socket
import sys
import time

import pytest

import sandboxed_subprocess as sp


def test_ordinary_servers_and_clients_inside(py):
    """TCP, UDP and unix sockets by absolute, relative and /proc/self paths, blocking and not, from threads."""
    code = (
        "import socket, threading, os, asyncio, tempfile\n"
        "def serve(s):\n    c, _ = s.accept(); c.sendall(c.recv(9)); c.close()\n"
        "def check(family, bind, connect):\n"
        "    s = socket.socket(family); s.bind(bind); s.listen(); t = threading.Thread(target=serve, args=(s,)); t.start()\n"
        "    c = socket.socket(family); c.connect(connect(s)); c.sendall(b'echo'); assert c.recv(9) == b'echo'; t.join(); s.close()\n"
        "check(socket.AF_INET, ('127.0.0.1', 0), lambda s: s.getsockname())\n"
        "check(socket.AF_INET6, ('::1', 0), lambda s: s.getsockname())\n"
        "check(socket.AF_UNIX, '/tmp/a.sock', lambda s: '/tmp/a.sock')\n"
        "check(socket.AF_UNIX, 'rel.sock', lambda s: 'rel.sock')\n"
        "check(socket.AF_UNIX, 'cwd.sock', lambda s: '/proc/self/cwd/cwd.sock')\n"
        "check(socket.AF_UNIX, b'\\0abstract', lambda s: b'\\0abstract')\n"
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0))\n"
        "v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); v.connect(u.getsockname()); v.send(b'x'); assert u.recv(1) == b'x'\n"
        "async def main():\n"
        "    async def handle(r, w):\n        w.write(await r.read(4)); await w.drain(); w.close()\n"
        "    server = await asyncio.start_server(handle, '127.0.0.1', 0)\n"
        "    async def one():\n"
        "        r, w = await asyncio.open_connection(*server.sockets[0].getsockname()); w.write(b'ping'); out = await r.read(4); w.close(); return out\n"
        "    assert await asyncio.gather(*[one() for _ in range(50)]) == [b'ping'] * 50\n"
        "asyncio.run(main())\n"
        "print('all')\n"
    )
    result = py(code)
    assert result.stdout == "all\n", result.stderr


@pytest.mark.parametrize("where", ["/nothing/here", "plain"])
def test_errors_are_the_kernels_own(where, py, ws):
    """ENOENT, ECONNREFUSED, and for a bad descriptor EBADF or ENOTSOCK."""
    (ws / "plain").write_text("")
    code = (
        "import socket, ctypes, errno\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        f"try: s.connect({where!r})\nexcept OSError as e: print(errno.errorcode[e.errno])\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for fd in (99, 0): libc.connect(fd, b'\\1\\0x', 3); print(errno.errorcode[ctypes.get_errno()])\n"
        "t = socket.socket()\n"
        "try: t.connect(('127.0.0.1', 1))\nexcept OSError as e: print(errno.errorcode[e.errno])\n"
    )
    first = "ENOENT" if where.startswith("/") else "ECONNREFUSED"
    assert py(code, stdin=sp.DEVNULL).stdout.split() == [first, "EBADF", "ENOTSOCK", "ECONNREFUSED"]


def test_a_connect_that_blocks_does_not_outlive_the_wall_limit(ws, run):
    """A full backlog blocks the connecting process, which is not the one that watches: limits, the caller's death and
    the end of the command do not wait for it."""
    code = (
        "import socket, threading\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('/tmp/full'); s.listen(0)\n"
        "for _ in range(20): threading.Thread(target=lambda: socket.socket(socket.AF_UNIX).connect('/tmp/full')).start()\n"
    )
    began = time.monotonic()
    result = run([sys.executable, "-c", code], policy=sp.Policy.workspace_write(ws, wall_seconds=1))
    assert (result.returncode, result.sandbox.limit) == (-9, "wall_seconds")
    assert time.monotonic() - began < 30


def test_an_inherited_socket_does_not_lead_out(py):
    """It acts in the host's network namespace, whoever makes the call for it."""
    name = b"\0ss-test-inherited-" + str(time.monotonic_ns()).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        server.bind(name)
        server.setblocking(False)
        code = (
            "import socket\n"
            f"s = socket.socket(fileno={client.fileno()})\n"
            f"try: s.connect({name!r}); s.send(b'out'); print('reached')\nexcept OSError as e: print('refused', e.errno)\n"
        )
        assert py(code, pass_fds=[client.fileno()]).stdout.startswith("refused")
        with pytest.raises(BlockingIOError):
            server.recv(10)


def test_what_the_connector_leaves_is_not_reported_as_the_commands(py):
    """It is ours, and ends with the command."""
    result = py("import socket\ntry: socket.socket().connect(('127.0.0.1', 1))\nexcept OSError: print('tried')")
    assert result.stdout == "tried\n" and result.sandbox.processes_ended == ()
