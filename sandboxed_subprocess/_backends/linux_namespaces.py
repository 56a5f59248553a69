"""The `namespaces` backend: our launcher makes all seven namespaces itself. Linux 5.12 and later."""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import errno
import os
import re

from .._plan import Command, Feature, Plan
from ._channel import missing
from ._descriptors import Lease, slot
from ._landlock import landlock
from ._linux import OF_A_VIEW, LauncherBackend, Rendered, launcher, refuse_nesting
from ._records import BASE, NETNS, PROC, READONLY, SOURCE, encode, record
from ._view import render_view


class Namespaces(LauncherBackend):
    name = "namespaces"
    kind = "LinuxNamespaces"

    _by_namespace = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= (5, 14)

    def _claim(self, found: set[Feature], no_listener: str) -> None:
        found |= OF_A_VIEW
        if os.geteuid() == 0:
            found.add(Feature.ROOT_FILES)
        else:
            self.why_not[Feature.ROOT_FILES] = "this process is not root's"
        self._claim_scopes(found, Feature.ABSTRACT_SOCKETS)
        self._claim_sockets(found, no_listener)

    def records(self, plan: Plan) -> tuple[bytes, int]:
        view = render_view(plan, self._landlock)
        return b"".join(map(encode, view)), sum(op.kind == SOURCE for op in view)

    def counts(self, command: Command) -> bool:
        # By user namespace since Linux 5.14, and never for uid 0 (user_namespaces(7), kernel/ucount.c).
        return self._by_namespace and bool(os.geteuid() if command.uid is None else command.uid)

    def lease(self, plan: Plan, rendered: Rendered) -> Lease | None:
        # With an exception a command could leave something in the user namespace: a key, say.
        return slot.lease("network namespace") if plan.policy.network == "none" and not plan.policy.syscall_exceptions else None


def detect() -> Namespaces:
    """Tries it: a sandbox with the launcher itself as its command.

    Raises:
        Missing: with the step that failed, its errno and the way out.
    """
    path = launcher()
    ll = landlock()
    found = Namespaces(path, ll)
    records = record(BASE, 0, 0, 0, 0, b"/dev") + record(PROC, READONLY)
    failure = found.trial(records, NETNS)
    if failure is not None and failure.step == "seccomp" and failure.errno == errno.EBUSY:
        # One filter of a process can have a listener, and something around us has it: a container runtime.
        found = Namespaces(path, ll, "the calling process already has a seccomp listener (EBUSY)")
        failure = found.trial(records, NETNS)
    if failure is not None:
        if failure.step == "clone":
            refuse_nesting(failure)
        raise missing(failure, path)
    return found
