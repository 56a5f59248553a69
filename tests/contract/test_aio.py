"""The asynchronous side: the same results and errors as the synchronous one, on asyncio, uvloop and trio; and when a run is
cancelled, the tree is dead and everything closed before the cancellation is seen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import LOOPS, TIER, needs_package, processes_with, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess import aio
from sandboxed_subprocess.testing import needs

PY = sys.executable


@pytest.fixture(autouse=True)
def sandbox():
    needs(TIER)


@pytest.fixture
def arun(ws, policy, loop):
    """`aio.run` in the workspace, called from outside a loop."""

    def call(*args, **kwargs):
        kwargs = {"policy": policy, "cwd": ws, "capture_output": True, **kwargs}
        return loop(lambda: aio.run(*args, **kwargs))

    return call


# -- run ------------------------------------------------------------------------------------------------------------------


def test_results_are_those_of_subprocess(arun):
    """Both outputs, the status, the text mode, the report."""
    result = arun(["sh", "-c", "echo out; echo err >&2; exit 3"], text=True)
    assert (result.args, result.returncode) == (["sh", "-c", "echo out; echo err >&2; exit 3"], 3)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.sandbox.ended == "exit" and result.sandbox.pid
    assert arun("echo $0", shell=True).stdout == b"/bin/sh\n"
    assert arun(["printf", r"a\r\nb\rc"], encoding="utf-8").stdout == "a\nb\nc"
    assert arun(["sh", "-c", "kill -9 $$"]).returncode == -9
    assert arun(["sh", "-c", "exit 137"]).returncode == 137
    assert arun(["true"], capture_output=False).stdout is None


def test_the_sandbox_is_the_same(arun, ws, outside):
    """There is one preparation for both worlds."""
    assert arun(["sh", "-c", f"touch made; touch {outside}/no"]).returncode != 0
    assert (ws / "made").exists() and not (outside / "no").exists()
    devices = arun(["cat", "/proc/net/dev"], text=True).stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    assert arun(["sh", "-c", "echo $PPID"]).stdout == b"1\n"


def test_large_input_and_output(arun):
    """Both pipes fill; nothing is lost, and nobody waits for the other."""
    data = os.urandom(1 << 20) * 20
    assert arun(["cat"], input=data).stdout == data
    assert arun(["true"], input=data).returncode == 0
    assert arun(["cat"], input="text", text=True).stdout == "text"
    assert arun(["cat"], input=b"").stdout == b""


def test_errors_are_those_of_subprocess(arun, ws):
    """Type, errno and filename; and for bad arguments the same words."""
    with pytest.raises(FileNotFoundError) as missing:
        arun(["no-such-program-xyz"])
    assert missing.value.filename == "no-such-program-xyz"
    with pytest.raises(FileNotFoundError) as missing:
        arun(["true"], cwd="/no/such/directory")
    assert missing.value.filename == "/no/such/directory"
    (ws / "plain").write_text("")
    with pytest.raises(PermissionError):
        arun([str(ws / "plain")])
    with pytest.raises(sp.CalledProcessError) as failed:
        arun(["sh", "-c", "echo why; exit 2"], check=True)
    assert failed.value.stdout == b"why\n" and failed.value.sandbox.ended == "exit"
    for bad in ({"input": b"x", "stdin": sp.PIPE}, {"capture_output": True, "stdout": sp.PIPE}, {"env": {"A=B": "x"}}, {"policy": "nonsense"}):
        with pytest.raises(ValueError):
            arun(["true"], **bad)
    with pytest.raises((TypeError, ValueError), match="nonsense"):  # uvloop's is a ValueError
        arun(["true"], nonsense=1)
    with pytest.raises(sp.SandboxUnavailable):
        arun(["true"], policy=sp.Policy.read_only(publish=[8000]))


def test_a_timeout_has_the_partial_output_and_ends_the_tree(arun, token):
    """SIGTERM first; what does not listen is killed after the grace."""
    begin = time.monotonic()
    with pytest.raises(sp.TimeoutExpired) as expired:
        arun(f"echo part; sleep {token} & sleep {token}", shell=True, timeout=0.5)
    assert expired.value.stdout == b"part\n" and expired.value.sandbox.ended == "timeout"
    assert processes_with(token) == [] and time.monotonic() - begin < 30


def test_a_timeout_lets_a_command_clean_up(arun, policy, ws):
    """terminate_grace is for that; and it is bounded."""
    polite = "trap 'echo bye > said; exit 0' TERM; echo up; while :; do sleep 0.01; done"
    with pytest.raises(sp.TimeoutExpired):
        arun(["sh", "-c", polite], timeout=0.5)
    assert (ws / "said").read_text() == "bye\n"
    begin = time.monotonic()
    with pytest.raises(sp.TimeoutExpired):
        arun(["sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"], timeout=0.3, policy=policy.replace(terminate_grace=0.3))
    assert 0.5 < time.monotonic() - begin < 30


def test_danger_full_access_is_plain(arun):
    """No sandbox, the same results."""
    result = arun(["sh", "-c", "echo out; exit 3"], policy="danger-full-access")
    assert (result.stdout, result.returncode, result.sandbox.backend) == (b"out\n", 3, None)


# -- cancellation ---------------------------------------------------------------------------------------------------------


DAEMON = "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.closerange(0, 64); time.sleep(600)\n    os._exit(0)\nprint('up', flush=True)\ntime.sleep(600)"


def test_a_cancelled_run_is_over_when_that_is_seen(ws, policy, token):
    """Not a moment later: who catches the cancellation may delete the workspace."""

    async def main():
        task = asyncio.ensure_future(aio.run([PY, "-c", DAEMON, token], policy=policy, cwd=ws, capture_output=True))
        while not processes_with(token):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(token) == []

    asyncio.run(main())


def test_timeouts_of_asyncio_work_around_it(ws, policy, token, aloop):
    """wait_for cancels, and so does asyncio.timeout(), and a failing task of a group."""

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.run(["sleep", token], policy=policy, cwd=ws), 0.2)
        assert processes_with(token) == []
        if sys.version_info >= (3, 11):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await aio.run(["sleep", token], policy=policy, cwd=ws)
            assert processes_with(token) == []

            async def fail():
                await asyncio.sleep(0.2)
                raise ZeroDivisionError

            with pytest.raises(BaseExceptionGroup):  # noqa: F821
                async with asyncio.TaskGroup() as group:
                    group.create_task(aio.run(["sleep", token], policy=policy, cwd=ws))
                    group.create_task(fail())
            assert processes_with(token) == []

    aloop(main)


def test_trio_scopes_work_around_it(ws, policy, token):
    """A deadline from outside, and a sibling that fails."""
    needs_package("trio")
    import trio

    async def main():
        with trio.move_on_after(0.2) as scope:
            await aio.run(["sleep", token], policy=policy, cwd=ws)
        assert scope.cancelled_caught and processes_with(token) == []
        with pytest.raises(BaseException) as caught:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: aio.run(["sleep", token], policy=policy, cwd=ws))
                await trio.sleep(0.2)
                raise ZeroDivisionError
        assert "ZeroDivisionError" in repr(caught.value) and processes_with(token) == []

    trio.run(main)


@pytest.mark.parametrize("times", [1, 3])
def test_a_storm_of_cancellations_leaves_nothing(ws, policy, token, aloop, times):
    """At any moment, the spawn included, and again while it is being cleaned up."""
    chance = random.Random(11)

    async def one():
        task = asyncio.ensure_future(aio.run([PY, "-S", "-c", DAEMON, token], policy=policy.replace(terminate_grace=0), cwd=ws, capture_output=True))
        for _ in range(times):
            await asyncio.sleep(chance.random() * 0.03)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(token) == []

    async def main():
        await one()
        before = sorted(os.listdir("/proc/self/fd"))
        for _ in range(30):
            await one()
        assert sorted(os.listdir("/proc/self/fd")) == before

    aloop(main)


def test_the_loop_is_not_blocked_while_a_sandbox_is_set_up(ws, policy):
    """And no pool of threads is used, which could be full of work that waits for this."""

    async def main():
        asyncio.get_running_loop().set_default_executor(FullExecutor())
        results = await asyncio.gather(*[aio.run(["true"], policy=policy, cwd=ws) for _ in range(20)])
        assert [r.returncode for r in results] == [0] * 20

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() <= before + 1


class FullExecutor(__import__("concurrent.futures").futures.ThreadPoolExecutor):
    def __init__(self):
        super().__init__(1)

    def submit(self, *_args, **_kwargs):
        raise AssertionError("a thread was asked for")


# -- create_subprocess_exec and _shell ------------------------------------------------------------------------------------------


def test_processes_are_asyncios_own(ws, policy, aloop):
    """A real Process: streams, wait, communicate, pid, returncode."""

    async def main():
        process = await sp.create_subprocess_exec("cat", stdin=sp.PIPE, stdout=sp.PIPE, policy=policy, cwd=ws)
        assert isinstance(process, asyncio.subprocess.Process) and process.pid and process.returncode is None
        process.stdin.write(b"line\n")
        assert await process.stdout.readline() == b"line\n"
        assert await process.communicate(b"rest") == (b"rest", None)
        assert process.returncode == 0 and process.sandbox.ended == "exit"
        shell = await sp.create_subprocess_shell("echo $0; exit 5", stdout=sp.PIPE, policy=policy, cwd=ws)
        assert await shell.communicate() == (b"/bin/sh\n", None) and await shell.wait() == 5

    aloop(main)


def test_signals_and_kill(ws, policy, token, aloop):
    """kill() is for the tree; the others are for the command. Afterwards ProcessLookupError, as asyncio has it."""

    async def main():
        process = await sp.create_subprocess_shell(f"sleep {token} & sleep {token}", policy=policy, cwd=ws)
        process.kill()
        assert await process.wait() == -9 and processes_with(token) == []
        for call in (process.kill, process.terminate, lambda: process.send_signal(signal.SIGUSR1)):
            with pytest.raises(ProcessLookupError):
                call()
        handler = await sp.create_subprocess_exec(
            "sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done", stdout=sp.PIPE, policy=policy, cwd=ws
        )
        assert await handler.stdout.readline() == b"up\n"
        handler.terminate()
        assert await handler.wait() == 7

    aloop(main)


def test_what_asyncio_refuses_is_refused(ws, policy, aloop):
    """The same words."""

    async def main():
        for name, value in (("text", True), ("encoding", "utf-8"), ("bufsize", 1), ("universal_newlines", True), ("shell", True)):
            with pytest.raises(ValueError, match=name):
                await sp.create_subprocess_exec("true", policy=policy, **{name: value})
        with pytest.raises(FileNotFoundError) as missing:
            await sp.create_subprocess_exec("no-such-program", policy=policy, cwd=ws)
        assert missing.value.filename == "no-such-program"
        with pytest.raises(ValueError, match="null"):
            await sp.create_subprocess_exec("tr\0ue", policy=policy)

    aloop(main)


def test_a_loop_that_ends_takes_its_processes_along(ws, token):
    """Nothing runs on, and nothing is said on stderr about closed loops."""
    code = (
        "import asyncio, sys, sandboxed_subprocess as sp\n"
        "async def main():\n"
        f"    sp.kept = await sp.create_subprocess_exec('sleep', {token!r}, stdout=sp.PIPE, policy=sp.Policy.workspace_write({str(ws)!r}))\n"
        "    print('left')\n"
        "if sys.argv[1] == 'uvloop':\n"
        "    import uvloop; loop = uvloop.new_event_loop()\n"
        "    loop.run_until_complete(main()); loop.run_until_complete(loop.shutdown_asyncgens()); loop.close()\n"
        "else: asyncio.run(main())\n"
    )
    for kind in ("asyncio", "uvloop"):
        result = subprocess.run([PY, "-c", code, kind], capture_output=True, text=True, timeout=60, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, "left\n", "")
        assert processes_with(token) == []


def test_a_loop_in_another_thread(ws, policy):
    """Where signal handlers, and the oldest child watchers, cannot be."""
    results = []

    async def main():
        results.append((await aio.run(["echo", "x"], policy=policy, cwd=ws, capture_output=True)).stdout)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    if sys.version_info < (3, 12):
        asyncio.get_event_loop_policy().set_child_watcher(None)
    thread.start()
    thread.join()
    assert results == [b"x\n"]


def test_keywords_of_popen(arun, ws):
    """umask, sessions, preexec_fn, descriptors: what the loop passes on reaches the command."""
    reader, writer = os.pipe()
    try:
        result = arun([PY, "-c", f"import os; os.write({writer}, b'via\\n')"], pass_fds=[writer])
        assert (result.returncode, result.stderr) == (0, b"")
        assert os.read(reader, 9) == b"via\n"
    finally:
        os.close(reader)
        os.close(writer)
    assert arun(["sh", "-c", "pwd"], start_new_session=True).stdout == f"{ws}\n".encode()
    assert arun(["env"], env={"A": "b", "PATH": "/bin:/usr/bin"}).stdout.splitlines()[0] == b"A=b"


# -- what was wrong once ----------------------------------------------------------------------------------------------------


def test_a_loop_that_is_over_is_not_kept_alive(ws, policy, used_loops):
    """Each loop that had run something stayed for ever, half a megabyte for two hundred: pytest-asyncio makes one per test."""
    import gc
    import weakref

    for name in ("asyncio", "uvloop"):
        needs_package(name)
        seen = []

        async def main(seen=seen):
            seen.append(weakref.ref(asyncio.get_running_loop()))
            await aio.run(["true"], policy=policy, cwd=ws)
            async for _ in aio.stream(["echo", "x"], policy=policy, cwd=ws):
                pass

        for _ in range(3):
            LOOPS[name](main)
        def collected(seen=seen):
            gc.collect()
            return all(ref() is None for ref in seen)

        # The thread of asyncio's that waited for the child holds the loop for a moment longer.
        wait_until(collected)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_coroutine_that_is_thrown_away_in_the_spawn(ws, policy, token, aloop):
    """coroutine.close() cannot wait, but what was being started must not stay."""

    async def main():
        for steps in range(6):
            coroutine = aio.run(["sleep", token], policy=policy, cwd=ws)
            with contextlib.suppress(StopIteration):
                coroutine.send(None)
            for _ in range(steps):
                await asyncio.sleep(0.001)
            coroutine.close()
            # It is ended as soon as it is there, and nothing tells when that was.
            await asyncio.sleep(0.3)
            assert processes_with(token) == []

    aloop(main)


def test_a_bad_timeout_starts_nothing(arun, token):
    """It was found out after the spawn."""
    with pytest.raises(TypeError):
        arun(["sleep", token], timeout="1")
    assert processes_with(token) == []


def test_partial_output_also_of_a_loop_that_was_busy(ws, policy, token, loop):
    """What was in the pipe when the time was up belongs to the error."""

    async def main():
        with pytest.raises(sp.TimeoutExpired) as expired:
            # Nothing is read between the start and the end of the time.
            run = aio.run(["sh", "-c", f"echo partial; exec sleep {token}"], capture_output=True, timeout=0.6, policy=policy, cwd=ws)
            if loop is LOOPS["trio"]:
                import trio

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(busy, trio.sleep)
                    await run
            else:
                task = asyncio.ensure_future(busy(asyncio.sleep))
                try:
                    await run
                finally:
                    await task
        return expired.value if isinstance(expired.value, sp.TimeoutExpired) else expired.value.exceptions[0]

    async def busy(sleep):
        await sleep(0.1)
        time.sleep(0.8)

    try:
        error = loop(main)
    except BaseException as group:  # trio's nursery above is the test's own
        error = group.exceptions[0]
    assert error.stdout == b"partial\n"


def test_interrupts_and_cancellations_of_trio_come_alone(ws, policy, token):
    """A nursery of ours put them into groups, which `except KeyboardInterrupt` does not see."""
    needs_package("trio")
    import trio

    async def cancelled():
        with trio.move_on_after(0.1):
            try:
                await aio.run(["sleep", token], policy=policy, cwd=ws)
            except trio.Cancelled:
                return True
        return False

    assert trio.run(cancelled)

    async def interrupted():
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        await aio.run(["sleep", token], policy=policy, cwd=ws)

    with pytest.raises(KeyboardInterrupt):
        trio.run(interrupted)
    assert processes_with(token) == []


def test_asyncio_beside_a_guest_of_trio(ws, policy):
    """Both in one thread: which of them asks is told by the task, not by the thread."""
    needs_package("trio")
    import trio

    async def main():
        done = asyncio.get_running_loop().create_future()
        found = []

        async def guest():
            found.append((await aio.run(["echo", "trio"], capture_output=True, policy=policy, cwd=ws)).stdout)

        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe,
            done_callback=lambda outcome: done.set_result(outcome),
        )
        found.append((await aio.run(["echo", "asyncio"], capture_output=True, policy=policy, cwd=ws)).stdout)
        (await done).unwrap()
        return sorted(found)

    assert asyncio.run(main()) == [b"asyncio\n", b"trio\n"]


def test_a_scope_of_anyio_does_not_spin(ws, policy, token):
    """It cancels again at every tick of the loop: a grace of a second cost a second of CPU."""
    needs_package("anyio")
    import anyio

    async def main():
        with anyio.move_on_after(0.1) as scope:
            await aio.run(["sh", "-c", f"trap '' TERM; sleep {token} & while :; do sleep 0.05; done"], policy=policy.replace(terminate_grace=1), cwd=ws)
        assert scope.cancelled_caught

    begin = time.process_time()
    anyio.run(main)
    assert time.process_time() - begin < 0.5
    assert processes_with(token) == []


@pytest.mark.parametrize("preset", ["workspace-write", "danger-full-access"])
def test_odd_arguments_are_taken_as_subprocess_takes_them(ws, policy, loop, preset):
    """Without a sandbox, too, where the loops have their own ideas of strings, shells and NULs."""
    chosen = policy if preset == "workspace-write" else preset

    def call(*args, **kwargs):
        return loop(lambda: aio.run(*args, **{"capture_output": True, "cwd": ws, "policy": chosen, **kwargs}))

    for args in ("true", b"true", ["true"], ("true",), [b"true"]):
        assert call(args).returncode == 0
    assert call(["echo $0 $1", "a", "b"], shell=True).stdout == b"a b\n"
    assert call("echo $0", shell=True).stdout == b"/bin/sh\n"
    for bad, error in (([], IndexError), (None, TypeError), (["echo", "a\0b"], ValueError), ([1], TypeError)):
        with pytest.raises(error):
            call(bad)
        with pytest.raises(error):
            subprocess.run(bad, check=False)
    with pytest.raises(ValueError):
        call(["true"], env={"A": "x\0y"})
    for name in ("no-such-program", "/no/such/program"):
        with pytest.raises(FileNotFoundError) as missing:
            call([name])
        assert missing.value.filename == name
    assert call(["cat"], input="").stdout == b"" and call(["cat"], input=b"x", bufsize=None).stdout == b"x"
    assert call(["printf", r"\351"], encoding="latin-1").stdout == "é"
    assert call(["echo", "x"], encoding="locale").stdout == "x\n"
    with pytest.raises(AttributeError):
        call(["cat"], input=b"x", text=True)
    with pytest.raises(TypeError):
        call(["cat"], input="x")


def test_what_uvloop_cannot_pass_is_said(ws, policy, used_loops):
    """Its own words are "unexpected kwargs", also for a value that is the default."""
    needs_package("uvloop")

    def call(chosen, **kwargs):
        return LOOPS["uvloop"](lambda: aio.run(["true"], policy=chosen, cwd=ws, **kwargs))

    for chosen in (policy, "danger-full-access"):
        for name, value in (("umask", 0o22), ("process_group", 0), ("pipesize", 1 << 17)):
            with pytest.raises(ValueError, match=f"uvloop cannot pass {name}="):
                call(chosen, **{name: value})
        assert call(chosen, umask=-1, process_group=None, pipesize=-1, user=None, group=None, extra_groups=None).returncode == 0


def test_a_timer_that_is_early_is_a_timer(ws, policy, aloop):
    """A loop that counts in milliseconds called before the time was up; it was looked at, found not to be, and never again."""
    policy = policy.replace(terminate_grace=0)
    chance = random.Random(2)

    async def main():
        for _ in range(40):
            with pytest.raises(sp.TimeoutExpired):
                run = aio.run(["sleep", "60"], timeout=0.005 + chance.random() * 0.005, policy=policy, cwd=ws)
                await asyncio.wait_for(run, 30)

    aloop(main)
