"""Return codes and errors: exactly those of the stdlib."""

from __future__ import annotations

import errno
import os
import pathlib
import pickle
import signal
import subprocess
import sys

import pytest

import sandboxed_subprocess as sp


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV, signal.SIGABRT])
def test_death_by_a_signal_is_minus_its_number(sh, number):
    """A pid 1 in between usually turns it into 128+N, and callers that look for -9 misjudge an out-of-memory kill."""
    result = sh(f"kill -{int(number)} $$")
    assert result.returncode == -number
    assert result.sandbox.ended == "signal"


@pytest.mark.parametrize("status", [0, 1, 2, 125, 126, 127, 128, 137, 143, 255])
def test_exit_statuses_come_back_as_they_are(sh, status):
    """137 is what a shell says of a killed job: arithmetic on it would make a death of the command out of it."""
    assert sh(f"exit {status}").returncode == status


def test_a_killed_job_of_a_shell_stays_137(run):
    """The shell exits; only its child was killed."""
    assert run(["bash", "-c", "sleep 9 & kill -9 $!; wait $!"]).returncode == 137


def test_a_missing_program_is_file_not_found_with_its_name(run):
    """The launcher exists and starts; that must not turn the failure into an exit status."""
    for program in ("no-such-program-xyz", pathlib.Path("/no/such/program"), b"no-such-bytes"):
        with pytest.raises(FileNotFoundError) as plain:
            subprocess.run([program])
        with pytest.raises(FileNotFoundError) as error:
            run([program])
        # The object that was given; Python 3.13's posix_spawn makes text of a path.
        assert error.value.errno == plain.value.errno
        assert os.fspath(error.value.filename) == os.fspath(plain.value.filename) == os.fspath(program)


def test_a_missing_program_under_a_shell_is_127(run):
    """There the shell is the program, and it was found."""
    assert run("no-such-program-xyz", shell=True).returncode == 127


def test_a_file_that_cannot_be_executed(run, ws):
    """No shell fallback: a script without a first line is ENOEXEC in the stdlib, and so it is here."""
    (ws / "plain").write_text("echo hi\n")
    with pytest.raises(PermissionError) as error:
        run([str(ws / "plain")])
    assert error.value.filename == str(ws / "plain")
    (ws / "plain").chmod(0o755)
    with pytest.raises(OSError) as error:
        run([str(ws / "plain")])
    assert error.value.errno == errno.ENOEXEC
    (ws / "orphan").write_text("#!/no/such/interpreter\n")
    (ws / "orphan").chmod(0o755)
    with pytest.raises(FileNotFoundError) as error:
        run([ws / "orphan"])
    assert error.value.filename == ws / "orphan"


def test_the_first_telling_error_along_path_wins(run, ws):
    """As in _posixsubprocess: a file that is there and cannot be executed says more than ten directories without it."""
    for name in ("a", "b"):
        (ws / name).mkdir()
    (ws / "a/tool").write_text("not executable")
    with pytest.raises(PermissionError):
        run(["tool"], env={"PATH": f"{ws}/a:{ws}/b:/nowhere"})
    (ws / "b/tool").write_text("#!/bin/sh\necho found\n")
    (ws / "b/tool").chmod(0o755)
    assert run(["tool"], env={"PATH": f"{ws}/a:{ws}/b:/usr/bin:/bin"}).stdout == "found\n"


def test_a_missing_working_directory_is_blamed_by_name(run, ws):
    """The launcher's own chdir comes later and elsewhere; the caller must see the stdlib's error."""
    with pytest.raises(FileNotFoundError) as error:
        run(["true"], cwd="/no/such/directory")
    assert error.value.filename == "/no/such/directory"
    (ws / "file").write_text("")
    with pytest.raises(NotADirectoryError) as error:
        run(["true"], cwd=ws / "file")
    assert error.value.filename == ws / "file"


def test_a_working_directory_that_is_hidden_inside_is_refused_by_name(run, tmp_path):
    """/tmp is private: an empty directory in place of the one that was named would be worse than an error."""
    with pytest.raises(sp.SandboxSetupError, match="not visible inside") as error:
        run(["true"], cwd=tmp_path)
    assert (error.value.step, error.value.errno, error.value.path) == ("chdir", errno.ENOENT, str(tmp_path))


@pytest.mark.parametrize(
    "args, options, kind",
    [
        ([], {}, IndexError),
        ([1], {}, TypeError),
        (["true", None], {}, TypeError),
        (["true", "a\0b"], {}, ValueError),
        (["a\0b"], {}, ValueError),
        (["true"], {"env": {"A=B": "x"}}, ValueError),
        (["true"], {"env": {"A": "x\0y"}}, ValueError),
        (["true"], {"env": {"A": 1}}, TypeError),
        (["true"], {"bufsize": "x"}, TypeError),
        (["true"], {"no_such_option": 1}, TypeError),
        (pathlib.Path("/bin/true"), {"shell": True}, TypeError),
        (["true"], {"stdin": "x"}, AttributeError),
    ],
)
def test_bad_arguments_raise_what_the_stdlib_raises(args, options, kind, policy):
    """Drop-in includes the mistakes; and nothing may stay open after them."""
    with pytest.raises(kind):
        subprocess.run(args, **options)
    with pytest.raises(kind):
        sp.run(args, policy=policy, **options)


def test_argument_forms(run, ws):
    """Bytes, paths, generators, and a name for argv[0] that is not the program's; `args` comes back as it was given."""
    assert run([b"printf", b"%s", b"\xff\xfe"], text=False).stdout == b"\xff\xfe"
    generator = (part for part in ["echo", "generated"])
    result = run(generator)
    assert result.stdout == "generated\n" and result.args is generator
    assert run([pathlib.Path("/bin/echo"), "path"]).stdout == "path\n"
    assert run(["argv0", "-c", "echo $0"], executable="/bin/sh").stdout == "argv0\n"
    assert run("/bin/echo").stdout == "\n"
    assert run("echo $0 $1", shell=True, executable="/bin/bash").stdout.startswith("/bin/bash")
    odd = os.fsdecode(bytes(ws) + b"/\xff\xfe dir")
    os.mkdir(odd)
    assert run(["touch", "f"], cwd=odd).returncode == 0 and os.path.exists(odd + "/f")


def test_long_argument_vectors_work_and_too_long_ones_are_e2big(run):
    """The command's arguments are the launcher's own, so the kernel's limits are the same."""
    assert run(["true"] + ["a" * 1000] * 1000).returncode == 0
    with pytest.raises(OSError) as error:
        run(["true", "a" * 140_000])
    assert (error.value.errno, error.value.filename) == (errno.E2BIG, "true")


def test_check_raises_with_everything(run):
    """CalledProcessError is the stdlib's own class, so that existing handlers go on working."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=True)
    assert (error.value.returncode, error.value.output, error.value.stderr) == (3, "out\n", "err\n")
    assert error.value.sandbox.backend


def test_timeout_has_the_partial_output_and_the_report(run):
    """As `subprocess.run`, which hands over what was read so far."""
    with pytest.raises(subprocess.TimeoutExpired) as error:
        run(["sh", "-c", "echo partial; sleep 60"], timeout=1)
    assert b"partial" in (error.value.stdout if isinstance(error.value.stdout, bytes) else error.value.stdout.encode())
    assert error.value.sandbox.ended == "timeout"


def test_results_survive_pickling(run):
    """They travel between processes in pools and schedulers."""
    result = run(["echo", "x"])
    again = pickle.loads(pickle.dumps(result))
    assert (again.returncode, again.stdout, again.sandbox) == (0, "x\n", result.sandbox)


def test_large_input_and_output(run):
    """10 MB through both pipes, and a child that does not read at all."""
    data = os.urandom(10_000_000)
    assert run(["cat"], input=data, text=False).stdout == data
    assert run(["true"], input=b"x" * 5_000_000, text=False).returncode == 0
    assert run(["cat"], input="", text=True).stdout == ""


def test_the_small_functions(policy, ws):
    """call, check_call, check_output, getoutput, getstatusoutput."""
    assert sp.call(["sh", "-c", "exit 3"], policy=policy) == 3
    assert sp.check_call(["true"], policy=policy) == 0
    with pytest.raises(sp.CalledProcessError):
        sp.check_call(["false"], policy=policy)
    assert sp.check_output(["echo", "x"], policy=policy) == b"x\n"
    assert sp.check_output(["cat"], input=None, policy=policy) == b""
    with pytest.raises(ValueError):
        sp.check_output(["true"], stdout=1, policy=policy)
    assert sp.getoutput("echo x; exit 2", policy=policy) == "x"
    assert sp.getstatusoutput("echo x; exit 2", policy=policy) == (2, "x")


def test_exceptions_and_constants_are_the_stdlibs_own():
    """`except subprocess.TimeoutExpired` has to go on working in code that imports both."""
    for name in ("CalledProcessError", "TimeoutExpired", "SubprocessError", "PIPE", "STDOUT", "DEVNULL"):
        assert getattr(sp, name) is getattr(subprocess, name)
    assert issubclass(sp.Popen, subprocess.Popen) and issubclass(sp.CompletedProcess, subprocess.CompletedProcess)
    assert issubclass(sp.SandboxError, subprocess.SubprocessError)


def test_nothing_public_of_the_stdlib_comes_in_unsandboxed():
    """A spawner that a later CPython adds must not be reachable through this module by accident."""
    for name in subprocess.__all__:
        if callable(getattr(subprocess, name)) and not isinstance(getattr(subprocess, name), type):
            assert getattr(sp, name, None) is not getattr(subprocess, name) or name == "list2cmdline", name
    assert sp.Popen is not subprocess.Popen
    with pytest.raises(AttributeError):
        sp.run_pipeline  # noqa: B018


def test_unknown_policies_are_refused_before_anything_runs(ws):
    """A misspelt preset must not become some default."""
    for policy in ("workspace-wirte", 7, object()):
        with pytest.raises(sp.PolicyError):
            sp.run(["touch", "made"], cwd=ws, policy=policy)
    assert list(ws.iterdir()) == []


def test_closed_standard_streams_of_the_caller(ws, tier):
    """With 0-2 closed the library's own descriptors would get those numbers, and be written over."""
    code = (
        "import os, sys, sandboxed_subprocess as sp\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "r, w = os.pipe(); a = os.dup(w)\n"
        f"p = sp.run(['sh', '-c', 'ls /proc/self/fd > {ws}/fds; echo done > {ws}/out'], policy=sp.Policy.workspace_write({str(ws)!r}))\n"
        "os._exit(p.returncode)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert (ws / "out").read_text() == "done\n"
