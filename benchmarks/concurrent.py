"""What a sandbox costs when many run at once: 500 runs at a concurrency of 1, 8 and 32, against plain asyncio, in turn.

    python benchmarks/concurrent.py [--runs N] [--rounds N] [--json FILE]

The overhead of a run is what the sandbox adds to the time of a run, all of them together divided by their number. It must not
grow with the concurrency.
"""

from __future__ import annotations

import sys

if sys.path[0] == __file__.rpartition("/")[0]:
    # In this directory concurrent.py has the name of a package of the standard library.
    sys.path.pop(0)

import argparse
import asyncio
import json
import os
import pathlib
import statistics
import tempfile
import time

import sandboxed_subprocess as sp
from sandboxed_subprocess import aio

LEVELS = (1, 8, 32)
BAR = 1.1  # overhead at a level / overhead at 1


async def many(start, runs, level):
    """Seconds for one run, `level` of them at a time."""
    gate = asyncio.Semaphore(level)

    async def one():
        async with gate:
            await start()

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(runs)))
    return (time.perf_counter() - begin) / runs


async def measure(ws, runs, rounds):
    policy = sp.Policy.workspace_write(ws)

    async def plain():
        process = await asyncio.create_subprocess_exec("true", cwd=ws)
        assert await process.wait() == 0

    async def ours():
        assert (await aio.run(["true"], cwd=ws, policy=policy)).returncode == 0

    times = {(name, level): [] for level in LEVELS for name in ("plain", "ours")}
    for number in range(rounds + 1):
        for level in LEVELS:
            for name, start in (("plain", plain), ("ours", ours)):
                # In small portions, so that drift of the machine meets both alike.
                seconds = await many(start, max(level, runs // rounds), level)
                if number:
                    times[name, level].append(seconds)
    return {key: statistics.median(values) for key, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ss-bench-", dir=os.path.expanduser("~")) as scratch:
        found = asyncio.run(measure(os.path.realpath(scratch), args.runs, args.rounds))
    overhead = {level: found["ours", level] - found["plain", level] for level in LEVELS}
    for level in LEVELS:
        print(
            f"{level:3} at a time: plain {found['plain', level] * 1e3:6.3f} ms, sandboxed {found['ours', level] * 1e3:6.3f} ms, "
            f"ratio {found['ours', level] / found['plain', level]:5.2f}, overhead of a run {overhead[level] * 1e3:6.3f} ms"
        )
    for level in LEVELS[1:]:
        growth = overhead[level] / overhead[1]
        print(f"overhead at {level} / overhead at 1 {growth:8.2f}   bar {BAR}: {'met' if growth <= BAR else 'NOT met'}")
    if args.json:
        rows = [{"level": level, "plain": found["plain", level], "ours": found["ours", level]} for level in LEVELS]
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
