"""`observe="files"`: what is refused of files is in the report exactly, whatever a command writes about it, or does not."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from conftest import ROOT, TIER

import sandboxed_subprocess as sp
from sandboxed_subprocess._backends import _records
from sandboxed_subprocess.testing import needs

PY = sys.executable
pytestmark = pytest.mark.skipif(TIER == "landlock", reason="landlock: OBSERVE")


@pytest.fixture
def observing(policy, place):
    needs("OBSERVE")
    (place / "secret").mkdir()
    (place / "secret/key").write_text("key\n")
    return policy.replace(observe="files", deny_read=[place / "secret"])


def silent(*lines):
    """A program that tries each line, and says nothing of what comes of it."""
    tried = "".join(f"try: {line}\nexcept OSError: pass\n" for line in lines)
    return [PY, "-ISBc", f"import os, sys, ctypes\nlibc = ctypes.CDLL(None)\nout = sys.argv[-1]\n{tried}"]


def seen(result):
    assert result.returncode == 0, result.stderr
    assert result.sandbox.violations_complete is True
    return {(v.kind, v.detail, v.source) for v in result.sandbox.violations}


WRITES = {
    "open": ("open(out + '/new', 'w')", "new"),
    "open for both": ("open(out + '/there', 'r+')", "there"),
    "open, truncated": ("os.open(out + '/there', os.O_TRUNC)", "there"),
    "creat": ("libc.syscall(85, (out + '/new').encode(), 0o644)", "new"),
    "from a directory": ("os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=os.open(out, os.O_PATH))", "new"),
    "from the working directory": ("os.chdir(out); open('new', 'w')", "new"),
    "by the way of a link": ("os.symlink(out, 'link'); open('link/new', 'w')", "new"),
    "by a link to it": ("os.symlink(out + '/new', 'link'); open('link', 'w')", "new"),
    "by links to it": ("os.mkdir('d'); os.symlink('../link', 'd/l'); os.symlink(out + '/new', 'link'); open('d/l', 'w')", "new"),
    "a pipe": ("os.open(out + '/pipe', os.O_RDWR | os.O_NONBLOCK)", "pipe"),
    "a file without a name": ("os.open(out + '/empty', os.O_TMPFILE | os.O_WRONLY)", "empty"),
    "mkdir": ("os.mkdir(out + '/new/')", "new"),
    "mkfifo": ("os.mkfifo(out + '/new')", "new"),
    "symlink": ("os.symlink('x', out + '/new')", "new"),
    "link": ("open('f', 'w').close(); os.link('f', out + '/new')", "new"),
    "rename there": ("open('f', 'w').close(); os.rename('f', out + '/there')", "there"),
    "rename from there": ("os.rename(out + '/there', 'f')", "there"),
    "unlink": ("os.unlink(out + '/there')", "there"),
    "rmdir": ("os.rmdir(out + '/empty')", "empty"),
    "truncate": ("os.truncate(out + '/there', 0)", "there"),
    "chmod": ("os.chmod(out + '/there', 0o600)", "there"),
    "fchmod": ("os.fchmod(os.open(out + '/there', os.O_RDONLY), 0o600)", "there"),
    "chown": ("os.chown(out + '/there', os.getuid(), os.getgid())", "there"),
    "utime": ("os.utime(out + '/there')", "there"),
    "utime of a link": ("os.utime(out + '/there', follow_symlinks=False)", "there"),
    "utime of a descriptor": ("os.utime(os.open(out + '/there', os.O_RDONLY))", "there"),
    "setxattr": ("os.setxattr(out + '/there', 'user.x', b'y')", "there"),
}


@pytest.mark.parametrize("how", WRITES)
def test_each_way_to_change_what_may_not_be_written_is_seen(run, observing, outside, how):
    """By the file that it would have changed, whatever name or descriptor was used for it; and no program said a word."""
    if how == "creat" and os.uname().machine != "x86_64":
        pytest.skip("by number")
    (outside / "there").write_text("there")
    (outside / "empty").mkdir()
    os.mkfifo(outside / "pipe")
    line, name = WRITES[how]
    result = run([*silent(line), outside], policy=observing)
    assert seen(result) == {("write", f"{outside}/{name}", "observer")}
    assert (outside / "there").read_text() == "there" and not (outside / "new").exists() and (outside / "empty").is_dir()


def test_what_may_not_be_read_is_seen(run, observing, place):
    """A denied directory and what is in it, by any name."""
    secret = place / "secret"
    lines = ("open(out + '/key')", "os.listdir(out)", "os.symlink(out + '/key', 'l'); open('l')", "open(out + '/nothing')")
    details = {detail for kind, detail, _ in seen(run([*silent(*lines), secret], policy=observing)) if kind == "read"}
    assert details >= {f"{secret}/key", str(secret)} and all(d.startswith(str(secret)) for d in details)


FINE = (
    "open(out + '/there')", "open(out + '/missing')", "os.stat(out + '/there')", "os.access(out + '/there', os.W_OK)", "os.listdir(out)",
    "os.makedirs(out, exist_ok=True)", "os.unlink(out + '/missing')", "os.mkdir(out)", "os.open(out + '/there', os.O_PATH)",
    "open('f', 'w')", "os.mkdir('d')", "os.rename('f', 'g')", "os.chmod('g', 0o600)", "os.unlink('g')", "os.rmdir('d')",
    "open('/dev/null', 'w')", "open('/tmp/f', 'w')", "open('')", "open('x' * 5000)",
    "open('/dev/stdout', 'w')", "open('/dev/stderr', 'a')", "open('/dev/fd/1', 'w')", "open('/proc/./self//fd/1', 'w')", "os.symlink('/proc/self/fd/1', 'p'); open('p', 'a')", "os.open(out + '/there', os.O_CREAT | os.O_EXCL)",
    "os.open(out, os.O_WRONLY)", "os.symlink('loop', 'loop'); open('loop')", "os.symlink(out, 'l'); os.open('l', os.O_NOFOLLOW)",
    "os.truncate(out, 0)", "os.rename('missing', 'x')", "libc.utimensat(99, None, None, 0)", "libc.fchmod(99, 0)",
)  # fmt: skip


def test_what_is_allowed_or_would_fail_anyway_is_no_violation(run, observing, outside):
    """Reading, looking, what is missing, what is there already, one's own files, bad addresses."""
    (outside / "there").write_text("there")
    result = run([*silent(*FINE), outside], policy=observing)
    assert seen(result) == set(), result.stderr


def test_what_cannot_be_looked_at_is_not_called_complete(run, observing):
    """A path where no memory is: the call fails, too, but who looks cannot know why."""
    result = run(silent("libc.open(ctypes.c_void_p(1), 0)", "libc.openat(99, b'x' * 5000, 0)"), policy=observing)
    assert result.returncode == 0 and result.sandbox.violations_complete is False and result.sandbox.violations == ()


def test_what_landlock_alone_refuses_is_seen(run, observing):
    """The private /dev is a file system that could be written; and so is nothing of a /tmp that was not asked for."""
    lines = ("open('/dev/made', 'w')", "os.mkdir('/dev/d')", "open('/tmp/made', 'w')", "open('/dev/null', 'w')")
    found = seen(run(silent(*lines), policy=observing.replace(tmp="none")))
    assert {detail for _, detail, _ in found} == {"/dev/made", "/dev/d", "/tmp/made"}


def test_what_a_command_leaves_behind_is_observed_too(run, observing, outside, monkeypatch):
    """For as long as it may go on (here longer, so that no machine is too slow); and its calls do not fail for want of somebody who
    looks."""
    monkeypatch.setattr(_records, "_GRACE_MS", 20_000)
    script = f"(sleep .2; cat /etc/hostname; echo > {outside}/new) 2>/dev/null & cat /etc/hostname >/dev/null"
    result = run(["sh", "-c", script], policy=observing)
    assert result.stdout.strip() and seen(result) == {("write", f"{outside}/new", "observer")}


@pytest.mark.filterwarnings("ignore::sandboxed_subprocess.SandboxWarning")
@pytest.mark.skipif(TIER != "namespaces", reason="about another tier than the session's")
def test_what_is_not_observed_is_not_called_complete(ws, observing):
    """A gap is not silence that means something."""
    needs("landlock")
    report = sp.run(["true"], cwd=ws, policy=observing.replace(enforcement="best-effort", backend="landlock")).sandbox
    assert report.violations_complete is False and any("observe" in gap for gap in report.gaps)


def test_what_is_protected_in_the_workspace_is_seen(run, observing, ws):
    """A write below .git, and its move: it is a mount, and the kernel says that it is busy."""
    (ws / ".git").mkdir()
    (ws / ".git/config").write_text("")
    found = seen(run(silent("open('.git/config', 'a')", "os.rename('.git', 'moved')", "os.unlink('.git/config')"), policy=observing))
    assert {detail for _, detail, _ in found} == {f"{ws}/.git/config", f"{ws}/.git"}


def test_where_not_everything_can_be_read_nothing_is_called_complete(run, observing):
    """What is not shown is not there; nobody can tell it from what never was."""
    result = run(["true"], policy=observing.replace(read="minimal", deny_read=()))
    assert result.returncode == 0 and result.sandbox.violations_complete is False


@pytest.mark.skipif(ROOT, reason="root may write it")
def test_what_the_user_could_not_do_anyway_is_no_violation(run, observing):
    """What is root's is not the sandbox's to refuse; but where the mount is asked first, it is the mount that did."""
    lines = ("open('/root/x', 'w')", "os.mkdir('/root/x')", "open('/etc/passwd', 'a')")
    assert seen(run(silent(*lines), policy=observing)) == set()


def test_what_the_filter_refuses_by_arguments_stays_refused(run, observing, ws):
    """chmod() is looked at and then goes on, but for the modes that a sandboxed command may not give: with those it never does."""
    lines = ("os.chmod('f', 0o4755)", "os.open('g', os.O_CREAT | os.O_WRONLY, 0o2755)", "os.mkdir('d')", "os.chmod('f', 0o755)")
    (ws / "f").write_text("")
    result = run(silent(*lines), policy=observing)
    assert {source for _, _, source in seen(result)} == {"filter"}
    assert (ws / "f").stat().st_mode & 0o7777 == 0o755 and not (ws / "g").exists() and (ws / "d").is_dir()


def test_threads_and_children_are_observed(run, observing, outside):
    """Each with its own working directory and table of descriptors; also between vfork() and exec."""
    code = (
        "import ctypes, os, sys, threading\n"
        "def work():\n"
        "    assert ctypes.CDLL(None).unshare(0x200 | 0x400) == 0\n"
        "    os.chdir(sys.argv[1])\n"
        "    try: open('of-a-thread', 'w')\n"
        "    except OSError: pass\n"
        "t = threading.Thread(target=work); t.start(); t.join()\n"
        "try: os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, sys.argv[1] + '/of-a-child', os.O_CREAT | os.O_WRONLY, 0o600)])\n"
        "except OSError: pass\n"
        "open('own', 'w')\n"
    )
    result = run([PY, "-ISBc", code, outside], policy=observing)
    assert {detail for _, detail, _ in seen(result)} == {f"{outside}/of-a-thread", f"{outside}/of-a-child"}


def test_a_storm_of_signals_breaks_no_open(run, observing):
    """A notified call that a signal interrupts is made again, and not an error that the program would not have had."""
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False)\n"
        "signal.setitimer(signal.ITIMER_REAL, .0003, .0003)\n"
        "for _ in range(2000): os.close(os.open('/etc/passwd', os.O_RDONLY))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "print('fine')"
    )
    assert run([PY, "-ISBc", code], policy=observing).stdout == "fine\n"


def test_what_is_too_much_to_be_told_is_said_to_be_missing(run, observing, outside):
    """Nobody reads while the command runs; what finds no room any more is not silently left out."""
    code = "import sys\nfor n in range(3000):\n    try: open(f'{sys.argv[1]}/{n}', 'w')\n    except OSError: pass"
    report = run([PY, "-ISBc", code, outside], policy=observing).sandbox
    assert report.violations_complete is False and len(report.violations) >= 50 and report.ended == "exit"


def test_each_of_many_is_told_once(run, observing, outside):
    """Eighty files, three times each."""
    code = "import sys\nfor n in range(240):\n    try: open(f'{sys.argv[1]}/{n % 80}', 'w')\n    except OSError: pass"
    result = run([PY, "-ISBc", code, outside], policy=observing)
    assert seen(result) == {("write", f"{outside}/{n}", "observer") for n in range(80)}
    assert len(result.sandbox.violations) == 80


def test_a_listener_hears_of_it_while_the_command_runs(observing, outside, ws):
    """As of refused system calls."""
    heard = threading.Event()
    policy = observing.replace(on_event=lambda event: heard.set() if isinstance(event, sp.Violation) else None)
    code = "import sys\ntry: open(sys.argv[1] + '/x', 'w')\nexcept OSError: pass\nsys.stdin.read()"
    with sp.Popen([PY, "-c", code, outside], stdin=sp.PIPE, policy=policy, cwd=ws) as process:
        assert heard.wait(20)
        process.stdin.close()
    assert process.sandbox.violations_complete


def test_only_files_can_be_observed(ws):
    """A name that means nothing would be a promise."""
    with pytest.raises(sp.PolicyError, match="observe='sockets'"):
        sp.Policy.workspace_write(ws, observe="sockets")
    with pytest.raises(sp.PolicyError, match="observe"):
        sp.Policy.danger_full_access(observe="files")
