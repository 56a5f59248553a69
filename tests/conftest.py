"""Fixtures for everything. Nothing here sandboxes: tests go through the public API."""

from __future__ import annotations

import asyncio
import importlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess import _backends, aio
from sandboxed_subprocess._errors import Missing
from sandboxed_subprocess._plan import Feature
from sandboxed_subprocess.testing import must_work, needs

sys.path.insert(0, str(pathlib.Path(__file__).parent / "helpers"))
from tier_gaps import gap

# A shell starts what it puts in the background with these ignored, and everything started here would inherit that.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

ROOT = os.geteuid() == 0
# Not below /tmp: the sandbox replaces that, and an attack on a directory that is not there proves nothing.
BASE = pathlib.Path(os.environ.get("SANDBOX_TEST_BASE") or ("/srv" if ROOT else os.path.expanduser("~")))


@pytest.fixture
def place():
    """A fresh directory of the host's, visible inside (outside /tmp), searchable by other users."""
    path = pathlib.Path(os.path.realpath(tempfile.mkdtemp(prefix="ss-test-", dir=BASE)))
    path.chmod(0o755)
    yield path
    subprocess.run(["/bin/chmod", "-R", "u+rwX", path], check=False, stderr=subprocess.DEVNULL)
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


# The tier that the whole session runs on: one contract. `tests/platforms` looks at all of them side by side.
TIER = os.environ.get("SANDBOX_TEST_TIER", "namespaces")


@pytest.fixture(autouse=True)
def _only_one_tier(request, monkeypatch):
    """Whatever a policy does not say, it gets this tier. What the tier lacks for a reason of its own is not asked of it here:
    the tests that then have to fail are in `helpers/tier_gaps.py`, and tests/platforms shows that strict refuses."""
    if TIER == "namespaces":
        return
    monkeypatch.setitem(_backends.PREFERENCE, "linux", {TIER: _backends.PREFERENCE["linux"][TIER]})
    choose = _backends.choose

    def lenient(needed, **how):
        lacks = getattr(_backends.detect(TIER), "why_not", {}).keys()
        return choose(frozenset(needed - lacks), **how)

    monkeypatch.setattr(_backends, "choose", lenient)


# What a refused write says: a mount is read-only, or Landlock says no.
REFUSED = "Permission denied" if TIER == "landlock" else "Read-only file system"


def pytest_collection_modifyitems(items):
    for item in items:
        reason = gap(TIER, getattr(item, "originalname", item.name), item.name)
        if reason is not None:
            if reason in Feature.__members__:
                backend = _backends.detect(TIER)
                assert isinstance(backend, Missing) or Feature[reason] not in backend.features, f"{TIER} has {reason}"
            item.add_marker(pytest.mark.skip(reason=f"{TIER}: {reason}"))


only_namespaces = pytest.mark.skipif(TIER != "namespaces", reason="about the parts of that tier")


@pytest.fixture
def tier():
    """The name of the backend that the tests run on."""
    needs(TIER)
    return TIER


@pytest.fixture
def policy(ws, tier):
    return sp.Policy.workspace_write(ws, backend=tier)


def needs_package(name):
    """Skips where a package is not installed; fails where MUST_WORK names it."""
    try:
        importlib.import_module(name)
    except ImportError:
        (pytest.fail if name.upper() in must_work() else pytest.skip)(f"{name} is not installed")


def on_asyncio(function):
    return asyncio.run(function())


def on_uvloop(function):
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(function())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def on_trio(function):
    import trio

    return trio.run(function)


LOOPS = {"asyncio": on_asyncio, "uvloop": on_uvloop, "trio": on_trio}


@pytest.fixture(scope="session")
def used_loops():
    """libuv keeps a pipe for signals from the first child on."""

    async def once():
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()

    try:
        on_uvloop(once)
    except ImportError:
        pass


def _on(name, _used):
    if name != "asyncio":
        needs_package(name)
    return LOOPS[name]


@pytest.fixture(params=LOOPS)
def loop(request, used_loops):
    """Runs an asynchronous function, on each of the loops."""
    return _on(request.param, used_loops)


@pytest.fixture(params=["asyncio", "uvloop"])
def aloop(request, used_loops):
    """The same, on those that are asyncio's."""
    return _on(request.param, used_loops)


# A test that takes `run`, `sh` or `py` is run in each of these: there is one contract. (Not on uvloop, of which no two may
# spawn at the same time in different threads; it has tests of its own.)
WORLDS = os.environ.get("SANDBOX_TEST_WORLDS", "sync asyncio trio").split()


@pytest.fixture(params=WORLDS)
def world(request):
    """What `sp.run` is called: the synchronous function, or `aio.run` on a loop."""
    if request.param == "sync":
        return sp.run
    on = _on(request.param, None)
    return lambda *args, **kwargs: on(lambda: aio.run(*args, **kwargs))


@pytest.fixture
def run(ws, policy, world):
    """`sp.run`, or `aio.run`, in the workspace with captured text output; other keywords, `policy=` too, as given."""

    def call(args, **kwargs):
        kwargs.setdefault("policy", policy)
        kwargs.setdefault("cwd", ws)
        kwargs.setdefault("capture_output", True)
        kwargs.setdefault("text", True)
        kwargs.setdefault("timeout", 60)
        return world(args, **kwargs)

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


@pytest.fixture
def token():
    """A number of seconds that no other sleep has; whoever sleeps so long must be gone at the end of the test."""
    value = f"600.{uuid.uuid4().int % 10**12}"
    yield value
    assert processes_with(value) == []


@pytest.fixture(autouse=True)
def no_descriptor_leaks():
    """Every test leaves as many open file descriptors as it found."""
    if "landlock" in _backends.names():
        _backends.detect("landlock")  # which keeps two from then on
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
