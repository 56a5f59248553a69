"""What the Linux backends have in common: each makes a plan for our launcher, and asks it whether it works here."""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import contextlib
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _native
from .._errors import Missing, SandboxSetupError
from .._launch import Launch
from .._plan import Command, Composition, Feature, Plan
from .._policy import Limits, Policy
from .._report import Report
from . import DEVNULL, StdlibPopen, TimeoutExpired, _descriptors, _groups
from ._channel import ChannelLaunch, send_plan, setup_error
from ._descriptors import Lease, above_stdio, apart, identity
from ._landlock import TRUNCATE, Landlock
from ._records import (
    ARGV0,
    EXEC,
    LISTENER,
    OBSERVES,
    ROOT_FILES,
    command_flags,
    command_records,
    filter_record,
    group_record,
    header,
    record,
)
from ._seccomp import compile_filter

# What the launcher itself sees to, whatever is around it.
EVERYWHERE = frozenset(
    {
        Feature.NO_PRIVILEGES,
        Feature.LIMIT_FILE,
        Feature.LIMIT_FILES,
        Feature.LIMIT_WALL,
        Feature.LIMIT_MEMORY,
        Feature.LIMIT_PROCESSES,
        Feature.LIMIT_CPU,
        Feature.EVENTS,
    }
)

# What namespaces and mounts hold, whoever has made them.
OF_A_VIEW = frozenset(
    {
        Feature.WRITE_RULES,
        Feature.READ_RULES,
        Feature.PROTECTED_PATHS,
        Feature.DENIED_IN_ROOTS,
        Feature.DENIED_NAMES,
        Feature.METADATA,
        Feature.PRIVATE_TMP,
        Feature.PRIVATE_DEV,
        Feature.NETWORK_NONE,
        Feature.LOOPBACK,
        Feature.PROCESSES,
        Feature.PROCESS_LIST,
        Feature.TREE_KILL,
    }
)


def file_id(path: str) -> tuple[int, int]:
    st = os.stat(path)
    return st.st_dev, st.st_ino


_INODES = 1 << 20  # of the private tmpfs
_PATIENCE = 10  # seconds, for a trial


class Rendered(NamedTuple):
    """A plan's records, and what they were made from.

    Attributes:
        key: see `LauncherBackend.key`.
        sources: the number of SOURCE records among them.
    """

    composition: Composition
    key: tuple[object, ...]
    records: bytes
    sources: int


class LauncherBackend:
    """One object for the process; it holds nothing open.

    A tier derives from it, says in `features` what it can enforce, and makes the records of a plan in `records`.
    """

    name = ""
    kind = ""

    def __init__(self, launcher: str, ll: Landlock, no_listener: str = "") -> None:
        self._launcher = launcher
        self._launcher_id = file_id(launcher)
        self._landlock = ll
        self._rendered: dict[int, Rendered] = {}
        self.why_not: dict[Feature, str] = {}
        found = set(EVERYWHERE)
        if ll.write:
            found.add(Feature.HOST_FIFOS)
        else:
            self.why_not[Feature.HOST_FIFOS] = ll.missing
        if os.path.exists("/proc/self/io"):
            found.add(Feature.LIMIT_WRITTEN)
        else:
            self.why_not[Feature.LIMIT_WRITTEN] = "this kernel does not count what processes write (CONFIG_TASK_IO_ACCOUNTING)"
        try:
            compile_filter(())
        except Missing as gap:
            self.why_not[Feature.SYSTEM_CALLS] = f"{gap.reason}. {gap.advice}"
        else:
            found.add(Feature.SYSTEM_CALLS)
        # truncate("/proc/self/fd/0") would empty a file that was handed over for reading: Landlock sees it from ABI 3 on.
        self._shut_truncate = not ll.write & TRUNCATE
        self._filters = Feature.SYSTEM_CALLS in found
        self._listens = False
        self._claim(found, no_listener)
        self.features = frozenset(found)

    def _claim(self, found: set[Feature], no_listener: str) -> None:
        """Adds what the tier can enforce, and reasons for what it cannot."""
        raise NotImplementedError

    def _claim_sockets(self, found: set[Feature], no_listener: str) -> None:
        """Masks cover the sockets that are known at the launch; those made later are refused where connect() is notified."""
        self._listens = Feature.SYSTEM_CALLS in found and not no_listener
        if self._listens:
            found |= {Feature.UNIX_SOCKETS, Feature.CHOSEN_SOCKETS, Feature.OBSERVE}
        else:
            why = no_listener or "connect() cannot be watched without the filter"
            self.why_not[Feature.UNIX_SOCKETS] = self.why_not[Feature.CHOSEN_SOCKETS] = self.why_not[Feature.OBSERVE] = why

    def _claim_scopes(self, found: set[Feature], *features: Feature) -> None:
        if self._landlock.scoped:
            found.update(features)
            return
        for feature in features:
            reason = f"Landlock ABI {self._landlock.abi} has no scopes; ABI 6 (Linux 6.12) has"
            self.why_not[feature] = self._landlock.missing or reason

    # -- for a tier to fill in ------------------------------------------------------------------------------------------------

    mode = 0  # in the header's flags
    leases = 0  # the same, where there is a lease

    def records(self, plan: Plan) -> tuple[bytes, int]:
        """Everything but the command, and the number of sources among them. Kept for as long as the plan's rules are the same."""
        raise NotImplementedError

    def rights(self, plan: Plan) -> tuple[int, int, int]:
        """Rights that Landlock handles: of the file system, of the network, and scopes."""
        return self._landlock.write, 0, self._landlock.scoped

    def late_records(self, plan: Plan, program: int, taken: set[int], cleanup: list[str]) -> bytes:
        """What differs at each launch.

        Args:
            program: the launcher's descriptor.
            taken: numbers of descriptors that the launched process will have.
            cleanup: paths that are removed if nothing is launched; to be added to.
        """
        return b""

    def lease(self, plan: Plan, rendered: Rendered) -> Lease | None:
        """What an earlier run has left and this one can use, or the place for what it will leave."""
        return None

    def launch(self, plan: Plan, report: Report, **parts: Any) -> ChannelLaunch:
        return ChannelLaunch(plan=plan, report=report, **parts)

    def counts(self, command: Command) -> bool:
        """Whether RLIMIT_NPROC counts the processes of the sandbox only."""
        return False

    # Whether a control group is of use where no limit asks for one.
    ends_by_group = False

    # --------------------------------------------------------------------------------------------------------------------------

    def group(self, policy: Policy) -> bytes:
        """Where the launcher may make a control group for the run, if it may."""
        limits = policy.limits
        if limits.memory_bytes is limits.processes is limits.cpu_seconds is None and not self.ends_by_group:
            return b""
        # clone3() leads into any group whose file can be named, and only the filter refuses it.
        if not self._filters or "user_namespaces" in policy.syscall_exceptions:
            return b""
        place = _groups.place()
        return group_record(limits, *place) if place is not None else b""

    def program(self) -> int:
        """A descriptor of the launcher: the one that is kept, or a new one.

        Raises:
            SandboxSetupError: another program has taken its place.
            OSError: no file descriptors left.
        """
        kept = _descriptors.launcher_fd
        if kept >= 0:
            try:
                if identity(kept) == self._launcher_id:
                    return kept
            except OSError:
                pass  # closed by the program; so is what else it did not know
        fd = apart(os.open(self._launcher, os.O_PATH | os.O_CLOEXEC), 24)
        if identity(fd) != self._launcher_id:
            os.close(fd)
            raise SandboxSetupError(
                "launcher", errno.ESTALE, self._launcher, "it is not the one that this process began with"
            )
        return fd

    def _render(self, plan: Plan) -> Rendered:
        composition = plan.composition
        known = self._rendered.get(id(composition))
        if known is None or known.composition is not composition or known.key != self.key(plan):
            if len(self._rendered) > 256:
                self._rendered.clear()
            records = self.records(plan)
            known = self._rendered[id(composition)] = Rendered(composition, self.key(plan), *records)
        return known

    def sockets(self, no_network: bool) -> str:
        """Which sockets the filter leaves; see `_seccomp.compile_filter`."""
        return "own"

    def filter(
        self, exceptions: tuple[str, ...], no_network: bool, limits: Limits | None = None, observe: bool = False
    ) -> bytes:
        if not self._filters:
            return b""
        limits = limits or Limits()
        written = limits.written_bytes is not None
        counts = written, written or limits.memory_bytes is not None
        return filter_record(exceptions, self._listens, self._shut_truncate, self.sockets(no_network), *counts, observe)

    def observes(self, plan: Plan) -> bool:
        return bool(plan.policy.observe) and Feature.OBSERVE in self.features

    def key(self, plan: Plan) -> tuple[object, ...]:
        """What the records of a plan depend on, besides its rules."""
        return plan.pins, plan.surroundings.private_dirs

    def flags(self, plan: Plan) -> int:
        flags = command_flags(plan) | self.mode | (LISTENER if self._listens else 0)
        flags |= OBSERVES if self.observes(plan) else 0
        # Where it cannot be confined it is a gap, and not a power over every file.
        return flags if Feature.ROOT_FILES in self.features else flags & ~ROOT_FILES

    def wrap(self, plan: Plan, report: Report) -> Launch:
        """Turns a plan into a launch of our launcher.

        Raises:
            OSError: no file descriptors, or no memory, left.
        """
        rendered = self._render(plan)
        policy = plan.policy
        command = plan.command
        fds: list[int] = []
        cleanup: list[str] = []
        channel = None
        lease = self.lease(plan, rendered)
        try:
            program = self.program()
            if program != _descriptors.launcher_fd:
                fds.append(program)
            channel, child = socket_pair()
            number = apart(child.detach(), 28)
            fds.append(number)
            body = [
                rendered.records,
                self.filter(tuple(policy.syscall_exceptions), policy.network == "none", policy.limits, self.observes(plan)),
                command_records(command, policy.limits, self.counts(command)),
                self.group(policy),
                self.late_records(plan, program, {program, number, *command.keep_fds}, cleanup),
            ]
            limit = policy.limits.memory_bytes
            interval = policy.event_interval if policy.on_event is not None else None
            flags = self.flags(plan) | (self.leases if lease is not None else 0)
            text = header(
                b"".join(body), flags, command, rendered.sources, interval, self.rights(plan),
                f"{limit}" if limit else "25%", min(_INODES, max(4096, limit // 4096)) if limit else _INODES,
                lease.fd if lease is not None else -1,
            )  # fmt: skip
            send_plan(channel, text)
            return self.launch(
                plan,
                report,
                argv=(b"sandboxed-subprocess %d" % number, *command.argv[1:]),
                executable=f"/proc/self/fd/{program}",
                child_fds=fds,
                pass_fds=(program, number),
                channel=channel,
                lease=lease,
                cleanup=cleanup,
            )
        except BaseException:
            for path in cleanup:
                with contextlib.suppress(OSError):  # somebody has put something there; the error that is raised is another
                    os.rmdir(path)
            if lease is not None:
                lease.end(-1)
            for fd in fds:
                os.close(fd)
            if channel is not None:
                channel.close()
            raise

    def trial(
        self, records: bytes, flags: int, late: Callable[[int, set[int]], bytes] = lambda program, taken: b"",
        connects: bool = False,
    ) -> SandboxSetupError | None:
        """Runs the launcher itself as a command. None if that works, or what failed.

        Args:
            late: as `late_records`.
            connects: the command tries a connect(), which is taken over where there is a listener; step "connect" if it fails.

        Raises:
            Missing: nothing can be said, this time.
        """
        name = b"sandboxed-subprocess-probe" + (b"-connect" if connects else b"")
        body = [records, record(ARGV0, 0, 0, 0, 0, name), self.filter((), True)]
        body.append(record(EXEC, 0, 0, 0, 0, os.fsencode(self._launcher)))
        flags |= self.mode | (LISTENER if self._listens else 0)
        ll = self._landlock
        try:
            channel, child = socket_pair()
            program = os.open(self._launcher, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise Missing(f"the launcher could not be tried ({error})", transient=True) from None
        try:
            # Numbers of their own for the late records, which must not meet those that Popen makes.
            program = apart(program, 24)
            body.append(late(program, {program, child.fileno()}))
            command = Command((b"probe",), ())
            send_plan(channel, header(b"".join(body), flags, command, 0, None, (ll.write, 0, ll.scoped), "1m", _INODES, -1))
            process = StdlibPopen(
                [b"sandboxed-subprocess %d" % child.fileno()],
                executable=self._launcher,
                env={},
                cwd="/",
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=DEVNULL,
                pass_fds=(child.fileno(), program),
            )
            try:
                status = process.wait(_PATIENCE)
            except TimeoutExpired:
                # A mount that does not answer (autofs, NFS), or a bwrap that does nothing: what the launcher has started
                # ends first, so that the launcher can tell, and nothing is left.
                for pid in _children(process.pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                try:
                    process.wait(1)
                except TimeoutExpired:
                    process.kill()
                    process.wait()
                raise
            child.close()
            answer = channel.recv(8192)
        except (OSError, TimeoutExpired) as error:
            raise Missing(f"the launcher does not run ({error})", transient=True) from None
        finally:
            os.close(program)
            channel.close()
            child.close()
        if status == 0 and answer[:4] == struct.pack("=I", 1):
            return None
        if len(answer) >= 40 and answer[:4] == struct.pack("=I", 2):
            number = struct.unpack_from("=i", answer, 4)[0]
            return setup_error(answer[8:40].rstrip(b"\0").decode(), number, os.fsdecode(answer[40:]) or None)
        if connects and status > 0:
            return SandboxSetupError("connect", status)
        raise Missing(f"the launcher ended with {status} in a trial", transient=status < 0)


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(number) for number in file.read().split()]
    except OSError:
        return []


def launcher() -> str:
    """The launcher's path.

    Raises:
        Missing: it is not there, or cannot be given its orders.
    """
    path = _native.locate()
    try:
        os.close(os.memfd_create("trial", os.MFD_CLOEXEC))
    except OSError as error:
        raise Missing(
            f"memfd_create() does not work here ({error.strerror}), by which the launcher gets its orders",
            "Linux 5.12 or later is needed, with nothing around this process that hides its system calls",
            transient=error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        ) from None
    return path


def refuse_nesting(failure: SandboxSetupError) -> None:
    """
    Raises:
        Missing: we are in a sandbox of our own, which explains the failure better than its errno.
    """
    if os.environ.get("SANDBOXED_SUBPROCESS_ACTIVE"):
        raise Missing(
            f"this process is itself in a sandbox of sandboxed_subprocess, where no other can be made ({failure})",
            "What the outer sandbox holds, everything in it is held by: policy='danger-full-access' runs a command in it as"
            " it is, and nothing looser",
        )


def socket_pair() -> tuple[socket.socket, socket.socket]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if a.fileno() <= 2:
        a = socket.socket(fileno=above_stdio(a.detach()))
    if b.fileno() <= 2:
        b = socket.socket(fileno=above_stdio(b.detach()))
    a.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return a, b
