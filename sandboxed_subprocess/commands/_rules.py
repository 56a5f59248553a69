"""Command rules as data, and whether one matches a vector of words. Nothing here looks at a file system."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Union

from .._errors import RulesError
from ._words import Dynamic, Word

Decision = Literal["allow", "prompt", "forbidden"]
DECISIONS: dict[str, Decision] = {
    "allow": "allow",
    "allowed": "allow",
    "prompt": "prompt",
    "forbidden": "forbidden",
    "deny": "forbidden",
    "denied": "forbidden",
}
STRICTNESS: dict[Decision, int] = {"allow": 0, "prompt": 1, "forbidden": 2}
Pattern = Sequence[Union[str, Sequence[str]]]
NO, MAYBE, YES = 0, 1, 2


def strictest(decisions: Iterable[Decision]) -> Decision:
    """The most restrictive of these; "allow" where there are none."""
    return max(decisions, key=STRICTNESS.__getitem__, default="allow")


def decision(value: object, where: str) -> Decision:
    """
    Raises:
        RulesError: no such decision.
    """
    if not isinstance(value, str) or value not in DECISIONS:
        raise RulesError(f"{where}: decision={value!r}: one of {', '.join(DECISIONS)}")
    return DECISIONS[value]


class CommandRule(NamedTuple):
    """One rule about commands; made by `prefix_rule` and `exact_rule`.

    Attributes:
        pattern: for each word the alternatives; the first is the program.
        exact: the pattern is the whole vector.
        source: "file:line" of a rule that was read.
    """

    pattern: tuple[tuple[str, ...], ...]
    decision: Decision
    justification: str | None = None
    exact: bool = False
    source: str | None = None

    def __str__(self) -> str:
        """The rule as it would stand in a file."""
        return f"{self.brief[:-1]}, justification={_quoted(self.justification)})" if self.justification else self.brief

    @property
    def brief(self) -> str:
        """The same without its justification."""
        return _brief(self)

    def _brief(self) -> str:
        tokens = [_quoted(t[0]) if len(t) == 1 else f"[{', '.join(map(_quoted, t))}]" for t in self.pattern]
        return f"{'exact' if self.exact else 'prefix'}_rule([{', '.join(tokens)}], decision={_quoted(self.decision)})"

    def match_arguments(self, words: Sequence[Word]) -> int:
        """Whether the pattern behind the program matches the words behind the program: NO, MAYBE or YES.

        A word that is not known may be what the pattern asks for; one that may become several may also become none.
        """
        places = {0}  # how much of the pattern may have been matched so far
        certain = True
        end = len(self.pattern)
        for word in words:
            if end - 1 in places and not self.exact:
                return YES if certain and len(places) == 1 else MAYBE
            following: set[int] = set()
            for place in places:
                if isinstance(word, Dynamic):
                    certain = False
                    if word.many:
                        following.update(range(place, end))
                        if place == end - 1:
                            following.add(place)
                    elif place < end - 1 and any(token.startswith(word.start) for token in self.pattern[place + 1]):
                        following.add(place + 1)
                elif place < end - 1 and word in self.pattern[place + 1]:
                    following.add(place + 1)
            places = following
            if not places:
                return NO
        return (YES if certain else MAYBE) if end - 1 in places else NO

    def match_around_options(self, words: Sequence[Word]) -> bool:
        """Whether the pattern's words are all there in their order, with options, and values of options, in between.

        `git reset -q HEAD~1 --hard` is not what `["git", "reset", "--hard"]` says, and may well do what it means.
        """
        place, end, after_option = 1, len(self.pattern), False
        for word in words:
            if place == end:
                break
            if word in self.pattern[place]:
                place += 1
                after_option = False
                continue
            option = word.startswith(("-", "+")) or isinstance(word, Dynamic)
            if not option and not after_option and not any(token.startswith("-") for token in self.pattern[place]):
                return False
            after_option = option
        return place == end


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)


@functools.lru_cache(4096)
def _brief(rule: CommandRule) -> str:
    return rule._brief()


class HostExecutable(NamedTuple):
    """The files that a program's bare name may stand for in rules that allow."""

    name: str
    paths: tuple[str, ...]
    source: str | None = None


def _call(name: str, source: str | None) -> str:
    return f"{source}: {name}" if source else name


def _list(value: object, where: str) -> list[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise RulesError(f"{where}: a list is needed, not {value!r}")
    return list(value)


def _pattern(value: object, where: str, alternatives: bool) -> tuple[tuple[str, ...], ...]:
    out = []
    for token in _list(value, f"{where}: pattern"):
        choices = [token] if isinstance(token, str) else token
        if not isinstance(choices, (list, tuple)) or not choices or not all(isinstance(c, str) for c in choices):
            raise RulesError(f"{where}: pattern: {token!r} is neither a string nor a list of strings")
        if len(choices) > 1 and not alternatives:
            raise RulesError(f"{where}: a whole vector has no alternatives: {token!r}")
        if any("\0" in choice for choice in choices):
            raise RulesError(f"{where}: pattern: {token!r} contains a NUL")
        out.append(tuple(dict.fromkeys(choices)))
    if not out:
        raise RulesError(f"{where}: pattern cannot be empty")
    if any(not choice for choice in out[0]):
        raise RulesError(f"{where}: pattern: a program has a name")
    return tuple(out)


def _why(value: object, where: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise RulesError(f"{where}: justification cannot be empty")
    return value


def _examples(value: object, where: str) -> list[list[str]]:
    if value is None:
        return []
    out = []
    for item in _list(value, where):
        if isinstance(item, str):
            try:
                words = shlex.split(item)
            except ValueError as error:
                raise RulesError(f"{where}: the example {item!r} is not a command line ({error})") from None
        elif isinstance(item, (list, tuple)) and all(isinstance(word, str) for word in item):
            words = list(item)
        else:
            raise RulesError(f"{where}: an example is a string or a list of strings, not {item!r}")
        if not words:
            raise RulesError(f"{where}: an example cannot be empty")
        out.append(words)
    return out


def _covers(rule: CommandRule, words: list[str]) -> bool:
    named = words[0] in rule.pattern[0] or ("/" in words[0] and os.path.basename(words[0]) in rule.pattern[0])
    return named and rule.match_arguments(words[1:]) == YES


def _checked(rule: CommandRule, where: str, match: object, not_match: object) -> CommandRule:
    for words in _examples(match, f"{where}: match"):
        if not _covers(rule, words):
            raise RulesError(f"{where}: match: {rule} does not match its example {words!r}", rule=str(rule), example=tuple(words))
    for words in _examples(not_match, f"{where}: not_match"):
        if _covers(rule, words):
            raise RulesError(f"{where}: not_match: {rule} matches its example {words!r}", rule=str(rule), example=tuple(words))
    return rule


def prefix_rule(
    pattern: Pattern,
    decision: str = "allow",
    justification: str | None = None,
    match: Sequence[str | Sequence[str]] | None = None,
    not_match: Sequence[str | Sequence[str]] | None = None,
    *,
    source: str | None = None,
) -> CommandRule:
    """A rule for every command that begins with these words, whatever follows them.

    Args:
        pattern: a string for each word, or a list of alternatives. The first is the program, by name or absolute path.
        decision: "allow" (or "allowed"), "prompt", "forbidden" (or "deny", "denied").
        justification: shown to whoever is asked or refused.
        match, not_match: commands that the rule has to match, and must not; checked now. A list of words, or a line.

    Raises:
        RulesError: anything of that is wrong; `rule` and `example` say which.
    """
    where = _call("prefix_rule", source)
    rule = CommandRule(_pattern(pattern, where, True), _decision(decision, where), _why(justification, where), False, source)
    return _checked(rule, where, match, not_match)


def exact_rule(
    pattern: Pattern,
    decision: str = "allow",
    justification: str | None = None,
    match: Sequence[str | Sequence[str]] | None = None,
    not_match: Sequence[str | Sequence[str]] | None = None,
    *,
    source: str | None = None,
) -> CommandRule:
    """A rule for one vector of words, no more and no less. Arguments and errors as for `prefix_rule`."""
    where = _call("exact_rule", source)
    rule = CommandRule(_pattern(pattern, where, False), _decision(decision, where), _why(justification, where), True, source)
    return _checked(rule, where, match, not_match)


_decision = decision


def host_executable(name: str, paths: Sequence[str], *, source: str | None = None) -> HostExecutable:
    """The files for which rules that allow the bare `name` count; without this, the one that the caller's PATH finds.

    Raises:
        RulesError: `name` is not a bare name, or a path is not absolute (`~/` is) or has another name.
    """
    where = _call("host_executable", source)
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise RulesError(f"{where}: name={name!r} is not the bare name of a program")
    out = []
    for path in _list(paths, f"{where}: paths"):
        if not isinstance(path, str) or not (os.path.isabs(path) or path.startswith("~/")):
            raise RulesError(f"{where}: {path!r} is not an absolute path")
        if bare_name(path) != bare_name(name):
            raise RulesError(f"{where}: {path!r} does not have the name {name!r}")
        out.append(os.path.normpath(os.path.expanduser(path)))
    return HostExecutable(name, tuple(dict.fromkeys(out)), source)


_SUFFIXES = (".exe", ".com", ".bat", ".cmd")


@functools.lru_cache(4096)
def bare_name(path: str) -> str:
    """The last component as programs are compared: in lower case, without what Windows appends."""
    name = path.rsplit("/", 1)[-1].lower()
    if name[-4:] in _SUFFIXES and len(name) > 4:
        return name[:-4].rsplit("\\", 1)[-1]
    return name
