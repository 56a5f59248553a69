"""How the Linux launcher is spoken with: one SEQPACKET socket for each launch. Shared by the backends that use it.

The launcher says that the command runs (with its pid, and descriptors of it and of process 1), or why it never will;
at the end it says how it went. Silence means that it died.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import array
import contextlib
import errno
import os
import select
import shutil
import signal
import socket
import struct
from collections.abc import Sequence
from typing import Any

from .._errors import Missing, SandboxSetupError
from .._launch import ExecFailed, Launch, unknown_end
from .._plan import Feature, Plan
from .._report import Progress, Report, Usage, Violation
from ._descriptors import Lease
from ._records import CPU, THREADS, TREE_LIMITS, WALL, threads_of
from ._seccomp import EXCEPTIONS, name_of

RUNNING, FAILED, EXEC_FAILED, ENDED, PROGRESS, DENIED, OBSERVED = 1, 2, 3, 4, 5, 6, 7
_FAILURE = struct.Struct("=Ii32s")
_ENDED = struct.Struct("=IiQQQQQQIIIIII1024s")
_PROGRESS = struct.Struct("=IIIIQQQQ")
_DENIED = struct.Struct("=Ii")
_OBSERVED = struct.Struct("=IIiI")
_UNTOUCHED, _UNSEEN, _UNTOLD, _GROUP = 1, 2, 4, 8
_UNITS = {WALL: 1e3, CPU: 1e6}  # of what the launcher counts, in one of ours
_PATIENCE_MS = 50
_CREDENTIALS = struct.Struct("=iII")
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(3 * 4)


class ChannelLaunch(Launch):
    """A launch that our launcher carries out."""

    def __init__(
        self,
        *,
        plan: Plan,
        report: Report,
        argv: Sequence[bytes | str],
        executable: str,
        child_fds: Sequence[int],
        pass_fds: Sequence[int],
        channel: socket.socket,
        lease: Lease | None,
        cleanup: Sequence[str] = (),
        subreaper: bool = False,
    ) -> None:
        # Without a process namespace the tree dies by init's hand, one by one, and not with init.
        self._subreaper = subreaper
        self._cleanup = list(cleanup)
        self._child_fds = list(child_fds)
        self._channel: socket.socket | None = channel
        self._init_fd = -1
        self._command_fd = -1
        self._lease = lease
        self._made = -1
        self._end: tuple[Any, ...] | None = None
        ours = (*pass_fds, lease.fd) if lease is not None and lease.fd >= 0 else pass_fds
        super().__init__(
            plan=plan,
            report=report,
            argv=argv,
            executable=executable,
            pass_fds=(*ours, *plan.command.keep_fds),
        )

    def close_child_side(self) -> None:
        while self._child_fds:
            os.close(self._child_fds.pop())

    def close_parent_side(self) -> None:
        # The launcher has removed them, unless it was killed or never began.
        while self._cleanup:
            with contextlib.suppress(RecursionError):  # too deep for it
                shutil.rmtree(self._cleanup.pop(), ignore_errors=True)
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._end_lease(-1)
        # Disowned first: an interrupt in between then costs a descriptor, and not somebody else's that got its number.
        ours = self._init_fd, self._command_fd, self._made
        self._init_fd = self._command_fd = self._made = -1
        for fd in ours:
            if fd >= 0:
                os.close(fd)

    def _end_lease(self, again: int) -> None:
        """Once, whatever interrupts it: ended twice it would be free for two runs at a time."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end(again)

    def word(self) -> int:
        assert self._channel is not None
        return self._channel.fileno()

    def settle(self, pid: int) -> None:
        channel = self._channel
        assert channel is not None
        poller = select.poll()
        poller.register(channel, select.POLLIN)
        while not poller.poll(100):
            # Another thread's fork may hold a copy of the launcher's end for a while: no end of file tells us that
            # it died, so ask about the process itself.
            if _is_dead(pid) and not poller.poll(0):
                raise SandboxSetupError("launcher", detail="it died without a word")
        self._take_first(channel)

    def _take_first(self, channel: socket.socket) -> None:
        ancillary: list[tuple[int, int, bytes]] = []
        try:
            try:
                data, ancillary, _, _ = channel.recvmsg(8192, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
            except ConnectionResetError:
                data = b""  # it has not even read the plan
            fds, pid = _ancillary(ancillary)
            if len(data) < 8:
                raise SandboxSetupError("launcher", detail="it died without a word; out of memory, or killed")
            kind, number = struct.unpack_from("=Ii", data)
            if kind == RUNNING:
                if len(fds) < 2:
                    raise SandboxSetupError("pidfd", errno.EMFILE, detail="this process has no file descriptors left")
                self._init_fd, self._command_fd = fds[:2]
                if number:  # the launcher may name no other process; the kernel says the pid of a pidfd (proc(5), fdinfo)
                    pid = _pid_of(self._command_fd)
                if len(fds) == 3:
                    # Made for this run: none had been left, or what had been was not to be used.
                    self._made = fds[2]
                if self._subreaper and self._lease is not None:
                    # A ruleset, which nobody changes any more: it is free for the next run already.
                    self._end_lease(self._made if self._made >= 0 else self._lease.fd)
                self.report.pid = pid
                self.ran = True
                return
        finally:
            # Ctrl-C may come between any two lines, while the command runs already.
            for fd in _ancillary(ancillary)[0]:
                if fd not in (self._init_fd, self._command_fd, self._made):
                    os.close(fd)
        if kind == EXEC_FAILED:
            raise ExecFailed(number)
        if kind == ENDED:  # said by the monitor, of an init that the kernel has ended
            raise SandboxSetupError("launcher", errno.ENOMEM, detail="limits.memory_bytes is too low for a sandbox to be set up")
        _, number, step = _FAILURE.unpack_from(data)
        path = os.fsdecode(data[_FAILURE.size :].rstrip(b"\0")) or None
        raise setup_error(step.rstrip(b"\0").decode(), number, path)

    def send_signal(self, number: int) -> None:
        if self._command_fd >= 0 and os.getpid() == self.owner:
            try:
                signal.pidfd_send_signal(self._command_fd, number)
            except ProcessLookupError:
                pass

    def end_tree(self) -> None:
        """Process 1 is told to end everything, and has a moment for it; it keeps the status of a command that was just ending.
        Should it not answer, it is killed: then the kernel ends every process in its namespace before it can be reaped."""
        if self._init_fd < 0 or os.getpid() != self.owner:
            return
        self.killed = True
        told = False
        if self._channel is not None:
            try:
                self._channel.send(b"kill", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                told = True
            except OSError:
                pass  # its end is closed: it is gone, or will be killed now
        if told and self._subreaper:
            # Killed in the middle of that, it would leave the rest to the monitor, to begin anew. It may have been stopped.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGCONT)
            return
        if told:
            poller = select.poll()
            poller.register(self._init_fd, select.POLLIN)
            if poller.poll(_PATIENCE_MS):
                return
        try:
            signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            if not told:  # another user by now; the order stands
                raise

    def record_end(self, wall: float) -> None:
        record = self._last_record()
        if record is None:
            self._outlive_init()
            unknown_end(self, wall)
            return
        report = self.report
        limits = self.plan.policy.limits
        _, status, user, system, rss, memory, written, value, processes, threads, limit, left_behind, flags, _, names = record
        if flags & _UNTOUCHED and self._lease is not None:
            self._end_lease(self._made if self._made >= 0 else self._lease.fd)
        self.returncode = os.waitstatus_to_exitcode(status)
        rss *= 1024
        if any(value is not None for value in (limits.memory_bytes, limits.processes, limits.cpu_seconds, limits.written_bytes)):
            report.limits_by = "cgroup" if flags & _GROUP else "init"
        if flags & _UNSEEN:
            report.notes += ("who answers for refused system calls was killed: later ones are not among the violations",)
        # Where only some of the host is there, what is not is not told from what never was.
        policy = self.plan.policy
        observed = bool(policy.observe) and Feature.OBSERVE.value not in report.gaps
        report.violations_complete = observed and policy.read == "all" and not flags & (_UNSEEN | _UNTOLD)
        report.usage = Usage(wall, user / 1e6, system / 1e6, rss, max(rss, memory), max(1, processes), max(1, threads), written)
        if limit:
            report.ended, report.limit = "limit", TREE_LIMITS[limit]
            report.limit_reached = value / _UNITS.get(limit, 1)
            if limit == THREADS:
                most = threads_of(limits.processes or 1)
                report.notes += (f"limits.processes={limits.processes} allows {most} threads together; there were {value}",)
        elif name := self._limit_of_a_process(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0):
            report.ended, report.limit = "limit", name
        else:
            how = "killed" if self.killed and status == signal.SIGKILL else "signal" if os.WIFSIGNALED(status) else "exit"
            report.ended = report.ended or how
        if left_behind and not limit:
            found = names.rstrip(b"\0").decode("utf-8", "replace").split("\n")
            # A process chooses its own name; it must not be able to talk to whoever prints it.
            report.processes_ended = tuple("".join(c if c.isprintable() else "?" for c in n) for n in found if n)

    def _limit_of_a_process(self, number: int) -> str | None:
        """The limit that the kernel tells a process of by a signal, where that has ended the command."""
        limits = self.plan.policy.limits
        if number == signal.SIGXCPU and limits.cpu_seconds is not None:
            return "cpu_seconds"
        return "file_bytes" if number == signal.SIGXFSZ and limits.file_bytes is not None else None

    def _outlive_init(self) -> None:
        """Somebody killed the launcher by its pid. Process 1 of the sandbox dies of that (PR_SET_PDEATHSIG), a moment
        later; a caller that is process 1 of a container, or a subreaper, has then inherited it."""
        if self._init_fd < 0:
            return
        poller = select.poll()
        poller.register(self._init_fd, select.POLLIN)
        poller.poll(1000)
        try:
            os.waitid(os.P_PIDFD, self._init_fd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            pass  # not ours: reaped by the launcher, or somebody else's to reap

    def take_events(self) -> None:
        channel = self._channel
        if channel is None:
            return
        for _ in range(2):
            try:
                while data := channel.recv(8192, socket.MSG_DONTWAIT):
                    self._take(data)
            except ConnectionResetError:
                continue  # said once where it ended with an order unread; what it had sent is still there
            except OSError:
                break
            break

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self.word(), select.POLLIN)
        while not self.ended():
            if poller.poll(100):
                self.take_events()

    def ended(self) -> bool:
        return super().ended() or self._end is not None

    def _take(self, data: bytes) -> None:
        kind = struct.unpack_from("=I", data)[0] if len(data) >= 4 else 0
        if kind == ENDED and len(data) == _ENDED.size:
            self._end = _ENDED.unpack(data)
        elif kind == PROGRESS and len(data) == _PROGRESS.size:
            _, processes, threads, _, cpu, memory, written, wall = _PROGRESS.unpack(data)
            self.tell(Progress(wall / 1e3, cpu / 1e6, memory, processes, threads, written))
        elif kind == DENIED and len(data) == _DENIED.size:
            name = name_of(_DENIED.unpack(data)[1])
            exception = next((option for option, calls in EXCEPTIONS.items() if name in calls), None)
            advice = f"syscall_exceptions=[{exception!r}] allows it" if exception else "no policy allows it"
            self._add(Violation("syscall", name, "filter", advice))
        elif kind == OBSERVED and len(data) > _OBSERVED.size:
            from .._evidence import observed

            _, what, error, _ = _OBSERVED.unpack_from(data)
            path = os.fsdecode(data[_OBSERVED.size :])
            violation = observed(path, "read" if what == 1 else "write", error != errno.EACCES, self.plan)
            if violation is not None and violation not in self.report.violations:
                self._add(violation)

    def _add(self, violation: Violation) -> None:
        self.report.violations += (violation,)
        self.tell(violation)

    def _last_record(self) -> tuple[Any, ...] | None:
        self.take_events()
        return self._end  # None: the launcher ended without a record; the report says "unknown"


def send_plan(channel: socket.socket, text: bytes) -> None:
    """The plan, to whoever has the other end. In a message, because a descriptor that Popen passes on is one that the caller
    must have free while Popen makes its pipes.

    Raises:
        OSError: no file descriptors, or no memory, left.
    """
    fd = os.memfd_create("plan", os.MFD_CLOEXEC)
    try:
        rest = memoryview(text)
        while rest:
            rest = rest[os.write(fd, rest) :]
        channel.sendmsg([b"plan"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", fd))])
    finally:
        os.close(fd)


def _is_dead(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _pid_of(pidfd: int) -> int | None:
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pid:"):
                    pid = int(line[4:])
                    return pid if pid > 0 else None
    except OSError:
        pass  # no /proc here: the report goes without a pid, as it does for a command that has ended already
    return None


def _ancillary(messages: list[tuple[int, int, bytes]]) -> tuple[list[int], int | None]:
    fds: list[int] = []
    pid = None
    for level, kind, data in messages:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            fds += numbers
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack_from(data)[0] or None
    return fds, pid


# What a person can do about a step that failed; the errno says the rest.
_WAYS_OUT = {
    ("clone", errno.EPERM): "user namespaces are forbidden: sysctl kernel.unprivileged_userns_clone, or a container's profile",
    ("clone", errno.ENOSPC): "sysctl user.max_user_namespaces is 0 or used up",
    ("clone", errno.EUSERS): "sysctl user.max_user_namespaces is 0 or used up",
    ("clone", errno.EAGAIN): "the limit of processes (RLIMIT_NPROC) is reached",
    ("clone", errno.EINVAL): "this kernel is built without one of the seven namespaces",
    ("caller", errno.ENOSYS): "pidfd_open() is not there: a kernel before Linux 5.3, or one that is not Linux",
    ("open_tree", errno.ENOSYS): "mounts cannot be made by descriptor here: Linux 5.12 is needed, or something filters the calls",
    ("readonly", errno.ENOSYS): "mount_setattr() is not there: Linux 5.12 is needed, or something filters the call",
    ("open_tree", errno.EMFILE): "RLIMIT_NOFILE of the calling process is too low for this policy",
    ("open_tree", errno.ELOOP): "a symbolic link has taken the place of a directory that the policy names",
    ("pin", errno.ESTALE): "another directory has taken the place of a writable root; try again",
    ("chdir", errno.ENOENT): "the working directory is not visible inside; add it to write= or read=, or use tmp='shared'",
    ("chdir", errno.EACCES): "the working directory is hidden by the policy, or cannot be searched without privileges",
    ("landlock_rules", errno.EACCES): "a writable root cannot be searched by the user that the command runs as",
    ("proc", errno.EPERM): "parts of /proc are covered here (a nested container), so that no new one can be mounted",
    ("subreaper", errno.ENOENT): "there is no /proc of this process namespace, without which a tree cannot be found",
    ("check_mounts", errno.EROFS): "bubblewrap has left it writable",
    ("check_view", errno.ESTALE): "bubblewrap has put something else there than it was asked for",
    ("check_namespaces", errno.EPERM): "bubblewrap has not made this namespace",
}


def setup_error(step: str, number: int, path: str | None) -> SandboxSetupError:
    if step in ("bubblewrap", "running") and not number:  # what would be the path is what bwrap has said
        return SandboxSetupError(step, number, None, (path or "").strip() or "it ended without a word")
    detail = _WAYS_OUT.get((step, number), "")
    if not detail and number == errno.ELOOP:
        detail = "a symbolic link has taken the place of something that the policy names; try again"
    return SandboxSetupError(step, number, path, detail)


# What needs the power that a new user namespace gives.
_POWERED = ("cgroup", "identity", "session", "loopback", "open_tree", "readonly", "tmpfs", "mkdir", "file", "attach", "devpts")


def missing(error: SandboxSetupError, launcher: str) -> Missing:
    """What a trial that failed says about this host, and one line for whoever runs it: never to turn something off."""
    reason, advice = str(error), ""
    if error.step in _POWERED and error.errno in (errno.EPERM, errno.EACCES):
        # The first step that needs some fails; which one that is depends on AppArmor's version.
        reason += ": user namespaces can be made, but have no power (Ubuntu's kernel.apparmor_restrict_unprivileged_userns)"
        advice = (
            f"As root: echo 'abi <abi/4.0>, profile sandboxed-subprocess {launcher} flags=(unconfined) {{ userns, }}'"
            " > /etc/apparmor.d/sandboxed-subprocess; apparmor_parser -r /etc/apparmor.d/sandboxed-subprocess"
            " gives them to the launcher alone (docs/how-to/hosts.md)"
        )
    elif error.step in ("clone", "proc") and error.errno == errno.EPERM:
        advice = (
            "In a container: docker run --security-opt seccomp=PROFILE.json, with a profile that allows user namespaces and"
            " mounts to its processes (podman's own does), and a /proc that is not covered: see docs/how-to/hosts.md"
        )
    elif error.step == "clone" and error.errno in (errno.ENOSPC, errno.EUSERS):
        advice = "Allow more user namespaces: sysctl user.max_user_namespaces=15000"
    elif error.errno == errno.ENOSYS:
        advice = "Linux 5.12 or later is needed, with nothing around this process that hides its system calls"
    return Missing(reason, advice)
