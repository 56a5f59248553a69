"""`subprocess`, sandboxed: Popen and the functions on top of it. Same names, same results, plus `policy=`."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from subprocess import PIPE, STDOUT, CalledProcessError, TimeoutExpired
from typing import TYPE_CHECKING, Any, AnyStr, Generic, cast, overload

from ._errors import SandboxSetupError
from ._launch import ExecFailed, Launch
from ._outcome import POSITIONAL, CompletedProcess, expired, failed, kill_unconfined, refusal, spawning, told
from ._policy import Policy
from ._prepare import is_plain, permitted, plain_policy, plain_program, prepare, resolve_policy
from ._report import Enforcement, Report

if TYPE_CHECKING:
    from typing import Literal

    from typing_extensions import Buffer, Unpack

    from ._typing import AnyOptions, Argv, Options, PopenOptions

_SIGKILL = getattr(signal, "SIGKILL", 9)
_ENDS_ITSELF = 5.0  # seconds
_LONG = 1e6  # seconds; poll(2) takes no more than twice as many


class _Signature:
    """What `inspect.signature(Popen)` says: the parameters of this Python's Popen, and ours."""

    def __get__(self, instance: object, owner: type) -> Any:
        import inspect

        if owner is not Popen:
            raise AttributeError("__signature__")  # a subclass may have a constructor of its own
        theirs = inspect.signature(subprocess.Popen)
        ours = inspect.Parameter("policy", inspect.Parameter.KEYWORD_ONLY, default=None)
        return theirs.replace(parameters=[*theirs.parameters.values(), ours])


class _Limited(dict[Any, Any]):
    """Takes no list for what is read of a stream, but puts something there that keeps less."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, stream: Any, _: Any) -> None:
        from ._output import Kept  # only where there is a limit: it is no part of the import

        super().__setitem__(stream, Kept(self._limit, getattr(stream, "encoding", None), getattr(stream, "errors", None)))


class Popen(subprocess.Popen[AnyStr], Generic[AnyStr]):
    """`subprocess.Popen` in a sandbox.

    Takes what `subprocess.Popen` takes, and `policy=`: a `Policy`, the name of a preset, or None for the default.

    `pid` is the sandbox's; the command's own is `.sandbox.pid`. `kill()` ends the whole tree, and when `wait()` has
    returned, all of it is dead. `terminate()` and `send_signal()` reach the command itself.

    Raises:
        PolicyError: the policy names what cannot be, or the arguments would lead around it.
        SandboxUnavailable: nothing on this host can enforce the policy.
        SandboxSetupError: a restriction could not be put in place. The command did not run.
        OSError and others: exactly as `subprocess.Popen` does.
    """

    sandbox: Report
    __signature__ = _Signature()

    # Which of text, encoding, errors and universal_newlines is given decides the type of the streams, as in typeshed.
    @overload
    def __init__(
        self: Popen[str], args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str,
        errors: str | None = None, universal_newlines: bool | None = None, **options: Unpack[PopenOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Popen[str], args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None,
        errors: str, universal_newlines: bool | None = None, **options: Unpack[PopenOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Popen[str], args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None,
        errors: str | None = None, universal_newlines: Literal[True], **options: Unpack[PopenOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Popen[str], args: Argv, bufsize: int = -1, *, text: Literal[True], encoding: str | None = None,
        errors: str | None = None, universal_newlines: bool | None = None, **options: Unpack[PopenOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Popen[bytes], args: Argv, bufsize: int = -1, *, text: Literal[False] | None = None, encoding: None = None,
        errors: None = None, universal_newlines: Literal[False] | None = None, **options: Unpack[PopenOptions],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Popen[Any], args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None,
        errors: str | None = None, universal_newlines: bool | None = None, **options: Unpack[PopenOptions],
    ) -> None: ...  # fmt: skip
    def __init__(self, args: Any, *positional: Any, policy: Policy | str | None = None, **options: Any) -> None:
        self._launch: Launch | None = None
        self._unconfined = False
        self._most: int | None = None
        if len(positional) > len(POSITIONAL):
            raise TypeError(
                f"Popen.__init__() takes from 2 to {len(POSITIONAL) + 2} positional arguments"
                f" but {len(positional) + 2} were given"
            )
        for name, value in zip(POSITIONAL, positional):
            if name in options:
                raise TypeError(f"Popen.__init__() got multiple values for argument {name!r}")
            options[name] = value
        chosen = plain_policy() if policy is None and is_plain(args) else resolve_policy(policy)
        given = args
        permit = permitted(args, options, chosen)
        if permit is not None:
            args, options, chosen = permit.args, permit.options, permit.policy
        self._most = chosen.limits.output_bytes
        if chosen.unconfined:
            self._unconfined = True
            # Now, not in kill(): by then, a command may have put a psutil.py into the current directory.
            import psutil  # noqa: F401

            self.sandbox = Report(enforcement=Enforcement.NONE, approval=None if permit is None else permit.approval)
            try:
                super().__init__(args, **plain_program(options, permit))
            finally:
                self.args = given
            self.sandbox.pid = self.pid
            return
        launch, options, program = prepare(args, options, chosen, permit)
        self._launch = launch
        self.sandbox = launch.report
        try:
            with spawning(launch, program):
                super().__init__(launch.argv, **options)
        finally:
            self.args = given
        if not self.__dict__.get("_child_created"):  # a mocked _execute_child starts nothing
            launch.abandon()
            return
        try:
            launch.settle(self.pid)
            launch.watch()
        except (ExecFailed, SandboxSetupError) as error:
            # Where this process had no descriptors left, the command runs, and has to be ended.
            self._discard(ends_itself=isinstance(error, ExecFailed) or error.step != "pidfd")
            raise refusal(error, program) from None
        except BaseException:
            self._discard()
            raise

    def _discard(self, ends_itself: bool = False) -> None:
        """The command never ran: end the launcher and close everything, so that only the error remains.

        A launcher that has said what failed ends by itself. Killed before it has reaped process 1 of the sandbox, it
        would leave a zombie to process 1 of a container, which is often the caller.
        """
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        try:
            if ends_itself:
                super().wait(_ENDS_ITSELF)
        except TimeoutExpired:
            pass  # stopped by somebody, or a machine under great load
        finally:
            if super().poll() is None:
                try:
                    os.kill(self.pid, _SIGKILL)
                except ProcessLookupError:
                    pass
            super().wait()

    # The stdlib assigns returncode on every path on which it learns of the end; this is the only place to watch.
    @property
    def returncode(self) -> int | Any:
        return self.__dict__.get("_returncode")

    @returncode.setter
    def returncode(self, value: int | None) -> None:
        self.__dict__["_returncode"] = value
        if value is not None:
            launch = self.__dict__.get("_launch")
            if launch is not None:
                launch.finish()

    if sys.platform == "linux":

        def _wait(self, timeout: float | None) -> int:
            """Where the stdlib's method looks again and again, up to 50 ms apart, this one is told by the kernel."""
            if timeout is not None and timeout > 0 and self.returncode is None and not self._exited_within(timeout):
                try:
                    return cast(int, super()._wait(0))  # type: ignore[misc]
                except TimeoutExpired:
                    raise self._expired(timeout) from None
            try:
                return cast(int, super()._wait(timeout))  # type: ignore[misc]
            except TimeoutExpired as error:
                error.sandbox = self.__dict__.get("sandbox")  # type: ignore[attr-defined]
                raise

        def _exited_within(self, timeout: float) -> bool:
            """False only after that time. True says no more than that the stdlib's method should look."""
            try:
                fd = os.pidfd_open(self.pid)
            except OSError:
                return True  # no such call, no such process, or no descriptors left
            try:
                # Now, and not before the open: a process that is still our child had this pid all the time.
                if self.poll() is not None:
                    return True
                end = time.monotonic() + timeout
                poller = select.poll()
                poller.register(fd, select.POLLIN)
                while (left := end - time.monotonic()) > 0:
                    if poller.poll(math.ceil(min(left, _LONG) * 1000)):
                        return True
                return False
            finally:
                os.close(fd)

    def _expired(self, timeout: float) -> TimeoutExpired:
        return expired(self.args, timeout, None, None, self.__dict__.get("sandbox"))

    if not TYPE_CHECKING:

        def communicate(self, input=None, timeout=None):
            try:
                # Without a timeout the stdlib reads a single stream by another way, and all of it.
                while timeout is None and self._most is not None and (self.stdout or self.stderr):
                    try:
                        return self._with_evidence(super().communicate(input, _LONG))
                    except TimeoutExpired:
                        input = None
                return self._with_evidence(super().communicate(input, timeout))
            except TimeoutExpired as error:
                error.sandbox = self.__dict__.get("sandbox")
                raise
            finally:
                kept = self.__dict__.get("_kept")
                if kept and self._most is not None:
                    told(self.sandbox, {1 if stream is self.stdout else 2: part for stream, part in kept.items()})

        def _with_evidence(self, outputs):
            if self._launch is not None:
                self._launch.read_errors(outputs[1])
            return outputs

        # Where the stdlib collects what it reads, a list for each stream.
        @property
        def _fileobj2output(self):
            return self.__dict__["_kept"]

        @_fileobj2output.setter
        def _fileobj2output(self, value):
            self.__dict__["_kept"] = value if self._most is None else _Limited(self._most)

    def send_signal(self, sig: int) -> None:
        """Sends a signal to the command itself, not to what it started. Nothing happens once it has ended."""
        if self._launch is None:
            super().send_signal(sig)
            return
        self.poll()
        if self.returncode is None:
            self._launch.send_signal(sig)

    def kill(self) -> None:
        """Ends the command and everything that it started."""
        if self._launch is not None:
            self.poll()
            if self.returncode is None:
                self._launch.kill(self.pid)
        elif self._unconfined:
            self.poll()
            if self.returncode is None:
                kill_unconfined(self.pid, super().kill)
        else:
            super().kill()

    def _ask_to_end(self) -> None:
        """SIGTERM to the command, and the policy's time for it to clean up."""
        if sys.platform == "linux" and self._launch is not None and self.poll() is None:
            grace = self._launch.plan.policy.terminate_grace
            if grace > 0:
                try:
                    self._launch.send_signal(signal.SIGTERM)
                except PermissionError:
                    return  # another user by now, who cannot ask; kill() can
                self._exited_within(grace)


def _popen(*args: Any, **kwargs: Any) -> Popen[Any]:
    """`Popen` as the package has it now: tests of our users replace it there (`mock.patch`)."""
    return sys.modules[__package__].Popen(*args, **kwargs)  # type: ignore[no-any-return]


@overload
def run(
    args: Argv, bufsize: int = -1, *, text: Literal[True], encoding: str | None = None, errors: str | None = None,
    universal_newlines: bool | None = None, input: str | None = None, capture_output: bool = False,
    timeout: float | None = None, check: bool = False, **options: Unpack[PopenOptions],
) -> CompletedProcess[str]: ...  # fmt: skip
@overload
def run(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str, errors: str | None = None,
    universal_newlines: bool | None = None, input: str | None = None, capture_output: bool = False,
    timeout: float | None = None, check: bool = False, **options: Unpack[PopenOptions],
) -> CompletedProcess[str]: ...  # fmt: skip
@overload
def run(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None, errors: str,
    universal_newlines: bool | None = None, input: str | None = None, capture_output: bool = False,
    timeout: float | None = None, check: bool = False, **options: Unpack[PopenOptions],
) -> CompletedProcess[str]: ...  # fmt: skip
@overload
def run(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None, errors: str | None = None,
    universal_newlines: Literal[True], input: str | None = None, capture_output: bool = False,
    timeout: float | None = None, check: bool = False, **options: Unpack[PopenOptions],
) -> CompletedProcess[str]: ...  # fmt: skip
@overload
def run(
    args: Argv, bufsize: int = -1, *, text: Literal[False] | None = None, encoding: None = None, errors: None = None,
    universal_newlines: Literal[False] | None = None, input: Buffer | None = None, capture_output: bool = False,
    timeout: float | None = None, check: bool = False, **options: Unpack[PopenOptions],
) -> CompletedProcess[bytes]: ...  # fmt: skip
@overload
def run(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None, errors: str | None = None,
    universal_newlines: bool | None = None, input: Buffer | str | None = None, capture_output: bool = False,
    timeout: float | None = None, check: bool = False, **options: Unpack[PopenOptions],
) -> CompletedProcess[Any]: ...  # fmt: skip
def run(
    *popenargs: Any,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **kwargs: Any,
) -> CompletedProcess[Any]:
    """`subprocess.run` in a sandbox; takes its arguments, and `policy=`.

    The result, and a raised `TimeoutExpired` or `CalledProcessError`, has the run's `Report` as `.sandbox`.

    Raises:
        What `subprocess.run` and `Popen` raise; `LimitExceeded` where a limit ended the run and `check` is true.
    """
    if input is not None:
        if kwargs.get("stdin") is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        kwargs["stdin"] = PIPE
    if capture_output:
        if kwargs.get("stdout") is not None or kwargs.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        kwargs["stdout"] = PIPE
        kwargs["stderr"] = PIPE
    with _popen(*popenargs, **kwargs) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except TimeoutExpired as error:
            report = getattr(process, "sandbox", None)
            if report is not None and process.poll() is None:
                report.ended = "timeout"
            if isinstance(process, Popen):
                process._ask_to_end()
            process.kill()
            process.wait()
            error.sandbox = report  # type: ignore[attr-defined]
            raise
        except BaseException:
            process.kill()
            # Not waited for here: __exit__ does that, with its own care for KeyboardInterrupt.
            raise
        retcode = process.poll()
        if check and retcode:
            raise failed(process, retcode, stdout, stderr)
    result: CompletedProcess[Any] = CompletedProcess(process.args, retcode, stdout, stderr)  # type: ignore[arg-type]
    result.sandbox = getattr(process, "sandbox", Report())
    return result


if TYPE_CHECKING:

    def call(args: Argv, bufsize: int = -1, *, timeout: float | None = None, **options: Unpack[AnyOptions]) -> int: ...
    def check_call(args: Argv, bufsize: int = -1, *, timeout: float | None = None, **options: Unpack[AnyOptions]) -> int: ...

else:

    def call(*popenargs, timeout=None, **kwargs):
        """`subprocess.call` in a sandbox."""
        return _call(popenargs, timeout, kwargs).returncode

    def check_call(*popenargs, **kwargs):
        """`subprocess.check_call` in a sandbox."""
        process = _call(popenargs, kwargs.pop("timeout", None), kwargs)
        if process.returncode:
            raise failed(process, process.returncode, None, None)
        return 0


def _call(popenargs: tuple[Any, ...], timeout: float | None, kwargs: dict[str, Any]) -> Popen[Any]:
    with _popen(*popenargs, **kwargs) as process:
        try:
            process.wait(timeout=timeout)
        except BaseException:
            process.kill()
            # Not waited for here, as in run().
            raise
    return process


@overload
def check_output(
    args: Argv, bufsize: int = -1, *, text: Literal[True], encoding: str | None = None, errors: str | None = None,
    universal_newlines: bool | None = None, input: Buffer | str | None = None, timeout: float | None = None,
    **options: Unpack[Options],
) -> str: ...  # fmt: skip
@overload
def check_output(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str, errors: str | None = None,
    universal_newlines: bool | None = None, input: Buffer | str | None = None, timeout: float | None = None,
    **options: Unpack[Options],
) -> str: ...  # fmt: skip
@overload
def check_output(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None, errors: str,
    universal_newlines: bool | None = None, input: Buffer | str | None = None, timeout: float | None = None,
    **options: Unpack[Options],
) -> str: ...  # fmt: skip
@overload
def check_output(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None, errors: str | None = None,
    universal_newlines: Literal[True], input: Buffer | str | None = None, timeout: float | None = None,
    **options: Unpack[Options],
) -> str: ...  # fmt: skip
@overload
def check_output(
    args: Argv, bufsize: int = -1, *, text: Literal[False] | None = None, encoding: None = None, errors: None = None,
    universal_newlines: Literal[False] | None = None, input: Buffer | str | None = None, timeout: float | None = None,
    **options: Unpack[Options],
) -> bytes: ...  # fmt: skip
@overload
def check_output(
    args: Argv, bufsize: int = -1, *, text: bool | None = None, encoding: str | None = None, errors: str | None = None,
    universal_newlines: bool | None = None, input: Buffer | str | None = None, timeout: float | None = None,
    **options: Unpack[Options],
) -> Any: ...  # fmt: skip
def check_output(*popenargs: Any, timeout: float | None = None, **kwargs: Any) -> Any:
    """`subprocess.check_output` in a sandbox."""
    for name in ("stdout", "check"):
        if name in kwargs:
            raise ValueError(f"{name} argument not allowed, it will be overridden.")
    if "input" in kwargs and kwargs["input"] is None:
        # Explicit input=None has meant "no input, rather than ours" since before run() existed.
        text = kwargs.get("universal_newlines") or kwargs.get("text") or kwargs.get("encoding") or kwargs.get("errors")
        kwargs["input"] = "" if text else b""
    return sys.modules[__package__].run(*popenargs, stdout=PIPE, timeout=timeout, check=True, **kwargs).stdout


def getstatusoutput(
    cmd: Argv, *, encoding: str | None = None, errors: str | None = None, policy: Policy | str | None = None
) -> tuple[int, str]:
    """`subprocess.getstatusoutput` in a sandbox."""
    try:
        data = sys.modules[__package__].check_output(
            cmd, shell=True, text=True, stderr=STDOUT, encoding=encoding, errors=errors, policy=policy
        )
        exitcode = 0
    except CalledProcessError as error:
        data = error.output
        exitcode = error.returncode
    return exitcode, data[:-1] if data[-1:] == "\n" else data


def getoutput(cmd: Argv, *, encoding: str | None = None, errors: str | None = None, policy: Policy | str | None = None) -> str:
    """`subprocess.getoutput` in a sandbox."""
    return str(sys.modules[__package__].getstatusoutput(cmd, encoding=encoding, errors=errors, policy=policy)[1])
