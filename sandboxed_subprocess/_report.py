"""Report: what a sandboxed run was promised, and what became of it."""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple

from ._fields import Fields


class Enforcement(enum.Enum):
    """How much of the policy holds. Anything but FULL has to be asked for."""

    FULL = "everything the policy asks for"
    PARTIAL = "some of it; see Report.gaps"
    NONE = "nothing"


class Violation(NamedTuple):
    """Something that the policy forbids and that was found out.

    Attributes:
        kind: "read", "write", "connect", "syscall" or "planted" (a file put where the host would trust it).
        detail: the path, host or system call.
        source: who noticed: "filter" (each call of that name was refused), "stderr" (what the command wrote of a refusal,
            where the policy agrees), "observer" (with `Policy.observe`: each call), "quarantine".
        advice: what may be written instead, and the one change of the policy that would allow it.
    """

    kind: Literal["read", "write", "connect", "syscall", "planted"]
    detail: str
    source: str
    advice: str = ""


class Approval(NamedTuple):
    """Why a command was let run, where `Policy.commands` or `upgrade_to` has a say.

    Attributes:
        by: "rules", "approver" (who was asked for this run), or "trust" (what was approved before).
        answer: the approver's: "once", "session" or "always".
        rule: for "always": the rule to save.
        reason, justification: of the decision.
        raised: what the policy that the run was raised to permits; None where it was not raised.
        note: why it was not raised, though it writes.
    """

    by: str
    answer: str | None = None
    rule: str | None = None
    reason: str = ""
    justification: str | None = None
    raised: str | None = None
    note: str = ""


class Progress(NamedTuple):
    """How a tree is doing; see `Policy.on_event`. Seconds since the start, and of all processors together; bytes."""

    wall_seconds: float
    cpu_seconds: float
    memory_bytes: int
    processes: int
    threads: int
    written_bytes: int


class Usage(NamedTuple):
    """What the whole tree used. Seconds and bytes.

    Attributes:
        user_seconds, system_seconds: of every process, but for those that ended while their parent ignored SIGCHLD.
        max_rss_bytes: the largest single process, files that it has mapped included (as GNU time says it).
        peak_memory_bytes: the most at one time: pages that no file holds, each once, and files in memory (tmpfs, memfd, shared
            memory). Seen every 20 to 100 ms, and at least as much as the largest process.
        peak_processes, peak_threads: the most at one time, as far as they were seen.
        written_bytes: on their way to a disk; writes to tmpfs, pipes and sockets do not count.
    """

    wall_seconds: float
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    max_rss_bytes: int = 0
    peak_memory_bytes: int = 0
    peak_processes: int = 0
    peak_threads: int = 0
    written_bytes: int = 0


class Report(Fields):
    """On results, processes and errors as `.sandbox`. Complete once the command has ended.

    Attributes:
        backend: name of the backend, None under `danger_full_access`.
        pid: the command's own pid, as the host numbers it (`Popen.pid` is the sandbox's).
        ended: None while it runs, then "exit", "signal", "killed" (by the caller), "limit", or "unknown" (the
            sandbox itself was killed from outside).
        limit: the field of `Limits` that ended the run.
        limit_reached: what the tree had come to when it was ended: bytes, seconds, a number; None where the kernel did it.
        limits_by: who held the limits of the tree: "cgroup" (a control group made for the run: the kernel bounds memory of every
            kind and the number of threads, and counts processor time exactly; the rest as without one), "init" (process 1 of the
            sandbox looks at its tree many times a second), None where there were none.
        violations: what was refused, as far as it was seen.
        violations_complete: whether nothing can be missing from them: no refused system call, and no file that was refused. Only
            with `Policy.observe`, and `read="all"` (else much is simply not there); without it, paths are known by what a command
            writes.
        gaps: names of what the policy asks for and this run did not have.
        environment_dropped: names of variables that the command did not get to see. Never values.
        quarantined: (path, new path) of what was planted where the host would trust it, and was made inert.
        output_dropped: ("stdout" or "stderr", bytes) of what `limits.output_bytes` kept from the caller.
        processes_ended: names of processes that the command left behind, as far as they were read.
        approval: why the command was let run, where there were rules.
    """

    backend: str | None = None
    enforcement: Enforcement = Enforcement.NONE
    gaps: tuple[str, ...] = ()
    pid: int | None = None
    ended: str | None = None
    limit: str | None = None
    limit_reached: float | None = None
    limits_by: str | None = None
    usage: Usage | None = None
    violations: tuple[Violation, ...] = ()
    violations_complete: bool = False
    environment_dropped: tuple[str, ...] = ()
    quarantined: tuple[tuple[str, str], ...] = ()
    output_dropped: tuple[tuple[str, int], ...] = ()
    processes_ended: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    approval: Approval | None = None

    def to_dict(self) -> dict[str, Any]:
        out = dict(vars(self))
        out["enforcement"] = self.enforcement.name
        out["usage"] = self.usage and self.usage._asdict()
        out["approval"] = self.approval and self.approval._asdict()
        out["violations"] = [violation._asdict() for violation in self.violations]
        return out

    def to_json(self) -> str:
        import json

        return json.dumps(self.to_dict(), indent=2)
