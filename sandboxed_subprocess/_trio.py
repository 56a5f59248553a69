"""`aio.run()` on trio. Imported when a trio loop runs, and so never brings trio in by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any

import trio

from ._errors import SandboxSetupError
from ._launch import ExecFailed, Launch
from ._outcome import kill_unconfined, refusal, spawning
from ._policy import Policy
from ._prepare import plain_spawn, prepare
from ._report import Enforcement, Report

_CHUNK = 1 << 18


async def run_on_trio(
    args: Any, options: dict[str, Any], policy: Policy, data: Any, timeout: float | None
) -> tuple[int, bytearray | None, bytearray | None, Report]:
    end = trio.current_time() + timeout if timeout is not None else float("inf")
    launch: Launch | None = None
    # Shields are right here: trio has no other way in, and a spawn is short.
    with trio.CancelScope(shield=True):
        if policy.unconfined:
            report = Report(enforcement=Enforcement.NONE)
            process = await _plain(args, options)
        else:
            launch, options, program = prepare(args, options, policy)
            report = launch.report
            process = await _start(launch, options, program)
    kept = [None if stream is None else bytearray() for stream in (process.stdout, process.stderr)]
    try:
        with trio.move_on_at(end) as scope:
            async with trio.open_nursery() as nursery:
                for stream, part in zip((process.stdout, process.stderr), kept):
                    if stream is not None and part is not None:
                        nursery.start_soon(_read, stream, part)
                if process.stdin is not None:
                    nursery.start_soon(_write, process.stdin, data)
                await process.wait()
    except BaseException:
        report.ended = report.ended or "cancelled"
        # Asked of the scopes, since a nursery may have put Cancelled into a group.
        grace = policy.terminate_grace if trio.current_effective_deadline() == float("-inf") else None
        with trio.CancelScope(shield=True):
            await _end(process, launch, grace)
        raise
    if scope.cancelled_caught:
        report.ended = "timeout"
        with trio.CancelScope(shield=True):
            await _end(process, launch, policy.terminate_grace)
        out, err = (None if part is None else bytes(part) for part in kept)
        expired = subprocess.TimeoutExpired(args, timeout or 0, out or None, err or None)
        expired.sandbox = report  # type: ignore[attr-defined]
        raise expired
    with trio.CancelScope(shield=True):
        await _end(process, launch, None)
    assert process.returncode is not None
    return process.returncode, kept[0], kept[1], report


async def _plain(args: Any, options: dict[str, Any]) -> trio.Process:
    # Now, not in kill(): by then, a command may have put a psutil.py into the current directory.
    import psutil  # noqa: F401

    with plain_spawn(list(args) if isinstance(args, (list, tuple)) else args):
        return await trio.lowlevel.open_process(args, **options)


async def _start(launch: Launch, options: dict[str, Any], program: Any) -> trio.Process:
    argv = list(launch.argv)
    with spawning(launch, program), plain_spawn(argv):
        process = await trio.lowlevel.open_process(argv, **options)
    try:
        async with trio.open_nursery() as nursery:
            # Whichever comes first: a word from the launcher, or its end.
            nursery.start_soon(_first, process.wait, nursery.cancel_scope)
            nursery.start_soon(_first, lambda: trio.lowlevel.wait_readable(launch.word()), nursery.cancel_scope)
        launch.settle(process.pid)
    except (ExecFailed, SandboxSetupError) as error:
        await _end(process, launch, 1.0)
        raise refusal(error, program) from None
    except BaseException:
        await _end(process, launch, None)
        raise
    return process


async def _first(wait: Any, scope: trio.CancelScope) -> None:
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
        if launch is not None:
            launch.kill()
            # Somebody may have stopped the monitor, and a stopped one reaps nothing.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, getattr(signal, "SIGCONT", 18))
        else:
            kill_unconfined(process.pid, process.kill)
        await process.wait()
    if launch is not None:
        launch.finish()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


async def _read(stream: Any, into: bytearray) -> None:
    while chunk := await stream.receive_some(_CHUNK):
        into += chunk


async def _write(stream: Any, data: Any) -> None:
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(memoryview(data).cast("B") if data else b"")
