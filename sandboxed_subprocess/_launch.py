"""Launch: one command on its way, what it owns, and how it comes to an end.

A backend makes it; `Popen` (or an event loop) starts `argv` with it, asks `settle()` whether the command runs, and calls
`finish()` when it has learned of the end.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence

from . import _paths
from ._plan import Plan
from ._report import Progress, Report, Usage, Violation

# Not everywhere; where they are missing there is no backend either.
_O_DIRECTORY = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class ExecFailed(Exception):
    """The sandbox stood, but the program could not be executed: the caller's ordinary `OSError`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.errno = number


class Quarantine:
    """Compares, when a run is over, what the host would trust with what was there before.

    What appeared is renamed, so that nothing is lost and nothing is executed, and reported.
    """

    def __init__(self, plan: Plan) -> None:
        watch = plan.composition.watch
        view_roots = plan.view.roots
        self._directories = [(d, names, _paths.settled_stamp(d)) for d, names in watch.directories]
        # The directory, not the thing itself: that is a mount point inside, and only the host can have replaced it, as
        # an editor does with every file that it saves. A command can only put another directory in the place of its.
        self._same = [(path, _identity(os.path.dirname(path))) for path in watch.same]
        self._absent = watch.absent
        # Where git="commit" lets a command write, what git itself writes to by name must be no link: COMMIT_EDITMSG, FETCH_HEAD
        # and logs/HEAD would be written wherever it leads, by the user's own git, with a text that the command chose.
        commit = plan.policy.git == "commit"
        self._repositories = [d for d, _ in watch.directories if d not in view_roots] if commit else []
        self._links = {link for repository in self._repositories for link in _links_in(repository)}
        self._bare = [root for root in watch.roots if not _looks_bare(root)]

    def sweep(self) -> tuple[tuple[tuple[str, str], ...], tuple[Violation, ...]]:
        """(path, new path) of each thing put out of action, and the same as violations."""
        moved = []
        violations = []
        planted = dict.fromkeys(self._planted())
        for path, before in self._same:
            if _identity(os.path.dirname(path)) == before:
                continue
            if _exists(path):
                planted[path] = None
            else:
                violations.append(Violation("planted", f"{path} was moved away", "quarantine"))
        for path in planted:
            try:
                was, away = _put_away(path)
            except OSError as error:
                violations.append(Violation("planted", f"{path} (still there: {error.strerror})", "quarantine"))
                continue
            moved.append((was, away))
            violations.append(Violation("planted", was, "quarantine"))
        return tuple(moved), tuple(violations)

    def _planted(self) -> list[str]:
        found = []
        for directory, names, stamp in self._directories:
            if _paths.stamp(directory) != stamp:
                _open_up(directory)
                found += [path for name in names if _exists(path := f"{directory}/{name}")]
        for root in self._bare:
            if _looks_bare(root):
                found.append(f"{root}/HEAD")
        for repository in self._repositories:
            found += [link for link in _links_in(repository, open_up=True) if link not in self._links]
        return found + [path for path in self._absent if _exists(path)]


def _links_in(repository: str, open_up: bool = False) -> list[str]:
    """Symbolic links in a git directory: at its top, in `objects`, and anywhere in `logs` and `refs`. All of them: a bound on
    the number of directories would be one behind which a command could hide its own.

    Args:
        open_up: what a command has made unreadable is made readable again. A directory without "r" cannot be listed, but git
            follows a link in it all the same.
    """
    found = []
    waiting = [(repository, 0)]
    while waiting:
        directory, depth = waiting.pop()
        if open_up:
            _open_up(directory)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        found.append(entry.path)
                    elif entry.is_dir(follow_symlinks=False) and (
                        entry.name in ("logs", "refs", "objects") if depth == 0 else not directory.endswith("/objects")
                    ):
                        waiting.append((entry.path, depth + 1))
        except OSError:
            continue  # gone, or another user's; then it is not ours to follow either
    return found


def _exists(path: str) -> bool:
    """Whatever cannot be told to be absent is there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _identity(path: str) -> tuple[int, int] | None:
    try:
        st = os.lstat(path)
    except OSError:
        return None
    return st.st_dev, st.st_ino


def _looks_bare(root: str) -> bool:
    """git takes a directory with these for a repository, without any `.git` (gitrepository-layout(5))."""
    return _exists(f"{root}/HEAD") and (_exists(f"{root}/objects") or _exists(f"{root}/commondir"))


def _open_directory(path: str) -> int:
    """A descriptor of a directory, reached without any symbolic link: what a command has put in the place of a directory
    must not lead our hand to files of the host."""
    fd = os.open("/", _O_DIRECTORY)
    for part in path.split("/"):
        if part:
            try:
                inner = os.open(part, _O_DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
    return fd


def _open_up(directory: str) -> None:
    """Gives the owner back what a command may have taken from a directory, so that it can be looked into and changed."""
    try:
        fd = _open_directory(directory)
    except OSError:
        return  # replaced, or not ours; what follows finds nothing, or is reported
    try:
        mode = os.stat(fd).st_mode
        if mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | 0o700)
    except OSError:
        return
    finally:
        os.close(fd)


def _put_away(path: str) -> tuple[str, str]:
    """Renames what was planted, in its own directory; returns what was renamed, and the new path.

    Where a link is now on the way, the link is what was planted.

    Raises:
        OSError: it cannot be renamed.
    """
    parts = path.split("/")
    for number in range(2, len(parts)):
        above = "/".join(parts[:number])
        if os.path.islink(above):
            path = above
            break
    directory, name = os.path.split(path)
    _open_up(directory)
    away = f"{name}.quarantined-{os.urandom(4).hex()}"
    fd = _open_directory(directory)
    try:
        os.rename(name, away, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)
    return path, f"{directory}/{away}"


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
        self._quarantine = Quarantine(plan) if plan.view.roots else None
        self._finished = False
        self._watcher: threading.Thread | None = None
        self.cwd = ""
        self.ran = False  # the command was executed
        self.returncode: int | None = None  # of the command; known where its end was told
        self.audit: tuple[int, os.stat_result] | None = None  # a descriptor, which is closed with the launch, and of what

    def settle(self, pid: int) -> None:
        """Returns once the command runs.

        Raises:
            ExecFailed: the program could not be executed.
            SandboxSetupError: a restriction could not be put in place, or the launcher died without a word.
        """
        raise NotImplementedError

    def word(self) -> int:
        """A descriptor that is readable when settle() has something to take; for event loops."""
        raise NotImplementedError

    def send_signal(self, number: int) -> None:
        """To the command itself, whose handler runs. Nothing happens once it has ended."""
        raise NotImplementedError

    def kill(self, pid: int) -> None:
        """Ends every process of the sandbox, so that all are dead when `wait()` returns.

        Args:
            pid: the launched process, which nobody has waited for yet.
        """
        self.end_tree()
        # Somebody may have stopped it, and a stopped one reaps nothing.
        try:
            os.kill(pid, getattr(signal, "SIGCONT", 18))
        except (ProcessLookupError, PermissionError):
            pass

    def end_tree(self) -> None:
        """The backend's part of kill()."""
        raise NotImplementedError

    def close_child_side(self) -> None:
        """Once the child has its copies, or will never have them."""
        raise NotImplementedError

    def close_parent_side(self) -> None:
        """When the launch is over. May be called more than once."""
        raise NotImplementedError

    def take_events(self) -> None:
        """What has been said of the running command so far, to the report and to `on_event`. Never waits."""

    def watch(self) -> None:
        """Has a thread call `on_event`, where there is one, until the command has ended."""
        if self.plan.policy.on_event is not None:
            self._watcher = threading.Thread(target=self._watch, name="sandbox-events", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        """Takes events until everything has been said, or `finish()` was called."""
        raise NotImplementedError

    def ended(self) -> bool:
        """Whether everything has been said that will be said."""
        return self._finished

    def read_errors(self, text: bytes | str | None) -> None:
        """Looks for denials in what the command wrote to stderr, where the caller has it."""
        if not text or self.cwd == "" or self.report.violations_complete:
            return
        from ._evidence import denied_paths

        decoded = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
        known = {(violation.kind, violation.detail) for violation in self.report.violations}
        found = denied_paths(decoded, self.plan, self.cwd)
        self.report.violations += tuple(v for v in found if (v.kind, v.detail) not in known)

    def tell(self, event: Progress | Violation) -> None:
        """To the policy's `on_event`, whose errors are its own."""
        listener = self.plan.policy.on_event
        if listener is None:
            return
        try:
            listener(event)
        except Exception:
            sys.excepthook(*sys.exc_info())  # as for __del__ and signal handlers: there is nobody to raise it to

    def record_end(self, wall: float) -> None:
        """Completes the report from what the backend knows of the end. Never raises, and waits a second at most."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Nothing was started."""
        self._finished = True
        self._write_audit()  # which closes it, since nothing ran
        self.close_child_side()
        self.close_parent_side()

    def finish(self) -> None:
        """Called when the exit of the launched process is known. Never raises, waits a second at most, acts once.

        It runs with the lock of `Popen.wait()` held, in `__del__` at interpreter exit, and in children of a fork,
        where everything belongs to the parent.
        """
        if self._finished or os.getpid() != self.owner:
            return
        self._finished = True
        # An impatient Ctrl-C may end any of these, and must not spare what was planted from being found.
        try:
            watcher = self._watcher
            if watcher is not None and watcher is not threading.current_thread():
                watcher.join(1)  # what it has taken from the socket, it must have put into the report
            self.record_end(time.monotonic() - self._started)
        finally:
            try:
                self.close_parent_side()
            finally:
                self._sweep()
                self._write_audit()

    def _sweep(self) -> None:
        if self._quarantine is not None:
            moved, violations = self._quarantine.sweep()
            self.report.quarantined += moved
            self.report.violations += violations

    def _write_audit(self) -> None:
        audit, self.audit = self.audit, None
        if audit is None:
            return
        fd, before = audit
        try:
            if not os.path.samestat(os.fstat(fd), before):
                raise OSError(0, "its descriptor was closed")  # the number is somebody else's now, and left alone
            try:
                if self.ran:
                    os.write(fd, self._line())  # one write, so that lines of several processes do not mix
            finally:
                os.close(fd)
        except (OSError, ValueError, RecursionError) as error:
            self.report.notes += (f"audit_log: the line could not be written ({error})",)

    def _line(self) -> bytes:
        import json

        line = {
            "began": round(time.time() - (time.monotonic() - self._started), 3),
            "args": [os.fsdecode(arg) for arg in self.plan.command.argv],
            "cwd": self.cwd,
            "returncode": self.returncode,
            **self.report.to_dict(),
        }
        return (json.dumps(line) + "\n").encode("utf-8", "backslashreplace")

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter modules go before the last objects do; the descriptors go by themselves.
        if not finalizing() and not self.__dict__.get("_finished", True) and os.getpid() == self.owner:
            self.abandon()


def unknown_end(launch: Launch, wall: float) -> None:
    """The report of a launch of which nothing more was heard."""
    report = launch.report
    report.ended = report.ended or ("killed" if launch.killed else "unknown")
    report.usage = Usage(wall)
