"""Fixtures for everything. Nothing here sandboxes: tests go through the public API."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess.testing import needs

ROOT = os.geteuid() == 0
# Not below /tmp: the sandbox replaces that, and an attack on a directory that is not there proves nothing.
BASE = pathlib.Path(os.environ.get("SANDBOX_TEST_BASE") or ("/srv" if ROOT else os.path.expanduser("~")))


@pytest.fixture
def place():
    """A fresh directory of the host's, visible inside (outside /tmp), searchable by other users."""
    path = pathlib.Path(os.path.realpath(tempfile.mkdtemp(prefix="ss-test-", dir=BASE)))
    path.chmod(0o755)
    yield path
    subprocess.run(["chmod", "-R", "u+rwX", path], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(path)


@pytest.fixture
def ws(place):
    """The workspace: the writable root of `policy`."""
    path = place / "ws"
    path.mkdir()
    return path


@pytest.fixture
def outside(place):
    """A directory beside the workspace, readable inside and not writable."""
    path = place / "outside"
    path.mkdir()
    return path


@pytest.fixture(params=["namespaces"])
def tier(request):
    """The name of each backend. A test that takes it runs on every tier."""
    needs(request.param)
    return request.param


@pytest.fixture
def policy(ws, tier):
    return sp.Policy.workspace_write(ws, backend=tier)


@pytest.fixture
def run(ws, policy):
    """`sp.run` in the workspace with captured text output; other keywords, `policy=` too, as given."""

    def call(args, **kwargs):
        kwargs.setdefault("policy", policy)
        kwargs.setdefault("cwd", ws)
        kwargs.setdefault("capture_output", True)
        kwargs.setdefault("text", True)
        kwargs.setdefault("timeout", 60)
        return sp.run(args, **kwargs)

    return call


@pytest.fixture
def sh(run):
    """A shell script, inside."""

    def call(script, **kwargs):
        return run(["sh", "-c", script], **kwargs)

    return call


@pytest.fixture
def py(run):
    """A Python program, inside, by an interpreter that any user can reach."""

    def call(code, **kwargs):
        return run([sys.executable, "-c", code], **kwargs)

    return call


@pytest.fixture(autouse=True)
def no_descriptor_leaks():
    """Every test leaves as many open file descriptors as it found."""
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before, "file descriptors leaked"


def wait_until(condition, seconds=5.0):
    """Polls to a deadline; the value that made it true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def processes_with(token):
    """Host pids whose command line contains `token`."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if token.encode() in command:
                found.append(int(entry))
    return found


def git(*args, cwd, **env):
    """git on the host, as a person who set nothing up."""
    return subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args],
        cwd=cwd, check=True, capture_output=True, text=True,
        env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", **env},
    ).stdout  # fmt: skip
