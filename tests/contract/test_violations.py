"""What a command was refused, as the report says it: system calls by the filter, paths by what the command wrote of them."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT, TIER, processes_with, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess import _evidence, _plan
from sandboxed_subprocess._backends import _landlock
from sandboxed_subprocess.testing import needs

PY = sys.executable
listening = pytest.mark.skipif(TIER == "landlock", reason="there is no listener, so the filter answers by itself")

CALLS = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    return result, ctypes.get_errno()
"""


def syscalls(result):
    return {v.detail for v in result.sandbox.violations if v.kind == "syscall"}


# -- system calls -------------------------------------------------------------------------------------------------------------


@listening
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="by number")
def test_refused_system_calls_are_told_by_name(run):
    """Each kind once, exactly, with the error that they have anyway; and what may be allowed, is said to be."""
    code = CALLS + (
        "for _ in range(3):\n"
        "    assert call(101, 0, 0, 0, 0) == (-1, errno.EPERM)\n"      # ptrace
        "    assert call(165, 0, 0, 0, 0, 0) == (-1, errno.EPERM)\n"   # mount
        "    assert call(272, 0x10000000) == (-1, errno.EPERM)\n"      # unshare(CLONE_NEWUSER)
        "assert call(90, b'file', 0o4755) == (-1, errno.EPERM)\n"      # chmod
        "assert call(272, 0x200) == (0, 0)\n"                          # unshare(CLONE_FS), which is allowed
    )  # fmt: skip
    result = run([PY, "-c", code])
    assert result.returncode == 0, result.stderr
    assert syscalls(result) == {"ptrace", "mount", "unshare", "chmod"}
    told = {v.detail: v for v in result.sandbox.violations}
    assert "syscall_exceptions=['ptrace']" in told["ptrace"].advice and told["mount"].source == "filter"


@listening
def test_a_probe_for_a_feature_is_no_violation(run):
    """glibc tries clone3 for each thread, node io_uring, and everybody odd socket families: they fall back, and nobody is told."""
    code = CALLS + (
        "import threading, socket\n"
        "t = threading.Thread(target=print); t.start(); t.join()\n"
        "assert call(425, 1, 0) == (-1, errno.ENOSYS)\n"
        "for family in (38, 40):\n"
        "    try: socket.socket(family, socket.SOCK_DGRAM)\n"
        "    except OSError as error: assert error.errno == errno.EAFNOSUPPORT\n"
    )
    result = run([PY, "-c", code])
    assert result.returncode == 0 and syscalls(result) == set(), result.stderr


@listening
def test_an_excepted_call_is_no_violation(run, policy):
    code = CALLS + "print(call(101, 0, 0, 0, 0))"
    result = run([PY, "-c", code], policy=policy.replace(syscall_exceptions=["ptrace"]))
    assert result.stdout == "(0, 0)\n" and syscalls(result) == set()


@listening
@pytest.mark.parametrize("how", ["threads", "children", "after exec"])
def test_every_process_and_thread_of_the_tree_is_watched(run, how):
    """One filter, one listener, however many there are: a thousand refused calls from everywhere, and each gets its answer."""
    code = {
        "threads": "import threading\nt = [threading.Thread(target=lambda: [one() for _ in range(50)]) for _ in range(20)]\n[x.start() for x in t]; [x.join() for x in t]",
        "children": "p = [os.fork() for _ in range(4)]\n[one() for _ in range(60)]",
        "after exec": "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1] + 'one()', ''])",
    }[how]  # fmt: skip
    one = CALLS + "def one(): assert call(165, 0, 0, 0, 0, 0) == (-1, errno.EPERM)\n"
    result = run([PY, "-c", one + code, one])
    assert result.returncode == 0, result.stderr
    assert syscalls(result) == {"mount"}


def answerers(pid):
    """The processes below `pid` that answer for refused calls."""
    found = []
    for child in map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        name = pathlib.Path(f"/proc/{child}/comm").read_text()
        found += [child] if name == "sandbox-connect\n" else answerers(child)
    return found


@listening
@pytest.mark.parametrize("killed", [False, True])
def test_a_refused_call_stays_refused_when_nobody_answers_any_more(ws, policy, killed):
    """Somebody can kill who answers. Then the kernel refuses, nothing goes through, and the report says that it may not know all.
    And only then: whoever answers ends as well when there is nobody left who could call, of which a note was made too, once."""
    code = CALLS + (
        "call(165, 0, 0, 0, 0, 0)\n"
        "os.mkdir('m')\n"
        "print(flush=True)\n"
        "input()\n"
        "print(call(165, b'none', b'm', b'tmpfs', 0, 0)[0], os.path.ismount('m'))\n"
    )
    with sp.Popen([PY, "-c", code], stdin=sp.PIPE, stdout=sp.PIPE, text=True, policy=policy, cwd=ws) as process:
        assert process.stdout.readline() == "\n"
        (answerer,) = answerers(process.pid)
        if killed:
            os.kill(answerer, signal.SIGKILL)
            wait_until(lambda: not os.path.exists(f"/proc/{answerer}"))
        assert process.communicate("\n")[0] == "-1 False\n"
    assert any("was killed: later ones" in note for note in process.sandbox.notes) is killed


@listening
def test_a_command_cannot_kill_who_answers_where_landlock_keeps_signals_inside(run):
    """And where it can, that is told."""
    code = CALLS + (
        "import signal\n"
        "call(165, 0, 0, 0, 0, 0)\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    if open(f'/proc/{pid}/comm').read() == 'sandbox-connect\\n':\n"
        "        try: os.kill(int(pid), 9); print('killed', flush=True)\n"
        "        except PermissionError: print('refused', flush=True)\n"
    )
    result = run([PY, "-c", code])
    wanted = "refused" if _landlock.landlock().scoped else "killed"
    assert result.stdout == wanted + "\n", result.stderr
    if wanted == "refused":
        assert not any("was killed" in note for note in result.sandbox.notes)


def test_without_a_listener_refusals_are_not_said_to_be_all(run):
    """A path is only evidence, and evidence can be missing."""
    assert run(["true"]).sandbox.violations_complete is False


# -- paths --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(place):
    path = place / "secret"
    path.mkdir()
    (path / "key").write_text("key\n")
    return path


WRITES = {
    "touch": ["touch", "{}/x"],
    "sh": ["sh", "-c", "echo x > {}/x"],
    "bash": ["bash", "-c", "echo x > {}/x"],
    "mkdir": ["mkdir", "{}/x"],
    "cp": ["cp", "/etc/passwd", "{}/x"],
    "mv": ["mv", "here", "{}/x"],
    "ln": ["ln", "-s", "here", "{}/x"],
    "rm": ["rm", "-f", "{}/there"],
    "python": [PY, "-c", "open('{}/x', 'w')"],
    "relative": ["touch", "../outside/x"],
}


@pytest.mark.parametrize("how", WRITES)
def test_a_refused_write_is_told_with_its_path(run, ws, outside, how):
    """As coreutils, shells and Python word it; and where one could write, and what would have to be said to write there."""
    (ws / "here").write_text("")
    (outside / "there").write_text("")
    result = run([part.format(outside) for part in WRITES[how]])
    assert result.returncode != 0
    (violation,) = result.sandbox.violations
    name = "there" if how == "rm" else "x"
    # Landlock says that it was the file that could not be moved away.
    assert violation.kind == "write" and violation.detail in (f"{outside}/{name}", str(outside)), violation
    assert str(ws) in violation.advice and f"write=['{outside}']" in violation.advice


@pytest.mark.parametrize("command", [["cat", "{}/key"], ["ls", "{}"], [PY, "-c", "open('{}/key')"]])
def test_a_refused_read_is_told_with_its_path(run, policy, secret, command):
    needs("DENIED_NAMES")
    if TIER == "landlock":
        pytest.skip("what is denied can be listed there")
    result = run([part.format(secret) for part in command], policy=policy.with_deny_read(secret))
    (violation,) = result.sandbox.violations
    assert violation.kind == "read" and violation.detail.startswith(str(secret)) and "deny_read" in violation.advice


def test_a_sensitive_path_has_a_way_out(run, place, monkeypatch):
    home = place / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key\n")
    monkeypatch.setenv("HOME", str(home))
    result = run(["cat", home / ".ssh" / "id"])
    (violation,) = result.sandbox.violations
    assert (violation.kind, violation.detail) == ("read", str(home / ".ssh" / "id"))
    assert f"exceptions=['{home}/.ssh']" in violation.advice


def test_what_the_policy_allows_is_no_violation_whatever_is_written_of_it(run, ws, outside):
    """The word "sandbox" in a path is none; neither is an ordinary file that an ordinary user could not open, nor a lie."""
    (ws / "sandbox").mkdir()
    (ws / "sandbox" / "closed").write_text("")
    (ws / "sandbox" / "closed").chmod(0)
    script = (
        f"cat sandbox/closed; echo \"sandbox: '{ws}/x': Permission denied\" >&2; echo 'Permission denied' >&2;"
        f" echo 'rm: /tmp/x: Read-only file system' >&2; echo 'Read-only file system: / : //' >&2; mkdir sandbox"
    )
    assert run(script, shell=True).sandbox.violations == ()


@pytest.mark.skipif(ROOT, reason="root may write it")
def test_what_a_user_could_not_do_anyway_is_no_violation(run):
    """Without the sandbox it would have been the same."""
    result = run("touch /etc/x; echo \"touch: '/etc/y': Permission denied\" >&2", shell=True)
    assert [v for v in result.sandbox.violations if v.detail == "/etc/y"] == []


def test_lines_of_many_programs(ws, outside):
    """Words of programs that are not here; each names a path that the plan refuses."""
    policy = sp.Policy.workspace_write(ws)
    view = _plan.compile_view(policy)
    plan = _plan.compile_plan(view, _plan.Command((b"x",), ()), {}, (), inherits=True)
    path = f"{outside}/x"
    for line in (
        f"Error: EROFS: read-only file system, open '{path}'",
        f"open {path}: read-only file system",
        f"java.io.FileNotFoundException: {path} (Read-only file system)",
        f"error: could not lock config file {path}: Read-only file system",
        f"fatal: could not create leading directories of '{path}': Read-only file system",
        f"ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: '{path}'",
        f"npm ERR! Error: EROFS: read-only file system, mkdir '{path}'",
        f'Os {{ code: 30, kind: ReadOnlyFilesystem, message: "Read-only file system" }}: "{path}"',
        f"tar: {path}: Cannot open: Read-only file system",
        f"make: *** open: {path}: Read-only file system.  Stop.",
        f"/usr/bin/tool: line 3: {path}: Read-only file system",
        f"warning: x\n  Caused by: failed to open: {path}: Read-only file system (os error 30)\nmore",
    ):
        found = _evidence.denied_paths(line, plan, str(ws))
        assert [(v.kind, v.detail) for v in found] == [("write", path)], line
    assert _evidence.denied_paths(("x" * 5000 + ": Read-only file system\n") * 300, plan, str(ws)) == ()
    assert len(_evidence.denied_paths("".join(f"{path}{n}: Read-only file system\n" for n in range(300)), plan, str(ws))) == 100


@pytest.mark.parametrize(
    "script",
    [
        "ln -s lp lp; echo \"cat: $PWD/lp/x: Permission denied\" >&2",
        "echo \"cat: '/$(printf %0300d 1)/x': Read-only file system\" >&2",
        "printf '\\355\\240\\200/x: Permission denied\\n' >&2",
        "printf 'cat: /\\0/x: Permission denied\\n' >&2",
    ],
)
def test_whatever_a_command_writes_run_returns(run, script):
    """A link to itself, a name that is too long, half a character: each raised, and took the result with it."""
    for options in ({"errors": "replace"}, {"errors": "surrogatepass"}, {"text": False}):
        assert run(script, shell=True, **options).returncode == 0


def test_long_lines_of_one_character_take_no_time(ws):
    """A hundred of them kept the caller busy for twenty seconds."""
    policy = sp.Policy.workspace_write(ws)
    plan = _plan.compile_plan(_plan.compile_view(policy), _plan.Command((b"x",), ()), {}, (), inherits=True)
    begin = time.process_time()
    for character in "a'\"`\u2018/:":
        text = (character * 4096 + " permission denied " + character * 4096 + "\n") * 100
        _evidence.denied_paths(text, plan, str(ws))
    assert time.process_time() - begin < 20  # it takes half a second


def test_violations_survive_json(run, outside):
    report = run(["touch", outside / "x"]).sandbox
    data = json.loads(report.to_json())
    assert data["violations"][0]["detail"] == f"{outside}/x" and data["usage"]["peak_processes"] >= 1


# -- events -------------------------------------------------------------------------------------------------------------------


def test_progress_is_told_while_a_command_runs(run, policy):
    """Rising, at about the interval, and no more once it is over; on every loop."""
    events = []
    code = "import time\nx = bytearray(50 << 20)\nend = time.process_time() + .4\nwhile time.process_time() < end: pass\ntime.sleep(.4)"
    run([PY, "-c", code], policy=policy.replace(on_event=events.append, event_interval=0.1))
    count = len(events)
    assert count >= 3 and all(isinstance(event, sp.Progress) for event in events)
    assert [e.wall_seconds for e in events] == sorted(e.wall_seconds for e in events)
    assert events[-1].cpu_seconds >= 0.3 and max(e.memory_bytes for e in events) >= 50 << 20
    assert {(e.processes, e.threads) for e in events} == {(1, 1)}


@listening
def test_a_violation_is_told_when_it_happens(run, policy, ws):
    """Before the command ends, so that whoever is told can end it."""
    needs("SYSTEM_CALLS")
    seen = threading.Event()
    events = []

    def listener(event):
        if isinstance(event, sp.Violation):
            events.append(event)
            (ws / "go").touch()
            seen.set()

    code = CALLS + "import time\ncall(165, 0, 0, 0, 0, 0)\nend = time.time() + 20\nwhile not os.path.exists('go') and time.time() < end: time.sleep(.01)\nprint(os.path.exists('go'))"
    result = run([PY, "-c", code], policy=policy.replace(on_event=listener, event_interval=60))
    assert result.stdout == "True\n" and [e.detail for e in events] == ["mount"] and seen.is_set()


def test_a_listener_that_raises_or_blocks_harms_nothing(run, policy, capfd, monkeypatch):
    """It is the program's own code; its error is shown, the run goes on, and its report is complete."""
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error[0]))

    def bad(event):
        raise ZeroDivisionError

    result = run(["sleep", "0.3"], policy=policy.replace(on_event=bad, event_interval=0.05))
    assert (result.returncode, result.sandbox.ended) == (0, "exit") and set(shown) == {ZeroDivisionError}
    result = run(["sleep", "0.2"], policy=policy.replace(on_event=lambda e: time.sleep(0.5), event_interval=0.05))
    assert (result.returncode, result.sandbox.ended) == (0, "exit") and result.sandbox.usage is not None


def test_a_caller_that_does_not_listen_loses_nothing_but_events(ws, policy, tier, token):
    """The record of the end must find room on the socket, however many events nobody has taken."""

    async def main():
        events = []
        process = await sp.create_subprocess_exec(
            "sleep", "2", token, policy=policy.replace(on_event=events.append, event_interval=0.02), cwd=ws
        )
        time.sleep(1)  # the loop stands still
        process.kill()
        await process.wait()
        return process.sandbox, events

    report, events = asyncio.run(main())
    assert report.ended == "killed" and report.usage is not None and len(events) > 5
    assert processes_with(token) == []


# -- audit log ----------------------------------------------------------------------------------------------------------------


def test_each_run_is_a_line_of_the_audit_log(run, policy, place, ws):
    """Also one that was killed, but not what never ran; and a command never gets at it."""
    log = place / "audit.jsonl"
    logged = policy.replace(audit_log=log)
    run(["sh", "-c", f"exit 3; {log}"], policy=logged)
    with pytest.raises(sp.TimeoutExpired):
        run(["sleep", "60"], policy=logged.replace(terminate_grace=0), timeout=0.5)
    with pytest.raises(FileNotFoundError):
        run(["no-such-program"], policy=logged)
    run(["sh", "-c", f"echo lies >> {log}"], policy=logged)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["returncode"] for line in lines] in ([3, -9, 2], [3, -15, 2]) and lines[0]["args"][:2] == ["sh", "-c"]
    assert lines[0]["cwd"] == str(ws) and lines[1]["args"] == ["sleep", "60"] and lines[0]["ended"] == "exit"
    assert lines[0]["usage"]["wall_seconds"] >= 0 and abs(lines[0]["began"] - time.time()) < 60
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_run_that_cannot_be_written_down_does_not_happen(run, policy, ws, place):
    """And a log that a command could write is refused, by whatever name."""
    with pytest.raises(FileNotFoundError):
        run(["touch", "made"], policy=policy.replace(audit_log=place / "missing" / "log"))
    (place / "link").symlink_to(ws)
    for path in (ws / "log", place / "link" / "log"):
        with pytest.raises(sp.PolicyError, match="its own story"):
            run(["touch", "made"], policy=policy.replace(audit_log=path))
    assert list(ws.iterdir()) == []


def test_a_log_that_is_no_file_is_refused_and_a_closed_one_is_told(policy, place, ws, tier):
    """A FIFO without a reader would have been waited for, for ever; and a number that is somebody else's now is left alone."""
    os.mkfifo(place / "fifo")
    for path in (place / "fifo", "/dev/null"):
        with pytest.raises((sp.PolicyError, OSError)):
            sp.run(["true"], policy=policy.replace(audit_log=path), cwd=ws)
    process = sp.Popen(["sleep", "0.3"], policy=policy.replace(audit_log=place / "log"), cwd=ws)
    fd, _ = process._launch.audit
    (place / "other").write_text("")
    other = os.open(place / "other", os.O_RDWR)
    os.dup2(other, fd)
    try:
        assert process.wait() == 0
        assert any("audit_log" in note for note in process.sandbox.notes)
        assert (place / "other").read_text() == "" and os.fstat(fd)
    finally:
        os.close(fd)
        os.close(other)


def test_lines_of_runs_side_by_side_do_not_mix(ws, policy, place, tier):
    import concurrent.futures

    logged = policy.replace(audit_log=place / "log")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: sp.run(["true", "x" * 20000], policy=logged, cwd=ws), range(40)))
    assert len([json.loads(line) for line in (place / "log").read_text().splitlines()]) == 40


# -- for people ---------------------------------------------------------------------------------------------------------------


def cli(*args, cwd, stderr=subprocess.PIPE):
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sp.__file__))}
    return subprocess.run(
        [PY, "-m", "sandboxed_subprocess", "run", *args], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False
    )


def test_the_command_line_says_what_was_refused_and_what_a_limit_had_come_to(ws, outside, tier):
    (ws / "p.toml").write_text(f"write = ['{ws}']\nbackend = '{tier}'\nenforcement = 'best-effort'\n[limits]\nmemory_bytes = 100000000\n")
    result = cli("--policy", "./p.toml", "--", PY, "-c", "x = [bytearray(10 << 20) for _ in range(100)]", cwd=ws)
    assert result.returncode == -9 and "ended by the limit memory_bytes (it had come to " in result.stderr
    if TIER != "landlock":
        result = cli("--", PY, "-c", CALLS + "call(165, 0, 0, 0, 0, 0)", cwd=ws)
        assert "refused: syscall mount (no policy allows it)" in result.stderr


def test_progress_is_shown_on_a_terminal_and_nowhere_else(ws, tier):
    """One line, written over and over, and gone at the end; nothing of it in a pipe."""
    assert cli("--progress", "--", "sleep", "0.7", cwd=ws).stderr == ""
    master, slave = pty.openpty()
    try:
        assert cli("--progress", "--", PY, "-c", "import time; x = bytearray(30 << 20); time.sleep(1.3)", cwd=ws, stderr=slave).returncode == 0
        text = os.read(master, 65536).decode()
    finally:
        os.close(slave)
        os.close(master)
    assert "MB of memory · 1 processes" in text and text.endswith("\r\x1b[K") and "\n" not in text
