"""Runs a command as if on a poorer Linux host. As root or not; x86_64 and aarch64.

    python degrade.py LACK[,LACK...] -- COMMAND...

no-landlock-enosys      the kernel has no Landlock: before Linux 5.13, or built without it
no-landlock-disabled    built in, but not among the active modules (lsm= at boot), as on many container hosts
landlock-abi=N          Landlock says that it is ABI N, and takes the arguments of that one only (needs a later one here)
docker                  the part of Docker's default filter that matters: no namespaces, no mounts
no-userns-eperm         user namespaces are refused (a sysctl of Debian's, a chroot, some security modules)
no-userns-enospc        user.max_user_namespaces is 0
ubuntu-apparmor         user namespaces can be made, and have no power: their uid_map cannot be written
no-seccomp              no filters
no-memfd, no-pidfd, no-clone3    these calls do not exist
foreign-listener        a filter of the process has a listener already: a container runtime watches it
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
ARCH = 0xC000003E if X86 else 0xC00000B7
CALLS = {
    "clone": (56, 220), "mount": (165, 40), "pivot_root": (155, 41), "prctl": (157, 167), "seccomp": (317, 277),
    "setns": (308, 268), "umount2": (166, 39), "unshare": (272, 97), "memfd_create": (319, 279), "accept4": (288, 242),
}  # fmt: skip
NR = {name: numbers[0 if X86 else 1] for name, numbers in CALLS.items()}
NR.update(
    clone3=435, fsconfig=431, fsmount=432, fsopen=430, fspick=433, landlock_add=445, landlock_create=444, landlock_restrict=446,
    mount_setattr=442, move_mount=429, open_tree=428, pidfd_open=434, pidfd_send_signal=424,
)  # fmt: skip
LANDLOCK = ("landlock_create", "landlock_add", "landlock_restrict")
MOUNTS = "unshare setns mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr".split()
NEWUSER, ANY_NAMESPACE = 0x10000000, 0x7E020000
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
NO_NEW_PRIVS, SET_SECCOMP = 38, 22

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06


def error(number):
    return 0x00050000 | number


def always(names, verdict):
    return [(NR[name], [(RETURN, 0, 0, verdict)]) for name in names]


def where(name, argument, test, value, verdict):
    """`verdict` where a comparison with an argument (its lower half) holds."""
    return [(NR[name], [(LOAD, 0, 0, 16 + 8 * argument), (test, 0, 1, value), (RETURN, 0, 0, verdict)])]


def rules(lack):
    """What the filter does: (system call, instructions)."""
    no = error(errno.ENOSYS)
    if lack == "no-landlock-enosys":
        return always(LANDLOCK, no)
    if lack == "no-landlock-disabled":
        return always(LANDLOCK, error(errno.EOPNOTSUPP))
    if lack.startswith("landlock-abi="):
        return always(LANDLOCK, NOTIFY)
    if lack == "foreign-listener":
        return always(["accept4"], NOTIFY)
    if lack == "docker":
        clone = where("clone", 0, ANY_BIT, ANY_NAMESPACE, error(errno.EPERM))
        return always(["clone3"], no) + clone + always(MOUNTS, error(errno.EPERM))
    if lack == "no-userns-eperm":
        refused = error(errno.EPERM)
        return (
            always(["clone3"], no) + where("clone", 0, ANY_BIT, NEWUSER, refused) + where("unshare", 0, ANY_BIT, NEWUSER, refused)
        )
    if lack == "no-seccomp":
        return always(["seccomp"], no) + where("prctl", 0, EQUAL, SET_SECCOMP, error(errno.EINVAL))
    single = {"no-memfd": ["memfd_create"], "no-pidfd": ["pidfd_open", "pidfd_send_signal"], "no-clone3": ["clone3"]}
    if lack in single:
        return always(single[lack], no)
    if lack in ("no-userns-enospc", "ubuntu-apparmor"):
        return []
    sys.exit(f"degrade.py: unknown lack {lack!r}")


def install(wanted, listener):
    """Applies the filter to this process; returns the listener's descriptor, or 0."""
    program = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, ARCH), (RETURN, 0, 0, ALLOW)]
    for number, body in wanted:
        body = body if body[0][0] == RETURN else [*body, (RETURN, 0, 0, ALLOW)]
        program += [(LOAD, 0, 0, 0), (EQUAL, 0, len(body), number), *body]
    program.append((RETURN, 0, 0, ALLOW))
    raw = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer)))
    if LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    found = LIBC.syscall(NR["seccomp"], 1, 8 if listener else 0, header)
    if found < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return found


# -- an older Landlock: which arguments it takes (docs.kernel.org/userspace-api/landlock.html, "Previous limitations") ----------


def decide(abi, number, arguments, pid):
    """(value, error, go on) for one call."""
    files = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}.get(abi, (1 << 16) - 1)
    net, scoped, size = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0), (8 if abi < 4 else 16 if abi < 6 else 24)
    no = (0, -errno.EINVAL, 0)
    if number == NR["landlock_create"]:
        attribute, length, flags = arguments[0], arguments[1], arguments[2] & 0xFFFFFFFF
        if flags:
            return (abi, 0, 0) if flags == 1 and not attribute and not length else no
        try:
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                raw = os.pread(memory.fileno(), min(length, 64), attribute)
        except OSError:
            return (0, 0, 1)  # in a user namespace of its own: not ours to read. It asks for what it was told before.
        if length > size and any(raw[size:]):
            return (0, -errno.E2BIG, 0)
        asked = struct.unpack("QQQ", raw[:size].ljust(24, b"\0"))
        return no if asked[0] & ~files or asked[1] & ~net or asked[2] & ~scoped else (0, 0, 1)
    if number == NR["landlock_add"]:
        return no if arguments[1] == 2 and abi < 4 else (0, 0, 1)
    return no if arguments[1] & 0xFFFFFFFF & ~(7 if abi >= 7 else 0) else (0, 0, 1)


def supervise(listener, abi):
    receive, send = 0xC0502100, 0xC0182101
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        for _, event in poller.poll():
            if event & select.POLLHUP and not event & select.POLLIN:
                return
        request = bytearray(80)
        try:
            fcntl.ioctl(listener, receive, request)
            ident, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", request)
            answer = (0, 0, 1) if abi is None else decide(abi, number, arguments, pid)
            fcntl.ioctl(listener, send, bytearray(struct.pack("=QqiI", ident, *answer)))
        except OSError as gone:
            if gone.errno not in (errno.ENOENT, errno.EINTR):
                return


# -- what is no filter ------------------------------------------------------------------------------------------------------


def no_more_user_namespaces():
    uid, gid = os.getuid(), os.getgid()
    if LIBC.unshare(NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def no_writes_in_proc():
    """By Landlock: files can be written everywhere but in /proc, uid_map among them (EACCES, as AppArmor gives)."""
    write_file = 2
    ruleset = LIBC.syscall(NR["landlock_create"], ctypes.byref((ctypes.c_uint64 * 1)(write_file)), 8, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "ubuntu-apparmor needs Landlock")
    for name in os.listdir("/"):
        if name != "proc":
            fd = os.open(f"/{name}", os.O_PATH)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", write_file, fd), 12)
            LIBC.syscall(NR["landlock_add"], ruleset, 1, rule, 0)
            os.close(fd)
    LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    if LIBC.syscall(NR["landlock_restrict"], ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def main():
    if "--" not in sys.argv:
        sys.exit(__doc__)
    at = sys.argv.index("--")
    lacks = [lack for argument in sys.argv[1:at] for lack in argument.split(",")]
    command = sys.argv[at + 1 :]
    if "no-userns-enospc" in lacks:
        no_more_user_namespaces()
    if "ubuntu-apparmor" in lacks:
        no_writes_in_proc()
    wanted = [rule for lack in lacks for rule in rules(lack)]
    abi = next((int(lack.partition("=")[2]) for lack in lacks if lack.startswith("landlock-abi=")), None)
    if abi is None and "foreign-listener" not in lacks:
        if wanted:
            install(wanted, False)
        os.execvp(command[0], command)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        listener = install(wanted, True)
        socket.send_fds(theirs, [b"listener"], [listener])
        theirs.recv(1)
        os.close(listener)
        theirs.close()
        os.execvp(command[0], command)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 16, 1)
    ours.send(b"go")
    ours.close()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: os.kill(pid, n))
    threading.Thread(target=supervise, args=(fds[0], abi), daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
