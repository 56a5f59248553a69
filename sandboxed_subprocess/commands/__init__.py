"""The command rules: the execpolicy language, approvals and session trust.

What is here is imported when it is first used: no launch without rules needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._approval import Answer, ApprovalRequest
    from ._approvers import approve_all_for_tests, approve_on_terminal
    from ._evaluate import Evaluation, Part
    from ._execpolicy import ExecPolicy
    from ._rules import CommandRule, HostExecutable, exact_rule, host_executable, prefix_rule
    from ._trust import TrustStore

_WHERE = {
    "Answer": "_approval",
    "ApprovalRequest": "_approval",
    "approve_all_for_tests": "_approvers",
    "approve_on_terminal": "_approvers",
    "Evaluation": "_evaluate",
    "Part": "_evaluate",
    "ExecPolicy": "_execpolicy",
    "CommandRule": "_rules",
    "HostExecutable": "_rules",
    "exact_rule": "_rules",
    "host_executable": "_rules",
    "prefix_rule": "_rules",
    "TrustStore": "_trust",
}
__all__ = [
    "Answer", "ApprovalRequest", "CommandRule", "Evaluation", "ExecPolicy", "HostExecutable", "Part", "TrustStore",
    "approve_all_for_tests", "approve_on_terminal", "exact_rule", "host_executable", "prefix_rule",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
