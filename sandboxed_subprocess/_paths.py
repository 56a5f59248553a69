"""What a policy's paths mean on this host: links, secrets, repositories, sockets. POSIX only; reads, never writes."""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ._errors import PolicyError
from ._policy import Glob

if sys.platform != "win32":
    # Here and not where they are used: after the first command, "import grp" could find a file in the workspace.
    import pwd
    from fcntl import F_GETFL, fcntl

    def _status_flags(fd: int) -> int:
        return fcntl(fd, F_GETFL)

    _major = os.major

else:

    def _major(device: int) -> int:
        return device

    def _status_flags(fd: int) -> int:
        return 0


SENSITIVE_IN_HOME = """.ssh .aws .azure .config/gcloud .gcloud .kube .docker .npmrc .pypirc .gnupg .cargo/credentials
    .cargo/credentials.toml .git-credentials .netrc .config/gh .config/op .vault-token .terraform.d .password-store
    .local/share/keyrings .secrets .config/containers/auth.json .config/hub .config/glab-cli .config/rclone .s3cfg
    .config/sops .boto .databrickscfg .oci .yarnrc.yml .config/git/credentials .pgpass .my.cnf .mylogin.cnf
    .mozilla .thunderbird .config/google-chrome .config/chromium .config/BraveSoftware .config/microsoft-edge
    .config/vivaldi .config/opera snap/firefox .var/app/org.mozilla.firefox .var/app/com.google.Chrome
    .bash_history .zsh_history .history .python_history .node_repl_history .psql_history .mysql_history .sqlite_history
    .rediscli_history .local/share/fish/fish_history .local/state/python/history""".split()
SENSITIVE_IN_SYSTEM = """/etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers /etc/sudoers.d /etc/security/opasswd
    /etc/krb5.keytab /etc/ssh/ssh_host_rsa_key /etc/ssh/ssh_host_ecdsa_key /etc/ssh/ssh_host_ed25519_key
    /etc/ssh/ssh_host_dsa_key /etc/ssl/private /etc/NetworkManager/system-connections /etc/wpa_supplicant /etc/wireguard
    /etc/openvpn""".split()

GIT = ".git"
PROTECTED_NAMES = frozenset({GIT, ".hg", ".svn", ".vscode", ".idea", ".envrc", ".mcp.json", ".claude", ".codex", ".agents"})
# What a login, a shell or a desktop session runs; read-only where a root covers the home directory.
STARTUP_IN_HOME = """.profile .bashrc .bash_profile .bash_login .bash_logout .bash_aliases
    .zshrc .zshenv .zprofile .zlogin .zlogout
    .kshrc .cshrc .tcshrc .login .inputrc .xprofile .xinitrc .xsession .xsessionrc .pam_environment .config/systemd
    .config/autostart .config/fish .config/environment.d .config/git .local/bin .local/share/systemd bin .gitconfig
    .gitattributes .vimrc .vim .config/nvim .emacs .emacs.d .tmux.conf .config/tmux .screenrc .gdbinit .pythonrc
    .pythonstartup .config/pip .pip .condarc .cargo/config .cargo/config.toml .cargo/bin .config/direnv""".split()

# What of /run, or wherever their links lead, a program needs that runs on this host and not in a container: how names are
# resolved, and where some distributions keep the running system. Files, and directories without sockets in them.
SHOWN = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/run/current-system",
    "/run/opengl-driver",
)

MAX_DIRECTORIES = 200_000
"""Where the search for nested repositories gives up."""


# -- links ------------------------------------------------------------------------------------------------------------


class Resolved(NamedTuple):
    """A path with no symbolic link left in it, and the links that were met on the way: (where it lies, what it says)."""

    real: str
    links: tuple[tuple[str, str], ...]


def resolve(path: str) -> Resolved:
    """Follows every link, also of paths that do not exist (yet).

    Raises:
        PolicyError: a loop of links, or a path longer than the system's limit.
    """
    links: list[tuple[str, str]] = []
    todo = deque(part for part in path.split("/") if part not in ("", "."))
    real = ""
    while todo:
        part = todo.popleft()
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        here = f"{real}/{part}"
        try:
            text = os.readlink(here)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise PolicyError(f"{path!r}: the path is too long for this system") from None
            real = here
            continue
        links.append((here, text))
        if len(links) > 40:
            raise PolicyError(f"{path!r}: too many levels of symbolic links")
        if text.startswith("/"):
            real = ""
        todo.extendleft(part for part in reversed(text.split("/")) if part not in ("", "."))
    return Resolved(real or "/", tuple(links))


def expand_user(path: str) -> str:
    """`~` and `~name` by HOME and the user database.

    Raises:
        PolicyError: there is no such home.
    """
    if not path.startswith("~"):
        return path
    found = os.path.expanduser(path)
    if not os.path.isabs(found):
        raise PolicyError(f"{path!r}: no such home directory")
    return found


def is_within(path: str, directory: str) -> bool:
    return path == directory or directory == "/" or path.startswith(directory + "/")


@functools.lru_cache(64)
def homes(environment_home: str | None, uid: int, other_uid: int | None = None) -> tuple[str, ...]:
    """Home directories whose secrets matter: by HOME, by the user database, and of the user that `user=` names."""
    found = [environment_home] if environment_home and os.path.isabs(environment_home) else []
    if sys.platform != "win32":
        for number in (uid, other_uid):
            try:
                if number is not None:
                    found.append(pwd.getpwuid(number).pw_dir)
            except KeyError:
                continue
    real = (resolve(path).real for path in found)
    return tuple(dict.fromkeys(path for path in real if path not in ("/", "/nonexistent")))


# -- what is protected in a writable root --------------------------------------------------------------------------------


class Search(NamedTuple):
    """Names that must not be changed, below one root, as they were at one moment.

    Attributes:
        found: (path, kind), the kind being "dir", "file" or "link".
        closed: directories that could not be listed, although they may be ours: their owner can open them again.
        complete: False where the search stopped at `MAX_DIRECTORIES`.
    """

    found: tuple[tuple[str, str], ...]
    closed: tuple[str, ...]
    complete: bool


UNSETTLED = -2
Stamps = tuple[tuple[str, int], ...]
"""Directories and their ctimes. Unlike mtime, ctime cannot be set: an unchanged one proves that no name in the directory
was added, removed or replaced."""


def stamp(directory: str) -> int:
    """-1 where there is no such directory."""
    try:
        return os.lstat(directory).st_ctime_ns
    except OSError:
        return -1


def settled_stamp(directory: str) -> int:
    """As `stamp`, but `UNSETTLED`, which equals no stamp, where the last change is so recent that the next one could have the
    same ctime: it has the resolution of the kernel's tick."""
    value = stamp(directory)
    return value if time.time_ns() - value > 20_000_000 else UNSETTLED


def unchanged(stamps: Stamps) -> bool:
    # On the path of every launch: a plain loop, because a generator would cost as much as the calls.
    for directory, value in stamps:  # noqa: SIM110
        if stamp(directory) != value:
            return False
    return True


_FEW = 16
_searches: dict[str, tuple[Stamps, float, float, Search]] = {}


def search_protected(root: str) -> Search:
    """Finds repositories and the like below `root`, nearest first.

    In a small tree every change is seen. In a large one a search is good for twenty times as long as it took, so that
    launches spend 5 % of their time on it at most; changes in the root directory itself are always seen.
    """
    known = _searches.get(root)
    if known and unchanged(known[0]) and (known[2] == 0 or time.monotonic() - known[1] < known[2]):
        return known[3]
    begin = time.monotonic()
    found: list[tuple[str, str]] = []
    closed: list[str] = []
    stamps: list[tuple[str, int]] = []
    queue = deque([root])
    visited = 0
    while queue and visited < MAX_DIRECTORIES:
        visited += 1
        directory = queue.popleft()
        if visited <= _FEW:
            # Before the listing, so that a change during it is a change after it.
            stamps.append((directory, stamp(directory)))
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name in PROTECTED_NAMES:
                        kind = "link" if entry.is_symlink() else "dir" if entry.is_dir() else "file"
                        found.append((entry.path, kind))
                    elif entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            closed.append(directory)
    result = Search(tuple(found), tuple(closed), not queue)
    if len(_searches) > 64:
        _searches.clear()
    few = visited <= _FEW
    # A ctime has the resolution of the kernel's tick: what changed in the same tick as the listing would be missed.
    fresh = any(time.time_ns() - value < 20_000_000 for _, value in stamps)
    if not fresh:
        _searches[root] = (tuple(stamps if few else stamps[:1]), begin, 0 if few else 20 * (time.monotonic() - begin), result)
    return result


class Presence:
    """Which of many paths do not exist. Looked up again only when a directory that could tell has changed."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths
        self._known: tuple[Stamps, frozenset[str]] | None = None

    def absent(self) -> frozenset[str]:
        known = self._known
        if known is not None and unchanged(known[0]):
            return known[1]
        missing = []
        directories: dict[str, int] = {}
        for path in self._paths:
            above = os.path.dirname(path)
            while above not in directories and not os.path.isdir(above):
                above = os.path.dirname(above)
            if above not in directories:
                directories[above] = stamp(above)
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                missing.append(path)
            except OSError:
                continue  # it cannot be told, so it is treated as there
        result = frozenset(missing)
        if all(time.time_ns() - value > 20_000_000 for value in directories.values()):
            self._known = (tuple(directories.items()), result)
        return result


class Repository(NamedTuple):
    """One `.git`: where it lies, and what the name stands for.

    Attributes:
        pointer: the path named `.git`.
        gitdir: the real directory with HEAD and index.
        common: the real directory with objects and refs; the same, but in a linked worktree.
        trusted: the gitdir agrees that it belongs to this pointer, so a `git="commit"` may open it. A `.git` file
            forged by an earlier command names a directory that does not.
    """

    pointer: str
    gitdir: str
    common: str
    trusted: bool


def read_text(path: str, limit: int) -> str | None:
    """The beginning of a regular file; None for anything else. A command may have left a named pipe of that name, on
    which an ordinary open() would wait for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, limit).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    finally:
        os.close(fd)


def _first_line(path: str) -> str | None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None  # to open a device may do something already
    except OSError:
        return None
    text = read_text(path, 8192)
    return None if text is None else text.partition("\n")[0]


def read_repository(pointer: str, root: str) -> Repository | None:
    """What a `.git` directory, link or file stands for; None if it is none of these."""
    real = resolve(pointer).real
    if os.path.isdir(real):
        # A directory in the root is as trusted as the root. One behind a link is only if it lies in the root too, and
        # where nothing else is protected.
        common = _common(real)
        trusted = real == pointer or _may_be_gitdir(real, root)
        return Repository(pointer, real, common, trusted and (common == real or _may_be_gitdir(common, root)))
    line = _first_line(real)
    if line is None or not line.startswith("gitdir: "):
        return None
    gitdir = resolve(os.path.join(os.path.dirname(real), line[8:])).real
    if not os.path.isdir(gitdir):
        return None
    common = _common(gitdir)
    # A linked worktree: common/worktrees/NAME, whose file `gitdir` points back here. Both are the host's to write.
    back = _first_line(f"{gitdir}/gitdir")
    linked = (
        os.path.dirname(gitdir) == f"{common}/worktrees" and back is not None and resolve(os.path.join(gitdir, back)).real == real
    )
    return Repository(pointer, gitdir, common, linked or (_may_be_gitdir(gitdir, root) and _may_be_gitdir(common, root)))


def _may_be_gitdir(path: str, root: str) -> bool:
    """A place in the root where a git directory may be named by a file or link that a command could have written: not
    inside of anything protected, but for the submodules and worktrees of a repository."""
    if not is_within(path, root) or path == root:
        return False
    parts = path[len(root.rstrip("/")) + 1 :].split("/")
    for number, part in enumerate(parts):
        if part == GIT and number + 2 < len(parts) and parts[number + 1] in ("modules", "worktrees"):
            continue
        if part in PROTECTED_NAMES and not (part == GIT and number == len(parts) - 1):
            return False
    return os.path.lexists(f"{path}/HEAD")


def _common(gitdir: str) -> str:
    text = _first_line(f"{gitdir}/commondir")
    return resolve(os.path.join(gitdir, text)).real if text else gitdir


def safe_directories(path: str, depth: int = 0) -> list[str]:
    """The values of safe.directory in a git configuration file. git itself is not run: its files name programs."""
    found: list[str] = []
    text = read_text(path, 1 << 20)
    if text is None:
        return found
    lines = text.replace("\\\n", "").splitlines()
    section = ""
    for line in lines:
        line = line.strip()
        if line.startswith("["):
            head, _, line = line.partition("]")
            section, line = head[1:].strip().lower(), line.strip()
        name, separator, value = line.partition("=")
        name = name.strip().lower()
        if separator and (section, name) == ("safe", "directory"):
            found.append(_git_value(value))
        elif separator and (section, name) == ("include", "path") and depth < 5:
            inner = os.path.join(os.path.dirname(path), os.path.expanduser(_git_value(value)))
            found += safe_directories(inner, depth + 1)
    return found


def _git_value(text: str) -> str:
    """A value of a git configuration file: quotes, escapes and comments taken off (git-config(1), Syntax)."""
    out = []
    quoted = False
    escapes = {"n": "\n", "t": "\t", "b": "\b"}
    letters = iter(text.strip())
    for letter in letters:
        if letter == '"':
            quoted = not quoted
        elif letter == "\\":
            after = next(letters, "")
            out.append(escapes.get(after, after))
        elif letter in "#;" and not quoted:
            return "".join(out).rstrip()
        else:
            out.append(letter)
    return "".join(out)


# Inside a git directory, what git executes or follows. Everything else there has to be writable for a commit.
GIT_EXECUTED = (
    "config config.lock config.worktree config.worktree.lock hooks info commondir gitdir modules worktrees branches remotes"
    " rebase-merge rebase-apply sequencer"
).split()


# -- patterns --------------------------------------------------------------------------------------------------------------


def expand_glob(pattern: Glob, roots: Iterable[str], closed: list[str]) -> Iterator[str]:
    """Existing paths that match. A relative pattern is looked for below each root. Links are not entered.

    Directories that cannot be listed are added to `closed`.
    """
    text = expand_user(pattern.pattern)
    starts = [("", text)] if text.startswith("/") else [(root, text) for root in roots]
    for start, rest in starts:
        parts = [part for part in rest.split("/") if part]
        # Directories that the pattern spells out are resolved, so that what is found can be compared with real paths.
        fixed = []
        while len(parts) > 1 and not re.search(r"[*?\[]", parts[0]):
            fixed.append(parts.pop(0))
        try:
            yield from _glob(resolve("/".join([start, *fixed]) or "/").real.rstrip("/"), parts, closed)
        except RecursionError:
            raise PolicyError(f"{pattern!r}: the directories below {start or '/'} are nested too deeply to be searched") from None


def _glob(directory: str, parts: list[str], closed: list[str]) -> Iterator[str]:
    import fnmatch

    head, rest = parts[0], parts[1:]
    if head == "**" and not rest:
        yield directory or "/"
        return
    if head == "**":
        yield from _glob(directory, rest, closed)
    try:
        with os.scandir(directory or "/") as listing:
            entries = list(listing)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        closed.append(directory or "/")
        return
    for entry in entries:
        inner = entry.is_dir(follow_symlinks=False)
        if head == "**":
            if inner:
                yield from _glob(entry.path, parts, closed)
        elif fnmatch.fnmatchcase(entry.name, head):
            if not rest:
                yield entry.path
            elif inner:
                yield from _glob(entry.path, rest, closed)


# -- sockets ---------------------------------------------------------------------------------------------------------------


def host_sockets() -> list[str]:
    """Pathnames of the unix sockets that are bound in this network namespace.

    Raises:
        OSError: /proc/net/unix cannot be read.
    """
    fd = os.open("/proc/net/unix", os.O_RDONLY)
    try:
        data = os.read(fd, 1 << 16)
        while chunk := os.read(fd, 1 << 16):
            data += chunk
    finally:
        os.close(fd)
    if b" /" not in data:
        return []
    found = {line[line.index(b" /") + 1 :] for line in data.split(b"\n") if b" /" in line}
    return [os.fsdecode(path) for path in found]


# -- descriptors -------------------------------------------------------------------------------------------------------------

# How /proc/self/fd shows them; what has a path begins with "/".
_LEADS_OUT = (
    *[f"{kind}:[" for kind in "mnt net pid pid_for_children user uts ipc cgroup time time_for_children".split()],
    *[f"anon_inode:{kind}" for kind in ("[fscontext]", "[userfaultfd]", "[io_uring]", "bpf", "[bpf")],
)


def refuse_fd(fd: int) -> str | None:
    """Why a file descriptor must not be inherited, or None: some lead past every mount."""
    try:
        st = os.fstat(fd)
        flags = _status_flags(fd)
    except OSError:
        return None  # closed; Popen has its own words for that
    kind = stat.S_IFMT(st.st_mode)
    if kind == stat.S_IFDIR:
        return "it is a directory, and everything below it could be reached through it"
    if flags & getattr(os, "O_PATH", 0):
        return "it is an O_PATH descriptor"
    # A device with a major number is a disk; namespaces, and what has no name at all, are on file systems that have none.
    if kind in (stat.S_IFREG, 0) and _major(st.st_dev) == 0:
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(_LEADS_OUT):
                return "it is a namespace or mount descriptor"
        except OSError:
            return None
    return None


# -- ourselves ---------------------------------------------------------------------------------------------------------------


@functools.lru_cache(1)
def own_package() -> str:
    return resolve(os.path.dirname(os.path.abspath(__file__))).real


@functools.lru_cache(1)
def interpreter() -> tuple[str, ...]:
    """Real directories of the running interpreter and its standard library."""
    found = {
        resolve(os.path.abspath(p)).real for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__))
    }
    # A venv's executable is a link; the interpreter behind it has to be seen as well.
    if sys.executable:
        found.add(os.path.dirname(resolve(sys.executable).real))
    return tuple(sorted(found))


def is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
