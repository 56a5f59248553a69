"""A sandbox that cannot be set up: the command does not run, the error says why, and nothing stays open."""

from __future__ import annotations

import errno
import os
import pathlib
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from conftest import only_namespaces, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess import _backends, _native, _prepare
from sandboxed_subprocess._backends import _descriptors, _linux, _records, linux_namespaces
from sandboxed_subprocess._backends._channel import ChannelLaunch, send_plan


def test_a_preexec_fn_that_closes_everything_is_a_setup_error(run, ws):
    """It closes the plan and the launch socket too. Without a word from the launcher nothing counts as started."""
    with pytest.raises(sp.SandboxSetupError):
        run(["touch", "made"], preexec_fn=lambda: os.closerange(3, 256))
    assert not (ws / "made").exists()


def test_a_preexec_fn_that_starves_the_launcher_is_a_setup_error(run, ws):
    """The limit hits the launcher first; its death must not look like a result of the command."""
    with pytest.raises((sp.SandboxSetupError, MemoryError, OSError)):
        run(["touch", "made"], preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 16, 1 << 16)))
    assert not (ws / "made").exists()


def replace_launcher(monkeypatch, stub):
    backend = _backends.detect("namespaces")
    monkeypatch.setattr(backend, "_launcher", str(stub))
    monkeypatch.setattr(backend, "_launcher_id", (stub.stat().st_dev, stub.stat().st_ino))


@only_namespaces
def test_a_launcher_that_was_replaced_is_not_run(run, ws, monkeypatch, place):
    """A run beside this one moved the directory above the package and put its own program in the launcher's place: it would
    run outside. Only the file that this process began with is executed."""
    stub = place / "launcher"
    stub.write_text(f"#!/bin/sh\ntouch {place}/escaped\n")
    stub.chmod(0o755)
    monkeypatch.setattr(_backends.detect("namespaces"), "_launcher", str(stub))
    assert run(["true"]).returncode == 0  # it is kept open
    monkeypatch.setattr(_descriptors, "launcher_fd", -1)  # but a program may have closed all that it did not know
    with pytest.raises(sp.SandboxSetupError, match="not the one"):
        run(["touch", "made"])
    assert not (ws / "made").exists() and not (place / "escaped").exists()


@only_namespaces
def test_a_launcher_that_is_killed_during_setup_is_a_setup_error(run, ws, monkeypatch, place):
    """Out of memory, or an outer filter: end of file without a word is not "it runs"."""
    stub = place / "launcher"
    stub.write_text("#!/bin/sh\nkill -9 $$\n")
    stub.chmod(0o755)
    replace_launcher(monkeypatch, stub)
    with pytest.raises(sp.SandboxSetupError, match="without a word"):
        run(["touch", "made"])
    assert not (ws / "made").exists()


@only_namespaces
def test_a_launcher_that_exits_with_0_and_runs_nothing_is_a_setup_error(run, monkeypatch, place):
    """The most dangerous way to fail: it would look like an empty, successful run."""
    stub = place / "launcher"
    stub.write_text("#!/bin/sh\nexit 0\n")
    stub.chmod(0o755)
    replace_launcher(monkeypatch, stub)
    with pytest.raises(sp.SandboxSetupError):
        run(["true"])


@only_namespaces
@pytest.mark.parametrize(
    "records, step, number",
    [
        ([(_records.SOURCE, b"/no/such/source")], "open_tree", errno.ENOENT),
        ([(_records.PROTECT, b"/no/such/path")], "protect", errno.ENOENT),
        ([(_records.RULE, b"/no/such/rule")], "landlock_rules", errno.ENOENT),
        ([(_records.MKDIR, b"no/parent")], "mkdir", errno.ENOENT),
        ([(_records.FILTER, b"")], "seccomp", errno.EINVAL),
    ],
)
def test_every_layer_that_cannot_be_applied_names_itself(run, ws, monkeypatch, records, step, number):
    """No restriction is skipped: step, errno and path are in the error, and the command did not run."""
    render = linux_namespaces.render_view

    def broken(plan, ll):
        extra = [
            _records.op(kind, 0, 0, 8, 0, raw=struct.pack("=HBBI", 0xFFFF, 0, 0, 0))
            if kind == _records.FILTER
            else _records.op(kind, 0, 0, 2, 0, text)
            for kind, text in records
        ]
        return [*(e for e in extra if e.kind == _records.SOURCE), *render(plan, ll), *(e for e in extra if e.kind != _records.SOURCE)]

    monkeypatch.setattr(linux_namespaces, "render_view", broken)
    monkeypatch.setattr(_backends.detect("namespaces"), "_rendered", {})
    try:
        with pytest.raises(sp.SandboxSetupError) as error:
            run(["touch", "made"], policy=sp.Policy.workspace_write(ws, terminate_grace=hash(step) % 1000))
    finally:
        _backends.detect("namespaces")._rendered.clear()
    assert (error.value.step, error.value.errno) == (step, number)
    assert "did not run" in str(error.value) and step in str(error.value)
    assert not (ws / "made").exists()


def launch(theirs):
    return subprocess.run(
        [f"sandboxed-subprocess {theirs.fileno()}", "x"], executable=_native.locate(), pass_fds=[theirs.fileno()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_launcher_without_a_plan_says_so():
    """Nothing in its socket, no descriptor in the message, or no socket at all: it must not wait for ever."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert launch(theirs).returncode == 125
        ours.send(b"plan")
        result = launch(theirs)
        assert (result.returncode, result.stderr) == (125, "sandboxed_subprocess launcher: no plan in the first message\n")


@pytest.mark.parametrize("damage", ["empty", "short", "magic", "size", "record", "string", "attach", "sources"])
def test_a_damaged_plan_is_refused_before_anything_happens(ws, damage):
    """Parsed whole, then acted upon: the launcher reads memory that another process wrote."""
    header = _records.HEADER
    good = _records.record(_records.EXEC, 0, 0, 0, 0, b"/bin/true")

    def plan(body, magic=b"sbxplan4", extra=0, sources=0):
        return (
            header.pack(magic, header.size + len(body) + extra, os.getpid(), 0, 0, 0, 0, sources, -1, 0, 0, 0, 0, b"1m", b"1")
            + body
        )

    data = {
        "empty": b"",
        "short": b"sbxplan4",
        "magic": plan(good, magic=b"sbxplan0"),
        "size": plan(good, extra=8),
        "record": plan(struct.pack("=II", 3, 1 << 30) + b"x" * 64),
        "string": plan(_records._RECORD.pack(2, 32, 0, 0, 0, 0) + b"notended"),
        "attach": plan(good + _records.record(_records.ATTACH, 0, 7, 0, 0, b"/")),
        "sources": plan(good, sources=3),
    }[damage]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        send_plan(ours, data)
        result = launch(theirs)
    assert result.returncode == 125
    assert result.stderr.startswith("sandboxed_subprocess launcher: plan")


def test_the_launcher_by_itself_says_what_it_is():
    """Somebody will find it in a process list and try."""
    result = subprocess.run([_native.locate()], capture_output=True, text=True)
    assert result.returncode == 64 and "started by the package" in result.stderr


def test_without_a_launcher_the_first_call_says_how_to_get_one(ws, monkeypatch):
    """An installation that could not compile it; `danger_full_access` needs none."""
    monkeypatch.setattr(_backends, "_found", {})
    monkeypatch.setattr(_native, "PATH", "/no-launcher")
    with pytest.raises(sp.SandboxUnavailable, match="has no launcher") as error:
        sp.run(["true"], policy=sp.Policy.workspace_write(ws))
    assert "pip install" in error.value.advice
    assert sp.run(["true"], policy="danger-full-access").returncode == 0


def test_a_policy_that_needs_what_nothing_here_has_is_refused_by_name(ws):
    """Never silently weaker: what cannot be enforced is said, and the command does not run."""
    rules = [sp.network_rule("example.org", 443)]
    for policy, words in (
        (sp.Policy.workspace_write(ws, network=rules), "host rules"),
        (sp.Policy.workspace_write(ws, publish=[8000]), "ports published"),
        (sp.Policy.workspace_write(ws, caches=["pip"]), "caches"),
        (sp.Policy.workspace_write(ws, commands=sp.ExecPolicy(rules, "allow")), "host rules"),
    ):
        with pytest.raises(sp.SandboxUnavailable, match=words):
            sp.run(["touch", "made"], cwd=ws, policy=policy)
    with pytest.raises(sp.PolicyError, match="never asked"):  # who reads "approver=" believes that somebody is
        sp.run(["touch", "made"], cwd=ws, policy=sp.Policy.workspace_write(ws, approver=lambda request: False))
    assert not (ws / "made").exists()


def test_a_policy_that_differs_in_a_callback_only_is_another_policy(ws):
    """Callbacks did not count in the comparison, so that the plan of the same policy without them was taken."""
    policy = sp.Policy.workspace_write(ws)
    assert sp.run(["true"], policy=policy).returncode == 0
    with pytest.raises(sp.PolicyError, match="approver"):
        sp.run(["touch", "made"], cwd=ws, policy=policy.replace(approver=print))
    assert not (ws / "made").exists()
    for _ in range(2):
        events = []
        sp.run(["sleep", "0.3"], cwd=ws, policy=policy.replace(on_event=events.append, event_interval=0.1))
        assert events  # and those of this run, not of the one before


def test_best_effort_runs_and_reports_every_gap(ws, monkeypatch):
    """Only where it was asked for; the rest of the policy still holds. A warning says it, once in each process."""
    monkeypatch.setattr(_prepare, "_told", set())
    policy = sp.Policy.workspace_write(ws, publish=[8000], caches=["pip"], enforcement="best-effort")
    with pytest.warns(sp.SandboxWarning, match=r"run without: cache directories \(caches=\); ports published to the host") as warned:
        result = sp.run(["sh", "-c", "echo x > made; echo x > ../other"], cwd=ws, policy=policy, capture_output=True)
    sp.run(["true"], policy=policy)
    assert warned[0].filename == __file__
    assert (ws / "made").exists() and not (ws.parent / "other").exists()
    assert result.sandbox.enforcement is sp.Enforcement.PARTIAL
    assert result.sandbox.gaps == ("cache directories (caches=)", "ports published to the host")


@only_namespaces
@pytest.mark.filterwarnings("ignore::sandboxed_subprocess.SandboxWarning")
def test_without_landlock_the_policy_is_refused_and_best_effort_names_it(ws, monkeypatch):
    """Writing into a named pipe of the host passes a read-only mount; only Landlock stops it, so its absence is a gap."""
    from sandboxed_subprocess._backends._landlock import Landlock

    bare = linux_namespaces.Namespaces(_native.locate(), Landlock(0, missing="this kernel has no Landlock"))
    monkeypatch.setitem(_backends._found, "namespaces", bare)
    with pytest.raises(sp.SandboxUnavailable, match=r"named pipes.*no Landlock"):
        sp.run(["true"], policy=sp.Policy.workspace_write(ws, backend="namespaces"))
    result = sp.run(
        ["sh", "-c", "echo x > ../other"],
        cwd=ws,
        policy=sp.Policy.workspace_write(ws, enforcement="best-effort", backend="namespaces"),
        capture_output=True,
    )
    assert result.returncode != 0 and not (ws.parent / "other").exists()
    assert result.sandbox.gaps == ("named pipes of the host, and files handed over for reading, cannot be written",)


@only_namespaces
@pytest.mark.filterwarnings("ignore::sandboxed_subprocess.SandboxWarning")
def test_a_landlock_that_does_not_see_truncation_still_leaves_handed_over_files_whole(ws, monkeypatch):
    """Linux 5.19 to 6.1: the right TRUNCATE was left out there without a word, and truncate("/proc/self/fd/0") emptied a
    file of the host that was handed over for reading."""
    from sandboxed_subprocess._backends._landlock import IOCTL_DEV, TRUNCATE, Landlock, landlock

    old = linux_namespaces.Namespaces(_native.locate(), Landlock(2, landlock().write & ~(TRUNCATE | IOCTL_DEV)))
    monkeypatch.setitem(_backends._found, "namespaces", old)
    outside = ws.parent / "outside"
    outside.write_text("kept")
    (ws / "own").write_text("long")
    code = """
import os
for how in (
    lambda: os.truncate("/proc/self/fd/0", 0),
    lambda: os.open("/proc/self/fd/0", os.O_RDONLY | os.O_TRUNC),
    lambda: os.open("/proc/self/fd/0", 3 | os.O_TRUNC),
    lambda: os.open("/proc/self/fd/0", os.O_WRONLY | os.O_TRUNC),
    lambda: os.open("/proc/self/fd/0", os.O_RDWR),
):
    try:
        how()
        print("done")
    except OSError as error:
        print("refused")
open("own", "w").write("new")
with open("own", "r+") as file:
    file.truncate(1)
"""
    with outside.open() as handed_over:
        result = sp.run(
            [sys.executable, "-c", code],
            cwd=ws,
            policy=sp.Policy.workspace_write(ws, enforcement="best-effort"),
            stdin=handed_over,
            capture_output=True,
            text=True,
        )
    assert result.stdout == "refused\n" * 5, result.stderr
    assert outside.read_text() == "kept"
    assert (ws / "own").read_text() == "n"


@only_namespaces
def test_without_libseccomp_the_policy_is_refused(ws, monkeypatch):
    """The filter is not optional."""
    from sandboxed_subprocess._backends import _seccomp

    def broken(*arguments):
        raise sp._errors.Missing("libseccomp.so.2 is not there", "install it")

    monkeypatch.setattr(_linux, "compile_filter", broken)
    monkeypatch.setitem(
        _backends._found, "namespaces", linux_namespaces.Namespaces(_native.locate(), linux_namespaces.landlock())
    )
    with pytest.raises(sp.SandboxUnavailable, match=r"system calls.*libseccomp"):
        sp.run(["true"], policy=sp.Policy.workspace_write(ws, backend="namespaces"))
    assert _seccomp.compile_filter(())


@pytest.mark.parametrize("attempt", ["program", "cwd", "policy", "unavailable", "setup"])
def test_failed_launches_leave_nothing(ws, attempt):
    """Fifty of each: no descriptor, no process, no file."""
    policy = sp.Policy.workspace_write(ws)
    cases = {
        "program": (["no-such-program"], {}, FileNotFoundError),
        "cwd": (["true"], {"cwd": "/nope"}, FileNotFoundError),
        "policy": (["true"], {"policy": sp.Policy.workspace_write(ws / "missing")}, sp.PolicyError),
        "unavailable": (["true"], {"policy": policy.replace(publish=[8000])}, sp.SandboxUnavailable),
        "setup": (["true"], {"preexec_fn": lambda: os.closerange(3, 256)}, sp.SandboxSetupError),
    }
    args, options, kind = cases[attempt]
    children = lambda: pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text()  # noqa: E731
    before = (len(os.listdir("/proc/self/fd")), children())
    for _ in range(50):
        with pytest.raises(kind):
            sp.Popen(args, stdin=sp.PIPE, stdout=sp.PIPE, stderr=sp.PIPE, **{"policy": policy, **options})
    assert (len(os.listdir("/proc/self/fd")), children()) == before
    assert list(ws.iterdir()) == []


def test_keyboard_interrupt_while_the_sandbox_is_set_up(ws, tier):
    """Ctrl-C at the worst moment: the error arrives, and nothing is left running."""
    code = (
        "import os, signal, threading, sandboxed_subprocess as sp\n"
        "from sandboxed_subprocess._backends import _channel\n"
        "settle = _channel.ChannelLaunch.settle\n"
        "def slow(self, pid):\n    os.kill(os.getpid(), signal.SIGINT); settle(self, pid)\n"
        "_channel.ChannelLaunch.settle = slow\n"
        f"try: sp.run(['sleep', '600'], policy=sp.Policy.workspace_write({str(ws)!r}))\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "try: os.waitpid(-1, os.WNOHANG); print('left')\n"
        "except ChildProcessError: print('nothing left')\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout == "interrupted\nnothing left\n", out.stderr


def test_rlimit_nofile_of_20_is_a_typed_error_or_works(ws, tier):
    """A caller with few descriptors must get an error that says so, not a weaker sandbox."""
    code = (
        "import resource, sandboxed_subprocess as sp\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        f"r = sp.run(['sh', '-c', 'echo ran'], policy=sp.Policy.workspace_write({str(ws)!r}), capture_output=True, text=True)\n"
        "print(r.stdout, end='')\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout == "ran\n" or "RLIMIT_NOFILE" in out.stderr, out.stderr


def test_an_exhausted_descriptor_table_is_an_ordinary_oserror(policy, ws):
    """EMFILE in the caller, as from the stdlib; everything opened so far is closed again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sp.run(["true"], policy=policy)
    highest = max(int(n) for n in os.listdir("/proc/self/fd"))
    for room in range(1, 9):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + room, hard))
        try:
            try:
                sp.run(["true"], policy=policy)
            except (OSError, sp.SandboxSetupError) as error:
                assert getattr(error, "errno", None) == errno.EMFILE, error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_root_caller_is_not_needed_and_does_not_help(run):
    """The same powerlessness for both: no capabilities at all, and none to be had."""
    status = run(["cat", "/proc/self/status"]).stdout
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(values[name], 16) == 0, name
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    assert values["Uid"].split() == [str(os.geteuid())] * 4


@pytest.mark.parametrize("world", ["sync"], indirect=True)  # a loop calls settle() only once there is something to be read
@pytest.mark.parametrize("victim", ["monitor", "init"])
def test_a_launcher_killed_at_any_moment_is_a_setup_error_or_a_death_of_the_command(run, ws, monkeypatch, victim):
    """Never a result that the command did not have: set-up that was killed halfway must not look like an exit status."""
    chance = random.Random(7)
    settle = ChannelLaunch.settle

    def killing(self, pid):
        end = time.monotonic() + chance.random() * 0.003
        while time.monotonic() < end:
            pass
        if victim == "init":
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
            os.kill(int(wait_until(lambda: children.read_text().split())[0]), signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
        settle(self, pid)

    monkeypatch.setattr(ChannelLaunch, "settle", killing)
    seen = set()
    for number in range(60):
        try:
            result = run(["sh", "-c", f"touch ran-{number}; sleep 60"])
        except sp.SandboxSetupError as error:
            # Without a word from it, nobody knows; the error says so.
            assert "was ended, if it had begun" in str(error) or not (ws / f"ran-{number}").exists()
            seen.add("error")
        else:
            assert result.returncode == -signal.SIGKILL
            seen.add("killed")
    assert "error" in seen
