"""Field cases of ending: signals, terminals, background jobs, late output, and who must not be hit."""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from unittest import mock

import pytest
from conftest import ROOT, processes_with, wait_until

import sandboxed_subprocess as sp

PY = sys.executable


@pytest.fixture
def token():
    """A number of seconds that no other sleep has."""
    value = f"600.{uuid.uuid4().int % 10**12}"
    yield value
    wait_until(lambda: not processes_with(value))


@pytest.mark.parametrize("how", ["kill the launcher", "terminate the launcher", "kill", "terminate"])
def test_no_way_of_ending_the_launcher_leaves_the_command(ws, policy, token, how):
    """Elsewhere it depends on two options of the launcher whether the tree goes with it (containers/bubblewrap#529)."""
    process = sp.Popen(f"sleep {token} & echo up; sleep {token}", shell=True, stdout=sp.PIPE, policy=policy, cwd=ws)
    with process:
        assert process.stdout.readline() == b"up\n"
        wait_until(lambda: len(processes_with(token)) >= 3)
        actions = {
            "kill the launcher": lambda: os.kill(process.pid, signal.SIGKILL),
            "terminate the launcher": lambda: os.kill(process.pid, signal.SIGTERM),
            "kill": process.kill,
            "terminate": process.terminate,
        }
        actions[how]()
        assert process.wait(timeout=10) == (-15 if "terminate" in how else -9)
    if how != "kill the launcher":
        assert processes_with(token) == []
    wait_until(lambda: not processes_with(token))


def test_a_handler_of_sigterm_has_its_say(ws, policy):
    """terminate() goes to the command, which may clean up and choose its own status."""
    process = sp.Popen(["sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done"],
                       stdout=sp.PIPE, policy=policy, cwd=ws)  # fmt: skip
    with process:
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.communicate(timeout=10) == (b"bye\n", None) and process.returncode == 7


def test_a_timeout_lets_a_command_clean_up_for_a_bounded_time(run, policy, ws):
    """SIGTERM, the policy's grace, and then the whole tree; a command that does not listen costs that much and no more."""
    with pytest.raises(sp.TimeoutExpired):
        run(["sh", "-c", "trap 'echo bye > said; exit 7' TERM; while :; do sleep 0.01; done"], timeout=1)
    assert (ws / "said").read_text() == "bye\n"
    begin = time.monotonic()
    with pytest.raises(sp.TimeoutExpired):
        run(["sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"], timeout=0.2, policy=policy.replace(terminate_grace=0.5))
    assert 0.6 < time.monotonic() - begin < 30
    begin = time.monotonic()
    with pytest.raises(sp.TimeoutExpired):
        run(["sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"], timeout=0.2, policy=policy.replace(terminate_grace=0))
    assert time.monotonic() - begin < 30


def test_nothing_is_signalled_after_the_end(ws, policy):
    """The number may belong to somebody else by then."""
    with sp.Popen(["true"], policy=policy, cwd=ws) as process:
        process.wait()
        with mock.patch("os.kill") as kill, mock.patch("os.killpg") as killpg, mock.patch("signal.pidfd_send_signal") as send:
            process.kill()
            process.terminate()
            process.send_signal(signal.SIGUSR1)
        assert not (kill.called or killpg.called or send.called)
    with sp.Popen(["true"], policy=policy, cwd=ws) as process:
        os.waitpid(process.pid, 0)  # by other code
        process.kill()
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize("error", [ProcessLookupError(errno.ESRCH, "gone"), PermissionError(errno.EPERM, "not yours")])
def test_a_kill_that_the_kernel_refuses_still_ends_the_tree_and_hides_no_timeout(run, token, error):
    """A process that has dropped its privileges may not signal what it started before. Process 1 takes the order over the
    launch socket, and TimeoutExpired is what the caller sees."""
    send, kill = mock.patch("signal.pidfd_send_signal", side_effect=error), mock.patch("os.kill", side_effect=error)
    with send, kill, pytest.raises(sp.TimeoutExpired):
        run(["sleep", token], timeout=0.3)
    assert processes_with(token) == []


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_that_has_just_ended_keeps_its_status_when_it_is_killed(ws, policy, status):
    """Read to the end, kill, wait: what pexpect and its like do. Without a sandbox the kill comes too late to change it."""
    for _ in range(30):
        with sp.Popen(["sh", "-c", f"exit {status}"], stdout=sp.PIPE, policy=policy, cwd=ws) as process:
            process.stdout.read()
            process.kill()
            assert process.wait(timeout=10) == status
            assert process.sandbox.ended == "exit"


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_a_caller_that_dropped_its_privileges_can_still_end_what_it_started(ws, token):
    """Daemons start their helpers first."""
    code = (
        "import os, sys, sandboxed_subprocess as sp\n"
        f"p = sp.Popen(['sleep', {token!r}], policy=sp.Policy.workspace_write({str(ws)!r}), cwd='/')\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "p.kill(); sys.exit(p.wait() != -9)\n"
    )
    assert subprocess.run([PY, "-c", code], timeout=30).returncode == 0


def test_the_callers_own_group_and_siblings_are_not_hit(ws, policy):
    """Whatever the caller chose for sessions and groups: only processes of this run are signalled."""
    with subprocess.Popen(["sleep", "60"]) as sibling:
        try:
            for options in ({}, {"start_new_session": True}, {"process_group": 0} if sys.version_info >= (3, 11) else {}):
                with pytest.raises(sp.TimeoutExpired):
                    sp.run(["sh", "-c", "sleep 60 & kill -STOP 0; sleep 60"], timeout=0.3, policy=policy, cwd=ws, **options)
            with mock.patch("os.getpgid", side_effect=ProcessLookupError), pytest.raises(sp.TimeoutExpired):
                sp.run(["sleep", "60"], timeout=0.1, policy=policy, cwd=ws)
            assert sibling.poll() is None
        finally:
            sibling.kill()


# -- background jobs and late output --------------------------------------------------------------------------------------


def test_output_in_flight_arrives_and_a_background_job_does_not_keep_the_caller(run, token):
    """Waiting for end of file hangs as long as the job lives; stopping at the exit loses what is still on its way."""
    begin = time.monotonic()
    result = run(f"echo A; sleep {token} & echo B", shell=True)
    assert result.stdout == "A\nB\n" and time.monotonic() - begin < 30
    assert result.sandbox.processes_ended == ("sleep",)
    assert run("printf A; (sleep .1; printf B) & wait", shell=True).stdout == "AB"
    assert len(run("head -c 5000000 /dev/zero", shell=True, text=False).stdout) == 5_000_000
    for _ in range(20):
        assert run("printf A; (printf B) & exit 0", shell=True).stdout == "AB"


def test_a_job_that_never_stops_writing_does_not_keep_the_caller(run):
    """A drain that starts its clock anew at each chunk never ends."""
    begin = time.monotonic()
    result = run("(while :; do echo x; done) & echo done", shell=True)
    assert "done" in result.stdout and time.monotonic() - begin < 30


def test_a_server_in_the_background_ends_with_its_command_and_is_named(run, ws):
    """A rule that is told: what should live longer is started by a Popen of its own."""
    result = run(f"{PY} -m http.server 0 >log 2>&1 & echo $!", shell=True)
    assert result.stdout.strip().isdigit()
    assert len(result.sandbox.processes_ended) == 1 and result.sandbox.processes_ended[0].startswith("python")


def test_orphans_are_reaped_inside(run):
    """They become children of process 1, which has to take their status, and soon.

    Where the host's processes are in sight, its zombies were counted too, and each test that ran beside this one has some.
    """
    script = """
for i in $(seq 50); do (sleep 0 &); done
while cat /proc/[0-9]*/stat 2>/dev/null | grep -q "(sleep) [^Z] $PPID "; do sleep .01; done
for i in 1 2 3 4 5 6; do
	zombies=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ") Z \\($PPID\\|$$\\) ")
	[ "$zombies" = 0 ] && break
	sleep .05
done
echo "$zombies"
"""
    assert run(script, shell=True).stdout.strip() == "0"


# -- the terminal ---------------------------------------------------------------------------------------------------------------


class Terminal:
    """A program on a terminal of its own, as its session's leader."""

    def __init__(self, argv):
        self.text = b""
        self.all = b""  # for whoever has to find out what went wrong
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execv(argv[0], argv)
            finally:
                os._exit(126)

    def expect(self, pattern, seconds=20):
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text, re.DOTALL):
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{pattern!r} did not come, but {self.text!r}"
            try:
                piece = os.read(self.fd, 4096)
                self.text += piece
                self.all += piece
            except OSError as error:  # EIO: the other end is gone
                assert error.errno == errno.EIO and re.search(pattern, self.text, re.DOTALL), self.text
        self.text = self.text[re.search(pattern, self.text, re.DOTALL).end() :]

    def type(self, keys):
        os.write(self.fd, keys)

    def wait(self):
        """The status, after reading what is left, so that nobody waits for the terminal."""
        try:
            while piece := os.read(self.fd, 4096):
                self.all += piece
        except OSError:
            pass
        return os.waitpid(self.pid, 0)[1]

    def close(self):
        os.close(self.fd)


@pytest.fixture
def terminal():
    made = []

    def make(*argv):
        made.append(Terminal(list(argv)))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Interrupt:
    """Ctrl-C at the nth line of the named functions of a module; without the luck that a key needs."""

    def __init__(self, line, module, *functions):
        self.line, self.module, self.functions = line, module, functions
        self.seen = 0

    def __enter__(self):
        sys.settrace(self.call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def call(self, frame, event, _):
        code = frame.f_code
        return self.each if code.co_name in self.functions and code.co_filename.endswith(self.module) else None

    def each(self, frame, event, _):
        if event == "line":
            self.seen += 1
            if self.seen == self.line:
                raise KeyboardInterrupt
        return self.each


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def test_control_c_while_a_command_begins(ws, policy, token):
    """Taken in the middle of the first message, descriptors were closed that the launch still counted as its own: EBADF came in
    the place of KeyboardInterrupt, or somebody else's descriptor of the same number was closed in the end."""
    sp.run(["true"], policy=policy, cwd=ws)
    before = descriptors()
    script = f"sleep {token} & exec sleep {token}"
    for line in range(1, 100):
        with Interrupt(line, "_channel.py", "_take_first", "_end_lease") as interrupt:
            try:
                process = sp.Popen(["sh", "-c", script], policy=policy, cwd=ws)
            except KeyboardInterrupt:
                process = None
        if process is not None:
            break
        assert descriptors() == before, line
        wait_until(lambda: not processes_with(token))
    assert process is not None and interrupt.seen < line and line > 10
    with process:
        process.kill()
    assert descriptors() == before
    assert sp.run(["echo", "x"], policy=policy, cwd=ws, capture_output=True).stdout == b"x\n"


def test_control_c_while_an_end_is_taken_down(ws, policy):
    """What a command has planted is made inert even then, and no descriptor is left."""
    sp.run(["git", "init", "-q", ws], policy="danger-full-access", check=True)
    sp.run(["true"], policy=policy, cwd=ws)
    before = descriptors()
    for line in range(1, 200):
        process = sp.Popen(["sh", "-c", "echo > HEAD; mkdir -p objects"], policy=policy, cwd=ws)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        interrupted = False
        with Interrupt(line, "_channel.py", "record_end", "_last_record", "take_events", "_take") as interrupt:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
        process.wait()
        assert not (ws / "HEAD").exists(), line
        assert len(process.sandbox.quarantined) == 1, line
        assert descriptors() == before, line
        if not interrupted:
            break
    assert line > 20 and interrupt.seen < line


def caller(ws, call):
    return (
        "import sys, sandboxed_subprocess as sp\n"
        f"policy = sp.Policy.workspace_write({str(ws)!r})\n"
        f"options = dict(policy=policy, cwd={str(ws)!r})\n"
        f"{call}\n"
    )


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "call",
    [
        "sp.run(command, **options)",
        "sp.call(command, **options)",
        "with sp.Popen(command, **options) as p: p.wait()",
        "sp.Popen(command, **options).communicate()",
    ],
)
def test_control_c_ends_the_tree_and_the_caller(ws, tier, token, terminal, call, times):
    """The command is not in the terminal's foreground group; the key is for it all the same, and the exception for the
    caller. Twice: clean-up must not be left half done."""
    code = caller(ws, f"command = ['sh', '-c', 'sleep {token} & echo up; sleep {token}']\n{call}")
    program = terminal(PY, "-c", code)
    program.expect(b"up\r\n")  # the whole line: a traceback may well say "set-up"
    for _ in range(times):
        program.type(b"\x03")
    status = program.wait()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT, (status, program.all)
    wait_until(lambda: not processes_with(token))


def test_control_c_reaches_the_commands_own_handler_once(ws, tier, terminal):
    """A command that handles SIGINT gets one, from the terminal, as it would without a sandbox."""
    inner = "import signal, time\nsignal.signal(2, lambda *_: print('caught', flush=True))\nprint('up', flush=True)\ntime.sleep(1.5)\nprint('end', flush=True)"
    code = caller(ws, f"import signal; signal.signal(2, lambda *_: None)\nsp.run([sys.executable, '-c', {inner!r}], **options); print('over')")
    program = terminal(PY, "-c", code)
    program.expect(b"up\r\n")  # the whole line: a traceback may well say "set-up"
    program.type(b"\x03")
    program.expect(b"caught")
    program.expect(b"end")
    assert b"caught" not in program.text
    program.expect(b"over")
    assert program.wait() == 0, program.all


def test_control_z_stops_the_command_and_fg_continues_it(ws, tier, terminal):
    """Under a shell with job control: the job is stopped as a whole, and goes on as a whole."""
    script = ws / "caller.py"
    # Put in place whole: stopped between open() and write(), it would leave an empty file for ever.
    write = "open('new', 'w').write(str(n)); os.replace('new', 'count')"
    inner = f"import os, time\nn = 0\nwhile True:\n    n += 1; {write}; time.sleep(0.01)"
    script.write_text(caller(ws, f"sp.run([sys.executable, '-c', {inner!r}], **options)"))
    shell = terminal("/bin/bash", "--norc", "--noprofile", "-i")
    shell.type(f"PS1='ready> '; {PY} {script}\n".encode())
    count = ws / "count"

    def value():
        try:
            return int(count.read_text() or 0)
        except FileNotFoundError:
            return 0

    wait_until(lambda: value() > 3, 20)
    shell.type(b"\x1a")
    shell.expect(rb"Stopped.*ready> ")
    # It has stopped by now, or will at once: two equal readings with a moment between them.
    wait_until(lambda: (a := value()) and not time.sleep(0.1) and value() == a)
    stopped = value()
    shell.type(b"fg\n")
    wait_until(lambda: value() > stopped + 3)
    shell.type(b"\x03")
    shell.expect(rb"ready> ")
    shell.type(b"exit\n")
    shell.wait()
