"""asyncio (uvloop included): spawning, ending whatever happens meanwhile, and the two ways to talk to what was started."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import os
import signal
import time
import weakref
from asyncio.subprocess import Process as _StdlibProcess
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from ._errors import SandboxSetupError
from ._launch import ExecFailed, Launch
from ._outcome import kill_unconfined, refusal, spawning, told
from ._output import Chunk, Kept, Source
from ._policy import Policy
from ._prepare import plain_spawn, prepare, resolve_policy
from ._report import Enforcement, Report

_T = TypeVar("_T")
LIMIT = 2**16  # asyncio's default for its stream readers
_CHUNK = 1 << 18
# Bytes that are read ahead of whoever takes a stream's output, and at once.
_FULL = 1 << 20
_READ = 1 << 16
_OF_A_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)

# What asyncio wants at its default value, and the words with which it says so.
_FIXED = {"universal_newlines": False, "shell": False, "bufsize": 0, "text": None, "encoding": None, "errors": None}


# -- ending things, whatever happens meanwhile ------------------------------------------------------------------------------


async def _whole(work: Coroutine[Any, Any, _T]) -> tuple[asyncio.Task[_T], BaseException | None]:
    """Runs something to its end in a task of its own; a cancellation of the caller is noted, not passed on.

    A shield is not enough: it lets the caller go on while the work still runs. And `asyncio.run()` cancels every task that it
    knows of, in any order: it must not know of this one. Nothing is lost by that, for whoever waits here is known.

    Returns:
        The finished task, and the `CancelledError` that has yet to be raised.
    """
    task = asyncio.ensure_future(work)
    asyncio._unregister_task(task)
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
        self.open: set[int] = set()
        self.transports: list[Any] = []
        self._gone = False
        # Until then the first word of the launcher is still to be read; who reads it finishes the launch.
        self.settled = False
        self.exited: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transports = [t for t in map(transport.get_pipe_transport, (1, 2)) if t is not None]
        self.open = {fd for fd in range(3) if transport.get_pipe_transport(fd) is not None}
        for pipe in self.transports:
            if hasattr(pipe, "max_size"):
                # asyncio makes room for 256 KiB at each read. The C library maps that much anew, and gives it back, each
                # time: a third of the throughput goes to page faults.
                pipe.max_size = _READ

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        self.open.discard(fd)
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
        if self._gone and not self.open and not self.ended.done():
            self.ended.set_result(None)


class Process(_StdlibProcess):
    """`asyncio.subprocess.Process` of a sandboxed command.

    `kill()` ends the whole tree; `terminate()` and `send_signal()` reach the command. `.sandbox` is the run's report.
    """

    sandbox: Report

    def __init__(
        self, transport: Any, protocol: _Protocol, loop: asyncio.AbstractEventLoop, launch: Launch | None, report: Report,
        most: int | None,
    ) -> None:  # fmt: skip
        super().__init__(transport, protocol, loop)
        self._ending = protocol
        self._launch = launch
        self._pipes = transport
        self._most = most
        # What communicate() has read. It outlives one that was cancelled.
        self._kept: dict[int, Kept] = {}
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

    async def communicate(self, input: Any = None) -> tuple[bytes, bytes]:
        """As asyncio's; but cancelled (by `wait_for`, say) and called again, it returns what the first call had read, too."""
        try:
            found = await super().communicate(input)
        finally:
            told(self.sandbox, self._kept)
        self._kept.clear()
        return found

    async def _read_stream(self, fd: int) -> bytes:
        """In the place of asyncio's method, which loses what it has read when it is cancelled."""
        stream = self.stdout if fd == 1 else self.stderr
        assert stream is not None
        kept = self._kept.setdefault(fd, Kept(self._most))
        while chunk := await stream.read(_CHUNK):
            kept.append(chunk)
        self._pipes.get_pipe_transport(fd).close()
        return kept.joined()

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
        for fd in list(self._ending.open):  # a second abort() of one that is closed is an error in asyncio
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
    args: Any, options: dict[str, Any], policy: Policy, limit: int, loop: asyncio.AbstractEventLoop, keep: set[Process],
    kind: type[_Protocol],
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
            transport, protocol = await spawn(lambda: kind(limit, loop, launch), *argv, **options)
        except OSError as error:
            if error.filename is None and error.errno in _OF_A_PATH and options.get("cwd") is not None:
                error.filename = options["cwd"]  # uvloop leaves it out; nothing else of ours is looked up by name
            raise
    process = Process(transport, protocol, loop, launch, report, policy.limits.output_bytes)
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


async def _spawn(
    args: Any, options: dict[str, Any], policy: Policy | str | None, limit: int, kind: type[_Protocol] = _Protocol
) -> Process:
    chosen = resolve_policy(policy)
    loop = asyncio.get_running_loop()
    keep = await _keeper(loop)
    task, cancelled = await _whole(_start(args, options, chosen, limit, loop, keep, kind))
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
    program: Any, *args: Any, stdin: Any = None, stdout: Any = None, stderr: Any = None, limit: int = LIMIT,
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
    cmd: str | bytes, stdin: Any = None, stdout: Any = None, stderr: Any = None, limit: int = LIMIT,
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



# -- output, taken piece by piece -------------------------------------------------------------------------------------------


class _Taken(_Protocol):
    """Hands on what it reads at once, with its time, instead of keeping it for stream readers."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop, launch: Launch | None) -> None:
        super().__init__(limit, loop, launch)
        # Not _paused: FlowControlMixin has that, for writing.
        self._halted = False
        self._wanted = True
        self._queued = 0
        self._waiter: asyncio.Future[None] | None = None
        self.queue: collections.deque[Chunk] = collections.deque()
        self.due = False

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if not self._wanted or not isinstance(data, bytes):
            return
        self.queue.append((fd, data, time.monotonic()))
        self._queued += len(data)
        if self._queued >= _FULL and not self._halted:
            self._halted = True
            for transport in self.transports:
                transport.pause_reading()
        self._wake()

    def take(self) -> list[Chunk]:
        found = list(self.queue)
        self.queue.clear()
        self._queued = 0
        self._go_on()
        return found

    def drop(self) -> None:
        """Nobody wants the rest: it is read, so that the command can write it, and forgotten."""
        self._wanted = False
        self.take()

    def expire(self) -> None:
        self.due = True
        self._wake()

    async def more(self) -> None:
        """Until there is something, or nothing will come, or the time is up."""
        while not (self.queue or self.due or self.ended.done()):
            self._waiter = self._loop.create_future()
            await self._waiter

    def _go_on(self) -> None:
        if self._halted:
            self._halted = False
            for transport in self.transports:
                if not transport.is_closing():
                    transport.resume_reading()

    def _look(self) -> None:
        super()._look()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncioSource(Source):
    def __init__(self, process: Process, data: memoryview, timeout: float | None) -> None:
        super().__init__(process.sandbox)
        self._process = process
        self._protocol = process._ending
        assert isinstance(self._protocol, _Taken)
        self._queue = self._protocol
        loop = asyncio.get_running_loop()
        self._timer = None if timeout is None else loop.call_later(max(0.0, timeout), self._queue.expire)
        self._writer = None if process.stdin is None else asyncio.ensure_future(_feed(process.stdin, data))

    @classmethod
    async def open(
        cls, args: Any, options: dict[str, Any], policy: Policy, data: memoryview, timeout: float | None
    ) -> AsyncioSource:
        begin = time.monotonic()
        process = await _spawn(args, options, policy, LIMIT, _Taken)
        return cls(process, data, None if timeout is None else timeout - (time.monotonic() - begin))

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def take(self) -> list[Chunk] | None:
        queue = self._queue
        await queue.more()
        if queue.due and not (queue.queue and queue.exited.done()):
            return None if queue.ended.done() else []
        if queue.queue:
            return queue.take()
        if self._writer is not None and self._writer.done() and not self._writer.cancelled():
            self._writer.result()
        self._stop_timer()
        return None

    async def end(self, grace: float | None) -> None:
        self._stop_timer()
        writer, self._writer = self._writer, None
        if self._queue.ended.done() and writer is None:
            return
        self._queue.drop()
        if writer is not None:
            writer.cancel()
        _, cancelled = await _whole(self._process._end(grace))
        if writer is not None:
            _, again = await _whole(_quiet(writer))
            cancelled = cancelled or again
        if cancelled is not None:
            raise cancelled

    def cancelled(self, error: BaseException) -> bool:
        return isinstance(error, asyncio.CancelledError)

    def discard(self) -> None:
        self._stop_timer()
        self._queue.drop()
        self.kill()  # the loop, which holds the rest, closes it

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _quiet(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def _feed(stream: asyncio.StreamWriter, data: memoryview) -> None:
    try:
        for at in range(0, len(data), _CHUNK):
            stream.write(data[at : at + _CHUNK])
            await stream.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it does not want to read it
    except RuntimeError:
        if not stream.is_closing():
            raise
        # uvloop's word for the same
    finally:
        stream.close()
