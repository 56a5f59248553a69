"""Launch: one command on its way, what it owns, and how it comes to an end.

A backend makes it; `Popen` (or an event loop) starts `argv` with it. From then on it speaks with the launcher over
one SEQPACKET socket: the launcher says that the command runs, or why it never will; silence means that it died.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import secrets
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Sequence

from . import _paths
from ._errors import SandboxSetupError
from ._plan import Plan
from ._report import Report, Usage, Violation

RUNNING, FAILED, EXEC_FAILED, ENDED = 1, 2, 3, 4
_FAILURE = struct.Struct("=Ii32s")
_ENDED = struct.Struct("=IiQQQII1024s")
_CREDENTIALS = struct.Struct("=iII")
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(2 * 4) if hasattr(socket, "CMSG_SPACE") else 0


class ExecFailed(Exception):
    """The sandbox stood, but the program could not be executed: the caller's ordinary `OSError`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.errno = number


class Quarantine:
    """Compares, when a run is over, the names that the host would trust with those that were there before.

    What appeared is renamed, so that nothing is lost and nothing is executed, and reported.
    """

    def __init__(self, plan: Plan) -> None:
        self._roots = set(plan.view.roots)
        self._homes = [h for h in plan.view.homes if any(_paths.is_within(h, r) for r in plan.view.roots)]
        self._keeps_git = plan.policy.git == "writable"
        self._before = []
        for directory, names in plan.composition.watch:
            self._before.append((directory, names, _paths.stamp(directory)))
        self._startup = [
            path
            for home in self._homes
            for name in _paths.STARTUP_IN_HOME
            if not os.path.lexists(path := f"{home}/{name}")
        ]
        self._bare = {root for root in self._roots if self._looks_bare(root)}

    @staticmethod
    def _looks_bare(root: str) -> bool:
        return all(os.path.lexists(f"{root}/{name}") for name in ("HEAD", "objects", "refs"))

    def sweep(self) -> tuple[tuple[tuple[str, str], ...], tuple[Violation, ...]]:
        """(path, new path) of each thing put out of action, and the same as violations."""
        planted = list(self._planted())
        moved = []
        violations = []
        for path in planted:
            away = f"{path}.quarantined-{secrets.token_hex(4)}"
            try:
                os.rename(path, away)
            except OSError as error:
                violations.append(Violation("planted", f"{path} (still there: {error.strerror})", "quarantine"))
                continue
            moved.append((path, away))
            violations.append(Violation("planted", path, "quarantine"))
        return tuple(moved), tuple(violations)

    def _planted(self) -> list[str]:
        found = []
        for directory, names, stamp in self._before:
            if stamp == -1 or _paths.stamp(directory) == stamp:
                continue
            if directory in self._roots:
                for name in _paths.PROTECTED_NAMES - names:
                    if (name != _paths.GIT or not self._keeps_git) and os.path.lexists(f"{directory}/{name}"):
                        found.append(f"{directory}/{name}")
                if not self._keeps_git and directory not in self._bare and self._looks_bare(directory):
                    found.append(f"{directory}/HEAD")
            else:
                try:
                    now = os.listdir(directory)
                except OSError:
                    continue
                found += [f"{directory}/{n}" for n in now if n not in names and _paths.GIT_PLANTED.fullmatch(n)]
        found += [path for path in self._startup if os.path.lexists(path)]
        return found


class Launch:
    """What one launch owns. Made by a backend; used by `Popen` and its kin, which spawn.

    Attributes:
        argv, executable, pass_fds, environ: for the spawn, in place of the user's.
        report: filled in as the command starts and ends.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        report: Report,
        argv: Sequence[bytes | str],
        executable: str,
        child_fds: Sequence[int],
        channel: socket.socket,
        child_channel: socket.socket,
    ) -> None:
        self.plan = plan
        self.report = report
        self.argv = argv
        self.executable = executable
        self.environ = plan.surroundings.environ
        self.owner = os.getpid()
        self._child_fds = list(child_fds)
        self._child_channel: socket.socket | None = child_channel
        self._channel: socket.socket | None = channel
        self._init_fd = -1
        self._command_fd = -1
        self._started = time.monotonic()
        self._quarantine = Quarantine(plan) if plan.composition.watch else None
        self._killed = False
        self._finished = False
        self.pass_fds = (*child_fds, child_channel.fileno(), *plan.command.keep_fds)

    # -- before and during the spawn ----------------------------------------------------------------------------

    def close_child_side(self) -> None:
        """Once the child has its copies, or will never have them."""
        while self._child_fds:
            os.close(self._child_fds.pop())
        if self._child_channel is not None:
            self._child_channel.close()
            self._child_channel = None

    def abandon(self) -> None:
        """Nothing was started."""
        self.close_child_side()
        self._finished = True
        self._close_parent_side()

    def settle(self, pid: int) -> None:
        """Returns once the command runs.

        Raises:
            ExecFailed: the program could not be executed.
            SandboxSetupError: a restriction could not be put in place, or the launcher died without a word.
        """
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
        data, ancillary, flags, _ = channel.recvmsg(8192, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        fds, pid = _ancillary(ancillary)
        try:
            if len(data) < 8:
                raise SandboxSetupError("launcher", detail="it died without a word; out of memory, or killed")
            kind, number = struct.unpack_from("=Ii", data)
            if kind == RUNNING:
                if len(fds) != 2 or flags & socket.MSG_CTRUNC:
                    raise SandboxSetupError("pidfd", errno.EMFILE, detail="this process has no file descriptors left")
                self._init_fd, self._command_fd = fds
                fds = []
                self.report.pid = pid
                return
        finally:
            for fd in fds:
                os.close(fd)
        if kind == EXEC_FAILED:
            raise ExecFailed(number)
        _, number, step = _FAILURE.unpack_from(data)
        path = os.fsdecode(data[_FAILURE.size :].rstrip(b"\0")) or None
        raise setup_error(step.rstrip(b"\0").decode(), number, path)

    # -- while it runs ------------------------------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        """To the command itself, whose handler runs. Nothing happens once it has ended."""
        if self._command_fd >= 0 and os.getpid() == self.owner:
            try:
                signal.pidfd_send_signal(self._command_fd, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """SIGKILL to process 1 of the sandbox. The kernel ends every process in it before `wait()` returns."""
        if self._init_fd >= 0 and os.getpid() == self.owner:
            self._killed = True
            try:
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    # -- the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Called when the exit of the launched process is known. Never blocks, never raises, acts once.

        It runs with the lock of `Popen.wait()` held, in `__del__` at interpreter exit, and in children of a fork,
        where everything belongs to the parent.
        """
        if self._finished or os.getpid() != self.owner:
            return
        self._finished = True
        report = self.report
        wall = time.monotonic() - self._started
        record = self._last_record()
        if record is None:
            report.ended = report.ended or ("killed" if self._killed else "unknown")
            report.usage = Usage(wall)
        else:
            _, status, user, system, rss, left_behind, wall_limit, names = record
            report.usage = Usage(wall, user / 1e6, system / 1e6, rss * 1024)
            if wall_limit:
                report.ended, report.limit = "limit", "wall_seconds"
            else:
                report.ended = report.ended or ("signal" if os.WIFSIGNALED(status) else "exit")
            if left_behind and not wall_limit:
                found = names.rstrip(b"\0").decode("utf-8", "replace").split("\n")
                report.processes_ended = tuple(n for n in found if n)
        self._close_parent_side()
        if self._quarantine is not None:
            moved, violations = self._quarantine.sweep()
            report.quarantined += moved
            report.violations += violations

    def _last_record(self) -> tuple[int, int, int, int, int, int, int, bytes] | None:
        channel = self._channel
        if channel is None:
            return None
        try:
            while data := channel.recv(8192, socket.MSG_DONTWAIT):
                if len(data) == _ENDED.size and struct.unpack_from("=I", data)[0] == ENDED:
                    return _ENDED.unpack(data)  # type: ignore[return-value]
        except OSError:
            pass  # the launcher ended without a record; the report says "unknown"
        return None

    def _close_parent_side(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for fd in (self._init_fd, self._command_fd):
            if fd >= 0:
                os.close(fd)
        self._init_fd = self._command_fd = -1

    def __del__(self) -> None:
        if not self._finished and os.getpid() == self.owner:
            self._finished = True
            self.close_child_side()
            self._close_parent_side()


def _is_dead(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


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
    ("clone", errno.EPERM): "user namespaces are forbidden here: sysctl kernel.unprivileged_userns_clone, or the container's seccomp profile",
    ("clone", errno.ENOSPC): "sysctl user.max_user_namespaces is 0 or used up",
    ("clone", errno.EUSERS): "sysctl user.max_user_namespaces is 0 or used up",
    ("clone", errno.EAGAIN): "the limit of processes (RLIMIT_NPROC) is reached",
    ("readonly", errno.EPERM): "user namespaces have no power here: Ubuntu's kernel.apparmor_restrict_unprivileged_userns",
    ("open_tree", errno.EMFILE): "RLIMIT_NOFILE of the calling process is too low for this policy",
    ("open_tree", errno.ELOOP): "a symbolic link has taken the place of a directory that the policy names",
    ("pin", errno.ESTALE): "another directory has taken the place of a writable root; try again",
    ("chdir", errno.ENOENT): "the working directory is not visible inside; add it to write= or read=, or use tmp='shared'",
    ("chdir", errno.EACCES): "the working directory is hidden by the policy, or cannot be searched without privileges",
    ("landlock_rules", errno.EACCES): "a writable root cannot be searched by the user that the command runs as",
    ("proc", errno.EPERM): "parts of /proc are covered here (a nested container), so that no new one can be mounted",
}


def setup_error(step: str, number: int, path: str | None) -> SandboxSetupError:
    detail = _WAYS_OUT.get((step, number), "")
    if not detail and number == errno.ELOOP:
        detail = "a symbolic link has taken the place of something that the policy names; try again"
    return SandboxSetupError(step, number, path, detail)


_NAMESPACE_FD = re.compile(r"(mnt|net|pid|pid_for_children|user|uts|ipc|cgroup|time|time_for_children):\[\d+\]|anon_inode:\[(fscontext|bpf-\w+|userfaultfd|io_uring)\]")


def refuse_fd(fd: int) -> str | None:
    """Why a file descriptor must not be inherited, or None: some lead past every mount."""
    try:
        mode = os.fstat(fd).st_mode
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError:
        return None  # closed; Popen has its own words for that
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFDIR:
        return "it is a directory, and everything below it could be reached through it"
    if flags & os.O_PATH:
        return "it is an O_PATH descriptor"
    if kind in (stat.S_IFREG, 0):
        try:
            if _NAMESPACE_FD.fullmatch(os.readlink(f"/proc/self/fd/{fd}")):
                return "it is a namespace or mount descriptor"
        except OSError:
            return None
    return None
