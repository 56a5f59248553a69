"""Field cases of event loops: lost statuses, lost output, spawns that are cancelled, loops that are closed, and the cases of
ending in their asynchronous form."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest
from conftest import ROOT, TIER, on_trio, processes_with, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess import aio
from sandboxed_subprocess.testing import needs

PY = sys.executable
# A child that leaves its session, its group and its parent.
DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.closerange(0, 256)\n"
    "        time.sleep(600)\n"
    "    os._exit(0)\n"
    "print('up', flush=True)\n"
)


@pytest.fixture(autouse=True)
def sandbox():
    needs(TIER)


@pytest.fixture
def spawn(ws, policy):
    """create_subprocess_exec in the workspace."""

    async def call(*args, **kwargs):
        return await sp.create_subprocess_exec(*args, **{"policy": policy, "cwd": ws, **kwargs})

    return call


# -- statuses and output ----------------------------------------------------------------------------------------------------


def test_a_signal_that_races_with_the_exit_loses_no_status(spawn, aloop):
    """A watcher that lost the race for waitpid() reports 255, or waits for ever (aio-libs/aiohttp#7038)."""
    chance = random.Random(3)

    async def one():
        process = await spawn("sleep", "0.01")
        await asyncio.sleep(chance.random() * 0.02)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)
        return await asyncio.wait_for(process.wait(), 20)

    async def main():
        found = set()
        for _ in range(60):
            found.update(await asyncio.gather(*(one() for _ in range(4))))
        return found

    assert aloop(main) == {0, -signal.SIGUSR1}


def test_a_cancelled_communicate_loses_nothing(spawn, ws, aloop):
    """asyncio's throws away what it has read (python/cpython#139373); Popen's keeps it."""

    async def main():
        script = "echo first; echo err >&2; while [ ! -e go ]; do sleep 0.01; done; echo second; cat"
        process = await spawn("sh", "-c", script, stdin=sp.PIPE, stdout=sp.PIPE, stderr=sp.PIPE)
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(process.communicate(), 0.1)
        (ws / "go").touch()
        assert await process.communicate(b"third\n") == (b"first\nsecond\nthird\n", b"err\n")
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 0

    if sys.version_info >= (3, 12):  # where communicate() without input closes stdin

        async def main():
            script = "echo first; echo err >&2; while [ ! -e go ]; do sleep 0.01; done; echo second"
            process = await spawn("sh", "-c", script, stdout=sp.PIPE, stderr=sp.PIPE)
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(process.communicate(), 0.1)
            (ws / "go").touch()
            assert await process.communicate() == (b"first\nsecond\n", b"err\n")
            assert process.returncode == 0

    aloop(main)


def test_limit_is_asyncios(spawn, aloop):
    """The drop-in form keeps `limit=`, and what it means."""

    async def main():
        process = await spawn(PY, "-c", "print('x' * 200_000); print('next')", stdout=sp.PIPE, limit=2**20)
        assert [len(await process.stdout.readline()), await process.stdout.readline()] == [200_001, b"next\n"]
        await process.wait()
        process = await spawn(PY, "-c", "print('x' * 200_000)", stdout=sp.PIPE)
        with pytest.raises(ValueError):
            await process.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()

    aloop(main)


def test_late_output_arrives_and_a_background_job_is_not_waited_for(ws, policy, loop):
    """Waiting for EOF alone would wait for the job; stopping at the exit would lose what is on its way."""

    def run(script):
        return loop(lambda: aio.run(script, shell=True, capture_output=True, policy=policy, cwd=ws))

    begin = time.monotonic()
    assert run("echo A; sleep 981.75 & echo B").stdout == b"A\nB\n"
    assert time.monotonic() - begin < 30
    assert run("printf A; (sleep 0.1; printf B) & wait").stdout == b"AB"
    assert run("printf A; (printf B) & exit 0").stdout == b"AB"
    assert run("head -c 5000000 /dev/zero").stdout == bytes(5_000_000)
    assert run("(while :; do echo x; sleep 0.01; done) & echo done").returncode == 0


# -- cancellation -----------------------------------------------------------------------------------------------------------


def test_a_spawn_that_is_cancelled_leaves_nothing(ws, policy, token, aloop):
    """The caller has no handle yet; asyncio kills only what it started itself (python/cpython#103847)."""

    async def main():
        await aio.run(["true"], policy=policy, capture_output=True)
        before = sorted(os.listdir("/proc/self/fd"))
        cancelled = 0
        for number in range(40):
            script = f"sleep {token} & sleep {token}"
            task = asyncio.ensure_future(sp.create_subprocess_shell(script, stdout=sp.PIPE, policy=policy.replace(terminate_grace=0), cwd=ws))
            await asyncio.sleep(number * 0.0003)
            task.cancel()
            try:
                process = await task
            except asyncio.CancelledError:
                cancelled += 1
            else:
                process.kill()
                await process.communicate()
            assert processes_with(token) == []
        # What asyncio closes itself, it may close some ticks later; and its threads of waitpid() may hold a pipe for a moment.
        deadline = time.monotonic() + 5
        while sorted(os.listdir("/proc/self/fd")) != before and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert cancelled and sorted(os.listdir("/proc/self/fd")) == before

    aloop(main)


def test_a_second_cancellation_waits_as_well(ws, policy, token, aloop, caplog):
    """A shield would detach the clean-up: the caller goes on, and the tree too."""

    async def main():
        script = f"trap '' TERM; sleep {token} & wait; sleep {token}"
        task = asyncio.ensure_future(aio.run(["sh", "-c", script], policy=policy.replace(terminate_grace=0.3), cwd=ws))
        while len(processes_with(token)) < 3:
            await asyncio.sleep(0.01)
        begin = time.monotonic()
        for pause in (0, 0.01, 0.05, 0):
            task.cancel()
            await asyncio.sleep(pause)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(token) == [] and 0.2 < time.monotonic() - begin < 30

    aloop(main)
    assert caplog.records == []


def test_a_daemon_dies_in_each_way_of_ending(ws, policy, token, loop):
    """A new session and a double fork leave the group and the family; six ways of ending, and none may leave it."""
    policy = policy.replace(terminate_grace=0)
    ends = DAEMON, DAEMON + "time.sleep(600)"

    def check(function):
        loop(function)
        assert processes_with(token) == []

    async def by_itself():
        assert (await aio.run([PY, "-c", ends[0], token], policy=policy, cwd=ws, capture_output=True)).stdout == b"up\n"

    async def by_timeout():
        with pytest.raises(sp.TimeoutExpired):
            await aio.run([PY, "-c", ends[1], token], policy=policy, cwd=ws, timeout=0.3)

    async def by_leaving():
        async with aio.stream([PY, "-c", ends[1], token], policy=policy, cwd=ws) as stream:
            await stream.__anext__()

    async def by_kill():
        process = await sp.create_subprocess_exec(PY, "-c", ends[1], token, policy=policy, cwd=ws, stdout=sp.PIPE)
        await process.stdout.readline()
        process.kill()
        assert await process.wait() == -9

    async def by_cancellation():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.run([PY, "-c", ends[1], token], policy=policy, cwd=ws), 0.3)

    async def by_the_end_of_the_loop():
        await sp.create_subprocess_exec(PY, "-c", ends[1], token, policy=policy, cwd=ws)

    for function in (by_itself, by_timeout, by_leaving):
        check(function)
    if loop is not on_trio:
        for function in (by_kill, by_cancellation, by_the_end_of_the_loop):
            check(function)


def test_asyncio_run_ends_what_its_tasks_had_running(ws, policy, token):
    """It cancels all tasks it knows of, in any order. One that ends a tree must come to its end, before the loop does."""

    async def main():
        script = f"trap 'echo bye > said; exit' TERM; sleep {token} & echo > ready-$1; while :; do sleep 0.01; done"
        tasks = [asyncio.ensure_future(aio.run(["sh", "-c", script, "sh", n], policy=policy, cwd=ws)) for n in "abc"]
        while len(list(ws.glob("ready-*"))) < 3:  # the launcher has the token in its arguments, before the trap is set
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
    assert processes_with(token) == [] and (ws / "said").read_text() == "bye\n"


def test_no_complaint_at_the_end_of_the_interpreter(ws, token):
    """A transport that outlives its loop says "Event loop is closed", and leaves its child (python/cpython#114177)."""
    code = (
        "import asyncio, gc, sys, sandboxed_subprocess as sp\n"
        f"policy = sp.Policy.workspace_write({str(ws)!r})\n"
        "async def main():\n"
        "    asyncio.get_running_loop().slow_callback_duration = 60\n"  # dev mode tells of a slow machine, too
        "    global process, stream, task\n"
        f"    process = await sp.create_subprocess_exec('sleep', {token!r}, stdout=sp.PIPE, stdin=sp.PIPE, policy=policy)\n"
        f"    stream = sp.aio.stream(['sh', '-c', 'echo up; sleep {token}'], policy=policy)\n"
        "    await stream.__anext__()\n"
        f"    task = asyncio.ensure_future(sp.aio.run(['sleep', {token!r}], capture_output=True, policy=policy))\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(main())\n"
        "del process, stream, task; gc.collect(); print('end')\n"
    )
    result = subprocess.run(
        [PY, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ws.parent
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")
    assert processes_with(token) == []


@pytest.mark.parametrize("times", [1, 2])
def test_control_c_in_an_event_loop(ws, token, times):
    """asyncio.run() cancels the main task; a second one in the middle of the clean-up must not leak."""
    code = (
        "import asyncio, sandboxed_subprocess as sp\n"
        f"policy = sp.Policy.workspace_write({str(ws)!r}, terminate_grace=0.3)\n"
        f"script = \"trap '' TERM INT; echo up; sleep {token} & sleep {token}; sleep {token}\"\n"
        "asyncio.run(sp.aio.run(['sh', '-c', script], policy=policy))\n"
    )
    process = subprocess.Popen([PY, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ws.parent)
    try:
        assert process.stdout.readline() == "up\n"
        begin = time.monotonic()
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT and errors.strip().endswith("KeyboardInterrupt")
        assert time.monotonic() - begin < 30
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not processes_with(token))


def test_the_caller_is_killed(ws, token):
    """Nothing of it stays: no tree, no launcher."""
    code = (
        "import asyncio, sandboxed_subprocess as sp\n"
        "async def main():\n"
        f"    policy = sp.Policy.workspace_write({str(ws)!r})\n"
        f"    await sp.aio.run(['sh', '-c', 'echo up; setsid sleep {token} & sleep {token}'], policy=policy)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([PY, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ws.parent)
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.communicate()
    wait_until(lambda: not processes_with(token))


def test_a_loop_is_not_told_of_what_it_does_not_own(ws, policy, token, aloop):
    """Only this run's processes are signalled: not the caller's group, not its siblings."""

    async def main():
        sibling = subprocess.Popen(["sleep", "60"])
        try:
            with pytest.raises(sp.TimeoutExpired):
                await aio.run(["sleep", token], timeout=0.2, policy=policy, cwd=ws)
            process = await sp.create_subprocess_exec("sleep", token, policy=policy, cwd=ws, start_new_session=True)
            process.kill()
            assert await process.wait() == -9
            assert sibling.poll() is None
        finally:
            sibling.kill()
            sibling.wait()

    aloop(main)


# -- where it runs ----------------------------------------------------------------------------------------------------------


WATCHERS = ["ThreadedChildWatcher", "PidfdChildWatcher", "SafeChildWatcher", "FastChildWatcher"]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="child watchers are gone")
@pytest.mark.parametrize("name", WATCHERS)
def test_every_child_watcher(ws, policy, name):
    """Each learns of exits in its own way: a thread, a pidfd, SIGCHLD, SIGCHLD for everybody's children."""

    async def main(watcher):
        if hasattr(watcher, "attach_loop"):
            watcher.attach_loop(asyncio.get_running_loop())
        results = await asyncio.gather(
            *(aio.run(["sh", "-c", f"echo {n}; exit {n}"], policy=policy, cwd=ws, capture_output=True) for n in range(8))
        )
        assert [(r.returncode, r.stdout) for r in results] == [(n, b"%d\n" % n) for n in range(8)]
        process = await sp.create_subprocess_exec("sleep", "60", policy=policy, cwd=ws)
        process.kill()
        assert await process.wait() == -9
        task = asyncio.ensure_future(aio.run(["sleep", "60"], policy=policy, cwd=ws))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        watcher.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12
        watcher = getattr(asyncio, name)()
        loops = asyncio.get_event_loop_policy()
        loops.set_child_watcher(watcher)
        try:
            asyncio.run(main(watcher))
        finally:
            loops.set_child_watcher(None)


def test_a_loop_that_is_made_by_hand(ws, policy, token):
    """Without asyncio.run(), and with a debugging loop that looks at everything twice."""
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    try:

        async def main():
            result = await aio.run(["echo", "x"], policy=policy, cwd=ws, capture_output=True)
            process = await sp.create_subprocess_exec("sleep", token, policy=policy, cwd=ws)
            return result.stdout, process

        assert loop.run_until_complete(main())[0] == b"x\n"
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    assert processes_with(token) == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_an_eager_task_factory(ws, policy, token):
    """A task may begin, and end, before it is awaited."""

    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        results = await asyncio.gather(*(aio.run(["true"], policy=policy, cwd=ws) for _ in range(5)))
        assert [r.returncode for r in results] == [0] * 5
        with pytest.raises(FileNotFoundError):
            await aio.run(["no-such-program"], policy=policy, cwd=ws)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.run(["sleep", token], policy=policy, cwd=ws), 0.2)
        assert processes_with(token) == []

    asyncio.run(main())


def test_what_is_started_meanwhile_has_its_sandbox(ws, policy, outside, monkeypatch):
    """This package in the place of the stdlib's: asyncio's own Popen is ours, and starts our launcher plain. Nothing else may
    be plain in that moment: a whole context once was, and with it what a signal handler or a preexec_fn started."""
    from sandboxed_subprocess import _prepare

    monkeypatch.chdir(ws)
    with _prepare.plain_spawn(["true"]):
        sp.run(["touch", f"{outside}/no"], policy=None, stderr=sp.DEVNULL)
        sp.run(["touch", "yes"], policy=None)
        assert sp.run(["true"]).sandbox.backend is None
    assert sp.run(["true"]).sandbox.backend == TIER
    assert not (outside / "no").exists() and (ws / "yes").exists()


# -- who may be ended -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [{"start_new_session": True}, {"process_group": 0}, {"preexec_fn": os.setpgrp}, {"preexec_fn": os.setsid}])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_killpg_reaches_the_family(ws, policy, token, group, number):
    """A group of its own is asked for so that killpg() ends a family: once only the command got the signal, and a shell went
    on to its next line when its child had ended."""
    if "process_group" in group and sys.version_info < (3, 11):
        pytest.skip("process_group= came with Python 3.11")
    script = f"echo up; sleep {token}; echo after"
    with sp.Popen(["bash", "-c", script], stdout=sp.PIPE, policy=policy, cwd=ws, **group) as process:
        assert process.stdout.readline() == b"up\n"
        wait_until(lambda: len(processes_with(token)) >= 2)
        os.killpg(process.pid, number)
        assert process.communicate(timeout=20) == (b"", None)
        assert process.returncode == -number


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_kill_by_a_caller_who_is_somebody_else_by_now(ws, policy, token):
    """The order goes over a socket that was opened before; only when that cannot be delivered is the lack of rights an error."""
    ws.chmod(0o777)
    process = sp.Popen(["sh", "-c", f"echo up; sleep {token}"], stdout=sp.PIPE, policy=policy, cwd=ws)
    assert process.stdout.readline() == b"up\n"
    os.seteuid(65534)
    try:
        process.kill()
        assert process.wait(10) == -9
    finally:
        os.seteuid(0)
        process.stdout.close()
