"""What streaming costs: 1 GB of output through asyncio, sandboxed and plain, in turn, by the median.

    python benchmarks/stream.py [--rounds N] [--megabytes N] [--json FILE]

Rows: `proc.stdout.read(n)` of `create_subprocess_exec`, plain and sandboxed; `aio.stream`, as it arrives and line by line
(against asyncio's `readline()`); and how much memory each added at most. Throughput is a ratio to plain asyncio: more is
faster.
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
import subprocess
import tempfile
import time

BARS = {"proc.stdout.read() / plain": 0.95, "aio.stream / plain": 0.95}
MEMORY_BAR = 32  # MB

ACTIONS = ("plain", "proc.stdout.read()", "aio.stream", "plain readline()", "aio.stream, lines", "aio.stream, text lines")


def command(megabytes, lines):
    if lines:
        return ["sh", "-c", f"yes '{'x' * 119}' | head -c {megabytes << 20}"]
    return ["head", "-c", str(megabytes << 20), "/dev/zero"]


async def once(name, ws, megabytes):
    """One gigabyte, counted. Returns seconds."""
    import sandboxed_subprocess as sp
    from sandboxed_subprocess import aio

    policy = sp.Policy.workspace_write(ws)
    argv = command(megabytes, "line" in name)
    begin = time.perf_counter()
    total = 0
    if name.startswith("aio.stream"):
        keywords = {"lines": "lines" in name, "text": True if "text" in name else None}
        async with aio.stream(argv, policy=policy, cwd=ws, **keywords) as stream:
            async for event in stream:
                total += len(event.data)
        assert stream.result.returncode == 0
    else:
        start = asyncio.create_subprocess_exec
        keywords = {}
        if not name.startswith("plain"):
            start, keywords = sp.create_subprocess_exec, {"policy": policy}
        process = await start(*argv, stdout=subprocess.PIPE, cwd=ws, **keywords)
        if "readline" in name:
            while line := await process.stdout.readline():
                total += len(line)
        else:
            while chunk := await process.stdout.read(1 << 18):
                total += len(chunk)
        assert await process.wait() == 0
    assert total == megabytes << 20
    return time.perf_counter() - begin


def child(name, ws):
    """Answers each line with the seconds of one pass; at the end, by how many MB the peak of its memory had grown."""
    import resource

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    asyncio.run(once(name, ws, 1))
    before = peak()
    for line in sys.stdin:
        print(asyncio.run(once(name, ws, int(line))), flush=True)
    print(peak() - before, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    with tempfile.TemporaryDirectory(prefix="ss-bench-", dir=os.path.expanduser("~")) as scratch:
        ws = os.path.realpath(scratch)
        # A process for each, so that the peak of one does not hide that of another; asked in turn.
        children = {
            name: subprocess.Popen(
                [sys.executable, __file__, "--child", name, ws], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name in ACTIONS
        }
        times = {name: [] for name in ACTIONS}
        for _ in range(args.rounds):
            for name, process in children.items():
                # Lines are many times slower; a tenth of them says as much.
                size = args.megabytes // 10 if "line" in name else args.megabytes
                process.stdin.write(f"{size}\n")
                process.stdin.flush()
                times[name].append(float(process.stdout.readline()) / size)
        memory = {}
        for name, process in children.items():
            process.stdin.close()
            memory[name] = float(process.stdout.readline())
            process.wait()
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {}
    for name, value in medians.items():
        base = "plain readline()" if "line" in name else "plain"
        if name != base:
            ratios[f"{name} / {base}"] = medians[base] / value
    for name, value in medians.items():
        verdict = "" if name.startswith("plain") else f"   bar {MEMORY_BAR}: {'met' if memory[name] <= MEMORY_BAR else 'NOT met'}"
        print(f"{name:44} {1 / value:8.0f} MB/s   {memory[name]:6.1f} MB more at most{verdict}")
    print()
    for name, value in ratios.items():
        bar = BARS.get(name)
        print(f"{name:44} {value:8.2f}   {f'bar {bar}: ' + ('met' if value >= bar else 'NOT met') if bar else ''}")
    if args.json:
        found = {"seconds_per_mb": medians, "memory_mb": memory, "throughput_ratios": ratios}
        pathlib.Path(args.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
