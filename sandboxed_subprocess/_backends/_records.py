"""The plan as the launcher reads it: a header and records. Both sides name the same version; see `_native/launcher.c`."""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import functools
import math
import os
import struct
from typing import NamedTuple

from .. import danger
from .._plan import Command, Plan
from .._policy import Limits
from ._seccomp import Observed, compile_observing

MAGIC = b"sbxplan7"
HEADER = struct.Struct("=8sIIIIIIIiQQQQ24s24s")
_RECORD = struct.Struct("=IIIIQQ")
(ARGV0, EXEC, KEEP, GROUP, RLIMIT, FILTER, SOURCE, BASE, MKDIR, FILE, LINK, TBIND, ATTACH, PROTECT,
 PROC, DEVPTS, RULE, MASK, SEAL, ALIAS, SOCKET, WRAPPER, DATA, CHECK, TIDY, OPTION, PLACE,
 LIMIT, OBSERVE, CGROUP) = range(1, 31)  # fmt: skip
# In the header.
(NETNS, _UID, _GID, _GROUPS, _SETSID, _SETPGID, LISTENER, WRAPPED, NO_VIEW, ROOT_FILES, RULESET,
 OBSERVES) = (1 << bit for bit in range(12))  # fmt: skip
# In `a` of a record.
READONLY, OPTIONAL, DEVICES, PINNED, FLAT, OURS = 1, 2, 8, 16, 32, 64
# In `b` of a CHECK.
ANYTHING, SAME, MASKED, A_TMPFS, A_PROC, A_DEVPTS, A_NODE, SHOWN = range(8)

_GRACE_MS = 200
_RLIMIT_CPU, _RLIMIT_FSIZE, _RLIMIT_CORE, _RLIMIT_NPROC, _RLIMIT_NOFILE = 0, 1, 4, 6, 7
# In `a` of a LIMIT; the names are those of `Limits`.
TREE_LIMITS = ("", "wall_seconds", "memory_bytes", "processes", "processes", "written_bytes", "cpu_seconds")
WALL, _MEMORY, _PROCESSES, THREADS, _WRITTEN, CPU = range(1, 7)


class Op(NamedTuple):
    """One record before it is encoded. What the numbers mean depends on its kind."""

    kind: int
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    texts: tuple[bytes, ...] = ()
    raw: bytes = b""


def op(kind: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, *texts: bytes, raw: bytes = b"") -> Op:
    return Op(kind, a, b, c, d, texts, raw)


def encode(record: Op) -> bytes:
    tail = b"".join([text + b"\0" for text in record.texts]) + record.raw
    tail += b"\0" * (-len(tail) % 8)
    return _RECORD.pack(record.kind, 24 + len(tail), record.a, record.b, record.c, record.d) + tail


def record(kind: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, *texts: bytes, raw: bytes = b"") -> bytes:
    return encode(Op(kind, a, b, c, d, texts, raw))


def command_flags(plan: Plan) -> int:
    """What the header says of the command and its network."""
    command = plan.command
    flags = NETNS if plan.policy.network == "none" else 0
    flags |= _UID if command.uid is not None else 0
    flags |= _GID if command.gid is not None else 0
    flags |= _GROUPS if command.groups is not None else 0
    flags |= _SETSID if command.session else 0
    flags |= _SETPGID if command.group_leader else 0
    if danger.ROOT_FILE_ACCESS in plan.policy.write and os.geteuid() == 0 and not command.uid:
        flags |= ROOT_FILES
    return flags


def header(
    body: bytes, flags: int, command: Command, sources: int, event_seconds: float | None,
    landlock_rights: tuple[int, int, int], tmpfs_size: str, tmpfs_inodes: int, kept: int,
) -> bytes:  # fmt: skip
    return (
        HEADER.pack(
            MAGIC, HEADER.size + len(body), os.getpid(), flags, command.uid or 0, command.gid or 0,
            _GRACE_MS, sources, kept, _milliseconds(event_seconds) if event_seconds is not None else 0,
            *landlock_rights, tmpfs_size.encode(), b"%d" % tmpfs_inodes,
        ) + body
    )  # fmt: skip


def _milliseconds(seconds: float) -> int:
    return min(max(1, round(seconds * 1000)), 1 << 62)


@functools.lru_cache(64)
def filter_record(
    exceptions: tuple[str, ...], notify: bool, shut_truncate: bool, sockets: str = "own", count_writes: bool = False,
    look_into: bool = False, observe: bool = False,
) -> bytes:
    program, observed = compile_observing(exceptions, notify, shut_truncate, sockets, count_writes, look_into, observe)
    return record(FILTER, 0, 0, len(program), 0, raw=program) + b"".join(map(_observed_records, observed))


def _observed_records(call: Observed) -> bytes:
    """One for each file that it names; the conditions stand in the first."""
    conditions = b"".join(
        struct.pack("=Q", len(group)) + b"".join(struct.pack("=QQQ", *condition) for condition in group)
        for group in call.refused
    )
    packed = [does | directory << 8 | path << 16 | flags << 24 for does, directory, path, flags in call.how]
    raws = [conditions, *[b""] * (len(packed) - 1)]
    return b"".join(record(OBSERVE, call.number, b, len(raw), 0, raw=raw) for b, raw in zip(packed, raws, strict=True))


@functools.lru_cache(64)
def command_records(command: Command, limits: Limits, counted: bool) -> bytes:
    """
    Args:
        counted: RLIMIT_NPROC counts what is in the sandbox only.
    """
    # RLIMIT_CORE 1, not 0: a kernel that pipes cores to a handler, which runs outside and as root, ignores the 0.
    out = [record(ARGV0, 0, 0, 0, 0, command.argv[0]), record(RLIMIT, _RLIMIT_CORE, 0, 1, 1)]
    out += [record(EXEC, 0, 0, 0, 0, path) for path in command.candidates]
    out += [record(KEEP, fd) for fd in command.keep_fds]
    out += [record(GROUP, gid) for gid in command.groups or ()]
    if limits.file_bytes is not None:
        out.append(record(RLIMIT, _RLIMIT_FSIZE, 0, limits.file_bytes, limits.file_bytes))
    if limits.open_files is not None:
        out.append(record(RLIMIT, _RLIMIT_NOFILE, 0, limits.open_files, limits.open_files))
    out += [record(LIMIT, which, 0, value) for which, value in tree_limits(limits)]
    if limits.cpu_seconds is not None:
        # One process alone gets SIGXCPU, which it may handle, and a second later SIGKILL; with 1 and 1 that comes at once.
        seconds = math.ceil(limits.cpu_seconds)
        out.append(record(RLIMIT, _RLIMIT_CPU, 0, seconds, seconds + 1))
    if limits.processes is not None and counted:
        # A moment later than init, which ends the run; but whatever happens, no more than that are made.
        most = threads_of(limits.processes) + 64
        out.append(record(RLIMIT, _RLIMIT_NPROC, 0, most, most))
    return b"".join(out)


_GROUP_OTHERS = 8  # threads of the launcher's own, and of bubblewrap's, in the group


def group_record(limits: Limits, place: str, holds: bool, own: str) -> bytes:
    """
    Args:
        place, holds, own: see `_groups.Place`.
    """
    # Above the limits, by which init goes: the run is ended then, where the kernel would only refuse. The kernel also counts
    # what it needs itself, of which stacks and tasks are most, and what it keeps of files.
    threads = threads_of(limits.processes) if limits.processes is not None else 1024
    memory = pids = 0
    if holds and limits.memory_bytes is not None:
        memory = limits.memory_bytes + limits.memory_bytes // 8 + (4 << 20) + threads * (32 << 10)
    if holds and limits.processes is not None:
        pids = threads + 1 + _GROUP_OTHERS
    return record(CGROUP, 0, 0, memory, pids, os.fsencode(place), os.fsencode(own))


def threads_of(processes: int) -> int:
    """How many threads that many processes may have together: a JVM or a node has a few dozen, and 256 for one are a bomb."""
    return max(256, 16 * processes)


def tree_limits(limits: Limits) -> list[tuple[int, int]]:
    """(number, value) as the launcher counts: milliseconds, bytes, processes, threads, bytes, microseconds."""
    found = []
    if limits.wall_seconds is not None:
        found.append((WALL, _milliseconds(limits.wall_seconds)))
    if limits.memory_bytes is not None:
        found.append((_MEMORY, limits.memory_bytes))
    if limits.processes is not None:
        found += [(_PROCESSES, limits.processes), (THREADS, threads_of(limits.processes))]
    if limits.written_bytes is not None:
        found.append((_WRITTEN, limits.written_bytes))
    if limits.cpu_seconds is not None:
        found.append((CPU, min(max(1, round(limits.cpu_seconds * 1e6)), 1 << 62)))
    return found
