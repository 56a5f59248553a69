"""Descriptors that this process keeps, and the numbers of those that it passes on. Linux only.

Two are kept from the import on, so that the count of a program's descriptors does not depend on whether it has run something
yet: one for the launcher, which is then executed whatever may lie at its path later, and one for the network namespace
between two runs. Either may be closed by a program that closes all it does not know, and its number be given to something
else; each is compared (device and inode) before it is used, and then left alone.
"""

from __future__ import annotations

import fcntl
import os
import sys

from .. import _native

assert sys.platform == "linux"

_SLOT, _PROGRAM = 32, 34
Identity = tuple[int, int]
Owner = tuple[int, int, int]


def apart(fd: int, number: int) -> int:
    """The same descriptor at a number of at least `number`, so that no two that Popen passes on are neighbours, and 3 is not
    among them: with such gaps CPython closes all others by a few close_range() calls, and without (the range between two
    neighbours is empty, which is EINVAL) by reading /proc/self/fd; see _close_range_except in _posixsubprocess.c."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, number)
    except OSError:
        return above_stdio(fd)  # the limit of descriptors is lower than that
    os.close(fd)
    return moved


def above_stdio(fd: int) -> int:
    """With 0-2 closed in the caller new descriptors get those numbers, and Popen's dup2 would write over them."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def identity(fd: int) -> Identity:
    st = os.fstat(fd)
    return st.st_dev, st.st_ino


def hold(path: str) -> int:
    """A descriptor of a program for the life of the process; -1 where there is none, or no number left for it."""
    try:
        return apart(os.open(path, os.O_PATH | os.O_CLOEXEC), _PROGRAM)
    except OSError:
        return -1


class Slot:
    """Where a network namespace waits for the next run. Holds an empty memfd, or the namespace.

    Making a network namespace, and the user namespace that owns it, is half the price of a sandbox, and the kernel takes them
    apart one at a time. So one pair is kept and used again, if the launcher has found it as it was made: nobody inside, no
    socket left, and no packet ever sent. Two runs are never in it at the same time.
    """

    def __init__(self) -> None:
        # At most one entry: who holds it has the slot for itself. A list because pop() and append() are atomic; no lock,
        # which a signal handler or __del__ could meet while it is held.
        self._free: list[tuple[Identity, Owner | None]] = []
        self.fd = -1
        try:
            empty = os.memfd_create("sandboxed_subprocess", os.MFD_CLOEXEC)
            try:
                self.fd = fcntl.fcntl(empty, fcntl.F_DUPFD_CLOEXEC, _SLOT)
            finally:
                os.close(empty)
        except (OSError, AttributeError):
            return  # no descriptor left, or no such call: every run makes a namespace of its own
        self._free.append((identity(self.fd), None))

    def lease(self) -> Lease | None:
        """The slot, for one run; None where another one has it."""
        try:
            found, owner = self._free.pop()
        except IndexError:
            return None
        return Lease(self, found, owner) if self.holds(found) else None  # not ours any more: None for ever

    def holds(self, what: Identity) -> bool:
        try:
            return identity(self.fd) == what
        except OSError:
            return False

    def free(self, content: Identity, owner: Owner | None) -> None:
        self._free.append((content, owner))


class Lease:
    """The right to use, and to change, what is in the slot.

    Attributes:
        fd: the descriptor of a namespace; -1 where there is none that this process may use.
    """

    def __init__(self, slot: Slot, content: Identity, owner: Owner | None) -> None:
        self._slot = slot
        self._content = content
        self._owner = owner
        self.fd = slot.fd if owner == _owner() else -1

    def end(self, untouched: int) -> None:
        """Gives the slot back.

        Args:
            untouched: the descriptor of a namespace for the next run, which stays the caller's to close; or -1.
        """
        slot = self._slot
        if untouched == self.fd:  # both -1, too: there was nothing in it for us, and there is nothing to put in
            slot.free(self._content, self._owner)
        elif untouched >= 0:
            self._replace(untouched, _owner())
        else:
            try:
                empty = os.memfd_create("sandboxed_subprocess", os.MFD_CLOEXEC)
            except OSError:
                return  # no descriptor left: what the run had touched stays, and is not used any more
            try:
                self._replace(empty, None)
            finally:
                os.close(empty)

    def _replace(self, fd: int, owner: Owner | None) -> None:
        slot = self._slot
        if not slot.holds(self._content):
            return
        try:
            os.dup2(fd, slot.fd, inheritable=False)
        except OSError:
            return  # RLIMIT_NOFILE has been lowered below its number; like a slot that was closed
        slot.free(identity(fd), owner)


def _owner() -> Owner:
    """Who may use a namespace again: its maps are made for one user, and a forked child is not its parent."""
    return os.getpid(), os.geteuid(), os.getegid()


launcher_fd = hold(_native.PATH)
slot = Slot()
