"""The errors of this package. All derive from `SandboxError`, and so from `subprocess.SubprocessError`.

Each also derives from the family that callers already catch (`ValueError`, `PermissionError`,
`CalledProcessError`), keeps what it knows in fields, survives pickling, and says the way out.
"""

from __future__ import annotations

import errno as _errno
import os
import subprocess
from collections.abc import Sequence
from typing import Any


class SandboxError(subprocess.SubprocessError):
    """Base of everything that this package raises on its own account."""


class PolicyError(SandboxError, ValueError):
    """The policy contradicts itself or names something that cannot be; nothing was started."""


class RulesError(PolicyError):
    """A rule cannot be, or does not do what its examples say. Nothing of its file is in force.

    Attributes:
        file, line: where, for rules that were read.
        rule: its text, or None where it cannot even be read.
        example: the words of the `match` or `not_match` example that fails, or None.
    """

    def __init__(
        self, message: str, file: str | None = None, line: int | None = None, rule: str | None = None,
        example: tuple[str, ...] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.file = file
        self.line = line
        self.rule = rule
        self.example = example

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.file, self.line, self.rule, self.example)


class Missing(SandboxError):
    """Why one backend cannot work on this host. Internal: callers see `SandboxUnavailable`.

    `transient`: it may be different the next time (a trial that was killed), so that nobody should remember it.
    """

    def __init__(self, reason: str, advice: str = "", transient: bool = False) -> None:
        super().__init__(reason, advice, transient)
        self.reason = reason
        self.advice = advice
        self.transient = transient

    def __str__(self) -> str:
        return self.reason


class SandboxUnavailable(SandboxError):
    """No backend on this host can enforce the policy in full; nothing was started.

    Attributes:
        reasons: backend name -> why it cannot.
        advice: one line that says what to do about it.
    """

    def __init__(self, reasons: dict[str, str], advice: str = "") -> None:
        super().__init__(reasons, advice)
        self.reasons = reasons
        self.advice = advice

    def __str__(self) -> str:
        why = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
        return f"no sandbox here can enforce this policy ({why})" + (f". {self.advice}" if self.advice else "")


# Where it cannot be told, or is too late: the command may have lived for some microseconds, in its sandbox.
_AS_IT_BEGINS = ("launcher", "running", "pidfd")


class SandboxSetupError(SandboxError):
    """A restriction could not be put in place, and the command did not run; or the launcher was killed, or this process had no
    descriptors left, in the moment in which the command began (steps "launcher", "running" and "pidfd"), and it was ended.

    Attributes:
        step: the launcher's name for what it was doing ("open_tree", "landlock_rules", "seccomp", ...).
        errno: the system's error number, or 0 when the launcher died without a word.
        path: what it was doing it to, or None.
    """

    def __init__(self, step: str, errno: int = 0, path: str | None = None, detail: str = "") -> None:
        super().__init__(step, errno, path, detail)
        self.step = step
        self.errno = errno
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        ended = "so the command was ended, if it had begun" if self.step in _AS_IT_BEGINS else "so the command did not run"
        what = f"the sandbox could not be set up, {ended}: {self.step}"
        if self.errno:
            what += f": [{_errno.errorcode.get(self.errno, self.errno)}] {os.strerror(self.errno)}"
        if self.path:
            what += f": {self.path!r}"
        return what + (f" ({self.detail})" if self.detail else "")


class CommandRejected(SandboxError, PermissionError):
    """The command rules, or whoever was asked, said no.

    `errno` is EACCES and `filename` the program, as for any `PermissionError`.

    Attributes:
        rule: text of the deciding rule, or None.
        justification: what the rule's author gave as its reason, or None.
    """

    def __init__(
        self,
        errno: int,
        message: str,
        program: Any = None,
        rule: str | None = None,
        justification: str | None = None,
    ) -> None:
        super().__init__(errno, message, program)
        self.rule = rule
        self.justification = justification

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errno, self.strerror, self.filename, self.rule, self.justification)


class LimitExceeded(SandboxError, subprocess.CalledProcessError):
    """A limit of the policy ended the run, and `check=True` asked to be told.

    Attributes:
        limit: the field of `Limits` that was crossed.
    """

    def __init__(
        self,
        returncode: int,
        cmd: str | bytes | Sequence[Any],
        output: Any = None,
        stderr: Any = None,
        limit: str = "",
    ) -> None:
        # CalledProcessError.__init__ is not cooperative; its fields are set here as it sets them.
        Exception.__init__(self, returncode, cmd, output, stderr, limit)
        self.returncode = returncode
        self.cmd = cmd
        self.output = output
        self.stderr = stderr
        self.limit = limit

    def __str__(self) -> str:
        return f"Command {self.cmd!r} was ended by the limit {self.limit} (return code {self.returncode})."


def impossible(what: str) -> SandboxError:
    """An error for states that the code rules out; whoever sees it should report it."""
    return SandboxError(f"bug in sandboxed_subprocess: {what}; please report it with the output of `sandboxed-subprocess doctor`")
