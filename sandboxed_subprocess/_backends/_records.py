"""The plan as the launcher reads it: a header and records. Both sides name the same version; see `_native/launcher.c`."""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import functools
import os
import struct
from typing import NamedTuple

from .. import danger
from .._plan import Command, Plan
from .._policy import Limits
from ._seccomp import compile_filter

MAGIC = b"sbxplan4"
HEADER = struct.Struct("=8sIIIIIIIiQQQQ24s24s")
_RECORD = struct.Struct("=IIIIQQ")
(ARGV0, EXEC, KEEP, GROUP, RLIMIT, FILTER, SOURCE, BASE, MKDIR, FILE, LINK, TBIND, ATTACH, PROTECT,
 PROC, DEVPTS, RULE, MASK, SEAL, ALIAS, SOCKET, WRAPPER, DATA, CHECK, TIDY, OPTION, PLACE, STREAM) = range(1, 29)  # fmt: skip
# In the header.
NETNS, _UID, _GID, _GROUPS, _SETSID, _SETPGID, LISTENER, WRAPPED, NO_VIEW, ROOT_FILES, RULESET = (1 << bit for bit in range(11))
# In `a` of a record.
READONLY, OPTIONAL, DEVICES, PINNED, FLAT, OURS = 1, 2, 8, 16, 32, 64
# In `b` of a CHECK.
ANYTHING, SAME, MASKED, A_TMPFS, A_PROC, A_DEVPTS, A_NODE, SHOWN = range(8)

_GRACE_MS = 200
_RLIMIT_FSIZE, _RLIMIT_CORE, _RLIMIT_NOFILE = 1, 4, 7


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
    body: bytes, flags: int, command: Command, sources: int, wall: float | None,
    landlock_rights: tuple[int, int, int], tmpfs_size: str, kept: int,
) -> bytes:  # fmt: skip
    return (
        HEADER.pack(
            MAGIC, HEADER.size + len(body), os.getpid(), flags, command.uid or 0, command.gid or 0,
            _GRACE_MS, sources, kept, min(max(1, round(wall * 1000)), 1 << 62) if wall is not None else 0,
            *landlock_rights, tmpfs_size.encode(), b"1048576",
        ) + body
    )  # fmt: skip


@functools.lru_cache(64)
def filter_record(exceptions: tuple[str, ...], notify_connect: bool, shut_truncate: bool, sockets: str = "own") -> bytes:
    program = compile_filter(exceptions, notify_connect, shut_truncate, sockets)
    return record(FILTER, 0, 0, len(program), 0, raw=program)


@functools.lru_cache(64)
def command_records(command: Command, limits: Limits) -> bytes:
    # RLIMIT_CORE 1, not 0: a kernel that pipes cores to a handler, which runs outside and as root, ignores the 0.
    out = [record(ARGV0, 0, 0, 0, 0, command.argv[0]), record(RLIMIT, _RLIMIT_CORE, 0, 1, 1)]
    out += [record(EXEC, 0, 0, 0, 0, path) for path in command.candidates]
    out += [record(KEEP, fd) for fd in command.keep_fds]
    out += [record(GROUP, gid) for gid in command.groups or ()]
    if limits.file_bytes is not None:
        out.append(record(RLIMIT, _RLIMIT_FSIZE, 0, limits.file_bytes, limits.file_bytes))
    if limits.open_files is not None:
        out.append(record(RLIMIT, _RLIMIT_NOFILE, 0, limits.open_files, limits.open_files))
    return b"".join(out)
