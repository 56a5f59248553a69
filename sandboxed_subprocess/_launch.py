"""Launch: one command on its way, what it owns, and how it comes to an end.

A backend makes it; `Popen` (or an event loop) starts `argv` with it, asks `settle()` whether the command runs, and calls
`finish()` when it has learned of the end.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence

from . import _paths
from ._plan import Plan
from ._report import Report, Usage, Violation


class ExecFailed(Exception):
    """The sandbox stood, but the program could not be executed: the caller's ordinary `OSError`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.errno = number


class Quarantine:
    """Compares, when a run is over, the names that the host would trust with those that were there before.

    What appeared is renamed, so that nothing is lost and nothing is executed, and reported.
    """

    def __init__(self, plan: Plan) -> None:
        self._roots = set(plan.view.roots)
        self._homes = [h for h in plan.view.homes if any(_paths.is_within(h, r) for r in plan.view.roots)]
        self._keeps_git = plan.policy.git == "writable"
        self._before = []
        for directory, names in plan.composition.watch:
            self._before.append((directory, names, _paths.stamp(directory)))
        self._startup = [
            path for home in self._homes for name in _paths.STARTUP_IN_HOME if not os.path.lexists(path := f"{home}/{name}")
        ]
        self._bare = {root for root in self._roots if self._looks_bare(root)}

    @staticmethod
    def _looks_bare(root: str) -> bool:
        return all(os.path.lexists(f"{root}/{name}") for name in ("HEAD", "objects", "refs"))

    def sweep(self) -> tuple[tuple[tuple[str, str], ...], tuple[Violation, ...]]:
        """(path, new path) of each thing put out of action, and the same as violations."""
        planted = list(self._planted())
        moved = []
        violations = []
        for path in planted:
            away = f"{path}.quarantined-{secrets.token_hex(4)}"
            try:
                os.rename(path, away)
            except OSError as error:
                violations.append(Violation("planted", f"{path} (still there: {error.strerror})", "quarantine"))
                continue
            moved.append((path, away))
            violations.append(Violation("planted", path, "quarantine"))
        return tuple(moved), tuple(violations)

    def _planted(self) -> list[str]:
        found = []
        for directory, names, stamp in self._before:
            if stamp == -1 or _paths.stamp(directory) == stamp:
                continue
            if directory in self._roots:
                for name in _paths.PROTECTED_NAMES - names:
                    if (name != _paths.GIT or not self._keeps_git) and os.path.lexists(f"{directory}/{name}"):
                        found.append(f"{directory}/{name}")
                if not self._keeps_git and directory not in self._bare and self._looks_bare(directory):
                    found.append(f"{directory}/HEAD")
            else:
                try:
                    now = os.listdir(directory)
                except OSError:
                    continue
                found += [f"{directory}/{n}" for n in now if n not in names and _paths.GIT_PLANTED.fullmatch(n)]
        found += [path for path in self._startup if os.path.lexists(path)]
        return found


class Launch:
    """What one launch owns. Backends derive from it; `Popen` and its kin, which spawn, use it.

    Attributes:
        argv, executable, pass_fds, environ: for the spawn, in place of the user's.
        report: filled in as the command starts and ends.
    """

    def __init__(
        self, *, plan: Plan, report: Report, argv: Sequence[bytes | str], executable: str, pass_fds: Sequence[int]
    ) -> None:
        self.plan = plan
        self.report = report
        self.argv = argv
        self.executable = executable
        self.pass_fds = pass_fds
        self.environ = plan.surroundings.environ
        self.owner = os.getpid()
        self.killed = False
        self._started = time.monotonic()
        self._quarantine = Quarantine(plan) if plan.composition.watch else None
        self._finished = False

    def settle(self, pid: int) -> None:
        """Returns once the command runs.

        Raises:
            ExecFailed: the program could not be executed.
            SandboxSetupError: a restriction could not be put in place, or the launcher died without a word.
        """
        raise NotImplementedError

    def send_signal(self, number: int) -> None:
        """To the command itself, whose handler runs. Nothing happens once it has ended."""
        raise NotImplementedError

    def kill(self) -> None:
        """Ends every process of the sandbox, so that all are dead when `wait()` returns."""
        raise NotImplementedError

    def close_child_side(self) -> None:
        """Once the child has its copies, or will never have them."""
        raise NotImplementedError

    def close_parent_side(self) -> None:
        """When the launch is over. May be called more than once."""
        raise NotImplementedError

    def record_end(self, wall: float) -> None:
        """Completes the report from what the backend knows of the end. Never blocks, never raises."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Nothing was started."""
        self._finished = True
        self.close_child_side()
        self.close_parent_side()

    def finish(self) -> None:
        """Called when the exit of the launched process is known. Never blocks, never raises, acts once.

        It runs with the lock of `Popen.wait()` held, in `__del__` at interpreter exit, and in children of a fork,
        where everything belongs to the parent.
        """
        if self._finished or os.getpid() != self.owner:
            return
        self._finished = True
        self.record_end(time.monotonic() - self._started)
        self.close_parent_side()
        if self._quarantine is not None:
            moved, violations = self._quarantine.sweep()
            self.report.quarantined += moved
            self.report.violations += violations

    def __del__(self) -> None:
        if not self.__dict__.get("_finished", True) and os.getpid() == self.owner:
            self.abandon()


def unknown_end(launch: Launch, wall: float) -> None:
    """The report of a launch of which nothing more was heard."""
    report = launch.report
    report.ended = report.ended or ("killed" if launch.killed else "unknown")
    report.usage = Usage(wall)
