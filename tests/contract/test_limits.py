"""Limits of the whole tree: what crosses one ends, is named, and leaves nothing; what stays below does not notice."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import subprocess
import sys
import threading

import psutil
import pytest
from conftest import TIER, processes_with, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess.testing import must_work, needs

PY = sys.executable
MB = 1 << 20

# Bombs that would stop by themselves at two thousand, should a limit not hold: this is somebody's machine.
FORKS = "import os, time\nfor _ in range(11):\n    os.fork()\ntime.sleep(20)"
THREADS = (
    "import threading, time\n"
    "try:\n"
    "    for _ in range(2000):\n        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n"
    "except RuntimeError:\n    pass\n"  # the kernel's own limit, above ours, may come first
    "time.sleep(20)"
)
ORPHANS = (
    "import os, time\n"
    "for _ in range(2000):\n"
    "    if os.fork() == 0:\n"
    "        if os.fork():\n"
    "            os._exit(0)\n"
    "        time.sleep(20); os._exit(0)\n"
    "    os.wait()\n"
    "time.sleep(20)"
)
# Memory of every kind, 3 GB of each at most.
HEAP = "x = [bytearray(10 << 20) for _ in range(300)]"
STACK = "import threading\nthreading.stack_size(1 << 30)\ndef f(n):\n    return n and f(n - 1)\nimport sys; sys.setrecursionlimit(10**9)\nt = threading.Thread(target=f, args=(10**7,)); t.start(); t.join()"
MEMFD = "import os, time\nfd = os.memfd_create('x')\nfor _ in range(3000):\n    os.write(fd, bytes(1 << 20))\ntime.sleep(20)"
MAPPED = "import mmap, time\nm = mmap.mmap(-1, 3 << 30)\nfor i in range(0, len(m), 4096):\n    m[i] = 1\ntime.sleep(20)"
CHILDREN = "import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n        x = bytearray(100 << 20); time.sleep(20); os._exit(0)\ntime.sleep(20)"
TMPFS = "import time\nf = open({!r}, 'wb')\ntry:\n    for _ in range(3000):\n        f.write(bytes(1 << 20)); f.flush()\nexcept OSError:\n    pass\ntime.sleep(20)"
SYSV = (
    "import ctypes, time\nlibc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p\n"
    "for _ in range(30):\n"
    "    i = libc.shmget(0, ctypes.c_size_t(100 << 20), 0o1600); p = libc.shmat(i, None, 0)\n"
    "    ctypes.memset(p, 1, 100 << 20); libc.shmdt(ctypes.c_void_p(p))\n"
    "time.sleep(20)"
)
GONE_LEADER = (
    "import ctypes, threading, time\n"
    "def hog():\n    time.sleep(.3); x = [bytearray(10 << 20) for _ in range(300)]; time.sleep(20)\n"
    "threading.Thread(target=hog).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)"
)
OWN_TABLE = (
    "import ctypes, os, threading, time\n"
    "def hog():\n"
    "    assert ctypes.CDLL(None).unshare(0x400) == 0\n"
    "    fd = os.memfd_create('x')\n"
    "    for _ in range(3000): os.write(fd, bytes(1 << 20))\n"
    "    time.sleep(20)\n"
    "threading.Thread(target=hog).start()"
)
TABLES = (
    "import mmap, time\nm = [mmap.mmap(-1, 1 << 38, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ) for _ in range(4)]\n"
    "for x in m:\n    for i in range(0, 1 << 38, 1 << 21):\n        x[i]\n"
    "time.sleep(20)"
)
CLOSED_MEMFDS = (
    "import mmap, os, time\nkept = []\n"
    "for _ in range(30):\n"
    "    fd = os.memfd_create('x'); os.ftruncate(fd, 100 << 20); m = mmap.mmap(fd, 100 << 20); os.close(fd); kept.append(m)\n"
    "    for i in range(0, 100 << 20, 4096): m[i] = 1\n"
    "time.sleep(20)"
)
MANY_SEGMENTS = SYSV.replace("for _ in range(30)", "[libc.shmget(0, ctypes.c_size_t(4096), 0o1600) for _ in range(60)]\nfor _ in range(30)")
UNDUMPABLE = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
# And of processors and disks.
BURNER = "while True:\n    pass"
BURNERS = "import os\nfor _ in range(2):\n    os.fork()\nwhile True:\n    pass"
SHORT_BURNERS = "import os, time\nwhile True:\n    if os.fork() == 0:\n        end = time.process_time() + 0.05\n        while time.process_time() < end: pass\n        os._exit(0)\n    os.wait()"
FILLER = "import os\nwhile True:\n    with open('file', 'wb') as f:\n        for _ in range(20):\n            f.write(bytes(1 << 20))\n    os.unlink('file')"
FILLERS = "import os\nwhile True:\n    if os.fork() == 0:\n        open(f'file{os.getpid()}', 'wb').write(bytes(5 << 20)); os._exit(0)\n    os.wait()"
# Their parent ignores SIGCHLD: what they used is added to nobody's figures when they end.
LOST_BURNERS = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n    if os.fork() == 0:\n        while time.process_time() < .4: pass\n        os._exit(0)\n    try: os.wait()\n    except OSError: pass"
LOST_FILLERS = "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n    if os.fork() == 0:\n        open('file', 'wb').write(bytes(20 << 20)); time.sleep(.2); os._exit(0)\n    try: os.wait()\n    except OSError: pass"

CROSSED = {
    "fork": (FORKS, {"processes": 50}, "processes"),
    "orphans": (ORPHANS, {"processes": 50}, "processes"),
    "threads": (THREADS, {"processes": 4}, "processes"),
    "heap": (HEAP, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "stack": (STACK, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "memfd": (MEMFD, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "mapped": (MAPPED, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "a first thread that has ended": (GONE_LEADER, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "descriptors of one thread": (OWN_TABLE, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "heap, not to be looked into": (UNDUMPABLE + HEAP, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "memfd, not to be looked into": (UNDUMPABLE + MEMFD, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "tables of addresses": (TABLES, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "memfds that are closed": (CLOSED_MEMFDS, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "sysv after many": (MANY_SEGMENTS, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "filler, not to be looked into": (UNDUMPABLE + FILLER, {"written_bytes": 100 * MB}, "written_bytes"),
    "children": (CHILDREN, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "tmp": (TMPFS.format("/tmp/filler-of-tmpfs"), {"memory_bytes": 200 * MB}, "memory_bytes"),
    "shm": (TMPFS.format("/dev/shm/filler-of-tmpfs"), {"memory_bytes": 200 * MB}, "memory_bytes"),
    "sysv": (SYSV, {"memory_bytes": 200 * MB}, "memory_bytes"),
    "burners": (BURNERS, {"cpu_seconds": 1}, "cpu_seconds"),
    "short burners": (SHORT_BURNERS, {"cpu_seconds": 1}, "cpu_seconds"),
    "burners that nobody waits for": (LOST_BURNERS, {"cpu_seconds": 1}, "cpu_seconds"),
    "fillers that nobody waits for": (LOST_FILLERS, {"written_bytes": 100 * MB}, "written_bytes"),
    "filler": (FILLER, {"written_bytes": 100 * MB}, "written_bytes"),
    "fillers": (FILLERS, {"written_bytes": 100 * MB}, "written_bytes"),
    "wall": ("import time; time.sleep(20)", {"wall_seconds": 0.3}, "wall_seconds"),
}
# Where there is no private /tmp, /dev/shm or System V memory, there is nothing to fill.
_OF_A_VIEW = {"tmp", "shm", "sysv", "sysv after many"}


@pytest.mark.parametrize("what", CROSSED)
def test_what_crosses_a_limit_ends_and_is_named(run, policy, token, what):
    """Fork bombs, hogs of any kind of memory, burners, fillers: without a control group, by whoever looks."""
    if what in _OF_A_VIEW and TIER == "landlock":
        pytest.skip("nothing can be mounted there, and there is no shared memory")
    code, limits, name = CROSSED[what]
    result = run([PY, "-c", code, token], policy=policy.with_limits(**limits))
    report = result.sandbox
    assert (report.ended, report.limit, result.returncode) == ("limit", name, -9), result.stderr[-500:]
    assert report.limit_reached >= (limits[name] if what != "threads" else 256)
    assert processes_with(token) == []
    assert not os.path.exists("/dev/shm/filler-of-tmpfs") and not os.path.exists("/tmp/filler-of-tmpfs")
    with pytest.raises(sp.LimitExceeded) as raised:
        run([PY, "-c", code, token], policy=policy.with_limits(**limits), check=True)
    assert raised.value.limit == name and raised.value.sandbox.limit == name and name in str(raised.value)


FINE = {
    "threads of one process": ("import threading, time\nt = [threading.Thread(target=time.sleep, args=(.3,)) for _ in range(100)]\n[x.start() for x in t]", {"processes": 2}),
    "pages that children share": ("import os, time\nx = bytearray(120 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\np = [os.fork() for _ in range(2)]\ntime.sleep(.3)", {"memory_bytes": 200 * MB}),
    "a mapping that children share": ("import mmap, os, time\nm = mmap.mmap(-1, 120 << 20)\np = [os.fork() for _ in range(2)]\nfor i in range(0, len(m), 4096): m[i] = 1\ntime.sleep(.3)", {"memory_bytes": 200 * MB}),
    "a file that is mapped": ("import mmap, os, time\nwith open('big', 'w+b') as f:\n    f.truncate(1 << 30)\n    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\nsum(m[i] for i in range(0, len(m), 4096))\ntime.sleep(.3)", {"memory_bytes": 200 * MB}),
    "one file in memory that all have mapped": ("import mmap, os, time\nfd = os.memfd_create('x'); os.ftruncate(fd, 100 << 20)\nm = [mmap.mmap(fd, 100 << 20) for _ in range(5)]\nfor x in m:\n    for i in range(0, 100 << 20, 4096): x[i] = 1\np = [os.fork() for _ in range(2)]\nfor i in range(0, 100 << 20, 4096): m[0][i]\ntime.sleep(.3)", {"memory_bytes": 200 * MB}),
    "not to be looked into, and quiet": (UNDUMPABLE + "import time; time.sleep(.5)", {"memory_bytes": 200 * MB, "written_bytes": MB}),
    "addresses": ("import mmap, time\nm = mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\ntime.sleep(.1)", {"memory_bytes": 200 * MB}),
    "a child that has not executed yet": ("import os, time\nx = b'x' * (180 << 20)\nos.mkfifo('fifo')\nif os.fork() == 0:\n    time.sleep(.5); os.close(os.open('fifo', os.O_WRONLY)); os._exit(0)\nos.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'fifo', os.O_RDONLY, 0)])\nos.wait(), os.wait()", {"memory_bytes": 200 * MB}),
    "a pipe": ("import os\nr, w = os.pipe()\nfor _ in range(3000):\n    os.write(w, bytes(1 << 16)); os.read(r, 1 << 16)", {"written_bytes": 10 * MB}),
    "processes one after the other": ("import os\nfor _ in range(100):\n    if os.fork() == 0: os._exit(0)\n    os.wait()", {"processes": 5}),
    "sleep": ("import time; time.sleep(1.5)", {"cpu_seconds": 1}),
}  # fmt: skip


@pytest.mark.parametrize("what", FINE)
def test_what_stays_below_a_limit_is_not_ended(run, policy, what):
    """Threads are not processes, addresses and files are not memory, shared pages are there once, and a pipe is no disk."""
    code, limits = FINE[what]
    result = run([PY, "-c", code], policy=policy.with_limits(**limits))
    assert (result.returncode, result.sandbox.ended, result.sandbox.limit) == (0, "exit", None), result.stderr


def test_memory_of_strangers_is_not_ours(run, policy):
    """How much shared memory the host has tells whether it is worth looking; who has it is another question."""
    fd = os.memfd_create("stranger")
    code, limits = FINE["one file in memory that all have mapped"]
    stop = threading.Event()

    def grow():
        while not stop.is_set():
            for _ in range(60):
                os.write(fd, bytes(10 * MB))
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(3):
            assert run([PY, "-c", code], policy=policy.with_limits(**limits)).sandbox.limit is None
    finally:
        stop.set()
        thread.join()
        os.close(fd)


@pytest.mark.parametrize("program", ["node", "java"])
def test_runtimes_that_reserve_addresses_start(run, policy, program):
    """nodejs/node#56596: RLIMIT_AS kills them at their start, with a misleading text."""
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    command = {"node": ["node", "-e", "new WebAssembly.Memory({initial: 1, maximum: 100})"], "java": ["java", "-version"]}[program]
    result = run(command, policy=policy.with_limits(memory_bytes=512 * MB, processes=16, cpu_seconds=60, written_bytes=100 * MB))
    assert result.returncode == 0, result.stderr


def test_a_single_process_is_told_of_its_cpu_limit(run, policy):
    """SIGXCPU, which it may handle, and a second later SIGKILL; with soft and hard limit alike it would be SIGKILL at once."""
    limited = policy.with_limits(cpu_seconds=1)
    result = run("while :; do :; done", shell=True, policy=limited)
    assert (result.returncode, result.sandbox.ended, result.sandbox.limit) == (-24, "limit", "cpu_seconds")
    code = "import signal, sys\nsignal.signal(signal.SIGXCPU, lambda *_: (print('told', flush=True), sys.exit(3)))\nwhile True: pass"
    result = run([PY, "-c", code], policy=limited)
    assert (result.returncode, result.stdout, result.sandbox.limit) == (3, "told\n", None)


def test_a_file_that_is_too_large_is_named(run, policy, ws):
    """SIGXFSZ is the kernel's word for it, and the report's is the limit's name."""
    result = run([PY, "-c", "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); open('f', 'wb').write(bytes(5000))"], policy=policy.with_limits(file_bytes=1000))
    assert (result.returncode, result.sandbox.limit) == (-25, "file_bytes")
    assert (ws / "f").stat().st_size == 1000


def test_limits_bind_neither_the_caller_nor_a_later_run(run, policy):
    """opencontainers/runc#831: limits that were set on the wrong process."""
    import resource

    before = [resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_FSIZE")]
    result = run("ulimit -t; nice", shell=True, policy=policy.with_limits(cpu_seconds=5, processes=5))
    assert result.stdout.split() == ["5", str(os.nice(0))]
    assert "unlimited" in run("ulimit -t", shell=True).stdout
    assert before == [resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_FSIZE")]


def test_how_the_command_is_scheduled_is_what_it_would_be_without_a_limit(run, policy):
    """The launcher goes before all others where a bomb may be lit; the command must not."""
    code = "import os; print(os.sched_getscheduler(0), os.nice(0), os.sched_getparam(0).sched_priority)"
    outside = subprocess.run([PY, "-c", code], capture_output=True, text=True, check=True).stdout
    assert run([PY, "-c", code], policy=policy.with_limits(processes=5)).stdout == outside


def test_a_crowd_that_outlives_its_first_process_has_crossed_its_limit(run, policy, token):
    """A fork bomb met the kernel's limit behind ours, by which its first process failed and ended, all of it between two looks: the
    report said that it had ended by itself."""
    code = "import os, sys, time\nfor _ in range(24):\n    if os.fork() == 0:\n        time.sleep(float(sys.argv[1]))\n        os._exit(0)\nos._exit(3)"
    limited = policy.with_limits(processes=20)
    for _ in range(5):
        result = run([PY, "-c", code, token], policy=limited)
        assert (result.sandbox.ended, result.sandbox.limit) == ("limit", "processes")
        assert result.sandbox.limit_reached > 20
    assert not processes_with(token)
    few = "import os\nfor _ in range(15):\n    if os.fork() == 0:\n        os._exit(0)\nos._exit(3)"
    result = run([PY, "-c", few], policy=limited)
    assert (result.returncode, result.sandbox.limit) == (3, None)


@pytest.mark.skipif("sync" not in os.environ.get("SANDBOX_TEST_WORLDS", "sync"), reason="one world will do")
def test_limited_runs_side_by_side_do_not_mix(ws, policy, tier):
    """Twenty at once, each with a limit of its own: each ends of that, or not at all."""
    kinds = {
        "heap": (HEAP, {"memory_bytes": 150 * MB}, "memory_bytes"),
        "fork": (FORKS, {"processes": 20}, "processes"),
        "burn": (BURNERS, {"cpu_seconds": 1}, "cpu_seconds"),
        "fine": ("import time; x = bytearray(20 << 20); time.sleep(1)", {"memory_bytes": 150 * MB, "processes": 20}, None),
    }

    def one(kind):
        code, limits, name = kinds[kind]
        return name, sp.run([PY, "-c", code], cwd=ws, policy=policy.with_limits(**limits), timeout=60).sandbox.limit

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(one, list(kinds) * 5))
    assert [expected for expected, _ in outcomes] == [found for _, found in outcomes]


def test_space_is_not_taken_without_being_written(run, policy, ws):
    """fallocate(2) fills a disk without a byte that the kernel would count. Programs that ask politely write instead."""
    limited = policy.with_limits(written_bytes=50 * MB)
    result = run([PY, "-c", "import os; fd = os.open('f', os.O_RDWR | os.O_CREAT); os.posix_fallocate(fd, 0, 1 << 20)"], policy=limited)
    assert result.returncode == 0 and (ws / "f").stat().st_size == 1 << 20, result.stderr
    result = run(["fallocate", "-l", "500M", "g"], policy=limited)
    assert result.returncode != 0 and "not supported" in result.stderr
    assert not (ws / "g").exists() or (ws / "g").stat().st_blocks == 0
    assert run("fallocate -l 1M h && fallocate -p -l 4096 h && stat -c %s h", shell=True).stdout == f"{1 << 20}\n"


# -- what the report says ---------------------------------------------------------------------------------------------------


def close_to(value, expected, slack=0.0):
    return abs(value - expected) <= 0.1 * expected + slack


def test_usage_is_what_the_tree_used(run, policy, ws):
    """Within a tenth of what the processes say of themselves."""
    code = (
        "import os, time\n"
        "x = bytearray(200 << 20)\n"
        "end = time.process_time() + 0.6\n"
        "while time.process_time() < end: pass\n"
        "with open('f', 'wb') as f: f.write(bytes(40 << 20)); f.flush(); os.fsync(f.fileno())\n"
        "print(sum(os.times()[:2]), [l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')][0], flush=True)\n"
    )
    result = run([PY, "-c", code])
    cpu, peak = result.stdout.split()
    usage = result.sandbox.usage
    assert close_to(usage.user_seconds + usage.system_seconds, float(cpu), 0.05)
    assert close_to(usage.max_rss_bytes, int(peak) << 10) and close_to(usage.peak_memory_bytes, int(peak) << 10)
    assert close_to(usage.written_bytes, 40 * MB, MB)
    assert (usage.peak_processes, usage.peak_threads) == (1, 1)


def test_usage_counts_processes_threads_and_what_has_ended(run, policy, ws):
    """Of eight children and their memory, and of those that are long gone."""
    code = (
        "import os, threading, time\n"
        "for n in range(4):\n"
        "    if os.fork() == 0:\n"
        "        end = time.process_time() + 0.2\n"
        "        while time.process_time() < end: pass\n"
        "        open(f'f{n}', 'wb').write(bytes(5 << 20)); os._exit(0)\n"
        "for _ in range(4): os.wait()\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(50 << 20); threading.Thread(target=time.sleep, args=(1,)).start(); time.sleep(1); os._exit(0)\n"
        "for _ in range(4): os.wait()\n"
    )
    usage = run([PY, "-c", code], policy=policy.with_limits(memory_bytes=1 << 30)).sandbox.usage
    assert (usage.peak_processes, usage.peak_threads) == (5, 9)
    assert close_to(usage.peak_memory_bytes, 200 * MB, 30 * MB)
    assert 0.8 <= usage.user_seconds + usage.system_seconds < 1.6
    assert close_to(usage.written_bytes, 20 * MB, MB)


@pytest.mark.parametrize("waits", [True, False])
def test_what_ends_is_counted_once(run, policy, waits):
    """By the parent that waits for it; what nobody waits for is carried over as it was when it was last seen. No more than that:
    a limit would end a run that is within it."""
    code = (
        "import os, signal, sys, time\n"
        f"signal.signal(signal.SIGCHLD, signal.{'SIG_DFL' if waits else 'SIG_IGN'})\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        while time.process_time() < .5: pass\n"
        "        os._exit(0)\n"
        "    try: os.wait()\n"
        "    except OSError: pass\n"
        "if sys.argv[1:]:\n"
        "    for _ in range(300):\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os.wait()\n"
    )
    usage = run([PY, "-c", code, *["short"] * waits], policy=policy.with_limits(cpu_seconds=60)).sandbox.usage
    # Without a wait, how much of it is seen depends on when was looked; without being carried over it would be next to nothing.
    assert (1.9 if waits else 0.4) <= usage.user_seconds + usage.system_seconds < 2.6


REFERENCE = {
    "a processor": "import os\nwhile sum(os.times()[:2]) < .8: pass",
    "children": "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        while sum(os.times()[:2]) < .3: pass\n        os._exit(0)\n    os.wait()",
    "memory": "x = bytearray(300 << 20); y = [0] * (10 << 20)",
}


@pytest.mark.parametrize("load", REFERENCE)
def test_usage_is_what_gnu_time_says(run, ws, policy, load):
    """Within a tenth, of one and the same run: it is the command here, and reads the kernel's figures for its child."""
    if shutil.which("time") is None:
        (pytest.fail if "GNU_TIME" in must_work() else pytest.skip)("GNU time is not installed")
    result = run([shutil.which("time"), "-f", "%U %S %M", "-o", "told", PY, "-c", REFERENCE[load]], policy=policy)
    user, system, rss = map(float, (ws / "told").read_text().split())
    usage = result.sandbox.usage
    assert close_to(usage.user_seconds + usage.system_seconds, user + system, 0.03)
    assert close_to(usage.max_rss_bytes, rss * 1024, 3 * MB)


def test_usage_is_what_psutil_says(policy, ws, tier):
    """Within a tenth, of a tree that stands still while somebody outside adds it up."""
    code = (
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        x = b'x' * (60 << 20)\n"
        "        while time.process_time() < .3: pass\n"
        "        os.write(1, b'up\\n'); time.sleep(20)\n"
        "time.sleep(20)"
    )
    seen = []
    told = policy.replace(on_event=seen.append, event_interval=0.05)
    with sp.Popen([PY, "-c", code], policy=told, cwd=ws, stdout=sp.PIPE) as process:
        for _ in range(4):
            assert process.stdout.readline() == b"up\n"
        top = psutil.Process(process.sandbox.pid)
        tree = [top, *top.children()]
        pss = sum(p.memory_full_info().pss for p in tree)
        cpu = sum(sum(p.cpu_times()[:2]) for p in tree)
        before = len(seen)
        wait_until(lambda: len(seen) > before + 1)
        process.kill()
    usage = process.sandbox.usage
    assert len(tree) == 5 == usage.peak_processes
    assert close_to(usage.peak_memory_bytes, pss)
    assert close_to(usage.user_seconds + usage.system_seconds, cpu, 0.05)
    assert close_to(seen[-1].memory_bytes, pss) and close_to(seen[-1].cpu_seconds, cpu, 0.05)


def test_read_only_has_conservative_limits(ws, tier):
    """A preset for commands that nobody has read; the others leave that to the program."""
    assert sp.Policy.read_only().limits == sp.Limits.conservative()
    assert sp.Policy.read_only(processes=5).limits == sp.Limits.conservative().replace(processes=5)
    assert sp.Policy.workspace_write(ws).limits == sp.Limits.unlimited()
    needs("LIMIT_MEMORY")
    report = sp.run([PY, "-c", "x = bytearray(1 << 30)"], cwd=ws, policy=sp.Policy.read_only(), stderr=sp.DEVNULL).sandbox
    assert report.limit == "memory_bytes"
