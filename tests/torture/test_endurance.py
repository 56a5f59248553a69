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
from conftest import processes_with, wait_until

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
