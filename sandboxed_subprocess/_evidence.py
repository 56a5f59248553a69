"""What a command wrote of refusals, held against the plan: evidence of what it was denied.

The kernel tells nobody of a read-only mount or a mask that somebody ran into. But nearly every program says so, with a path and
the text of the error. A path that the plan would have allowed is no violation, and neither is what an ordinary
user could not have done without a sandbox.
"""

from __future__ import annotations

import os
import re

from . import _paths
from ._errors import PolicyError
from ._plan import COMMIT, HOOKS, REPOSITORY, Access, Plan, Rule
from ._report import Violation

_READ_ONLY = r"read-only file ?system|\bEROFS\b|os error 30\b"
_REFUSED = r"permission denied|operation not permitted|\bEACCES\b|\bEPERM\b|os error 1\b|os error 13\b"
_TEXT = re.compile(f"(?P<mount>{_READ_ONLY})|{_REFUSED}", re.IGNORECASE)
# In quotes of any kind (coreutils, Python, git), or bare: then it ends at a space or a bracket, or at the colon before the text
# of the error. None of them takes more than one look at each character.
_QUOTED = re.compile("'([^'\n]+)'|\"([^\"\n]+)\"|\u2018([^\u2018\u2019\n]+)\u2019|`([^'`\n]+)['`]")
_BARE = re.compile("[^\\s'\"\u2018\u2019`(),]+")
_MOST = 100  # lines with an error in them, and violations
_LONGEST = 1024


def denied_paths(text: str, plan: Plan, cwd: str) -> tuple[Violation, ...]:
    """
    Args:
        text: what the command wrote to stderr.
        cwd: where it started, for relative paths.
    """
    found: dict[tuple[str, str], Violation] = {}
    for number, match in enumerate(_TEXT.finditer(text)):
        if number >= _MOST:
            break
        begin = max(text.rfind("\n", 0, match.start()) + 1, match.start() - _LONGEST)
        end = text.find("\n", match.end())
        after = text[match.end() : min(end if end >= 0 else len(text), match.end() + _LONGEST)]
        for name in _names(text[begin : match.start()], after):
            try:
                violation = _violation(os.path.join(cwd, name), plan, bool(match["mount"]))
            except (PolicyError, OSError, ValueError):
                continue  # whatever the command has made of that name
            if violation is not None:
                found[violation.kind, violation.detail] = violation
                break
    return tuple(found.values())


def observed(path: str, kind: str, by_mount: bool, plan: Plan) -> Violation | None:
    """A refusal that was seen as it happened: of what the plan refuses, and not of what this user may not do anywhere.

    Args:
        path: absolute, as the command named it or where that led.
        by_mount: a read-only mount refused it, or Landlock.
    """
    try:
        violation = _violation(path, plan, by_mount, seen=True)
    except (PolicyError, OSError, ValueError):
        return None
    if violation is None or (kind == "read" and violation.kind == "write"):
        return None
    return violation._replace(source="observer")


def _names(before: str, after: str) -> list[str]:
    """What may be the path that an error is about, the likeliest first.

    Of bare words only the nearest: what stands before it is the program that complains.
    """
    quoted = [next(filter(None, groups)) for part in (_QUOTED.findall(before)[::-1], _QUOTED.findall(after)) for groups in part]
    bare = [word.strip(":") for word in (*_BARE.findall(before)[::-1], *_BARE.findall(after)) if "/" in word]
    likely = [name for name in quoted if "/" in name] or bare[:1] or quoted  # the error's own text may stand in quotes
    return [name for name in likely if "\0" not in name and len(name) < _LONGEST]


def _violation(path: str, plan: Plan, by_mount: bool, seen: bool = False) -> Violation | None:
    real = _paths.resolve(path).real
    if real == "/":
        return None
    rule = plan.composition.decide(real)
    if rule is not None and rule.access is Access.DENY:
        return Violation("read", real, "stderr", _how_to_read(rule, real))
    if rule is not None and rule.access is Access.WRITE:
        return None
    if any(_paths.is_within(real, p) for p in plan.view.private) and not (seen and by_mount):
        return None  # what a command writes of it is not enough: the host's directory is another
    # Root writes what it likes outside, and a user what is his: only there the sandbox is what refused.
    there = real if os.path.lexists(real) else os.path.dirname(real)
    if not by_mount and not os.access(there, os.W_OK):
        return None
    return Violation("write", real, "stderr", _how_to_write(plan, rule, real))


def _how_to_read(rule: Rule, path: str) -> str:
    if rule.why == "sensitive path":
        return f"it is a sensitive path; exceptions=[{rule.path!r}] allows reading it"
    return f"it is denied by {rule.why}"


def _how_to_write(plan: Plan, rule: Rule | None, path: str) -> str:
    roots = ", ".join((*plan.view.roots, *(plan.view.private if plan.view.private_writable else ()))) or "nothing"
    if _paths.is_within(path, "/proc"):
        change = "no policy opens /proc for writing"
    elif rule is None or not rule.pin:
        change = f"write=[{path if os.path.isdir(path) else os.path.dirname(path)!r}] allows it"
    elif rule.why in (REPOSITORY, COMMIT):
        change = "git='commit' opens what a commit needs, git='writable' all of it"
    elif rule.why == HOOKS:
        change = "git='writable' allows it; the host's git would execute what is written there"
    else:
        change = f"it is protected ({rule.why})"
    return f"writable: {roots}; {change}"
