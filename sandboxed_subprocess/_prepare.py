"""From what a caller wrote to a `Launch`: everything that sync and async share, in one place and one order.

The order matters. Arguments are validated and copied first; the policy is resolved; a backend is chosen by what the
policy needs; and only then is anything opened.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import functools
import os
import stat
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _backends, _environment, _paths
from ._errors import PolicyError
from ._launch import Launch
from ._plan import Command, View, compile_plan, compile_view
from ._policy import Policy

if TYPE_CHECKING:
    from .commands._approval import Permit

if sys.platform != "win32":
    # Here and not where they are used: after the first command, "import grp" could find a file in the workspace.
    import grp
    import pwd

    def _group_number(name: str) -> int:
        return grp.getgrnam(name).gr_gid

    def _user_number(name: str) -> int:
        return pwd.getpwnam(name).pw_uid

else:

    def _group_number(name: str) -> int:
        raise ValueError("The 'group' parameter is not supported on the current platform")

    def _user_number(name: str) -> int:
        raise ValueError("The 'user' parameter is not supported on the current platform")

# -- which policy -------------------------------------------------------------------------------------------------------

_context: contextvars.ContextVar[Policy | None] = contextvars.ContextVar("sandboxed_subprocess.policy", default=None)
_process_default: Policy | None = None
_warned = False


# Gaps that this process has been warned of.
_told: set[tuple[str, ...]] = set()


class SandboxWarning(UserWarning):
    """Something that is safe, and probably not what was meant."""


def _as_policy(policy: Policy | str) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str):
        return _preset(policy, os.getcwd() if policy == "workspace-write" else None)
    raise PolicyError(f"policy={policy!r}: a Policy, the name of a preset, or None")


_plain: contextvars.ContextVar[Any] = contextvars.ContextVar("sandboxed_subprocess.plain", default=None)


@contextlib.contextmanager
def plain_spawn(args: Any) -> Iterator[None]:
    """Where this package is in the stdlib module's place, asyncio's and trio's own Popen is ours. This one command of theirs
    is the launcher, or one for which no sandbox was asked; any other that is started meanwhile, by a signal handler say, has
    the sandbox that it would have anyway."""
    token = _plain.set(args)
    try:
        yield
    finally:
        _plain.reset(token)


def is_plain(args: Any) -> bool:
    """Whether these are the arguments that `plain_spawn` names."""
    expected = _plain.get()
    if expected is None:
        return False
    if isinstance(expected, list):
        return isinstance(args, (list, tuple)) and list(args) == expected
    return bool(args == expected)


def plain_policy() -> Policy:
    return _preset("danger-full-access", None)


def plain_program(options: dict[str, Any], permit: Permit | None) -> dict[str, Any]:
    """The options of a command without a sandbox: what was permitted is what is executed."""
    if permit is None or permit.program is None:
        return options
    return {**options, "executable": permit.program}


def plain_command(args: Any, options: dict[str, Any]) -> tuple[list[Any], dict[str, Any], Any]:
    """(argument vector, options, program) of a command without a sandbox, for loops that can start nothing but a vector.

    Raises:
        What `subprocess.Popen` raises for the same arguments.
    """
    argv, executable = _argv(args, options)
    for part in (*argv, executable):
        _encode(part)
    env = options.get("env")
    if env is not None:
        for name, value in env.items():
            if b"=" in os.fsencode(name):
                raise ValueError("illegal environment variable name")
            _encode(name), _encode(value)
    return argv, {name: value for name, value in options.items() if name != "shell"}, executable


@functools.lru_cache(256)
def _preset(name: str, root: str | None) -> Policy:
    return Policy.from_preset(name, *((root,) if root is not None else ()))


def resolve_policy(policy: Policy | str | None) -> Policy:
    """The policy for a call: the given one, the context's, the process's, or workspace-write at the current directory.

    Raises:
        PolicyError: an unknown preset, or not a policy at all.
    """
    if policy is not None:
        return _as_policy(policy)
    found = _context.get() or _process_default
    return found if found is not None else _implicit()


def _implicit() -> Policy:
    """Rooted at the *caller's* directory, never at `cwd=`, which is often chosen by a model (CVE-2025-59532)."""
    global _warned
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    home = os.path.expanduser("~")
    if here != "/" and here != home and here != _paths.resolve(home).real:
        return _preset("workspace-write", here)
    if not _warned:
        _warned = True
        _warn(
            f"the current directory ({here}) is no workspace, so nothing but a private /tmp is writable in the sandbox;"
            " pass policy=, or change to the workspace first"
        )
    return _preset("workspace-write", None)


def _warn(message: str) -> None:
    """A warning that points to the caller's line, whatever of ours is in between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SandboxWarning, stacklevel=level)


@contextlib.contextmanager
def default_policy(policy: Policy | str) -> Iterator[Policy]:
    """The policy for calls without `policy=` inside a `with` block.

    A context variable: seen by tasks and by `asyncio.to_thread`, not by new threads and executors.

    Raises:
        PolicyError: an unknown preset, or not a policy at all.
    """
    chosen = _as_policy(policy)
    token = _context.set(chosen)
    try:
        yield chosen
    finally:
        _context.reset(token)


def set_default_policy(policy: Policy | str | None) -> None:
    """The policy of this process for calls without `policy=`; None restores the built-in default.

    Not inherited by processes that `multiprocessing` spawns (its "fork" method apart): set it in their initializer.

    Raises:
        PolicyError: an unknown preset, or not a policy at all.
    """
    global _process_default
    _process_default = None if policy is None else _as_policy(policy)


# -- the command, as Popen reads it -----------------------------------------------------------------------------------------


def _argv(args: Any, options: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """(argument vector, executable), by the rules of `subprocess.Popen._execute_child`."""
    shell = options.get("shell")
    if isinstance(args, (str, bytes)):
        args = [args]
    elif isinstance(args, os.PathLike):
        if shell:
            raise TypeError("path-like args is not allowed when shell is true")
        args = [args]
    else:
        args = list(args)
    executable = options.get("executable")
    if shell:
        args = ["/bin/sh", "-c", *args]
        if executable:
            args[0] = executable
    if executable is None:
        executable = args[0]
    return args, executable


def _encode(value: Any) -> bytes:
    data = os.fsencode(value)
    if b"\0" in data:
        raise ValueError("embedded null byte")
    return data


def _open_audit(policy: Policy) -> int | None:
    """
    Raises:
        OSError: it cannot be written.
    """
    if policy.audit_log is None:
        return None
    path = _paths.expand_user(os.fspath(policy.audit_log))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PolicyError(f"audit_log={policy.audit_log!r} is no ordinary file")
    return fd


def _caller_cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _environ(env: Mapping[Any, Any] | None) -> dict[str, str] | None:
    if env is None:
        return None
    out = {}
    for key, value in env.items():
        name, data = os.fsencode(key), os.fsencode(value)
        if b"=" in name:
            raise ValueError("illegal environment variable name")
        if b"\0" in name or b"\0" in data:
            raise ValueError("embedded null byte")
        out[os.fsdecode(name)] = os.fsdecode(data)
    return out


def _candidates(executable: bytes, env: Mapping[Any, Any] | None) -> tuple[bytes, ...]:
    if b"/" in executable:
        return (executable,)
    if env is None:
        return _search(executable, os.environ.get("PATH", os.defpath))
    return tuple([os.path.join(os.fsencode(directory), executable) for directory in os.get_exec_path(env)])


@functools.lru_cache(256)
def _search(executable: bytes, path: str) -> tuple[bytes, ...]:
    return tuple([os.path.join(os.fsencode(directory), executable) for directory in path.split(os.pathsep)])


def _number(value: Any, kind: str, by_name: Any) -> int:
    number = by_name(value) if isinstance(value, str) else value
    if not isinstance(number, int):
        raise TypeError(f"{kind} must be a string or an integer, not {type(value)}")
    if number < 0:
        raise ValueError(f"{kind} ID cannot be negative, got {number}")
    if number >= (1 << 32) - 1:  # -1 means "unchanged" to setresuid(2)
        raise OverflowError(f"{kind.lower()} id is greater than maximum")
    return number


def _identity(options: dict[str, Any]) -> tuple[int | None, int | None, tuple[int, ...] | None]:
    """`user`, `group` and `extra_groups` of a root caller: taken from Popen, which would fork for them, and applied by
    the launcher as the last thing. Otherwise they stay with Popen, whose errors are the right ones."""
    if sys.platform == "win32" or os.geteuid() != 0 or options.get("preexec_fn") is not None:
        return None, None, None
    group, extra, user = options.pop("group", None), options.pop("extra_groups", None), options.pop("user", None)
    if group is extra is user is None:
        return None, None, None
    gid = None if group is None else _number(group, "Group", _group_number)
    if isinstance(extra, str):
        raise TypeError("Groups must be a list, not a string")
    try:
        groups = None if extra is None else tuple([_number(g, "Group", _group_number) for g in extra])
    except OverflowError:
        raise ValueError("invalid group id") from None  # as _posixsubprocess has it
    uid = None if user is None else _number(user, "User", _user_number)
    return uid, gid, groups


def _check_fds(options: Mapping[str, Any], keep: Sequence[int]) -> None:
    """Refuses what leads past every mount, among the streams and pass_fds.

    Raises:
        PolicyError: a directory, an O_PATH, namespace or mount descriptor.
    """
    streams = []
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        value = options.get(name)
        if value is None:
            streams.append((name, number))
        elif isinstance(value, int):
            if value >= 0:
                streams.append((name, value))
        else:
            streams.append((name, value.fileno()))
    for name, fd in (*streams, *(("pass_fds", fd) for fd in keep)):
        why = _paths.refuse_fd(fd)
        if why is not None:
            raise PolicyError(f"{name}: file descriptor {fd} cannot be given to a sandboxed command: {why}")


# -- the environment ----------------------------------------------------------------------------------------------------------

_snapshot: tuple[Any, dict[str, str]] = (None, {})
_visible: tuple[Any, dict[str, str], dict[str, str], tuple[str, ...]] | None = None


def _caller_environment() -> dict[str, str]:
    """`dict(os.environ)`, decoded anew only when it has changed. The same object as long as it has not."""
    global _snapshot
    data = getattr(os.environ, "_data", None)
    if data is None or _snapshot[0] != data:
        _snapshot = (None if data is None else dict(data), dict(os.environ))
    return _snapshot[1]


def _command_environment(view: View, kind: str, env: dict[str, str] | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment that the command sees, markers included, and the names that were dropped.

    The same object as the last time, as long as the caller's environment and the policy are the same.
    """
    global _visible
    policy = view.policy
    caller = _caller_environment()
    known = _visible
    key = (view, kind)
    if env is None and known is not None and known[0] == key and known[1] is caller:
        return known[2], known[3]
    visible, dropped = _environment.filter_environment(policy.environment, env, caller)
    visible.update(_environment.markers(policy.environment, kind, policy.network == "none", view.roots))
    if env is None:
        _visible = (key, caller, visible, dropped)
    return visible, dropped


# -- all together --------------------------------------------------------------------------------------------------------------


def _has_rules(policy: Policy) -> bool:
    """
    Raises:
        PolicyError: there is an approver, who would never be asked.
    """
    if policy.commands is not None or policy.upgrade_to is not None:
        return True
    if policy.approver is not None and not (
        isinstance(policy.network, tuple) and any(rule.decision == "prompt" for rule in policy.network)
    ):
        raise PolicyError("approver= is never asked where no rule asks: give commands=, an ExecPolicy, too")
    return False


def permitted(args: Any, options: dict[str, Any], policy: Policy) -> Permit | None:
    """What the command rules let run, having asked where they say so; None where there are none.

    Raises:
        CommandRejected: they, or whoever was asked, said no.
        PolicyError: the approver is asynchronous, or would never be asked; or there is no command.
    """
    if not _has_rules(policy):
        return None
    from .commands import _approval

    case = _approval.Case(args, options, policy)
    if case.request is not None:
        case.answered(_approval.ask_now(policy.approver, case.request))
    return case.permit()


async def permitted_async(
    args: Any, options: dict[str, Any], policy: Policy, in_thread: Callable[[Any, Any], Awaitable[Any]]
) -> Permit | None:
    """The same, without blocking the loop: an ordinary approver is called by `in_thread`."""
    if not _has_rules(policy):
        return None
    from .commands import _approval

    case = _approval.Case(args, options, policy)
    if case.request is not None:
        case.answered(await _approval.ask(policy.approver, case.request, in_thread))
    return case.permit()


def _permitted_files(permit: Permit, candidates: tuple[bytes, ...], executable: Any) -> tuple[bytes, ...]:
    """
    Raises:
        FileNotFoundError: there was no such program when the rules were asked, and only a command could have put one there since.
    """
    if permit.program is not None:
        return (os.fsencode(permit.program),)
    if b"/" in _encode(executable):
        return candidates
    directories = {candidate: os.path.realpath(os.fsdecode(os.path.dirname(candidate))) for candidate in candidates}
    kept = tuple([c for c in candidates if not any(_paths.is_within(directories[c], root) for root in permit.roots)])
    if not kept:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), executable)
    return kept


def prepare(
    args: Any, options: dict[str, Any], policy: Policy, permit: Permit | None = None
) -> tuple[Launch, dict[str, Any], Any]:
    """Everything up to the spawn.

    Args:
        args: as for Popen; taken once (it may be a generator).
        options: Popen's keywords.
        permit: what was permitted, whose program is the only one that is tried.

    Returns:
        The launch, the keywords for the real Popen (its `args` are `launch.argv`), and the program as the caller
        named it, for error messages.

    Raises:
        PolicyError, SandboxUnavailable: see there.
        TypeError, ValueError: as Popen raises them for such arguments.
        OSError: no file descriptors left.
    """
    options = dict(options)
    argv, executable = _argv(args, options)
    env = options.get("env")
    keep = tuple(sorted({int(fd) for fd in options.get("pass_fds") or ()}))
    for fd in keep:
        # Now: once our own descriptors are open, a closed number could have become one of them.
        os.fstat(fd)
    if keep and not options.get("close_fds", True):
        warnings.warn("pass_fds overriding close_fds.", RuntimeWarning, stacklevel=3)
    uid, gid, groups = _identity(options)
    environ = _environ(env)
    candidates = _candidates(_encode(executable), env)
    if permit is not None:
        candidates = _permitted_files(permit, candidates, executable)
    command = Command(
        argv=tuple(_encode(a) for a in argv),
        candidates=candidates,
        keep_fds=keep,
        uid=uid,
        gid=gid,
        groups=groups,
        session=bool(options.get("start_new_session")),
        group_leader=options.get("process_group") == 0 and not options.get("start_new_session"),
    )
    _check_fds(options, keep)
    sys.audit("subprocess.Popen", executable, argv, options.get("cwd"), env)

    view = compile_view(policy, uid)
    backend, report = _backends.choose(view.features, forced=policy.backend, strict=policy.enforcement == "strict")
    if report.gaps and report.gaps not in _told:
        _told.add(report.gaps)
        _warn(f"enforcement='best-effort': run without: {'; '.join(report.gaps)}")
    visible, dropped = _command_environment(view, backend.kind, environ)
    plan = compile_plan(view, command, visible, dropped, inherits=env is None)
    report.environment_dropped = plan.dropped
    report.notes = plan.composition.notes
    report.approval = None if permit is None else permit.approval
    # Before anything runs: a run that cannot be written down does not happen.
    audit = _open_audit(policy)
    try:
        launch = backend.wrap(plan, report)
    except BaseException:
        if audit is not None:
            os.close(audit)
        raise
    launch.audit = None if audit is None else (audit, os.fstat(audit))
    launch.cwd = os.path.abspath(os.fsdecode(options["cwd"])) if options.get("cwd") is not None else _caller_cwd()
    options.update(
        executable=launch.executable,
        shell=False,
        env=launch.environ,
        pass_fds=launch.pass_fds,
        close_fds=True,
    )
    return launch, options, executable
