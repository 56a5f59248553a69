"""trio: spawning, taking output, ending. Imported when a trio loop runs, and so never brings trio in by itself."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import trio

from ._errors import SandboxSetupError
from ._launch import ExecFailed, Launch
from ._outcome import kill_unconfined, refusal, spawning
from ._output import Chunk, Source
from ._policy import Policy
from ._prepare import permitted_async, plain_command, plain_program, plain_spawn, prepare
from ._report import Enforcement, Report

_CHUNK = 1 << 16  # more at once is slower: the C library maps so large a buffer anew each time


class TrioSource(Source):
    """No task of its own: what has to be written and read is, whenever output is asked for."""

    def __init__(self, process: trio.Process, launch: Launch | None, report: Report, data: memoryview, end: float) -> None:
        super().__init__(report, launch)
        self._process = process
        self._launch = launch
        self._until = end
        self._ending: trio.Event | None = None
        self._input = data
        streams: list[tuple[int, Any]] = [(1, process.stdout), (2, process.stderr)]
        self._open = {number: stream for number, stream in streams if stream is not None}
        self._stdin: Any = process.stdin

    @classmethod
    async def open(
        cls, args: Any, options: dict[str, Any], policy: Policy, data: memoryview, timeout: float | None
    ) -> TrioSource:
        launch: Launch | None = None
        await trio.lowlevel.checkpoint_if_cancelled()
        permit = await permitted_async(args, options, policy, _in_thread)
        if permit is not None:
            args, options, policy = permit.args, permit.options, permit.policy
        end = math.inf if timeout is None else trio.current_time() + timeout
        # Shields are right here: trio has no other way in, and a spawn is short.
        with trio.CancelScope(shield=True):
            if policy.unconfined:
                report = Report(enforcement=Enforcement.NONE, approval=None if permit is None else permit.approval)
                process = await _plain(args, plain_program(options, permit))
                report.pid = process.pid
            else:
                launch, options, program = prepare(args, options, policy, permit)
                report = launch.report
                process = await _start(launch, options, program)
        return cls(process, launch, report, data, end)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def late(self) -> bool:
        if trio.current_time() < self._until:
            return False
        # Where all of a sandbox is dead, what it wrote is on its way; without one, somebody may still hold the pipes.
        return self.returncode is None or (self._launch is None and bool(self._open))

    async def take(self) -> list[Chunk] | None:
        await trio.lowlevel.checkpoint()
        while self._ending is None:
            self._write()
            found = self._read()
            if found:
                return found
            if not self._open and self.returncode is not None:
                return None
            if self.late():
                return []
            await self._something()
        return None  # ended meanwhile, by another task

    def _write(self) -> None:
        while self._stdin is not None:
            try:
                if self._input:
                    self._input = self._input[os.write(self._stdin.fileno(), self._input[:_CHUNK]) :]
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._input = self._input[:0]  # it does not want to read it
            if not self._input:
                self._stdin.close()
                self._stdin = None

    def _read(self) -> list[Chunk]:
        found = []
        for number, stream in list(self._open.items()):
            try:
                data = os.read(stream.fileno(), _CHUNK)
            except BlockingIOError:
                continue
            if data:
                found.append((number, data, time.monotonic()))
            else:
                stream.close()
                del self._open[number]
        return found

    async def _something(self) -> None:
        waits: list[Callable[[], Any]] = [
            functools.partial(trio.lowlevel.wait_readable, stream.fileno()) for stream in self._open.values()
        ]
        if not waits:
            waits.append(self._process.wait)
        if self._stdin is not None:
            waits.append(functools.partial(trio.lowlevel.wait_writable, self._stdin.fileno()))
        with trio.move_on_at(self._until if self.returncode is None or self._launch is None else math.inf):
            try:
                await _any(*waits)
            except trio.ClosedResourceError:
                pass  # by end(), in another task

    async def end(self, grace: float | None) -> None:
        with trio.CancelScope(shield=True):
            if self._ending is not None:
                await self._ending.wait()
                return
            self._ending = trio.Event()
            try:
                await _end(self._process, self._launch, grace)
            finally:
                self._ending.set()

    def cancelled(self, error: BaseException) -> bool:
        # Asked of the scopes, since a nursery may have put Cancelled into a group.
        return trio.current_effective_deadline() == -math.inf

    def kill(self) -> None:
        if self._process.returncode is None:
            _kill(self._process, self._launch)

    def discard(self) -> None:
        self.kill()
        # A process of trio's has nobody else: its descriptors would stay open, and it a zombie.
        end = time.monotonic() + 1.0
        while self._process.returncode is None and time.monotonic() < end:
            time.sleep(0.001)
        if self._launch is not None:
            self._launch.finish()
        streams: tuple[Any, ...] = (self._process.stdin, self._process.stdout, self._process.stderr)
        for stream in streams:
            if stream is not None:
                stream.close()

    def send_signal(self, number: int) -> None:
        if self._process.returncode is None:
            if self._launch is not None:
                self._launch.send_signal(number)
            else:
                self._process.send_signal(number)


async def _in_thread(function: Callable[[Any], Any], argument: Any) -> Any:
    """Calls a function that may wait for a person. Who is cancelled does not wait for it."""
    return await trio.to_thread.run_sync(function, argument, abandon_on_cancel=True)


async def _plain(args: Any, options: dict[str, Any]) -> trio.Process:
    # Now, not in kill(): by then, a command may have put a psutil.py into the current directory.
    import psutil  # noqa: F401

    argv, options, _ = plain_command(args, options)
    with plain_spawn(argv):
        return await trio.lowlevel.open_process(argv, **options)


async def _start(launch: Launch, options: dict[str, Any], program: Any) -> trio.Process:
    argv = list(launch.argv)
    with spawning(launch, program), plain_spawn(argv):
        process = await trio.lowlevel.open_process(argv, **options)
    try:
        # Whichever comes first: a word from the launcher, or its end.
        await _any(process.wait, functools.partial(trio.lowlevel.wait_readable, launch.word()))
        launch.settle(process.pid)
        launch.watch()
    except (ExecFailed, SandboxSetupError) as error:
        await _end(process, launch, 1.0)
        raise refusal(error, program) from None
    except BaseException:
        await _end(process, launch, None)
        raise
    return process


async def _any(*waits: Callable[[], Any]) -> None:
    """Until the first of them is done. What is raised is what one of them raised, and no group: nobody asked for our nursery,
    and `except KeyboardInterrupt` has to find one."""
    try:
        async with trio.open_nursery() as nursery:
            for wait in waits:
                nursery.start_soon(_first, wait, nursery.cancel_scope)
    except BaseException as error:
        inner: BaseException = error
        while isinstance(getattr(inner, "exceptions", None), tuple):
            # Cancelled where there is nothing else.
            inner = min(inner.exceptions, key=lambda e: isinstance(e, trio.Cancelled))  # type: ignore[attr-defined]
        raise inner from None


async def _first(wait: Callable[[], Any], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


async def _end(process: trio.Process, launch: Launch | None, grace: float | None) -> None:
    """The tree is dead and reaped, and every pipe closed, when this returns. To be run in a shielded scope."""
    if process.returncode is None and grace is not None:
        with contextlib.suppress(PermissionError):  # another user by now, who cannot ask, but can kill
            if launch is not None:
                launch.send_signal(signal.SIGTERM)
            else:
                process.terminate()
            with trio.move_on_after(grace):
                await process.wait()
    if process.returncode is None:
        _kill(process, launch)
        await process.wait()
    if launch is not None:
        launch.finish()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def _kill(process: trio.Process, launch: Launch | None) -> None:
    if launch is None:
        kill_unconfined(process.pid, process.kill)
        return
    launch.kill(process.pid)
