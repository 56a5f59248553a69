"""The network namespace between two runs. Linux only, shared by the backends that make namespaces.

Making a network namespace, and the user namespace that owns it, is half the price of a sandbox, and the kernel takes them
apart one at a time. So one pair is kept and used again, if the launcher has found it as it was made: nobody inside, no
socket left, and no packet ever sent. Two runs are never in it at the same time.
"""

from __future__ import annotations

import fcntl
import os
import sys

assert sys.platform == "linux"

_NUMBER = 32
Identity = tuple[int, int]
Owner = tuple[int, int, int]


class Slot:
    """One open descriptor for the life of the process, so that the count of a program's descriptors does not depend on
    whether it has run something yet. It holds an empty memfd, or the namespace.

    The descriptor may be closed by a program that closes all it does not know, and its number be given to something else:
    then it is not touched any more.
    """

    def __init__(self) -> None:
        # At most one entry: who holds it has the slot for itself. A list because pop() and append() are atomic; no lock,
        # which a signal handler or __del__ could meet while it is held.
        self._free: list[tuple[Identity, Owner | None]] = []
        self.fd = -1
        try:
            empty = os.memfd_create("sandboxed_subprocess", os.MFD_CLOEXEC)
            try:
                self.fd = fcntl.fcntl(empty, fcntl.F_DUPFD_CLOEXEC, _NUMBER)
            finally:
                os.close(empty)
        except (OSError, AttributeError):
            return  # no descriptor left, or no such call: every run makes a namespace of its own
        self._free.append((_identity(self.fd), None))

    def lease(self) -> Lease | None:
        """The slot, for one run; None where another one has it."""
        try:
            found, owner = self._free.pop()
        except IndexError:
            return None
        return Lease(self, found, owner) if self.holds(found) else None  # not ours any more: None for ever

    def holds(self, what: Identity) -> bool:
        try:
            return _identity(self.fd) == what
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
        slot.free(_identity(fd), owner)


def _identity(fd: int) -> Identity:
    st = os.fstat(fd)
    return st.st_dev, st.st_ino


def _owner() -> Owner:
    """Who may use a namespace again: its maps are made for one user, and a forked child is not its parent."""
    return os.getpid(), os.geteuid(), os.getegid()
