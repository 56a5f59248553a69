"""Descriptors that this process keeps, and the numbers of those that it passes on. Linux only.

Two are kept from the import on, so that the count of a program's descriptors does not depend on whether it has run something
yet: one for the launcher, which is then executed whatever may lie at its path later, and one for what the next run can use
again. Either may be closed by a program that closes all it does not know, and its number be given to something else; each is
compared (device, inode, and a mark) before it is used, and then left alone. Where Landlock is all there is, two more are kept
from the first run on.
"""

from __future__ import annotations

import fcntl
import os
import sys

from .. import _native

assert sys.platform == "linux"

_SLOT, _PROGRAM, RULESETS, MOUNTS = 32, 34, 36, 38
# All of the kernel's nameless files have one inode. A ruleset is told from the others by the signal that it would send, were
# there ever something to read from it (fcntl(2), F_SETSIG).
_MARK = 63
Identity = tuple[int, int]
Owner = tuple[int, int, int]
_Content = tuple[tuple[int, int, int], "Owner | None", object]


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


def holds(fd: int, what: Identity) -> bool:
    try:
        return identity(fd) == what
    except OSError:
        return False


def hold(path: str) -> int:
    """A descriptor of a program for the life of the process; -1 where there is none, or no number left for it."""
    try:
        return apart(os.open(path, os.O_PATH | os.O_CLOEXEC), _PROGRAM)
    except OSError:
        return -1


class Slot:
    """Where something dear waits for the next run. Holds an empty memfd, a network namespace, or a Landlock ruleset.

    Making a network namespace, and the user namespace that owns it, is half the price of a sandbox, and the kernel takes them
    apart one at a time. So one pair is kept and used again, if the launcher has found it as it was made: nobody inside, no
    socket left, and no packet ever sent. Two runs are never in it at the same time.

    A ruleset is a few hundred opened paths. It is kept as long as every path means the same file; nobody can change one whom
    it restricts.
    """

    def __init__(self, number: int) -> None:
        # At most one entry: who holds it has the slot for itself. A list because pop() and append() are atomic; no lock,
        # which a signal handler or __del__ could meet while it is held.
        self._free: list[_Content] = []
        self.fd = -1
        try:
            empty = os.memfd_create("sandboxed_subprocess", os.MFD_CLOEXEC)
            try:
                self.fd = fcntl.fcntl(empty, fcntl.F_DUPFD_CLOEXEC, number)
            finally:
                os.close(empty)
        except (OSError, AttributeError):
            return  # no descriptor left, or no such call: every run makes a namespace of its own
        self._free.append((self.content(), None, None))

    def lease(self, label: object) -> Lease | None:
        """The slot, for one run; None where another one has it.

        Args:
            label: what the run could use; what is there under another label is for others.
        """
        try:
            held = self._free.pop()
        except IndexError:
            return None
        return Lease(self, held, label) if self.holds(held) else None  # not ours any more: None for ever

    def content(self) -> tuple[int, int, int]:
        return (*identity(self.fd), fcntl.fcntl(self.fd, fcntl.F_GETSIG))

    def holds(self, held: _Content) -> bool:
        try:
            return self.content() == held[0]
        except OSError:
            return False

    def free(self, held: _Content) -> None:
        self._free.append(held)


class Lease:
    """The right to use, and to change, what is in the slot.

    Attributes:
        fd: the descriptor of what can be used again; -1 where there is nothing that this run may use.
    """

    def __init__(self, slot: Slot, held: _Content, label: object) -> None:
        self._slot = slot
        self._held = held
        self._label = label
        _, owner, known = held
        self.fd = slot.fd if owner == _owner() and known == label else -1

    def end(self, again: int) -> None:
        """Gives the slot back.

        Args:
            again: the descriptor of what the next run can use, which stays the caller's to close; or -1.
        """
        slot = self._slot
        if again == self.fd:  # both -1, too: there was nothing in it for us, and there is nothing to put in
            slot.free(self._held)
        elif again >= 0:
            self._replace(again, _owner())
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
        if not slot.holds(self._held):
            return
        try:
            if owner is not None:
                fcntl.fcntl(fd, fcntl.F_SETSIG, _MARK)
            os.dup2(fd, slot.fd, inheritable=False)
        except OSError:
            return  # RLIMIT_NOFILE has been lowered below its number; like a slot that was closed
        slot.free((slot.content(), owner, self._label if owner is not None else None))


def _owner() -> Owner:
    """Who may use a namespace again: its maps are made for one user, and a forked child is not its parent."""
    return os.getpid(), os.geteuid(), os.getegid()


launcher_fd = hold(_native.PATH)
slot = Slot(_SLOT)
