"""The filter, decided by an interpreter: what the kernel would answer, without a kernel."""

from __future__ import annotations

import errno
import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_subprocess.testing import needs

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="system call numbers below are those of x86_64")

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
X86_64, I386 = 0xC000003E, 0x40000003
NR = {
    "read": 0, "write": 1, "open": 2, "openat": 257, "mmap": 9, "ioctl": 16, "socket": 41, "connect": 42, "socketpair": 53,
    "clone": 56, "execve": 59, "chmod": 90, "fchmod": 91, "creat": 85, "ptrace": 101, "mknod": 133, "personality": 135,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "fchmodat": 268, "mknodat": 259,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "bpf": 321, "userfaultfd": 323, "keyctl": 250, "add_key": 248,
    "perf_event_open": 298, "open_by_handle_at": 304, "init_module": 175, "finit_module": 313, "kexec_load": 246, "reboot": 169,
    "swapon": 167, "settimeofday": 164, "clock_settime": 227, "acct": 163, "quotactl": 179, "iopl": 172, "syslog": 103,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438,
    "mount_setattr": 442, "fchmodat2": 452, "open_tree_attr": 467, "landlock_create_ruleset": 444, "seccomp": 317, "prctl": 157,
    "memfd_create": 319, "execveat": 322, "futex": 202, "fork": 57, "vfork": 58, "kill": 62, "sendto": 44, "recvfrom": 45,
}  # fmt: skip
HIGH = 1 << 32


def verdict(program, nr, *args, arch=X86_64):
    """What the kernel would answer for one system call (classic BPF without side effects; 64-bit arguments)."""
    instructions = list(struct.iter_unpack("=HBBI", program))
    data = struct.pack("=iIQ6Q", nr, arch, 0, *[a & (1 << 64) - 1 for a in (*args, 0, 0, 0, 0, 0, 0)][:6])
    accumulator = pc = 0
    while True:
        code, true, false, k = instructions[pc]
        pc += 1
        if code == 0x20:  # LD W ABS
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif code == 0x54:  # AND K
            accumulator &= k
        elif code == 0x05:  # JA
            pc += k
        elif code in (0x15, 0x25, 0x35, 0x45):  # JEQ, JGT, JGE, JSET
            met = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            pc += true if met else false
        elif code == 0x06:  # RET K
            return k
        else:
            raise ValueError(f"instruction {pc - 1}: unknown opcode {code:#x}")


@pytest.fixture(scope="module")
def program():
    needs("SYSTEM_CALLS")
    from sandboxed_subprocess._backends._seccomp import compile_filter

    return compile_filter(())


@pytest.mark.parametrize(
    "name",
    "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd mount umount2 pivot_root chroot setns bpf userfaultfd keyctl add_key "
    "perf_event_open open_by_handle_at init_module finit_module kexec_load reboot swapon settimeofday clock_settime acct quotactl iopl "
    "syslog open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr open_tree_attr".split(),
)
def test_what_a_sandboxed_program_has_no_business_with_is_eperm(program, name):
    """Whatever the arguments: none of these is needed by anything that should run here."""
    for arguments in ((), (1, 2, 3, 4, 5, 6), (-1,) * 6):
        assert verdict(program, NR[name], *arguments) == ERRNO | errno.EPERM


@pytest.mark.parametrize("name", "clone3 openat2 io_uring_setup io_uring_enter io_uring_register".split())
def test_probed_calls_are_absent_rather_than_forbidden(program, name):
    """glibc falls back from clone3 only on ENOSYS: with EPERM there would be no threads. io_uring passes socket filters."""
    assert verdict(program, NR[name], 8) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize(
    "name",
    "read write mmap execve execveat futex fork vfork kill memfd_create seccomp prctl connect sendto recvfrom pidfd_open landlock_create_ruleset".split(),
)
def test_ordinary_calls_pass(program, name):
    """A filter that breaks programs gets turned off. sendto included: asyncio wakes its loop with it."""
    assert verdict(program, NR[name], 3, 0, 0) == ALLOW


@pytest.mark.parametrize("flag", [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
@pytest.mark.parametrize("name", ["clone", "unshare"])
def test_no_new_namespace_of_any_kind(program, name, flag):
    """A user namespace gives back every capability inside it. High bits change nothing, as the kernel ignores them."""
    for value in (flag, flag | 17, flag | HIGH, flag | 0x7FFFFFFF << 32):
        assert verdict(program, NR[name], value) == ERRNO | errno.EPERM


def test_threads_and_processes_can_be_made(program):
    """The flags of pthread_create, of fork and of vfork."""
    for flags in (0x3D0F00, 0x01200011, 0x4111):
        assert verdict(program, NR["clone"], flags) == ALLOW
    assert verdict(program, NR["unshare"], 0x400) == ALLOW  # CLONE_FILES


@pytest.mark.parametrize("request_number", [0x5412, 0x541C])
def test_nothing_can_be_typed_into_a_terminal(program, request_number):
    """CVE-2017-5226; and CVE-2019-10063, the same with a high bit set, which passes a 64-bit compare."""
    for value in (request_number, request_number | HIGH, request_number | 0xFFFFFFFF << 32):
        assert verdict(program, NR["ioctl"], 0, value) == ERRNO | errno.EPERM
    assert verdict(program, NR["ioctl"], 0, 0x5401) == ALLOW  # TCGETS


def test_only_harmless_socket_families(program):
    """AF_VSOCK talks to the hypervisor, AF_ALG and AF_PACKET have long lists of CVEs; AF_UNIX and loopback have to work."""
    for family in range(46):
        wanted = ALLOW if family in (1, 2, 10, 16) else ERRNO | errno.EAFNOSUPPORT
        assert verdict(program, NR["socket"], family, 1, 0) == wanted, family
        # Odd values are refused too, rather than cut down as the kernel would.
        assert verdict(program, NR["socket"], family | HIGH, 1, 0) == ERRNO | errno.EAFNOSUPPORT, family
    for family in (46, 63, 64, 1 << 31, -1):
        assert verdict(program, NR["socket"], family, 1, 0) == ERRNO | errno.EAFNOSUPPORT, family
    for protocol in range(1, 23):
        assert verdict(program, NR["socket"], 16, 3, protocol) == ERRNO | errno.EAFNOSUPPORT
    assert verdict(program, NR["socketpair"], 1, 1, 0) == ALLOW


def test_multipath_tcp_is_refused(program):
    """It is checked by other hooks than TCP, so that rules on TCP ports do not see it."""
    for domain in (2, 10):
        assert verdict(program, NR["socket"], domain, 1, 262) == ERRNO | errno.EPROTONOSUPPORT
        assert verdict(program, NR["socket"], domain, 1, 262 | HIGH) == ERRNO | errno.EPROTONOSUPPORT
        assert verdict(program, NR["socket"], domain, 1, 6) == ALLOW


@pytest.mark.parametrize("bit", [0o4000, 0o2000])
def test_no_way_to_make_a_set_id_file(program, bit):
    """It would be waiting in the workspace for another user of the host."""
    eperm = ERRNO | errno.EPERM
    for name, at in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1), ("mknod", 1), ("mknodat", 2)):
        for mode in (bit | 0o755, bit | 0o755 | HIGH):
            assert verdict(program, NR[name], *[0] * at, mode) == eperm, name
        assert verdict(program, NR[name], *[0] * at, 0o755) == ALLOW, name
    for name, at in (("open", 1), ("openat", 2)):
        assert verdict(program, NR[name], *[0] * at, 0o101, bit | 0o755) == eperm
        assert verdict(program, NR[name], *[0] * at, 0o20200001, bit | 0o600) == eperm  # O_TMPFILE
        # Without O_CREAT the mode is whatever was in the register.
        assert verdict(program, NR[name], *[0] * at, 0o1, bit | 0o755) == ALLOW


def test_no_device_nodes(program):
    """Mounts are nodev already; each layer is there for the case that another one fails."""
    for kind in (0o020000, 0o060000):
        assert verdict(program, NR["mknod"], 0, kind | 0o666) == ERRNO | errno.EPERM
        assert verdict(program, NR["mknodat"], 0, 0, kind | 0o666 | HIGH) == ERRNO | errno.EPERM
    for kind in (0, 0o100000, 0o010000, 0o140000):
        assert verdict(program, NR["mknod"], 0, kind | 0o666) == ALLOW


def test_personality_can_turn_off_randomisation_and_nothing_worse(program):
    """READ_IMPLIES_EXEC and the like weaken a process; setarch -R and sanitizers turn off randomisation."""
    for value in (0, 0x8, 0x20000, 0x20008, 0x40000):
        assert verdict(program, NR["personality"], value) == ALLOW, hex(value)
    for value in (0x400000, 0x100000, 0x200000, 0x440000, 0x80400000, 0xFFFFFFFE, 0xFFFFFFFF, 0x7FFFFFFF, 0x400000 | HIGH):
        assert verdict(program, NR["personality"], value) == ERRNO | errno.EPERM, hex(value)


def test_where_landlock_does_not_see_truncation_the_filter_shuts_it():
    """Before ABI 3 it is silent about truncate(2) and about O_TRUNC in an open() that does not ask for write access:
    with O_RDONLY, and with the 3 that is neither reading nor writing."""
    needs("SYSTEM_CALLS")
    from sandboxed_subprocess._backends._seccomp import compile_filter

    shut, eperm = compile_filter((), False, True), ERRNO | errno.EPERM
    assert verdict(shut, 76, 0, 5) == eperm  # truncate
    assert verdict(shut, 77, 0, 5) == ALLOW  # ftruncate
    for name, at in (("open", 1), ("openat", 2)):
        for flags in (0o1000, 0o1003, 0o101000, 0o2001000):
            assert verdict(shut, NR[name], *[0] * at, flags) == eperm, oct(flags)
        for flags in (0, 1, 2, 3, 0o1001, 0o1101, 0o1002, 0o1102, 0o2000):
            assert verdict(shut, NR[name], *[0] * at, flags) == ALLOW, oct(flags)
    assert verdict(compile_filter(()), 76, 0, 5) == ALLOW


def test_other_abis_do_not_slip_through(program):
    """The numbers of i386 and x32 mean other calls; a filter that only looks at numbers allows the wrong ones."""
    assert verdict(program, 21, arch=I386) == KILL  # mount(2) on i386
    assert verdict(program, 0x40000000 | NR["mount"]) == KILL
    assert verdict(program, 0x40000000 | NR["read"]) == KILL


@pytest.mark.parametrize("name, number", [("ptrace", 101), ("perf_event", 298), ("keyring", 250)])
def test_a_named_exception_opens_exactly_what_it_names(program, name, number):
    """People debug and trace in sandboxes; that must not cost them the rest of the filter."""
    from sandboxed_subprocess._backends._seccomp import compile_filter

    opened = compile_filter((name,))
    assert verdict(opened, number) == ALLOW
    for other in ("mount", "bpf", "setns", "clone3"):
        assert verdict(opened, NR[other]) == verdict(program, NR[other])


def test_the_program_stays_small(program):
    """The kernel reads it at every launch: 4096 instructions are its limit, and each one costs about half a microsecond."""
    assert len(program) // 8 < 320


@pytest.mark.parametrize("sockets", ["none", "internet", "streams"])
def test_nothing_has_an_address_where_the_hosts_is_the_only_network(sockets):
    """Without a network namespace a unix socket could be connected to the host's, and a datagram sent to any name of it, by one
    of a pair as well. With "none" there is no socket at all: Landlock's TCP rules do not see UDP, fast open or MPTCP."""
    needs("SYSTEM_CALLS")
    from sandboxed_subprocess._backends._seccomp import compile_filter

    program = compile_filter((), False, False, sockets)
    for family in range(64):
        wanted = {"none": (), "internet": (2, 10, 16), "streams": (1, 2, 10, 16)}[sockets]
        assert (verdict(program, NR["socket"], family, 1, 0) == ALLOW) == (family in wanted), family
    for kind in (2, 2 | 0o2000000, 2 | 0o4000, 2 | HIGH, 3, 3 | 0o2000000):
        assert verdict(program, NR["socket"], 1, kind, 0) != ALLOW
        assert verdict(program, NR["socketpair"], 1, kind, 0) == ERRNO | errno.EPERM
        if sockets != "none":
            assert verdict(program, NR["socket"], 2, kind, 0) == ALLOW
    for kind in (1, 5, 1 | 0o2000000):
        assert verdict(program, NR["socketpair"], 1, kind, 0) == ALLOW


@pytest.mark.parametrize("sockets", ["none", "internet"])
def test_processes_of_the_host_are_not_touched_where_they_could_be_named(sockets):
    """Shared memory and queues by key, and the scheduling of everything that belongs to the same user."""
    needs("SYSTEM_CALLS")
    from sandboxed_subprocess._backends._seccomp import compile_filter

    program, own = compile_filter((), False, False, sockets), compile_filter(())
    for number in (29, 30, 64, 68, 240, 256, 279):  # shmget shmat semget msgget mq_open migrate_pages move_pages
        assert verdict(program, number, 1, 2, 3) == ERRNO | errno.EPERM
    for number in (142, 144, 203, 314):  # sched_setparam sched_setscheduler sched_setaffinity sched_setattr
        assert verdict(program, number, 0, 0) == ALLOW and verdict(program, number, 4711, 0) == ERRNO | errno.EPERM
    for number, user in ((141, 2), (251, 3)):  # setpriority, ioprio_set
        assert verdict(program, number, 0, 0, 5) == ALLOW
        assert verdict(program, number, 0, 1, 5) == verdict(program, number, user, 0, 5) == ERRNO | errno.EPERM
    assert verdict(own, 64, 1, 2, 3) == verdict(own, 203, 4711, 0) == ALLOW


NOTIFY = 0x7FC00000
_ARGUMENT = st.one_of(st.integers(0, 64), st.integers(0, (1 << 64) - 1), st.sampled_from([0o4755, 0o2755, 0o20000, 0x5412, 1 << 28, 0x20000]))


@given(st.integers(0, 470), st.lists(_ARGUMENT, min_size=6, max_size=6))
def test_what_is_told_is_what_would_be_refused_and_nothing_else(number, arguments):
    """The same filter with another answer: of the calls that are allowed, none comes by (it would cost 10 µs each); a probe for a
    feature stays the plain error that programs know."""
    needs("SYSTEM_CALLS")
    from sandboxed_subprocess._backends._seccomp import compile_filter

    plain = verdict(compile_filter(()), number, *arguments)
    told = verdict(compile_filter((), True), number, *arguments)
    assert told == (NOTIFY if plain == ERRNO | errno.EPERM or number == NR["connect"] else plain)


def test_where_writing_is_counted_space_is_not_reserved():
    """fallocate(2) with its default, and the older requests of ioctl(2); but what gives space back is allowed."""
    needs("SYSTEM_CALLS")
    from sandboxed_subprocess._backends._seccomp import compile_filter

    counted, plain = compile_filter((), count_writes=True), compile_filter(())
    for mode in (0, 1, 0x10, 0x11, 0x20, 0x40):
        assert verdict(counted, 285, 3, mode) == ERRNO | errno.EOPNOTSUPP and verdict(plain, 285, 3, mode) == ALLOW
    for mode in (3, 8):
        assert verdict(counted, 285, 3, mode) == ALLOW
    for request in (0x40305828, 0x4030582A, 0x40305839):
        assert verdict(counted, 16, 3, request) == ERRNO | errno.EOPNOTSUPP and verdict(plain, 16, 3, request) == ALLOW


@given(st.integers(0, 470), st.lists(_ARGUMENT | st.integers(0, 0o7777) | st.integers(0, 0o177777), min_size=6, max_size=6))
def test_who_observes_knows_what_is_to_be_refused(number, arguments):
    """A call that is handed over goes on unless its conditions hold: then, and only then, the filter without an observer refuses it.
    Whatever else the filter says stays as it is."""
    needs("SYSTEM_CALLS")
    from sandboxed_subprocess._backends._seccomp import compile_filter, compile_observing

    program, calls = compile_observing((), True, True, "own", False, False, True)
    plain = verdict(compile_filter((), False, True), number, *arguments)
    told = verdict(compile_filter((), True, True), number, *arguments)
    observed = {call.number: call for call in calls}
    if number not in observed:
        assert verdict(program, number, *arguments) == told
        return
    assert verdict(program, number, *arguments) == NOTIFY
    refused = any(all(arguments[c.argument] & c.mask == c.value for c in group) for group in observed[number].refused)
    assert plain == (ERRNO | errno.EPERM if refused else ALLOW)
