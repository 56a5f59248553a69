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
from collections.abc import Iterator, Mapping
from typing import Any

from ._asyncio import AsyncioSource, Process, create_subprocess_exec, create_subprocess_shell
from ._outcome import POSITIONAL, CompletedProcess, expired, failed, told
from ._output import Chunk, Kept, Output, Pieces, Source, Text
from ._policy import Policy
from ._prepare import resolve_policy
from ._report import Report

__all__ = ["Output", "Process", "Stream", "create_subprocess_exec", "create_subprocess_shell", "run", "stream"]

_LONGEST = 8 << 20
_EVIDENCE = 256 << 10  # bytes of a streamed stderr, beginning and end, that are looked at for refusals


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
        bufsize = kwargs.pop("bufsize", -1)
        if bufsize is not None and not isinstance(bufsize, int):
            raise TypeError("bufsize must be an integer")
        self.text = Text(kwargs)
        self.input = self.text.encode(input)
        self.timeout = timeout
        self.check = check
        self.policy = resolve_policy(policy)
        # The time was up before the command had done all that it would.
        self.late = False
        for stream in ("stdin", "stdout", "stderr"):
            kwargs.setdefault(stream, None)
        self.options = kwargs

    async def open(self) -> Source:
        kind: Any = AsyncioSource
        trio = sys.modules.get("trio")
        # Not in_trio_run(): a guest of trio's may share the thread with asyncio's tasks.
        if trio is not None and trio.lowlevel.in_trio_task():
            from ._trio import TrioSource as kind
        source: Source = await kind.open(self.args, self.options, self.policy, self.input, self.timeout)
        return source

    async def take(self, source: Source) -> list[Chunk] | None:
        """`source.take()`; but the run is over before an error, a cancellation or the end of its time is seen. None or nothing
        is the end, and `late` says of which kind."""
        try:
            chunks = await source.take()
            self.late = chunks == [] or (chunks is not None and source.late())
            if chunks is None:
                await source.end(None)
        except GeneratorExit:  # the coroutine is thrown away, and cannot wait any more
            source.discard()
            raise
        except BaseException as error:
            source.report.ended = source.report.ended or "cancelled"
            await source.end(self.policy.terminate_grace if source.cancelled(error) else None)
            raise
        if self.late:
            if source.returncode is None:
                source.report.ended = "timeout"
            await source.end(self.policy.terminate_grace)
        return chunks

    def expired(self, report: Report, kept: Mapping[int, Kept]) -> subprocess.TimeoutExpired:
        stdout, stderr = (kept[fd].joined() or None if fd in kept else None for fd in (1, 2))
        return expired(self.args, self.timeout or 0, stdout, stderr, report)

    def completed(self, source: Source, kept: Mapping[int, Kept]) -> CompletedProcess[Any]:
        """The result.

        Raises:
            CalledProcessError: `check` is true, and the command failed.
        """
        assert source.returncode is not None
        stdout, stderr = (self.text.decode(kept.get(fd)) for fd in (1, 2))
        result: CompletedProcess[Any] = CompletedProcess(self.args, source.returncode, stdout, stderr)
        result.sandbox = source.report
        if self.check and source.returncode:
            raise failed(result, source.returncode, stdout, stderr)
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
    limit = call.policy.limits.output_bytes
    wanted = {1: call.options["stdout"], 2: call.options["stderr"]}
    kept = {fd: Kept(limit, call.text.encoding, call.text.errors) for fd, where in wanted.items() if where == subprocess.PIPE}
    source = await call.open()
    try:
        while chunks := await call.take(source):
            try:
                for fd, data, _ in chunks:
                    kept[fd].append(data)
            except UnicodeError:  # under a limit it is decoded as it comes
                await source.end(None)
                raise
            if call.late:
                break
    finally:
        told(source.report, kept)
        if 2 in kept and source.launch is not None:
            source.launch.read_errors(kept[2].joined())
    if call.late:
        raise call.expired(source.report, kept)
    return call.completed(source, kept)


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
    the block, or when the first event is asked for. It waits when its output is not taken: on asyncio about 1 MB is read ahead;
    on trio, where there is no task of ours, everything (the input, too) happens while somebody waits for an event.

    Args:
        lines: an event is a whole line; otherwise, what arrived, as it arrived (a prompt without a newline, too).
        longest: a line that is longer comes in events of this many bytes (in text mode: characters), of which only the last
            ends with a newline. What is kept in memory of a line is bounded by it.
        timeout: seconds from the start; after what had arrived by then comes `TimeoutExpired`.
        check: after the last event of a command that failed comes `CalledProcessError`.

    `limits.output_bytes` has no part in this: nothing is kept.

    Raises:
        When it starts, and when an event is asked for, what `run` raises.
    """
    if isinstance(longest, bool) or not isinstance(longest, int):
        raise TypeError("longest must be an integer")
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
        self._cutters = {fd: Pieces(call.text, lines, longest) for fd in (1, 2)}
        # What has arrived and was not given yet, and the part of it that is being cut: a piece at a time, since a chunk of
        # empty lines would make tens of thousands of events.
        self._chunks: collections.deque[Chunk] = collections.deque()
        self._cutting: Iterator[Output] = iter(())
        self._source: Source | None = None
        # Of stderr, for the report alone: where it says that something was refused.
        self._errors = Kept(_EVIDENCE)
        self._result: CompletedProcess[Any] | None = None
        # What is raised in the place of the event after the last.
        self._error: Exception | None = None
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
        """As `run` returns it, without the output. There once the last event has been taken.

        Raises:
            RuntimeError: they are not, or the stream was closed before.
        """
        if self._result is None:
            raise RuntimeError("the command was ended before it was done" if self._over else "the command has not ended")
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
        with self._alone():
            if not self._over:
                await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Output:
        if not self._busy and (ready := next(self._cutting, None)) is not None:
            return ready
        with self._alone():
            while True:
                for event in self._cutting:
                    return event
                if self._chunks:
                    fd, data, when = self._chunks.popleft()
                    self._cutting = await self._cut(fd, data, when)
                elif self._over:
                    error, self._error = self._error, None
                    raise error or StopAsyncIteration
                else:
                    await self._more(await self._start())

    async def aclose(self) -> None:
        """Ends the command, if it still runs: SIGTERM, and after the policy's `terminate_grace` the whole tree is killed.

        A command that another task is just starting is ended by that task.
        """
        self._over = True
        self._error = None
        self._chunks.clear()
        self._cutting = iter(())
        if self._source is not None:
            if self._source.returncode is None:
                self._source.report.ended = self._source.report.ended or "cancelled"
            await self._source.end(self._call.policy.terminate_grace)
            self._read_errors(self._source)

    def _read_errors(self, source: Source) -> None:
        text, self._errors = self._errors.joined(), Kept(_EVIDENCE)
        if source.launch is not None:
            source.launch.read_errors(text)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self._busy:
            raise RuntimeError("another task is waiting for the next event of this stream")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def _start(self) -> Source:
        if self._source is None:
            try:
                self._begin = time.monotonic()
                self._source = await self._call.open()
            except BaseException:
                self._over = True
                raise
            if self._over:  # closed meanwhile
                await self._source.end(None)
        return self._source

    async def _more(self, source: Source) -> None:
        try:
            chunks = await self._call.take(source)
        except BaseException:
            self._over = True
            raise
        for fd, data, _ in chunks or ():
            if fd == 2:
                self._errors.append(data)
        if self._call.late or chunks is None:
            self._read_errors(source)
        if self._over:  # closed meanwhile
            return
        self._chunks.extend(chunks or ())
        if self._call.late:
            self._over = True
            self._error = self._call.expired(source.report, {})
        elif chunks is None:
            self._over = True
            now = time.monotonic()
            self._chunks.extend((fd, b"", now) for fd in (1, 2))
            try:
                self._result = self._call.completed(source, {})
            except subprocess.CalledProcessError as error:
                self._error = error

    async def _cut(self, fd: int, data: bytes, when: float) -> Iterator[Output]:
        """The events of a chunk; of an empty one, which is the last of its stream, what is left."""
        try:
            pieces = self._cutters[fd].feed(data) if data else self._cutters[fd].close()
        except BaseException:  # it cannot be decoded
            await self.aclose()
            raise
        name, at = "stdout" if fd == 1 else "stderr", when - self._begin
        # Without a reference to this object: a stream that is thrown away is ended at once, not when cycles are collected.
        return (Output(name, piece, at) for piece in pieces)

    def __del__(self) -> None:
        if self._source is not None and not self._over:
            with contextlib.suppress(Exception):  # at the end of the interpreter, which ends everything anyway
                self._source.discard()
