"""Signals, sessions and streams: what a command notices of the processes around it is nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import wait_until

import sandboxed_subprocess as sp

TRAP = "trap 'echo got $0; exit 5' {signal}; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_a_signal_reaches_the_command_and_its_handler_runs(policy, ws, name):
    """terminate() is a request: the command cleans up and exits with a status of its own."""
    with sp.Popen(["sh", "-c", TRAP.format(signal=name), "it"], policy=policy, cwd=ws, stdout=sp.PIPE, text=True) as p:
        assert p.stdout.readline() == "ready\n"
        p.send_signal(getattr(signal, f"SIG{name}"))
        assert p.stdout.read() == "got it\n"
        assert p.wait() == 5


def test_a_signal_to_the_pid_that_the_caller_sees_is_passed_on_once(policy, ws):
    """`kill PID` reaches the monitor, and the command gets it: once, not twice."""
    code = (
        "import os, signal, time\n"
        "n = 0\n"
        "def handler(*_):\n    global n; n += 1; os.write(1, b'signal %d\\n' % n)\n"
        "signal.signal(signal.SIGUSR1, handler); os.write(1, b'ready\\n')\n"
        "while True: time.sleep(1)\n"
    )
    with sp.Popen([sys.executable, "-c", code], policy=policy, cwd=ws, stdout=sp.PIPE, text=True, start_new_session=True) as p:
        assert p.stdout.readline() == "ready\n"
        for number in range(1, 4):
            os.killpg(p.pid, signal.SIGUSR1) if number % 2 else os.kill(p.pid, signal.SIGUSR1)
            assert p.stdout.readline() == f"signal {number}\n"
        p.kill()


def test_terminate_without_a_handler_is_minus_15(policy, ws):
    """Process 1 of a namespace ignores signals without a handler; the command is not process 1."""
    with sp.Popen(["sleep", "60"], policy=policy, cwd=ws) as p:
        p.terminate()
        assert p.wait() == -15


def test_signals_after_the_end_are_harmless(policy, ws):
    """The pid may belong to somebody else by now."""
    p = sp.Popen(["true"], policy=policy, cwd=ws)
    p.wait()
    p.send_signal(signal.SIGTERM)
    p.terminate()
    p.kill()
    assert p.returncode == 0


def test_stop_and_continue(policy, ws):
    """SIGSTOP stops the command, not a wrapper, and SIGCONT lets it go on."""
    with sp.Popen(["cat"], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE) as p:

        def state():
            with open(f"/proc/{p.sandbox.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0]

        p.send_signal(signal.SIGSTOP)
        wait_until(lambda: state() == "T")
        p.send_signal(signal.SIGCONT)
        wait_until(lambda: state() != "T")
        assert p.communicate(b"on", timeout=30)[0] == b"on"


def test_the_commands_own_pid_is_in_the_report(policy, ws):
    """Popen.pid is the monitor's; tools that look at memory or threads need the other one."""
    with sp.Popen(["sleep", "60"], policy=policy, cwd=ws) as p:

        def command_line():
            with open(f"/proc/{p.sandbox.pid}/cmdline", "rb") as file:
                return file.read()

        # The kernel lets the parent of a vfork go on a moment before the arguments are in their place.
        assert wait_until(command_line) == b"sleep\x0060\x00"
        assert p.sandbox.pid != p.pid
        p.kill()


def test_a_caller_that_ignores_sigchld(ws, tier):
    """Children then vanish unreaped, and a launcher that inherits this waits for ever."""
    code = (
        "import signal, sandboxed_subprocess as sp\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"r = sp.run(['grep', 'SigIgn', '/proc/self/status'], policy=sp.Policy.workspace_write({str(ws)!r}), capture_output=True, text=True)\n"
        "print(r.stdout)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    mask = int(out.stdout.split(":")[1], 16)
    assert mask & 1 << signal.SIGCHLD - 1, "the command has lost the caller's disposition"


@pytest.mark.parametrize("world", ["sync", "asyncio"], indirect=True)  # trio spawns from a thread, which has a mask of its own
def test_the_callers_signal_mask_and_dispositions_reach_the_command(py):
    """The launcher blocks everything for itself; the command must not notice."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        out = py("import signal; print(sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])))").stdout
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    assert out == f"[{int(signal.SIGUSR2)}]\n"
    assert (
        py("import signal; print(signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN)", restore_signals=False).stdout == "True\n"
    )


def test_the_command_is_no_session_leader_unless_asked(run, py):
    """As a leader, `setsid CMD` forks and returns at once, and os.setsid() fails; so it is a member, as in the stdlib."""
    assert run(["setsid", "sh", "-c", "sleep .2; exit 3"]).returncode == 3
    assert py("import os; os.setpgid(0, 0); os.setsid(); print('both')").returncode == 1  # a group leader cannot
    assert py("import os; os.setsid(); print('ok')").stdout == "ok\n"
    assert py("import os; print(os.getsid(0) == os.getpid())", start_new_session=True).stdout == "True\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="process_group= came with Python 3.11")
def test_process_group(policy, ws):
    """killpg(p.pid) has to reach the command, and getpgid(p.pid) to be p.pid."""
    with sp.Popen(["sleep", "60"], policy=policy, cwd=ws, process_group=0) as p:
        assert os.getpgid(p.pid) == p.pid
        os.killpg(p.pid, signal.SIGTERM)
        assert p.wait() == -15


def test_kill_0_inside_does_not_reach_the_callers_group(sh):
    """In the caller's process group, `kill 0` from a script would end the agent itself."""
    assert sh("trap '' TERM; kill -TERM 0; echo alive").stdout == "alive\n"


def test_streams_close_when_the_command_closes_them(policy, ws):
    """A monitor that holds the pipes too makes end-of-file come at exit, a long time later."""
    code = "import os, sys; os.close(1); sys.stdin.read()"
    with sp.Popen([sys.executable, "-c", code], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE) as p:
        assert p.stdout.read() == b""
        assert p.poll() is None
        p.stdin.close()
        assert p.wait() == 0


def test_a_closed_stdin_is_a_broken_pipe_at_once(policy, ws):
    """The same in the other direction."""
    code = "import os; os.close(0); print('closed', flush=True); os.read(3, 1)"
    r, w = os.pipe()
    r3 = os.dup2(r, 30)
    with sp.Popen(
        [sys.executable, "-c", code.replace("3,", "30,")], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE, pass_fds=[30]
    ) as p:
        assert p.stdout.readline() == b"closed\n"
        with pytest.raises(BrokenPipeError):
            os.write(p.stdin.fileno(), b"x")
        assert p.poll() is None
        os.write(w, b"x")
        assert p.wait() == 0
        p.stdin.close()
    for fd in (r, w, r3):
        os.close(fd)


def test_pass_fds_keep_their_numbers_and_nothing_else_comes_along(py):
    """Also numbers that the library would have used itself."""
    r, w = os.pipe()
    try:
        for number in (3, 4, 5, 6, 7, 8, 9, 50):
            if number in (r, w):
                continue
            taken = os.dup2(w, number) if not os.path.exists(f"/proc/self/fd/{number}") else None
            fd = taken or w
            result = py(
                f"import os; os.write({fd}, b'via'); print(sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + n)))",
                pass_fds=[fd],
            )
            assert result.returncode == 0, result.stderr
            assert os.read(r, 3) == b"via"
            assert result.stdout == f"[0, 1, 2, {fd}]\n"
            if taken:
                os.close(taken)
    finally:
        os.close(r)
        os.close(w)


def test_only_pass_fds_are_inherited_whatever_close_fds_says(py):
    """An inheritable descriptor of the caller, a database connection perhaps, is no business of a sandboxed command."""
    r, w = os.pipe()
    os.set_inheritable(w, True)
    try:
        assert f"[0, 1, 2, {w}]" not in py("import os; print(os.listdir('/proc/self/fd'))", close_fds=False).stdout
        assert (
            py(f"import os\ntry: os.fstat({w}); print('there')\nexcept OSError: print('not there')", close_fds=False).stdout
            == "not there\n"
        )
    finally:
        os.close(r)
        os.close(w)


def test_a_closed_number_in_pass_fds_is_an_error_not_one_of_ours(run):
    """Opened afterwards, the library's own socket would have had that number, and reached the command."""
    with pytest.raises(OSError):
        run(["true"], pass_fds=[777])


def test_spawning_from_many_threads(policy, ws):
    """32 threads at once: no deadlock, no mixed-up descriptors, every result its own."""
    found = {}

    def work(number):
        found[number] = sp.run(
            ["sh", "-c", f"echo {number}; exit {number % 7}"], policy=policy, cwd=ws, capture_output=True, text=True
        )

    threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {n: (r.stdout, r.returncode) for n, r in found.items()} == {n: (f"{n}\n", n % 7) for n in range(32)}


def test_a_forked_child_does_not_finish_the_parents_command(policy, ws):
    """After os.fork() the child polls a process that is not its own; it must not close or clean up anything."""
    with sp.Popen(["cat"], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE) as p:
        pid = os.fork()
        if pid == 0:
            p.poll()
            p.kill()
            os._exit(0)
        os.waitpid(pid, 0)
        assert p.poll() is None
        assert p.communicate(b"mine", timeout=30)[0] == b"mine"
        assert p.sandbox.ended == "exit"


def test_a_signal_in_the_last_moment_does_not_change_the_status(ws, policy):
    """Process 1 may end with a forwarded signal unread; the launcher then took the error on its socket for the lack of a
    status, and a failed command came back with 0."""
    for _ in range(40):
        process = sp.Popen(["sh", "-c", "exit 7"], policy=policy, cwd=ws)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(process.pid, signal.SIGCONT)
        assert process.wait() == 7
