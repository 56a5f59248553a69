"""Privileges inside: capabilities, mounts, namespaces, set-user-id programs, foreign system call numbers."""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import signal
import stat
import subprocess
import sys

import pytest
from conftest import ROOT, TIER
from helpers.escapes_probe import PROBE, outcomes


def mounts_below(place):
    return [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if str(place) in line]


def test_no_capability_is_left_for_root_or_anyone(sh):
    """bwrap keeps every capability for a root caller, so that each read-only mount can be undone (bubblewrap#287)."""
    result = sh("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    status = dict(line.split(":\t") for line in result.stdout.splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if name == "CapBnd" and TIER == "landlock" and not ROOT:
            continue  # what bounds a set-user-id program, of which no_new_privs leaves none; only a privileged process can drop it
        assert int(status[name], 16) == 0, name
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize(
    "attack",
    [
        "mount -o remount,rw,bind / && touch {outside}/made",
        "mount -o remount,rw / && touch {outside}/made",
        "mount --bind {outside} {ws} && touch {ws}/made",
        "mount -t tmpfs none {outside} && touch {outside}/made",
        "mount --make-rshared /",
        "umount {ws} || umount -l {ws}",
        "umount -l /tmp",
        "umount -l /proc",
        "unshare -Ur true",
        "unshare -Urm sh -c 'mount -o remount,rw,bind /; touch {outside}/made'",
        "unshare -U true",
        "unshare -m true",
        "unshare -p -f true",
        "unshare -n true",
        "nsenter -t 1 -a true",
        "nsenter -t $$ -m true",
        "chroot / true",
        "chroot /proc/1/root touch {outside}/made",
        "mknod {ws}/made b 8 0",
        "mknod {ws}/made c 1 3",
        "chown 12345 {ws}/own",
        "chgrp 12345 {ws}/own",
        "setcap cap_sys_admin+ep {ws}/own",
        "hostname escaped",
        "date -s 2001-01-01",
        "sysctl -w kernel.core_pattern=/tmp/x || false",
    ],
)
def test_a_tool_of_the_administrator_fails(attack, sh, ws, outside):
    """Agents mostly run in containers as root, where these tools work unless something takes the power away."""
    (ws / "own").write_text("")
    tool = attack.split()[0]
    if shutil.which(tool, path="/usr/sbin:/sbin:" + os.environ["PATH"]) is None:
        pytest.skip(f"no {tool}")
    before = mounts_below(ws.parent), (ws / "own").stat().st_uid, os.uname().nodename
    result = sh("PATH=$PATH:/usr/sbin:/sbin\necho begin\n" + attack.format(ws=ws, outside=outside))
    assert result.stdout.startswith("begin\n")
    assert result.returncode not in (0, 127), (result.stdout, result.stderr)
    assert list(outside.iterdir()) == []
    assert not (ws / "made").exists()
    assert (mounts_below(ws.parent), (ws / "own").stat().st_uid, os.uname().nodename) == before


CALLS = PROBE + """
# name: x86-64, aarch64 (the same everywhere since 424)
calls = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "swapon": (167, 224), "reboot": (169, 142), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "acct": (163, 89), "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "syslog": (103, 116), "sethostname": (170, 161), "fanotify_init": (300, 262),
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467,
}
for name, number in calls.items():
    print(name, call(number if isinstance(number, int) else number[0 if X86 else 1], 0, 0, 0, 0, 0, 0))
"""


def test_system_calls_that_change_the_view_are_refused_by_number(py):
    """A list by name misses what the C library of the day has no name for: the mount calls of Linux 5.2 and 5.12.

    With these arguments each of them would answer EFAULT, EINVAL or EBADF if it were let in.
    """
    found = outcomes(py(CALLS))
    assert len(found) > 35
    # A call that this kernel does not have at all is as good.
    assert {name: answer for name, answer in found.items() if answer != "EPERM"} == {}


NAMESPACES = PROBE + """
import signal, threading
flags = {"mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000,
         "net": 0x40000000}
def clone(bits):
    pid = libc.syscall(ctypes.c_long(56 if X86 else 220), word(bits | signal.SIGCHLD), word(0), word(0), word(0), word(0))
    if pid == 0:
        os._exit(0)
    answer = done(pid)
    if pid > 0:
        os.waitpid(pid, 0)
    return answer
for name, bits in flags.items():
    for form, high in (("", 0), ("+high", 1 << 32)):
        print(f"clone {name}{form}", clone(bits | high))
        print(f"unshare {name}{form}", call(272 if X86 else 97, bits | high))
print("unshare time", call(272 if X86 else 97, 0x80))
print("clone3", call(435, 0, 0))
print("openat2", call(437, -100, 0, 0, 0))
print("fork", clone(0))
seen = []
thread = threading.Thread(target=seen.append, args=(1,))
thread.start()
thread.join()
print("thread", "OK" if seen else "lost")
"""


def test_no_namespace_can_be_made_and_threads_still_start(py):
    """A new user namespace gives every capability back (CVE-2022-0185 and its kin). clone3 hides its flags in memory, and
    only ENOSYS makes the C library fall back from it."""
    found = outcomes(py(NAMESPACES))
    for name, answer in found.items():
        if name in ("clone3", "openat2"):
            assert answer == "ENOSYS", name
        elif name in ("fork", "thread"):
            assert answer == "OK", name
        elif "+high" in name:
            assert answer in ("EPERM", "EINVAL"), name
        else:
            assert answer == "EPERM", name
    assert len(found) == 33


SETID = PROBE + """
os.umask(0)
for bits in (0o4755, 0o2755, 0o6755):
    text = oct(bits)[2:]
    def fresh(kind):
        path = f"{kind}-{text}"
        open(path, "w").close()
        return path
    attempt(f"chmod {text}", os.chmod, fresh("chmod"), bits)
    with open(fresh("fchmod")) as file:
        attempt(f"fchmod {text}", os.fchmod, file.fileno(), bits)
    name = ctypes.c_char_p(os.fsencode(fresh("fchmodat")))
    print(f"fchmodat {text}", call(268 if X86 else 53, -100, name, bits))
    print(f"fchmodat+high {text}", call(268 if X86 else 53, -100, name, bits | 1 << 32))
    print(f"fchmodat+type {text}", call(268 if X86 else 53, -100, name, bits | 0o200000))
    name = ctypes.c_char_p(os.fsencode(fresh("fchmodat2")))
    print(f"fchmodat2 {text}", call(452, -100, name, bits, 0))
    attempt(f"open {text}", os.open, f"open-{text}", os.O_CREAT | os.O_WRONLY, bits)
    name = ctypes.c_char_p(os.fsencode(f"high-{text}"))
    print(f"openat+high {text}", call(257 if X86 else 56, -100, name, os.O_CREAT | os.O_WRONLY | 1 << 32, bits | 1 << 32))
    attempt(f"mknod {text}", os.mknod, f"mknod-{text}", 0o100000 | bits)
    attempt(f"tmpfile {text}", os.open, ".", os.O_TMPFILE | os.O_RDWR, bits)
    if X86:
        name = ctypes.c_char_p(os.fsencode(f"creat-{text}"))
        print(f"creat {text}", call(85, name, bits))
        name = ctypes.c_char_p(os.fsencode(f"open2-{text}"))
        print(f"open2 {text}", call(2, name, os.O_CREAT | os.O_WRONLY, bits))
        name = ctypes.c_char_p(os.fsencode(fresh("chmod2")))
        print(f"chmod2+high {text}", call(90, name, bits | 1 << 40))
open("plain", "w").close()
attempt("plain", os.chmod, "plain", 0o755)
"""


def test_no_program_can_be_left_behind_that_runs_as_somebody_else(py, sh, ws):
    """A root caller's command that leaves `chmod 4755 shell` in a shared workspace hands root to every user of the host."""
    found = outcomes(py(SETID))
    assert found.pop("plain") == "OK"
    assert len(found) >= 30
    # fchmodat2 came with Linux 6.6.
    assert {n: a for n, a in found.items() if a not in ("EPERM", "ENOSYS")} == {}
    sh("cp -p /usr/bin/passwd copied; cp -p /usr/bin/su copied2; install -m 4755 /bin/true installed; ls > ran")
    assert (ws / "ran").exists()
    bad = [p.name for p in ws.rglob("*") if p.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
    assert bad == []


FOREIGN = """
import ctypes, mmap, os, sys
path, mode, how = os.fsencode(sys.argv[1]), int(sys.argv[2], 8), sys.argv[3]
if how == "x32":
    libc = ctypes.CDLL(None)
    print(libc.syscall(ctypes.c_long(0x40000000 | 90), ctypes.c_char_p(path), ctypes.c_long(mode)), flush=True)
    sys.exit()
low = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, prot=7)       # MAP_32BIT, executable
code = bytes.fromhex("53 89f8 89f3 89d1 cd80 5b c3")       # push rbx; eax=edi; ebx=esi; ecx=edx; int 0x80; pop rbx; ret
low[: len(code)] = code
low[4096 : 4096 + len(path) + 1] = path + b"\\0"
address = ctypes.addressof(ctypes.c_char.from_buffer(low))
function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_uint)(address)
print("begin", flush=True)
print(function(15, address + 4096, mode), flush=True)      # 15: chmod of i386
"""


@pytest.mark.parametrize("how", ["i386", "x32"])
def test_numbers_of_another_abi_do_not_slip_past_the_filter(how, py, ws, run):
    """On x86-64 a program can use the numbers of i386 (int 0x80) and x32, where 15 or 0x4000005a mean chmod: a filter that
    knows only its own numbers lets them all in."""
    if platform.machine() != "x86_64":
        pytest.skip("x86-64 only")
    target = ws / "target"
    target.write_text("")
    target.chmod(0o644)
    args = [sys.executable, "-c", FOREIGN, str(target), "0755", how]
    host = subprocess.run(args, capture_output=True, text=True, check=False)
    if how == "i386" and target.stat().st_mode & 0o777 != 0o755:
        pytest.skip(f"this kernel has no i386 system calls ({host.returncode})")
    target.chmod(0o644)
    args[-2] = "4755"
    result = run(args)
    assert result.returncode in (-signal.SIGSYS, 0)
    assert result.returncode == -signal.SIGSYS or result.stdout.split()[-1] == "-1"
    assert target.stat().st_mode & 0o7777 == 0o644
    args[-2] = "0755"
    assert run(args).returncode == -signal.SIGSYS
