"""Processes outside: not seen, not read, not signalled, not traced; and no secret of theirs in a command line."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import subprocess
import sys

import pytest
from conftest import processes_with
from helpers.escapes_probe import PROBE, outcomes

import sandboxed_subprocess as sp

CALLER = """
import os, sys
import sandboxed_subprocess as sp
ws, script = sys.argv[1:3]
result = sp.run(["sh", "-c", script, "sh", str(os.getpid()), str(os.getppid())], policy=sp.Policy.workspace_write(ws), cwd=ws)
print("caller lives")
"""


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


@pytest.fixture
def victim():
    """A process of the same user outside, with a secret in its environment and in its memory."""
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "SS_VICTIM": "victims-hush"}) as process:
        yield process
        process.kill()


READ = PROBE + """
for pid in sys.argv[1:]:
    for name in ("environ", "cmdline", "maps", "mem", "auxv", "stack", "syscall", "root/etc/hostname", "cwd/.", "fd/0", "ns/mnt",
                 "task", "map_files", "exe", "comm", "status"):
        attempt(f"{pid} {name}", lambda: (os.listdir if os.path.isdir(p) else lambda p: open(p, "rb").read(1))(p)
                if (p := f"/proc/{pid}/{name}") else None)
    attempt(f"{pid} write mem", os.open, f"/proc/{pid}/mem", os.O_WRONLY)
    attempt(f"{pid} oom", os.open, f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
print("self environ", "OK" if open("/proc/self/environ", "rb").read() else "EIO")
print("self maps", "OK" if open("/proc/self/maps").read() else "EIO")
"""


def test_processes_outside_cannot_be_looked_into(run, victim):
    """/proc/PID/environ shows the caller's API keys, and /proc/PID/root leads around every mount
    (anthropic-experimental/sandbox-runtime#160)."""
    outside = [str(pid) for pid in (victim.pid, os.getpid(), os.getppid())]
    found = outcomes(run([sys.executable, "-c", READ, *outside]))
    assert (found.pop("self environ"), found.pop("self maps")) == ("OK", "OK")
    assert len(found) == 3 * 18
    assert {name: answer for name, answer in found.items() if answer != "ENOENT"} == {}


def test_the_first_process_inside_keeps_its_secrets(sh, monkeypatch, outside):
    """Process 1 of the sandbox has the same uid and more rights than the command; what it holds (its root, its memory, its
    descriptors) would be the way out."""
    monkeypatch.setenv("SS_API_TOKEN", "callers-hush")
    result = sh(
        f"""
for name in environ mem root/etc/hostname cwd/. fd/0 maps exe ns/mnt; do
    dd if=/proc/1/$name count=1 status=none of=/dev/null 2>/dev/null && echo readable $name
done
for number in $(seq 0 40); do readlink /proc/1/fd/$number; ls /proc/1/fd/$number/ 2>/dev/null; done
ls /proc/1/map_files 2>/dev/null; readlink /proc/1/root /proc/1/cwd /proc/1/exe
touch /proc/1/root{outside}/made /proc/1/cwd{outside}/made /proc/self/root{outside}/made 2>/dev/null
cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep hush
ls /proc | grep -E '^[0-9]+$' | wc -l
echo end"""
    )
    assert result.stdout.splitlines()[-1] == "end"
    assert len(result.stdout.splitlines()) == 2, result.stdout
    assert int(result.stdout.splitlines()[0]) < 12
    assert list(outside.iterdir()) == []


def test_a_link_of_proc_to_a_process_outside_writes_nothing(sh, victim, outside):
    """Root in a mere chroot or mount namespace writes to the host through /proc/PID/root."""
    pids = (victim.pid, os.getpid(), os.getppid(), 1)
    result = sh("".join(f"echo x > /proc/{pid}/root{outside}/made; echo x > /proc/{pid}/cwd/made\n" for pid in pids) + "echo end")
    assert result.stdout == "end\n"
    assert list(outside.iterdir()) == []


def test_signals_reach_nobody_outside(ws, victim, tier):
    """`kill -9 -1` of a confused build script ends the agent, the editor and the login session of its user."""
    script = f"""
trap '' HUP INT TERM USR1
for pid in "$@" {victim.pid}; do
    for signal in 9 STOP TERM HUP INT USR1; do
        kill -$signal $pid 2>/dev/null && echo signalled $pid
        kill -$signal -$pid 2>/dev/null && echo signalled group $pid
    done
done
kill -USR1 0; kill -HUP 0
sleep 60 & child=$!
kill -0 $child && echo own child
kill -9 $child; wait $child
echo before the end
kill -9 -1
"""
    result = subprocess.run(
        [sys.executable, "-c", CALLER, str(ws), script], capture_output=True, text=True, check=False, timeout=60, start_new_session=True
    )
    assert result.stdout.splitlines()[:2] == ["own child", "before the end"]
    assert result.stdout.splitlines()[-1] == "caller lives"
    assert "signalled" not in result.stdout
    assert victim.poll() is None
    assert "State:\tS" in pathlib.Path(f"/proc/{victim.pid}/status").read_text()


REACH = PROBE + """
import resource, signal
for pid in map(int, sys.argv[2:]):
    attempt(f"{pid} kill", os.kill, pid, 0)
    attempt(f"{pid} pidfd_open", os.pidfd_open, pid)
    attempt(f"{pid} setpriority", os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(f"{pid} setpriority group", os.setpriority, os.PRIO_PGRP, pid, 19)
    attempt(f"{pid} affinity", os.sched_setaffinity, pid, {0})
    attempt(f"{pid} scheduler", os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
    attempt(f"{pid} prlimit", resource.prlimit, pid, resource.RLIMIT_CPU, (1, 1))
    attempt(f"{pid} getpgid", os.getpgid, pid)
    attempt(f"{pid} setpgid", os.setpgid, pid, pid)
    local = ctypes.create_string_buffer(16)
    iovec = (ctypes.c_ulong * 2)(ctypes.addressof(local), 16)
    for name, numbers in (("readv", (310, 270)), ("writev", (311, 271))):
        print(f"{pid} process_vm_{name}", call(numbers[0 if X86 else 1], pid, iovec, 1, iovec, 1, 0))
    for request in (16, 0x4206):                                    # PTRACE_ATTACH, PTRACE_SEIZE
        print(f"{pid} ptrace {request}", call(101 if X86 else 117, request, pid, 0, 0))
    print(f"{pid} kcmp", call(312 if X86 else 272, pid, pid, 0, 0, 0))
    print(f"{pid} tgkill", call(234 if X86 else 131, pid, pid, 0))
    print(f"{pid} sigqueue", call(129 if X86 else 138, pid, 0, ctypes.create_string_buffer(128)))
    print(f"{pid} ioprio", call(251 if X86 else 30, 1, pid, 3 << 13))
    print(f"{pid} process_madvise", call(440, pid, 0, 0, 0, 0))
# Of everything that belongs to this user: at most what is inside may be meant.
try:
    os.setpriority(os.PRIO_USER, os.getuid(), 15)
except PermissionError:
    pass                                            # process 1 was among them
call(251 if X86 else 30, 3, os.getuid(), 3 << 13)
# A pidfd that was inherited names the process whatever the namespace.
pidfd = int(sys.argv[1])
print("pidfd signal", call(424, pidfd, 9, 0, 0))
print("pidfd_getfd", call(438, pidfd, 0, 0))
print("pidfd setns", call(308 if X86 else 268, pidfd, 0x20000))
print("end OK")
"""


def test_no_other_call_reaches_a_process_outside(run, victim):
    """Tracing, memory, limits, priorities and descriptors of another process of the same user: each is a way to take over
    or to slow down the caller, and a pidfd in the wrong hands names it in spite of the pid namespace."""
    pidfd = os.pidfd_open(victim.pid)
    before = os.getpriority(os.PRIO_PROCESS, victim.pid), os.sched_getaffinity(victim.pid), resource.prlimit(victim.pid, resource.RLIMIT_CPU)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        pids = [str(pid) for pid in (victim.pid, os.getpid(), os.getppid())]
        found = outcomes(run([sys.executable, "-c", REACH, str(pidfd), *pids], pass_fds=[pidfd]))
    finally:
        os.close(pidfd)
    assert found.pop("end") == "OK"
    assert len(found) == 3 * 18 + 3
    assert {name for name, answer in found.items() if answer == "OK"} == set()
    assert victim.poll() is None
    after = os.getpriority(os.PRIO_PROCESS, victim.pid), os.sched_getaffinity(victim.pid), resource.prlimit(victim.pid, resource.RLIMIT_CPU)
    assert (after, os.getpriority(os.PRIO_PROCESS, 0)) == (before, own)


def test_tracing_is_refused_even_among_own_children_unless_named(py, policy):
    """A tracer rewrites the system calls of a traced child after the filter of old kernels has looked (before 4.8), so it has
    to be asked for; debuggers then work on what is inside."""
    code = PROBE + "print('traceme', call(101 if X86 else 117, 0, 0, 0, 0))"
    assert outcomes(py(code)) == {"traceme": "EPERM"}
    assert outcomes(py(code, policy=policy.replace(syscall_exceptions=["ptrace"]))) == {"traceme": "OK"}


def test_values_of_variables_stay_out_of_every_command_line(ws, policy, tier):
    """`bwrap --setenv TOKEN value` shows the value to every user of the host in ps (bubblewrap#792)."""
    token = f"leak-{os.getpid()}-in-argv"
    environment = {"PATH": os.environ["PATH"], "SS_VALUE": token}
    script = """tr '\\0\\n' '  ' < /proc/1/cmdline; echo
cat /proc/[0-9]*/cmdline > /tmp/all; printenv SS_VALUE > /tmp/pattern; grep -acF -f /tmp/pattern /tmp/all
echo ${SS_VALUE#leak-}; read x"""
    with sp.Popen(
        ["sh", "-c", script],
        policy=policy.replace(deny_read=[ws / "hidden-place"]), cwd=ws, env=environment, stdin=sp.PIPE, stdout=sp.PIPE, text=True,
    ) as process:  # fmt: skip
        first, count, value = (process.stdout.readline() for _ in range(3))
        assert value.strip() == token.removeprefix("leak-")
        assert processes_with(token) == []
        assert processes_with(str(ws / "hidden-place")) == []
        process.communicate("\n")
    assert token not in first
    assert count == "0\n"


def test_what_the_environment_filter_drops_is_nowhere_inside(sh, monkeypatch):
    """A launcher that gets the caller's whole environment and hands on a clean one still shows it in /proc/1/environ."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "callers-hush")
    result = sh("env | grep -c hush; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c hush; echo end")
    assert result.stdout == "0\n0\nend\n"


def test_the_kernels_buttons_are_out_of_reach(sh):
    """/proc/sys, /proc/sysrq-trigger, cgroup files and /sys are writable by root and rule the whole host: core_pattern and
    release_agent run a program outside."""
    result = sh(
        """
for f in $(find /proc/ /sys/ -xdev -maxdepth 4 -type f -writable 2>/dev/null | grep -v ^/proc/[0-9] | head -500) \
          /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/vm/drop_caches \
         /proc/self/oom_score_adj /sys/kernel/uevent_helper /sys/power/state $(find /sys/fs/cgroup -name cgroup.procs 2>/dev/null | head -3); do
    [ -e $f ] && (exec 3>>$f) 2>/dev/null && echo writable $f
done
mkdir /sys/fs/cgroup/made 2>/dev/null && echo made
echo ran"""
    )
    assert result.stdout == "ran\n"
    assert not os.path.exists("/sys/fs/cgroup/made")


def test_signal_numbers_of_the_test_process_are_as_before():
    """The tests above send signals to this very process: it must not have been told to ignore them."""
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_process_1_does_not_show_the_commands_arguments(run):
    """`pgrep -f server || start-it` would find it, for whatever it looks for, and a password that was passed as an argument
    would stay there when the command has replaced it in its own."""
    assert run(["cat", "/proc/1/cmdline"]).stdout.rstrip("\0") == "sandbox-init"
    result = run(["pgrep", "-f", "some-server-that-is-not-there"])
    assert (result.returncode, result.stdout) == (1, "")
