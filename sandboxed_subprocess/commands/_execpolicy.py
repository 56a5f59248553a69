"""ExecPolicy: rules about commands, merged, and what they say of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from .._errors import PolicyError, RulesError
from .._fields import frozen_error
from ..network._rules import NetworkRule
from ._rules import CommandRule, Decision, HostExecutable, decision, strictest

if TYPE_CHECKING:
    from ._evaluate import Evaluation, Index

Rule = Union[CommandRule, NetworkRule, HostExecutable]
StrPath = Union[str, "os.PathLike[str]"]


class ExecPolicy:
    """Which commands run without asking, which are asked for, and which never run.

    Of all rules that match, the most restrictive one decides, for each simple command of a script, and over all of them. "allow"
    means without asking; it never means without a sandbox. Frozen, hashable, picklable; `a | b` has the rules of both.

    Args:
        rules: of `prefix_rule()`, `exact_rule()`, `network_rule()` and `host_executable()`.
        default: what no rule is about: "allow", "prompt" or "forbidden".

    Raises:
        RulesError: something among the rules is none.
    """

    __slots__ = ("_hash", "_index", "default", "heuristic", "rules")
    rules: tuple[Rule, ...]
    default: Decision
    heuristic: bool
    _index: Index | None
    _hash: int | None

    def __init__(self, rules: Iterable[Rule] = (), default: str = "prompt", *, _heuristic: bool = False) -> None:
        rules = tuple(rules)
        for rule in rules:
            if not isinstance(rule, (CommandRule, NetworkRule, HostExecutable)):
                raise RulesError(f"ExecPolicy: {rule!r} is no rule; prefix_rule(...) makes one, ExecPolicy.load() reads a file")
        put = object.__setattr__
        put(self, "rules", rules)
        put(self, "default", decision(default, "ExecPolicy(default=)"))
        put(self, "heuristic", _heuristic)
        put(self, "_index", None)
        put(self, "_hash", None)

    @classmethod
    def load(cls, *paths: StrPath, default: str = "prompt") -> ExecPolicy:
        """Reads rules from files. Nothing is ever loaded without being asked for; a file that a command could write is no place
        for rules.

        Raises:
            OSError: one cannot be read.
            RulesError: one is malformed; `file`, `line`, `rule` and `example` say where. Nothing is loaded then.
        """
        from ._starlark import read_rules

        rules: list[Rule] = []
        for path in paths:
            name = os.path.abspath(os.path.expanduser(os.fspath(path)))
            try:
                with open(name, encoding="utf-8") as file:
                    text = file.read()
            except UnicodeDecodeError as error:
                raise RulesError(f"{name}: not a text in UTF-8 ({error.reason})", name) from None
            rules += read_rules(text, name)
        return cls(rules, default)

    @classmethod
    def from_text(cls, text: str, name: str = "<rules>", *, default: str = "prompt") -> ExecPolicy:
        """The same from a string; `name` stands for the file in messages.

        Raises:
            RulesError: it is malformed.
        """
        from ._starlark import read_rules

        if not isinstance(text, str):
            raise RulesError(f"{name}: rules are a str, not {type(text).__name__}")
        return cls(read_rules(text, name), default)

    @classmethod
    def heuristics(cls, default: str = "prompt") -> ExecPolicy:
        """No rules of yours: programs that only read, with options that are known to be harmless, are allowed; those that destroy
        or take over (`rm`, `dd`, `sudo`, `git push --force`, `curl | sh`, ...) are forbidden, whatever rules say; see
        `docs/reference/commands.md` for the lists."""
        return cls((), default, _heuristic=True)

    def __or__(self, other: object) -> ExecPolicy:
        """The rules of both, and the stricter default."""
        if not isinstance(other, ExecPolicy):
            return NotImplemented
        rules = tuple(dict.fromkeys((*self.rules, *other.rules)))
        return ExecPolicy(rules, strictest((self.default, other.default)), _heuristic=self.heuristic or other.heuristic)

    def replace(self, *, rules: Iterable[Rule] | None = None, default: str | None = None) -> ExecPolicy:
        """A copy with other rules, or another default."""
        return ExecPolicy(
            self.rules if rules is None else rules, self.default if default is None else default, _heuristic=self.heuristic
        )

    def with_rules(self, *rules: Rule) -> ExecPolicy:
        """A copy with further rules."""
        return self.replace(rules=(*self.rules, *rules))

    @property
    def command_rules(self) -> tuple[CommandRule, ...]:
        return tuple([rule for rule in self.rules if isinstance(rule, CommandRule)])

    @property
    def network_rules(self) -> tuple[NetworkRule, ...]:
        """What `Policy.network` is extended by."""
        return tuple([rule for rule in self.rules if isinstance(rule, NetworkRule)])

    @property
    def files(self) -> tuple[str, ...]:
        """The files that rules were read from."""
        sources = [rule.source for rule in self.rules if not isinstance(rule, NetworkRule) and rule.source]
        return tuple(dict.fromkeys([source.rpartition(":")[0] or source for source in sources]))

    @property
    def index(self) -> Index:
        if self._index is None:
            from ._evaluate import Index

            executables = [rule for rule in self.rules if isinstance(rule, HostExecutable)]
            index = Index(self.command_rules, executables)
            object.__setattr__(self, "_index", index)
            return index
        return self._index

    def check(
        self,
        argv: Any,
        *,
        env: Mapping[Any, Any] | None = None,
        cwd: Any = None,
        shell: bool = False,
        executable: Any = None,
        writable_roots: Sequence[StrPath] | None = None,
    ) -> Evaluation:
        """What the rules say of a command; `run()` asks the same question of the same words. Nothing is started.

        Args:
            argv: the vector; or a string, which is a script with `shell=True` and a program's name without, as for `Popen`.
            env: whose PATH is searched for the program; None: this process's.
            executable, shell, cwd: as for `Popen`.
            writable_roots: directories that commands write to. No program in them is taken for what it is named. None: the
                current directory.

        Raises:
            PolicyError: there is no command.
        """
        from ._evaluate import evaluate
        from ._identity import home_of, search_path

        words, program = vector(argv, shell, executable)
        here = os.path.abspath(os.fsdecode(cwd)) if cwd is not None else _cwd()
        if writable_roots is None:
            # What getcwd() says is real already.
            roots: tuple[str, ...] = () if here in ("/", home_of()) else (here if cwd is None else os.path.realpath(here),)
        else:
            roots = tuple([os.path.realpath(root) for root in writable_roots])
        path = search_path(env)
        return evaluate(self, words, path=path, inner_path=path, cwd=here, roots=roots, executable=program, home=home_of(env))

    def __setattr__(self, name: str, value: object) -> None:
        raise frozen_error("assign to", name)

    def __delattr__(self, name: str) -> None:
        raise frozen_error("delete", name)

    def _key(self) -> tuple[Any, ...]:
        return self.rules, self.default, self.heuristic

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ExecPolicy) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            value = hash(self._key())
            object.__setattr__(self, "_hash", value)
            return value
        return self._hash

    def __repr__(self) -> str:
        heuristics = ", heuristics" if self.heuristic else ""
        return f"<ExecPolicy of {len(self.rules)} rules, default={self.default!r}{heuristics}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.rules, self.default, self.heuristic)


def _again(rules: tuple[Rule, ...], default: str, heuristic: bool) -> ExecPolicy:
    return ExecPolicy(rules, default, _heuristic=heuristic)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def vector(argv: Any, shell: bool, executable: Any) -> tuple[tuple[str, ...], str | None]:
    """The words of a command and the program that is started, as `Popen` reads them.

    Raises:
        PolicyError: there are none.
    """
    if isinstance(argv, (str, bytes, os.PathLike)):
        if shell and isinstance(argv, os.PathLike):
            raise TypeError("path-like args is not allowed when shell is true")
        argv = [argv]
    words = [word if type(word) is str else os.fsdecode(word) for word in argv]
    if not words or (not shell and not words[0] and executable is None):
        raise PolicyError("a command has at least one word, the program")
    program = None if executable is None else os.fsdecode(executable)
    if shell:
        words = ["/bin/sh", "-c", *words]
        if program is not None:
            words[0] = program
    return tuple(words), program
