"""Which file a program's name stands for, and by which names rules may speak of it."""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
import time
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from ._rules import bare_name

# One file, many programs, by the name it is called by. What is said of one of them is not said of the others.
MULTICALL = frozenset(
    "busybox toybox coreutils systemctl kmod xz lvm rustup volta-shim asdf mise shim snap box proto-shim sccache ccache"
    " dircolors-multicall uutils toolbox".split()
)
_VERSION = re.compile(r"^(python|pypy|pip|perl|ruby|node|lua|php|gcc|clang|gawk|vim|tclsh|wish|bash|ksh|gem|irb|erl)"
                      r"-?[0-9][0-9.]*(?:[a-z]+)?$")  # fmt: skip
_VARIANT = re.compile(r"^(vim|emacs|nano|mawk|nc|netcat|telnet|which|ex|vi)\.[a-z]+[a-z0-9_-]*$")
_SAME = {
    "python3": "python", "pip3": "pip", "nodejs": "node", "gawk": "awk", "mawk": "awk", "nawk": "awk", "original-awk": "awk",
    "pypy": "python", "nvim": "vim", "vimdiff": "vim", "rvim": "vim", "gsed": "sed", "gfind": "find", "gtar": "tar",
    "bsdtar": "tar", "gmake": "make", "gxargs": "xargs", "genv": "env", "gtimeout": "timeout", "gnice": "nice",
    "rbash": "bash", "fdfind": "fd", "batcat": "bat",
}  # fmt: skip


@functools.lru_cache(4096)
def families(name: str) -> tuple[str, ...]:
    """The name, and what it is a version or a variant of: python3.11, python3, python."""
    out = [name]
    if name.startswith(("ld-linux", "ld-musl", "ld64.so")):
        out.append("ld.so")  # the loader runs what it is given
    for pattern in (_VERSION, _VARIANT):
        found = pattern.match(name)
        if found:
            if name.startswith(("python3", "pip3")):
                out.append(found[1] + "3")
            out.append(found[1])
    if out[-1] in _SAME:
        out.append(_SAME[out[-1]])
    return tuple(dict.fromkeys(out))


class Program(NamedTuple):
    """A program as it was called, and the file that it is.

    Attributes:
        spelled: the word of the command.
        path: the file that will be started, as it was found; None if there is none.
        real: the same without symbolic links.
        names: every name on the way from one to the other, as `bare_name` has them.
        inode: (device, inode) of the file.
        multicall: the file is many programs, by the name that it is called by.
    """

    spelled: str
    path: str | None = None
    real: str | None = None
    names: frozenset[str] = frozenset()
    inode: tuple[int, int] | None = None
    multicall: bool = False


def search_path(env: object = None) -> tuple[str, ...]:
    """The directories of a PATH, as a tuple. `env`: a mapping, or None for the caller's own environment."""
    if env is None:
        value: object = os.environ.get("PATH")
    else:
        get = getattr(env, "get")  # noqa: B009
        value = get("PATH")
        if value is None:
            value = get(b"PATH")
    if value is None:
        value = os.defpath
    return tuple(os.fsdecode(value).split(os.pathsep))  # type: ignore[arg-type]


def home_of(env: object = None) -> str | None:
    """What `~` stands for in a command with this environment; None where its shell has to look that up."""
    if env is None:
        return os.environ.get("HOME") or os.path.expanduser("~")
    value = env.get("HOME", env.get(b"HOME"))  # type: ignore[attr-defined]
    return None if not value else os.fsdecode(value)


def _executable(path: str) -> os.stat_result | None:
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return None
        # Where not everybody may execute it, the kernel knows whether we may.
        return found if found.st_mode & 0o111 == 0o111 or os.access(path, os.X_OK) else None
    except (OSError, ValueError):
        return None


@functools.lru_cache(4096)
def _links(path: str, key: tuple[int, int, int]) -> tuple[str, frozenset[str]]:
    """(path without links, names on the way). `key` is what the file was when this was found out."""
    names = {bare_name(path)}
    here = path
    for _ in range(40):
        try:
            target = os.readlink(here)
        except (OSError, ValueError):
            break
        here = os.path.join(os.path.dirname(here), target)
        names.add(bare_name(here))
    real = os.path.realpath(path)
    names.add(bare_name(real))
    return real, frozenset(names)


def _found(spelled: str, path: str, status: os.stat_result) -> Program:
    real, names = _links(path, (status.st_dev, status.st_ino, status.st_ctime_ns))
    name = bare_name(spelled)
    names = names if name in names else names | {name}
    return Program(spelled, path, real, names, (status.st_dev, status.st_ino), bare_name(real) in MULTICALL)


class Directories:
    """What is in the directories of a PATH, by name. A name that is not in there need not be looked for in each of them."""

    _known: ClassVar[dict[tuple[str, ...], tuple[tuple[tuple[int, ...], ...], dict[str, tuple[str, ...]], float]]] = {}

    @classmethod
    def of(cls, path: tuple[str, ...], roots: Collection[str]) -> dict[str, tuple[str, ...]] | None:
        """name -> the files of that name, in the order of the search; None where that cannot be told at once.

        Looked at anew when a directory has changed. Its ctime says so, which nobody can set back; where that is so fresh that
        a change in the same tick of the clock would not show (as git has it of its index), nothing is remembered. Whether one has
        changed is looked at once a second, but each time where commands can write one of them: `roots`.
        """
        known = cls._known.get(path)
        now = time.monotonic()
        if known is not None and now - known[2] < _HOLD and not any(below(directory, roots) for directory in path):
            return known[1]
        if os.name == "nt" or not all(directory.startswith("/") for directory in path):
            return None
        stamps = tuple([_stamps(directory) for directory in path])
        if known is not None and known[0] == stamps:
            cls._known[path] = (stamps, known[1], now)
            return known[1]
        if any(stamp and abs(time.time_ns() - stamp[3]) < _TICK for stamp in stamps):
            return None
        table: dict[str, tuple[str, ...]] = {}
        for directory, stamp in zip(path, stamps):
            if not stamp:
                continue
            try:
                names = os.listdir(directory)
            except OSError:
                return None  # what is in it can be started all the same
            for name in names:
                table[name] = (*table.get(name, ()), f"{directory}/{name}")
        if tuple([_stamps(directory) for directory in path]) != stamps:
            return None
        if len(cls._known) > 8:
            cls._known.clear()
        cls._known[path] = (stamps, table, now)
        return table


_TICK = 100_000_000  # ns
_HOLD = 1.0  # seconds


def _stamps(directory: str) -> tuple[int, ...]:
    try:
        status = os.stat(directory)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def identify(word: str, path: Sequence[str], cwd: str | None, table: dict[str, tuple[str, ...]] | None = None) -> Program:
    """The program that `word` starts, as execvp(3) looks for it.

    Args:
        path: the directories to search.
        cwd: where relative names start from; None where that is not known.
        table: of `Directories`, for this path.
    """
    if "/" in word or (os.name == "nt" and "\\" in word):
        if not os.path.isabs(word):
            if cwd is None:
                return Program(word, names=frozenset({bare_name(word)}))
            full = os.path.join(cwd, word)
        else:
            full = word
        status = _executable(full)
        return _found(word, full, status) if status else Program(word, names=frozenset({bare_name(word)}))
    for full in table.get(word, ()) if table is not None else ():
        status = _executable(full)
        if status:
            return _found(word, full, status)
    # What is not in the table may have come since.
    if word:
        for directory in path:
            # An empty entry is the current directory.
            full = f"{directory}/{word}" if directory.startswith("/") else os.path.join(cwd or "", directory, word)
            for candidate in (full,) if os.name != "nt" else [full + s for s in ("", ".exe", ".com", ".bat", ".cmd")]:
                status = _executable(candidate)
                if status:
                    return _found(word, candidate, status)
    return Program(word, names=frozenset({bare_name(word)}))


@functools.lru_cache(1)
def _prefixes() -> tuple[str, ...]:
    return tuple({os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)} - {"/", "/usr"})


def below(path: str, roots: Collection[str]) -> bool:
    """Whether an absolute path is one of these directories, or in one: there may be thousands of them, and it is not deep."""
    while roots:
        if path in roots:
            return True
        parent = path.rpartition("/")[0] or "/"
        if parent == path:
            break
        path = parent
    return False


def trusted(program: Program, roots: Collection[str]) -> bool:
    """Whether nobody but whoever set up this host can have put the file there: it is in none of `roots`, but for the caller's
    own interpreter, which is read-only in a sandbox."""
    if program.path is None or program.real is None:
        return False
    return not any(below(p, roots) and not below(p, _prefixes()) for p in (os.path.normpath(program.path), program.real))


class Aliases:
    """From a file to the names of rules that mean it too: a rule for `vim` is one for `vi`, where both are one file.

    Looked up anew when a directory of the PATH has changed; whether one has is looked at once a second.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._known: dict[tuple[str, ...], tuple[float, tuple[int, ...], dict[tuple[int, int], frozenset[str]]]] = {}

    def of(self, program: Program, path: tuple[str, ...]) -> frozenset[str]:
        if program.inode is None or program.multicall or not self._names:
            return frozenset()
        known = self._known.get(path)
        now = time.monotonic()
        if known is not None and now - known[0] < _HOLD:
            return known[2].get(program.inode, frozenset())
        key, path = path, tuple([p for p in path if p.startswith("/")])
        stamps = tuple([_stamp(p) for p in (*path, "/etc/alternatives")])
        if known is None or known[1] != stamps:
            found: dict[tuple[int, int], frozenset[str]] = {}
            for name in self._names:
                other = identify(name, path, None)
                if other.inode is not None:
                    found[other.inode] = found.get(other.inode, frozenset()) | {name}
            if len(self._known) > 16:
                self._known.clear()
        else:
            found = known[2]
        self._known[key] = (now, stamps, found)
        return found.get(program.inode, frozenset())


def _stamp(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
