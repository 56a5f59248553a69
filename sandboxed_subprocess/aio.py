"""`subprocess` for event loops, in a sandbox: `run()` and `stream()` on asyncio and trio, and asyncio's
`create_subprocess_exec` and `_shell`.

However a run ends (return, exception, timeout, cancellation at any point), its tree is dead and reaped, and its descriptors
are closed, before that is seen.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import subprocess
import sys
import time
from typing import Any

from ._asyncio import AsyncioSource, Process, create_subprocess_exec, create_subprocess_shell
from ._outcome import POSITIONAL, CompletedProcess, expired, failed, told
from ._output import Chunk, Kept, Output, Pieces, Source, Text
from ._policy import Policy
from ._prepare import resolve_policy
from ._report import Report

__all__ = ["Output", "Process", "Stream", "create_subprocess_exec", "create_subprocess_shell", "run", "stream"]

_LONGEST = 8 << 20


class _Call:
    """The arguments of one call, checked as `subprocess.run` checks them."""

    def __init__(
        self,
        name: str,
        popenargs: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        input: Any,
        timeout: float | None,
        check: bool,
        policy: Policy | str | None,
    ) -> None:
        if not popenargs and "args" not in kwargs:
            raise TypeError(f"{name}() missing 1 required positional argument: 'args'")
        if len(popenargs) > len(POSITIONAL) + 1:
            raise TypeError(f"{name}() takes at most {len(POSITIONAL) + 1} positional arguments ({len(popenargs)} given)")
        self.args = popenargs[0] if popenargs else kwargs.pop("args")
        for parameter, value in zip(POSITIONAL, popenargs[1:]):
            if parameter in kwargs:
                raise TypeError(f"{name}() got multiple values for argument {parameter!r}")
            kwargs[parameter] = value
        if input is not None:
            if kwargs.get("stdin") is not None:
                raise ValueError("stdin and input arguments may not both be used.")
            kwargs["stdin"] = subprocess.PIPE
        if not isinstance(kwargs.pop("bufsize", -1), int):
            raise TypeError("bufsize must be an integer")
        self.text = Text(kwargs)
        self.input = memoryview(b"" if input is None else self.text.encode(input)).cast("B")
        self.timeout = timeout
        self.check = check
        self.policy = resolve_policy(policy)
        for stream in ("stdin", "stdout", "stderr"):
            kwargs.setdefault(stream, None)
        self.options = kwargs

    async def open(self) -> Source:
        kind: Any = AsyncioSource
        trio = sys.modules.get("trio")
        if trio is not None and trio.lowlevel.in_trio_run():
            from ._trio import TrioSource as kind
        source: Source = await kind.open(self.args, self.options, self.policy, self.input, self.timeout)
        return source

    async def take(self, source: Source) -> list[Chunk] | None:
        """`source.take()`; but the run is over before an error or a cancellation of it is seen."""
        try:
            chunks = await source.take()
            if chunks is None:
                await source.end(None)
        except GeneratorExit:  # the coroutine is thrown away, and cannot wait any more
            source.discard()
            raise
        except BaseException as error:
            source.report.ended = source.report.ended or "cancelled"
            await source.end(self.policy.terminate_grace if source.cancelled(error) else None)
            raise
        if chunks == []:
            source.report.ended = "timeout"
            await source.end(self.policy.terminate_grace)
        return chunks

    def expired(self, report: Report, stdout: bytes | None = None, stderr: bytes | None = None) -> subprocess.TimeoutExpired:
        return expired(self.args, self.timeout or 0, stdout or None, stderr or None, report)

    def completed(self, source: Source, stdout: bytes | None = None, stderr: bytes | None = None) -> CompletedProcess[Any]:
        """The result.

        Raises:
            CalledProcessError: `check` is true, and the command failed.
        """
        assert source.returncode is not None
        result: CompletedProcess[Any] = CompletedProcess(
            self.args, source.returncode, self.text.decode(stdout), self.text.decode(stderr)
        )
        result.sandbox = source.report
        if self.check and source.returncode:
            raise failed(result, source.returncode, result.stdout, result.stderr)
        return result


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
    if capture_output:
        if kwargs.get("stdout") is not None or kwargs.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        kwargs["stdout"] = kwargs["stderr"] = subprocess.PIPE
    call = _Call("run", popenargs, kwargs, input=input, timeout=timeout, check=check, policy=policy)
    source = await call.open()
    limit = call.policy.limits.output_bytes
    wanted = {1: call.options["stdout"], 2: call.options["stderr"]}
    kept = {fd: Kept(limit, call.text.encoding) for fd, where in wanted.items() if where == subprocess.PIPE}
    try:
        while chunks := await call.take(source):
            for fd, data, _ in chunks:
                kept[fd].append(data)
    finally:
        told(source.report, kept)
    stdout, stderr = (kept[fd].joined() if fd in kept else None for fd in (1, 2))
    if chunks is not None:
        raise call.expired(source.report, stdout, stderr)
    return call.completed(source, stdout, stderr)


def stream(
    *popenargs: Any,
    input: Any = None,
    lines: bool = True,
    longest: int = _LONGEST,
    timeout: float | None = None,
    check: bool = False,
    policy: Policy | str | None = None,
    **kwargs: Any,
) -> Stream:
    """Starts a command, and gives its output as it comes: `async with stream(...) as events: async for event in events`.

    Takes what `run` takes; stdout and stderr are pipes unless said otherwise. On asyncio and trio. The command starts with
    the block, or when the first event is asked for. It waits when its output is not taken: about 1 MB is read ahead.

    Args:
        lines: an event is a whole line; otherwise, what arrived, as it arrived (a prompt without a newline, too).
        longest: a line that is longer comes in events of this many bytes (in text mode: characters), of which only the last
            ends with a newline. What is kept in memory of a line is bounded by it.
        timeout: seconds from the start; `TimeoutExpired` comes in the place of the next event.
        check: a command that failed raises `CalledProcessError` in the place of the last event.

    Raises:
        When it starts, and when an event is asked for, what `run` raises.
    """
    if longest < 1:
        raise ValueError("longest must be 1 or more")
    for name in ("stdout", "stderr"):
        if kwargs.get(name) is None:
            kwargs[name] = subprocess.PIPE
    return Stream(_Call("stream", popenargs, kwargs, input=input, timeout=timeout, check=check, policy=policy), lines, longest)


class Stream:
    """The output of a command, event by event (`Output`), in the order of its arrival. Made by `stream()`.

    Leaving the block, `aclose()`, an exception and a cancellation end the command and everything that it started. Without a
    block, a stream that is thrown away is killed, but not waited for.
    """

    def __init__(self, call: _Call, lines: bool, longest: int) -> None:
        self._call = call
        self._pieces = {fd: Pieces(call.text, lines, longest) for fd in (1, 2)}
        self._events: collections.deque[Output] = collections.deque()
        self._source: Source | None = None
        self._result: CompletedProcess[Any] | None = None
        self._error: BaseException | None = None
        self._over = False
        self._busy = False
        self._begin = 0.0

    @property
    def sandbox(self) -> Report:
        """The run's report.

        Raises:
            RuntimeError: the command has not been started.
        """
        if self._source is None:
            raise RuntimeError("the command has not been started")
        return self._source.report

    @property
    def returncode(self) -> int | None:
        """None while the command runs, or before it does."""
        return None if self._source is None else self._source.returncode

    @property
    def result(self) -> CompletedProcess[Any]:
        """As `run` returns it, without the output. There once the events are over.

        Raises:
            RuntimeError: they are not, or the stream was closed before.
        """
        if self._result is None:
            raise RuntimeError("the command was ended before it was done" if self._over else "there are still events to take")
        return self._result

    def send_signal(self, sig: int) -> None:
        """To the command itself. Nothing happens where it does not run."""
        if self._source is not None and not self._over:
            self._source.send_signal(sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the command and everything that it started. The events that are left can still be taken."""
        if self._source is not None and not self._over:
            self._source.kill()

    async def __aenter__(self) -> Stream:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Output:
        if self._events and not self._busy:
            return self._events.popleft()
        if self._busy:
            raise RuntimeError("another task is waiting for the next event of this stream")
        self._busy = True
        try:
            await self._start()
            while not self._events:
                if self._over or self._source is None:
                    raise StopAsyncIteration
                await self._more(self._source)
            return self._events.popleft()
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """Ends the command, if it still runs: SIGTERM, and after the policy's `terminate_grace` the whole tree is killed."""
        source, over, self._over = self._source, self._over, True
        self._events.clear()
        if source is not None and not over:
            if source.returncode is None:
                source.report.ended = source.report.ended or "cancelled"
            await source.end(self._call.policy.terminate_grace)

    async def _start(self) -> None:
        if self._source is None and not self._over:
            try:
                self._begin = time.monotonic()
                self._source = await self._call.open()
            except BaseException:
                self._over = True
                raise

    async def _more(self, source: Source) -> None:
        try:
            chunks = await self._call.take(source)
        except BaseException:
            self._over = True
            raise
        if chunks == []:
            self._over = True
            raise self._call.expired(source.report)
        try:
            for fd, data, when in chunks or ():
                self._add(fd, self._pieces[fd].feed(data), when)
            if chunks is None:
                self._over = True
                for fd in (1, 2):
                    self._add(fd, self._pieces[fd].close(), time.monotonic())
        except BaseException:  # it cannot be decoded
            await self.aclose()
            raise
        if chunks is None:
            self._result = self._call.completed(source)

    def _add(self, fd: int, pieces: list[Any], when: float) -> None:
        name = "stdout" if fd == 1 else "stderr"
        self._events += [Output(name, piece, when - self._begin) for piece in pieces]

    def __del__(self) -> None:
        if self._source is not None and not self._over:
            with contextlib.suppress(Exception):  # at the end of the interpreter, which ends everything anyway
                self._source.discard()
