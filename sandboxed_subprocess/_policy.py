"""Policy: what a command may do. Frozen data; no operating system in here, and no I/O but `load()`.

Paths stay as written (relative ones are made absolute when the policy is built, `~` when it is compiled); what they
mean on a host is found out by `_plan.compile_view`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast

from . import danger
from ._errors import PolicyError
from ._fields import Frozen, frozen_error
from .network._rules import NetworkRule, network_rule

if TYPE_CHECKING:
    from typing_extensions import Self, TypedDict, Unpack

    from .commands._execpolicy import ExecPolicy

StrPath = Union[str, "os.PathLike[str]"]
_T = TypeVar("_T")


class Glob:
    """A pattern in `deny_read` or `deny_write`: `*`, `?`, `[...]` within a name, `**` for any number of directories.

    A relative pattern applies below every writable root. Patterns are expanded when a command is launched: a
    matching file that the command itself creates later is not covered.
    """

    __slots__ = ("pattern",)
    pattern: str

    def __init__(self, pattern: str) -> None:
        if not isinstance(pattern, str) or not pattern or "\0" in pattern:
            raise PolicyError(f"Glob({pattern!r}): a pattern is a non-empty string")
        if ".." in pattern.split("/"):
            raise PolicyError(f"Glob({pattern!r}): '..' cannot match anything")
        object.__setattr__(self, "pattern", pattern)

    def __setattr__(self, name: str, value: object) -> None:
        raise frozen_error("assign to", name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glob) and other.pattern == self.pattern

    def __hash__(self) -> int:
        return hash((Glob, self.pattern))

    def __reduce__(self) -> tuple[type[Glob], tuple[str]]:
        return Glob, (self.pattern,)

    def __repr__(self) -> str:
        return f"Glob({self.pattern!r})"

    def __str__(self) -> str:
        return self.pattern


def _path(value: object, field: str) -> str:
    """An absolute path as text, or one that begins with `~`."""
    if not isinstance(value, (str, os.PathLike)):
        raise PolicyError(f"{field}: {value!r} is not a path (str or os.PathLike)")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise PolicyError(f"{field}: {text!r} is bytes; os.fsdecode() makes a str of it")
    if not text:
        raise PolicyError(f"{field}: an empty path means nothing; '.' is the current directory")
    if "\0" in text:
        raise PolicyError(f"{field}: {text!r} contains a NUL")
    if text.startswith("~"):
        return text
    if not os.path.isabs(text):
        # Now, not at each call: whoever picks a later working directory must not pick the root (CVE-2025-59532).
        text = os.path.join(os.getcwd(), text)
    # ".." is left for the host to resolve: behind a symbolic link it is not what the text says.
    return text if ".." in text.split("/") else os.path.normpath(text)


def _paths(value: object, field: str, *, globs: bool = False, dangers: tuple[danger.Danger, ...] = ()) -> tuple[Any, ...]:
    if isinstance(value, (str, os.PathLike, Glob, danger.Danger)):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise PolicyError(f"{field}: {value!r} is not a list of paths")
    found: dict[Any, None] = {}
    for item in value:
        if isinstance(item, Glob):
            if not globs:
                raise PolicyError(f"{field}: a Glob cannot be granted, only denied; name the directory")
            found[item] = None
        elif isinstance(item, danger.Danger):
            if item not in dangers:
                raise PolicyError(f"{field}: {item!r} has no meaning here")
            found[item] = None
        else:
            found[_path(item, field)] = None
    return tuple(found)


def _names(value: object, field: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise PolicyError(f"{field}: {value!r} is not a list of names")
    names = tuple(dict.fromkeys(value))
    for name in names:
        if not isinstance(name, str) or not name or "\0" in name or "=" in name:
            raise PolicyError(f"{field}: {name!r} is not a name")
    return names


def _choice(value: object, field: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise PolicyError(f"{field}={value!r}: one of {', '.join(map(repr, choices))}")


class Environment(Frozen):
    """What of an environment the command may see.

    Args:
        inherit: "filtered" (what looks innocent by name and value), "core" (a short list: PATH, HOME, locale, ...),
            "none", or "all".
        include: names, or prefixes ending in `*`, that are kept although the filter would drop them.
        exclude: names, or prefixes ending in `*`, that the command never sees, whoever sets them.
        set: variables to set, last.
        marker_prefixes: further prefixes for the markers, for example ("VTCODE_SANDBOX",); "CODEX" sets what Codex sets.
    """

    inherit: Literal["filtered", "core", "none", "all"] = "filtered"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    set: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    marker_prefixes: Sequence[str] = ()

    def __post_init__(self) -> None:
        _choice(self.inherit, "environment.inherit", ("filtered", "core", "none", "all"))
        for field in ("include", "exclude", "marker_prefixes"):
            object.__setattr__(self, field, _names(getattr(self, field), f"environment.{field}"))
        pairs = self.set.items() if isinstance(self.set, Mapping) else self.set
        try:
            values = dict(pairs)
        except (TypeError, ValueError):
            raise PolicyError(f"environment.set: {self.set!r} is not a mapping of names to values") from None
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise PolicyError(f"environment.set: {name!r}={value!r} must both be str")
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise PolicyError(f"environment.set: {name!r} is not a legal variable")
        object.__setattr__(self, "set", tuple(sorted(values.items())))

    def replace(self, **changes: Any) -> Environment:
        return self._changed(changes)


class Limits(Frozen):
    """Bounds for the whole tree of processes (`file_bytes` and `open_files`: for each process). None: no limit.

    `output_bytes` bounds what `run()`, `communicate()` and their kin keep of stdout and of stderr (in text mode it counts
    characters): the beginning and the end, with a line between that says how much is missing. Nothing is ended by it.
    """

    memory_bytes: int | None = None
    processes: int | None = None
    written_bytes: int | None = None
    file_bytes: int | None = None
    cpu_seconds: float | None = None
    wall_seconds: float | None = None
    open_files: int | None = None
    output_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.names():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise PolicyError(f"limits.{name}={value!r} is not a number")
            if not name.endswith("_seconds") and not isinstance(value, int):
                raise PolicyError(f"limits.{name}={value!r} is not a whole number")
            if not 0 < value < 1 << 62:
                raise PolicyError(f"limits.{name}={value!r}: a limit is positive; None means no limit")
        if self.memory_bytes is not None and self.memory_bytes < 1 << 20:
            raise PolicyError(f"limits.memory_bytes={self.memory_bytes} is under 1 MiB; is it in kilobytes?")
        if self.open_files is not None and self.open_files < 3:
            raise PolicyError(f"limits.open_files={self.open_files}: a command needs its three standard streams")

    def replace(self, **changes: Any) -> Limits:
        return self._changed(changes)

    @classmethod
    def unlimited(cls) -> Limits:
        return cls()

    @classmethod
    def conservative(cls) -> Limits:
        """512 MB, 64 processes, 1 GB written, 60 s of CPU, 120 s of wall time."""
        return cls(memory_bytes=512 << 20, processes=64, written_bytes=1 << 30, cpu_seconds=60, wall_seconds=120)

    @classmethod
    def moderate(cls) -> Limits:
        """2 GB, 256 processes, 4 GB written, 300 s of CPU, 600 s of wall time."""
        return cls(memory_bytes=2 << 30, processes=256, written_bytes=4 << 30, cpu_seconds=300, wall_seconds=600)

    @classmethod
    def generous(cls) -> Limits:
        """8 GB, 1024 processes, 16 GB written, an hour of wall time."""
        return cls(memory_bytes=8 << 30, processes=1024, written_bytes=16 << 30, wall_seconds=3600)


SYSCALL_EXCEPTIONS = ("ptrace", "perf_event", "keyring")
PRESETS = ("read-only", "workspace-write", "danger-full-access")

if TYPE_CHECKING:

    class PolicyFields(TypedDict, total=False):
        """The keywords of `Policy` and of its presets; those of `Environment` and `Limits` serve as well."""

        read: Literal["all", "minimal"] | Sequence[StrPath]
        write: StrPath | danger.Danger | Sequence[StrPath | danger.Danger]
        deny_read: StrPath | Glob | Sequence[StrPath | Glob]
        exceptions: StrPath | Sequence[StrPath]
        deny_write: StrPath | Glob | Sequence[StrPath | Glob]
        git: Literal["read-only", "commit", "writable"]
        tmp: StrPath
        caches: Sequence[str]
        devices: Sequence[StrPath]
        unix_sockets: Sequence[StrPath]
        network: Literal["none"] | danger.Danger | Sequence[NetworkRule]
        publish: Sequence[int]
        environment: Environment
        limits: Limits
        syscall_exceptions: Sequence[str]
        commands: ExecPolicy | None
        approver: Callable[..., Any] | None
        trust: Any
        upgrade_to: Policy | None
        enforcement: Literal["strict", "best-effort"]
        backend: str | None
        terminate_grace: float
        on_event: Callable[..., Any] | None
        event_interval: float
        audit_log: StrPath | None
        observe: Sequence[str]
        inherit: Literal["filtered", "core", "none", "all"]
        include: Sequence[str]
        exclude: Sequence[str]
        set: Mapping[str, str]
        marker_prefixes: Sequence[str]
        memory_bytes: int | None
        processes: int | None
        written_bytes: int | None
        file_bytes: int | None
        cpu_seconds: float | None
        wall_seconds: float | None
        open_files: int | None
        output_bytes: int | None


class Policy(Frozen):
    """What a command, and everything it starts, may do. Equal policies compile to equal plans.

    Args:
        read: "all" (but for `deny_read`), "minimal" (the system, the interpreter and the roots), or paths.
        write: directories in which everything may be written, but for what is protected in them.
        deny_read: paths or `Glob`s that cannot be read nor written, added to the sensitive ones (~/.ssh, ...).
        exceptions: sensitive paths that may be read after all.
        deny_write: paths or `Glob`s inside a writable root that are read-only.
        git: "read-only", "commit" (objects, refs, index and logs can be written; hooks and configuration not), "writable".
        tmp: "private" (fresh and empty for each run), "shared" (the host's), "none", or a directory to use as /tmp.
        devices: device nodes to show besides null, zero, full, random, urandom and tty.
        unix_sockets: sockets of the host that may be connected to.
        network: "none" (loopback inside works), host rules, or `danger.UNRESTRICTED_NETWORK`.
        environment, limits: see `Environment` and `Limits`.
        syscall_exceptions: of "ptrace", "perf_event", "keyring".
        enforcement: "strict" refuses what cannot be enforced in full; "best-effort" runs and reports the gaps.
        backend: the name of the only backend to use.
        commands: an `ExecPolicy`: which commands run without asking, which are asked for, which never run. Its host rules are
            added to `network`, its files cannot be written.
        approver: who is asked: a function, for `aio` also an asynchronous one, that gets an `ApprovalRequest` and returns "once",
            "session", "always", "deny" or an `Answer`. What it raises means no.
        trust: a `TrustStore` of what was approved; None: one for all equal policies of this process.
        upgrade_to: the policy under which a command that by nature writes runs instead, where this one has no writable root and
            the rules allow the command, or the approver says so. The report tells.
        terminate_grace: seconds between SIGTERM and the end of the whole tree, where `timeout=` of `run()`, or a
            cancellation, ends a run for the caller. 0: at once, as the standard library does.
        on_event: called with a `Progress` every `event_interval` seconds while a command runs, and with a `Violation` when one is
            seen: in asyncio's event loop, or else in a thread of its own. What it raises goes to `sys.excepthook`.
        observe: "files": each call that opens, makes, removes or changes a file is looked at before it is made, and the report
            has those that will be refused, whatever the command writes about it (`violations_complete`). An open() takes about
            10 µs longer. Not seen: programs that may not be executed, names that `bind()` would make, mere looks (stat, chdir).
        audit_log: a file, outside of what a command may write, to which each run appends a line of JSON: when it began, the
            arguments, the working directory, how it ended, and its report.

    Raises:
        PolicyError: a value that cannot be, or two that contradict each other.
    """

    read: Literal["all", "minimal"] | Sequence[StrPath] = "all"
    write: Sequence[StrPath | danger.Danger] = ()
    deny_read: Sequence[StrPath | Glob] = ()
    exceptions: Sequence[StrPath] = ()
    deny_write: Sequence[StrPath | Glob] = ()
    git: Literal["read-only", "commit", "writable"] = "read-only"
    tmp: StrPath = "private"
    caches: Sequence[str] = ()
    devices: Sequence[StrPath] = ()
    unix_sockets: Sequence[StrPath] = ()
    network: Literal["none"] | danger.Danger | Sequence[NetworkRule] = "none"
    publish: Sequence[int] = ()
    environment: Environment = Environment()
    limits: Limits = Limits()
    syscall_exceptions: Sequence[str] = ()
    commands: ExecPolicy | None = None
    approver: Callable[..., Any] | None = None
    trust: Any = None
    upgrade_to: Policy | None = None
    enforcement: Literal["strict", "best-effort"] = "strict"
    backend: str | None = None
    terminate_grace: float = 2.0
    on_event: Callable[..., Any] | None = None
    event_interval: float = 1.0
    audit_log: StrPath | None = None
    observe: Sequence[str] = ()
    unconfined: bool = False

    _not_compared = frozenset({"approver", "on_event", "trust"})
    _not_shown = frozenset({"approver", "on_event", "trust", "unconfined"})

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if not isinstance(self.read, str) or self.read not in ("all", "minimal"):
            if isinstance(self.read, str) and not self.read.startswith(("/", "~", ".")):
                raise PolicyError(f"read={self.read!r}: 'all', 'minimal', or a list of paths")
            put("read", _paths(self.read, "read"))
        put("write", _paths(self.write, "write", dangers=(danger.WRITABLE_INTERPRETER, danger.ROOT_FILE_ACCESS)))
        put("deny_read", _paths(self.deny_read, "deny_read", globs=True))
        put("deny_write", _paths(self.deny_write, "deny_write", globs=True))
        for field in ("exceptions", "devices", "unix_sockets"):
            put(field, _paths(getattr(self, field), field))
        _choice(self.git, "git", ("read-only", "commit", "writable"))
        if self.tmp not in ("private", "shared", "none"):
            text = self.tmp if isinstance(self.tmp, str) else os.fspath(self.tmp)
            if not text.startswith(("/", "~", ".")):
                raise PolicyError(f"tmp={text!r}: 'private', 'shared', 'none', or the path of a directory")
            put("tmp", _path(self.tmp, "tmp"))
        if self.audit_log is not None:
            put("audit_log", _path(self.audit_log, "audit_log"))
        put("network", self._checked_network(self.network))
        for name in _names(self.syscall_exceptions, "syscall_exceptions"):
            _choice(name, "syscall_exceptions", SYSCALL_EXCEPTIONS)
        put("syscall_exceptions", _names(self.syscall_exceptions, "syscall_exceptions"))
        put("caches", _names(self.caches, "caches"))
        put("publish", tuple(self.publish))
        for name in _names(self.observe, "observe"):
            _choice(name, "observe", ("files",))
        put("observe", _names(self.observe, "observe"))
        if not isinstance(self.environment, Environment):
            raise PolicyError(f"environment={self.environment!r} is not an Environment")
        if not isinstance(self.limits, Limits):
            raise PolicyError(f"limits={self.limits!r} is not a Limits")
        _choice(self.enforcement, "enforcement", ("strict", "best-effort"))
        if self.backend is not None and not isinstance(self.backend, str):
            raise PolicyError(f"backend={self.backend!r}: the name of a backend, or None")
        if (
            isinstance(self.terminate_grace, bool)
            or not isinstance(self.terminate_grace, (int, float))
            or not self.terminate_grace >= 0
        ):
            raise PolicyError(f"terminate_grace={self.terminate_grace!r}: a number of seconds, 0 or more")
        interval = self.event_interval
        if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not 0.02 <= interval < 1 << 31:
            raise PolicyError(f"event_interval={interval!r}: a number of seconds, 0.02 or more")
        for name in ("approver", "on_event"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise PolicyError(f"{name}={getattr(self, name)!r} cannot be called")
        self._refuse_contradictions()

    @staticmethod
    def _checked_network(value: object) -> object:
        if value == "none" or value == danger.UNRESTRICTED_NETWORK:
            return value
        if isinstance(value, danger.Danger):
            raise PolicyError(f"network: {value!r} has no meaning here")
        if isinstance(value, NetworkRule):  # before the test for lists: it is a tuple
            return (value,)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise PolicyError(f"network={value!r}: 'none', a list of network_rule(...), or danger.UNRESTRICTED_NETWORK")
        rules = []
        for item in value:
            if isinstance(item, str):
                host, _, port = item.rpartition(":") if item.count(":") == 1 else (item, "", "")
                if port and not port.isdigit():
                    raise PolicyError(f"network: {item!r} is neither 'host' nor 'host:port'; use network_rule(...)")
                item = network_rule(host, int(port) if port else None)
            if not isinstance(item, NetworkRule):
                raise PolicyError(f"network: {item!r} is not a network_rule(...)")
            rules.append(item)
        # An empty list allows nothing, which is what "none" is.
        return tuple(rules) or "none"

    def _refuse_contradictions(self) -> None:
        write = {p for p in self.write if isinstance(p, str)}
        for field in ("deny_read", "deny_write"):
            for path in getattr(self, field):
                if path in write:
                    raise PolicyError(f"{path!r} is in write= and in {field}=: it cannot be both")
        if not isinstance(self.read, str):
            for path in self.deny_read:
                if path in self.read:
                    raise PolicyError(f"{path!r} is in read= and in deny_read=: it cannot be both")
        for path in self.exceptions:
            if path in self.deny_read:
                raise PolicyError(f"{path!r} is in exceptions= and in deny_read=: it cannot be both")
        if self.unconfined:
            limits = [name for name in Limits.names() if name != "output_bytes" and getattr(self.limits, name) is not None]
            for name in (*limits, *[n for n in ("on_event", "audit_log", "observe") if getattr(self, n)]):
                raise PolicyError(f"danger_full_access: without a sandbox there is nobody to see to {name}=")
        if self.upgrade_to is not None:
            if not isinstance(self.upgrade_to, Policy):
                raise PolicyError(f"upgrade_to={self.upgrade_to!r} is not a Policy")
            if self.upgrade_to.unconfined:
                raise PolicyError("upgrade_to=: a run is never raised to no sandbox at all")
        if self.commands is not None:
            from .commands._execpolicy import ExecPolicy

            if not isinstance(self.commands, ExecPolicy):
                raise PolicyError(f"commands={self.commands!r} is not an ExecPolicy; ExecPolicy.load(...) reads one")
        if self.trust is not None and not (hasattr(self.trust, "knows") and hasattr(self.trust, "add")):
            raise PolicyError(f"trust={self.trust!r} is not a TrustStore")

    @property
    def host_rules(self) -> Literal["none"] | danger.Danger | tuple[NetworkRule, ...]:
        """What `network` and the rules of `commands` say together. Rules that only forbid add nothing to "none"."""
        network = cast("Literal['none'] | danger.Danger | tuple[NetworkRule, ...]", self.network)
        further = self.commands.network_rules if self.commands is not None else ()
        if not further or (network == "none" and all(rule.decision == "forbidden" for rule in further)):
            return network
        if network == "none":
            return further
        if isinstance(network, danger.Danger):
            raise PolicyError("network=danger.UNRESTRICTED_NETWORK, and commands= has rules about hosts: it cannot be both")
        return (*network, *further)

    # Policies key the caches of every launch, and the ordinary hash walks all fields each time.
    def __hash__(self) -> int:
        try:
            return cast(int, self.__dict__["_hash"])
        except KeyError:
            value = super().__hash__()
            object.__setattr__(self, "_hash", value)
            return value

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_hash"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    # -- presets ------------------------------------------------------------------------------------------------

    @classmethod
    def workspace_write(cls, *roots: StrPath, **fields: Unpack[PolicyFields]) -> Self:
        """Reads everything but secrets, writes `roots` and a private /tmp, reaches no network."""
        write = _paths(fields.pop("write", ()), "write", dangers=(danger.WRITABLE_INTERPRETER, danger.ROOT_FILE_ACCESS))
        return cls(**_parts({**fields, "write": (*roots, *write)}))

    @classmethod
    def read_only(cls, **fields: Unpack[PolicyFields]) -> Self:
        """Writes nothing but /dev/null, reaches no network, sees the core environment, has `Limits.conservative()`."""
        if fields.get("write"):
            raise PolicyError("read_only(write=...): a read-only policy has no writable roots; use workspace_write()")
        base: dict[str, Any] = {"tmp": "none", "environment": Environment(inherit="core"), "limits": Limits.conservative()}
        return cls(**_parts(fields, base))

    @classmethod
    def danger_full_access(cls, **fields: Unpack[PolicyFields]) -> Self:
        """No sandbox at all: no wrapper, no filter, the environment as it is.

        `kill()`, timeouts and cancellation still end the tree as well as that can be done from outside it. No
        other promise of this package holds.
        """
        base: dict[str, Any] = {"network": danger.UNRESTRICTED_NETWORK, "environment": Environment(inherit="all")}
        return cls(**_parts(fields, base), unconfined=True)

    @classmethod
    def from_preset(cls, name: str, *roots: StrPath) -> Self:
        """The preset of that name; `roots` are for "workspace-write" only.

        Raises:
            PolicyError: there is no such preset.
        """
        if name == "workspace-write":
            return cls.workspace_write(*roots)
        if roots and name in PRESETS:
            raise PolicyError(f"the preset {name!r} has no writable roots")
        if name == "read-only":
            return cls.read_only()
        if name == "danger-full-access":
            return cls.danger_full_access()
        hint = _hint(name, PRESETS)
        if not hint and ("." in name or "/" in name):
            hint = "; a file is read by Policy.load()"
        raise PolicyError(f"unknown preset {name!r}: one of {', '.join(map(repr, PRESETS))}{hint}")

    # -- changed copies -----------------------------------------------------------------------------------------

    def replace(self, **changes: Unpack[PolicyFields]) -> Self:
        """A copy with these fields changed; fields of `Environment` and `Limits` may be named directly."""
        return self._changed(_parts(changes, {"environment": self.environment, "limits": self.limits}))

    def with_write(self, *paths: StrPath) -> Self:
        return self.replace(write=(*self.write, *paths))

    def with_deny_read(self, *paths: StrPath | Glob) -> Self:
        return self.replace(deny_read=(*self.deny_read, *paths))

    def with_deny_write(self, *paths: StrPath | Glob) -> Self:
        return self.replace(deny_write=(*self.deny_write, *paths))

    def with_environment(self, **changes: Any) -> Self:
        return self.replace(environment=self.environment.replace(**changes))

    def with_limits(self, **changes: Any) -> Self:
        return self.replace(limits=self.limits.replace(**changes))

    # -- text ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what JSON and TOML hold. Defaults and callbacks are left out.

        Raises:
            PolicyError: the policy has command rules, which have a file format of their own.
        """
        if self.commands is not None:
            raise PolicyError("commands= is kept in a rules file, not in the policy's")
        out: dict[str, Any] = {}
        start = Policy()
        if self.unconfined:
            out["preset"] = "danger-full-access"
            start = Policy.danger_full_access()
        for name in self.names():
            value = getattr(self, name)
            unchanged = getattr(start, name)
            if name in ("unconfined", "commands", *self._not_compared) or value == unchanged:
                continue
            if name == "upgrade_to":
                out[name] = value.to_dict()
            elif name == "network":
                out[name] = (
                    [_rule_out(r) for r in value]
                    if isinstance(value, tuple)
                    else _danger_out(value)
                    if isinstance(value, danger.Danger)
                    else value
                )
            elif isinstance(value, (Environment, Limits)):
                part = {k: getattr(value, k) for k in value.names()}
                out[name] = {
                    k: dict(v) if k == "set" else list(v) if isinstance(v, tuple) else v
                    for k, v in part.items()
                    if v != getattr(unchanged, k)
                }
            elif isinstance(value, tuple):
                out[name] = [_item_out(v) for v in value]
            else:
                out[name] = value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. A key `preset` names where the other keys start from.

        Raises:
            PolicyError: an unknown key, or a value that cannot be.
        """
        if not isinstance(data, Mapping):
            raise PolicyError(f"a policy is a table of fields, not {data!r}")
        fields = dict(data)
        preset = fields.pop("preset", "workspace-write")
        known = [name for name in cls.names() if name not in ("unconfined", "approver", "on_event", "commands", "trust")]
        for key in fields:
            if key not in known:
                table = next((name for name, names in _PART_FIELDS.items() if key in names), None)
                hint = f"; it belongs under [{table}]" if table else _hint(key, known)
                raise PolicyError(f"unknown key {key!r} in a policy{hint}")
        for name, part in (("environment", Environment), ("limits", Limits)):
            if name in fields:
                table = fields[name]
                names = part.names()
                if not isinstance(table, Mapping):
                    raise PolicyError(f"{name}: a table of {', '.join(names)} is needed, not {table!r}")
                for key in table:
                    if key not in names:
                        raise PolicyError(f"unknown key {key!r} in [{name}]{_hint(key, names)}")
        start = cls.from_preset(preset)
        for name in ("environment", "limits"):
            if name in fields:
                fields[name] = getattr(start, name).replace(**fields[name])
        if "network" in fields:
            fields["network"] = _network_in(fields["network"])
        if "upgrade_to" in fields:
            fields["upgrade_to"] = cls.from_dict(fields["upgrade_to"])
        for name in ("write", "deny_read", "deny_write"):
            if name in fields:
                if not isinstance(fields[name], (list, tuple)):
                    raise PolicyError(f"{name}: a list of paths is needed, not {fields[name]!r}")
                fields[name] = [_item_in(v, name) for v in fields[name]]
        return start._changed(fields)

    def to_json(self) -> str:
        import json

        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        import json

        try:
            data = json.loads(text)
        except ValueError as error:
            raise PolicyError(f"not JSON: {error}") from None
        return cls.from_dict(data)

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, text: str) -> Self:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(f"not TOML: {error}") from None
        return cls.from_dict(data)

    @classmethod
    def load(cls, path: StrPath) -> Self:
        """Reads a policy from a `.toml` or `.json` file. Nothing is ever loaded without being asked for.

        Raises:
            OSError: the file cannot be read.
            PolicyError: its content is not a policy; the message names the file.
        """
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError as error:
            raise PolicyError(f"{os.fspath(path)}: not a text in UTF-8 ({error.reason})") from None
        try:
            return cls.from_json(text) if os.fspath(path).endswith(".json") else cls.from_toml(text)
        except PolicyError as error:
            raise PolicyError(f"{os.fspath(path)}: {error}") from None


def _hint(word: object, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(str(word), known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _parts(fields: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sorts keywords of `Environment` and `Limits` into their parts."""
    out = dict(base or {})
    out.update({k: v for k, v in fields.items() if k in _POLICY_FIELDS})
    for name, part in (("environment", Environment), ("limits", Limits)):
        inner = {k: v for k, v in fields.items() if k in _PART_FIELDS[name]}
        if inner:
            if name in fields:
                raise PolicyError(f"{name}= and {', '.join(inner)}= were both given; put the latter into the former")
            out[name] = out.get(name, part()).replace(**inner)
    for key in fields:
        if key not in _POLICY_FIELDS and not any(key in names for names in _PART_FIELDS.values()):
            known = sorted(_POLICY_FIELDS | set().union(*_PART_FIELDS.values()))
            raise TypeError(f"a policy has no field {key!r}{_hint(key, known)}")
    return out


_POLICY_FIELDS = set(Policy.names()) - {"unconfined"}
_PART_FIELDS = {
    "environment": set(Environment.names()),
    "limits": set(Limits.names()),
}


def _danger_out(value: danger.Danger) -> dict[str, str]:
    return {"danger": value.name}


def _item_out(value: object) -> object:
    if isinstance(value, Glob):
        return {"glob": value.pattern}
    return _danger_out(value) if isinstance(value, danger.Danger) else value


def _item_in(value: object, field: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"glob"}:
        return Glob(value["glob"])
    if set(value) == {"danger"} and value["danger"] in danger.ALL:
        return danger.ALL[value["danger"]]
    raise PolicyError(f"{field}: {value!r} is neither a path nor {{glob = '...'}}")


def _rule_out(rule: NetworkRule) -> dict[str, Any]:
    return {name: value for name, value in rule._asdict().items() if value is not None}


def _network_in(value: object) -> Any:
    if isinstance(value, Mapping):
        return _item_in(value, "network")
    if not isinstance(value, (list, tuple)):
        return value
    rules = []
    for item in value:
        if isinstance(item, Mapping):
            try:
                item = network_rule(**item)
            except TypeError as error:
                raise PolicyError(f"network: {item!r}: {error}") from None
        rules.append(item)
    return rules
