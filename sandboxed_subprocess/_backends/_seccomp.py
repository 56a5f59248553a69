"""The system call filter, compiled with libseccomp through `pyseccomp`. Shared by the Linux backends.

Default allow, with a list of what a sandboxed program has no business with. An allow-list would break programs with
every new libc; what matters is that each entry of this list is really shut, on every ABI and with every argument.
Arguments are compared in 32 bits, as the kernel uses them: a filter that compares 64 is passed by setting a high bit.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import errno
import functools
import importlib
import os
import threading
from typing import Any, NamedTuple

from .._errors import Missing

_INT = 0xFFFFFFFF

# Refused with EPERM, whatever the arguments.
DENIED = """mount umount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
    init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load kexec_file_load
    bpf userfaultfd setns reboot swapon swapoff settimeofday clock_settime clock_settime64 clock_adjtime
    clock_adjtime64 adjtimex stime acct quotactl quotactl_fd iopl ioperm syslog open_by_handle_at nfsservctl vhangup
    sethostname setdomainname lookup_dcookie fanotify_init vm86 vm86old modify_ldt uselib _sysctl sysfs ustat
    pidfd_getfd kcmp""".split()
# Newer than some libseccomp in use: by number, which is the same on every architecture since 5.0.
DENIED_NUMBERS = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "ptrace": ("ptrace", "process_vm_readv", "process_vm_writev"),
    "perf_event": ("perf_event_open",),
    "keyring": ("add_key", "request_key", "keyctl"),
}
# Answered with ENOSYS: programs probe for these and fall back (glibc falls back from clone3 only on ENOSYS).
# clone3 and openat2 keep their arguments in memory, where a filter cannot see them.
# What io_uring is asked to do never meets the filter, connect() included.
ABSENT = {"clone3": 435, "openat2": 437, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}

# The kernel translates the program several times at every launch, about 0.5 µs for each instruction: where everything
# above a value can go, one comparison does. It is made in 64 bits, which refuses odd values that the kernel would have
# cut down to allowed ones, and never lets one through.
_CLONE_NEWNS = 0x00020000
_CLONE_NEWTIME = 0x80  # unshare only: for clone these bits are the exit signal
# Above these: CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; for clone CLONE_IO too, which nobody needs.
_LAST_CLONE_FLAG = 0x01FFFFFF
_LAST_UNSHARE_FLAG = 0x0007FFFF
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK (NETLINK_ROUTE only)
_F_SETLEASE = 1024
_IPPROTO_IPV6, _IPV6_FLOWLABEL_MGR = 41, 32
_OTHER_TCP = (262, 256)  # MPTCP and SMC: stream sockets that rules for TCP do not see
# Above these are the flags of linux/personality.h that weaken a process (READ_IMPLIES_EXEC, MMAP_PAGE_ZERO, ...), and
# 0xffffffff, which asks for the current value. UNAME26 and ADDR_NO_RANDOMIZE (0x40000) are below.
_LAST_PERSONALITY = 0x7FFFF
_SETID = (0o4000, 0o2000)
_S_IFMT, _S_IFCHR, _S_IFBLK = 0o170000, 0o020000, 0o060000
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000
_O_ACCMODE, _O_TRUNC = 3, 0o1000

_FREES_SPACE = 0x02 | 0x08  # FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE
_PR_SET_DUMPABLE = 4
_RESERVE_SPACE = (0x40305828, 0x4030582A, 0x40305839)  # FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE (linux/falloc.h)

# What calls that name a file do with it, as `_native/observe.h` numbers it, and which arguments say where: a directory's
# descriptor, the path, flags. openat2 is not among them, since it is absent, nor is execve: init, which would start who looks,
# waits for the first one.
_OPENS, _CREATES, _MAKES, _REPLACES, _REMOVES, _WRITES, _MARKS, _MARKS_ITSELF = range(1, 9)
_NO = 255
OBSERVED: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "open": ((_OPENS, _NO, 0, 1),), "openat": ((_OPENS, 0, 1, 2),), "creat": ((_CREATES, _NO, 0, _NO),),
    "mkdir": ((_MAKES, _NO, 0, _NO),), "mkdirat": ((_MAKES, 0, 1, _NO),),
    "mknod": ((_MAKES, _NO, 0, _NO),), "mknodat": ((_MAKES, 0, 1, _NO),),
    "symlink": ((_MAKES, _NO, 1, _NO),), "symlinkat": ((_MAKES, 1, 2, _NO),),
    "link": ((_MAKES, _NO, 1, _NO),), "linkat": ((_MAKES, 2, 3, _NO),),
    "rename": ((_REMOVES, _NO, 0, _NO), (_REPLACES, _NO, 1, _NO)),
    "renameat": ((_REMOVES, 0, 1, _NO), (_REPLACES, 2, 3, _NO)),
    "renameat2": ((_REMOVES, 0, 1, _NO), (_REPLACES, 2, 3, _NO)),
    "unlink": ((_REMOVES, _NO, 0, _NO),), "unlinkat": ((_REMOVES, 0, 1, _NO),), "rmdir": ((_REMOVES, _NO, 0, _NO),),
    "truncate": ((_WRITES, _NO, 0, _NO),),
    "chmod": ((_MARKS, _NO, 0, _NO),), "fchmodat": ((_MARKS, 0, 1, _NO),), "fchmodat2": ((_MARKS, 0, 1, 3),),
    "chown": ((_MARKS, _NO, 0, _NO),), "lchown": ((_MARKS_ITSELF, _NO, 0, _NO),), "fchownat": ((_MARKS, 0, 1, 4),),
    "utime": ((_MARKS, _NO, 0, _NO),), "utimes": ((_MARKS, _NO, 0, _NO),), "futimesat": ((_MARKS, 0, 1, _NO),),
    "utimensat": ((_MARKS, 0, 1, 3),),
    "setxattr": ((_MARKS, _NO, 0, _NO),), "lsetxattr": ((_MARKS_ITSELF, _NO, 0, _NO),),
    "removexattr": ((_MARKS, _NO, 0, _NO),), "lremovexattr": ((_MARKS_ITSELF, _NO, 0, _NO),),
    "fchmod": ((_MARKS, 0, _NO, _NO),), "fchown": ((_MARKS, 0, _NO, _NO),),
    "setxattrat": ((_MARKS, 0, 1, 2),), "removexattrat": ((_MARKS, 0, 1, 2),), "file_setattr": ((_MARKS, 0, 1, 4),),
    "fsetxattr": ((_MARKS, 0, _NO, _NO),), "fremovexattr": ((_MARKS, 0, _NO, _NO),),
}  # fmt: skip
_OBSERVED_NUMBERS = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469}

_import_lock = threading.Lock()


class _Masked(NamedTuple):
    """The bits `mask` of an argument are `value`."""

    argument: int
    mask: int
    value: int


class Observed(NamedTuple):
    """A call that is handed to whoever observes it.

    Attributes:
        how: what it does, and its arguments, for each file that it names.
        refused: groups of conditions; where all of one hold, the call is refused, as it would be without an observer.
    """

    number: int
    how: tuple[tuple[int, int, int, int], ...]
    refused: tuple[tuple[_Masked, ...], ...]


def _pyseccomp() -> Any:
    """The module, without what its import does: `ctypes.util.find_library` runs gcc and ldconfig from PATH.

    Raises:
        Missing: libseccomp cannot be loaded.
    """
    import ctypes.util  # 3 ms, which an import of the package should not cost; before the first command, as all of this

    original = ctypes.util.find_library

    def find_library(name: str) -> str | None:
        return {"seccomp": "libseccomp.so.2", "c": None}[name] if name in ("seccomp", "c") else original(name)

    with _import_lock:
        ctypes.util.find_library = find_library
        try:
            return importlib.import_module("pyseccomp")
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            raise Missing(
                f"the system call filter cannot be compiled ({error})",
                "Install libseccomp 2 (Debian, Ubuntu: apt install libseccomp2) and pip install pyseccomp",
            ) from None
        finally:
            ctypes.util.find_library = original


def compile_filter(
    exceptions: tuple[str, ...] = (), notify: bool = False, shut_truncate: bool = False, sockets: str = "own",
    count_writes: bool = False, look_into: bool = False,
) -> bytes:  # fmt: skip
    """A BPF program: an array of struct sock_filter (linux/filter.h) in native byte order.

    Args:
        sockets: "own" where the network and the processes are the sandbox's own, and "streams" where besides no datagrams may
            be sent by unix sockets; "none" or "internet" where those of the host would be in reach, so that nothing may touch
            them: then there are no unix sockets but pairs.

    With `notify`, connect() is handed to the holder of the filter's listener, and so is what would be refused with EPERM: the
    holder refuses it, and says so. With `shut_truncate`, a file can be
    emptied only through a descriptor that is open for writing: for kernels whose Landlock does not see truncate(2). With
    `count_writes`, space is taken by writing only, since that is what the kernel counts: programs that ask for it beforehand are
    told that this file system cannot do so (EOPNOTSUPP), and write. With `look_into`, no process can hide from init what it uses.

    Raises:
        Missing: libseccomp cannot be loaded, or there is nothing here that it could compile for.
    """
    return compile_observing(exceptions, notify, shut_truncate, sockets, count_writes, look_into, False)[0]


@functools.lru_cache(64)
def compile_observing(
    exceptions: tuple[str, ...], notify: bool, shut_truncate: bool, sockets: str, count_writes: bool, look_into: bool,
    observe: bool,
) -> tuple[bytes, tuple[Observed, ...]]:  # fmt: skip
    """As `compile_filter`; with `observe`, calls that name a file are handed to the holder of the listener too.

    Returns:
        The program; and of each such call what the holder has to know, also when it has to refuse it: the filter cannot tell it
        for which of its rules it was asked.
    """
    assert notify or not observe
    scmp = _pyseccomp()
    try:
        return _compile(scmp, exceptions, notify, shut_truncate, sockets, count_writes, look_into, observe)
    except OSError as error:
        raise Missing(
            f"no system call filter for this kernel ({error.strerror})",
            "Something around this process, or the kernel's configuration, takes seccomp filters away (CONFIG_SECCOMP_FILTER)",
        ) from None


def _compile(
    scmp: Any, exceptions: tuple[str, ...], notify: bool, shut_truncate: bool, sockets: str, count_writes: bool,
    look_into: bool, observe: bool,
) -> tuple[bytes, tuple[Observed, ...]]:  # fmt: skip
    f = scmp.SyscallFilter(scmp.ALLOW)
    eperm = scmp.NOTIFY if notify else scmp.ERRNO(errno.EPERM)

    def number(name: str, fallback: int | None = None) -> int | None:
        """The system call's number here; None where this architecture does not have it."""
        try:
            resolved = int(scmp.resolve_syscall(scmp.system_arch(), name))
        except (ValueError, OSError):
            return fallback
        # libseccomp gives pseudo numbers (below -1) to calls that exist on other architectures only.
        return resolved if resolved >= 0 else fallback

    by_observer: dict[str, list[tuple[_Masked, ...]]] = {name: [] for name in OBSERVED} if observe else {}

    def refuse(action: int, name: str, *arguments: Any, fallback: int | None = None) -> None:
        found = number(name, fallback)
        if found is None:
            return
        if name in by_observer:
            assert action == eperm and all(isinstance(argument, _Masked) for argument in arguments)
            by_observer[name].append(arguments)
            return
        compared = [scmp.Arg(a[0], scmp.MASKED_EQ, *a[1:]) if isinstance(a, _Masked) else a for a in arguments]
        f.add_rule(action, found, *compared)

    def equal(argument: int, value: int, mask: int = _INT) -> _Masked:
        return _Masked(argument, mask, value)

    denied = list(DENIED)
    for name, calls in EXCEPTIONS.items():
        if name not in exceptions:
            denied += calls
    for name in dict.fromkeys((*denied, *DENIED_NUMBERS)):
        if "ptrace" in exceptions and name in ("kcmp", "pidfd_getfd"):
            continue
        refuse(eperm, name, fallback=DENIED_NUMBERS.get(name))
    enosys = scmp.ERRNO(errno.ENOSYS)
    for name, fallback in ABSENT.items():
        refuse(enosys, name, fallback=fallback)

    if notify:
        refuse(scmp.NOTIFY, "connect")

    def above(argument: int, value: int) -> Any:
        return scmp.Arg(argument, scmp.GT, value)

    refuse(eperm, "clone", above(0, _LAST_CLONE_FLAG))
    refuse(eperm, "clone", equal(0, _CLONE_NEWNS, _CLONE_NEWNS))
    refuse(eperm, "unshare", above(0, _LAST_UNSHARE_FLAG))
    refuse(eperm, "unshare", equal(0, _CLONE_NEWNS, _CLONE_NEWNS))
    refuse(eperm, "unshare", equal(0, _CLONE_NEWTIME, _CLONE_NEWTIME))

    # Typing into a terminal that is shared with the caller (CVE-2017-5226).
    for request in (0x5412, 0x541C):  # TIOCSTI, TIOCLINUX
        refuse(eperm, "ioctl", equal(1, request))

    # A lease on a file that can be read makes everybody else's open() of it wait: the host's, too (fcntl(2), F_SETLEASE).
    refuse(eperm, "fcntl", equal(1, _F_SETLEASE))
    # Flow labels outlive the socket that made them, and would be found by the next run in the same namespace (ipv6(7)).
    refuse(eperm, "setsockopt", equal(1, _IPPROTO_IPV6), equal(2, _IPV6_FLOWLABEL_MGR))

    family = scmp.ERRNO(errno.EAFNOSUPPORT)
    if sockets == "none":
        refuse(family, "socket")
    else:
        families = _FAMILIES[1:] if sockets == "internet" else _FAMILIES
        for value in range(max(families)):
            if value not in families:
                refuse(family, "socket", equal(0, value))
        refuse(family, "socket", above(0, max(families)))
        refuse(family, "socket", equal(0, 16), scmp.Arg(2, scmp.NE, 0))
        # The kernel sees int; what the line above passes as "not 0" by its high half only is still NETLINK_ROUTE.
        for domain in (2, 10):
            for protocol in _OTHER_TCP:
                refuse(scmp.ERRNO(errno.EPROTONOSUPPORT), "socket", equal(0, domain), equal(2, protocol))
    refuse(family, "socketpair", equal(0, 30))  # AF_TIPC, the only other family that has pairs
    if sockets != "own":
        # A datagram can be sent to any name, also by one of a pair, without a connect().
        for name in ("socketpair",) if sockets == "none" else ("socket", "socketpair"):
            for kind in (_SOCK_DGRAM, _SOCK_RAW):  # the kernel makes a datagram socket of a raw one (unix(7))
                refuse(eperm, name, equal(0, 1), equal(1, kind, _SOCK_TYPE_MASK))
    if sockets in ("none", "internet"):
        _refuse_shared(scmp, refuse)

    # The limits of other processes: init has the command's uid, and must not be starved of descriptors by it.
    refuse(eperm, "prlimit64", scmp.Arg(0, scmp.NE, 0))

    # A set-user-id file in a writable root would be waiting for another user of the host.
    for bit in _SETID:
        for name, argument in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mknod", 1), ("mknodat", 2)):
            refuse(eperm, name, equal(argument, bit, bit))
        refuse(eperm, "fchmodat2", equal(2, bit, bit), fallback=452)
        refuse(eperm, "creat", equal(1, bit, bit))
        for create in (_O_CREAT, _O_TMPFILE):
            refuse(eperm, "open", equal(1, create, create), equal(2, bit, bit))
            refuse(eperm, "openat", equal(2, create, create), equal(3, bit, bit))
    for kind in (_S_IFCHR, _S_IFBLK):
        refuse(eperm, "mknod", equal(1, kind, _S_IFMT))
        refuse(eperm, "mknodat", equal(2, kind, _S_IFMT))

    if shut_truncate:
        refuse(eperm, "truncate")
        # Without write access (0), or with the 3 that grants neither kind, Landlock sees no writing in an open().
        for access in (0, _O_ACCMODE):
            refuse(eperm, "open", equal(1, _O_TRUNC | access, _O_TRUNC | _O_ACCMODE))
            refuse(eperm, "openat", equal(2, _O_TRUNC | access, _O_TRUNC | _O_ACCMODE))

    if count_writes:
        unsupported = scmp.ERRNO(errno.EOPNOTSUPP)
        refuse(unsupported, "fallocate", equal(1, 0, _FREES_SPACE))
        for request in _RESERVE_SPACE:
            refuse(unsupported, "ioctl", equal(1, request))
    if look_into:
        # Whoever may not be dumped cannot be looked into by init either, where that is no more than its user. Agents for keys
        # ask for it, and some end if they do not get it: so it is said to be done.
        refuse(scmp.ERRNO(0), "prctl", equal(0, _PR_SET_DUMPABLE), equal(1, 0))

    refuse(eperm, "personality", above(0, _LAST_PERSONALITY))

    observed = []
    for name, refused in by_observer.items():
        found = number(name, _OBSERVED_NUMBERS.get(name))
        if found is not None:
            f.add_rule(scmp.NOTIFY, found)
            observed.append(Observed(found, OBSERVED[name], tuple(refused)))

    f.set_attr(scmp.Attr.ACT_BADARCH, scmp.KILL_PROCESS)
    try:
        f.set_attr(scmp.Attr.CTL_OPTIMIZE, 2)
    except (ValueError, OSError, AttributeError):
        pass  # libseccomp before 2.5: a linear program with the same verdicts
    return _export(f), tuple(observed)


# What reaches processes and objects of the host by other ways than files and sockets.
_SHARED = """shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl ipc mq_open mq_unlink
    move_pages migrate_pages process_madvise process_mrelease""".split()
_SOCK_DGRAM, _SOCK_RAW, _SOCK_TYPE_MASK = 2, 3, 0xF


def _refuse_shared(scmp: Any, refuse: Any) -> None:
    """System V and POSIX message queues of the host, and the scheduling of its processes."""
    eperm = scmp.ERRNO(errno.EPERM)
    for name in _SHARED:
        refuse(eperm, name)
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        refuse(eperm, name, scmp.Arg(0, scmp.NE, 0))
    for name in ("setpriority", "ioprio_set"):
        # Of oneself (0), and not of all processes of the user (PRIO_USER is 2, IOPRIO_WHO_USER 3).
        refuse(eperm, name, scmp.Arg(1, scmp.NE, 0))
        refuse(eperm, name, scmp.Arg(0, scmp.GT, 1))


def name_of(number: int) -> str:
    """A system call's name, or its number where libseccomp does not know one."""
    try:
        scmp = _pyseccomp()
        name = scmp.resolve_syscall(scmp.system_arch(), number)
    except (Missing, ValueError, OSError):
        return str(number)
    return name.decode() if isinstance(name, bytes) else str(name)


def _export(f: Any) -> bytes:
    fd = os.memfd_create("filter", os.MFD_CLOEXEC)
    with open(fd, "w+b", buffering=0) as file:
        f.export_bpf(file)
        file.seek(0)
        return file.read()
