"""Field cases of the standard library's contract: what wrappers around `subprocess` get wrong."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
from conftest import ROOT, processes_with, wait_until

import sandboxed_subprocess as sp

PY = sys.executable


# -- timeouts and output -------------------------------------------------------------------------------------------------


def test_a_timeout_under_a_shell_does_not_wait_for_the_grandchild(run):
    """Only the shell is killed elsewhere; what it started keeps the pipe open, and lives on (python/cpython#76116)."""
    begin = time.monotonic()
    with pytest.raises(sp.TimeoutExpired):
        run("sleep 981.25 & wait", shell=True, timeout=0.5)
    assert time.monotonic() - begin < 30
    assert processes_with("981.25") == []


def test_communicate_returns_after_kill(ws, policy):
    """The documented recovery after a timeout; elsewhere it blocks on whoever else holds the pipe (python/cpython#82388)."""
    process = sp.Popen("echo started; sleep 982.25 & sleep 982.25", shell=True, stdout=sp.PIPE, policy=policy, cwd=ws)
    with pytest.raises(sp.TimeoutExpired) as expired:
        process.communicate(timeout=0.3)
    assert expired.value.sandbox is process.sandbox
    process.kill()
    begin = time.monotonic()
    assert process.communicate() == (b"started\n", None)
    assert time.monotonic() - begin < 30 and process.returncode == -9
    assert processes_with("982.25") == []


def test_the_partial_output_of_a_timeout_is_never_lost_nor_decoded_halfway(run):
    """In text mode too; the cut may fall inside a character (python/cpython#87597)."""
    code = "import sys, time; sys.stdout.buffer.write('part ☕'.encode()[:-1]); sys.stdout.flush(); time.sleep(60)"
    with pytest.raises(sp.TimeoutExpired) as ours:
        run([PY, "-c", code], timeout=1.5)
    with pytest.raises(sp.TimeoutExpired) as theirs:
        subprocess.run([PY, "-c", code], capture_output=True, text=True, timeout=1.5)
    assert ours.value.stdout == theirs.value.stdout == "part ☕".encode()[:-1]


def test_every_timeout_carries_the_report(ws, policy):
    """An agent shows what a command had done when its time was up."""
    with sp.Popen(["sleep", "60"], policy=policy, cwd=ws) as process:
        for wait in (lambda: process.wait(0.05), lambda: process.wait(0), lambda: process.wait(timeout=-1)):
            with pytest.raises(sp.TimeoutExpired) as expired:
                wait()
            assert expired.value.sandbox is process.sandbox and expired.value.cmd == ["sleep", "60"]
        assert expired.value.timeout == -1
        process.kill()


def test_a_wait_with_a_timeout_does_not_poll(ws, policy):
    """The stdlib sleeps up to 50 ms between two looks; here the kernel wakes the caller."""
    slept = mock.patch("time.sleep", side_effect=AssertionError("slept"))
    with sp.Popen(["cat"], stdin=sp.PIPE, policy=policy, cwd=ws) as process, slept:
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_wait_with_a_timeout_survives_a_lack_of_descriptors_and_foreign_reaping(ws, policy):
    """Then there is no pidfd, and the stdlib's way is as good as ever."""
    shortage = mock.patch("os.pidfd_open", side_effect=OSError(24, "Too many open files"))
    with sp.Popen(["true"], policy=policy, cwd=ws) as process, shortage:
        assert process.wait(timeout=60) == 0
    with sp.Popen(["true"], policy=policy, cwd=ws) as process:
        os.waitpid(process.pid, 0)
        assert process.wait(timeout=60) == 0  # what the stdlib says when somebody else took the status


def test_text_newlines_and_errors(run):
    """Who reads bytes and decodes by hand forgets one of these."""
    assert run(["printf", r"a\r\nb\rc\n"]).stdout == "a\nb\nc\n"
    code = "import sys; sys.stdout.buffer.write(b'\\xff')"
    assert run([PY, "-c", code], text=None, encoding="utf-8", errors="replace").stdout == "\N{REPLACEMENT CHARACTER}"


def test_input_for_a_command_that_does_not_read(run):
    """Neither a broken pipe nor a full one is the caller's problem."""
    assert run(["true"], text=False, input=b"x" * 5_000_000).returncode == 0
    with pytest.raises(sp.TimeoutExpired):
        run(["sleep", "60"], text=False, input=b"x" * 5_000_000, timeout=0.5)


@pytest.mark.parametrize("data", [b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), memoryview(b"b.y.t.e.s.")[::2].tobytes()])
def test_input_of_every_type(run, data):
    """Whatever has a buffer, as in the stdlib."""
    assert run(["cat"], text=False, input=data).stdout == b"bytes"


def test_a_hundred_megabytes_to_a_slow_reader_and_back(run):
    """Both pipes fill up; only reading and writing at the same time gets through."""
    code = (
        "import sys, time\n"
        "seen = 0\n"
        "while data := sys.stdin.buffer.read(1 << 20):\n"
        "    seen += len(data); sys.stdout.buffer.write(data)\n"
        "    time.sleep(0.002)\n"
    )
    data = os.urandom(1 << 20) * 100
    assert run([PY, "-c", code], text=False, input=data).stdout == data


# -- errors ----------------------------------------------------------------------------------------------------------------


def test_errors_of_the_working_directory_and_of_descriptors_name_their_own(run, ws):
    """With a launcher in between the blame easily goes to the wrong thing."""
    (ws / "file").touch()
    for cwd, kind in (("/nonexistent-dir", FileNotFoundError), (str(ws / "file"), NotADirectoryError)):
        with pytest.raises(kind) as error:
            run(["true"], cwd=cwd)
        assert error.value.filename == cwd
    with pytest.raises(OSError) as error:
        run(["true"], pass_fds=[777])
    assert error.value.errno == 9


def test_failed_spawns_leak_nothing(ws, policy):
    """No descriptor, thread or process, and without a garbage collection (python/cpython#87474).

    A thread of an earlier test that was just ending made the count of threads differ: only those that are new count.
    """
    state = lambda: (sorted(os.listdir("/proc/self/fd")), pathlib.Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text())  # noqa: E731
    bad = policy.replace(publish=[8000])  # refused for now
    gc.disable()
    try:
        for _ in range(2):
            before, threads = state(), {*threading.enumerate()}
            for _ in range(30):
                for arguments, options in (
                    (["no-such"], {"stdin": sp.PIPE, "stdout": sp.PIPE, "stderr": sp.PIPE}),
                    (["true"], {"cwd": "/nope"}),
                    (["true"], {"policy": "no-such-preset"}),
                    (["true"], {"policy": bad, "cwd": ws, "stdout": sp.PIPE}),
                    (["true"], {"bufsize": "x", "stdin": sp.PIPE}),
                    (["true"], {"nonsense": 1}),
                    (["\0"], {"stdout": sp.PIPE}),
                ):
                    with pytest.raises((OSError, ValueError, TypeError, sp.SandboxError)):
                        sp.Popen(arguments, **{"policy": policy, **options})
            assert state() == before
            assert {*threading.enumerate()} <= threads
    finally:
        gc.enable()


def test_results_and_errors_survive_pickling_and_have_the_stdlibs_texts(run):
    """Process pools send them home."""
    with pytest.raises(sp.CalledProcessError) as failed:
        run(["sh", "-c", "kill -9 $$"], check=True)
    assert str(failed.value).endswith("died with <Signals.SIGKILL: 9>.")
    again = pickle.loads(pickle.dumps(failed.value))
    assert (again.returncode, again.cmd, again.stdout) == (-9, failed.value.cmd, "")
    assert again.sandbox.ended == "signal"
    with pytest.raises(sp.CalledProcessError) as small:
        sp.check_call(["false"], policy="read-only", cwd="/")
    assert small.value.sandbox.backend and small.value.cmd == ["false"]


def test_a_process_shows_itself_as_in_the_stdlib(ws, policy):
    """repr(), args and pid, before and after."""
    with sp.Popen(["sleep", "60"], policy=policy, cwd=ws) as process:
        assert repr(process) == "<Popen: returncode: None args: ['sleep', '60']>"
        assert process.args == ["sleep", "60"] and process.pid > 0 and process.sandbox.pid not in (None, process.pid)
        process.kill()
        process.wait()
        assert repr(process) == "<Popen: returncode: -9 args: ['sleep', '60']>"


# -- arguments ---------------------------------------------------------------------------------------------------------------


def test_arguments_of_every_kind(run, ws):
    """Bytes that are no text, paths, generators that can be read once, another argv[0]."""
    assert run([b"printf", b"%s", b"\xff\xfe"], text=False).stdout == b"\xff\xfe"
    words = (word for word in ["echo", "gen"])
    result = run(words)
    assert result.stdout == "gen\n" and result.args is words
    assert run([pathlib.Path("/bin/echo"), "p"]).stdout == "p\n"
    assert run(pathlib.Path("/bin/pwd")).stdout == f"{ws}\n"
    assert run(["argv0name", "-c", "echo $0"], executable="/bin/sh").stdout == "argv0name\n"
    assert run("echo $0 $BASH", shell=True, executable="/bin/bash").stdout == "/bin/bash /bin/bash\n"
    odd = os.fsencode(ws) + b"/\xff\xfe dir"
    os.mkdir(odd)
    assert run(["touch", "f"], cwd=odd).returncode == 0 and os.path.exists(odd + b"/f")


def test_the_program_is_looked_up_in_the_path_that_the_command_gets(run, ws):
    """As the stdlib does: in env["PATH"], if there is an env."""
    (ws / "bin").mkdir()
    (ws / "bin/mytool").write_text("#!/bin/sh\necho mine\n")
    (ws / "bin/mytool").chmod(0o755)
    assert run(["mytool"], env={"PATH": f"{ws}/bin:/bin"}).stdout == "mine\n"
    with pytest.raises(FileNotFoundError):
        run(["mytool"])
    with pytest.raises(FileNotFoundError):
        run(["mytool"], env={"PATH": ""})
    assert run(["bin/mytool"]).stdout == "mine\n"  # relative to cwd=, in the child


def test_pass_fds_through_the_launcher(run):
    """The same numbers inside, also for one that is a stream as well, and for those that a launcher would like to use
    (python/cpython#76451)."""
    for number in (None, 3, 24, 28, 33, 35, 200):
        reader, writer = os.pipe()
        if number is not None and number != writer:
            try:
                os.fstat(number)
            except OSError:
                os.dup2(writer, number)
                os.close(writer)
                writer = number
        try:
            run([PY, "-c", f"import os; os.write({writer}, b'via')"], pass_fds=[writer])
            assert os.read(reader, 9) == b"via"
            run([PY, "-c", f"import os; print('out', flush=True); os.write({writer}, b'x')"], capture_output=False,
                stdout=writer, pass_fds=[writer])  # fmt: skip
            assert os.read(reader, 9) == b"out\nx"
        finally:
            os.close(reader)
            os.close(writer)


def test_environments(run):
    """Empty is empty but for the markers; bad names and values are ValueErrors, as in the stdlib."""
    names = {line.partition("=")[0] for line in run(["env"], env={}).stdout.splitlines()}
    assert {name for name in names if "SANDBOX" not in name} == set()
    for bad, words in (({"A=B": "x"}, "illegal environment variable name"), ({"A": "x\0y"}, "embedded null byte")):
        with pytest.raises(ValueError, match=words):
            run(["true"], env=bad)
    assert run(["sh", "-c", "echo $LD_PRELOAD"], env={"LD_PRELOAD": "/x.so", "PATH": "/bin"}).stdout == "/x.so\n"


def test_umask_groups_and_sessions(run, ws, policy):
    """What Popen does for a child it does for the command."""
    assert run("umask; touch f", shell=True, umask=0o077).stdout == "0077\n"
    assert stat.S_IMODE((ws / "f").stat().st_mode) == 0o600
    if sys.version_info >= (3, 11):
        with sp.Popen(["sleep", "60"], process_group=0, policy=policy, cwd=ws) as process:
            assert os.getpgid(process.pid) == process.pid
            process.kill()
    with sp.Popen(["sleep", "60"], start_new_session=True, policy=policy, cwd=ws) as process:
        assert os.getsid(process.pid) == process.pid
        process.kill()
    if ROOT:
        ws.chmod(0o755)
        result = run("id -u; id -g; id -G", shell=True, user=65534, group=65533, extra_groups=[7, 8])
        assert result.stdout.split() == ["65534", "65533", "65533", "7", "8"]
    else:
        with pytest.raises(PermissionError):
            run(["id", "-u"], user=0)


def test_preexec_fn_runs_before_the_command_and_outside(run, ws):
    """In the child, in the working directory, and its error is the stdlib's."""
    assert run(["cat", "here"], preexec_fn=lambda: pathlib.Path("here").write_text("pre")).stdout == "pre"
    with pytest.raises(sp.SubprocessError, match="Exception occurred in preexec_fn"):
        run(["true"], preexec_fn=lambda: 1 / 0)


def test_pipesize(ws, policy):
    """It is the caller's pipe; nothing in between may have another."""
    import fcntl

    with sp.Popen(["cat"], stdin=sp.PIPE, stdout=sp.PIPE, pipesize=1 << 17, policy=policy, cwd=ws) as process:
        assert fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ) == 1 << 17
        process.communicate(b"")


def test_restore_signals(run):
    """SIGPIPE is ignored by Python and not by its children, unless asked."""
    show = "grep SigIgn /proc/self/status"
    assert int(run(show, shell=True).stdout.split()[1], 16) & 1 << signal.SIGPIPE - 1 == 0
    assert int(run(show, shell=True, restore_signals=False).stdout.split()[1], 16) & 1 << signal.SIGPIPE - 1


def test_an_audit_hook_sees_the_users_command(ws):
    """Security tools listen for subprocess.Popen; the launcher and an empty environment would tell them nothing."""
    code = (
        "import sys, json\n"
        "seen = []\n"
        "sys.addaudithook(lambda name, args: name == 'subprocess.Popen' and seen.append(args))\n"
        "import sandboxed_subprocess as sp\n"
        f"sp.run(['true', 'x'], env={{'A': 'b', 'PATH': '/bin:/usr/bin'}}, cwd='/', policy=sp.Policy.workspace_write({str(ws)!r}))\n"
        "print(json.dumps([a for a in seen if a[0] == 'true'][0]))\n"
    )
    out = subprocess.run([PY, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == ["true", ["true", "x"], "/", {"A": "b", "PATH": "/bin:/usr/bin"}]


def test_popen_can_be_mocked_where_the_package_is_used():
    """`mock.patch("app.subprocess.Popen")` is how people test their code."""
    with mock.patch.object(sp, "Popen") as popen:
        popen.return_value.__enter__.return_value.communicate.return_value = ("out", "")
        popen.return_value.__enter__.return_value.poll.return_value = 0
        assert sp.run(["never", "run"]).stdout == "out"
        assert sp.check_output(["never", "run"]) == "out"
    assert popen.call_count == 2


# -- threads, forks, other processes -------------------------------------------------------------------------------------------


def test_spawning_from_32_threads_that_allocate_and_log(ws, policy):
    """A preexec_fn in a threaded program can deadlock before the exec; policies must not need one."""
    stop = threading.Event()

    def noise():
        import logging

        logger = logging.getLogger("noise")
        logger.addHandler(logging.NullHandler())
        while not stop.is_set():
            logger.warning("%r", [object() for _ in range(100)])

    limited = policy.replace(open_files=64)
    results = []
    threads = [threading.Thread(target=noise) for _ in range(4)]
    threads += [
        threading.Thread(target=lambda: results.extend(sp.run(["true"], policy=limited, cwd=ws, timeout=60).returncode for _ in range(5)))
        for _ in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads[4:]:
        thread.join()
    stop.set()
    for thread in threads[:4]:
        thread.join()
    assert results == [0] * 160


def test_one_command_does_not_hold_the_pipe_of_another(ws, policy):
    """End of file of one run must not come only when another one ends that was spawned at the same moment."""
    holders = []
    stop = threading.Event()

    def hold():
        while not stop.is_set():
            holders.append(sp.Popen(["sleep", "60"], policy=policy, cwd=ws))
            # Somebody else's code, that passes on whatever is inheritable.
            holders.append(subprocess.Popen(["sleep", "60"], close_fds=False))
            if len(holders) > 60:
                return

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        for _ in range(30):
            assert sp.run(["cat"], input=b"x", capture_output=True, policy=policy, cwd=ws, timeout=20).stdout == b"x"
    finally:
        stop.set()
        thread.join()
        for process in holders:
            process.kill()
        for process in holders:
            process.wait()


WORKERS = """
import multiprocessing, sys
import sandboxed_subprocess as sp
ws, method = sys.argv[1:3]
def spawn(number):
    return sp.run(["sh", "-c", "echo $PPID"], policy=sp.Policy.workspace_write(ws), cwd=ws, capture_output=True, text=True).stdout
if __name__ == "__main__":
    spawn(0)  # so that forked workers inherit a used module
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(spawn, range(4), chunksize=1) == ["1\\n"] * 4
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_commands_from_multiprocessing_workers(ws, tier, place, method):
    """However the workers are made, each is a caller of its own."""
    script = place / "workers.py"
    script.write_text(WORKERS)
    result = subprocess.run([PY, script, ws, method], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_a_command_can_be_started_in_a_forked_child_while_the_parent_has_one(ws, policy):
    """The child has copies of the parent's descriptors, and none of its commands."""
    with sp.Popen(["cat"], stdin=sp.PIPE, stdout=sp.PIPE, policy=policy, cwd=ws) as process:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                process.kill()  # not its to kill
                status = sp.run(["true"], policy=policy, cwd=ws).returncode
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert process.communicate(b"still here") == (b"still here", None)
    assert process.returncode == 0


def test_an_object_that_is_dropped_warns_and_its_command_is_reaped_later(ws, policy):
    """As in the stdlib: ResourceWarning, and the next Popen cleans up."""
    process = sp.Popen(["sleep", "60"], policy=policy, cwd=ws)
    pid = process.pid
    launch = process._launch
    with pytest.warns(ResourceWarning, match="still running"):
        del process
        gc.collect()
    launch.kill(pid)
    wait_until(lambda: sp._cleanup() or not os.path.exists(f"/proc/{pid}"))


def test_inside_its_own_sandbox_the_library_refuses_by_name(py, ws):
    """No second sandbox can be made in there; a command that asks for one must not run without it, and the error says what
    still works."""
    root = pathlib.Path(sp.__file__).parent.parent
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "import sandboxed_subprocess as sp\n"
        "try: sp.run(['touch', 'made'], policy=sp.Policy.workspace_write('.'))\n"
        "except sp.SandboxUnavailable as error: print(error, '|', error.advice)\n"
        "sp.run(['touch', 'plain'], policy='danger-full-access', check=True)\n"
    )
    result = py(code)
    assert "itself in a sandbox of sandboxed_subprocess" in result.stdout and "danger-full-access" in result.stdout, result
    assert (ws / "plain").exists() and not (ws / "made").exists()
