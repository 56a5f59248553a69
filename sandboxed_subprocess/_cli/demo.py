"""`demo`: a day in the life of a command that nobody has read, in a temporary directory.

Each row is one attempt, made through the public API and checked on the host. A tool that is not installed makes a
"not here" row; the exit status is 1 if any outcome is not what it has to be.
"""

from __future__ import annotations

import dataclasses
import io
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator

from .. import _errors, _outcome, _popen
from .._policy import Policy
from . import table

assert sys.platform != "win32"

_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nplanted for the demonstration\n"
_PACKAGE = {
    "sums-1.0/sums.py": "def add(a, b):\n    return a + b\n",
    "sums-1.0/test_sums.py": (
        "import unittest, sums\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(sums.add(2, 3), 5)\n"
    ),
    "sums-1.0/Makefile": "all: out.txt\nout.txt: sums.py\n\twc -l < sums.py > out.txt\n",
    "sums-1.0/test.js": "const a = require('assert'); a.strictEqual([2, 3].reduce((x, y) => x + y), 5); console.log('js ok');\n",
}


@dataclasses.dataclass
class Attempt:
    title: str
    wanted: str
    outcome: str
    ok: bool | None  # None: a tool is not installed


class Stage:
    """The temporary place: a home with a secret, a workspace that is a repository, and a directory outside."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.home = f"{base}/home"
        self.ws = f"{base}/workspace"
        self.outside = f"{base}/outside"
        self.token = f"demo-{secrets.token_hex(6)}"
        for path in (f"{self.home}/.ssh", self.ws, self.outside):
            os.makedirs(path)
        with open(f"{self.home}/.ssh/id_ed25519", "w") as file:
            file.write(_KEY)
        with tarfile.open(f"{self.ws}/sums-1.0.tar.gz", "w:gz") as archive:
            for name, text in _PACKAGE.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
        self.has_git = shutil.which("git") is not None
        if self.has_git:
            subprocess.run(["git", "init", "-q", self.ws], check=True, env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1"})
        self.policy = Policy.workspace_write(self.ws)

    def run(
        self, args: list[str], *, policy: Policy | None = None, cwd: str | None = None, timeout: float = 60
    ) -> _outcome.CompletedProcess[str]:
        return _popen.run(
            args, policy=policy or self.policy, cwd=cwd or self.ws, capture_output=True, text=True, timeout=timeout,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def sh(self, script: str, **keywords: object) -> _outcome.CompletedProcess[str]:
        return self.run(["sh", "-c", script], **keywords)  # type: ignore[arg-type]


def _last(result: _outcome.CompletedProcess[str]) -> str:
    lines = (result.stderr + result.stdout).strip().splitlines()
    return lines[-1][:100] if lines else f"exit status {result.returncode}"


def _work(s: Stage) -> Iterator[Attempt]:
    """What has to work."""
    result = s.run(["tar", "xzf", "sums-1.0.tar.gz", "--no-same-owner"])
    there = os.path.exists(f"{s.ws}/sums-1.0/sums.py")
    yield Attempt("unpack a tarball", "works", "unpacked" if there else _last(result), there)
    result = s.run([sys.executable, "-m", "unittest", "-q"], cwd=f"{s.ws}/sums-1.0")
    yield Attempt("run its Python tests", "works", _last(result), result.returncode == 0 and "Ran 1 test" in result.stderr)
    for tool, args, proof in (("make", ["make"], "sums-1.0/out.txt"), ("node", ["node", "test.js"], None)):
        if shutil.which(tool) is None:
            yield Attempt(f"build or test with {tool}", "works", f"{tool} is not installed", None)
            continue
        result = s.run(args, cwd=f"{s.ws}/sums-1.0")
        done = os.path.exists(f"{s.ws}/{proof}") if proof else "js ok" in result.stdout
        yield Attempt(f"build or test with {tool}", "works", _last(result), done)
    if not s.has_git:
        yield Attempt("commit with git='commit'", "works", "git is not installed", None)
        return
    commit = s.policy.replace(git="commit")
    identity = "-c user.name=demo -c user.email=demo@example.org -c safe.directory='*'"
    result = s.sh(
        f"git {identity} add sums-1.0 && git {identity} commit -qm sums && git -c safe.directory='*' log --oneline", policy=commit
    )
    yield Attempt("commit with git='commit'", "works", _last(result), result.returncode == 0 and "sums" in result.stdout)


def _attacks(s: Stage) -> Iterator[Attempt]:
    """What has to fail. The host is looked at after each."""
    result = s.sh("cat ~/.ssh/id_ed25519")
    yield Attempt("read ~/.ssh/id_ed25519", "refused", _last(result), "planted" not in result.stdout and result.returncode != 0)

    result = s.sh(f"echo x > {s.outside}/x; echo x > ~/x; echo x > /etc/{s.token}; echo attempted")
    written = [p for p in (f"{s.outside}/x", f"{s.home}/x", f"/etc/{s.token}") if os.path.exists(p)]
    yield Attempt(
        "write outside the workspace",
        "refused",
        f"written: {written}" if written else _last_error(result),
        not written and "attempted" in result.stdout,
    )

    if s.has_git:
        result = s.sh("printf '#!/bin/sh\\n' > .git/hooks/pre-commit; mv .git moved; git config core.fsmonitor x; echo attempted")
        with open(f"{s.ws}/.git/config") as file:
            planted = (
                os.path.exists(f"{s.ws}/.git/hooks/pre-commit") or not os.path.isdir(f"{s.ws}/.git") or "fsmonitor" in file.read()
            )
        yield Attempt(
            "rewrite .git/hooks, .git/config, or move .git",
            "refused",
            "planted" if planted else _last_error(result),
            not planted and "attempted" in result.stdout,
        )

    fresh = f"{s.base}/fresh"
    os.mkdir(fresh)
    result = s.sh(
        "mkdir -p .git/hooks && echo x > .git/hooks/pre-commit && echo planted", policy=Policy.workspace_write(fresh), cwd=fresh
    )
    inert = not os.path.exists(f"{fresh}/.git") and bool(result.sandbox.quarantined)
    yield Attempt(
        "plant a .git in a fresh workspace",
        "made inert",
        "renamed and reported" if inert else "still there",
        inert and "planted" in result.stdout,
    )

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"{s.outside}/socket")
        local.listen()
        server.settimeout(0)
        local.settimeout(0)
        probe = (
            "import socket\n"
            f"tcp, unix = ('127.0.0.1', {server.getsockname()[1]}), {s.outside + '/socket'!r}\n"
            "for family, where in ((socket.AF_INET, tcp), (socket.AF_UNIX, unix)):\n"
            "    try:\n        socket.socket(family).connect(where); print('CONNECTED')\n"
            "    except OSError as error: print(error)\n"
        )
        result = s.run([sys.executable, "-c", probe])
        reached = [name for name, end in (("TCP", server), ("unix", local)) if _accepts(end)]
    yield Attempt(
        "reach a server and a unix socket of the host",
        "refused",
        f"reached: {reached}" if reached else _last(result),
        not reached and result.stdout.count("\n") == 2,
    )

    result = s.sh(f"setsid sh -c 'sleep 300; : {s.token}' >/dev/null 2>&1 & (setsid sleep 300 &) ; echo started")
    left = _processes(s.token)
    yield Attempt(
        "leave a daemon behind",
        "ended",
        f"left: {left}" if left else f"ended: {', '.join(result.sandbox.processes_ended) or '-'}",
        not left and "started" in result.stdout,
    )

    began = time.monotonic()
    try:
        s.sh(f"(sleep 300; : {s.token}) & wait", timeout=0.5)
        ended = False
    except subprocess.TimeoutExpired:
        ended = time.monotonic() - began < 10 and not _processes(s.token)
    yield Attempt("outlive a timeout", "ended", "the whole tree is dead" if ended else "still running", ended)

    with subprocess.Popen(["sleep", "300"]) as victim:
        result = s.sh(f"kill -9 {victim.pid}; kill -9 {os.getpid()}; kill -9 -1; echo attempted")
        alive = victim.poll() is None
        victim.kill()
    yield Attempt(
        "kill processes outside", "refused", _last_error(result) if alive else "killed", alive and "attempted" in result.stdout
    )

    result = s.sh(
        "mount -o remount,rw,bind / ; unshare -Urm true; chroot / true; echo 1 > /proc/sys/kernel/sysrq;"
        f" touch /{s.token}; echo attempted"
    )
    escaped = os.path.exists(f"/{s.token}")
    yield Attempt(
        "remount, new namespaces, chroot, /proc/sys",
        "refused",
        "escaped" if escaped else _last_error(result),
        not escaped and "attempted" in result.stdout,
    )

    os.environ["DEMO_API_TOKEN"] = s.token
    result = s.sh("env")
    seen = s.token in result.stdout
    yield Attempt(
        "see secrets in the environment",
        "dropped",
        "seen" if seen else "not in its environment; the report names it",
        not seen and "DEMO_API_TOKEN" in result.sandbox.environment_dropped,
    )


def _last_error(result: _outcome.CompletedProcess[str]) -> str:
    lines = result.stderr.strip().splitlines()
    return lines[-1][:100] if lines else "refused"


def _accepts(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _processes(token: str) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and entry != str(os.getpid()):
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if token.encode() in command:
                found.append(entry)
    return found


def perform() -> list[Attempt]:
    """All attempts, in a directory that is gone afterwards.

    Raises:
        SandboxUnavailable: nothing here can enforce the default policy.
    """
    # Beside the user's own files: below /tmp everything would be hidden anyway, and prove little.
    home = os.path.expanduser("~")
    base = tempfile.mkdtemp(prefix=".sandboxed-subprocess-demo-", dir=home if os.access(home, os.W_OK) else None)
    before = dict(os.environ)
    found: list[Attempt] = []
    try:
        stage = Stage(os.path.realpath(base))
        os.environ["HOME"] = stage.home
        acts: tuple[Callable[[Stage], Iterator[Attempt]], ...] = (_work, _attacks)
        for act in acts:
            found += act(stage)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(base)
    return found


def main() -> int:
    try:
        attempts = perform()
    except _errors.SandboxUnavailable as error:
        print(f"{error}\n`sandboxed-subprocess doctor` says more.", file=sys.stderr)
        return 1
    verdicts = {True: "ok", False: "WRONG", None: "not here"}
    print(table(("attempt", "wanted", "verdict", "outcome"), [(a.title, a.wanted, verdicts[a.ok], a.outcome) for a in attempts]))
    wrong = [a for a in attempts if a.ok is False]
    print(f"\n{len(attempts)} attempts, {len(wrong)} wrong, {sum(a.ok is None for a in attempts)} not here")
    return 1 if wrong else 0
