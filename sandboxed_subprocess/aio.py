"""`subprocess` for event loops, in a sandbox: `run()` on asyncio and trio, and asyncio's `create_subprocess_exec` and `_shell`.

However a run ends (return, exception, timeout, cancellation at any point), its tree is dead and reaped, and its descriptors
are closed, before that is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import locale
import os
import signal
import subprocess
import sys
import weakref
from asyncio.subprocess import Process as _StdlibProcess
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from ._errors import SandboxSetupError
from ._launch import ExecFailed, Launch
from ._outcome import POSITIONAL, CompletedProcess, failed, kill_unconfined, refusal, spawning
from ._policy import Policy
from ._prepare import plain_spawn, prepare, resolve_policy
from ._report import Enforcement, Report

__all__ = ["Process", "create_subprocess_exec", "create_subprocess_shell", "run"]

_T = TypeVar("_T")
_LIMIT = 2**16  # asyncio's default for its stream readers
_CHUNK = 1 << 18
_OF_A_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)

# What asyncio wants at its default value, and the words with which it says so.
_FIXED = {"universal_newlines": False, "shell": False, "bufsize": 0, "text": None, "encoding": None, "errors": None}


# -- ending things, whatever happens meanwhile ------------------------------------------------------------------------------


async def _whole(work: Coroutine[Any, Any, _T]) -> tuple[asyncio.Task[_T], BaseException | None]:
    """Runs something to its end in a task of its own; a cancellation of the caller is noted, not passed on.

    A shield is not enough: it lets the caller go on while the work still runs.

    Returns:
        The finished task, and the `CancelledError` that has yet to be raised.
    """
    task = asyncio.ensure_future(work)
    cancelled: BaseException | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    return task, cancelled


class _Protocol(SubprocessStreamProtocol):
    """Learns of the exit before anybody who waits for it, and of the last pipe."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop, launch: Launch | None) -> None:
        super().__init__(limit=limit, loop=loop)
        self._launch = launch
        self._open: set[int] = set()
        self._gone = False
        # Until then the first word of the launcher is still to be read; who reads it finishes the launch.
        self.settled = False
        self.exited: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._open = {fd for fd in range(3) if transport.get_pipe_transport(fd) is not None}

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        self._open.discard(fd)
        self._look()

    def process_exited(self) -> None:
        self._gone = True
        if self._launch is not None and self.settled:
            self._launch.finish()
        super().process_exited()
        if not self.exited.done():
            self.exited.set_result(None)
        self._look()

    def _look(self) -> None:
        if self._gone and not self._open and not self.ended.done():
            self.ended.set_result(None)


class Process(_StdlibProcess):
    """`asyncio.subprocess.Process` of a sandboxed command.

    `kill()` ends the whole tree; `terminate()` and `send_signal()` reach the command. `.sandbox` is the run's report.
    """

    sandbox: Report

    def __init__(
        self, transport: Any, protocol: _Protocol, loop: asyncio.AbstractEventLoop, launch: Launch | None, report: Report
    ) -> None:
        super().__init__(transport, protocol, loop)
        self._ending = protocol
        self._launch = launch
        self._pipes = transport
        self.sandbox = report

    def send_signal(self, signal: int) -> None:
        if self._launch is None:
            super().send_signal(signal)
            return
        if self.returncode is not None:
            raise ProcessLookupError
        self._launch.send_signal(signal)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self._launch is None:
            kill_unconfined(self.pid, super().kill)
            return
        if self.returncode is not None:
            raise ProcessLookupError
        self._launch.kill()
        # Somebody may have stopped the monitor, and a stopped one reaps nothing.
        try:
            os.kill(self.pid, getattr(signal, "SIGCONT", 18))
        except (ProcessLookupError, PermissionError):
            pass

    async def _end(self, grace: float | None = None) -> None:
        """The tree is dead and reaped, and every pipe closed, when this returns. To be run by `_whole`."""
        if self.returncode is None and grace is not None:
            try:
                self.terminate()
                await asyncio.wait([self._ending.exited], timeout=grace)
            except (ProcessLookupError, PermissionError):
                pass  # gone; or this is another user by now, who cannot ask, but can kill
        if self.returncode is None:
            try:
                self.kill()
            except ProcessLookupError:
                pass
        await asyncio.wait([self._ending.exited])
        if self._launch is not None:
            self._launch.finish()
        for fd in range(3):
            pipe = self._pipes.get_pipe_transport(fd)
            if pipe is not None:
                # What is left to be written nobody will read.
                pipe.abort() if isinstance(pipe, asyncio.WriteTransport) else pipe.close()
        await asyncio.wait([self._ending.ended])


# -- what is alive when a loop is closed ------------------------------------------------------------------------------------

_Kept = tuple[set["Process"], "AsyncGenerator[None, None]"]
_live: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = weakref.WeakKeyDictionary()


async def _keep(processes: set[Process]) -> AsyncGenerator[None, None]:
    """`asyncio.run()` closes asynchronous generators before it closes the loop: the last moment to end what still runs, and
    what keeps its transports from complaining of a closed loop later."""
    try:
        yield
    finally:
        for process in list(processes):
            await process._end()


async def _keeper(loop: asyncio.AbstractEventLoop) -> set[Process]:
    known = _live.get(loop)
    if known is None:
        processes: set[Process] = set()
        known = _live[loop] = (processes, _keep(processes))
        await known[1].__anext__()
    return known[0]


# -- spawning -----------------------------------------------------------------------------------------------------------------


async def _start(
    args: Any, options: dict[str, Any], policy: Policy, limit: int, loop: asyncio.AbstractEventLoop, keep: set[Process]
) -> Process:
    """Spawns, and returns once the command runs. To be run by `_whole`: asyncio's own cancellation in the middle of a spawn
    kills the launcher and goes on without waiting."""
    launch: Launch | None = None
    program = None
    if policy.unconfined:
        # Now, not in kill(): by then, a command may have put a psutil.py into the current directory.
        import psutil  # noqa: F401

        report = Report(enforcement=Enforcement.NONE)
        argv = [args] if isinstance(args, (str, bytes)) or not hasattr(args, "__iter__") else list(args)
    else:
        launch, options, program = prepare(args, options, policy)
        report = launch.report
        argv = list(launch.argv)
        if not isinstance(loop, asyncio.BaseEventLoop):  # uvloop has its own idea of executable=
            argv.insert(0, os.fsencode(options.pop("executable")))
    shell = options.pop("shell", False)
    spawn: Any = loop.subprocess_shell if shell else loop.subprocess_exec
    with contextlib.nullcontext() if launch is None else spawning(launch, program), plain_spawn(argv[0] if shell else argv):
        try:
            transport, protocol = await spawn(lambda: _Protocol(limit, loop, launch), *argv, **options)
        except OSError as error:
            if error.filename is None and error.errno in _OF_A_PATH and options.get("cwd") is not None:
                error.filename = options["cwd"]  # uvloop leaves it out; nothing else of ours is looked up by name
            raise
    process = Process(transport, protocol, loop, launch, report)
    keep.add(process)
    protocol.ended.add_done_callback(lambda _: keep.discard(process))
    if launch is None:
        report.pid = process.pid
        return process
    try:
        await _settled(launch, protocol, loop)
        launch.settle(process.pid)
        protocol.settled = True
        if protocol.exited.done():
            launch.finish()
    except (ExecFailed, SandboxSetupError) as error:
        await process._end(0)
        raise refusal(error, program) from None
    except BaseException:
        await process._end()
        raise
    return process


async def _settled(launch: Launch, protocol: _Protocol, loop: asyncio.AbstractEventLoop) -> None:
    """Never in a thread: a pool whose threads all wait for spawns would wait for ever for this one."""
    said: asyncio.Future[None] = loop.create_future()
    fd = launch.word()

    def say() -> None:
        if not said.done():
            said.set_result(None)

    loop.add_reader(fd, say)
    try:
        await asyncio.wait([said, protocol.exited], return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(fd)


async def _spawn(args: Any, options: dict[str, Any], policy: Policy | str | None, limit: int) -> Process:
    chosen = resolve_policy(policy)
    loop = asyncio.get_running_loop()
    keep = await _keeper(loop)
    task, cancelled = await _whole(_start(args, options, chosen, limit, loop, keep))
    if cancelled is None:
        return task.result()
    if task.exception() is None:
        await _whole(task.result()._end(chosen.terminate_grace))
    raise cancelled


def _checked(options: dict[str, Any]) -> None:
    for name, value in _FIXED.items():
        if name in options and options.pop(name) != value:
            raise ValueError(f"{name} must be {value}")


async def create_subprocess_exec(
    program: Any, *args: Any, stdin: Any = None, stdout: Any = None, stderr: Any = None, limit: int = _LIMIT,
    policy: Policy | str | None = None, **kwds: Any,
) -> Process:  # fmt: skip
    """`asyncio.create_subprocess_exec` in a sandbox.

    Raises:
        PolicyError, SandboxUnavailable, SandboxSetupError: as for `Popen`.
        OSError and others: as asyncio's.
    """
    _checked(kwds)
    return await _spawn([program, *args], {"stdin": stdin, "stdout": stdout, "stderr": stderr, **kwds}, policy, limit)


async def create_subprocess_shell(
    cmd: str | bytes, stdin: Any = None, stdout: Any = None, stderr: Any = None, limit: int = _LIMIT,
    policy: Policy | str | None = None, **kwds: Any,
) -> Process:  # fmt: skip
    """`asyncio.create_subprocess_shell` in a sandbox. Raises what `create_subprocess_exec` raises."""
    if kwds.pop("shell", True) is not True:
        raise ValueError("shell must be True")
    _checked(kwds)
    if not isinstance(cmd, (bytes, str)):
        raise ValueError("cmd must be a string")
    options = {"stdin": stdin, "stdout": stdout, "stderr": stderr, "shell": True, **kwds}
    return await _spawn(cmd, options, policy, limit)


# -- run() ------------------------------------------------------------------------------------------------------------------


class _Text:
    """What Popen's text mode does to bytes."""

    def __init__(self, options: dict[str, Any]) -> None:
        text, newlines = options.pop("text", None), options.pop("universal_newlines", None)
        if text is not None and newlines is not None and bool(newlines) != bool(text):
            raise subprocess.SubprocessError(
                "Cannot disambiguate when both text and universal_newlines are supplied but different. Pass one or the other."
            )
        encoding, errors = options.pop("encoding", None), options.pop("errors", None)
        self.on = bool(text or newlines or encoding or errors)
        if self.on and encoding is None:
            encoding = "utf-8" if sys.flags.utf8_mode else locale.getpreferredencoding(False)
        self.encoding, self.errors = encoding, errors or "strict"

    def encode(self, value: Any) -> Any:
        return value.encode(self.encoding, self.errors) if self.on and isinstance(value, str) else value

    def decode(self, data: bytearray | None) -> Any:
        if data is None:
            return None
        if not self.on:
            return bytes(data)
        return bytes(data).decode(self.encoding, self.errors).replace("\r\n", "\n").replace("\r", "\n")


async def run(
    *popenargs: Any,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    policy: Policy | str | None = None,
    **kwargs: Any,
) -> CompletedProcess[Any]:
    """`subprocess.run` in a sandbox, without blocking the event loop. On asyncio and trio.

    At a timeout or a cancellation the command gets SIGTERM, and after the policy's `terminate_grace` the whole tree is
    killed. `TimeoutExpired` has the partial output, as bytes.

    Raises:
        What `subprocess.run` raises; `LimitExceeded` where a limit ended the run and `check` is true.
    """
    if not popenargs and "args" not in kwargs:
        raise TypeError("run() missing 1 required positional argument: 'args'")
    args = popenargs[0] if popenargs else kwargs.pop("args")
    for name, value in zip(POSITIONAL, popenargs[1:]):
        if name in kwargs:
            raise TypeError(f"run() got multiple values for argument {name!r}")
        kwargs[name] = value
    if input is not None:
        if kwargs.get("stdin") is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        kwargs["stdin"] = subprocess.PIPE
    if capture_output:
        if kwargs.get("stdout") is not None or kwargs.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        kwargs["stdout"] = kwargs["stderr"] = subprocess.PIPE
    if not isinstance(kwargs.pop("bufsize", -1), int):
        raise TypeError("bufsize must be an integer")
    text = _Text(kwargs)
    chosen = resolve_policy(policy)
    data = text.encode(input)
    for name in ("stdin", "stdout", "stderr"):
        kwargs.setdefault(name, None)
    returncode, stdout, stderr, report = await _in_loop(args, kwargs, chosen, data, timeout)
    result: CompletedProcess[Any] = CompletedProcess(args, returncode, text.decode(stdout), text.decode(stderr))
    result.sandbox = report
    if check and returncode:
        raise failed(result, returncode, result.stdout, result.stderr)
    return result


_Outcome = tuple[int, "bytearray | None", "bytearray | None", Report]


async def _in_loop(args: Any, options: dict[str, Any], policy: Policy, data: Any, timeout: float | None) -> _Outcome:
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        from ._trio import run_on_trio

        return await run_on_trio(args, options, policy, data, timeout)
    return await _on_asyncio(args, options, policy, data, timeout)


async def _on_asyncio(args: Any, options: dict[str, Any], policy: Policy, data: Any, timeout: float | None) -> _Outcome:
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    process = await _spawn(args, options, policy, _CHUNK)
    kept = [None if stream is None else bytearray() for stream in (process.stdout, process.stderr)]
    talk = asyncio.ensure_future(_talk(process, data, kept))
    try:
        left = None if end is None else max(0.0, end - loop.time())
        await asyncio.wait([talk], timeout=left)
        expired = not talk.done()
        if not expired:
            talk.result()
            await asyncio.wait([process._ending.ended])
    except BaseException as error:
        if process.sandbox.ended is None:
            process.sandbox.ended = "cancelled"
        talk.cancel()
        await _whole(process._end(policy.terminate_grace if isinstance(error, asyncio.CancelledError) else None))
        await _whole(_quiet(talk))
        raise
    if expired:
        process.sandbox.ended = "timeout"
        _, cancelled = await _whole(process._end(policy.terminate_grace))
        talk.cancel()
        _, again = await _whole(_quiet(talk))
        if cancelled or again:
            raise cancelled or again  # type: ignore[misc]
        out, err = (None if part is None else bytes(part) for part in kept)
        expiry = subprocess.TimeoutExpired(args, timeout or 0, out or None, err or None)
        expiry.sandbox = process.sandbox  # type: ignore[attr-defined]
        raise expiry
    assert process.returncode is not None
    return process.returncode, kept[0], kept[1], process.sandbox


async def _quiet(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def _talk(process: Process, data: Any, kept: list[bytearray | None]) -> None:
    """Writes the input and reads both outputs at the same time, to their ends, and waits for the exit."""

    async def read(stream: asyncio.StreamReader, into: bytearray) -> None:
        while chunk := await stream.read(_CHUNK):
            into += chunk

    async def write(stream: asyncio.StreamWriter) -> None:
        try:
            view = memoryview(data).cast("B") if data else memoryview(b"")
            for at in range(0, len(view), _CHUNK):
                stream.write(view[at : at + _CHUNK])
                await stream.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it does not want to read it
        except RuntimeError:
            if not stream.is_closing():
                raise
            # uvloop's word for the same
        finally:
            stream.close()

    work = [read(s, k) for s, k in zip((process.stdout, process.stderr), kept) if s is not None and k is not None]
    if process.stdin is not None:
        work.append(write(process.stdin))
    await asyncio.gather(*work)
    await asyncio.wait([process._ending.exited])
