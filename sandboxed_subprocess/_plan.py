"""Plan: a policy resolved on this host for one command. What a backend enforces, and what `explain` reads.

Two stages. A `View` is what a policy alone decides, kept for the life of the process. A `Plan` adds what can differ
at each launch: repositories in the writable roots, sockets of the host, pattern matches, the command, its environment.
"""

from __future__ import annotations

import enum
import os
import re
import stat
import sys
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _paths, danger
from ._errors import PolicyError
from ._policy import Glob, Policy


class Feature(enum.Enum):
    """What a policy can ask of a backend. The value is what a person is told when it is missing."""

    WRITE_RULES = "writes confined to the writable roots"
    METADATA = "permissions, owners and times of files outside the writable roots cannot be changed"
    READ_RULES = "reads denied or confined"
    DENIED_NAMES = "names in denied directories hidden"
    DENIED_IN_ROOTS = "denied paths inside a writable root"
    PROTECTED_PATHS = "read-only paths inside a writable root"
    PRIVATE_TMP = "a private /tmp"
    PRIVATE_DEV = "a private /dev (shared memory, terminals)"
    HOST_FIFOS = "named pipes of the host, and files handed over for reading, cannot be written"
    UNIX_SOCKETS = "unix sockets of the host out of reach"
    CHOSEN_SOCKETS = "chosen unix sockets of the host within reach (unix_sockets=)"
    ABSTRACT_SOCKETS = "abstract unix sockets of the host out of reach"
    NETWORK_NONE = "no network"
    LOOPBACK = "a loopback and unix sockets of its own"
    HOST_RULES = "host rules for the network"
    PUBLISH = "ports published to the host"
    SYSTEM_CALLS = "dangerous system calls refused"
    NO_PRIVILEGES = "no capabilities, no new privileges"
    PROCESSES = "processes outside out of reach"
    PROCESS_LIST = "processes outside invisible"
    ROOT_FILES = "files of every owner for root (danger.ROOT_FILE_ACCESS)"
    TREE_KILL = "the whole tree ends with the command, the caller or kill()"
    LIMIT_MEMORY = "limits.memory_bytes"
    LIMIT_PROCESSES = "limits.processes"
    LIMIT_WRITTEN = "limits.written_bytes"
    LIMIT_FILE = "limits.file_bytes"
    LIMIT_CPU = "limits.cpu_seconds"
    LIMIT_WALL = "limits.wall_seconds"
    LIMIT_FILES = "limits.open_files"
    CACHES = "cache directories (caches=)"
    OBSERVE = "observation of files (observe=)"
    EVENTS = "events (on_event=)"


class Access(enum.IntEnum):
    """What a rule grants at a path and below, until a more specific rule says otherwise."""

    DENY = 0
    READ = 1
    WRITE = 2


class Rule(NamedTuple):
    """One path and what may be done there.

    Attributes:
        path: absolute, without symbolic links in its directories.
        access: see `Access`.
        why: what in the policy it comes from.
        pin: the path itself can be neither moved nor replaced from inside.
        reveals: whether it shows what a denied ("denied") or at least a private ("private") directory hides. What is
            protected by its name, without being asked, must not become visible by that.
        hold: the directories that lead to it, from the root on, stay in their places too.
        show: for a denied file: the (size, mode) that it goes on showing, or None.
    """

    path: str
    access: Access
    why: str
    pin: bool = False
    show: tuple[int, int] | None = None
    reveals: str = ""
    hold: bool = False
    # At one and the same path: denied > protected > writable > readable.
    rank: int = 0


def deny(path: str, why: str) -> Rule:
    return Rule(path, Access.DENY, why, hold=why != SOCKET, rank=3)


def protect(path: str, why: str, reveals: str = "", hold: bool = False) -> Rule:
    return Rule(path, Access.READ, why, pin=True, reveals=reveals, hold=hold, rank=2)


def protect_links(path: str, why: str) -> list[Rule]:
    """A name that may be a link: each link on the way, and what it leads to, there or not."""
    found = _paths.resolve(path)
    return [protect(place, why, hold=True) for place, _ in found.links] + [protect(found.real, why, hold=True)]


SOCKET = "unix socket of the host"


def writable(path: str, why: str) -> Rule:
    return Rule(path, Access.WRITE, why, reveals="denied", rank=1)


def readable(path: str, why: str) -> Rule:
    return Rule(path, Access.READ, why, reveals="denied", rank=0)


def pinned(path: str, why: str) -> Rule:
    """Writable as it was, but it stays where it is."""
    return Rule(path, Access.WRITE, why, pin=True, rank=-1)


def sort_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """One rule for each path, the strongest; parents before children."""
    best: dict[str, Rule] = {}
    for rule in rules:
        known = best.get(rule.path)
        if known is None:
            best[rule.path] = rule
            continue
        winner = rule if rule.rank > known.rank else known
        # The weaker one's decision is lost, but not that the path has to stay where it is.
        best[rule.path] = winner._replace(pin=rule.pin or known.pin, hold=rule.hold or known.hold)
    return tuple(sorted(best.values(), key=lambda r: (r.path.count("/") if r.path != "/" else 0, r.path)))


class Command(NamedTuple):
    """What is to run: the one snapshot that is checked and then executed.

    Attributes:
        argv: as `os.fsencode` makes them; argv[0] is what the program sees as its name.
        candidates: paths that exec is tried on, in order.
        environ: the environment asked for, before the policy.
        keep_fds: inherited besides 0-2.
        uid, gid, groups: to switch to inside, or None.
        session, group_leader: as `start_new_session` and `process_group=0` say.
    """

    argv: tuple[bytes, ...]
    candidates: tuple[bytes, ...]
    keep_fds: tuple[int, ...] = ()
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    session: bool = False
    group_leader: bool = False


class View(NamedTuple):
    """What a policy means on this host, apart from what differs at each launch.

    Attributes:
        roots: real paths of the writable roots.
        given: for each root: (real path, the path in the policy, whether links lead to it).
        rules: from the policy and the lists of secrets, unsorted.
        private: directories that are fresh and empty for each run.
        private_writable: whether they, and /dev/shm, can be written.
        tmp_source: the directory shown as /tmp, or None.
        links: (path, text) of links inside private directories that lead to a root.
        moved: (path, real path) of denied paths that are reached through links, to be looked at again each time.
        homes: where secrets and start-up files were looked for.
        sockets, devices: real paths of what unix_sockets= and devices= name.
    """

    policy: Policy
    roots: tuple[str, ...]
    given: tuple[tuple[str, str, bool], ...]
    rules: tuple[Rule, ...]
    private: tuple[str, ...]
    private_writable: bool
    tmp_source: str | None
    links: tuple[tuple[str, str], ...]
    moved: tuple[tuple[str, str], ...]
    homes: tuple[str, ...]
    sockets: tuple[str, ...]
    devices: tuple[str, ...]
    features: frozenset[Feature]


class Watch(NamedTuple):
    """What the host would trust after a run, and so is compared with the time before it; see `_launch.Quarantine`.

    Attributes:
        directories: (directory, names in it that must not appear).
        same: paths that exist, and whose directories must be the same ones afterwards.
        absent: paths that do not exist and must not appear.
        roots: where a bare repository must not appear.
    """

    directories: tuple[tuple[str, frozenset[str]], ...] = ()
    same: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()


class Composition(NamedTuple):
    """The rules of a view at one moment. The same object for as long as nothing on the host has changed.

    Attributes:
        rules: sorted, one for each path, parents first.
        absent: paths of rules that do not exist now.
        watch: what is compared when the run is over.
        files: (path, content) to provide inside.
        notes: for the report.
    """

    view: View
    rules: tuple[Rule, ...]
    absent: frozenset[str]
    watch: Watch
    files: tuple[tuple[str, bytes], ...]
    notes: tuple[str, ...]

    def decide(self, path: str) -> Rule | None:
        """The rule that governs a real path; None where only the default (readable, not writable) does."""
        best = None
        for rule in self.rules:
            if _paths.is_within(path, rule.path):
                best = rule
        return best


class Surroundings(NamedTuple):
    """The environment as the command gets it, and the directories that it names.

    Attributes:
        environ: complete, markers included, encoded.
        private_dirs: directories (0700) that must exist inside the private ones, writable.
    """

    environ: dict[bytes, bytes]
    private_dirs: tuple[str, ...]


class Plan(NamedTuple):
    """Everything a backend needs, and nothing it has to decide.

    Attributes:
        pins: root -> (device, inode).
        dropped: names of variables that the command does not see.
    """

    composition: Composition
    command: Command
    pins: tuple[tuple[str, tuple[int, int]], ...]
    surroundings: Surroundings
    dropped: tuple[str, ...]

    @property
    def view(self) -> View:
        return self.composition.view

    @property
    def policy(self) -> Policy:
        return self.composition.view.policy

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self.composition.rules


def required_features(policy: Policy) -> frozenset[Feature]:
    if policy.unconfined:
        return frozenset()
    needed = {
        Feature.WRITE_RULES,
        Feature.METADATA,
        Feature.READ_RULES,
        Feature.DENIED_NAMES,
        Feature.PRIVATE_DEV,
        Feature.HOST_FIFOS,
        Feature.UNIX_SOCKETS,
        Feature.SYSTEM_CALLS,
        Feature.NO_PRIVILEGES,
        Feature.PROCESSES,
        Feature.PROCESS_LIST,
        Feature.TREE_KILL,
    }
    if policy.unix_sockets:
        needed.add(Feature.CHOSEN_SOCKETS)
    if danger.ROOT_FILE_ACCESS in policy.write:
        needed.add(Feature.ROOT_FILES)
    if policy.write:
        needed.add(Feature.PROTECTED_PATHS)
    if policy.tmp != "shared":
        needed.add(Feature.PRIVATE_TMP)
    network = policy.host_rules
    if network == "none":
        needed |= {Feature.NETWORK_NONE, Feature.LOOPBACK}
    elif isinstance(network, tuple):
        needed.add(Feature.HOST_RULES)
    else:
        needed.add(Feature.ABSTRACT_SOCKETS)
    for field, feature in (
        ("memory_bytes", Feature.LIMIT_MEMORY),
        ("processes", Feature.LIMIT_PROCESSES),
        ("written_bytes", Feature.LIMIT_WRITTEN),
        ("file_bytes", Feature.LIMIT_FILE),
        ("cpu_seconds", Feature.LIMIT_CPU),
        ("wall_seconds", Feature.LIMIT_WALL),
        ("open_files", Feature.LIMIT_FILES),
    ):
        if getattr(policy.limits, field) is not None:
            needed.add(feature)
    if policy.caches:
        needed.add(Feature.CACHES)
    if policy.observe:
        needed.add(Feature.OBSERVE)
    if policy.on_event is not None:
        needed.add(Feature.EVENTS)
    if policy.publish:
        needed.add(Feature.PUBLISH)
    return frozenset(needed)


# -- stage one: the view ------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_views: dict[tuple[Any, ...], View] = {}
_granted: dict[str, None] = {}
"""Every writable root of this process: a link in one of them may have been planted by a command."""

# What a dynamically linked program of the system needs to start, on every distribution.
_MINIMAL = frozenset("bin sbin lib lib32 lib64 libx32 libexec usr etc nix gnu dev proc sys run tmp var".split())
_MINIMAL_VAR = ("/var/tmp", "/var/lib/dpkg", "/var/cache/fontconfig", "/var/run", "/var/lock")


def granted_roots() -> tuple[str, ...]:
    return tuple(_granted)


def granted_count() -> int:
    """They only become more, so that their number says which they are."""
    return len(_granted)


def forget_views() -> None:
    """Called when a launch found the host changed: the next call looks anew."""
    with _lock:
        _views.clear()


def compile_view(policy: Policy, other_uid: int | None = None) -> View:
    """Resolves a policy on this host; cached for the life of the process.

    Raises:
        PolicyError: a root that is missing, not a directory, or reached through a link that a command could have planted.
    """
    home = os.environ.get("HOME")
    uid = 0
    if sys.platform != "win32":
        uid = os.geteuid()
    # Callbacks take no part in equality, but the view holds the policy and says whether they are needed. It keeps them
    # alive too, so that no other object can have their ids.
    key = (policy, id(policy.approver), id(policy.on_event), home, uid, other_uid)
    view = _views.get(key)
    if view is None:
        with _lock:
            view = _views.get(key)
            if view is None:
                if len(_views) > 256:
                    _views.clear()
                view = _views[key] = _compile_view(policy, _paths.homes(home, uid, other_uid))
                for root in view.roots:
                    _granted[root] = None
    return view


def _refuse_planted(what: str, found: _paths.Resolved, roots: Iterable[str], instead: str) -> None:
    """No link on the way to something that is granted may be one that a command could have made, in a root of this
    policy or of any earlier one."""
    for place, _ in found.links:
        for root in (*_granted, *roots):
            if _paths.is_within(place, root) and place != root:
                raise PolicyError(
                    f"{what} leads through the symbolic link {place!r}, which lies in the writable root {root!r}:"
                    f" a command could have planted it. Name {instead} if that is what you mean"
                )


def _root(path: str, others: Iterable[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    found = _paths.resolve(_paths.expand_user(path))
    real = found.real
    _refuse_planted(f"writable root {path!r}", found, others, f"the real directory {real!r}")
    if real == "/":
        raise PolicyError("writable root '/': that is no sandbox; name the directories, or use Policy.danger_full_access()")
    for system in ("/proc", "/sys", "/dev"):
        if _paths.is_within(real, system) and real != "/dev" and not _paths.is_within(real, "/dev/shm"):
            raise PolicyError(f"writable root {path!r}: nothing below {system} can be granted")
    try:
        mode = os.stat(real).st_mode
    except OSError as error:
        raise PolicyError(f"writable root {path!r} cannot be used: {error.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise PolicyError(
            f"writable root {path!r} is not a directory. A single file could be written but not replaced (programs"
            f" write a new file and rename it); name its directory {os.path.dirname(real)!r}"
        )
    return real, found.links


def _grant(path: object, field: str, roots: Iterable[str]) -> str:
    """The real path of something that is shown or opened. No link on the way may be one that a command could have made.

    Raises:
        PolicyError: there is such a link.
    """
    found = _paths.resolve(_paths.expand_user(os.fspath(path)))  # type: ignore[call-overload]
    _refuse_planted(f"{path!r} in {field}=", found, roots, repr(found.real))
    return str(found.real)


def _compile_view(policy: Policy, homes: tuple[str, ...]) -> View:
    rules: list[Rule] = []
    roots: dict[str, None] = {}
    given: list[tuple[str, str, bool]] = []
    links: list[tuple[str, str]] = []
    moved: list[tuple[str, str]] = []
    write = [p for p in policy.write if isinstance(p, str)]
    plain = [os.path.normpath(_paths.expand_user(p)) for p in write]
    for path, text in zip(write, plain):
        real, met = _root(path, [other for other in plain if other != text])
        if real == "/dev":
            continue  # the private /dev is what such a command needs, and all it gets
        roots[real] = None
        given.append((real, path, bool(met)))
        links.extend(met)
        rules.append(writable(real, f"write={path!r}"))

    writable_interpreter = danger.WRITABLE_INTERPRETER in policy.write
    for place in _paths.interpreter():
        if writable_interpreter and any(_paths.is_within(p, place) for p in _paths.interpreter()[:1]):
            rules.append(writable(place, "danger.WRITABLE_INTERPRETER"))
            roots[place] = None
            given.append((place, place, False))

    temporary = [p for p in dict.fromkeys(_paths.resolve(t).real for t in ("/tmp", "/var/tmp")) if _paths.is_directory(p)]
    run = _paths.resolve("/run").real
    private = [run] if _paths.is_directory(run) else []
    var_run = _paths.resolve("/var/run").real
    if var_run not in private and _paths.is_directory(var_run):
        private.append(var_run)
    tmp_source = None
    if policy.tmp == "shared":
        for place in temporary:
            rules.append(writable(place, "tmp='shared'"))
    else:
        private += temporary
        if policy.tmp not in ("private", "none"):
            tmp_source, met = _root(os.fspath(policy.tmp), plain)
            links.extend(met)
            roots[tmp_source] = None
            given.append((tmp_source, os.fspath(policy.tmp), bool(met)))
            rules.append(writable(tmp_source, "tmp="))

    # Our own code and the interpreter: read-only in a root, and visible where a private directory would hide them.
    ourselves = [_paths.own_package()]
    if not writable_interpreter:
        ourselves += _paths.interpreter()
    hidden = private if policy.read == "all" else ["/"]
    for place in (_paths.own_package(), *_paths.interpreter()):
        covered = any(_paths.is_within(place, root) for root in roots)
        if covered and place in ourselves:
            rules.append(protect(place, "the running interpreter and this package", hold=True))
        elif not covered and any(_paths.is_within(place, area) for area in hidden):
            rules.append(readable(place, "the running interpreter"))

    if policy.read != "all":
        rules += _confined_reads(policy, roots)

    exceptions = {_grant(p, "exceptions", roots) for p in policy.exceptions}
    sockets = tuple(_grant(p, "unix_sockets", roots) for p in policy.unix_sockets)
    devices = tuple(_grant(p, "devices", roots) for p in policy.devices)
    for secret in _sensitive(homes):
        found = _paths.resolve(secret)
        if found.real in exceptions:
            exceptions.discard(found.real)
            continue
        if found.real in roots:
            raise PolicyError(f"{found.real!r} is a writable root and a sensitive path; name it in exceptions= if you mean it")
        rules.append(deny(found.real, "sensitive path"))
        if found.links:
            moved.append((secret, found.real))
    for path in exceptions:
        rules.append(readable(path, "exceptions="))

    for item in policy.deny_read:
        if isinstance(item, str):
            found = _paths.resolve(_paths.expand_user(item))
            _refuse_pattern(item, found.real, "deny_read")
            if found.real in roots:
                raise PolicyError(f"{item!r} in deny_read= is the writable root {found.real!r}: it cannot be both")
            rules.append(deny(found.real, f"deny_read={item!r}"))
            if found.links:
                moved.append((item, found.real))
    for item in policy.deny_write:
        if isinstance(item, str):
            found = _paths.resolve(_paths.expand_user(item))
            _refuse_pattern(item, found.real, "deny_write")
            if found.real in roots:
                raise PolicyError(f"{item!r} in deny_write= is the writable root {found.real!r}: it cannot be both")
            # The links are part of the promise: replaced, the same name would lead to something writable.
            rules += protect_links(_paths.expand_user(item), f"deny_write={item!r}")
            if found.links:
                moved.append((item, found.real))
    for home in homes:
        if any(_paths.is_within(home, root) for root in roots):
            rules += [protect(f"{home}/{name}", "start-up file") for name in _paths.STARTUP_IN_HOME]

    for file in policy.commands.files if policy.commands is not None else ():
        if os.path.isabs(file) and os.path.exists(file):
            rules += protect_links(file, "a file of command rules in use")
    if policy.audit_log is not None:
        log = _paths.resolve(_paths.expand_user(os.fspath(policy.audit_log))).real
        for root in (*roots, *([tmp_source] if tmp_source else ())):
            if _paths.is_within(log, root):
                raise PolicyError(f"audit_log={policy.audit_log!r} lies in {root!r}, where a command could write its own story")

    # A root that is one of them takes its place.
    private = [area for area in private if area not in roots]
    inside = [(p, t) for p, t in links if any(_paths.is_within(p, area) for area in private)]
    features = required_features(policy)
    denied = [rule.path for rule in rules if rule.access is Access.DENY]
    if any(isinstance(item, Glob) for item in policy.deny_read) or any(
        _paths.is_within(path, root) for path in denied for root in roots
    ):
        features |= {Feature.DENIED_IN_ROOTS}
    return View(
        policy=policy,
        roots=tuple(roots),
        given=tuple(given),
        rules=tuple(rules),
        private=tuple(private),
        private_writable=policy.tmp != "none",
        tmp_source=tmp_source,
        links=tuple(dict.fromkeys(inside)),
        moved=tuple(moved),
        homes=homes,
        sockets=sockets,
        devices=devices,
        features=features,
    )


def _refuse_pattern(text: str, real: str, field: str) -> None:
    """A path is literal. One that looks like a pattern and does not exist would protect nothing, and nobody would know."""
    if re.search(r"[*?\[]", text) and not os.path.lexists(real):
        raise PolicyError(
            f"{text!r} in {field}= is no existing path; a pattern is written Glob({text!r}), in a file {{ glob = {text!r} }}"
        )


def _sensitive(homes: Iterable[str]) -> list[str]:
    return [f"{home}/{name}" for home in homes for name in _paths.SENSITIVE_IN_HOME] + list(_paths.SENSITIVE_IN_SYSTEM)


def _confined_reads(policy: Policy, roots: Iterable[str]) -> list[Rule]:
    """`read="minimal"` or paths: everything at the top that the system does not need is hidden, and what is named shown."""
    rules = []
    for name in os.listdir("/"):
        if name not in _MINIMAL and not os.path.islink(f"/{name}"):
            rules.append(deny(f"/{name}", f"read={policy.read!r}"))
    for name in os.listdir("/var") if os.path.isdir("/var") else ():
        if f"/var/{name}" not in _MINIMAL_VAR and not os.path.islink(f"/var/{name}"):
            rules.append(deny(f"/var/{name}", f"read={policy.read!r}"))
    for name in _paths.SHOWN:
        real = _paths.resolve(name).real
        if os.path.exists(real):
            rules.append(readable(real, "name resolution and the running system"))
    if not isinstance(policy.read, str):
        for path in policy.read:
            real = _grant(path, "read", roots)
            if real == "/":
                raise PolicyError("read=['/'] is read='all'")
            if not os.path.lexists(real):
                raise PolicyError(f"read={path!r} does not exist")
            # Named by the policy itself, so it wins over the top-level rule for the same path.
            rules = [r for r in rules if r.path != real]
            rules.append(readable(real, f"read={path!r}"))
    return rules


# -- stage two: the plan ---------------------------------------------------------------------------------------------------


class _Moment(NamedTuple):
    """What was found on the host at one launch. Equal moments of one view have the same composition."""

    searches: tuple[_paths.Search, ...]
    sockets: tuple[str, ...]
    matches: tuple[tuple[str, bool], ...]
    closed: tuple[str, ...]


class _Composed(NamedTuple):
    """What follows from a view and a moment, and which of its paths are there."""

    view: View
    moment: _Moment
    rules: tuple[Rule, ...]
    directories: tuple[tuple[str, frozenset[str]], ...]
    files: tuple[tuple[str, bytes], ...]
    notes: tuple[str, ...]
    presence: _paths.Presence


_composed: dict[int, tuple[_Composed, Composition]] = {}


def observe(view: View) -> tuple[_Moment, tuple[tuple[str, tuple[int, int]], ...]]:
    """Looks at the host: the roots are still what was approved, and what in them needs protection.

    Raises:
        PolicyError: a root is gone, or its path now leads elsewhere.
    """
    pins = []
    for root, given, linked in view.given:
        try:
            st = os.lstat(root)
        except OSError as error:
            raise PolicyError(f"writable root {given!r} cannot be used: {error.strerror}") from None
        if not stat.S_ISDIR(st.st_mode) or (linked and _paths.resolve(_paths.expand_user(given)).real != root):
            raise PolicyError(f"writable root {given!r} was {root!r} when it was first used, and leads elsewhere now")
        pins.append((root, (st.st_dev, st.st_ino)))
    for path, real in view.moved:
        if _paths.resolve(_paths.expand_user(path)).real != real:
            forget_views()
            raise PolicyError(f"{path!r} was {real!r} when the policy was first used, and leads elsewhere now; try again")
    policy = view.policy
    matches: list[tuple[str, bool]] = []
    closed: list[str] = []
    for field, denied in ((policy.deny_read, True), (policy.deny_write, False)):
        for item in field:
            if isinstance(item, Glob):
                matches += [(path, denied) for path in _paths.expand_glob(item, view.roots, closed)]
    sockets = tuple(sorted(_paths.host_sockets()))
    searches = tuple([_paths.search_protected(root) for root in view.roots])
    for root, search in zip(view.roots, searches):
        if not search.complete and policy.enforcement == "strict":
            raise PolicyError(
                f"writable root {root!r} has more than {_paths.MAX_DIRECTORIES} directories, too many to search for"
                " repositories in them; name smaller roots, or run with enforcement='best-effort'"
            )
        if root in search.closed:
            raise PolicyError(f"writable root {root!r} cannot be listed, and so not be protected; chmod u+rx it")
    return _Moment(searches, sockets, tuple(matches), tuple(closed)), tuple(pins)


def compose(view: View, moment: _Moment) -> Composition:
    """The rules of a view at one moment. The last composition of each view is kept, as long as it is true."""
    known = _composed.get(id(view))
    base = known[0] if known is not None and known[0].view is view and known[0].moment == moment else None
    if base is None:
        base = _compose(view, moment)
        known = None
    absent = base.presence.absent()
    if known is not None and known[1].absent == absent:
        return known[1]
    watch = _watch(view, base.rules, absent, base.directories)
    named = ("deny_read='", "deny_write='")
    missing = [
        f"{r.why.partition('=')[0]}: {r.path!r} does not exist"
        for r in base.rules
        if r.path in absent and r.why.startswith(named)
    ]
    notes = (*base.notes, *missing[:20], *([f"and {len(missing) - 20} more"] if len(missing) > 20 else ()))
    result = Composition(view, base.rules, absent, watch, base.files, notes)
    if len(_composed) > 256:
        _composed.clear()
    _composed[id(view)] = (base, result)
    return result


def _compose(view: View, moment: _Moment) -> _Composed:
    policy = view.policy
    rules = list(view.rules)
    directories: list[tuple[str, frozenset[str]]] = []
    names = _paths.PROTECTED_NAMES - ({_paths.GIT} if policy.git == "writable" else set())
    for root, search in zip(view.roots, moment.searches):
        present = {os.path.basename(p) for p, _ in search.found if os.path.dirname(p) == root}
        directories.append((root, names - present))
        for path, kind in search.found:
            if os.path.basename(path) == _paths.GIT:
                if policy.git != "writable":
                    rules += _git_rules(path, kind, root, policy.git == "commit", directories)
            else:
                rules += protect_links(path, "protected name") if kind == "link" else [protect(path, "protected name")]
        # Its owner could open it again, and then change what was not found in it.
        rules += [protect(path, "a directory that cannot be searched") for path in search.closed]
    for path, denied in moment.matches:
        if denied:
            rules.append(deny(_paths.resolve(path).real, "deny_read= pattern"))
        else:
            rules += protect_links(path, "deny_write= pattern")
    rules += [deny(path, "deny_read= pattern, and it cannot be searched") for path in moment.closed]
    allowed = set(view.sockets)
    for path in moment.sockets:
        found = _paths.resolve(path).real
        if found not in allowed:
            rules.append(deny(found, SOCKET))
    for path in allowed:
        rules.append(writable(path, "unix_sockets=")._replace(pin=True, hold=True))
    rules = _without_opened_protections(rules)
    rules, files = _git_aware_denials(rules, view.roots)
    ordered = sort_rules([*rules, *_pins(rules)])
    notes = tuple(
        f"the search for repositories below {root!r} stopped after {_paths.MAX_DIRECTORIES} directories"
        for root, search in zip(view.roots, moment.searches)
        if not search.complete
    )
    # Roots are looked at by themselves, and a socket may go at any time.
    looked_at = tuple(rule.path for rule in ordered if rule.path not in view.roots and rule.why != SOCKET)
    return _Composed(view, moment, ordered, tuple(directories), files, notes, _paths.Presence(looked_at))


def _without_opened_protections(rules: list[Rule]) -> list[Rule]:
    """git='commit' opens what is protected because it is git's, and nothing that the policy protects for another reason."""
    strong = {r.path: r for r in sort_rules(rules) if r.rank >= 2 or r.access is Access.WRITE}

    def allowed(rule: Rule) -> bool:
        if rule.why != COMMIT:
            return True
        above = rule.path
        while above != "/":
            above = os.path.dirname(above)
            known = strong.get(above)
            if known is not None and known.why not in (COMMIT, HOOKS, REPOSITORY):
                return known.access is Access.WRITE
        return True

    return [rule for rule in rules if allowed(rule)]


COMMIT = "git='commit'"
HOOKS = "git configuration and hooks"
REPOSITORY = "git repository"


def _pins(rules: list[Rule]) -> list[Rule]:
    """Directories between a root and what the policy denies in it. With `mv parent elsewhere`, one run would carry a
    secret, mask and all, to a name that the next run's policy does not know.

    Only what can be written can be moved: a pin below something that is read-only would open it."""
    found: dict[str, Rule] = {}
    rule_of = {rule.path: rule for rule in sort_rules(rules)}

    def writable(path: str) -> bool:
        while path not in rule_of and path != "/":
            path = os.path.dirname(path)
        return path in rule_of and rule_of[path].access is Access.WRITE

    areas = sorted({r.path for r in rules if r.access is Access.WRITE and r.rank == 1}, key=len)
    for rule in rules:
        if not rule.hold:
            continue
        # The outermost: a root inside another can be moved like any directory of it.
        area = next((a for a in areas if _paths.is_within(rule.path, a) and a != rule.path), None)
        above = os.path.dirname(rule.path)
        while area is not None and above != area and above not in found:
            if writable(above):
                found[above] = pinned(above, f"leads to {rule.path!r}")
            above = os.path.dirname(above)
    return list(found.values())


def _watch(view: View, rules: Iterable[Rule], absent: frozenset[str], directories: Iterable[tuple[str, frozenset[str]]]) -> Watch:
    same: list[str] = []
    missing: list[str] = []
    for rule in rules:
        trusted = rule.rank == 2 or rule.why == "sensitive path"
        if trusted and any(_paths.is_within(rule.path, root) for root in view.roots):
            (missing if rule.path in absent else same).append(rule.path)
    bare = view.roots if view.policy.git != "writable" else ()
    return Watch(tuple(directories), tuple(same), tuple(missing), bare)


def _git_rules(path: str, kind: str, root: str, commit: bool, directories: list[tuple[str, frozenset[str]]]) -> list[Rule]:
    why = REPOSITORY
    pointer = protect_links(path, why) if kind == "link" else [protect(path, why)]
    repository = _paths.read_repository(path, root) if commit or kind != "dir" else None
    if repository is None:
        # A plain directory; or a file or dangling link that git would not follow, but could be made to.
        return pointer
    # A pointer that names the root, or what it lies in, is no repository's; the root would be read-only for ever.
    places = dict.fromkeys(p for p in (repository.gitdir, repository.common) if not _paths.is_within(root, p))
    if not commit or not repository.trusted:
        # A linked worktree below /tmp has its repository there too; git needs to see it.
        shown = "private" if repository.trusted else ""
        return [*pointer, *(protect(place, why, shown, hold=kind != "dir") for place in places)]
    # Lock files are made beside what they lock, so the git directory itself has to be writable; what git executes or
    # follows in it is read-only where it exists, and put out of action at the end where it appeared.
    rules = [rule for rule in pointer if rule.path not in places]
    for place in places:
        rules.append(Rule(place, Access.WRITE, COMMIT, pin=True, reveals="private", hold=kind != "dir", rank=1))
        present = set()
        for name in _paths.GIT_EXECUTED:
            if os.path.lexists(f"{place}/{name}"):
                present.add(name)
                rules += (
                    protect_links(f"{place}/{name}", HOOKS)
                    if os.path.islink(f"{place}/{name}")
                    else [protect(f"{place}/{name}", HOOKS)]
                )
        directories.append((place, frozenset(_paths.GIT_EXECUTED) - present))
        if place != repository.gitdir:
            # A linked worktree: what belongs to the main one is none of its business.
            rules += [protect(f"{place}/{name}", "the main worktree's") for name in ("HEAD", "index")]
    return rules


GIT_ATTRIBUTES = "/run/sandboxed-subprocess/gitattributes"


def _git_aware_denials(rules: list[Rule], roots: tuple[str, ...]) -> tuple[list[Rule], tuple[tuple[str, bytes], ...]]:
    """A denied file that git may track keeps its size, so that git compares contents instead of seeing a new file.

    git then runs the "clean" filter named here, which answers with the version that it has already, and finds no
    change: `git status` stays clean, other files can be committed, and the file's content stays unreadable.
    """
    lines: list[str] = []
    out = []
    for rule in rules:
        if rule.access is Access.DENY and rule.why.startswith("deny_read="):
            root = next((r for r in roots if _paths.is_within(rule.path, r)), None)
            try:
                st = os.lstat(rule.path) if root else None
            except OSError:
                st = None
            top = _worktree(rule.path, root) if root and st and stat.S_ISREG(st.st_mode) else None
            if top and st:
                rule = rule._replace(show=(st.st_size, st.st_mode & 0o111 | 0o444))
                name = os.path.relpath(rule.path, top)
                lines.append(f"{_git_pattern(name)} filter=sandboxed-subprocess")
        out.append(rule)
    content = "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode("utf-8", "surrogateescape")
    return out, ((GIT_ATTRIBUTES, content),) if lines else ()


def _git_pattern(name: str) -> str:
    """A pattern of gitattributes(5) that matches exactly this path from the top of the worktree."""
    pattern = "/" + re.sub(r"([\\*?\[])", r"\\\1", name)
    if not re.search(r'[\s"\\\x00-\x1f]', pattern):
        return pattern
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return f'"{quoted}"'


def _worktree(path: str, root: str) -> str | None:
    directory = os.path.dirname(path)
    while _paths.is_within(directory, root):
        if os.path.lexists(f"{directory}/{_paths.GIT}"):
            return directory
        directory = os.path.dirname(directory)
    return None


# -- the plan itself --------------------------------------------------------------------------------------------------------

_surroundings: tuple[Composition, dict[str, str], Surroundings] | None = None


def compile_plan(view: View, command: Command, visible: dict[str, str], dropped: tuple[str, ...], *, inherits: bool) -> Plan:
    """Resolves a view for one command.

    Args:
        visible: the environment after the filter, markers included. Not changed; where it is the same object as the
            last time (and so the same environment), its consequences are not worked out again.
        dropped: names that the filter dropped.
        inherits: the caller gave no environment of its own, so that defaults may be added.

    Raises:
        PolicyError: something that the policy names is not what it has to be.
        OSError: the host's list of sockets cannot be read.
    """
    global _surroundings
    moment, pins = observe(view)
    foreign = ""
    if sys.platform == "linux" and os.geteuid() == 0:
        foreign = _foreign_root(view, command, visible)
    if foreign and view.policy.enforcement == "strict":
        raise PolicyError(foreign)
    composition = compose(view, moment)
    if foreign:
        composition = composition._replace(notes=(*composition.notes, foreign))
    known = _surroundings
    if known is None or known[0] is not composition or known[1] is not visible:
        environ = dict(visible)
        directories = _settle_directories(composition, environ, inherits)
        _git_settings(composition, environ)
        encoded = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
        known = (composition, visible, Surroundings(encoded, directories))
        if inherits:
            _surroundings = known
    return Plan(composition, command, pins, known[2], dropped)


def _foreign_root(view: View, command: Command, visible: dict[str, str]) -> str:
    """Without its capabilities root can write in no directory of somebody else's, as it could without a sandbox: in a container,
    say, where the workspace is the host user's. The error for that; else an empty text.

    Not where the user has told git whose repository it is (safe.directory): then it is known, and reading is enough for much.
    """
    if sys.platform != "linux" or command.uid or danger.ROOT_FILE_ACCESS in view.policy.write:
        return ""  # another user may there what it may without a sandbox
    gid = os.getegid() if command.gid is None else command.gid
    groups = {gid, *(os.getgroups() if command.groups is None else command.groups)}
    for root, given, _ in view.given:
        st = os.stat(root)
        shift = 6 if st.st_uid == 0 else 3 if st.st_gid in groups else 0
        if st.st_mode >> shift & 0o3 == 0o3 or _has_acl(root) or _is_trusted(root, visible):
            continue
        return (
            f"writable root {given!r} belongs to uid {st.st_uid} (mode {stat.S_IMODE(st.st_mode):04o}), and the command would"
            " run as root without root's power over files, so that it could not write there. Run it with"
            f" user={st.st_uid}; or, to give root's command that power in this sandbox, name danger.ROOT_FILE_ACCESS in write="
        )
    return ""


def _user_git_files(environ: dict[str, str]) -> tuple[str, ...]:
    home = environ.get("HOME")
    if not home:
        return ()
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    return f"{config}/git/config", f"{home}/.gitconfig"


def _is_trusted(root: str, environ: dict[str, str]) -> bool:
    """Whether safe.directory names a repository (git-config(1)); an empty value takes back what was before."""
    trusted = False
    for path in _user_git_files(environ) if os.path.lexists(f"{root}/{_paths.GIT}") else ():
        for value in _paths.safe_directories(path):
            trusted = bool(value) and (trusted or value in ("*", root))
    return trusted


def _has_acl(path: str) -> bool:
    try:
        return sys.platform == "linux" and bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


def _settle_directories(composition: Composition, environ: dict[str, str], inherits: bool) -> tuple[str, ...]:
    """TMPDIR and XDG_RUNTIME_DIR name directories that exist inside and can be written, or nothing at all."""
    view = composition.view
    wanted: list[str] = []
    run = next((area for area in view.private if area.endswith("run")), None)
    areas = [area for area in view.private if area.endswith("tmp")]
    default = (areas[0] if areas else "/dev/shm") if view.private_writable and view.policy.tmp != "shared" else None
    for name in ("TMPDIR", "TEMP", "TMP"):
        value = environ.get(name)
        if value is None:
            if name == "TMPDIR" and inherits and default:
                environ[name] = default
            continue
        real = _paths.resolve(value).real if os.path.isabs(value) else value
        rule = composition.decide(real)
        if rule is not None and rule.access is Access.WRITE and os.path.isdir(real):
            continue
        if view.private_writable and any(_paths.is_within(real, area) for area in areas) and rule is None:
            if real not in areas:
                wanted.append(real)
        elif default:
            environ[name] = default
        else:
            del environ[name]
    value = environ.get("XDG_RUNTIME_DIR")
    if value is not None:
        real = _paths.resolve(value).real if os.path.isabs(value) else ""
        rule = composition.decide(real) if real else None
        if rule is not None and rule.access is Access.WRITE and os.path.isdir(real):
            pass
        elif run and view.private_writable and _paths.is_within(real, run) and real != run:
            wanted.append(real)
        else:
            del environ["XDG_RUNTIME_DIR"]
    return tuple(dict.fromkeys(wanted))


def _git_settings(composition: Composition, environ: dict[str, str]) -> None:
    """Settings that keep git usable where the policy hides a file from it, by GIT_CONFIG_COUNT (man 1 git-config)."""
    pairs: list[tuple[str, str]] = []
    if composition.files:
        pairs += [
            ("core.attributesFile", GIT_ATTRIBUTES),
            ("filter.sandboxed-subprocess.clean", "git cat-file blob :%f"),
        ]
    # Only where the user's own file is out of sight. git trusts nothing else of it, and nothing else is passed on.
    if any(r.access is Access.DENY and r.why != "sensitive path" for r in composition.rules):
        for path in _user_git_files(environ):
            rule = composition.decide(_paths.resolve(path).real)
            if rule is not None and rule.access is Access.DENY:
                pairs += [("safe.directory", value) for value in _paths.safe_directories(path)]
    if not pairs:
        return
    try:
        start = int(environ.get("GIT_CONFIG_COUNT", "0"))
    except ValueError:
        start = 0
    for number, (key, value) in enumerate(pairs, start):
        environ[f"GIT_CONFIG_KEY_{number}"] = key
        environ[f"GIT_CONFIG_VALUE_{number}"] = value
    environ["GIT_CONFIG_COUNT"] = str(start + len(pairs))
