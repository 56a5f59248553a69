"""Thousands of spawns in one process, and callers killed at any moment. Minutes, so behind a marker:

    python -m pytest -m endurance tests/torture
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest
from conftest import needs_package, processes_with, wait_until

pytestmark = pytest.mark.endurance

MANY = """
import contextlib, json, os, pathlib, resource, sys, tempfile, threading
import sandboxed_subprocess as sp
ws, count = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
policy = sp.Policy.workspace_write(ws)

def state():
    return {
        "fds": sorted(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
        "mounts": pathlib.Path("/proc/self/mountinfo").read_text(),
        "workspace": sorted(os.listdir(ws)),
        "temporary": sorted(n for n in os.listdir(tempfile.gettempdir()) if "sandbox" in n),
    }

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def once(number):
    kind = number % 10
    if kind == 7:
        with contextlib.suppress(FileNotFoundError):
            sp.run(["no-such-program"], policy=policy, capture_output=True)
    elif kind == 8:
        with contextlib.suppress(sp.TimeoutExpired):
            sp.run(["sleep", "60"], policy=policy, timeout=0.001)
    elif kind == 9:
        with contextlib.suppress(FileNotFoundError):
            sp.run(["true"], policy=policy, cwd="/no/such/directory")
    elif number % 100 == 6:
        assert sp.run("sleep 60 & echo out", shell=True, policy=policy, capture_output=True).stdout == b"out\\n"
    elif kind == 5:
        assert sp.run(["cat"], input=b"x" * 100_000, policy=policy, capture_output=True).stdout == b"x" * 100_000
    else:
        assert sp.run(["true"], policy=policy).returncode == 0

before, memory = state(), []
for number in range(count):
    once(number)
    if number % (count // 20) == 0:
        memory.append(resident())
after = state()
print(json.dumps({"before": before, "after": after, "memory": memory}))
"""


def test_ten_thousand_spawns_leave_no_trace(ws, tier):
    """Descriptors, threads, zombies, mounts and files: as many as before the first one. Memory: flat after the warm-up.

    With all ways to fail among them, under a limit of 256 descriptors (python/cpython#87474, MagicStack/uvloop#93)."""
    count = int(os.environ.get("ENDURANCE", "10000"))
    result = subprocess.run([sys.executable, "-c", MANY, ws, str(count)], cwd=ws, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["after"] == found["before"]
    # The last three quarters, by halves: what leaks at each spawn grows by count/8 objects from one to the other.
    later = found["memory"][5:]
    half = len(later) // 2
    first, second = sum(later[:half]) / half, sum(later[-half:]) / half
    print(f"\nresident: {[round(m / 1e6, 2) for m in found['memory']]} MB")
    assert second - first < 200_000, found["memory"]


CALLER = """
import os, sys
import sandboxed_subprocess as sp
token, ws = sys.argv[1:3]
policy = sp.Policy.workspace_write(ws)
sp.run(["true"], policy=policy)
print("ready", flush=True)
sys.stdin.readline()
sp.run(["sh", "-c", f"setsid sleep {token} & sleep {token}"], policy=policy, capture_output=True)
"""


def leftovers(token):
    """Processes of the command, and launchers that nobody waits for."""
    found = processes_with(token)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            name, (state, parent) = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()[:2]
            # A zombie is dead; when process 1 of the host reaps it is that process's affair.
            if name in ("sandbox-monitor", "sandbox-init") and parent == "1" and state != "Z":
                found.append(int(entry))
    return found


def test_a_caller_that_is_killed_at_any_moment_leaves_nothing(ws, tier):
    """From the spawn to 20 ms after it: between the fork and the watch on the caller is where orphans come from."""
    rounds = int(os.environ.get("ENDURANCE_ROUNDS", "200"))
    chance = random.Random(20)
    for _ in range(rounds):
        token = f"600.{uuid.uuid4().int % 10**12}"
        with subprocess.Popen([sys.executable, "-c", CALLER, token, ws], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as caller:
            assert caller.stdout.readline() == b"ready\n"
            caller.stdin.write(b"go\n")
            caller.stdin.flush()
            # A spinning wait: the scheduler's own sleep is too coarse for "any moment".
            end = time.monotonic() + chance.random() * 0.02
            while time.monotonic() < end:
                pass
            caller.send_signal(signal.SIGKILL)
        wait_until(lambda token=token: not leftovers(token), 2.0)


STORM = """
import asyncio, contextlib, json, os, random, sys, threading
import sandboxed_subprocess as sp
from sandboxed_subprocess import aio
ws, token, kind, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
policy = sp.Policy.workspace_write(ws, terminate_grace=0)
chance = random.Random(5)
DAEMON = (
    "import os, time\\n"
    "if os.fork() == 0:\\n"
    "    os.setsid()\\n"
    "    if os.fork() == 0: os.closerange(0, 256); time.sleep(600)\\n"
    "    os._exit(0)\\n"
    "time.sleep(600)"
)
command = [sys.executable, "-S", "-c", DAEMON, token]

def alive():
    found = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                found += token.encode() in file.read()
    return found

async def read():
    async with aio.stream(command, policy=policy, cwd=ws) as stream:
        async for _ in stream:
            pass

async def spawned():
    process = await sp.create_subprocess_exec(*command, policy=policy, cwd=ws, stdout=sp.PIPE)
    try:
        await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise

async def one(number):
    how = (lambda: aio.run(command, policy=policy, cwd=ws, capture_output=True), read, spawned)[number % 3]
    task = asyncio.ensure_future(how())
    await asyncio.sleep(chance.random() * 0.03)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return 1
    return 0

async def main():
    await asyncio.gather(*(one(n) for n in range(6)))
    await asyncio.sleep(0)
    before = sorted(os.listdir("/proc/self/fd"))
    cancelled = survivors = 0
    for number in range(count):
        cancelled += await one(number)
        survivors += alive()
    after = sorted(os.listdir("/proc/self/fd"))
    print(json.dumps({"cancelled": cancelled, "survivors": survivors, "same": before == after, "threads": threading.active_count()}))

if kind == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_storm_of_cancellations(place, kind):
    """300 runs, streams and processes, cancelled 0 to 30 ms after the call, each with a grandchild in a session of its own.

    Nothing is alive at the moment in which the cancellation is seen, no descriptor more is open, and the loop closes quietly.
    """
    needs_package(kind)
    ws = place / "ws"
    ws.mkdir()
    token = f"storm-{uuid.uuid4().hex}"
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", "-c", STORM, str(ws), token, kind, "300"],
        capture_output=True, text=True, timeout=300, check=False, cwd=place,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    print(found)
    assert found["survivors"] == 0 and found["same"] and found["cancelled"] > 290 and found["threads"] <= 2
    assert processes_with(token) == []
