"""What was approved before, and for how long that holds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._errors import PolicyError
from ._execpolicy import ExecPolicy, StrPath
from ._identity import families
from ._programs import HANDLERS, SHELLS
from ._rules import CommandRule, bare_name, exact_rule, prefix_rule


class Key(NamedTuple):
    """What was approved: these words, for this file, here, under this policy."""

    argv: tuple[str, ...]
    program: str | None
    cwd: str
    policy: str
    environment: str = ""


class TrustStore:
    """Commands that were approved "for the session", and rules that came of it. Thread-safe.

    A command is known by its whole argument vector, the file that is started, its working directory, its policy, and the
    variables of `env=` that can make it run something else; an approver may widen that, for the policy, by a rule
    (`Answer("session", rule)`), which settles prompts and never lifts what is forbidden. A script that was approved may change.

    Args:
        path: a file for what is approved "always": read when it is first needed, written under a lock at each approval. None: what
            is approved always holds for the session, and the report has the rule to save.

    Raises:
        PolicyError: when it is used, the file is not one of ours, or lies where commands can write.
    """

    def __init__(self, path: StrPath | None = None) -> None:
        self.path = None if path is None else os.path.abspath(os.path.expanduser(os.fspath(path)))
        self._lock = threading.RLock()
        self._commands: set[Key] = set()
        self._rules: dict[tuple[str, CommandRule], None] = {}
        self._read: tuple[int, int, int] | None = None
        self._saved: set[Key] = set()
        self._saved_rules: dict[tuple[str, CommandRule], None] = {}

    def knows(self, key: Key) -> bool:
        with self._lock:
            self._refresh()
            return key in self._commands or key in self._saved

    def rules(self, policy: str) -> tuple[CommandRule, ...]:
        """What was approved by rule under a policy (`Key.policy`), for the session and always."""
        with self._lock:
            self._refresh()
            return tuple(dict.fromkeys([rule for name, rule in (*self._rules, *self._saved_rules) if name == policy]))

    def add(self, key: Key, rule: CommandRule | None = None, *, always: bool = False) -> None:
        """Remembers a command, or a rule in its place.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            if rule is not None:
                self._rules[key.policy, rule] = None
            else:
                self._commands.add(key)
            if always and self.path is not None:
                with self._locked():
                    self._read = None
                    self._refresh()
                    if rule is not None:
                        self._saved_rules[key.policy, rule] = None
                    else:
                        self._saved.add(key)
                    self._write()

    def clear(self) -> None:
        """Forgets what holds for the session. The file stays."""
        with self._lock:
            self._commands.clear()
            self._rules.clear()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among the processes that use the file. The lock is a file beside it, since the file itself is replaced."""
        assert self.path is not None
        fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(fd, msvcrt.LK_LOCK, 1)
            else:
                import fcntl

                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _refresh(self) -> None:
        if self.path is None:
            return
        try:
            with open(self.path, encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_ino, status.st_size, status.st_mtime_ns)
                if seen == self._read:
                    return
                if sys.platform != "win32" and (status.st_mode & stat.S_IWOTH or status.st_uid not in (0, os.geteuid())):
                    raise PolicyError(f"{self.path}: others can write it, so what it says of approvals counts for nothing")
                data = json.load(file)
        except FileNotFoundError:
            self._saved, self._saved_rules, self._read = set(), {}, None
            return
        except ValueError as error:
            raise PolicyError(f"{self.path} is no file of approvals: {error}") from None
        try:
            if data["version"] != 1:
                raise PolicyError(f"{self.path}: version {data['version']!r} is not known here")
            self._saved = {
                Key(tuple(map(str, e["argv"])), e["program"], str(e["cwd"]), str(e["policy"]), str(e["environment"]))
                for e in data["commands"]
            }
            self._saved_rules = {
                (str(rule["policy"]), (exact_rule if rule["exact"] else prefix_rule)(rule["pattern"], rule["decision"])): None
                for rule in data["rules"]
            }
        except (KeyError, TypeError) as error:
            raise PolicyError(f"{self.path} is no file of approvals: {error!r}") from None
        self._read = seen

    def _write(self) -> None:
        assert self.path is not None
        data: dict[str, Any] = {
            "version": 1,
            "commands": [{**key._asdict(), "argv": list(key.argv)} for key in sorted(self._saved, key=repr)],
            "rules": [
                {"policy": name, "pattern": [list(token) for token in r.pattern], "decision": r.decision, "exact": r.exact}
                for name, r in self._saved_rules
            ],
        }
        # Whole or not at all: a reader sees the old file or the new one.
        temporary = f"{self.path}.new"  # alone, by the lock; what is there is of somebody who was killed
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes the file; what holds for the session is this process's."""
        return type(self), (self.path,)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" in {self.path}"
        return f"<TrustStore of {len(self._commands)} commands and {len(self._rules)} rules{where}>"


def fingerprint(*parts: object) -> str:
    """A name for a policy that is the same in every process."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


# Programs whose first word says nothing of what they do: a prefix needs the second, too.
_VERBS = frozenset(
    """git npm pnpm yarn pip cargo go docker podman kubectl helm terraform gh gcloud aws az apt apt-get dnf brew systemctl poetry uv
    hatch pdm conda dotnet mvn gradle mix gem bundle composer rustup nix flatpak snap svn hg jj""".split()
)
_SCRIPTS = {("npm", "run"), ("pnpm", "run"), ("yarn", "run"), ("poetry", "run"), ("uv", "run"), ("docker", "compose"), ("cargo", "run"),
            ("gh", "pr"), ("gh", "issue"), ("go", "run"), ("dotnet", "tool"), ("uv", "pip")}  # fmt: skip
_NEVER = frozenset(SHELLS) | frozenset(
    """python node bun deno perl ruby php lua awk sed env sudo doas su pkexec xargs find nice nohup time timeout ssh eval exec command
    source . busybox npx uvx bunx pipx make vim vi emacs less man tar rsync scp curl wget docker kubectl tmux screen watch script
    osascript powershell pwsh cmd rm dd chmod chown kill systemctl""".split()
)


def suggestion(words: tuple[str, ...], literal: bool) -> CommandRule | None:
    """A rule that would let a command like this one through the next time; None where any would let too much through.

    Never a prefix of an interpreter, a shell, a wrapper, or of a tool with verbs alone.
    """
    if not literal or not words or words[0] == ">":
        return None
    names = families(bare_name(words[0]))
    if "/" in words[0] and not os.path.isabs(words[0]):
        return None
    if any(name in _VERBS for name in names):
        length = 3 if (names[-1], words[1] if len(words) > 1 else "") in _SCRIPTS else 2
        if len(words) < length or any(word.startswith("-") for word in words[1:length]):
            return None
        return prefix_rule(words[:length])
    if any(name in _NEVER or name in HANDLERS for name in names):
        return None
    return prefix_rule(words)


__all__ = ["ExecPolicy", "TrustStore", "fingerprint", "suggestion"]
