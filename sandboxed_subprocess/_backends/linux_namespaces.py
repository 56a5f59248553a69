"""The `namespaces` backend: our launcher makes all seven namespaces itself. Linux 5.12 and later.

Here a plan becomes the records that `_native/launcher.c` reads. Which mount goes where is decided in `render_view`
and nowhere else; it is a pure function of the plan's rules, and cached with them.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import errno
import functools
import os
import socket
import stat
import struct
from collections.abc import Iterable

from .. import _native, _paths
from .._errors import Missing, SandboxSetupError
from .._plan import SOCKET, Access, Command, Composition, Feature, Plan, Rule
from .._policy import Limits
from .._report import Report
from . import DEVNULL, StdlibPopen, TimeoutExpired
from ._channel import ChannelLaunch, missing, send_plan, setup_error
from ._descriptors import above_stdio, apart, identity, launcher_fd, slot
from ._landlock import IOCTL_DEV, TRUNCATE, WRITE_FILE, Landlock, landlock
from ._seccomp import compile_filter

_HEADER = struct.Struct("=8sIIIIIIIiQQQQ24s24s")
_RECORD = struct.Struct("=IIIIQQ")
(_ARGV0, _EXEC, _KEEP, _GROUP, _RLIMIT, _FILTER, _SOURCE, _BASE, _MKDIR, _FILE, _LINK, _TBIND, _ATTACH, _PROTECT,
 _PROC, _DEVPTS, _RULE, _MASK, _SEAL, _ALIAS, _SOCKET) = range(1, 22)  # fmt: skip
_NETNS, _UID, _GID, _GROUPS, _SETSID, _SETPGID, _LISTENER = 1, 2, 4, 8, 16, 32, 64
READONLY, OPTIONAL, DEVICES, PINNED, FLAT, OURS = 1, 2, 8, 16, 32, 64

_DEVICES = ("null", "zero", "full", "urandom", "tty")
_GRACE_MS = 200
_RLIMIT_CORE = 4
_INFINITY = (1 << 64) - 1


def _record(kind: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, *texts: bytes, raw: bytes = b"") -> bytes:
    tail = b"".join(text + b"\0" for text in texts) + raw
    tail += b"\0" * (-len(tail) % 8)
    return _RECORD.pack(kind, 24 + len(tail), a, b, c, d) + tail


class _View:
    """Records in the order in which the launcher acts on them."""

    def __init__(self, plan: Plan, write: int) -> None:
        self.plan = plan
        self.write = write
        self.sources: list[bytes] = []
        self.made: dict[str, None] = {}
        self.skeleton: list[bytes] = []
        self.mounts: list[bytes] = []
        self.landlock: list[bytes] = []
        # What lies at a path once its record has been acted on: "ro", "rw", or where in the tmpfs it is.
        self.area: dict[str, str] = {"/": "ro"}
        self.inside: dict[str, str] = {}
        self.masks = 0

    def source(self, path: str, flags: int, pin: tuple[int, int] = (0, 0)) -> int:
        self.sources.append(_record(_SOURCE, flags, 0, *pin, os.fsencode(path)))
        return len(self.sources) - 1

    def mkdir(self, place: str, mode: int = 0o755) -> None:
        """A directory in the tmpfs, and those above it."""
        parts = [part for part in place.split("/") if part]
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            if part not in self.made:
                self.made[part] = None
                self.skeleton.append(_record(_MKDIR, mode if depth == len(parts) else 0o755, 0, 0, 0, os.fsencode(part)))

    def file(self, place: str, mode: int, content: bytes = b"", size: int = 0) -> None:
        place = place.lstrip("/")
        if place not in self.made:
            self.mkdir(os.path.dirname(place))
            self.made[place] = None
            self.skeleton.append(_record(_FILE, mode, 0, len(content), size, os.fsencode(place), raw=content))

    def link(self, place: str, text: str) -> None:
        place = place.lstrip("/")
        if place not in self.made:
            self.mkdir(os.path.dirname(place))
            self.made[place] = None
            self.skeleton.append(_record(_LINK, 0, 0, 0, 0, os.fsencode(place), os.fsencode(text)))

    def bind(self, place: str, target: str, flags: int = 0) -> None:
        place = place.lstrip("/")
        self.mounts.append(_record(_TBIND, flags, 0, 0, 0, os.fsencode(place), os.fsencode(target)))

    def attach(self, source: int, target: str, flags: int = 0) -> None:
        self.mounts.append(_record(_ATTACH, flags, source, 0, 0, os.fsencode(target)))

    def allow(self, path: str, access: int, optional: bool = False) -> None:
        self.landlock.append(_record(_RULE, OPTIONAL if optional else 0, 0, access, 0, os.fsencode(path)))

    def governing(self, path: str) -> tuple[str, str]:
        """The nearest ancestor with a mount of its own, and what it is."""
        while True:
            path = os.path.dirname(path)
            if path in self.area:
                return path, self.area[path]

    def show(self, path: str, source: int, directory: bool) -> None:
        """Attaches a source where only a skeleton (a mask or a private directory) is, or over what is there."""
        above, area = self.governing(path)
        if area not in ("ro", "rw"):
            place = self.inside[above] + path[len(above) :]
            if directory:
                self.mkdir(place)
            else:
                self.file(place, 0o444)
        self.attach(source, path)


def _kind(path: str) -> int:
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return 0


def render_view(plan: Plan, ll: Landlock) -> tuple[bytes, int]:
    """The records for everything but the command, and the number of sources among them."""
    v = _View(plan, ll.write)
    view = plan.view
    pins = dict(plan.pins)
    writable = view.private_writable
    hidden = ".sandbox"
    base = "/run" if "/run" in view.private else "/dev"
    v.mounts.append(_record(_BASE, 0, 0, 0, 0, os.fsencode(base)))
    v.mkdir(f"{hidden}/none", 0)
    v.file(f"{hidden}/empty", 0)

    # /dev: five nodes of the host's, and directories of our own. Read-only mounts: a device can be written through one,
    # but its mode and owner cannot be changed, which a root caller's command could otherwise do on the host. random is
    # the same as urandom since Linux 5.6.
    v.mkdir(f"{hidden}/dev")
    v.mkdir(f"{hidden}/dev/pts")
    v.mkdir(f"{hidden}/dev/shm", 0o1777)
    for name, text in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1"),
                       ("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx"), ("random", "urandom")):  # fmt: skip
        v.link(f"{hidden}/dev/{name}", text)
    devices = [f"/dev/{name}" for name in _DEVICES if os.path.exists(f"/dev/{name}")]
    ours = len(devices)
    devices += [path for path in view.devices if os.path.exists(path)]
    shown = []
    for index, path in enumerate(devices):
        directory = _paths.is_directory(path)
        flags = DEVICES | READONLY | (0 if directory else FLAT) | (OURS if index < ours else 0)
        shown.append((path, v.source(path, flags), flags & OURS))
        if directory:
            v.mkdir(f"{hidden}{path}")
        else:
            v.file(f"{hidden}{path}", 0o666)
    # Writable for the sake of /dev/shm: it is private, the nodes in it are mount points, which cannot be replaced, and
    # Landlock leaves only shm.
    v.bind(f"{hidden}/dev", "/dev", 0 if writable else READONLY)
    for path, number, flags in shown:
        v.attach(number, path, flags)
    v.mounts.append(_record(_DEVPTS, 0, 0, 0, 0, b"/dev/pts"))
    # One rule for all nodes in /dev; it does not cover making new ones.
    v.allow("/dev", ll.write & (WRITE_FILE | IOCTL_DEV | TRUNCATE))
    if writable:
        v.allow("/dev/shm", ll.write & ~IOCTL_DEV)
    v.area["/dev"] = "private"
    v.inside["/dev"] = f"{hidden}/dev"

    # The private directories, and then all rules, parents first: a root may lie in a private directory, and a private
    # directory in a root. Python's sort is stable, so that of equals the private directory comes first.
    if base in view.private:
        v.area[base] = "private"
        v.inside[base] = ""
    areas = [area for area in view.private if area != base]
    has_children = _with_children(plan.rules)
    order: list[tuple[int, str, Rule | None]] = [(_depth(area), area, None) for area in areas]
    order += [(_depth(rule.path), rule.path, rule) for rule in plan.rules]
    order.sort(key=lambda item: item[:2])
    _furnish(v, [base] if base in view.private else [])
    for _, path, rule in order:
        if rule is not None:
            _render_rule(v, rule, pins, rule.path in has_children, ll)
            continue
        v.area[path] = "private"
        if path.endswith("tmp") and view.tmp_source is not None:
            v.area[path] = "mask"  # nothing is shown in it by itself; see below
            v.inside[path] = f"{hidden}/private{len(v.inside)}"
            v.mkdir(v.inside[path], 0o755)
            v.bind(v.inside[path], path)
            continue
        place = v.inside[path] = f"{hidden}/private{len(v.inside)}"
        v.mkdir(place, 0o1777 if path.endswith("tmp") else 0o755)
        if writable and path.endswith("tmp"):
            v.bind(place, path)
            v.allow(path, ll.write & ~IOCTL_DEV)
        else:
            v.bind(place, path, READONLY)
        _furnish(v, [path])
    for path in view.sockets:
        v.mounts.append(_record(_SOCKET, 0, 0, 0, 0, os.fsencode(path)))
    if view.tmp_source is not None:
        # Last, so that the second name shows the same masks and protections as the first.
        for area in sorted(areas, key=lambda area: _paths.is_within(str(view.tmp_source), area)):
            if area.endswith("tmp"):
                v.mounts.append(_record(_ALIAS, 0, 0, 0, 0, os.fsencode(view.tmp_source), os.fsencode(area)))
    v.mounts.append(_record(_PROC, READONLY))
    records = b"".join(
        [*v.sources, v.mounts[0], *v.skeleton, _record(_SEAL, 0, 0, 0, 0, os.fsencode(hidden)), *v.mounts[1:], *v.landlock]
    )
    return records, len(v.sources)


def _pin(path: str) -> tuple[int, int]:
    st = os.stat(path)
    return st.st_dev, st.st_ino


def _depth(path: str) -> int:
    return path.count("/") if path != "/" else 0


def _furnish(v: _View, areas: list[str]) -> None:
    """What is visible in a private directory from the start."""
    plan = v.plan
    for path, text in plan.view.links:
        above, area = v.governing(path)
        if area == "private" and above in areas:
            v.link(v.inside[above] + path[len(above) :], text)
    for path in _paths.SHOWN:
        # A link from /etc into /run is common (systemd-resolved); what it leads to has to stay.
        real = _paths.resolve(path).real
        above, area = v.governing(real)
        if area == "private" and above in areas and os.path.exists(real) and real not in v.area:
            directory = _paths.is_directory(real)
            v.show(real, v.source(real, READONLY | (0 if directory else FLAT)), directory)
            v.area[real] = "ro"
    for path in plan.surroundings.private_dirs:
        above, area = v.governing(path)
        if area != "private" or above not in areas:
            continue
        place = v.inside[above] + path[len(above) :]
        v.mkdir(place, 0o700)
        if not path.startswith(("/tmp/", "/var/tmp/")):
            v.bind(place, path)
            v.allow(path, v.write & ~IOCTL_DEV)
    for path, content in plan.composition.files:
        above, area = v.governing(path)
        if area == "private" and above in areas:
            v.file(v.inside[above] + path[len(above) :], 0o444, content)


def _with_children(rules: Iterable[Rule]) -> set[str]:
    """Paths of denied directories below which something is shown again."""
    denied: set[str] = set()
    found: set[str] = set()
    for rule in rules:
        if rule.access is Access.DENY:
            denied.add(rule.path)
        elif denied:
            path = rule.path
            while path != "/":
                path = os.path.dirname(path)
                if path in denied:
                    found.add(path)
    return found


def _render_rule(v: _View, rule: Rule, pins: dict[str, tuple[int, int]], has_children: bool, ll: Landlock) -> None:
    path = rule.path
    _, area = v.governing(path)
    if rule.access is Access.DENY:
        if area in ("private", "mask") or path in v.plan.composition.absent:
            return  # not there in the first place
        v.area[path] = "mask"
        if has_children:
            v.masks += 1
            place = f".sandbox/mask{v.masks}"
            # Searchable, so that what is shown again below can be reached; nothing else is in it.
            v.mkdir(place, 0o555)
            v.inside[path] = place
            v.bind(place, path, READONLY)
        elif rule.show is not None:
            v.masks += 1
            place = f".sandbox/mask{v.masks}"
            v.file(place, rule.show[1], size=rule.show[0])
            v.bind(place, path, READONLY)
        else:
            v.inside[path] = ".sandbox/none"
            # A directory or a file: the launcher looks, since either may have come since this was compiled.
            # A socket may be gone by now. Anything else that was there a moment ago and is not now was moved, by a run
            # beside this one perhaps, to where no mask would be.
            flags = OPTIONAL if rule.why == SOCKET else 0
            v.mounts.append(_record(_MASK, flags, 0, 0, 0, b".sandbox/none", b".sandbox/empty", os.fsencode(path)))
    elif (area == "mask" and rule.reveals != "denied") or (area == "private" and not rule.reveals):
        return
    elif rule.rank < 0 and area != "rw":
        return  # a pin keeps what can be written from being moved; it makes nothing writable
    elif rule.access is Access.WRITE:
        if path in v.plan.composition.absent:
            return
        if area == "rw" and rule.pin:
            v.mounts.append(_record(_PROTECT, 0, 0, 0, 0, os.fsencode(path)))
        elif area != "rw":
            kind = _kind(path)
            pin = pins.get(path)
            if kind == 0:
                return  # a socket, or a part of a git directory, that is gone since
            directory = stat.S_ISDIR(kind)
            flags = 0 if directory else FLAT
            v.show(path, v.source(path, flags | (PINNED if pin else 0), pin or (0, 0)), directory)
        v.area[path] = "rw"
        v.allow(path, ll.write & ~IOCTL_DEV)
    elif area == "rw":
        if path in v.plan.composition.absent:
            return
        v.mounts.append(_record(_PROTECT, READONLY, 0, 0, 0, os.fsencode(path)))
        v.area[path] = "ro"
    elif area == "ro":
        v.area[path] = "ro"
    else:
        kind = _kind(path)
        if kind == 0 or stat.S_ISLNK(kind):
            return
        v.show(path, v.source(path, READONLY | (0 if stat.S_ISDIR(kind) else FLAT)), stat.S_ISDIR(kind))
        v.area[path] = "ro"


class Namespaces:
    """See the module's docstring. One object for the process; it holds nothing open."""

    name = "namespaces"
    kind = "LinuxNamespaces"

    def __init__(self, launcher: str, ll: Landlock, no_listener: str = "") -> None:
        self._launcher = launcher
        self._launcher_id = _pin(launcher)
        self._landlock = ll
        self._rendered: dict[int, tuple[Composition, tuple[object, ...], bytes, int]] = {}
        self.why_not: dict[Feature, str] = {}
        found = {
            Feature.WRITE_RULES,
            Feature.READ_RULES,
            Feature.PROTECTED_PATHS,
            Feature.PRIVATE_TMP,
            Feature.NETWORK_NONE,
            Feature.NO_PRIVILEGES,
            Feature.PROCESSES,
            Feature.TREE_KILL,
            Feature.LIMIT_FILE,
            Feature.LIMIT_FILES,
            Feature.LIMIT_WALL,
        }
        if ll.write:
            found.add(Feature.HOST_FIFOS)
        else:
            self.why_not[Feature.HOST_FIFOS] = ll.missing
        if ll.scoped:
            found.add(Feature.ABSTRACT_SOCKETS)
        else:
            reason = f"Landlock ABI {ll.abi} has no scopes; ABI 6 (Linux 6.12) has"
            self.why_not[Feature.ABSTRACT_SOCKETS] = ll.missing or reason
        try:
            compile_filter(())
        except Missing as gap:
            self.why_not[Feature.SYSTEM_CALLS] = f"{gap.reason}. {gap.advice}"
        else:
            found.add(Feature.SYSTEM_CALLS)
        # Masks cover the sockets that are known at the launch; those made later are refused where connect() is notified.
        self._listens = Feature.SYSTEM_CALLS in found and not no_listener
        if self._listens:
            found.add(Feature.UNIX_SOCKETS)
        else:
            self.why_not[Feature.UNIX_SOCKETS] = no_listener or "connect() cannot be watched without the filter"
        self.features = frozenset(found)
        self._filters = Feature.SYSTEM_CALLS in found
        # truncate("/proc/self/fd/0") would empty a file that was handed over for reading: Landlock sees it from ABI 3 on.
        self._shut_truncate = not ll.write & TRUNCATE

    def _program(self) -> int:
        """A descriptor of the launcher: the one that is kept, or a new one.

        Raises:
            SandboxSetupError: another program has taken its place.
            OSError: no file descriptors left.
        """
        if launcher_fd >= 0:
            try:
                if identity(launcher_fd) == self._launcher_id:
                    return launcher_fd
            except OSError:
                pass  # closed by the program; so is what else it did not know
        fd = apart(os.open(self._launcher, os.O_PATH | os.O_CLOEXEC), 24)
        if identity(fd) != self._launcher_id:
            os.close(fd)
            raise SandboxSetupError(
                "launcher", errno.ESTALE, self._launcher, "it is not the one that this process began with"
            )
        return fd

    def wrap(self, plan: Plan, report: Report) -> ChannelLaunch:
        """Turns a plan into a launch of our launcher.

        Raises:
            OSError: no file descriptors, or no memory, left.
        """
        ll = self._landlock
        composition = plan.composition
        key = (plan.pins, plan.surroundings.private_dirs)
        known = self._rendered.get(id(composition))
        if known is None or known[0] is not composition or known[1] != key:
            records, sources = render_view(plan, ll)
            if len(self._rendered) > 256:
                self._rendered.clear()
            known = self._rendered[id(composition)] = (composition, key, records, sources)
        policy = plan.policy
        command = plan.command
        body = [known[2]]
        if self._filters:
            body.append(_filter_record(tuple(policy.syscall_exceptions), self._listens, self._shut_truncate))
        body.append(_command_records(command, policy.limits))
        fds: list[int] = []
        channel = None
        # With an exception a command could leave something in the user namespace: a key, say.
        lease = slot.lease() if policy.network == "none" and not policy.syscall_exceptions else None
        try:
            program = self._program()
            if program != launcher_fd:
                fds.append(program)
            channel, child = socket_pair()
            number = apart(child.detach(), 28)
            fds.append(number)
            limit = policy.limits.memory_bytes
            text = _header(
                b"".join(body), _flags(plan) | (_LISTENER if self._listens else 0), command, known[3],
                policy.limits.wall_seconds, (ll.write, 0, ll.scoped), f"{limit}" if limit else "25%",
                lease.fd if lease is not None else -1,
            )  # fmt: skip
            send_plan(channel, text)
            return ChannelLaunch(
                plan=plan,
                report=report,
                argv=(b"sandboxed-subprocess %d" % number, *command.argv[1:]),
                executable=f"/proc/self/fd/{program}",
                child_fds=fds,
                pass_fds=(program, number),
                channel=channel,
                lease=lease,
            )
        except BaseException:
            if lease is not None:
                lease.end(-1)
            for fd in fds:
                os.close(fd)
            if channel is not None:
                channel.close()
            raise


def socket_pair() -> tuple[socket.socket, socket.socket]:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if a.fileno() <= 2:
        a = socket.socket(fileno=above_stdio(a.detach()))
    if b.fileno() <= 2:
        b = socket.socket(fileno=above_stdio(b.detach()))
    a.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return a, b


def _flags(plan: Plan) -> int:
    command = plan.command
    flags = _NETNS if plan.policy.network == "none" else 0
    flags |= _UID if command.uid is not None else 0
    flags |= _GID if command.gid is not None else 0
    flags |= _GROUPS if command.groups is not None else 0
    flags |= _SETSID if command.session else 0
    flags |= _SETPGID if command.group_leader else 0
    return flags


def _header(
    body: bytes, flags: int, command: Command, sources: int, wall: float | None,
    landlock_rights: tuple[int, int, int], tmpfs_size: str, namespace: int,
) -> bytes:  # fmt: skip
    return (
        _HEADER.pack(
            b"sbxplan3", _HEADER.size + len(body), os.getpid(), flags, command.uid or 0, command.gid or 0,
            _GRACE_MS, sources, namespace, min(max(1, round(wall * 1000)), 1 << 62) if wall is not None else 0,
            *landlock_rights, tmpfs_size.encode(), b"1048576",
        ) + body
    )  # fmt: skip


@functools.lru_cache(64)
def _filter_record(exceptions: tuple[str, ...], notify_connect: bool, shut_truncate: bool) -> bytes:
    program = compile_filter(exceptions, notify_connect, shut_truncate)
    return _record(_FILTER, 0, 0, len(program), 0, raw=program)


@functools.lru_cache(64)
def _command_records(command: Command, limits: Limits) -> bytes:
    # RLIMIT_CORE 1, not 0: a kernel that pipes cores to a handler, which runs outside and as root, ignores the 0.
    out = [_record(_ARGV0, 0, 0, 0, 0, command.argv[0]), _record(_RLIMIT, _RLIMIT_CORE, 0, 1, 1)]
    out += [_record(_EXEC, 0, 0, 0, 0, path) for path in command.candidates]
    out += [_record(_KEEP, fd) for fd in command.keep_fds]
    out += [_record(_GROUP, gid) for gid in command.groups or ()]
    if limits.file_bytes is not None:
        out.append(_record(_RLIMIT, 1, 0, limits.file_bytes, limits.file_bytes))
    if limits.open_files is not None:
        out.append(_record(_RLIMIT, 7, 0, limits.open_files, limits.open_files))
    return b"".join(out)


def detect() -> Namespaces:
    """Tries it: a sandbox with the launcher itself as its command.

    Raises:
        Missing: with the step that failed, its errno and the way out.
    """
    launcher = _native.locate()
    try:
        os.close(os.memfd_create("trial", os.MFD_CLOEXEC))
    except OSError as error:
        raise Missing(
            f"memfd_create() does not work here ({error.strerror}), by which the launcher gets its orders",
            "Linux 5.12 or later is needed, with nothing around this process that hides its system calls",
            transient=error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        ) from None
    ll = landlock()
    found = Namespaces(launcher, ll)
    failure = _try(found, launcher, ll)
    if failure is not None and failure.step == "seccomp" and failure.errno == errno.EBUSY:
        # One filter of a process can have a listener, and something around us has it: a container runtime.
        found = Namespaces(launcher, ll, "the calling process already has a seccomp listener (EBUSY)")
        failure = _try(found, launcher, ll)
    if failure is not None and failure.step == "clone" and os.environ.get("SANDBOXED_SUBPROCESS_ACTIVE"):
        raise Missing(
            f"this process is itself in a sandbox of sandboxed_subprocess, where no other can be made ({failure})",
            "What the outer sandbox holds, everything in it is held by: policy='danger-full-access' runs a command in it as"
            " it is, and nothing looser",
        )
    if failure is not None:
        raise missing(failure, launcher)
    return found


def _try(backend: Namespaces, launcher: str, ll: Landlock) -> SandboxSetupError | None:
    """None if it works, or what failed.

    Raises:
        Missing: nothing can be said, this time.
    """
    body = [_record(_BASE, 0, 0, 0, 0, b"/dev"), _record(_PROC, READONLY)]
    body += [_record(_ARGV0, 0, 0, 0, 0, b"sandboxed-subprocess-probe"), _record(_EXEC, 0, 0, 0, 0, os.fsencode(launcher))]
    if backend._filters:
        body.append(_filter_record((), backend._listens, backend._shut_truncate))
    flags = _NETNS | (_LISTENER if backend._listens else 0)
    try:
        channel, child = socket_pair()
    except OSError as error:
        raise Missing(f"the launcher could not be tried ({error})", transient=True) from None
    try:
        command = Command((b"probe",), ())
        header = _header(b"".join(body), flags, command, 0, None, (ll.write, 0, ll.scoped), "1m", -1)
        send_plan(channel, header)
        status = StdlibPopen(
            [b"sandboxed-subprocess %d" % child.fileno()],
            executable=launcher,
            env={},
            cwd="/",
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            pass_fds=(child.fileno(),),
        ).wait(10)
        child.close()
        record = channel.recv(8192)
    except (OSError, TimeoutExpired) as error:
        raise Missing(f"the launcher does not run ({error})", transient=True) from None
    finally:
        channel.close()
        child.close()
    if status == 0 and record[:4] == struct.pack("=I", 1):
        return None
    if len(record) >= 40 and record[:4] == struct.pack("=I", 2):
        number = struct.unpack_from("=i", record, 4)[0]
        return setup_error(record[8:40].rstrip(b"\0").decode(), number, os.fsdecode(record[40:]) or None)
    raise Missing(f"the launcher ended with {status} in a trial", transient=status < 0)
