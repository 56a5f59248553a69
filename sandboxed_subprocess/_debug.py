"""Questions about a policy that are answered without running anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._policy import Policy
from ._prepare import resolve_policy

if TYPE_CHECKING:
    from .commands._evaluate import Evaluation


def check_command(
    args: Any, policy: Policy | str | None = None, *,
    shell: bool = False, cwd: Any = None, env: Any = None, executable: Any = None,
) -> Evaluation:  # fmt: skip
    """What the command rules of a policy say of a command: the question that `run()` asks before it starts anything. Nobody is
    asked, and nothing is started. Without rules, everything is allowed.

    Args:
        args, shell, cwd, env, executable: as for `Popen`.

    Raises:
        PolicyError: there is no command, or no such preset.
    """
    from .commands._approval import examined

    options = {"shell": shell, "cwd": cwd, "env": env, "executable": executable}
    return examined(args, options, resolve_policy(policy))
