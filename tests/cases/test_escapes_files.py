"""Files outside the roots: no second name, no metadata, no named pipe leads to them."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import uuid

import pytest
from helpers.escapes_probe import PROBE, outcomes

import sandboxed_subprocess as sp

LINKS = PROBE + """
target = sys.argv[1]
def linkat(fd, old, new, flags):
    return call(265 if X86 else 37, fd, ctypes.c_char_p(os.fsencode(old)), -100, ctypes.c_char_p(os.fsencode(new)), flags)
attempt("link", os.link, target, "alias")
os.symlink(target, "symbolic")
print("link of a link", linkat(-100, "symbolic", "alias2", 0x400))         # AT_SYMLINK_FOLLOW
attempt("rename", os.rename, target, "alias3")
attempt("rename over", os.rename, "own", target)
try:
    fd = os.open(target, os.O_RDONLY)
except OSError:
    fd = os.open(target, os.O_PATH)
print("linkat fd", linkat(fd, "", "alias5", 0x1000))                        # AT_EMPTY_PATH
print("linkat proc", linkat(-100, f"/proc/self/fd/{fd}", "alias6", 0x400))
print("renameat2 exchange", call(316 if X86 else 276, -100, ctypes.c_char_p(target.encode()), -100, ctypes.c_char_p(b"own"), 2))
print("ran OK")
"""


def test_no_second_name_is_made_for_a_file_outside(run, ws, outside):
    """A hard link in a writable directory is the outside file itself (multikernel/sandlock#179)."""
    (outside / "f").write_text("host")
    (ws / "own").write_text("own")
    found = outcomes(run([sys.executable, "-c", LINKS, str(outside / "f")]))
    assert found.pop("ran") == "OK"
    assert len(found) == 7
    assert set(found.values()) <= {"EXDEV", "EROFS", "EACCES", "EPERM", "EBUSY", "ENOENT"}, found
    assert (outside / "f").stat().st_nlink == 1
    assert (outside / "f").read_text() == "host"


@pytest.mark.parametrize("where", ["here", "in/a/directory"])
def test_a_denied_file_cannot_be_reached_by_another_name(where, run, sh, ws, policy):
    """A mask lies on a name: a link, a rename of the file or of a directory above it must not take the file out from under."""
    directory = ws / where
    directory.mkdir(parents=True)
    # In no file but this one, the source of this test included: everything that can be read is searched for it.
    secret = uuid.uuid4().hex
    (directory / "secret").write_text(secret)
    (ws / "own").write_text("own")
    (ws / "before").symlink_to(directory / "secret")
    denied = policy.with_deny_read(directory / "secret")
    found = outcomes(run([sys.executable, "-c", LINKS, str(directory / "secret")], policy=denied))
    assert found.pop("ran") == "OK"
    assert set(found.values()) <= {"EXDEV", "EROFS", "EACCES", "EPERM", "EBUSY", "ENOENT"}, found
    result = sh(
        f"""mv in other; mv here elsewhere; cp -r . /tmp/copy; tar cf /tmp/all.tar . ; cp -al . /tmp/links
mkdir -p in/a/directory here; ls -R > names; cat before alias* symbolic /tmp/copy/*/secret
grep -ral {secret} . /tmp /proc/self/root/srv 2>/dev/null | sed 's/^/found in /'; echo end""",
        policy=denied,
    )
    assert result.stdout.splitlines()[-1] == "end"
    assert secret not in result.stdout + result.stderr
    assert "found in" not in result.stdout
    assert (ws / "names").exists()


def test_an_old_hard_link_in_the_workspace_is_the_file_itself(sh, ws, outside):
    """A documented limit: a name that the host itself put into the workspace, for a file outside, can be written through.
    No mount tells two names of one inode apart."""
    (outside / "f").write_text("host")
    os.link(outside / "f", ws / "old")
    assert sh("echo written > old; echo ran").stdout == "ran\n"
    assert (outside / "f").read_text() == "written\n"


def test_hard_links_inside_the_workspace_work(sh, ws):
    """git, npm and cargo make them."""
    assert sh("echo x > a; mkdir d; ln a d/b && echo linked").stdout == "linked\n"
    assert (ws / "a").stat().st_nlink == 2


METADATA = """
cd {o}
chmod 777 f; chmod 777 .; touch f; touch -d 2000-01-01 f; touch -h -d 2000-01-01 link; chgrp $(id -G | tr ' ' '\\n' | tail -1) f
setfattr -n user.x -v y f; setfattr -x user.kept f; setfacl -m u:nobody:rwx f; chattr +i f; chattr +A f
truncate -s 0 f; true > f; echo x >> f; dd if=/dev/zero of=f count=1 conv=notrunc; fallocate -l 10 f; rm -f f; mv f g; mkdir d; mkfifo p; ln -s x y
echo ran
"""
CALLS = PROBE + """
path = sys.argv[1]
attempt("chmod", os.chmod, path, 0o777)
attempt("lchown", os.chown, path, os.getuid(), os.getgid())
attempt("utime", os.utime, path, (1, 1))
attempt("utime now", os.utime, path)
attempt("setxattr", os.setxattr, path, "user.x", b"y")
attempt("removexattr", os.removexattr, path, "user.kept")
attempt("truncate", os.truncate, path, 0)
attempt("open w", os.open, path, os.O_WRONLY)
attempt("open trunc", os.open, path, os.O_RDONLY | os.O_TRUNC)
attempt("noatime", lambda: os.close(os.open(path, os.O_RDONLY | os.O_PATH)))
name = ctypes.c_char_p(path.encode())
print("fchmodat2", call(452, -100, name, 0o777, 0))
print("setxattrat", call(463, -100, name, 0, ctypes.c_char_p(b"user.x"), 0, 0))
print("file_setattr", call(469, -100, name, 0, 0, 0))
fd = os.open(path, os.O_RDONLY)
attempt("fchmod", os.fchmod, fd, 0o777)
attempt("futime", os.utime, fd, (1, 1))
attempt("fsetxattr", os.setxattr, fd, "user.x", b"y")
attempt("proc fd", os.open, f"/proc/self/fd/{fd}", os.O_WRONLY)
attempt("proc truncate", os.truncate, f"/proc/self/fd/{fd}", 0)
import fcntl, mmap, struct
attempt("FS_IOC_SETFLAGS", fcntl.ioctl, fd, 0x40086602, struct.pack("l", 0x80))
attempt("lease", fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
attempt("mmap", mmap.mmap, fd, 1, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
"""


def test_metadata_and_content_outside_stay_as_they_are(sh, run, outside):
    """Landlock alone sees neither chmod nor utimes nor xattrs, and truncate only since ABI 3 (Zouuup/landrun#58):
    `chmod 777 ~/.ssh` or a future mtime does damage as well."""
    file = outside / "f"
    file.write_text("host")
    file.chmod(0o640)
    (outside / "link").symlink_to("f")
    os.utime(file, (1_000_000, 1_000_000))
    os.setxattr(file, "user.kept", b"1")

    def state():
        s, d = file.stat(), outside.stat()
        link = (outside / "link").lstat()
        return (s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_mtime, s.st_ctime_ns, d.st_mode, d.st_mtime_ns, link.st_mtime_ns,
                file.read_text(), os.listxattr(file), sorted(os.listdir(outside)))  # fmt: skip

    before = state()
    assert sh(METADATA.format(o=outside)).stdout == "ran\n"
    assert state() == before
    found = outcomes(run([sys.executable, "-c", CALLS, str(file)]))
    allowed = {"noatime", "lease"}
    assert len(found) > 18
    assert {n: a for n, a in found.items() if a == "OK" and n not in allowed} == {}
    assert state() == before


@pytest.mark.parametrize("how", ["write", "read and write", "open by proc"])
def test_a_named_pipe_of_the_host_takes_no_orders(how, py, outside):
    """A read-only mount does not stop writing into a FIFO: daemons that take commands from one would obey."""
    fifo = outside / "control"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    # A writer of ours keeps the pipe from being at its end.
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        flags = {"write": "os.O_WRONLY", "read and write": "os.O_RDWR", "open by proc": "os.O_WRONLY"}[how]
        path = f"'/proc/self/root{fifo}'" if how == "open by proc" else repr(str(fifo))
        found = outcomes(py(PROBE + f"attempt('open', lambda: os.write(os.open({path}, {flags} | os.O_NONBLOCK), b'x'))\nprint('ran OK')"))
        with pytest.raises(BlockingIOError):
            os.read(reader, 10)
    finally:
        os.close(reader)
        os.close(writer)
    assert found == {"open": "EACCES", "ran": "OK"}


def test_named_pipes_made_inside_work(sh):
    """Shell scripts use them."""
    assert sh("mkfifo p /tmp/p; echo through > p & read x < p; echo $x; echo again > /tmp/p & cat /tmp/p").stdout == "through\nagain\n"


def test_a_link_in_the_workspace_does_not_carry_writes_outside(sh, ws, outside):
    """The oldest trick: a symbolic link to what is outside, then an ordinary write."""
    (outside / "f").write_text("host")
    result = sh(f"ln -s {outside} d; ln -s {outside}/f l; echo x > l; echo x > d/g; cp /etc/hostname l; tar cf - l | tar xf - -C d; echo ran")
    assert result.stdout.splitlines()[-1] == "ran"
    assert (os.listdir(outside), (outside / "f").read_text()) == (["f"], "host")


def test_a_file_system_flag_of_the_mounts_is_what_was_promised(py, ws, outside):
    """nosuid and nodev everywhere, read-only but for the roots: seen by statvfs(), which nobody inside can colour."""
    code = f"""
import os
for path in ("/", "/etc", {str(outside)!r}, {str(ws)!r}, "/tmp", "/dev/shm", "/proc", "/run"):
    f = os.statvfs(path).f_flag
    print(path, bool(f & os.ST_RDONLY), bool(f & os.ST_NOSUID), bool(f & os.ST_NODEV))
"""
    flags = {line.split()[0]: line.split()[1:] for line in py(code).stdout.splitlines()}
    assert len(flags) == 8
    writable = {str(ws), "/tmp", "/dev/shm"}
    assert {path: f[0] for path, f in flags.items()} == {path: str(path not in writable) for path in flags}
    assert {tuple(f[1:]) for f in flags.values()} == {("True", "True")}


def test_mounts_of_the_host_that_come_later_do_not_appear_writable(ws, outside, policy):
    """With slave propagation a stick plugged in during the run shows up inside, and writable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    (outside / "m").mkdir()
    with sp.Popen(["sh", "-c", f"echo up; read x; echo x > {outside}/m/made; grep -c {outside}/m /proc/self/mountinfo; echo ran"],
                  policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE, stderr=sp.DEVNULL, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "up\n"
        if libc.mount(b"none", os.fsencode(outside / "m"), b"tmpfs", 0, None) != 0:
            process.communicate("\n")
            pytest.skip("mount() is refused here")
        try:
            output, _ = process.communicate("\n", timeout=30)
            made = os.listdir(outside / "m")
        finally:
            libc.umount2(os.fsencode(outside / "m"), 2)
    assert output == "0\nran\n"
    assert made == []
    assert stat.S_ISDIR((outside / "m").stat().st_mode)
