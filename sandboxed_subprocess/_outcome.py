"""What a command came to, as results and errors: shared by the synchronous and the asynchronous side."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from subprocess import CalledProcessError, TimeoutExpired
from typing import TYPE_CHECKING, Any, AnyStr, cast

from ._errors import LimitExceeded, SandboxSetupError
from ._launch import ExecFailed, Launch
from ._report import Report

if TYPE_CHECKING:
    from ._output import Kept

# Popen's parameters after args, in their order; those after the last one are keyword-only in the stdlib as well.
POSITIONAL = (
    "bufsize", "executable", "stdin", "stdout", "stderr", "preexec_fn", "close_fds", "shell", "cwd", "env",
    "universal_newlines", "startupinfo", "creationflags", "restore_signals", "start_new_session", "pass_fds",
)  # fmt: skip


_NAMES = {1: "stdout", 2: "stderr"}


class CompletedProcess(subprocess.CompletedProcess[AnyStr]):
    """What `run()` returns: `subprocess.CompletedProcess`, with the run's report as `.sandbox`."""

    sandbox: Report


@contextlib.contextmanager
def spawning(launch: Launch, program: Any) -> Iterator[None]:
    """Around the spawn of the launcher: where it fails nothing stays open, and the error is about the user's program."""
    try:
        yield
    except OSError as error:
        launch.abandon()
        raise _explained(error, launch, program) from None
    except BaseException:
        launch.abandon()
        raise
    finally:
        launch.close_child_side()


def refusal(error: ExecFailed | SandboxSetupError, program: Any) -> Exception:
    """What the caller gets where `settle()` says that the command does not run."""
    if isinstance(error, ExecFailed):
        return _exec_error(error.errno, program)
    if error.step == "user":
        # What Popen itself says when it cannot switch the user.
        return OSError(error.errno, os.strerror(error.errno))
    return error


def kill_unconfined(pid: int, kill: Callable[[], None]) -> None:
    """Without a sandbox there is no process 1 to end; what psutil finds below the command is what can be ended.

    Args:
        kill: ends the command itself.
    """
    import psutil

    try:
        family = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        family = []
    kill()
    for process in family:
        try:
            process.kill()
        except psutil.Error:
            continue


def _explained(error: OSError, launch: Launch, program: Any) -> Exception:
    """The launcher is the program that Popen tried to execute; its failure is not the command's."""
    if error.filename != launch.executable:
        return error
    if error.errno == errno.E2BIG:
        return _exec_error(errno.E2BIG, program)
    return SandboxSetupError(
        "exec of the launcher", error.errno or 0, detail="preexec_fn closed its file descriptors, or a limit is too low"
    )


def _exec_error(number: int, program: Any) -> OSError:
    return OSError(number, os.strerror(number), program)


def told(report: Report, kept: Mapping[int, Kept]) -> None:
    """Has the report say what was dropped of the outputs, by file descriptor."""
    report.output_dropped = tuple((_NAMES[fd], part.dropped) for fd, part in sorted(kept.items()) if part.dropped)


def expired(args: Any, timeout: float, stdout: bytes | None, stderr: bytes | None, report: Report | None) -> TimeoutExpired:
    error = TimeoutExpired(args, timeout, stdout, stderr)
    error.sandbox = report  # type: ignore[attr-defined]
    return error


def failed(process: Any, retcode: int, stdout: Any, stderr: Any) -> CalledProcessError:
    report = getattr(process, "sandbox", None)
    error: CalledProcessError
    if report is not None and report.limit:
        error = LimitExceeded(retcode, cast(Any, process.args), stdout, stderr, report.limit)
    else:
        error = CalledProcessError(retcode, process.args, output=stdout, stderr=stderr)
    error.sandbox = report  # type: ignore[attr-defined]
    return error
