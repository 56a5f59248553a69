"""The whole tree: it ends with the command, with the caller, with kill(), with a timeout. Nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import pytest
from conftest import processes_with, wait_until

import sandboxed_subprocess as sp

# A daemon: two forks, a session of its own, every descriptor closed. The token is in its command line.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(3, 256)
        time.sleep(600)
    os._exit(0)
os.wait()
print('up', flush=True)
"""


@pytest.fixture
def token():
    value = f"tree-{uuid.uuid4().hex}"
    yield value
    wait_until(lambda: not processes_with(value))


def daemon(token, then):
    return [sys.executable, "-c", DAEMON + then, token]


def test_a_daemon_ends_with_a_normal_exit(run, token):
    """setsid and a double fork leave the group and the chain of parents; a pid namespace they do not leave."""
    result = run(daemon(token, ""))
    assert result.stdout == "up\n"
    assert processes_with(token) == []
    assert len(result.sandbox.processes_ended) == 1


def test_a_daemon_ends_with_a_timeout(run, token):
    """Also: run() returns in time, although the daemon holds the pipe."""
    began = time.monotonic()
    with pytest.raises(sp.TimeoutExpired):
        run(daemon(token, "time.sleep(600)"), timeout=1)
    assert time.monotonic() - began < 30
    assert processes_with(token) == []


def test_when_wait_returns_after_kill_the_tree_is_dead(policy, ws, token):
    """SIGKILL to a wrapper alone leaves survivors for some milliseconds; looked at without any pause."""
    for _ in range(10):
        with sp.Popen(daemon(token, "time.sleep(600)"), policy=policy, cwd=ws, stdout=sp.PIPE) as p:
            assert p.stdout.readline() == b"up\n"
            p.kill()
            assert p.wait() == -9
            assert processes_with(token) == []
            assert p.sandbox.ended == "killed"


def test_a_daemon_ends_when_a_with_block_is_left_by_an_error(policy, ws, token):
    """The command itself goes on, as with the stdlib, until it is killed; then all of it does."""
    p = sp.Popen(daemon(token, "time.sleep(600)"), policy=policy, cwd=ws, stdout=sp.PIPE)
    assert p.stdout.readline() == b"up\n"
    p.kill()
    p.communicate()
    assert processes_with(token) == []


def test_killing_the_monitor_from_outside_ends_the_tree(policy, ws, token):
    """`kill -9 PID` is what people type; the pid that they see is the monitor's."""
    p = sp.Popen(daemon(token, "time.sleep(600)"), policy=policy, cwd=ws, stdout=sp.PIPE)
    assert p.stdout.readline() == b"up\n"
    os.kill(p.pid, signal.SIGKILL)
    assert p.wait() == -9
    p.stdout.close()
    wait_until(lambda: not processes_with(token))
    assert p.sandbox.ended == "unknown"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_the_caller_ends_the_tree(ws, tier, token, how):
    """An agent that is killed must not leave its servers behind, with the GPU, the port and the lock that they hold."""
    code = (
        "import sandboxed_subprocess as sp, sys\n"
        f"p = sp.Popen({daemon(token, 'time.sleep(600)')!r}, policy=sp.Policy.workspace_write({str(ws)!r}), cwd={str(ws)!r})\n"
        "print('spawned', flush=True); p.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as caller:
        assert {caller.stdout.readline(), caller.stdout.readline()} == {b"spawned\n", b"up\n"}
        assert len(processes_with(token)) >= 2
        caller.send_signal(how)
        caller.wait()
    wait_until(lambda: not processes_with(token))


def test_a_caller_killed_right_after_the_spawn_leaves_nothing(ws, tier, token):
    """The window between the fork and the watch on the caller is where orphans come from."""
    code = (
        "import sandboxed_subprocess as sp, os\n"
        f"sp.Popen(['sleep', '600', {token!r}], policy=sp.Policy.workspace_write({str(ws)!r}), cwd={str(ws)!r})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    code = code.replace("['sleep', '600', ", "['sh', '-c', 'sleep 600; true', ")
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    wait_until(lambda: not processes_with(token))


def test_the_end_of_the_spawning_thread_is_not_the_end_of_the_command(policy, ws):
    """The kernel's parent-death signal is tied to the thread that forked (man 2 prctl): a pool would kill its commands."""
    box = []
    thread = threading.Thread(target=lambda: box.append(sp.Popen(["cat"], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE)))
    thread.start()
    thread.join()
    with box[0] as p:
        assert p.communicate(b"still here", timeout=30)[0] == b"still here"
        assert p.returncode == 0


def test_output_on_its_way_arrives_and_a_background_holder_does_not_block(sh, token):
    """A pid namespace ends a job at once, and cuts what it was about to write; plain pipes wait for it for ever."""
    began = time.monotonic()
    result = sh(f"echo A; (sleep 600; : {token}) & echo B")
    assert result.stdout == "A\nB\n"
    assert time.monotonic() - began < 30
    for _ in range(20):
        assert sh("printf A; (printf B) & exit 0").stdout == "AB"
    assert sh("printf A; (sleep .1; printf B) & wait").stdout == "AB"
    assert len(sh("head -c 5000000 /dev/zero | tr '\\0' x").stdout) == 5_000_000


def test_no_zombie_is_left_to_a_caller_that_is_process_1_like(policy, ws):
    """A subreaper (or pid 1 of a container) inherits what a wrapper does not reap: one zombie for each kill."""
    code = (
        "import ctypes, os, sandboxed_subprocess as sp\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"  # PR_SET_CHILD_SUBREAPER
        f"P = sp.Policy.workspace_write({str(ws)!r})\n"
        "for how in ('exit', 'kill', 'term', 'pid'):\n"
        "    p = sp.Popen(['sh', '-c', 'sleep 0.05' if how == 'exit' else 'sleep 600'], policy=P)\n"
        "    if how == 'kill': p.kill()\n"
        "    if how == 'term': p.terminate()\n"
        "    if how == 'pid': os.kill(p.pid, 9)\n"
        "    p.wait()\n"
        "try: print('child', os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError: print('no children')\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout == "no children\n", out.stderr


def test_failed_launches_leave_no_zombie_to_a_caller_that_is_process_1_like(policy, ws):
    """The launcher was killed before it had reaped process 1 of the sandbox: one zombie for each FileNotFoundError."""
    with tempfile.TemporaryDirectory(dir="/tmp") as hidden:
        code = (
            "import ctypes, os, sandboxed_subprocess as sp\n"
            "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"  # PR_SET_CHILD_SUBREAPER
            f"P = sp.Policy.workspace_write({str(ws)!r})\n"
            f"for args, cwd in ((['no-such-program'], '/'), (['/etc/passwd'], '/'), (['true'], {hidden!r})):\n"
            "    for _ in range(3):\n"
            "        try: sp.run(args, cwd=cwd, policy=P)\n"
            "        except (OSError, sp.SandboxSetupError) as error: print(type(error).__name__)\n"
            "try: print('child', os.waitpid(-1, os.WNOHANG))\n"
            "except ChildProcessError: print('no children')\n"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    failures = ["FileNotFoundError"] * 3 + ["PermissionError"] * 3 + ["SandboxSetupError"] * 3
    assert out.stdout.split("\n") == [*failures, "no children", ""], out.stderr


def test_a_limit_of_wall_time_ends_the_tree_and_is_named(run, ws, token):
    """Not an exception like timeout=, but part of the policy: the report says which limit it was."""
    limited = sp.Policy.workspace_write(ws, wall_seconds=0.5)
    result = run(daemon(token, "time.sleep(600)"), policy=limited)
    assert (result.returncode, result.sandbox.ended, result.sandbox.limit) == (-9, "limit", "wall_seconds")
    assert processes_with(token) == []
    with pytest.raises(sp.LimitExceeded) as error:
        run(["sleep", "60"], policy=limited, check=True)
    assert error.value.limit == "wall_seconds"


def test_kill_without_a_sandbox_ends_the_tree_as_far_as_it_can_be_found(token):
    """danger_full_access has no pid 1; kill() still has to mean the tree."""
    with sp.Popen(["sh", "-c", f"sleep 600; : {token}; true"], policy="danger-full-access") as p:
        wait_until(lambda: processes_with(token))
        p.kill()
        assert p.wait() == -9
    wait_until(lambda: not processes_with(token))
