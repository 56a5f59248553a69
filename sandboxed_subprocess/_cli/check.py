"""`check`: what command rules say of a command, for people, scripts and hooks. Nothing is run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..commands import Evaluation, ExecPolicy

# Nothing that a shell or a missing program would end with.
STATUS = {"allow": 0, "prompt": 10, "forbidden": 20}


def rules(files: Sequence[str], heuristics: bool, default: str | None) -> ExecPolicy:
    """
    Raises:
        OSError, RulesError: see `ExecPolicy.load`.
    """
    from ..commands import ExecPolicy

    policy = ExecPolicy.load(*files, default=default or "prompt")
    return policy | ExecPolicy.heuristics(default or "prompt") if heuristics else policy


def main(policy: ExecPolicy, command: Sequence[str], *, shell: bool, json_output: bool) -> int:
    evaluation = policy.check(command[0] if shell else list(command), shell=shell)
    if json_output:
        print(evaluation.to_json())
    else:
        print("\n".join(table(evaluation, command)))
    return STATUS[evaluation.decision]


def table(evaluation: Evaluation, command: Sequence[str]) -> list[str]:
    """The evaluation, a line for each part."""
    lines = [f"{evaluation.decision:<10} {_line(command)}"]
    rows = []
    for part in evaluation.parts:
        why = "; ".join([f"{rule.brief}{f' ({rule.source})' if rule.source else ''}" for rule in part.rules])
        said = part.decision or "-"
        rows.append((said, _line(part.argv), part.reason or why or ("looked into" if part.decision is None else "")))
    if len(rows) > 1 or (rows and rows[0][2]):
        width = min(max(len(row[1]) for row in rows), 60)
        lines += [f"  {said:<10} {shown:<{width}}  {why}" for said, shown, why in rows]
    if evaluation.decision != "allow":
        lines.append(f"because: {evaluation.reason}")
    if evaluation.justification:
        lines.append(f"         {evaluation.justification}")
    return lines


def _line(words: Sequence[str]) -> str:
    text = f"> {words[1]}" if words[:1] == (">",) and len(words) == 2 else shlex.join(words)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
