"""The attempts of `self_test`. One command tries everything that must not work; whether it did is seen on the host: files,
sockets, processes. What only the command can know (that a system call was refused, that its loopback works) is what it says.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import json
import os
import pathlib
import select
import shutil
import socket
import tempfile
from typing import Any

from . import _backends, _paths, danger
from ._backends import PIPE
from ._errors import SandboxError
from ._plan import Access, Feature, compile_view
from ._policy import Limits, Policy
from ._popen import Popen
from ._report import Report

Found = tuple[str, str, "bool | None", str]

# Inside. Every attempt is a line of JSON: [name, what came of it]; "no: ..." is a refusal, and anything else got through.
_PROBE = r"""
import ctypes, errno, json, os, socket, sys
A = json.loads(sys.argv[1])
def attempt(name, function):
    try:
        value = function()
    except BaseException as error:
        value = f"no: {type(error).__name__} {getattr(error, 'errno', '')} {error}"
    print(json.dumps([name, value if isinstance(value, (str, int, list)) else "done"]), flush=True)
def write(path, mode="w"):
    with open(path, mode) as file:
        file.write(A["token"])
def talk(family, kind, address, protocol=0, how="connect"):
    with socket.socket(family, kind, protocol) as s:
        s.settimeout(2)
        if how == "connect":
            s.connect(address)
            s.sendall(A["token"].encode())
        elif how == "fastopen":
            s.sendto(A["token"].encode(), 0x20000000, address)
        else:
            s.sendto(A["token"].encode(), address)
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    if libc.syscall(number, *arguments) < 0 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
        return "no: refused"
out, root = A["outside"], A["root"]
attempt("create", lambda: write(out + "/created"))
attempt("append", lambda: write(out + "/canary", "a"))
attempt("truncate", lambda: os.truncate(out + "/canary", 0))
attempt("unlink", lambda: os.unlink(out + "/canary"))
attempt("rename", lambda: os.rename(out + "/canary", out + "/renamed"))
attempt("mkdir", lambda: os.mkdir(out + "/made"))
attempt("link", lambda: os.symlink("/", out + "/link"))
attempt("by root", lambda: write("/proc/self/root" + out + "/created"))
attempt("chmod", lambda: os.chmod(out + "/canary", 0o777))
attempt("utime", lambda: os.utime(out + "/canary", (1, 1)))
attempt("secret", lambda: open(out + "/secret").read())
attempt("secret by root", lambda: open("/proc/self/root" + out + "/secret").read())
attempt("names", lambda: os.listdir(out + "/hidden"))
attempt("fifo", lambda: os.write(os.open(out + "/fifo", os.O_WRONLY | os.O_NONBLOCK), A["token"].encode()))
attempt("unix stream", lambda: talk(socket.AF_UNIX, socket.SOCK_STREAM, out + "/stream"))
attempt("unix datagram", lambda: talk(socket.AF_UNIX, socket.SOCK_DGRAM, out + "/datagram", how="send"))
def pair(kind):
    for s in socket.socketpair(socket.AF_UNIX, kind):
        s.sendto(A["token"].encode(), out + "/datagram")
attempt("unix datagram", lambda: pair(socket.SOCK_DGRAM))
attempt("unix datagram", lambda: pair(socket.SOCK_RAW))  # of which the kernel makes the same
attempt("abstract", lambda: talk(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + A["abstract"]))
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    attempt("tcp", lambda: talk(family, socket.SOCK_STREAM, (address, A["tcp"])))
    attempt("fastopen", lambda: talk(family, socket.SOCK_STREAM, (address, A["tcp"]), how="fastopen"))
    attempt("mptcp", lambda: talk(family, socket.SOCK_STREAM, (address, A["tcp"]), 262))
    attempt("udp", lambda: talk(family, socket.SOCK_DGRAM, (address, A["udp"]), how="send"))
def loopback():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
        server.accept()[0].close()
attempt("loopback", loopback)
attempt("tmp", lambda: write("/tmp/" + A["token"]))
attempt("tmp of the host", lambda: open(A["tmp"]).read())
attempt("shm", lambda: write("/dev/shm/" + A["token"]))
if root:
    attempt("hook", lambda: write(root + "/.git/hooks/pre-commit"))
    attempt("git", lambda: os.rename(root + "/.git", root + "/moved"))
    attempt("secret in a root", lambda: open(root + "/.env").read())
    attempt("renamed in a root", lambda: (os.rename(root + "/.env", root + "/env"), open(root + "/env").read())[1])
    attempt("root", lambda: write(root + "/written"))
for name, number in A["calls"]:
    # A new user namespace; PTRACE_PEEKTEXT of what is not traced (being traced would stop this process).
    attempt("call " + name, lambda: call(number, {"unshare": 0x10000000, "ptrace": 1}.get(name, 0), 0, 0, 0, 0) or "done")
attempt("victim", lambda: open(f"/proc/{A['victim']}/environ").read())
def listed():
    found = ""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                found += open(f"/proc/{name}/cmdline").read()
            except OSError:
                pass
    return found
attempt("processes", listed)
attempt("kill", lambda: os.kill(A["victim"], 9))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        while True:
            os.read(os.pipe()[0], 1)
    os._exit(0)
os.wait()
print("ready", flush=True)
sys.stdin.readline()
"""
# By number, which ctypes needs; where there is none for this machine, the check is not made.
_CALLS = {
    "x86_64": {"unshare": 272, "ptrace": 101, "keyctl": 250, "mount": 165, "bpf": 321, "io_uring_setup": 425},
    "aarch64": {"unshare": 97, "ptrace": 117, "keyctl": 219, "mount": 40, "bpf": 280, "io_uring_setup": 425},
}
_EXCEPTIONS = {"ptrace": "ptrace", "keyring": "keyctl"}


class _Canaries:
    """What lies outside for the command to reach, and whether it did."""

    def __init__(self, policy: Policy, place: str) -> None:
        self.token = f"sandbox-self-test-{os.urandom(8).hex()}"
        self.place = place
        self.outside = f"{place}/outside"
        # A policy that writes nothing at all gets no root to write to.
        self.root = f"{place}/root" if policy.write or policy.tmp != "none" else ""
        self.heard: dict[str, socket.socket] = {}
        allowed = [_EXCEPTIONS.get(name) for name in policy.syscall_exceptions]
        self.calls = [item for item in _CALLS.get(os.uname().machine, {}).items() if item[0] not in allowed]
        os.makedirs(f"{self.outside}/hidden")
        for name in ("canary", "secret", f"hidden/{self.token}"):
            self._write(f"{self.outside}/{name}", self.token)
        self.before = os.stat(f"{self.outside}/canary")
        os.mkfifo(f"{self.outside}/fifo")
        self.fifo = os.open(f"{self.outside}/fifo", os.O_RDWR | os.O_NONBLOCK)
        if self.root:
            os.makedirs(f"{self.root}/.git/hooks")
            self._write(f"{self.root}/.env", self.token)
        fd, self.tmp = tempfile.mkstemp(prefix="sandbox-self-test-", dir="/tmp")
        os.write(fd, self.token.encode())
        os.close(fd)
        self._listen("unix stream", socket.AF_UNIX, socket.SOCK_STREAM, f"{self.outside}/stream")
        self._listen("unix datagram", socket.AF_UNIX, socket.SOCK_DGRAM, f"{self.outside}/datagram")
        self._listen("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.token}")
        self._listen("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self._listen("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.names = set(os.listdir(self.outside))
        # A process of the host's, which must live on; its environment and its arguments hold the token.
        self.victim = _backends.StdlibPopen(
            [sys.executable, "-I", "-c", "import sys; sys.stdin.read()", self.token],
            env={"TOKEN": self.token}, stdin=PIPE, stdout=_backends.DEVNULL, stderr=_backends.DEVNULL, cwd="/",
        )  # fmt: skip

    @staticmethod
    def _write(path: str, text: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _listen(self, name: str, family: int, kind: int, address: Any) -> None:
        s = self.heard[name] = socket.socket(family, kind)
        s.bind(address)
        if kind == socket.SOCK_STREAM:
            if family == socket.AF_INET:
                s.setsockopt(socket.IPPROTO_TCP, 23, 5)  # TCP_FASTOPEN
            s.listen(16)
        s.setblocking(False)

    def close(self) -> None:
        self.victim.kill()
        self.victim.communicate()
        for s in self.heard.values():
            s.close()
        os.close(self.fifo)
        os.unlink(self.tmp)

    def arguments(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "outside": self.outside,
            "root": self.root,
            "abstract": self.token,
            "tcp": self.heard["tcp"].getsockname()[1],
            "udp": self.heard["udp"].getsockname()[1],
            "tmp": self.tmp,
            "victim": self.victim.pid,
            "calls": self.calls,
        }

    def reached(self, name: str) -> bool:
        """Whether anything came in at a socket."""
        try:
            s = self.heard[name]
            if s.type == socket.SOCK_DGRAM:
                return bool(s.recv(100))
            s.accept()[0].close()
            return True
        except BlockingIOError:
            return False


def _place(policy: Policy) -> str:
    """A new directory of the host's that the policy neither grants nor replaces.

    Raises:
        SandboxError: there is none that we can write to.
    """
    view = compile_view(policy)
    taken = (*view.roots, *view.private, *(rule.path for rule in view.rules if rule.access is Access.DENY))
    for base in (os.path.expanduser("~"), "/srv", "/var/lib", "/opt", os.getcwd()):
        real = _paths.resolve(base).real
        if os.access(real, os.W_OK) and not any(_paths.is_within(real, path) for path in taken):
            try:
                return tempfile.mkdtemp(prefix=".sandbox-self-test-", dir=real)
            except OSError:
                continue  # read-only, or full
    raise SandboxError("self_test: there is no directory that this user can write to and the policy does not grant")


def try_out(policy: Policy) -> tuple[str, list[Found], tuple[str, ...]]:
    """Name of the backend, what was found of each feature, and what was not promised."""
    place = _place(policy)
    try:
        canaries = _Canaries(policy, place)
        try:
            return _run(policy, canaries)
        finally:
            canaries.close()
    finally:
        shutil.rmtree(place)


def _run(policy: Policy, canaries: _Canaries) -> tuple[str, list[Found], tuple[str, ...]]:
    changed = policy.replace(deny_read=(*policy.deny_read, f"{canaries.outside}/secret", f"{canaries.outside}/hidden"))
    if canaries.root:
        changed = changed.replace(write=(*policy.write, canaries.root), deny_read=(*changed.deny_read, f"{canaries.root}/.env"))
    lives, held = os.pipe()
    try:
        try:
            process = Popen(
                [sys.executable, "-I", "-c", _PROBE, json.dumps(canaries.arguments())],
                policy=changed.replace(limits=_without_tree(changed.limits), on_event=None),
                cwd="/", stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, pass_fds=[held],
            )  # fmt: skip
        finally:
            os.close(held)
        with process:
            assert process.stdout is not None
            said: dict[str, list[Any]] = {}
            for line in process.stdout:
                if line == "ready\n":
                    break
                name, value = json.loads(line)
                said.setdefault(name, []).append(value)
            else:
                raise SandboxError(f"self_test: the command ended early: {process.communicate()[1].strip()[-500:]}")
            status = _status(process.sandbox.pid)
            process.communicate("\n", timeout=60)
        survived = not select.select([lives], [], [], 0)[0]
        crossed = _cross_limits(changed, canaries.root, process.sandbox.gaps)
        return _judge(changed, process.sandbox, canaries, said, status, survived, crossed)
    finally:
        os.close(lives)


# For each limit of a tree a small one, and a command that crosses it; none takes a second.
_CROSSING: dict[Feature, tuple[str, Any, str]] = {
    Feature.LIMIT_MEMORY: ("memory_bytes", 64 << 20, "import time; x = [bytearray(1 << 20) for _ in range(256)]; time.sleep(9)"),
    Feature.LIMIT_PROCESSES: ("processes", 8, "import os, time\nfor _ in range(6): os.fork()\ntime.sleep(9)"),
    Feature.LIMIT_WRITTEN: (
        "written_bytes", 1 << 20, "import time\nwith open('filler', 'wb') as f: f.write(bytes(8 << 20))\ntime.sleep(9)",
    ),
    Feature.LIMIT_CPU: ("cpu_seconds", 0.1, "while True: pass"),
    Feature.LIMIT_WALL: ("wall_seconds", 0.1, "import time; time.sleep(9)"),
}  # fmt: skip


def _without_tree(limits: Limits) -> Limits:
    """The attempts take their own memory, processes and time."""
    return limits.replace(**{name: None for name, _, _ in _CROSSING.values()})


def _cross_limits(policy: Policy, root: str, gaps: tuple[str, ...]) -> dict[Feature, list[str]]:
    """What came of crossing each limit of the tree that is promised. The policy's own may be hours and gigabytes away."""
    found = {}
    for feature in compile_view(policy).features & _CROSSING.keys():
        name, value, code = _CROSSING[feature]
        if feature.value in gaps or (feature is Feature.LIMIT_WRITTEN and not root):
            continue  # nothing to hold, or nothing that could be written
        limited = policy.replace(limits=_without_tree(policy.limits).replace(**{name: value}), on_event=None)
        process = Popen(
            [sys.executable, "-I", "-c", code], policy=limited, cwd=root or "/", stdin=_backends.DEVNULL,
            stdout=_backends.DEVNULL, stderr=_backends.DEVNULL,
        )  # fmt: skip
        with process:
            process.wait()
        report = process.sandbox
        found[feature] = [] if report.limit == name else [f"with {name}={value} it ended by {report.limit or report.ended}"]
    return found


def _status(pid: int | None) -> dict[str, str]:
    """Of the command, seen from outside."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        with open(f"/proc/{pid}/limits", encoding="utf-8") as file:
            status.update((line[:25].strip(), line[26:].split()[0]) for line in file)
    except OSError:
        return {}
    return status


def _judge(
    policy: Policy, report: Report, canaries: _Canaries, said: dict[str, list[Any]], status: dict[str, str], survived: bool,
    crossed: dict[Feature, list[str]],
) -> tuple[str, list[Found], tuple[str, ...]]:
    outside, token = canaries.outside, canaries.token
    now = os.stat(f"{outside}/canary") if os.path.exists(f"{outside}/canary") else None
    kept = now is not None and pathlib.Path(f"{outside}/canary").read_text(encoding="utf-8") == token

    def told(*names: str) -> list[str]:
        """What of these got through, as the command says."""
        return [name for name in names for value in said.get(name, []) if not str(value).startswith("no: ")]

    def contains(*names: str) -> list[str]:
        return [name for name in names for value in said.get(name, []) if token in str(value)]

    def fifo() -> list[str]:
        try:
            return ["it was written"] if os.read(canaries.fifo, 100) else []
        except BlockingIOError:
            return []

    def there(*paths: str) -> list[str]:
        return [path for path in paths if os.path.lexists(path)]

    def limit(name: str, value: int | None) -> list[str]:
        # Lower where this process is under a lower one itself, which is never raised.
        found = status.get(name, "unlimited")
        return [] if value is None or (found.isdigit() and int(found) <= value) else [f"{name}: {found}"]

    def metadata() -> list[str]:
        same = now is not None and (now.st_mode, now.st_mtime_ns) == (canaries.before.st_mode, canaries.before.st_mtime_ns)
        return [] if same else ["mode or times of a file outside were changed"]

    def privileges() -> list[str]:
        # 0xb: CHOWN, DAC_OVERRIDE, FOWNER
        kept = 0xB if danger.ROOT_FILE_ACCESS in policy.write else 0
        sets = ("CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs")
        allowed = dict.fromkeys(sets[:4], kept)
        return [
            f"{name}: {status.get(name)}"
            for name in sets
            if (int(status.get(name, "ff"), 16) & ~allowed[name] if name in allowed else status.get(name) != "1")
        ]

    git = f"{canaries.root}/.git"
    found: dict[Feature, list[str]] = {
        Feature.WRITE_RULES: sorted(set(os.listdir(outside)) ^ canaries.names) + ([] if kept else ["a file outside was changed"]),
        Feature.METADATA: metadata(),
        Feature.READ_RULES: contains("secret", "secret by root"),
        Feature.DENIED_NAMES: contains("names"),
        Feature.PRIVATE_TMP: there(f"/tmp/{token}") + contains("tmp of the host"),
        Feature.PRIVATE_DEV: there(f"/dev/shm/{token}"),
        Feature.HOST_FIFOS: fifo(),
        Feature.UNIX_SOCKETS: [name for name in ("unix stream", "unix datagram") if canaries.reached(name)],
        Feature.ABSTRACT_SOCKETS: ["it was connected to"] if canaries.reached("abstract") else [],
        Feature.NETWORK_NONE: [name for name in ("tcp", "udp") if canaries.reached(name)],
        Feature.LOOPBACK: [str(v) for v in said.get("loopback", []) if str(v).startswith("no: ")],
        Feature.PROCESSES: contains("victim") + ([] if canaries.victim.poll() is None else ["a process outside was killed"]),
        Feature.PROCESS_LIST: contains("processes"),
        Feature.TREE_KILL: ["a daemon lives on"] if survived else [],
    }
    seen = any(v.source == "observer" and v.detail.startswith(f"{outside}/") for v in report.violations)
    found[Feature.OBSERVE] = [] if seen else ["what was refused outside is not in the report"]
    found.update(crossed)
    if status:
        found[Feature.LIMIT_FILE] = limit("Max file size", policy.limits.file_bytes)
        found[Feature.LIMIT_FILES] = limit("Max open files", policy.limits.open_files)
        found[Feature.NO_PRIVILEGES] = privileges()
    if canaries.calls:
        found[Feature.SYSTEM_CALLS] = told(*(f"call {name}" for name, _ in canaries.calls))
    if canaries.root:
        hooks = there(f"{git}/hooks/pre-commit", f"{canaries.root}/moved") + [new for _, new in report.quarantined]
        found[Feature.PROTECTED_PATHS] = [] if policy.git == "writable" else hooks
        found[Feature.DENIED_IN_ROOTS] = contains("secret in a root", "renamed in a root")
        if not os.path.exists(f"{canaries.root}/written"):
            found[Feature.WRITE_RULES].append("the root itself could not be written")
    # In any other network mode these go through, as they are to.
    checks: list[Found] = []
    gaps = set(report.gaps)
    for feature in sorted(compile_view(policy).features, key=lambda f: list(Feature).index(f)):
        if feature.value in gaps:
            continue
        if feature not in found:
            checks.append((feature.name, feature.value, None, "not tried"))
        else:
            checks.append((feature.name, feature.value, not found[feature], "; ".join(map(str, found[feature]))))
    return report.backend or "", checks, tuple(report.gaps)
