"""The `landlock` backend: no namespaces at all. Landlock, the filter, no_new_privs and limits; the tree is ended by a subreaper.

For hosts on which nothing can be mounted. Landlock is a list of what is allowed below a directory: it cannot take out of a
writable root what the policy protects or denies in it, and it does not see who changes a file's mode or owner. Denials
elsewhere are made by allowing everything beside them.
"""

from __future__ import annotations

import sys

assert sys.platform == "linux"

import functools
import os
import select
import stat
import tempfile
from typing import Any, NamedTuple

from .. import _paths
from .._errors import Missing
from .._plan import SOCKET, Access, Feature, Plan
from .._report import Report
from ._channel import ChannelLaunch, missing
from ._descriptors import MOUNTS, RULESETS, Lease, Slot, apart, holds, identity
from ._landlock import IOCTL_DEV, READ_FILE, TRUNCATE, WRITE_FILE, landlock
from ._linux import LauncherBackend, Rendered, launcher, refuse_nesting
from ._records import NETNS, NO_VIEW, OPTIONAL, RULE, RULESET, TIDY, record

_NODES = ("null", "zero", "full", "random", "urandom", "tty")

_UNSEEN = "Landlock does not see it"
INHERENT = {
    Feature.METADATA: _UNSEEN,
    Feature.DENIED_NAMES: "Landlock cannot hide a directory in one that can be listed",
    Feature.DENIED_IN_ROOTS: "Landlock cannot deny inside what it allows",
    Feature.PROTECTED_PATHS: "Landlock cannot deny inside what it allows",
    Feature.PRIVATE_TMP: "nothing can be mounted; TMPDIR names a directory of the run's own",
    Feature.PRIVATE_DEV: "nothing can be mounted; no terminals can be made, and no shared memory by name",
    Feature.LOOPBACK: "there is no network namespace",
    Feature.CHOSEN_SOCKETS: "a filter cannot tell one unix socket from another",
    Feature.PROCESS_LIST: "there is no process namespace",
    Feature.OBSERVE: "the filter answers by itself; there is nobody else whom a command could not reach",
    Feature.ROOT_FILES: "without a user namespace it would be the power over every file of the host",
}


class _Listed(NamedTuple):
    """What a list of what is allowed was made from.

    Attributes:
        directories: those that had to be listed.
        elsewhere: what is allowed outside them.
    """

    directories: tuple[str, ...]
    elsewhere: tuple[str, ...]


class LandlockOnly(LauncherBackend):
    name = "landlock"
    kind = "LinuxLandlock"
    mode = NO_VIEW
    ends_by_group = True  # what got away from init, the kernel ends
    leases = RULESET

    def _claim(self, found: set[Feature], no_listener: str) -> None:
        found |= {Feature.WRITE_RULES, Feature.READ_RULES}
        self.why_not.update(INHERENT)
        # A command that could signal init could outlive the run.
        self._claim_scopes(found, Feature.PROCESSES, Feature.TREE_KILL)
        by_filter = (Feature.NETWORK_NONE, Feature.UNIX_SOCKETS, Feature.ABSTRACT_SOCKETS)
        if Feature.SYSTEM_CALLS in found:
            found.update(by_filter)
        else:
            self.why_not.update(dict.fromkeys(by_filter, self.why_not[Feature.SYSTEM_CALLS]))
        self._listed: dict[int, _Listed] = {}
        self._slot, self._mounts = _kept()

    def sockets(self, no_network: bool) -> str:
        return "none" if no_network else "internet"

    def rights(self, plan: Plan) -> tuple[int, int, int]:
        ll = self._landlock
        return ll.write | READ_FILE, ll.network if plan.policy.network == "none" else 0, ll.scoped

    def key(self, plan: Plan) -> tuple[object, ...]:
        listed = self._listed.get(id(plan.composition))
        directories = listed.directories if listed is not None else ()
        stamps: list[object] = [_paths.settled_stamp(directory) for directory in directories]
        if _paths.UNSETTLED in stamps:
            stamps.append(object())  # equal to nothing: it may have changed, or may yet change, without our seeing it
        return (*super().key(plan), *stamps)

    def lease(self, plan: Plan, rendered: Rendered) -> Lease | None:
        """The ruleset of an earlier run, where its paths still are the files that they were: no directory that had been listed
        has changed, nothing has been mounted, and what lies elsewhere is the same."""
        listed = self._listed.get(id(plan.composition))
        if listed is None or plan.policy.tmp == "private" or _paths.UNSETTLED in rendered.key:
            return None
        elsewhere = [_identity(path) for path in listed.elsewhere]
        return self._slot.lease((rendered.key, rendered.records, self.rights(plan), self._mounts.state(), *elsewhere))

    def flags(self, plan: Plan) -> int:
        return super().flags(plan) & ~NETNS

    def records(self, plan: Plan) -> tuple[bytes, int]:
        allowed, expanded = allow_list(plan, self._landlock.write)
        if len(self._listed) > 256:
            self._listed.clear()
        known = set(expanded)
        elsewhere = [path for path, _ in allowed if os.path.dirname(path) not in known]
        self._listed[id(plan.composition)] = _Listed(tuple(expanded), tuple(elsewhere))
        return b"".join(record(RULE, OPTIONAL, 0, rights, 0, os.fsencode(path)) for path, rights in allowed), 0

    def late_records(self, plan: Plan, program: int, taken: set[int], cleanup: list[str]) -> bytes:
        if plan.policy.tmp != "private":
            return b""
        path = os.path.realpath(tempfile.mkdtemp(prefix="sandbox-", dir="/tmp"))
        cleanup.append(path)
        command = plan.command
        if command.uid is not None or command.gid is not None:
            os.chown(path, -1 if command.uid is None else command.uid, -1 if command.gid is None else command.gid)
        text = os.fsencode(path)
        rights = self._landlock.write & ~IOCTL_DEV | READ_FILE
        return record(RULE, 0, 0, rights, 0, text) + record(TIDY, 0, 0, 0, 0, text)

    def launch(self, plan: Plan, report: Report, **parts: Any) -> ChannelLaunch:
        # First: once it is made, a launch owns its descriptors.
        environ = self._environ(plan, parts["cleanup"])
        launch = super().launch(plan, report, subreaper=True, **parts)
        launch.environ = environ
        return launch

    def _environ(self, plan: Plan, cleanup: list[str]) -> dict[bytes, bytes]:
        """The command's, with TMPDIR naming what is there instead of a private /tmp."""
        environ = dict(plan.surroundings.environ)
        view = plan.view
        tmp = view.tmp_source or next(iter(cleanup), "")
        for name in (b"TMPDIR", b"TEMP", b"TMP"):
            # An environment that was given in full and has none stays as it is; there is one in every other.
            value = os.fsdecode(environ.get(name, b""))
            rule = plan.composition.decide(_paths.resolve(value).real) if os.path.isabs(value) else None
            if tmp and value and (rule is None or rule.access is not Access.WRITE):
                environ[name] = os.fsencode(tmp)
        if os.fsdecode(environ.get(b"XDG_RUNTIME_DIR", b"")) in plan.surroundings.private_dirs:
            environ.pop(b"XDG_RUNTIME_DIR", None)
        return environ


def allow_list(plan: Plan, write: int) -> tuple[list[tuple[str, int]], list[str]]:
    """What the policy comes to as a list of what is allowed, and the directories that had to be listed for it.

    Around something denied each of its siblings is allowed, and each of its parents' siblings. What appears beside it later
    cannot be read by a run that has begun.
    """
    roots = [r.path for r in plan.rules if r.access is Access.WRITE and r.rank > 0]
    denied = {
        r.path
        for r in plan.rules
        if r.access is Access.DENY
        and r.why != SOCKET
        and r.path not in plan.composition.absent
        and not any(_paths.is_within(r.path, root) for root in roots)
    }
    denied |= {"/dev", *plan.view.private}
    leading = {above for path in denied for above in _above(path)}
    everything = write & ~IOCTL_DEV | READ_FILE
    found: dict[str, int] = {}
    expanded: list[str] = []

    def allow(path: str, rights: int) -> None:
        found[path] = found.get(path, 0) | rights

    def allow_reads(path: str) -> None:
        if path in denied:
            return
        if path not in leading:
            allow(path, READ_FILE)
            return
        expanded.append(path)
        try:
            with os.scandir(path) as entries:
                # A link leads to something with rules of its own.
                names = [entry.name for entry in entries if not entry.is_symlink()]
        except OSError:
            return  # not to be listed by us; then nothing in it is allowed
        for name in names:
            allow_reads(f"{path.rstrip('/')}/{name}")

    allow_reads("/")
    for rule in plan.rules:
        if rule.access is Access.DENY or rule.rank < 0 or rule.why == "unix_sockets=":
            continue
        if rule.access is Access.WRITE:
            allow(rule.path, everything)
        else:
            above = max((path for path in denied if _paths.is_within(rule.path, path)), key=len, default=None)
            # Something shown again inside what is denied: all of it, but for what is denied in it. What is protected by its
            # name must not become visible by that.
            if above is not None and (rule.reveals == "denied" or (rule.reveals and above in plan.view.private)):
                allow_reads(rule.path)
    for path in _paths.SHOWN:
        real = _paths.resolve(path).real
        if os.path.exists(real):
            allow(real, READ_FILE)
    for path in (*(f"/dev/{name}" for name in _NODES), *plan.view.devices):
        allow(path, READ_FILE | write & (WRITE_FILE | IOCTL_DEV | TRUNCATE))
    return [(path, rights) for path, rights in found.items() if _can_have_a_rule(path)], expanded


def _above(path: str) -> list[str]:
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(path)
    return found


def _identity(path: str) -> tuple[int, int] | None:
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_dev, st.st_ino


class _Mounts:
    """Tells whether something has been mounted since, or the process has gone to another view."""

    def __init__(self) -> None:
        self._generation = 0
        self._open()

    def _open(self) -> None:
        # The kernel tells each who has it open of a change once (proc_pid_mountinfo(5)), so a forked child needs its own.
        self._owner = os.getpid()
        self._fd = apart(os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC), MOUNTS)
        self._identity = identity(self._fd)
        self._poller = select.poll()
        self._poller.register(self._fd, select.POLLPRI)

    def state(self) -> tuple[object, ...]:
        """
        Raises:
            OSError: no file descriptors left.
        """
        if self._owner != os.getpid() or not holds(self._fd, self._identity):
            # A number that is not ours any more is left alone; a parent's is closed with the child.
            self._generation += 1
            self._open()
        if self._poller.poll(0):
            self._generation += 1
        return self._generation, os.readlink("/proc/self/ns/mnt"), _identity("/")


@functools.lru_cache(1)
def _kept() -> tuple[Slot, _Mounts]:
    """
    Raises:
        OSError: no file descriptors left, or no /proc.
    """
    return Slot(RULESETS), _Mounts()


def _can_have_a_rule(path: str) -> bool:
    try:
        return not stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False  # gone since


def detect() -> LandlockOnly:
    """Tries it, with the launcher itself as a command.

    Raises:
        Missing: there is no Landlock, or the step that failed.
    """
    path = launcher()
    ll = landlock()
    if not ll.write:
        raise Missing(ll.missing, "A kernel with Landlock is needed (Linux 5.19, and landlock in its lsm= list)")
    try:
        found = LandlockOnly(path, ll)
    except OSError as error:
        raise Missing(f"/proc/self/mountinfo cannot be kept open ({error.strerror})", transient=True) from None
    failure = found.trial(record(RULE, 0, 0, ll.write & ~IOCTL_DEV, 0, b"/"), 0)
    if failure is not None:
        refuse_nesting(failure)
        raise missing(failure, path)
    return found
