"""asyncio (uvloop included): spawning, ending whatever happens meanwhile, and the two ways to talk to what was started."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import errno
import math
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import Process as _StdlibProcess
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import SandboxSetupError
from ._launch import ExecFailed, Launch
from ._outcome import kill_unconfined, refusal, spawning, told
from ._output import Chunk, Kept, Source
from ._policy import Policy
from ._prepare import permitted_async, plain_command, plain_program, plain_spawn, prepare, resolve_policy
from ._report import Enforcement, Report

if TYPE_CHECKING:
    from .commands._approval import Permit

_T = TypeVar("_T")
LIMIT = 2**16  # asyncio's default for its stream readers
_CHUNK = 1 << 18
# Bytes that are read ahead of whoever takes a stream's output, and at once.
_FULL = 1 << 20
_READ = 1 << 16
_OF_A_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)

# What uvloop does not take, not even at its default value.
_NOT_ON_UVLOOP = {"umask": -1, "process_group": None, "pipesize": -1, "user": None, "group": None, "extra_groups": None}

# What asyncio wants at its default value, and the words with which it says so.
_FIXED = {"universal_newlines": False, "shell": False, "bufsize": 0, "text": None, "encoding": None, "errors": None}


# -- ending things, whatever happens meanwhile ------------------------------------------------------------------------------


def _hidden(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """A task that only `_until` waits for: `asyncio.run()` cancels every task that it knows of, in any order, and must not know
    of one that starts or ends a tree. Nothing is lost by that, for whoever waits for it is known."""
    task = asyncio.ensure_future(work)
    asyncio._unregister_task(task)
    return task


async def _until(task: asyncio.Task[Any]) -> BaseException | None:
    """Waits to the end of a task. A cancellation of the caller is noted, not passed on: a shield is not enough, for it lets the
    caller go on while the work still runs.

    Returns:
        The `CancelledError` that has yet to be raised.
    """
    cancelled: BaseException | None = None
    anyio = sys.modules.get("anyio")
    # A scope of anyio's that is cancelled cancels again at every tick of the loop: only its own shield keeps it quiet.
    with contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    return cancelled


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
        self.watched = -1
        self._events = loop
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
        stdin_closed = getattr(self, "_stdin_closed", None)
        if fd == 0 and stdin_closed is not None and stdin_closed.done() and not stdin_closed.cancelled():
            stdin_closed.exception()  # seen: that nobody read it to the end is no news, and Python 3.10 would log it
        self.open.discard(fd)
        self._look()

    def process_exited(self) -> None:
        self._gone = True
        if self._launch is not None and self.settled:
            self.finish()
        super().process_exited()
        if not self.exited.done():
            self.exited.set_result(None)
        self._look()

    def take_events(self) -> None:
        assert self._launch is not None
        self._launch.take_events()
        if self._launch.ended():  # or its end of file would be there again and again
            self._stop_events()

    def _stop_events(self) -> None:
        if self.watched >= 0:
            self._events.remove_reader(self.watched)
            self.watched = -1

    def finish(self) -> None:
        """Before its socket is closed, the loop stops looking at it."""
        assert self._launch is not None
        self._stop_events()
        self._launch.finish()

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
        self._launch.kill(self.pid)

    async def wait(self) -> int:
        """As asyncio's; and the report is complete, and everything of the launch closed, when it returns. asyncio knows the
        returncode one tick of the loop before the protocol is told of the exit, and returns it at once."""
        returncode = await super().wait()
        if self._launch is not None:
            self._ending.finish()
        return returncode

    async def communicate(self, input: Any = None) -> tuple[bytes, bytes]:
        """As asyncio's; but cancelled (by `wait_for`, say) and called again, it returns what the first call had read, too."""
        try:
            found = await super().communicate(input)
        finally:
            if any(self._kept.values()):
                told(self.sandbox, self._kept)
        self._kept.clear()
        if self._launch is not None:
            self._launch.read_errors(found[1])
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
        """The tree is dead and reaped, and every pipe closed, when this returns. To be run by a `_hidden` task."""
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
            self._ending.finish()
        for fd in list(self._ending.open):  # a second abort() of one that is closed is an error in asyncio
            pipe = self._pipes.get_pipe_transport(fd)
            if pipe is not None:
                # What is left to be written nobody will read.
                pipe.abort() if isinstance(pipe, asyncio.WriteTransport) else pipe.close()
        await asyncio.wait([self._ending.ended])


async def _ended(process: Process, grace: float | None) -> BaseException | None:
    """Ends a tree to the end, whatever happens meanwhile. Returns the `CancelledError` that has yet to be raised."""
    task = _hidden(process._end(grace))
    cancelled = await _until(task)
    task.result()
    return cancelled


# -- what is alive when a loop is closed ------------------------------------------------------------------------------------

_ATTRIBUTE = "_sandboxed_subprocess_processes"


async def _keep(processes: set[Process]) -> AsyncGenerator[None, None]:
    """`asyncio.run()` closes asynchronous generators before it closes the loop: the last moment to end what still runs, and
    what keeps its transports from complaining of a closed loop later."""
    try:
        yield
    finally:
        for process in list(processes):
            await process._end()


async def _keeper(loop: asyncio.AbstractEventLoop) -> set[Process]:
    """The processes of a loop. Kept with the loop itself: a table of ours, even one of weak references, would keep it alive,
    for what it has running refers to it."""
    known: tuple[set[Process], AsyncGenerator[None, None]] | None = getattr(loop, _ATTRIBUTE, None)
    if known is None:
        processes: set[Process] = set()
        known = (processes, _keep(processes))
        setattr(loop, _ATTRIBUTE, known)
        await known[1].__anext__()
    return known[0]


# -- spawning -----------------------------------------------------------------------------------------------------------------


async def _start(
    args: Any, options: dict[str, Any], policy: Policy, limit: int, loop: asyncio.AbstractEventLoop, keep: set[Process],
    kind: type[_Protocol], permit: Permit | None,
) -> Process:
    """Spawns, and returns once the command runs. To be run by a `_hidden` task: asyncio's own cancellation in the middle of a
    spawn kills the launcher and goes on without waiting."""
    launch: Launch | None = None
    program = None
    if policy.unconfined:
        # Now, not in kill(): by then, a command may have put a psutil.py into the current directory.
        import psutil  # noqa: F401

        report = Report(enforcement=Enforcement.NONE, approval=None if permit is None else permit.approval)
        argv, options, program = plain_command(args, plain_program(options, permit))
    else:
        launch, options, program = prepare(args, options, policy, permit)
        report = launch.report
        argv = list(launch.argv)
    if not isinstance(loop, asyncio.BaseEventLoop):
        executable = options.pop("executable", None)
        if launch is not None:
            argv.insert(0, os.fsencode(executable))  # uvloop has its own idea of executable=; the launcher knows of it
        elif permit is not None and executable == permit.program:
            argv[0] = executable
        elif executable is not None:
            _refused(launch, "executable")
        for name, default in _NOT_ON_UVLOOP.items():
            if options.pop(name, default) != default:
                _refused(launch, name)
    with contextlib.nullcontext() if launch is None else spawning(launch, program), plain_spawn(argv):
        try:
            transport, protocol = await loop.subprocess_exec(lambda: kind(limit, loop, launch), *argv, **options)
        except OSError as error:
            # uvloop leaves the name out.
            if error.filename is None and error.errno in _OF_A_PATH:
                cwd = options.get("cwd")
                if cwd is not None and not (os.path.isdir(cwd) and os.access(cwd, os.X_OK)):
                    error.filename = cwd
                else:
                    error.filename = program if launch is None else launch.executable
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
            protocol.finish()
        elif policy.on_event is not None:
            protocol.watched = launch.word()
            loop.add_reader(protocol.watched, protocol.take_events)
    except (ExecFailed, SandboxSetupError) as error:
        await process._end(0)
        raise refusal(error, program) from None
    except BaseException:
        await process._end()
        raise
    return process


def _refused(launch: Launch | None, name: str) -> None:
    if launch is not None:
        launch.abandon()
    raise ValueError(f"uvloop cannot pass {name}=; the loop of asyncio can")


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
    args: Any, options: dict[str, Any], chosen: Policy, limit: int, kind: type[_Protocol], permit: Permit | None
) -> Process:
    loop = asyncio.get_running_loop()
    keep = await _keeper(loop)
    if permit is not None:
        args, options, chosen = permit.args, permit.options, permit.policy
    task = _hidden(_start(args, options, chosen, limit, loop, keep, kind, permit))
    try:
        cancelled = await _until(task)
    except GeneratorExit:  # the coroutine is thrown away in the middle of the spawn
        task.add_done_callback(_unwanted)
        raise
    if cancelled is None and task.exception() is None and (anyio := sys.modules.get("anyio.lowlevel")) is not None:
        try:  # what its shield has kept away
            await anyio.checkpoint_if_cancelled()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if task.exception() is None:
        await _ended(task.result(), chosen.terminate_grace)
    raise cancelled


async def _in_thread(function: Callable[[_T], Any], argument: _T) -> Any:
    """Calls a function that may wait for a person, in a thread that nobody waits for: one of the loop's own pool would keep
    `asyncio.run()`, and the interpreter, from ending after Ctrl-C."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def told(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return  # cancelled: nobody wants to know
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function, argument)
        except BaseException as error:
            failure = RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(told, result, failure)

    threading.Thread(target=work, daemon=True, name="sandboxed_subprocess approver").start()
    return await answer


async def _permitted(args: Any, options: dict[str, Any], policy: Policy | str | None, limit: int) -> Process:
    chosen = resolve_policy(policy)
    permit = await permitted_async(args, options, chosen, _in_thread)
    return await _spawn(args, options, chosen, limit, _Protocol, permit)


def _unwanted(task: asyncio.Task[Process]) -> None:
    if not task.cancelled() and task.exception() is None:
        with contextlib.suppress(ProcessLookupError):
            task.result().kill()


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
    return await _permitted([program, *args], {"stdin": stdin, "stdout": stdout, "stderr": stderr, **kwds}, policy, limit)


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
    return await _permitted(cmd, options, policy, limit)


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

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if not self._wanted or not isinstance(data, bytes):
            return
        self.queue.append((fd, data, time.monotonic()))
        self._queued += len(data)
        if self._queued >= _FULL and not self._halted:
            self._halted = True
            for transport in self.transports:
                transport.pause_reading()
        self.wake()

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

    async def more(self, late: Callable[[], bool]) -> None:
        """Until there is something, or nothing will come, or the time is up."""
        while not (self.queue or self.ended.done() or late()):
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
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncioSource(Source):
    def __init__(self, process: Process, data: memoryview, until: float) -> None:
        super().__init__(process.sandbox, process._launch)
        self._process = process
        assert isinstance(process._ending, _Taken)
        self._queue = process._ending
        self._until = until
        loop = self._loop = asyncio.get_running_loop()
        # Loops count in milliseconds, or call a little early: that it was called is what says that the time is up.
        self._rung = False
        self._timer = loop.call_at(until, self._ring) if until != math.inf else None
        self._writer = None if process.stdin is None else asyncio.ensure_future(_feed(process.stdin, data))
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, args: Any, options: dict[str, Any], policy: Policy, data: memoryview, timeout: float | None
    ) -> AsyncioSource:
        permit = await permitted_async(args, options, policy, _in_thread)
        # Who is asked may think it over: the time is the command's.
        until = math.inf if timeout is None else asyncio.get_running_loop().time() + timeout
        return cls(await _spawn(args, options, policy, LIMIT, _Taken, permit), data, until)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def _ring(self) -> None:
        self._rung = True
        self._queue.wake()

    def late(self) -> bool:
        if not self._rung and self._loop.time() < self._until:
            return False
        # Where all of a sandbox is dead, what it wrote is on its way; without one, somebody may still hold the pipes.
        done = self._queue.ended if self._process._launch is None else self._queue.exited
        return not done.done()

    async def take(self) -> list[Chunk] | None:
        await self._queue.more(self.late)
        if self._queue.queue:
            return self._queue.take()
        if not self._queue.ended.done():
            return []
        self._stop_timer()
        if self._writer is not None and self._writer.done() and not self._writer.cancelled():
            self._writer.result()
        return None

    async def end(self, grace: float | None) -> None:
        self._stop_timer()
        writer, self._writer = self._writer, None
        if self._queue.ended.done() and writer is None:
            return
        if self._ending is None:
            self._queue.drop()
            self._ending = _hidden(self._process._end(grace))
        if writer is not None:
            writer.cancel()
        cancelled = await _until(self._ending)
        if writer is not None:
            cancelled = await _until(_hidden(_quiet(writer))) or cancelled
        self._ending.result()
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
