"""What the system call filter has to keep shut beside privileges: rings, socket families, keys, shared memory."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import sys

import pytest
from helpers.escapes_probe import PROBE, outcomes

import sandboxed_subprocess as sp
from sandboxed_subprocess.danger import UNRESTRICTED_NETWORK

RINGS = PROBE + """
parameters = ctypes.create_string_buffer(256)
print("setup", call(425, 8, parameters))
print("setup+high", call(425, 8 | 1 << 32, parameters))
print("enter", call(426, 0, 0, 0, 0, 0, 0))
print("register", call(427, 0, 0, 0, 0))
"""


@pytest.mark.parametrize("network", ["none", UNRESTRICTED_NETWORK], ids=["none", "unrestricted"])
def test_no_ring_can_be_made(network, py, policy):
    """What is submitted through an io_uring never meets the filter: IORING_OP_SOCKET opens a socket although socket() is
    refused (openai/codex#10814)."""
    found = outcomes(py(RINGS, policy=policy.replace(network=network)))
    assert set(found) == {"setup", "setup+high", "enter", "register"}
    assert set(found.values()) <= {"ENOSYS", "EPERM"}


def test_programs_that_like_rings_fall_back(run):
    """libuv tries io_uring first; a wrong errno there would break every node program."""
    if shutil.which("node") is None:
        pytest.skip("no node")
    code = "require('fs').promises.writeFile('made', 'x').then(() => console.log('written'))"
    result = run(["node", "-e", code], env={**os.environ, "UV_USE_IO_URING": "1"})
    assert (result.returncode, result.stdout) == (0, "written\n"), result.stderr


FAMILIES = PROBE + """
kinds = {"stream": 1, "dgram": 2, "raw": 3, "rdm": 4, "seqpacket": 5, "packet": 10}
for family in range(48):
    for kind, number in kinds.items():
        for form, high in (("", 0), ("+high", 1 << 32)):
            print(f"{family} {kind}{form}", call(41 if X86 else 198, family | high, number, 0))
print("mptcp", call(41 if X86 else 198, 2, 1, 262))
print("mptcp6", call(41 if X86 else 198, 10, 1, 262))
print("mptcp+high", call(41 if X86 else 198, 2, 1, 262 | 1 << 32))
for protocol in range(1, 24):
    print("netlink", protocol, call(41 if X86 else 198, 16, 3, protocol))
    print("netlink+high", protocol, call(41 if X86 else 198, 16, 3, protocol | 1 << 32))
print("pair", call(53 if X86 else 199, 30, 1, 0, ctypes.create_string_buffer(8)))
"""


@pytest.mark.parametrize("network", ["none", UNRESTRICTED_NETWORK], ids=["none", "unrestricted"])
def test_only_the_common_socket_families_exist(network, py, policy):
    """AF_VSOCK talks to the hypervisor past every network namespace, AF_ALG and AF_PACKET had a hole each year, netlink
    families such as nftables are where CVE-2022-1015 and CVE-2024-1086 began, MPTCP passes rules made for TCP."""
    found = outcomes(py(FAMILIES, policy=policy.replace(network=network)))
    usable = {name.split()[0] for name, answer in found.items() if answer == "OK"}
    assert usable <= {"1", "2", "10", "16"}
    assert {"1", "2"} <= usable
    for name, answer in found.items():
        first = name.split()[0]
        if first.isdigit() and int(first) not in (1, 2, 10, 16):
            assert answer == "EAFNOSUPPORT", name
        if "raw" in name and first in ("2", "10"):
            assert answer in ("EPERM", "EPROTONOSUPPORT", "EAFNOSUPPORT"), name
        if not first.isdigit():
            assert answer != "OK", name
    assert len(found) > 600


KEYS = PROBE + """
serial = int(sys.argv[1])
text = ctypes.create_string_buffer(64)
keyctl, add = (250, 248) if X86 else (219, 217)
print("read", call(keyctl, 11, serial, text, 64))
print("search", call(keyctl, 10, -5 & 0xFFFFFFFF, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"ss-escape"), 0))
print("join", call(keyctl, 1, 0))
print("add", call(add, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"x"), ctypes.c_char_p(b"y"), 1, -5 & 0xFFFFFFFF))
sys.stdout.write("" if b"hush" not in text.raw else "LEAKED OK\\n")
"""


def test_keys_of_the_kernel_are_out_of_reach(run):
    """Kerberos tickets, disk keys and cloud tokens lie in kernel keyrings, which no mount and no namespace covers."""
    libc = ctypes.CDLL(None, use_errno=True)
    x86 = os.uname().machine == "x86_64"
    user_keyring = ctypes.c_long(-4)
    serial = libc.syscall(248 if x86 else 217, b"user", b"ss-escape-%d" % os.getpid(), b"hush", 4, user_keyring)
    try:
        found = outcomes(run([sys.executable, "-c", KEYS, str(serial)]))
    finally:
        if serial > 0:
            libc.syscall(250 if x86 else 219, 9, serial, user_keyring)      # KEYCTL_UNLINK
    assert found == {"read": "EPERM", "search": "EPERM", "join": "EPERM", "add": "EPERM"}


SHARED = PROBE + """
key, name = int(sys.argv[1]), sys.argv[2].encode()
libc.shmat.restype = ctypes.c_long
ctypes.set_errno(0)
print("shmget", done(libc.shmget(key, 4096, 0o600)))
ctypes.set_errno(0)
print("shmat", done(libc.shmat(int(sys.argv[3]), 0, 0)))
ctypes.set_errno(0)
print("shmctl", done(libc.shmctl(int(sys.argv[3]), 0, 0)))
print("mq_open", call(240 if X86 else 180, ctypes.c_char_p(name), os.O_RDWR, 0o600, 0))
print("shm file", "OK" if os.path.exists("/dev/shm/" + name.decode()) else "ENOENT")
import multiprocessing.shared_memory
own = multiprocessing.shared_memory.SharedMemory(create=True, size=64)
own.close(); own.unlink()
print("own", "OK")
"""


def test_shared_memory_and_message_queues_of_the_host_are_not_there(run):
    """System V segments and POSIX queues have no path that a mount could hide; databases and X servers keep data in them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    key = 0x55000000 | os.getpid() & 0xFFFFFF
    name = f"ss-escape-{os.getpid()}"
    segment = libc.shmget(key, 4096, 0o1600)
    assert segment >= 0
    shm = f"/dev/shm/{name}"
    with open(shm, "w") as file:
        file.write("host")
    try:
        found = outcomes(run([sys.executable, "-c", SHARED, str(key), name, str(segment)]))
        alive = libc.shmget(key, 4096, 0o600)
    finally:
        libc.shmctl(segment, 0, None)
        os.unlink(shm)
    assert alive == segment
    assert found.pop("own") == "OK"
    assert "OK" not in found.values(), found


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_of_the_host_is_out_of_reach(kind, address, py):
    """Databases, debuggers and cloud metadata proxies listen on the loopback address and trust whoever comes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.socket(family, kind)
        server.bind((address, 0))
    except OSError as error:
        pytest.skip(str(error))
    with server:
        if kind == socket.SOCK_STREAM:
            server.listen()
        server.setblocking(False)
        port = server.getsockname()[1]
        result = py(
            PROBE + f"""
import socket
s = socket.socket({int(family)}, {int(kind)})
s.settimeout(2)
attempt("connect", s.connect, ({address!r}, {port}))
attempt("send", s.send, b"x")
s = socket.socket({int(family)}, {int(kind)})
attempt("fastopen", s.sendto, b"x", 0x20000000 if {kind == socket.SOCK_STREAM} else 0, ({address!r}, {port}))
print("ran OK")
"""
        )
        assert outcomes(result)["ran"] == "OK"
        with pytest.raises(BlockingIOError):
            server.accept() if kind == socket.SOCK_STREAM else server.recv(1)


def test_host_rules_are_refused_as_long_as_they_cannot_be_kept(ws, outside):
    """A filter that fails to come up must not leave the network open, nor run the command without it
    (anthropics/claude-code#81572): nothing starts."""
    for network in (["a.test:80"], [sp.network_rule("a.test", 443)]):
        with pytest.raises(sp.SandboxUnavailable):
            sp.run(["touch", ws / "ran"], policy=sp.Policy.workspace_write(ws, network=network))
        with pytest.raises(sp.SandboxUnavailable):
            sp.Popen(["touch", ws / "ran"], policy=sp.Policy.workspace_write(ws, network=network))
    assert not (ws / "ran").exists()
