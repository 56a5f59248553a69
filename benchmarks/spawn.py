"""What a sandbox costs: the time of `run(["true"])`, in ratios to plain `subprocess`, interleaved, by the median.

    python benchmarks/spawn.py [--rounds N] [--json FILE]

Rows: workspace-write and read-only on the best backend, and bare bubblewrap with the same namespaces where it is
installed; what the processes of the `landlock` tier cost by themselves (`floor.c`);
workspace-write with limits against without; an open() that is observed against one that is not; the import;
a caller with 2 GB resident against one with 50 MB; and one spawn by step, in microseconds (with a launcher compiled for timing,
where there is a C compiler). Ratios from one run on one machine can be compared; the times themselves cannot.
"""

from __future__ import annotations

import sys

if sys.path[0] == __file__.rpartition("/")[0]:
    # In this directory concurrent.py has the name of a package of the standard library.
    sys.path.pop(0)

import argparse
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings

import sandboxed_subprocess as sp
from sandboxed_subprocess import _native, _popen, _prepare
from sandboxed_subprocess._backends import _channel

BARS = {
    "workspace-write / plain": 3.5,
    "workspace-write / bwrap": 0.65,
    "landlock, read-only / plain": 2.0,
    "limits / none": 1.15,
    "limits / none, after 120 ms of rest": 1.15,
    "limits / none, a processor for seconds": 1.01,
    "import / import subprocess, asyncio": 1.3,
    "spawn at 2 GB resident / at 50 MB": 1.1,
}


def interleaved(actions, rounds, pause=0.0):
    """Medians in seconds: one round is each action once, so that drift of the machine meets all alike.

    Args:
        pause: seconds before each, in which the kernel can come to rest: what waits for that is not seen in a tight loop.
    """
    times = {name: [] for name in actions}
    for number in range(rounds + 5):
        for name, action in actions.items():
            time.sleep(pause)
            begin = time.perf_counter()
            action()
            if number >= 5:
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def bwrap_command(ws):
    """Bare bubblewrap with the same namespaces, capabilities dropped, and about the same mounts."""
    return [
        "bwrap", "--unshare-user", "--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session",
        "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run", "--tmpfs", "/tmp",
        "--bind", ws, ws, "--chdir", ws, "true",
    ]  # fmt: skip


def spawn(ws, rounds):
    policy, reader = sp.Policy.workspace_write(ws), sp.Policy.read_only()
    anew = policy.replace(syscall_exceptions=["ptrace"])
    actions = {
        "plain": lambda: subprocess.run(["true"], cwd=ws),
        "workspace-write": lambda: sp.run(["true"], cwd=ws, policy=policy),
        "read-only": lambda: sp.run(["true"], cwd=ws, policy=reader),
        # As the first run of a process, or after one that used the network; with an exception none is used again.
        "namespaces made anew": lambda: sp.run(["true"], cwd=ws, policy=anew),
    }
    # The weaker tiers, where they work here; Landlock's leaves out what it cannot do.
    warnings.simplefilter("ignore", sp.SandboxWarning)
    for tier in ("bubblewrap", "landlock"):
        for name, plain in (("workspace-write", policy), ("read-only", reader)):
            weaker = plain.replace(backend=tier, enforcement="best-effort")
            try:
                sp.run(["true"], cwd=ws, policy=weaker)
            except sp.SandboxUnavailable as error:
                print(f"{tier}: {error}", file=sys.stderr)
                continue
            actions[f"{tier}, {name}"] = functools.partial(sp.run, ["true"], cwd=ws, policy=weaker)
    if shutil.which("bwrap") and subprocess.run(bwrap_command(ws), capture_output=True).returncode == 0:
        actions["bwrap"] = lambda: subprocess.run(bwrap_command(ws), cwd=ws)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(ws)) as scratch:
        if alone := processes_alone(scratch):
            actions["landlock, its processes alone"] = lambda: subprocess.run(alone, cwd=ws)
        return interleaved(actions, rounds)


def processes_alone(scratch):
    """The command line of `floor.c` with the tier's own filter, or None where it cannot be made or used."""
    compiler, backend = shutil.which("musl-gcc"), _prepare._backends.detect("landlock")
    if compiler is None or not hasattr(backend, "filter"):
        return None
    source = pathlib.Path(__file__).with_name("floor.c")
    subprocess.run([compiler, "-static", "-O2", "-fno-pie", "-no-pie", "-o", f"{scratch}/floor", source], check=True)
    filters = _prepare._backends._linux.compile_filter((), sockets=backend.sockets(True))
    pathlib.Path(scratch, "filter").write_bytes(filters)
    return [f"{scratch}/floor", f"{scratch}/filter", "true"]


def limits(ws, rounds):
    """All limits of a preset, to none: one after the other, each after the machine was idle, and for a run that takes long."""
    policy = sp.Policy.workspace_write(ws)
    limited = policy.replace(limits=sp.Limits.moderate())
    actions = {
        "without": lambda: sp.run(["true"], cwd=ws, policy=policy),
        "with": lambda: sp.run(["true"], cwd=ws, policy=limited),
    }
    busy = interleaved(actions, rounds)
    idle = interleaved(actions, max(20, rounds // 5), pause=0.12)
    work = ["python3", "-c", "for _ in range(60_000_000): pass"]
    long = interleaved({
        "without": lambda: sp.run(work, cwd=ws, policy=policy),
        "with": lambda: sp.run(work, cwd=ws, policy=limited),
    }, max(1, min(10, rounds // 30)))  # fmt: skip
    return {
        "limits / none": busy["with"] / busy["without"],
        "limits / none, after 120 ms of rest": idle["with"] / idle["without"],
        "limits / none, a processor for seconds": long["with"] / long["without"],
    }


def observed(ws, rounds):
    """Inside, as the command sees it: an open() and close() with `observe="files"` ÷ without."""
    code = (
        "import os, time\n"
        "begin = time.perf_counter()\n"
        "for _ in range(2000): os.close(os.open('/etc/passwd', os.O_RDONLY))\n"
        "print(time.perf_counter() - begin)\n"
    )
    times = {(): [], ("files",): []}
    for _ in range(max(5, rounds // 20)):
        for observe, found in times.items():
            policy = sp.Policy.workspace_write(ws, observe=observe)
            found.append(float(sp.check_output(["python3", "-c", code], cwd=ws, policy=policy)))
    plain, looked_at = (statistics.median(found) for found in times.values())
    return looked_at / plain


def imports(rounds):
    # Byte code is written by any installation; without it this would measure the compiler.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def python(code):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=os.path.dirname(sys.executable))

    found = interleaved(
        {
            "nothing": python("pass"),
            "stdlib": python("import subprocess, asyncio"),
            "ours": python("import subprocess, asyncio, sandboxed_subprocess"),
        },
        max(10, rounds // 10),
    )
    return (found["ours"] - found["nothing"]) / (found["stdlib"] - found["nothing"])


def resident(ws, rounds):
    """Two callers, one with 2 GB of touched memory, asked in turn for a median of a few spawns."""
    code = (
        "import sys, time, statistics, sandboxed_subprocess as sp\n"
        "memory = bytearray(int(sys.argv[1]) << 20)\n"
        "for at in range(0, len(memory), 4096): memory[at] = 1\n"
        "policy = sp.Policy.workspace_write(sys.argv[2])\n"
        "sp.run(['true'], policy=policy)\n"
        "for _ in sys.stdin:\n"
        "    times = []\n"
        "    for _ in range(5):\n"
        "        begin = time.perf_counter(); sp.run(['true'], policy=policy); times.append(time.perf_counter() - begin)\n"
        "    print(statistics.median(times), flush=True)\n"
    )
    callers = {
        size: subprocess.Popen(
            [sys.executable, "-c", code, str(size), ws], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ws
        )
        for size in (50, 2048)
    }
    times = {size: [] for size in callers}
    for _ in range(max(10, rounds // 10)):
        for size, caller in callers.items():
            caller.stdin.write("go\n")
            caller.stdin.flush()
            times[size].append(float(caller.stdout.readline()))
    for caller in callers.values():
        caller.communicate()
    return statistics.median(times[2048]) / statistics.median(times[50])


def steps(ws, rounds):
    """Microseconds by step: Python's part around the launcher, and the launcher's own steps from a timing build."""
    policy = sp.Policy.workspace_write(ws)
    parts = {}

    def timed(owner, name, label):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                parts.setdefault(label, []).append(time.perf_counter() - begin)

        setattr(owner, name, call)
        return lambda: setattr(owner, name, original)

    undo = [
        timed(_popen, "prepare", "python: prepare"),
        timed(subprocess.Popen, "_execute_child", "python: vfork, exec of the launcher"),
        timed(_channel.ChannelLaunch, "settle", "python: until the command runs"),
        timed(_channel.ChannelLaunch, "finish", "python: finish"),
    ]
    whole = []
    for _ in range(rounds):
        begin = time.perf_counter()
        sp.run(["true"], cwd=ws, policy=policy)
        whole.append(time.perf_counter() - begin)
    for back in undo:
        back()
    rows = [(label, statistics.median(values) * 1e6) for label, values in parts.items()]
    rows.append(("the whole", statistics.median(whole) * 1e6))

    compiler = shutil.which("musl-gcc") or shutil.which("cc")
    if compiler:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(ws)) as scratch:
            source = pathlib.Path(_native.__file__).with_name("launcher.c")
            subprocess.run(
                [compiler, "-DTIMING", "-static", "-O2", "-fno-pie", "-no-pie", "-o", f"{scratch}/launcher", source], check=True
            )
            backend = _prepare._backends.detect("namespaces")
            original = backend._launcher, backend._launcher_id
            st = os.stat(f"{scratch}/launcher")
            backend._launcher, backend._launcher_id = f"{scratch}/launcher", (st.st_dev, st.st_ino)
            seen = {}
            try:
                for _ in range(rounds // 2):
                    once = {}
                    for line in sp.run(["true"], cwd=ws, policy=policy, stderr=sp.PIPE, text=True).stderr.splitlines():
                        name, nanoseconds = line.split()
                        once[name] = once.get(name, 0) + int(nanoseconds) / 1e3
                    for name, value in once.items():
                        seen.setdefault(name, []).append(value)
            finally:
                backend._launcher, backend._launcher_id = original
        rows += [(f"launcher: {name}", statistics.median(values)) for name, values in seen.items()]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    base = os.path.expanduser("~")
    with tempfile.TemporaryDirectory(prefix="ss-bench-", dir=base) as scratch:
        ws = os.path.realpath(scratch) + "/ws"
        os.mkdir(ws)
        medians = spawn(ws, args.rounds)
        ratios = {f"{name} / plain": value / medians["plain"] for name, value in medians.items() if name != "plain"}
        if "bwrap" in medians:
            ratios["workspace-write / bwrap"] = medians["workspace-write"] / medians["bwrap"]
        ratios.update(limits(ws, args.rounds))
        ratios["open(), observed / not"] = observed(ws, args.rounds)
        ratios["import / import subprocess, asyncio"] = imports(args.rounds)
        ratios["spawn at 2 GB resident / at 50 MB"] = resident(ws, args.rounds)
        rows = steps(ws, args.rounds)
    for name, value in medians.items():
        print(f"{name:44} {value * 1e3:8.3f} ms")
    print()
    for name, value in ratios.items():
        bar = BARS.get(name)
        print(f"{name:44} {value:8.2f}   {f'bar {bar}: ' + ('met' if value <= bar else 'NOT met') if bar else ''}")
    print()
    for name, value in rows:
        print(f"{name:44} {value:8.1f} µs")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"seconds": medians, "ratios": ratios, "steps_us": dict(rows)}, indent=2))


if __name__ == "__main__":
    main()
