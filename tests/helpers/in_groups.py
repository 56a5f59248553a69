"""What becomes of runs where control groups may be made. Prints one JSON object; `tests/platforms/test_groups.py` reads it.

    python in_groups.py DIRECTORY TIER...

Moves itself into the delegated group (SANDBOX_TEST_GROUP, its leaf) first; becomes user 1234 with SANDBOX_TEST_USER.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import warnings

base, *tiers = sys.argv[1:]
group = pathlib.Path(os.environ["SANDBOX_TEST_GROUP"])
(group / "leaf" / "cgroup.procs").write_text(str(os.getpid()))
if os.environ.get("SANDBOX_TEST_USER"):
    os.setgroups([])
    os.setresgid(1234, 1234, 1234)
    os.setresuid(1234, 1234, 1234)
os.environ["HOME"] = base

import sandboxed_subprocess as sp  # noqa: E402
from sandboxed_subprocess._backends import _groups  # noqa: E402

warnings.simplefilter("ignore", sp.SandboxWarning)
ws = pathlib.Path(base, "ws")
ws.mkdir(exist_ok=True)
MB = 1 << 20
PY = sys.executable
THREADS = "import threading, time\ntry:\n    for _ in range(2000):\n        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nexcept RuntimeError:\n    pass\ntime.sleep(60)"
CHILD = "import os, time\nif os.fork() == 0:\n    x = [bytearray(10 << 20) for _ in range(40)]\n    time.sleep(60)\nos.wait()\ntime.sleep(60)"
# Descriptors in a message that nobody has received are in no table of descriptors.
IN_FLIGHT = (
    "import array, os, socket, time\nkept = []\n"
    "for _ in range(400):\n"
    "    a, b = socket.socketpair(); kept += [a, b]\n"
    "    fd = os.memfd_create('x'); os.write(fd, bytes(1 << 20))\n"
    "    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))]); os.close(fd)\n"
    "time.sleep(60)"
)
BUFFERS = (
    "import os, time\nkept = []\n"
    "for _ in range(4000):\n"
    "    r, w = os.pipe(); kept += [r, w]; os.write(w, bytes(1 << 16))\n"
    "time.sleep(60)"
)
# Each shorter than a look at the tree, and counted by nobody.
SHORT = (
    "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "while True:\n"
    "    if os.fork() == 0:\n"
    "        while time.process_time() < .01: pass\n"
    "        os._exit(0)\n"
    "    try: os.wait()\n"
    "    except OSError: pass"
)
CASES = {
    "threads": (THREADS, {"processes": 4}),
    "child": (CHILD, {"memory_bytes": 100 * MB}),
    "memfds in flight": (IN_FLIGHT, {"memory_bytes": 100 * MB}),
    "pipes": (BUFFERS, {"memory_bytes": 20 * MB}),  # of 64 MB, which is what the kernel gives one user (pipe(7))
    "short burners": (SHORT, {"cpu_seconds": 1}),
    "fine": ("import threading, time\nx = bytearray(50 << 20)\nt = [threading.Thread(target=time.sleep, args=(.2,)) for _ in range(100)]\n[y.start() for y in t]", {"memory_bytes": 100 * MB, "processes": 4}),
    "many threads": ("import threading, time\nx = bytearray(50 << 20)\nt = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(600)]\n[y.start() for y in t]", {"memory_bytes": 100 * MB, "processes": 64}),
    "a file that is read": ("n = 0\nwith open('big', 'rb') as f:\n    while x := f.read(1 << 20): n += len(x)\nassert n == 200 << 20", {"memory_bytes": 100 * MB}),
}  # fmt: skip
ONLY_HELD = {"memfds in flight", "pipes"}  # which nobody else sees
with open(ws / "big", "wb") as big:
    big.truncate(200 * MB)


def made():
    return sorted(str(p) for p in group.rglob("sandboxed-subprocess-*"))


def gone():
    """Whether there are none, a moment later at most."""
    end = time.monotonic() + 20
    while made() and time.monotonic() < end:
        time.sleep(0.02)
    return made()


def into_jail():
    (group / "jail" / "cgroup.procs").write_text(str(os.getpid()))


def survivors(token):
    return [p for p in os.listdir("/proc") if p.isdigit() and token.encode() in _read(f"/proc/{p}/cmdline") and int(p) != os.getpid()]


def _read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


found = {"place": _groups.place(), "why_not": _groups.why_not(), "kernel": os.uname().release}
open_files = 16384
for tier in tiers:
    here = found[tier] = {}
    best = {"enforcement": "best-effort", "backend": tier}
    for name, (code, limits) in CASES.items():
        if name in ONLY_HELD and not found["place"].holds:
            continue
        policy = sp.Policy.workspace_write(ws, limits=sp.Limits(open_files=open_files, **limits), **best)
        began = time.monotonic()
        try:
            r = sp.run([PY, "-c", code], policy=policy, cwd=ws, capture_output=True, text=True, timeout=40)
            report = r.sandbox
            here[name] = [report.ended, report.limit, r.returncode, report.limits_by, report.limit_reached, r.stderr[-300:]]
        except sp.TimeoutExpired as error:
            here[name] = ["timeout", error.sandbox.usage]
        here[name + " left"] = gone()
        here[name + " seconds"] = time.monotonic() - began
    policy = sp.Policy.workspace_write(ws, limits=sp.Limits(memory_bytes=100 * MB, processes=8), **best)

    # What a command can do about its own group.
    r = sp.run(
        ["sh", "-c", "for f in $(find /sys/fs/cgroup -name 'cgroup.procs' -o -name 'memory.max' -o -name 'pids.max' -o -name 'cgroup.kill'); do"
         " (echo max > $f) 2>/dev/null && echo wrote $f; (echo $$ > $f) 2>/dev/null && echo wrote $f; done;"
         " for d in $(find /sys/fs/cgroup -type d -name 'sandboxed*'); do mkdir $d/more 2>/dev/null && echo made $d; done;"
         " ls -l /proc/self/fd; cat /proc/self/cgroup"],
        policy=policy, cwd=ws, capture_output=True, text=True,
    )  # fmt: skip
    here["escape"] = [r.stdout, r.stderr]

    # Modes are not Landlock's to refuse; neither the group nor its place may be lost by them.
    r = sp.run(
        ["sh", "-c", "d=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup); chmod 0 $d; chmod 0500 $(dirname $d); sleep 60 & exit 0"],
        policy=policy, cwd=ws, stderr=sp.DEVNULL,
    )  # fmt: skip
    here["modes"] = [gone(), oct(os.stat(_groups.place().path).st_mode)]

    if found["place"].holds:
        # Whoever puts a child elsewhere, where it is bounded, means it.
        jail = group / "jail"
        jail.mkdir()
        (jail / "memory.max").write_text(str(60 * MB))
        hog = "x = [bytearray(1 << 20) for _ in range(150)]"
        p = policy.with_limits(memory_bytes=400 * MB)
        r = sp.run([PY, "-c", hog], policy=p, cwd=ws, preexec_fn=into_jail)
        here["jail"] = [r.returncode, r.sandbox.limits_by, gone()]
        jail.rmdir()
    if found["place"].holds and os.geteuid() == 0:
        # The largest of a tree may be init itself: then the monitor says which limit it was.
        hog = "import sys; print('up', flush=True); sys.stdin.readline()\nx = [bytearray(1 << 20) for _ in range(400)]"
        p = sp.Popen([PY, "-c", hog], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE)
        p.stdout.readline()
        init = pathlib.Path(f"/proc/{p.sandbox.pid}/stat").read_text().rpartition(")")[2].split()[1]
        pathlib.Path(f"/proc/{init}/oom_score_adj").write_text("1000")
        p.communicate(b"\n", timeout=90)
        here["init"] = [p.sandbox.ended, p.sandbox.limit, p.returncode, p.sandbox.limits_by, p.sandbox.limit_reached, gone()]

    # A caller that is killed, and one that is killed together with the launcher.
    for how in ("caller", "both"):
        token = f"6{int(time.monotonic() * 1000)}.5"
        code = (
            f"import sandboxed_subprocess as sp, warnings; warnings.simplefilter('ignore')\n"
            f"sp.run(['sh', '-c', 'echo up; sleep {token} & sleep {token}'], cwd={str(ws)!r}, policy=sp.Policy.workspace_write({str(ws)!r},"
            f" limits=sp.Limits(memory_bytes=100 << 20), enforcement='best-effort', backend={tier!r}))"
        )
        p = subprocess.Popen([PY, "-c", code], stdout=subprocess.PIPE)
        up = p.stdout.readline()
        there = made()
        if how == "both":
            monitor = pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split()
            p.send_signal(signal.SIGSTOP)
            for pid in monitor:
                os.kill(int(pid), signal.SIGKILL)
        p.kill()
        p.wait()
        end = time.monotonic() + 20
        while survivors(token) and time.monotonic() < end:
            time.sleep(0.02)
        left = gone() if how == "caller" else made()
        if how == "both":
            # By whoever comes next, once it is old enough not to be somebody's who only begins.
            _groups._OLD = -1
            while made() and time.monotonic() < end:  # the kernel may still be taking apart what was in it
                _groups._choose.cache_clear()
                _groups.place()
            left = [left, made()]
        here[how] = [up.decode(), len(there), survivors(token), left]
        p.stdout.close()
print(json.dumps(found))
