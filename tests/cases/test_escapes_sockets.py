"""Unix sockets of the host: whoever answers there (docker, systemd, an ssh agent) does what it is told, outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile

import pytest
from conftest import wait_until
from helpers.escapes_probe import PROBE, outcomes

import sandboxed_subprocess as sp
from sandboxed_subprocess.danger import UNRESTRICTED_NETWORK

KINDS = {"stream": socket.SOCK_STREAM, "dgram": socket.SOCK_DGRAM, "seqpacket": socket.SOCK_SEQPACKET}
CONNECT = PROBE + """
import socket
kinds = {"stream": 1, "dgram": 2, "seqpacket": 5}
for argument in sys.argv[1:]:
    kind, path = argument.split(":", 1)
    path = path.replace("@", chr(0), 1) if path.startswith("@") else path
    s = socket.socket(socket.AF_UNIX, kinds[kind])
    attempt(f"connect {argument}", s.connect, path)
    attempt(f"send {argument}", s.send, b"x")
    if kind == "dgram":
        attempt(f"sendto {argument}", s.sendto, b"x", path)
        attempt(f"sendmsg {argument}", s.sendmsg, [b"x"], [], 0, path)
print("ran OK")
"""


@contextlib.contextmanager
def listening(path, kind="stream"):
    with socket.socket(socket.AF_UNIX, KINDS[kind]) as server:
        server.bind(path if isinstance(path, str) else str(path))
        if kind != "dgram":
            server.listen()
        server.setblocking(False)
        yield server


def reached(server):
    try:
        server.recv(1) if server.type == socket.SOCK_DGRAM else server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def attack(run, *targets, **options):
    found = outcomes(run([sys.executable, "-c", CONNECT, *targets], **options))
    assert found.pop("ran") == "OK"
    assert found
    return found


@pytest.fixture(params=["workspace", "outside", "home", "/tmp", "/var/tmp", "/dev/shm", "/run"])
def directory(request, ws, outside):
    known = {"workspace": ws, "outside": outside, "home": os.path.expanduser("~")}
    parent = known.get(request.param, request.param)
    if request.param == "/run" and not os.access("/run", os.W_OK):
        parent = os.environ.get("XDG_RUNTIME_DIR", "")
        if not os.path.isdir(parent):
            pytest.skip("no directory of this user's below /run")
    path = tempfile.mkdtemp(prefix="ss-test-", dir=parent)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_of_the_host_cannot_be_connected_to(kind, directory, run):
    """connect() needs no write access to the mount and no network: neither a read-only bind nor a network namespace stops
    it (greywall#55: docker's socket under /run)."""
    with listening(f"{directory}/d.sock", kind) as server:
        found = attack(run, f"{kind}:{directory}/d.sock")
        assert not reached(server)
    assert "OK" not in found.values()


@pytest.mark.parametrize("network", ["none", UNRESTRICTED_NETWORK], ids=["none", "unrestricted"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_abstract_socket_is_out_of_reach_in_every_network_mode(kind, network, run, policy):
    """Abstract names live in the network namespace: with the host's network come X11, D-Bus and containerd's shims
    (bubblewrap#330)."""
    name = f"ss-escape-{os.getpid()}-{kind}"
    with listening("\0" + name, kind) as server:
        found = attack(run, f"{kind}:@{name}", policy=policy.replace(network=network))
        assert not reached(server)
    assert "OK" not in found.values()


def test_a_path_stays_shut_with_the_hosts_network(run, policy, outside):
    """Who opens the network does not open the docker socket with it."""
    with listening(outside / "d.sock") as server:
        found = attack(run, f"stream:{outside}/d.sock", policy=policy.replace(network=UNRESTRICTED_NETWORK))
        assert not reached(server)
    assert "OK" not in found.values()


@pytest.mark.parametrize("how", ["relative", "through-a-link", "renamed", "linked-into-the-workspace", "odd-name"])
def test_a_socket_whose_kernel_name_is_not_its_path_is_shut_as_well(how, run, ws, outside, monkeypatch):
    """/proc/net/unix shows the text that was given to bind(). A list of paths made from it misses the sockets of daemons
    that chdir() first, and those that were moved into place after the bind (systemd, postgres, containerd do)."""
    path = outside / "d.sock"
    bound = str(path)
    if how == "relative":
        monkeypatch.chdir(outside)
        bound = "d.sock"
    elif how == "through-a-link":
        (ws.parent / "link").symlink_to(outside)
        bound = str(ws.parent / "link" / "d.sock")
    elif how == "renamed":
        bound = str(outside / "new.sock")
    elif how == "odd-name":
        path = outside / "d \n\\x \xe4.sock"
        bound = str(path)
    with listening(bound) as server:
        if how == "renamed":
            os.rename(bound, path)
        elif how == "linked-into-the-workspace":
            os.link(bound, ws / "alias.sock")
            path = ws / "alias.sock"
        found = attack(run, f"stream:{path}")
        assert not reached(server)
    assert "OK" not in found.values()


@pytest.mark.parametrize("kind", ["stream", "seqpacket"])
def test_a_socket_that_appears_during_the_run_is_shut_as_well(kind, ws, outside, policy):
    """An agent runs for hours; the debug server that its user starts meanwhile is as dangerous as an older one."""
    code = "input(); import sys; sys.stdin = None\n" + CONNECT
    arguments = [sys.executable, "-c", code, f"{kind}:{outside}/late.sock"]
    with (
        sp.Popen(arguments, policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE, text=True) as process,
        listening(outside / "late.sock", kind) as server,
    ):
        output, _ = process.communicate("\n", timeout=30)
        assert "ran OK" in output
        assert not reached(server)


def test_a_socket_bound_in_another_network_namespace_is_shut_as_well(run, outside):
    """/proc/net/unix lists one network namespace only; the daemons of other containers on the host listen in theirs."""
    code = f"""
import socket
s = socket.socket(socket.AF_UNIX)
s.bind({str(outside / "d.sock")!r})
s.listen()
print("listening", flush=True)
s.settimeout(60)
try:
    s.accept()
    print("reached", flush=True)
except TimeoutError:
    pass
"""
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-U", "-r", "-n"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no network namespace to be had")
    with subprocess.Popen([*unshare, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout.readline() == "listening\n"
            found = attack(run, f"stream:{outside}/d.sock")
        finally:
            daemon.kill()
        assert daemon.stdout.read() == ""
    assert "OK" not in found.values()


def test_one_socket_can_be_opened_by_name_and_only_that_one(run, policy, outside):
    """The way out for those who need their database's socket, which must not open the others beside it."""
    with listening(outside / "a.sock") as a, listening(outside / "b.sock") as b:
        found = attack(
            run, f"stream:{outside}/a.sock", f"stream:{outside}/b.sock", policy=policy.replace(unix_sockets=[outside / "a.sock"])
        )
        assert (reached(a), reached(b)) == (True, False)
    assert found[f"connect stream:{outside}/a.sock"] == "OK"
    assert found[f"connect stream:{outside}/b.sock"] != "OK"


def test_sockets_made_inside_work(py, ws):
    """multiprocessing, node and gradle talk to their own children through unix sockets."""
    result = py(
        PROBE + """
import socket, tempfile
for place in ("own.sock", tempfile.mkdtemp() + "/s", "/dev/shm/s", chr(0) + "abstract"):
    for kind in (1, 2, 5):
        server, client = socket.socket(1, kind), socket.socket(1, kind)
        server.bind(place)
        if kind != 2:
            server.listen()
        attempt(f"{place[0] == chr(0)} {place[1:4]} {kind}", client.connect, place)
        server.close()
        if place[0] != chr(0):
            os.unlink(place)
a, b = socket.socketpair()
attempt("pair", a.send, b"x")
"""
    )
    found = outcomes(result)
    assert len(found) >= 9
    assert set(found.values()) == {"OK"}


def test_a_tmux_server_of_the_host_takes_no_orders(sh, outside, place):
    """The shortest way out of a sandbox: `tmux run-shell` makes the user's own terminal multiplexer run anything."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("no tmux")
    server = outside / "tmux.sock"
    command = [tmux, "-S", str(server), "-f", "/dev/null"]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    subprocess.run([*command, "new-session", "-d", "sleep 600"], check=True, env=environment, timeout=20)
    try:
        wait_until(server.exists)
        subprocess.run([*command, "run-shell", f"touch {place}/control"], check=True, env=environment, timeout=20)
        wait_until((place / "control").exists)
        touch = f"'touch {place}/escaped'"
        result = sh(f"tmux -S {server} run-shell {touch}; echo ran; tmux -S {server} new -d {touch}")
        assert result.stdout.startswith("ran")
        subprocess.run([*command, "run-shell", "true"], check=True, env=environment, timeout=20)
        assert not (place / "escaped").exists()
    finally:
        subprocess.run([*command, "kill-server"], check=False, env=environment, timeout=20)
