"""Which Landlock rights this kernel can handle. Shared by the Linux backends.

The file system rights and the ABI come from the `landlock` package; what it does not know (network, scopes) is here.
Source: docs.kernel.org/userspace-api/landlock.html.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import functools
from typing import NamedTuple

WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0
SCOPE_SIGNAL = 1 << 1


class Landlock(NamedTuple):
    """Rights by ABI. `write` is what changes something; reading and executing are left to the mounts.

    Attributes:
        abi: 0 where there is no Landlock, with the reason in `missing`.
        write: all rights of change, TRUNCATE and IOCTL_DEV included where the ABI has them.
        scoped: signals and abstract sockets, where the ABI has them.
        network: binding and connecting by TCP, where the ABI has them.
    """

    abi: int
    write: int = 0
    scoped: int = 0
    missing: str = ""
    network: int = 0


@functools.lru_cache(1)
def landlock() -> Landlock:
    """What this kernel offers. ABI 1 counts as nothing: it refuses every rename between directories."""
    import ctypes

    try:
        import landlock as package
        from landlock.plumbing import FSAccess
    except (ImportError, AttributeError) as error:
        return Landlock(0, missing=f"the Python package landlock cannot be used ({error})")
    # The package takes any errno that it finds for a failure of its own, a stale one too.
    ctypes.set_errno(0)
    try:
        abi = int(package.landlock_abi_version())
    except OSError as error:
        return Landlock(0, missing=f"this kernel has no Landlock ({error.strerror})")
    if abi < 2:
        return Landlock(abi, missing=f"Landlock ABI {abi} refuses renames between directories; ABI 2 (Linux 5.19) does not")
    ctypes.set_errno(0)
    write = int(FSAccess.all()) & ~int(FSAccess.EXECUTE | FSAccess.READ_FILE | FSAccess.READ_DIR)
    scoped = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0
    return Landlock(abi, write, scoped, network=BIND_TCP | CONNECT_TCP if abi >= 4 else 0)
