"""Control groups of the second kind (cgroup v2): whether this process was given a place where it may make one for a run.

Made there, a group is the kernel's own limit of memory and threads, and its own count of processor time. Nobody has to give us
one: without, the launcher looks at /proc (`_native/usage.h`).

Sources: docs.kernel.org/admin-guide/cgroup-v2.html ("Delegation", "No Internal Process Constraint"); man 7 cgroups; man 5 proc
(mountinfo).
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import functools
import os
import re
import time
from typing import NamedTuple

_NAME = "sandboxed-subprocess-"
_NEEDED = {"memory", "pids"}
# As systemd marks what it has delegated (systemd.io/CGROUP_DELEGATION): without, a group is its manager's, whoever owns it.
_MARKS = ("user.delegate", "trusted.delegate")
# What is set to anything but this bounds all below it, or sets it apart: a command must not get out of that.
_UNBOUNDED = {
    "memory.max": "max", "memory.high": "max", "memory.swap.max": "max", "memory.swap.high": "max", "memory.zswap.max": "max",
    "pids.max": "max", "cpu.max": "max 100000", "cpu.weight": "100", "cpu.idle": "0", "cpu.uclamp.max": "max", "cpuset.cpus": "",
    "cpuset.mems": "", "cpuset.cpus.exclusive": "", "io.max": "", "io.weight": "default 100", "io.latency": "", "rdma.max": "",
    "misc.max": "", "cgroup.freeze": "0",
}  # fmt: skip
_OLD = 60  # seconds after which a group that nobody is in was left behind
_TRUSTED = 1.0  # seconds for which it is not looked at again: bounds may be set at any time, and a look is a dozen files


class Place(NamedTuple):
    """A directory in which groups may be made.

    Attributes:
        holds: their memory and their threads can be limited. Without that, they count and end what is in them.
        own: the group of this process, as /proc says it: a child that has been moved elsewhere is not to be brought back.
    """

    path: str
    holds: bool
    own: str


def place() -> Place | None:
    """Where this process may make groups for what it starts, or None. See `why_not`."""
    found = _look()
    return found if isinstance(found, Place) else None


def why_not() -> str:
    """What keeps control groups from being used here; empty where they are."""
    found = _look()
    if isinstance(found, str):
        return found
    return "" if found.holds else f"{found.path} cannot hand on the controllers of memory and pids"


def _look() -> Place | str:
    mounted = _mount()
    if mounted is None:
        return "no control groups of the second kind (cgroup v2) are mounted here"
    try:
        fd = os.open("/proc/self/cgroup", os.O_RDONLY | os.O_CLOEXEC)  # at each launch: a file object would cost twice that
        try:
            text = os.read(fd, 65536)
        finally:
            os.close(fd)
    except OSError as error:
        return f"/proc/self/cgroup cannot be read ({error.strerror})"
    return _choose(mounted, text, int(time.monotonic() / _TRUSTED))


@functools.lru_cache(1)
def _mount() -> tuple[str, str] | None:
    """(where it is mounted, which group that shows)."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.rstrip("\n").partition(" - ")
                if rest.startswith("cgroup2 "):
                    _, _, _, root, point = fields.split(" ")[:5]
                    return _unescaped(point), _unescaped(root)
    except OSError:
        pass  # no /proc: then there is none for us
    return None


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


@functools.lru_cache(8)
def _choose(mounted: tuple[str, str], own: bytes, when: int = 0) -> Place | str:
    point, root = mounted
    name = next((os.fsdecode(line[3:]) for line in own.split(b"\n") if line.startswith(b"0::")), None)
    if name is None or "/.." in name or "/.." in root:
        return "this process is in none that it can see"
    below = os.path.relpath(name, root)
    if below.startswith(".."):
        return "this process is in none that it can see"
    here = at = os.path.normpath(os.path.join(point, below))
    fallback: Place | str = f"neither {here} nor a group above it was delegated to this user"
    while True:
        is_marked = _is_marked(at)
        if _is_ours(at):
            _hand_on(at, is_marked)
            if set(_read(at, "cgroup.subtree_control").split()) >= _NEEDED and _read(at, "cgroup.type") in ("", "domain"):
                # It hands on; it is ours to use if it, or one above it, was given to us.
                if is_marked or _is_below_marked(at, point):
                    _sweep(at)
                    return Place(at, True, name)
            elif at == here and (is_marked or _is_below_marked(at, point)):
                _sweep(at)
                fallback = Place(at, False, name)
        if at == point or is_marked:
            return fallback
        # On to the next above it, but not out of what somebody has set bounds to.
        bound = next((file for file, usual in _UNBOUNDED.items() if _read(at, file) not in ("", usual)), None)
        if bound is not None:
            return fallback if isinstance(fallback, Place) else f"{bound} of {at} is set"
        at = os.path.dirname(at)


def _is_marked(directory: str) -> bool:
    for mark in _MARKS:
        try:
            if os.getxattr(directory, mark) == b"1":
                return True
        except OSError:
            continue  # not there, or (trusted.*) not for us to see
    return False


def _is_below_marked(directory: str, point: str) -> bool:
    while directory != point:
        directory = os.path.dirname(directory)
        if _is_marked(directory):
            return _is_ours(directory)
    return False


def _hand_on(directory: str, is_marked: bool) -> None:
    """What was delegated, and has nobody in it, is for its user to set up; a service manager leaves it to him."""
    if not is_marked or _read(directory, "cgroup.procs"):
        return
    missing = _NEEDED - set(_read(directory, "cgroup.subtree_control").split())
    if missing and missing <= set(_read(directory, "cgroup.controllers").split()):
        try:
            with open(os.path.join(directory, "cgroup.subtree_control"), "w", encoding="ascii") as file:
                file.write(" ".join(f"+{name}" for name in sorted(missing)))
        except OSError:
            pass  # then they are not handed on, which is looked at next


def _read(directory: str, name: str) -> str:
    """Empty where there is no such file: the root has few, and each controller brings its own."""
    try:
        with open(os.path.join(directory, name), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _is_ours(directory: str) -> bool:
    """As its owner, by its mode (that of the top is 0555): when the launcher removes a group it has no other power left."""
    try:
        procs = os.path.join(directory, "cgroup.procs")
        st = os.stat(directory)
        owners = {st.st_uid, os.stat(procs).st_uid}
    except OSError:
        return False
    if owners != {os.geteuid()} or st.st_mode & 0o300 != 0o300:
        return False
    return os.access(directory, os.W_OK | os.X_OK) and os.access(procs, os.W_OK)


def _sweep(directory: str) -> None:
    """Removes what launchers have left that were killed together with their callers. The kernel removes only what is empty."""
    try:
        with os.scandir(directory) as entries:
            found = [e.path for e in entries if e.name.startswith(_NAME) and time.time() - e.stat().st_mtime > _OLD]
    except OSError:
        return
    for path in found:
        try:
            os.rmdir(path)
        except OSError:
            continue  # somebody is in it, or another process was quicker
