"""`aio.stream`: a command's output, event by event, in order, on every loop; and nothing left when it is over."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time

import pytest
from conftest import TIER, needs_package, on_trio, processes_with, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess import aio
from sandboxed_subprocess.testing import needs

PY = sys.executable


@pytest.fixture(autouse=True)
def sandbox():
    needs(TIER)


@pytest.fixture
def collect(ws, policy, loop):
    """All events of a command as (stream, data), and its result."""

    def call(*args, **kwargs):
        kwargs = {"policy": policy, "cwd": ws, **kwargs}

        async def main():
            events = []
            async with aio.stream(*args, **kwargs) as stream:
                async for event in stream:
                    assert event.time >= (events[-1].time if events else 0)
                    events.append(event)
            return [(event.stream, event.data) for event in events], stream.result

        return loop(main)

    return call


# -- events -----------------------------------------------------------------------------------------------------------------


def test_the_report_of_a_stream_has_what_was_refused(collect, ws, policy, outside, loop):
    """From what passes by on stderr, of which beginning and end are looked at; `run` and `communicate` did that, a stream not."""
    noise = "i=0; while [ $i -lt 20 ]; do head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2; i=$((i + 1)); done"
    script = f"touch {outside}/first; {noise}; touch {outside}/last"
    for lines in (True, False):
        _, result = collect(["sh", "-c", script], lines=lines)
        assert {v.detail for v in result.sandbox.violations} == {f"{outside}/first", f"{outside}/last"}
        assert all(v.kind == "write" and v.source == "stderr" for v in result.sandbox.violations)

    async def closed():
        async with aio.stream(["sh", "-c", f"touch {outside}/x; sleep 60"], policy=policy, cwd=ws) as stream:
            async for event in stream:
                assert event.stream == "stderr"
                break
        return stream.sandbox.violations

    assert [v.detail for v in loop(closed)] == [f"{outside}/x"]
    assert list(outside.iterdir()) == []


def test_lines_of_both_streams_and_the_result(collect):
    """Each with its newline, but for a last one that has none; the result has no output of its own."""
    events, result = collect(["sh", "-c", "echo one; echo two; printf three; exit 3"])
    assert events == [("stdout", b"one\n"), ("stdout", b"two\n"), ("stdout", b"three")]
    assert (result.returncode, result.stdout, result.stderr) == (3, None, None) and result.sandbox.ended == "exit"
    script = "echo out; while [ ! -e go ]; do sleep 0.01; done; echo err >&2"
    events, _ = collect(["sh", "-c", "echo err >&2; echo out"], text=True)
    assert sorted(events) == [("stderr", "err\n"), ("stdout", "out\n")]
    assert collect(["true"])[0] == [] and collect(["echo"])[0] == [("stdout", b"\n")]
    assert collect(["sh", "-c", script.replace("go", "/")])[1].returncode == 0


def test_the_order_is_that_of_arrival(ws, policy, loop):
    """Across the two streams, where the command gives time for that."""

    async def main():
        seen = []
        script = "for n in 1 2 3 4 5 6; do echo $n >&$((n % 2 + 1)); while [ ! -e seen-$n ]; do sleep 0.001; done; done"
        async with aio.stream(["sh", "-c", script], policy=policy, cwd=ws, text=True) as stream:
            async for event in stream:
                seen.append((event.stream, event.data))
                (ws / f"seen-{event.data.strip()}").touch()
        return seen

    names = ("stdout", "stderr")
    assert loop(main) == [(names[n % 2], f"{n}\n") for n in range(1, 7)]


def test_one_stream_for_both_keeps_the_order_of_writing(collect):
    """stderr=STDOUT is one pipe, as ever; and what is not piped gives no events."""
    events, _ = collect("for n in 1 2 3; do echo o$n; echo e$n >&2; done", shell=True, stderr=sp.STDOUT, text=True)
    assert [data for _, data in events] == ["o1\n", "e1\n", "o2\n", "e2\n", "o3\n", "e3\n"]
    assert {name for name, _ in events} == {"stdout"}
    assert collect("echo o; echo e >&2", shell=True, stdout=sp.DEVNULL)[0] == [("stderr", b"e\n")]


def test_lines_of_any_length(collect):
    """asyncio's readline() raises at 64 KiB and loses what it had; programs print megabytes of JSON in one line."""
    events, result = collect([PY, "-c", "print('x' * 5_000_000); print('next')"])
    assert [len(data) for _, data in events] == [5_000_001, 5] and result.returncode == 0


def test_a_line_longer_than_the_bound_comes_in_pieces(collect):
    """Memory is bounded also where no newline ever comes; nothing is lost."""
    events, _ = collect([PY, "-c", "print('x' * 250 + 'y'); print('z' * 100); print('-' * 101)"], longest=100)
    assert [data for _, data in events] == [
        b"x" * 100, b"x" * 100, b"x" * 50 + b"y\n", b"z" * 100 + b"\n", b"-" * 100, b"-\n",
    ]  # fmt: skip


def test_text_is_decoded_across_the_borders_of_what_arrives(ws, policy, loop):
    """A character in two pieces, on each stream by itself; a return and its newline in two pieces."""
    code = (
        "import os, time\n"
        "def put(fd, data, name):\n"
        "    os.write(fd, data)\n"
        "    while not os.path.exists(name): time.sleep(0.001)\n"
        "put(1, b'a', 'a'); put(1, b'\\xc3', 'x'); put(2, b'\\xe2\\x82', 'y')\n"
        "os.write(1, b'\\xa4b\\r'); put(2, b'\\xac', 'z'); os.write(1, b'\\nc\\rd\\n')\n"
    )

    async def main():
        pieces = {"stdout": "", "stderr": ""}
        async with aio.stream([PY, "-c", code], policy=policy, cwd=ws, encoding="utf-8", lines=False) as stream:
            (ws / "x").touch()
            (ws / "y").touch()
            async for event in stream:
                assert event.data  # half a character is no event
                pieces[event.stream] += event.data
                (ws / "a").touch()
                if event.stream == "stderr":
                    (ws / "z").touch()
        return pieces

    assert loop(main) == {"stdout": "aäb\nc\nd\n", "stderr": "€"}


def test_what_cannot_be_decoded_ends_the_command(ws, policy, token, loop):
    """As the text mode of a file; errors= is for that."""

    async def main(**keywords):
        script = f"printf 'a\\377\\n'; exec sleep {token}"
        async with aio.stream(["sh", "-c", script], policy=policy, cwd=ws, encoding="utf-8", **keywords) as stream:
            return [await stream.__anext__()]

    with pytest.raises(UnicodeDecodeError):
        loop(main)
    assert processes_with(token) == []
    assert loop(lambda: main(errors="replace"))[0].data == "a�\n"


def test_pieces_come_at_once(ws, policy, loop):
    """A prompt has no newline, and what answers it waits for it."""

    async def main():
        reader, writer = os.pipe()
        try:
            async with aio.stream(
                ["sh", "-c", "printf 'name? '; read name; echo hello $name"], stdin=reader, policy=policy, cwd=ws, lines=False
            ) as stream:
                assert (await stream.__anext__()).data == b"name? "
                os.write(writer, b"you\n")
                return b"".join([event.data async for event in stream])
        finally:
            os.close(reader)
            os.close(writer)

    assert loop(main) == b"hello you\n"


def test_input_is_written_while_output_is_read(collect):
    """More than the pipes hold, both ways."""
    data = os.urandom(1 << 19).hex().encode() * 4
    events, _ = collect(["cat"], input=data, lines=False)
    assert b"".join(piece for _, piece in events) == data
    assert collect(["cat"], input="ä\n", encoding="utf-8")[0] == [("stdout", "ä\n")]
    assert collect(["true"], input=data)[0] == []


def test_a_reader_that_is_slow_slows_the_command(ws, policy, loop):
    """Memory stays bounded: the command waits, and nothing is lost."""

    async def main():
        taken = 0
        async with aio.stream(["head", "-c", "100000000", "/dev/zero"], policy=policy, cwd=ws, lines=False) as stream:
            first = await stream.__anext__()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            pause = asyncio.sleep if loop is not on_trio else __import__("trio").sleep
            await pause(0.3)
            assert stream.returncode is None  # it has more to write than anybody has taken
            async for event in stream:
                taken += len(event.data)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
        return taken + len(first.data)

    assert loop(main) == 100_000_000


# -- ends -------------------------------------------------------------------------------------------------------------------


def test_check_and_timeout(collect, ws, policy, token):
    """They take the place of the last event, and of the next."""
    with pytest.raises(sp.CalledProcessError) as failed:
        collect(["sh", "-c", "echo x; exit 4"], check=True)
    assert failed.value.returncode == 4 and failed.value.sandbox.ended == "exit"
    with pytest.raises(sp.TimeoutExpired) as expired:
        collect(["sh", "-c", f"sleep {token} & while :; do echo x; sleep 0.01; done"], timeout=0.4)
    assert expired.value.timeout == 0.4 and expired.value.sandbox.ended == "timeout"
    assert processes_with(token) == []
    # In time, though its output is taken later.
    assert len(collect(["sh", "-c", "echo x; echo y"], timeout=30)[0]) == 2


def test_errors_are_those_of_run(collect, loop):
    """Before the command is started: at the call. Then, at the first event or at the block."""
    with pytest.raises(FileNotFoundError) as missing:
        collect(["no-such-program-xyz"])
    assert missing.value.filename == "no-such-program-xyz"
    for bad in ({"input": b"x", "stdin": sp.PIPE}, {"policy": "nonsense"}, {"longest": 0}):
        with pytest.raises(ValueError):
            aio.stream(["true"], **bad)
    with pytest.raises(TypeError):
        aio.stream()
    with pytest.raises(TypeError):
        aio.stream(["true"], input="text")

    async def again():
        stream = aio.stream(["no-such-program-xyz"])
        with pytest.raises(FileNotFoundError):
            await stream.__anext__()
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        await stream.aclose()

    loop(again)


def test_leaving_the_block_ends_the_tree(ws, policy, token, loop):
    """By its end, by break, by an exception; and a command that wants to clean up can."""

    async def main(how):
        script = f"sleep {token} & trap 'echo bye > {how}; exit' TERM; echo up; while :; do sleep 0.01; done"
        async with aio.stream(["sh", "-c", script], policy=policy, cwd=ws) as stream:
            async for event in stream:
                assert event.data == b"up\n"
                if how == "break":
                    break
                if how == "raise":
                    raise ZeroDivisionError
                await stream.aclose()
        assert processes_with(token) == [] and (ws / how).read_text() == "bye\n"
        assert stream.sandbox.ended == "cancelled" and stream.returncode == 0
        with pytest.raises(RuntimeError):
            _ = stream.result
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()

    loop(lambda: main("break"))
    loop(lambda: main("close"))
    with pytest.raises(ZeroDivisionError):
        loop(lambda: main("raise"))
    assert processes_with(token) == []


def test_without_a_block(ws, policy, token, loop):
    """`async for` alone does; thrown away in the middle, the tree is killed."""

    async def main():
        lines = [event.data async for event in aio.stream(["seq", "3"], policy=policy, cwd=ws, text=True)]
        assert lines == ["1\n", "2\n", "3\n"]
        async for event in aio.stream(["sh", "-c", f"echo up; exec sleep {token}"], policy=policy, cwd=ws):
            assert event.data == b"up\n"
            break
        wait_until(lambda: not processes_with(token))
        never = aio.stream(["sleep", token], policy=policy, cwd=ws)
        with pytest.raises(RuntimeError):
            _ = never.sandbox
        assert never.returncode is None
        await never.aclose()
        async with never as closed:
            assert [event async for event in closed] == []

    loop(main)


def test_a_background_writer_does_not_keep_it_open(collect):
    """A drain that waits for silence would never end."""
    begin = time.monotonic()
    events, result = collect("(while :; do echo x; sleep 0.01; done) & echo done", shell=True, text=True)
    assert ("stdout", "done\n") in events and result.returncode == 0 and time.monotonic() - begin < 30


def test_signals_and_kill(ws, policy, token, loop):
    """To the command, and to the tree; afterwards, nothing happens."""

    async def main():
        async with aio.stream(["sh", "-c", "trap 'echo got' USR1; echo up; while :; do sleep 0.01; done"], policy=policy, cwd=ws) as s:
            await s.__anext__()
            s.send_signal(10)
            assert (await s.__anext__()).data == b"got\n"
            s.kill()
            assert [event async for event in s] == []
            assert s.result.returncode == -9 and s.sandbox.ended == "killed"
            s.kill()
            s.terminate()

    loop(main)


def test_one_reader_at_a_time(ws, policy, token):
    """As an asynchronous generator has it."""

    async def main():
        async with aio.stream(["sleep", token], policy=policy, cwd=ws) as stream:
            first = asyncio.ensure_future(stream.__anext__())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await stream.__anext__()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert processes_with(token) == []

    asyncio.run(main())


def test_closing_while_somebody_waits(ws, policy, token, loop):
    """Whoever waits for an event learns that there are no more."""

    async def main():
        stream = aio.stream(["sleep", token], policy=policy, cwd=ws)
        async with stream:
            if loop is on_trio:
                import trio

                async with trio.open_nursery() as nursery:

                    async def wait():
                        with pytest.raises(StopAsyncIteration):
                            await stream.__anext__()

                    nursery.start_soon(wait)
                    await trio.sleep(0.05)
                    await stream.aclose()
            else:
                waiting = asyncio.ensure_future(stream.__anext__())
                await asyncio.sleep(0.05)
                await stream.aclose()
                with pytest.raises(StopAsyncIteration):
                    try:
                        await waiting
                    except RuntimeError as error:  # a task cannot raise StopAsyncIteration by itself on every version
                        raise error.__cause__ from None

    loop(main)
    assert processes_with(token) == []


@pytest.mark.parametrize("steps", range(12))
def test_cancelled_at_any_await(ws, policy, token, aloop, steps):
    """The tree is dead, and everything closed, before the cancellation is seen; and so for a timeout of asyncio's."""

    async def read():
        script = f"(setsid sleep {token} &) ; for n in 1 2 3; do echo $n; done; exec sleep {token}"
        async with aio.stream(["sh", "-c", script], policy=policy.replace(terminate_grace=0), cwd=ws) as stream:
            async for _ in stream:
                await asyncio.sleep(0)

    async def main():
        await aio.run(["true"], policy=policy, capture_output=True)
        before = sorted(os.listdir("/proc/self/fd"))
        task = asyncio.ensure_future(read())
        for _ in range(steps):
            await asyncio.sleep(0 if steps < 6 else 0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(token) == []
        assert sorted(os.listdir("/proc/self/fd")) == before
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(read(), 0.05)
        assert processes_with(token) == []

    aloop(main)


def test_cancelled_by_a_scope_of_trio(ws, policy, token):
    """The shield is inside."""
    needs_package("trio")
    import trio

    async def main():
        with trio.move_on_after(0.2) as scope:
            async with aio.stream(["sh", "-c", f"sleep {token} & echo up; sleep {token}"], policy=policy, cwd=ws) as stream:
                async for event in stream:
                    assert event.data == b"up\n"
        assert scope.cancelled_caught and processes_with(token) == []

    trio.run(main)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_scopes_of_anyio(ws, policy, token, backend):
    """`move_on_after`, `fail_after`, a task group: as on the loop below it."""
    needs_package("anyio")
    import anyio

    async def main():
        with anyio.move_on_after(0.2) as scope:
            await aio.run(["sleep", token], policy=policy, cwd=ws)
        assert scope.cancelled_caught and processes_with(token) == []
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.2):
                async for _ in aio.stream(["sleep", token], policy=policy, cwd=ws):
                    pass
        assert processes_with(token) == []
        with anyio.move_on_after(0.2) as scope:
            with anyio.CancelScope(shield=True):
                result = await aio.run(["sh", "-c", "sleep 0.4; echo done"], policy=policy, cwd=ws, capture_output=True)
        assert result.stdout == b"done\n"
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: aio.run(["sleep", token], policy=policy, cwd=ws))
            await anyio.sleep(0.1)
            group.cancel_scope.cancel()
        assert processes_with(token) == []

    anyio.run(main, backend=backend)


# -- what was wrong once ----------------------------------------------------------------------------------------------------


async def nap(loop, seconds):
    if loop is on_trio:
        import trio

        await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)


def test_the_last_line_comes_before_the_error(ws, policy, loop):
    """check=True raised in its place, and it is the line that says why."""

    async def main():
        seen = []
        with pytest.raises(sp.CalledProcessError):
            async for event in aio.stream(["sh", "-c", "echo one; printf fatal; exit 1"], check=True, text=True, policy=policy, cwd=ws):
                seen.append(event.data)
        return seen

    assert loop(main) == ["one\n", "fatal"]


def test_what_arrived_in_time_comes_before_the_timeout(ws, policy, token, loop):
    """It was thrown away."""

    async def main():
        seen = []
        with pytest.raises(sp.TimeoutExpired):
            async for event in aio.stream(["sh", "-c", f"seq 3; exec sleep {token}"], timeout=2, text=True, policy=policy, cwd=ws):
                seen.append(event.data)
                await nap(loop, 1.1)
        return seen

    assert loop(main) == ["1\n", "2\n", "3\n"]


def test_a_command_that_ended_in_time_was_in_time(ws, policy, aloop):
    """However late its output is taken: reading was paused, the time passed, and that was taken for its end."""

    async def main():
        total = 0
        async with aio.stream(["head", "-c", "1090000", "/dev/zero"], timeout=0.5, lines=False, policy=policy, cwd=ws) as stream:
            async for event in stream:
                if not total:
                    await asyncio.sleep(0.8)
                total += len(event.data)
        return total, stream.result.returncode, stream.sandbox.ended

    assert aloop(main) == (1090000, 0, "exit")


def test_closed_while_it_is_being_started(ws, policy, token, aloop):
    """The one that started it ends it; it ran on, and nothing could end it any more."""

    async def main():
        for steps in range(8):
            stream = aio.stream(["sleep", token], policy=policy.replace(terminate_grace=0), cwd=ws)
            reader = asyncio.ensure_future(anext_or_none(stream))
            for _ in range(steps):
                await asyncio.sleep(0)
            await stream.aclose()
            assert await reader is None
            assert processes_with(token) == []
        stream = aio.stream(["sleep", token], policy=policy.replace(terminate_grace=0), cwd=ws)
        first = asyncio.ensure_future(stream.__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            await stream.__aenter__()
        await first
        await stream.aclose()
        assert processes_with(token) == []

    aloop(main)


async def anext_or_none(stream):
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None


def test_whoever_closes_second_waits_too(ws, policy, token, loop):
    """It returned at once, with the tree alive, and who left the block could have deleted the workspace."""

    async def main():
        script = f"trap '' TERM; echo up; sleep {token} & while :; do sleep 0.01; done"
        stream = aio.stream(["sh", "-c", script], policy=policy.replace(terminate_grace=0.4), cwd=ws)

        async def close():
            await stream.aclose()
            assert processes_with(token) == []

        async with stream:
            await stream.__anext__()
            if loop is on_trio:
                import trio

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(close)
                    nursery.start_soon(close)
            else:
                await asyncio.gather(close(), close())

    loop(main)


def test_a_flood_of_empty_lines_is_cut_piece_by_piece(ws, policy, loop):
    """A million events at once took a second and a hundred megabytes."""

    async def main():
        async with aio.stream("yes '' | head -c 4000000", shell=True, policy=policy, cwd=ws) as stream:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            count = 0
            longest = 0.0
            begin = time.monotonic()
            async for event in stream:
                now = time.monotonic()
                longest = max(longest, now - begin)
                begin = now
                count += event.data == b"\n"
        assert count == 4_000_000 and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
        async with aio.stream("yes '' | head -c 1000", shell=True, policy=policy, cwd=ws, longest=1) as stream:
            assert [event.data async for event in stream] == [b"\n"] * 1000

    loop(main)


@pytest.mark.parametrize("longest", [1.5, True, "8"])
def test_a_bound_that_is_none(longest):
    """It passed, and failed at the first event."""
    with pytest.raises(TypeError):
        aio.stream(["true"], longest=longest)
