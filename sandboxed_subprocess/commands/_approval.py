"""Before a command runs: what its rules say, who is asked where they say so, and under which policy it then runs."""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

from .. import _paths
from .._errors import CommandRejected, PolicyError
from .._plan import granted_count, granted_roots
from .._policy import Policy
from .._report import Approval
from ._evaluate import Evaluation, Part, evaluate, influences
from ._execpolicy import ExecPolicy, vector
from ._identity import home_of, search_path
from ._rules import CommandRule, exact_rule
from ._trust import Key, TrustStore, fingerprint, suggestion
from ._writes import writes

log = logging.getLogger("sandboxed_subprocess")
Kind = Literal["once", "session", "always", "deny"]


class Answer(NamedTuple):
    """What an approver says. The word alone does as well, or a pair of word and rule.

    Attributes:
        kind: "once" (this run), "session" (this vector, directory and policy, as long as the `TrustStore` lives), "always" (the
            same, saved where the store has a file; `Report.approval.rule` has the rule to save elsewhere), or "deny".
        rule: for "session" and "always": a rule in the place of the vector, wider or narrower than `suggested_rule`; or its text.
        reason: for whoever is refused.
    """

    kind: Kind
    rule: CommandRule | str | None = None
    reason: str | None = None


class ApprovalRequest(NamedTuple):
    """What an approver is asked.

    Attributes:
        argv: the vector, as it will be executed.
        cwd: the working directory.
        parts: the simple commands in it, each with its decision and why.
        rules: the rules that match, as text.
        reason: one line: why it is asked.
        justification: of the rule that asks, if it has one.
        permits: what the sandbox will let it do, a line for each thing.
        suggested_rule: a rule that would settle it the next time; None where any would let too much through.
        upgrade: the policy that the run would be raised to, or None: it runs under `policy`.
        policy: the policy of the call.
        evaluation: all that the rules say.
    """

    argv: tuple[str, ...]
    cwd: str
    parts: tuple[Part, ...]
    rules: tuple[str, ...]
    reason: str
    justification: str | None
    permits: tuple[str, ...]
    suggested_rule: CommandRule | None
    upgrade: Policy | None
    policy: Policy
    evaluation: Evaluation


class Permit(NamedTuple):
    """A command that may run: exactly these arguments, under this policy.

    Attributes:
        program: the file that the rules were asked about, where there is one; nothing else is executed.
        roots: where there is none: directories in which one that has come since is not taken for it.
        approval: for the report; None where there are no rules.
    """

    args: Any
    options: dict[str, Any]
    policy: Policy
    program: str | None = None
    approval: Approval | None = None
    roots: frozenset[str] = frozenset()


_EVERYTHING = ExecPolicy(default="allow")
_stores: dict[Policy, TrustStore] = {}


def store_of(policy: Policy) -> TrustStore:
    """The policy's own store, or the one of all equal policies in this process."""
    if policy.trust is not None:
        return cast(TrustStore, policy.trust)
    if len(_stores) > 256:
        _stores.clear()
    return _stores.setdefault(policy, TrustStore())


@functools.lru_cache(256)
def _roots(policy: Policy, cwd: str) -> tuple[str, ...]:
    """Where commands write, and so where no program is trusted by its name."""
    if policy.unconfined:
        return () if cwd in ("/", os.path.expanduser("~")) else (os.path.realpath(cwd),)
    written = [path for path in policy.write if isinstance(path, str)]
    if policy.tmp not in ("private", "none"):
        written += ["/tmp", "/var/tmp"] if policy.tmp == "shared" else [os.fspath(policy.tmp)]
    if policy.upgrade_to is not None:
        return (*_roots(policy.upgrade_to, cwd), *[os.path.realpath(_paths.expand_user(path)) for path in written])
    return tuple([os.path.realpath(_paths.expand_user(path)) for path in written])


def _untrusted(policy: Policy, cwd: str) -> frozenset[str]:
    """The same, and what earlier policies of this process let commands write: a program may have been put there by one."""
    return _untrusted_of(policy, cwd, granted_count())


@functools.lru_cache(256)
def _untrusted_of(policy: Policy, cwd: str, granted: int) -> frozenset[str]:
    return frozenset((*_roots(policy, cwd), *granted_roots()))


def _snapshot(args: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments as they are now: what is looked at is what runs, whatever happens to the objects meanwhile."""
    taken = dict(options)
    if taken.get("env") is not None:
        taken["env"] = {os.fspath(k): os.fspath(v) for k, v in dict(taken["env"]).items()}
    for name in ("cwd", "executable"):
        if isinstance(taken.get(name), os.PathLike):
            taken[name] = os.fspath(taken[name])
    if isinstance(args, (str, bytes)):
        return args, taken
    if isinstance(args, os.PathLike):
        return (args if taken.get("shell") else os.fspath(args)), taken
    return [os.fspath(word) for word in args], taken


def _inner_path(policy: Policy, env: Any) -> tuple[str, ...]:
    """The PATH that the command itself sees, and so what a shell in it searches."""
    environment = policy.environment
    for name, value in cast("tuple[tuple[str, str], ...]", environment.set):
        if name == "PATH":
            return tuple(value.split(os.pathsep))
    kept = environment.inherit != "none" or "PATH" in environment.include
    if env is None and (not kept or "PATH" in environment.exclude):
        return tuple(os.defpath.split(os.pathsep))
    return search_path(env)


def _asker(policy: Policy, cwd: str, env: Any, roots: frozenset[str]) -> Callable[..., Evaluation]:
    home = dict(cast("tuple[tuple[str, str], ...]", policy.environment.set)).get("HOME") or home_of(env)
    path = search_path(env)
    inner_path = _inner_path(policy, env)

    def ask(rules: ExecPolicy, words: tuple[str, ...], program: str | None) -> Evaluation:
        return evaluate(rules, words, path=path, inner_path=inner_path, cwd=cwd, roots=roots, executable=program, home=home)

    return ask


def examined(args: Any, options: Mapping[str, Any], policy: Policy) -> Evaluation:
    """What the rules of a policy say of a command. Nobody is asked."""
    args, options = _snapshot(args, options)
    words, executable = vector(args, bool(options.get("shell")), options.get("executable"))
    cwd = os.path.abspath(os.fsdecode(options["cwd"])) if options.get("cwd") is not None else _getcwd()
    ask = _asker(policy, cwd, options.get("env"), _untrusted(policy, cwd))
    return ask(policy.commands or _EVERYTHING, words, executable)


class Case:
    """One command, from the question to the permit."""

    def __init__(self, args: Any, options: Mapping[str, Any], policy: Policy) -> None:
        """
        Raises:
            CommandRejected: the rules forbid it, or would ask and there is nobody.
            PolicyError: there is no command, or the policy's own files are where a command can write.
        """
        self.args, self.options = _snapshot(args, options)
        self.policy = policy
        shell = bool(self.options.get("shell"))
        self.words, self.executable = vector(self.args, shell, self.options.get("executable"))
        cwd = self.options.get("cwd")
        self.cwd = os.path.abspath(os.fsdecode(cwd)) if cwd is not None else _getcwd()
        self.request: ApprovalRequest | None = None
        self.approval: Approval | None = None
        self.upgrade: Policy | None = None
        roots = self.roots = _untrusted(policy, self.cwd)
        self._refuse_own_files(_roots(policy, self.cwd))
        ask = _asker(policy, self.cwd, self.options.get("env"), roots)
        self.evaluation = ask(policy.commands or _EVERYTHING, self.words, self.executable)
        decision = self.evaluation.decision
        environment = self.options.get("env") or {}
        telling = sorted((os.fsdecode(k), os.fsdecode(v)) for k, v in environment.items() if influences(os.fsdecode(k)))
        program = self.evaluation.program or self.executable
        self.key = Key(self.words, program, self.cwd, _name(policy), fingerprint(telling) if telling else "")
        if decision == "forbidden":
            raise self._rejected(self.evaluation.reason, self.evaluation.justification)
        store = store_of(policy)
        trusted = False
        if decision == "prompt":
            trusted = store.knows(self.key) or self._settled(store.rules(self.key.policy), ask)
        wanted = policy.upgrade_to if policy.upgrade_to is not None and writes(self.evaluation) else None
        explicit = policy.commands is not None and decision == "allow" and _by_rules(self.evaluation)
        if wanted is not None and (explicit or trusted):
            self.upgrade = wanted
        elif wanted is not None and policy.approver is not None:
            self._ask(wanted)
            return
        if decision == "allow" or trusted:
            by = "trust" if trusted else "rules"
            note = "" if wanted is None or self.upgrade is not None else "not raised: no rule allows it, and nobody can be asked"
            self._grant(by, None, None, note)
            return
        if policy.approver is None:
            raise self._rejected(
                f"it has to be asked for, and there is no approver= ({self.evaluation.reason})", self.evaluation.justification
            )
        self._ask(wanted)

    def _settled(self, rules: tuple[CommandRule, ...], ask: Any) -> bool:
        """Whether rules that came of approvals cover every part that is asked for."""
        if not rules or not self.evaluation.settleable:
            return False
        approved = ExecPolicy(rules, "forbidden")
        asked = [part for part in self.evaluation.parts if part.decision == "prompt"]
        return bool(asked) and all(
            part.open and part.literal and ask(approved, part.argv, None).decision == "allow" for part in asked
        )

    def _refuse_own_files(self, roots: tuple[str, ...]) -> None:
        path = self.policy.trust.path if self.policy.trust is not None else None
        if path is not None and any(_paths.is_within(os.path.realpath(path), root) for root in roots):
            raise PolicyError(f"the approvals in {path!r} lie where a command can write its own")

    def _rejected(self, reason: str, justification: str | None) -> CommandRejected:
        deciding = [rule for rule in self.evaluation.rules if rule.decision == self.evaluation.decision]
        shown = self.words[0] if self.executable is None else self.executable
        message = f"the command is not allowed: {reason}"
        if justification:
            message += f" [{justification}]"
        return CommandRejected(errno.EACCES, message, shown, str(deciding[0]) if deciding else None, justification)

    def _ask(self, upgrade: Policy | None) -> None:
        evaluation = self.evaluation
        self.upgrade = upgrade
        asked = [part for part in evaluation.parts if part.decision == "prompt"]
        suggested = None
        if len(asked) == 1 and asked[0].open and evaluation.settleable:
            suggested = suggestion(asked[0].argv, asked[0].literal)
        reason = evaluation.reason if evaluation.decision == "prompt" else "it writes, and the policy is read-only"
        self.request = ApprovalRequest(
            self.words, self.cwd, evaluation.parts, tuple(map(str, evaluation.rules)), reason, evaluation.justification,
            permits(upgrade or self.policy), suggested, upgrade, self.policy, evaluation,
        )  # fmt: skip

    def answered(self, given: Any) -> None:
        """Takes the approver's answer.

        Raises:
            CommandRejected: it is no.
            OSError: it cannot be saved.
        """
        answer, rule = _understood(given)
        if answer.kind == "deny":
            raise self._rejected(answer.reason or "whoever was asked said no", self.evaluation.justification)
        if answer.kind in ("session", "always"):
            if rule is None and answer.kind == "always" and self.request is not None:
                rule = self.request.suggested_rule
            store_of(self.policy).add(self.key, rule, always=answer.kind == "always")
        text = str(rule or exact_rule([*self.words])) if answer.kind == "always" else None
        self._grant("approver", answer.kind, text, "")

    def _grant(self, by: str, answer: str | None, rule: str | None, note: str) -> None:
        raised = None
        if self.upgrade is not None:
            raised = " · ".join(permits(self.upgrade))
            log.info("raised to upgrade_to: %s", " ".join(self.words))
        self.approval = Approval(by, answer, rule, self.evaluation.reason, self.evaluation.justification, raised, note)

    def permit(self) -> Permit:
        assert self.approval is not None
        approval = self.approval if self.policy.commands is not None or self.policy.upgrade_to is not None else None
        return Permit(self.args, self.options, self.upgrade or self.policy, self.evaluation.program, approval, self.roots)


def _by_rules(evaluation: Evaluation) -> bool:
    counting = [part for part in evaluation.parts if part.decision is not None]
    return bool(counting) and all(any(rule.decision == "allow" for rule in part.rules) for part in counting)


@functools.lru_cache(256)
def _name(policy: Policy) -> str:
    """The policy, for a file that outlives the process. The rules count too: under others it was another question."""
    rules = policy.commands
    plain = policy.replace(commands=None, upgrade_to=None)
    raised = policy.upgrade_to.replace(commands=None).to_dict() if policy.upgrade_to is not None else None
    shown = () if rules is None else (*map(str, rules.rules), rules.default, rules.heuristic)
    return fingerprint(plain.to_dict(), raised, shown)


def _getcwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _understood(given: Any) -> tuple[Answer, CommandRule | None]:
    """An answer, and its rule. What is none is a no."""
    if isinstance(given, tuple) and not isinstance(given, Answer) and len(given) == 2:
        given = Answer(*given)
    if isinstance(given, Answer):
        answer = given
    elif given is True:
        answer = Answer("once")
    elif isinstance(given, str):
        answer = Answer(given)  # type: ignore[arg-type]
    else:
        answer = Answer("deny", reason=None if given in (False, None) else f"the approver said {given!r}, which is no answer")
    if answer.kind not in ("once", "session", "always", "deny"):
        return Answer("deny", reason=f"the approver said {answer.kind!r}, which is no answer"), None
    rule = answer.rule
    if isinstance(rule, str):
        try:
            rules = ExecPolicy.from_text(rule, "the approver's rule").rules
        except PolicyError as error:
            return Answer("deny", reason=str(error)), None
        rule = rules[0] if len(rules) == 1 and isinstance(rules[0], CommandRule) else None
        if rule is None:
            return Answer("deny", reason="the approver's rule is none, or several"), None
        rule = rule._replace(source=None)
    if rule is not None and (not isinstance(rule, CommandRule) or rule.decision != "allow"):
        return Answer("deny", reason=f"the approver's rule {rule} allows nothing"), None
    return answer, rule


def is_async(approver: Any) -> bool:
    return inspect.iscoroutinefunction(approver) or inspect.iscoroutinefunction(getattr(approver, "__call__", None))  # noqa: B004


def ask_now(approver: Any, request: ApprovalRequest) -> Any:
    """Asks from synchronous code. What it raises means no.

    Raises:
        PolicyError: the approver is asynchronous.
    """
    if is_async(approver):
        raise PolicyError("approver= is asynchronous, and this call is not: await aio.run(...), or pass an ordinary function")
    try:
        answer = approver(request)
    except Exception as error:
        return failed(error)
    if inspect.isawaitable(answer):
        getattr(answer, "close", lambda: None)()
        raise PolicyError("approver= is asynchronous, and this call is not: await aio.run(...), or pass an ordinary function")
    return answer


async def ask(approver: Any, request: ApprovalRequest, in_thread: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    """Asks from an event loop; an ordinary function in a thread. What it raises means no."""
    try:
        if is_async(approver):
            return await approver(request)
        answer = await in_thread(approver, request)
        return await answer if inspect.isawaitable(answer) else answer
    except Exception as error:
        return failed(error)


def failed(error: Exception) -> Answer:
    log.warning("an approver failed, which means no", exc_info=error)
    return Answer("deny", reason=f"the approver failed: {type(error).__name__}: {error}")


@functools.lru_cache(64)
def permits(policy: Policy) -> tuple[str, ...]:
    """What the sandbox lets a command do, for whoever is asked."""
    if policy.unconfined:
        return ("everything: there is no sandbox",)
    roots = [str(path) for path in policy.write]
    out = [
        f"write: {', '.join(roots)}" if roots else "write: nothing" + (" but a private /tmp" if policy.tmp == "private" else "")
    ]
    if policy.tmp not in ("private", "none"):
        out.append(f"/tmp: {policy.tmp}")
    out.append("read: everything but secrets" if policy.read == "all" else f"read: {policy.read}")
    if policy.network == "none":
        out.append("network: none")
    elif isinstance(policy.network, tuple):
        out.append("network: " + ", ".join(f"{r.decision} {r.host}{f':{r.port}' if r.port else ''}" for r in policy.network))
    else:
        out.append("network: everything")
    limits = [f"{n}={v}" for n in policy.limits.names() if (v := getattr(policy.limits, n)) is not None]
    if limits:
        out.append(f"limits: {', '.join(limits)}")
    if policy.git != "read-only":
        out.append(f"git: {policy.git}")
    return tuple(out)
