"""A network namespace that a run left as it was made serves the next one; nothing of one run may reach another by it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, only_namespaces, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess.testing import needs

WHERE = ["readlink", "/proc/self/ns/net", "/proc/self/ns/user"]

pytestmark = only_namespaces


@pytest.fixture(autouse=True)
def namespaces():
    needs("namespaces")


@pytest.fixture
def where(run):
    return lambda **kwargs: run(WHERE, **kwargs).stdout


def test_a_quiet_run_leaves_its_namespace_to_the_next(where):
    """Making one is half the price of a sandbox, and each is taken apart by a single kernel thread."""
    assert where() == where() != ""


def test_the_next_run_sees_a_namespace_that_was_never_used(where, py):
    """Loopback is up with both addresses, and every counter is zero."""
    where()
    script = (
        "import socket\n"
        "assert not set(open('/proc/self/net/dev').read().split('lo:')[1]) - set(' 0\\n')\n"
        "s = socket.create_server(('198.18.0.1', 8080))\n"
        "print(open('/proc/self/net/sockstat').readline().strip())"
    )
    assert py(script).stdout == "sockets: used 1\n"


TALK = """
import socket
server = socket.create_server(("127.0.0.1", 7777))
client = socket.create_connection(("127.0.0.1", 7777))
other, _ = server.accept()
other.close()      # this end goes to TIME_WAIT
client.close()
"""


def test_a_run_that_sent_a_packet_takes_its_namespace_with_it(where, py):
    """A connection in TIME_WAIT holds its port for a minute: the next server on it, without SO_REUSEADDR, would fail."""
    before = where()
    assert py(TALK).returncode == 0
    assert where() != before
    bind = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 7777)); s.listen(); print('bound')"
    assert py(TALK).returncode == 0
    assert py(bind).stdout == "bound\n"


def test_a_socket_in_flight_takes_its_namespace_with_it(where, py):
    """A listening socket in a message that nobody can receive any more outlives every process, until the kernel's collector
    comes by; the next run must not find its port taken, nor its abstract name."""
    before = where()
    hide = (
        "import socket, array\n"
        "a, b = socket.socketpair()\n"
        "server = socket.create_server(('127.0.0.1', 7778))\n"
        "fds = array.array('i', [server.fileno(), a.fileno(), b.fileno()])\n"
        "for end in (a, b): end.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])\n"
    )
    assert py(hide).returncode == 0
    again = where()
    bind = "import socket; s = socket.create_server(('127.0.0.1', 7778)); print('bound')"
    assert again != before or py(bind).stdout == "bound\n"
    assert py(hide).returncode == 0
    assert py(bind).stdout == "bound\n"


def test_two_runs_at_a_time_are_never_in_one(where, ws, policy):
    """What is lent is not there for anyone else."""
    where()
    waiting = sp.Popen(["sh", "-c", f"{' '.join(WHERE)}; read line"], stdin=sp.PIPE, stdout=sp.PIPE, text=True,
                       policy=policy, cwd=ws)  # fmt: skip
    with waiting:
        first = waiting.stdout.readline() + waiting.stdout.readline()
        second = where()
        third = where()
        waiting.stdin.close()
    assert first not in (second, third) and second != first


def test_a_run_whose_process_1_was_killed_takes_its_namespace_with_it(where, ws, policy):
    """Nobody has looked how it was left."""
    before = where()
    with sp.Popen(["sleep", "60"], policy=policy, cwd=ws) as process:
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert where() != before


def test_a_policy_with_an_exception_shares_nothing(where, policy):
    """With the keyring calls open, a key in the user namespace's keyring would be there for the next run."""
    before = where()
    open_policy = policy.replace(syscall_exceptions=["keyring"])
    first, second = where(policy=open_policy), where(policy=open_policy)
    assert len({before, first, second}) == 3
    assert where() == before


def script(ws, code, **kwargs):
    head = f"import os, sys, sandboxed_subprocess as sp\npolicy = sp.Policy.workspace_write({str(ws)!r})\n"
    head += f"def where(): return sp.run({WHERE}, capture_output=True, text=True, policy=policy, cwd='/').stdout\n"
    result = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60, cwd=ws, **kwargs)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_first_run_opens_nothing_that_stays(ws):
    """A program that counts its descriptors before and after must not find one more, whatever it ran first."""
    code = (
        "fds = lambda: sorted(os.listdir('/proc/self/fd'))\n"
        "before = fds()\n"
        "where(); assert fds() == before, (before, fds())\n"
        "where(); sp.run(['sh', '-c', 'kill -9 $$'], policy=policy); assert fds() == before\n"
    )
    script(ws, code)


def test_a_forked_child_does_not_use_the_namespace_of_its_parent(ws):
    """The child has a copy of the descriptor; both in it at a time would be two runs in one."""
    code = (
        "where()\n"
        "before = where()\n"
        "if os.fork() == 0:\n"
        "    first = where(); assert first != before; assert where() == first\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "assert where() == before\n"
    )
    script(ws, code)


@pytest.mark.parametrize("taken", [False, True])
def test_a_program_that_closes_all_descriptors_loses_nothing(ws, taken):
    """Daemons do. The number may then belong to a file of the program, which must be neither replaced nor closed."""
    code = (
        "before = where()\n"
        "os.closerange(3, 4096)\n"
        "mine = []\n"
        f"while {taken} and len(mine) < 60: mine.append(os.open('/dev/zero', os.O_RDONLY))\n"
        "for _ in range(3): assert where() not in (before, '')\n"
        "sp.run(['sleep', '0'], policy=policy)\n"
        "assert all(os.read(fd, 1) == b'\\0' for fd in mine)\n"
    )
    script(ws, code)


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_another_user_gets_a_namespace_of_its_own(ws):
    """The maps of a user namespace are made for one user; in another's, the command would be nobody."""
    code = (
        "where()\n"
        "before = where()\n"
        "os.setegid(65534); os.seteuid(65534)\n"
        "first = where(); assert first not in (before, '')\n"
        "assert sp.run(['id', '-u'], capture_output=True, text=True, policy=policy, cwd='/').stdout == '65534\\n'\n"
        "assert where() == first\n"
        "os.seteuid(0); os.setegid(0)\n"
        "assert where() not in ('', first)\n"
    )
    os.chmod(ws, 0o777)
    script(ws, code)


@pytest.mark.skipif(not ROOT, reason="needs to change namespaces without a user namespace")
def test_a_namespace_that_cannot_be_entered_is_made_anew(ws):
    """A caller that has moved to a user namespace of its own has no rights in the old one: new ones, not an error."""
    code = (
        "import ctypes\n"
        "before = where()\n"
        "pid = os.fork()\n"  # maps are written from outside
        "r, w = os.pipe(); r2, w2 = os.pipe()\n"
        "if pid == 0: pass\n"
        "else:\n"
        "    _, status = os.waitpid(pid, 0); sys.exit(status != 0)\n"
        "first = where()\n"  # in the slot of this process
        "helper = os.fork()\n"
        "if helper == 0:\n"
        "    os.read(r, 1)\n"
        "    open(f'/proc/{os.getppid()}/uid_map', 'w').write('0 0 4294967295')\n"
        "    open(f'/proc/{os.getppid()}/gid_map', 'w').write('0 0 4294967295')\n"
        "    os.write(w2, b'x'); os._exit(0)\n"
        "assert ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == 0\n"
        "os.write(w, b'x'); os.read(r2, 1)\n"
        "assert where() not in (first, '')\n"
        "assert where() not in (first, '')\n"
        "os._exit(0)\n"
    )
    script(ws, code)


def test_the_launcher_is_no_more_than_an_ordinary_process_of_the_caller(ws, policy, where):
    """By entering the user namespace it has got every capability there, and a /proc entry of root's; it gives both back."""
    where()
    with sp.Popen(["sleep", "60"], policy=policy, cwd=ws) as process:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status")
            wait_until(lambda: "CapEff:\t0000000000000000" in status.read_text())
            assert status.stat().st_uid == os.geteuid()
        finally:
            process.kill()
