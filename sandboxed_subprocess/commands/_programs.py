"""Programs that run other programs, or code: what of their arguments is a command, a script, code, a file that is written.

Options are read as each program reads them. One that is not known here is a problem, with which nothing is allowed without asking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ._words import MANY, Dynamic, Word

Words = tuple[Word, ...]
SHELLS = frozenset("sh bash dash ash zsh ksh mksh".split())


class Opened:
    """What a command turns out to be.

    Attributes:
        inner: commands that it runs, as vectors.
        scripts: (text, shell) of what it gives to a shell.
        payloads: (place in the words, given in the arguments, what): code that is run. A rule allows it only if its pattern reaches
            as far; what is given in the arguments (and not named by them, as a script is) is asked for even where everything is
            allowed.
        problems: why nothing of it is allowed without asking.
        spellings: (words, harmless): the same command written otherwise. What was left out is harmless, or not.
        writes: files that it writes.
        assigns: variables that it sets for what it runs.
        transparent: it does nothing itself, so it counts only where a rule speaks of it.
        guarded: rules have to allow the words up to this place, or it is asked for.
        reads_code: it runs what it reads.
        maybe: vectors that may be what it runs, in a container, say: a rule against one of them is a reason to ask.
        cwd: it runs what it runs in another directory.
        edits: it changes the files that it is given.
    """

    def __init__(self) -> None:
        self.inner: list[Words] = []
        self.scripts: list[tuple[str, str]] = []
        self.payloads: list[tuple[int, bool, str]] = []
        self.problems: list[str] = []
        self.spellings: list[tuple[Words, bool]] = []
        self.writes: list[Word] = []
        self.assigns: list[tuple[str, Word]] = []
        self.transparent = False
        self.guarded: int | None = None
        self.reads_code = False
        self.maybe: list[Words] = []
        self.cwd = False
        self.edits = False

    def code(self, place: int, what: str) -> None:
        self.payloads.append((place, True, what))

    def named(self, place: int, what: str, word: Word = "") -> None:
        """`word`: the file; one that is a stream or a pipe is no file that somebody could have looked at."""
        self.payloads.append((place, word.startswith(("/dev/", "/proc/")) or isinstance(word, Dynamic), what))


class _Options:
    """What getopt would make of some words, up to the first that is no option."""

    def __init__(
        self, words: Words, flags: str = "", valued: str = "", long: str = "", long_valued: str = "", place: int = 1,
        permute: bool = False, numbers: bool = False, single: bool = False,
    ) -> None:  # fmt: skip
        self.found: list[tuple[str, Word, int]] = []  # (option, value, place of the value)
        self.unknown: Word | None = None
        self.operands: list[int] = []
        names, named = long.split(), long_valued.split()
        i = place
        while i < len(words):
            word = words[i]
            if isinstance(word, Dynamic):
                if word.many or not word.start or word.start.startswith(("-", "+")):
                    # It could be an option as well.
                    self.unknown = self.unknown if self.unknown is not None else word
                    if not permute:
                        break
                if not permute:
                    break
                self.operands.append(i)
                i += 1
                continue
            if word == "--":
                i += 1
                break
            if single and word.startswith("-") and len(word) > 1 and not word.startswith("--"):
                word = "-" + word
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                if name in names and not equals:
                    self.found.append((name, "", i))
                elif name in named:
                    self._valued(name, equals, value, words, i)
                    i += not equals
                else:
                    # getopt_long takes any beginning that fits only one.
                    fits = [full for full in (*names, *named) if full.startswith(name)]
                    if not fits or not name:
                        self.unknown = self.unknown if self.unknown is not None else word
                        if not permute:
                            break
                    for full in fits:
                        if full in named:
                            self._valued(full, equals, value, words, i)
                        else:
                            self.found.append((full, "", i))
                    i += not equals and any(full in named for full in fits)
                i += 1
            elif word.startswith("-") and len(word) > 1:
                if numbers and word[1:].isdigit():
                    i += 1
                    continue
                for j, letter in enumerate(word[1:], 1):
                    if letter in valued:
                        rest = word[j + 1 :]
                        self._valued(letter, rest, rest, words, i)
                        i += not rest
                        break
                    if letter in flags:
                        self.found.append((letter, "", i))
                        continue
                    self.unknown = self.unknown if self.unknown is not None else word
                    break
                if self.unknown is not None and not permute:
                    break
                i += 1
            elif permute:
                self.operands.append(i)
                i += 1
            else:
                break
        if permute:
            self.operands += range(i, len(words))
        self.place = i

    def _valued(self, name: str, has: str, value: str, words: Words, i: int) -> None:
        if has:
            self.found.append((name, value, i))
        elif i + 1 < len(words):
            self.found.append((name, words[i + 1], i + 1))
        else:
            self.found.append((name, "", i))

    def has(self, *names: str) -> bool:
        return any(name in names for name, _, _ in self.found)

    def values(self, *names: str) -> list[tuple[Word, int]]:
        return [(value, place) for name, value, place in self.found if name in names]


Handler = Callable[[Words], Opened | None]
HANDLERS: dict[str, Handler] = {}


def _for(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return add


def script_of(words: Sequence[Word]) -> str | None:
    """Words that a program joins into a script; None where one of them is not known."""
    return None if any(isinstance(word, Dynamic) for word in words) else " ".join(words)


def _script(out: Opened, word: Word, shell: str = "sh") -> None:
    if isinstance(word, Dynamic):
        out.problems.append(f"{word} is run as a script")
    else:
        out.scripts.append((word, shell))


def _joined(out: Opened, words: Sequence[Word], shell: str = "sh") -> None:
    text = script_of(words)
    if text is None:
        out.problems.append(f"{' '.join(words)} is run as a script")
    else:
        out.scripts.append((text, shell))


# -- shells ---------------------------------------------------------------------------------------------------------------------


@_for(*SHELLS)
def _shell(words: Words) -> Opened:
    out = Opened()
    name = str(words[0]).rsplit("/", 1)[-1]
    shell = "bash" if "bash" in name else "zsh" if "zsh" in name else "sh"
    command = False
    i = 1
    while i < len(words):
        word = words[i]
        if isinstance(word, Dynamic):
            out.code(i, "a shell's script")
            return out
        if word in ("--", "-"):
            i += 1
            break
        if word in ("--login", "--noprofile", "--norc", "--posix", "--restricted", "--verbose"):
            i += 1
        elif word in ("--version", "--help"):
            return out
        elif len(word) > 1 and word[0] in "-+":
            letters = word[1:]
            if not re.fullmatch(r"[celuxfvnarmhbpBCEHT]*o?", letters):
                out.code(i, f"the option {word} of a shell")
                return out
            command = command or "c" in letters
            i += 1
            if letters.endswith("o"):
                value = words[i] if i < len(words) else ""
                if value not in (
                    "pipefail",
                    "errexit",
                    "nounset",
                    "xtrace",
                    "noglob",
                    "posix",
                    "verbose",
                    "noclobber",
                    "errtrace",
                ):
                    out.code(i, f"the option {value} of a shell")
                    return out
                i += 1
        else:
            break
    if command:
        out.transparent = True
        if i >= len(words):
            out.problems.append("a shell without its script")
        else:
            _script(out, words[i], shell)
    elif i < len(words):
        out.named(i, "a shell's script", words[i])
    else:
        out.reads_code = True
    return out


@_for("csh", "tcsh", "fish", "xonsh", "nu", "elvish", "es", "rc", "yash", "scsh", "expect")
def _other_shell(words: Words) -> Opened:
    return _code_from(words, "c", "e", named=True)


@_for("eval")
def _eval(words: Words) -> Opened:
    out = Opened()
    out.transparent = True
    _joined(out, words[1:], "bash")
    return out


@_for("trap")
def _trap(words: Words) -> Opened:
    out = Opened()
    out.transparent = True
    if len(words) > 2 and words[1] not in ("-", "--", "-l", "-p"):
        _script(out, words[1], "bash")
    elif len(words) > 1 and words[1] == "--":
        out.problems.append("trap --")
    return out


@_for("source", ".")
def _source(words: Words) -> Opened:
    out = Opened()
    out.code(1, "a script that is read")
    return out


@_for("let", "alias", "enable", "fc", "bind", "complete", "compgen", "mapfile", "readarray", "hash", "coproc", "repeat", "foreach",
      "autoload", "zmodload", "vared", "print", "emulate", "history", "caller", "typeset", "integer", "float")  # fmt: skip
def _evaluating(words: Words) -> Opened:
    out = Opened()
    out.code(len(words), f"{words[0]} has the shell run or load what it is given")
    if words[0] == "coproc":
        out.inner.append(words[1:])
    return out


@_for("read", "printf", "unset", "wait", "getopts", "test", "[", "local", "declare", "export", "readonly")
def _naming(words: Words) -> Opened:
    """The name of a variable may have a subscript, which is evaluated."""
    out = Opened()
    if words[0] == "unset" and len(words) == 1:
        return out
    option = words[0] in ("test", "[") and "-v" in words
    option = option or (words[0] == "printf" and len(words) > 1 and words[1].startswith("-v"))
    if option or (words[0] in ("read", "unset", "wait", "getopts", "local", "declare", "export", "readonly")
                  and any(isinstance(w, Dynamic) or "[" in w for w in words[1:])):  # fmt: skip
        out.code(len(words), f"{words[0]} evaluates the name of a variable")
    return out


# -- what only changes how something is run -----------------------------------------------------------------------------------------


def _wrapper(
    flags: str = "", valued: str = "", long: str = "", long_valued: str = "", skip: int = 0, numbers: bool = False,
    writes: str = "", nothing: str = "",
) -> Handler:  # fmt: skip
    def handler(words: Words) -> Opened:
        out = Opened()
        options = _Options(words, flags, valued, f"{long} help version", long_valued, numbers=numbers)
        out.writes += [value for value, _ in options.values(*writes.split())] if writes else []
        if options.unknown is not None:
            out.problems.append(f"the option {options.unknown} of {words[0]}")
            out.guarded = len(words)
        place = options.place + skip
        rest = words[place:]
        if any(isinstance(word, Dynamic) and word.many for word in words[options.place : place]):
            out.problems.append(f"the arguments of {words[0]}")
        if nothing and options.has(*nothing.split()):
            return out
        if rest:
            if words[0] == "time" and re.match(r"!$|[A-Za-z_]\w*\+?=", rest[0]):
                out.problems.append(f"{rest[0]} behind time")  # the shell's own time is no program
            out.inner.append(rest)
            out.transparent = True
        return out

    return handler


_TIME = _wrapper("apqvV", "fo", "append portability quiet verbose", "format output", writes="o output")
HANDLERS.update({
    "nice": _wrapper("", "n", "", "adjustment", numbers=True),
    "ionice": _wrapper("t", "cnpPu", "ignore", "class classdata pid pgid uid"),
    "nohup": _wrapper(),
    "time": _TIME,
    "timeout": _wrapper("fpv", "ks", "foreground preserve-status verbose", "kill-after signal", skip=1),
    "stdbuf": _wrapper("", "ioe", "", "input output error"),
    "setsid": _wrapper("cfw", "", "ctty fork wait"),
    "chrt": _wrapper("abdfimoprRv", "DPT", "all-tasks batch deadline fifo idle other rr max pid verbose reset-on-fork",
                     "sched-runtime sched-period sched-deadline", skip=1),
    "taskset": _wrapper("ac", "p", "all-tasks cpu-list", "pid", skip=1),
    "builtin": _wrapper(),
    "command": _wrapper("pvV", nothing="v V"),
    "exec": _wrapper("cl", "a"),
    "noglob": _wrapper(), "nocorrect": _wrapper(), "-": _wrapper(),
    "setarch": _wrapper("vRFILSTXZB3", "", "uname-2.6 addr-no-randomize 32bit fdpic-funcptrs mmap-page-zero addr-compat-layout"
                        " read-implies-exec short-inode whole-seconds sticky-timeouts 3gb 4gb verbose", skip=1),
    "linux32": _wrapper("vRFILSTXZB3"), "linux64": _wrapper("vRFILSTXZB3"), "i386": _wrapper("vR"), "x86_64": _wrapper("vR"),
    "catchsegv": _wrapper(), "chronic": _wrapper("ev"), "eatmydata": _wrapper(), "unbuffer": _wrapper("p"),
    "strace": _wrapper("cCdfFhiknqrtTvVwxyYzZD", "abeEIoOpPsSuUX", "follow-forks", "output trace", writes="o output"),
    "ltrace": _wrapper("bcCfhiLrStTV", "aADeFlnopsuwx", "", "output", writes="o output"),
    "caffeinate": _wrapper("disum", "tw"),
    "systemd-inhibit": _wrapper("", "", "list no-legend no-pager no-ask-password", "what who why mode"),
    "numactl": _wrapper("", "iNCmpPl", "", "interleave cpunodebind physcpubind membind preferred localalloc"),
    "prlimit": _wrapper("v", "cdefilmnpqrstuvxy"), "softlimit": _wrapper("", "adfmlorstc"),
    "perl-wrapper": _wrapper(),
})  # fmt: skip


@_for("env")
def _env(words: Words) -> Opened:
    out = Opened()
    options = _Options(
        words, "i0v", "uCS", "ignore-environment null debug list-signal-handling block-signal default-signal ignore-signal help"
        " version", "unset chdir split-string argv0",
    )  # fmt: skip
    rest = words[options.place :]
    if words[options.place - 1] == "-" and options.place > 1:
        rest = words[options.place :]
    for value, _ in options.values("S", "split-string"):
        if isinstance(value, Dynamic) or re.search(r"[$\\#'\"]", value):
            out.problems.append(f"env -S {value}")
        else:
            rest = (*value.split(), *rest)
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of env")
    out.cwd = options.has("C", "chdir")
    place = 0
    if rest and rest[0] == "-":
        place = 1
    while place < len(rest):
        word = rest[place]
        name, equals, value = word.partition("=")
        if isinstance(word, Dynamic):
            if "=" not in word.start:
                break
            name, value = word.start.partition("=")[0], Dynamic(str(word))
        elif not equals:
            break
        out.assigns.append((name, value))
        place += 1
    if rest[place:]:
        out.inner.append(rest[place:])
        out.transparent = True
    return out


@_for("xargs")
def _xargs(words: Words) -> Opened:
    out = Opened()
    options = _Options(
        words, "0prtxo", "aEeIiLlnPsd", "null interactive no-run-if-empty verbose exit open-tty show-limits help version",
        "arg-file delimiter eof replace max-lines max-args max-procs max-chars process-slot-var",
    )  # fmt: skip
    # -e -i -l take what is attached to them only.
    place, value = 1, None
    options_again = [word for word in words[1 : options.place] if re.fullmatch(r"-[eil]", word)]
    if options_again:
        options = _Options(words, "0prtxoeil", "aEILnPsd", "null interactive no-run-if-empty verbose exit open-tty show-limits",
                           "arg-file delimiter max-args max-procs max-chars process-slot-var")  # fmt: skip
    place = options.place
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of xargs")
    replace: Word | None = None
    for value, _ in options.values("I", "i", "replace"):
        replace = value or "{}"
    command = words[place:] or ("echo",)
    if replace is not None:
        inner = tuple([Dynamic(str(w)) if isinstance(w, Dynamic) or replace in w else w for w in command])
    else:
        inner = (*command, MANY)
    out.inner.append(inner)
    out.transparent = True
    return out


@_for("flock")
def _flock(words: Words) -> Opened:
    out = Opened()
    options = _Options(words, "sexnuFovh", "wEc", "shared exclusive unlock nonblock close no-fork verbose",
                       "timeout wait conflict-exit-code command")  # fmt: skip
    place = options.place
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of flock")
    rest = words[place + 1 :]
    scripts = [value for value, _ in options.values("c", "command")]
    if rest and rest[0] in ("-c", "--command"):
        scripts += rest[1:2]
        rest = ()
    for value in scripts:
        _script(out, value)
    if rest and not scripts:
        out.inner.append(rest)
    out.transparent = bool(out.inner or out.scripts)
    return out


@_for("busybox", "toybox")
def _busybox(words: Words) -> Opened:
    out = Opened()
    if len(words) > 1 and not words[1].startswith("-"):
        out.inner.append(words[1:])
        out.transparent = True
    elif len(words) > 1 and isinstance(words[1], Dynamic):
        out.problems.append(f"{words[1]} is a program of {words[0]}")
    return out


@_for("watch")
def _watch(words: Words) -> Opened:
    out = Opened()
    options = _Options(words, "bcdegprtwxC", "nqs", "beep color no-color differences errexit chgexit precise no-rerun no-title exec"
                       " no-wrap", "interval equexit")  # fmt: skip
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of watch")
    rest = words[options.place :]
    if options.has("x", "exec"):
        out.inner.append(rest)
    elif rest:
        _joined(out, rest)
    out.transparent = bool(rest)
    return out


@_for("script", "scriptlive")
def _script_program(words: Words) -> Opened:
    out = Opened()
    options = _Options(words, "aefqt", "cEIBOTom", "append return flush force quiet", "command echo log-in log-out log-io log-timing"
                       " output-limit logging-format", permute=True)  # fmt: skip
    for value, _ in options.values("c", "command"):
        _script(out, value)
    if not out.scripts:
        out.reads_code = True
    out.writes += [value for value, _ in options.values("I", "B", "O", "T", "log-in", "log-out", "log-io", "log-timing")]
    out.writes += [words[i] for i in options.operands] or ["typescript"]
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of script")
    out.transparent = bool(out.scripts)
    return out


@_for("find")
def _find(words: Words) -> Opened:
    out = Opened()
    i = 1
    while i < len(words):
        word = words[i]
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            end = i + 1
            while end < len(words) and words[end] != ";" and not (words[end] == "+" and words[end - 1] == "{}"):
                end += 1
            inner = words[i + 1 : end]
            if any(isinstance(w, Dynamic) and w.many for w in inner) or end == len(words):
                out.problems.append(f"{word} of find")
            if inner:
                out.inner.append(tuple([Dynamic(str(w)) if "{}" in w else w for w in inner]))
            i = end
        elif word in ("-fprint", "-fprint0", "-fprintf", "-fls"):
            out.writes.append(words[i + 1] if i + 1 < len(words) else MANY)
            i += 1
        elif word == "-files0-from":
            i += 1
        elif isinstance(word, Dynamic) and (not word.start or word.start[0] in "-(!") and i > 1 and word[0] != "*":
            out.problems.append(f"{word} may be an action of find")
        i += 1
    return out


@_for("fd")
def _fd(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words):
        if word in ("-x", "-X", "--exec", "--exec-batch"):
            inner = words[i + 1 :]
            out.inner.append((*[Dynamic(str(w)) if "{" in w else w for w in inner], MANY))
            break
        if i and (word.startswith(("-x", "-X", "--exec")) or (isinstance(word, Dynamic) and not word.start)):
            out.code(i, "a command that fd runs")
    return out


# -- who runs it, or where -----------------------------------------------------------------------------------------------------


def _guard(
    flags: str, valued: str, long: str, long_valued: str, skip: int = 0, assigns: bool = False, scripts: str = "",
) -> Handler:  # fmt: skip
    """Programs that run another one with other rights or elsewhere: rules have to speak of them too."""

    def handler(words: Words) -> Opened:
        out = Opened()
        options = _Options(words, flags, valued, f"{long} help version", long_valued)
        place = options.place + skip
        if options.unknown is not None:
            out.problems.append(f"the option {options.unknown} of {words[0]}")
        if assigns:
            while place < len(words) and re.match(r"[A-Za-z_]\w*=", words[place]):
                name, _, value = words[place].partition("=")
                out.assigns.append((name, value))
                place += 1
        for value, _ in options.values(*scripts.split()) if scripts else []:
            _script(out, value)
        rest = words[place:]
        if rest:
            out.inner.append(rest)
        out.guarded = max(1, place) if rest else len(words)
        return out

    return handler


HANDLERS.update({
    "sudo": _guard("AbBeEHiklnPsSvKVN", "aCcDghpRrtTuU", "askpass background bell edit preserve-env login list non-interactive"
                   " preserve-groups stdin shell remove-timestamp reset-timestamp validate set-home",
                   "close-from chdir group host prompt chroot role type command-timeout other-user user", assigns=True),
    "doas": _guard("Lns", "aCu", "", ""),
    "pkexec": _guard("", "u", "disable-internal-agent keep-cwd", "user"),
    "chroot": _guard("", "", "skip-chdir", "groups userspec", skip=1),
    "unshare": _guard("imnpuUCTfrch", "RwSG", "ipc mount net pid uts user cgroup time fork map-root-user map-current-user keep-caps"
                      " mount-proc kill-child", "root wd setuid setgid propagation setgroups"),
    "nsenter": _guard("amnpuUiCTFZeW", "tGSrw", "all mount net pid uts user ipc cgroup time no-fork preserve-credentials",
                      "target setuid setgid root wd"),
    "setpriv": _guard("d", "", "clear-groups keep-groups init-groups nnp no-new-privs reset-env dump",
                      "reuid regid ruid euid rgid egid groups inh-caps ambient-caps bounding-set securebits pdeathsig"),
    "gosu": _guard("", "", "", "", skip=1), "su-exec": _guard("", "", "", "", skip=1), "fakeroot": _guard("uhv", "lsibk", "", ""),
    "firejail": _guard("", "", "quiet noprofile private", "profile"), "bwrap": _guard("", "", "", ""),
    "proot": _guard("0", "rbqwkS", "", ""), "systemd-run": _guard("dGPqrtS", "EpuM", "user scope wait pty pipe", "unit property"),
    "dbus-run-session": _guard("", "", "", "config-file dbus-daemon"), "xvfb-run": _guard("al", "efnpsw", "auto-servernum", ""),
    "capsh": _guard("", "", "", ""), "openvt": _guard("", "", "", ""), "watchexec": _guard("", "", "", ""),
    "nodemon": _guard("", "", "", ""), "reflex": _guard("", "", "", ""), "newgrp": _guard("", "", "", ""), "ld.so": _guard("", "", "inhibit-cache", "argv0"),
    "proxychains": _guard("q", "f", "", ""), "proxychains4": _guard("q", "f", "", ""), "torsocks": _guard("i", "upaP", "", ""),
    "cgexec": _guard("", "g", "sticky", ""), "dumb-init": _guard("cv", "r", "single-child verbose", "rewrite"),
    "tini": _guard("sghvw", "pe", "", ""), "rlwrap": _guard("acimnNorRtvw", "bCDefFgHIlMOpPqsSTz", "", ""),
    "direnv": _guard("", "", "", "", skip=2), "daemonize": _guard("av", "celopEu", "", ""),
    "start-stop-daemon": _guard("", "", "", ""), "run-parts": _guard("", "", "", ""), "parallel": _guard("", "", "", ""),
    "entr": _guard("acdnprsxz", "", "", ""), "at": _guard("", "", "", ""), "batch": _guard("", "", "", ""),
    "screen": _guard("", "", "", ""), "tmux": _guard("", "", "", ""), "gdb": _guard("", "", "", ""),
    "valgrind": _guard("", "", "", ""), "perf": _guard("", "", "", ""), "crontab": _guard("", "", "", ""),
    "nix-shell": _guard("", "", "", ""), "machinectl": _guard("", "", "", ""), "lxc": _guard("", "", "", ""),
    "podman-compose": _guard("", "", "", ""), "vagrant": _guard("", "", "", ""), "wsl": _guard("", "", "", ""),
})  # fmt: skip


@_for("su", "runuser", "sg")
def _su(words: Words) -> Opened:
    out = Opened()
    options = _Options(
        words, "flmPh", "cgGsuTwV", "fast login preserve-environment pty help version", "command session-command group supp-group"
        " shell user whitelist-environment", permute=True,
    )  # fmt: skip
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of {words[0]}")
    for value, _ in options.values("c", "command", "session-command"):
        _script(out, value)
    operands = tuple([words[i] for i in options.operands])
    if options.has("u", "user") and operands:
        out.inner.append(operands)
    out.guarded = len(words)
    return out


@_for("ssh", "slogin", "autossh")
def _ssh(words: Words) -> Opened:
    out = Opened()
    options = _Options(words, "46AaCfGgKkMNnqsTtVvXxYy", "BbcDEeFIiJLlmOoPpQRSWw")
    for value, place in options.values("o"):
        if isinstance(value, Dynamic) or re.match(
            r"\s*(proxycommand|localcommand|permitlocalcommand|knownhostscommand|proxyusefdpass|match|include|pkcs11provider"
            r"|securitykeyprovider|xauthlocation)", value, re.IGNORECASE,
        ):  # fmt: skip
            out.code(place, "a command that ssh runs here")
    for _, place in options.values("F", "I", "J"):
        out.code(place, "ssh with another configuration")
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of {words[0]}")
    rest = words[options.place + 1 :]
    if rest:
        text = script_of(rest)
        if text is not None:
            out.scripts.append((text, "sh"))
    out.guarded = options.place + 1
    return out


@_for("scp", "sftp", "rsync")
def _copy(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            if name and any(full.startswith(name) for full in ("rsh", "rsync-path", "info-command")):
                out.code(i + ("=" not in word), "a program that is run to connect")
        elif word.startswith("-") and re.search(r"[eSoFD]", word):
            out.code(min(i + 1, len(words)), "a program that is run to connect")
        elif isinstance(word, Dynamic) and not word.start:
            out.problems.append(f"{word} may be an option of {words[0]}")
    return out


@_for("docker", "podman", "nerdctl", "kubectl", "oc", "helm")
def _container(words: Words) -> Opened:
    out = Opened()
    name = str(words[0]).rsplit("/", 1)[-1]
    if name in ("kubectl", "oc", "helm"):
        options = _Options(words, "", "nsv", "help version insecure-skip-tls-verify", "namespace context cluster user request-timeout"
                           " server kubeconfig token as as-group certificate-authority kube-context v log-file cache-dir")  # fmt: skip
        harmless = not options.has("s", "server", "kubeconfig", "token", "as", "as-group", "user", "cluster", "log-file")
    else:
        options = _Options(words, "Dv", "HlcL", "debug tls tlsverify version help", "host log-level context config tlscacert tlscert"
                           " tlskey url connection identity root runroot")  # fmt: skip
        harmless = not options.found
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of {name}")
    rest = words[options.place :]
    if options.place > 1:
        out.spellings.append(((words[0], *rest), harmless))
    if rest and rest[0] in ("run", "exec", "create", "compose", "container", "start", "debug", "cp", "build", "buildx", "plugin"):
        # Where the command of the container begins depends on a hundred options: what stands in any place may be it.
        for i in range(options.place + 1, len(words)):
            if not words[i].startswith("-"):
                out.maybe.append(words[i:])
        if rest[0] in ("run", "exec", "create", "debug"):
            out.guarded = options.place + 1
    return out


# -- interpreters ------------------------------------------------------------------------------------------------------------------


def _code_from(
    words: Words, code: str, also: str = "", *, flags: str = "", valued: str = "", long_code: str = "", long: str = "",
    long_valued: str = "", module: str = "", named: bool = True, reads: bool = True, nothing: str = "",
) -> Opened:  # fmt: skip
    """An interpreter: `-c code`, `-m module`, or a script."""
    out = Opened()
    i = 1
    while i < len(words):
        word = words[i]
        if isinstance(word, Dynamic):
            out.code(i, f"code for {words[0]}") if not word.start or word.start.startswith("-") else out.named(i, "a script")
            return out
        if word == "-":
            out.reads_code = reads
            out.code(i, f"{words[0]} runs what it reads")
            return out
        if word == "--":
            i += 1
            break
        if word.startswith("--"):
            name, equals, _ = word[2:].partition("=")
            if name in long_code.split():
                out.code(i if equals else i + 1, f"code for {words[0]}")
                return out
            if name in nothing.split():
                return out
            if name in long_valued.split():
                i += 1 if equals else 2
                continue
            if name in long.split() and not equals:
                i += 1
                continue
            out.code(i, f"the option {word} of {words[0]}")
            return out
        if word.startswith("-"):
            step = 1
            for j, letter in enumerate(word[1:], 1):
                rest = word[j + 1 :]
                if letter in code or letter in also:
                    out.code(i if rest else i + 1, f"code for {words[0]}")
                    return out
                if letter in module:
                    out.named(i if rest else i + 1, f"a module for {words[0]}")
                    if rest:
                        out.spellings.append(((rest, *words[i + 1 :]), False))
                    elif words[i + 1 :]:
                        out.spellings.append((words[i + 1 :], False))
                    return out
                if letter in valued:
                    step = 1 if rest else 2
                    break
                if letter in nothing.split():
                    return out
                if letter not in flags:
                    out.code(i, f"the option {word} of {words[0]}")
                    return out
            i += step
            continue
        break
    if i < len(words):
        if named:
            out.named(i, f"a script for {words[0]}", words[i])
    else:
        out.reads_code = reads
    return out


@_for("python", "python2", "pypy")
def _python(words: Words) -> Opened:
    return _code_from(words, "c", flags="bBdEiIOPqsSuvx3", valued="WX", module="m", nothing="V h version help help-all",
                      long_valued="check-hash-based-pycs")  # fmt: skip


@_for("node", "bun")
def _node(words: Words) -> Opened:
    if words[0].endswith("bun") and len(words) > 1:
        return _packages(words) or Opened()
    return _code_from(words, "ep", "r", flags="ic", long_code="eval print require import loader experimental-loader", nothing="v h"
                      " version help", long="check interactive no-warnings trace-warnings test watch enable-source-maps",
                      long_valued="max-old-space-size stack-trace-limit")  # fmt: skip


@_for("perl")
def _perl(words: Words) -> Opened:
    return _code_from(words, "eE", "MmIdDx", flags="acflnpsSTtuUvwWX0i", nothing="v V h")


@_for("ruby", "php", "lua", "luajit", "Rscript", "rscript", "r", "julia", "osascript", "groovy", "scala", "swipl", "ghci", "elixir",
      "tclsh", "wish", "guile", "racket", "sbcl", "clojure", "erl", "irb", "ipython", "jshell", "pwsh-preview")  # fmt: skip
def _interpreter(words: Words) -> Opened:
    return _code_from(words, "eErcipBRFxl", long_code="eval expr execute run command", nothing="v V h version help")


@_for("deno")
def _deno(words: Words) -> Opened:
    out = Opened()
    if len(words) > 1 and words[1] == "eval":
        out.code(2, "code for deno")
    elif len(words) > 1 and words[1] in ("run", "task", "test", "bench", "serve"):
        out.named(2, "a script for deno")
    return out


@_for("java")
def _java(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if word.startswith(
            ("-javaagent", "-agent", "-XX:OnError", "-XX:OnOutOfMemoryError", "@", "-XX:Flags", "-Xbootclasspath")
        ):
            out.code(i, "code for java")
        elif not word.startswith("-"):
            out.named(i, "a class for java")
            break
    return out


_AWK = re.compile(r"system|\|(?!\|)|print[^;}\n]*>|@|getline|/inet")


@_for("awk")
def _awk(words: Words) -> Opened:
    out = Opened()
    options = _Options(words, "bcCghInNOPrsStV", "FvfEeildDLopW", "traditional posix re-interval sandbox lint version help"
                       " csv non-decimal-data characters-as-bytes optimize", "field-separator assign file exec source include load"
                       " dump-variables profile pretty-print")  # fmt: skip
    for value, place in options.values("f", "file", "E", "exec", "i", "include", "l", "load"):
        out.named(place, f"the program {value} for awk")
    for _, place in options.values("e", "source", "d", "D", "o", "p", "W", "dump-variables", "profile", "pretty-print"):
        out.code(place, "an option of awk that runs code or writes")
    if options.unknown is not None:
        out.code(options.place, f"the option {options.unknown} of awk")
    elif options.place < len(words) and not options.has("f", "file", "E", "exec"):
        program = words[options.place]
        text = "" if isinstance(program, Dynamic) else re.sub(r"\|\|", "", program)
        if isinstance(program, Dynamic) or _AWK.search(text):
            out.code(options.place, "a program for awk that runs commands or writes")
    return out


@_for("sed")
def _sed(words: Words) -> Opened:
    out = Opened()
    options = _Options(words, "nErszub", "efl", "quiet silent debug follow-symlinks posix regexp-extended separate sandbox unbuffered"
                       " null-data zero-terminated in-place help version", "expression file line-length", permute=True)  # fmt: skip
    in_place = False
    if options.unknown is not None:
        # -i takes what is attached to it; so does --in-place
        again = tuple([w for w in words if not re.fullmatch(r"-[nErszub]*i.*|--in-place(=.*)?", w)])
        in_place = len(again) != len(words)
        if not in_place:
            out.problems.append(f"the option {options.unknown} of sed")
        else:
            options = _Options(again, "nErszub", "efl", "quiet silent debug follow-symlinks posix regexp-extended separate sandbox"
                               " unbuffered null-data zero-terminated help version", "expression file line-length", permute=True)  # fmt: skip
            if options.unknown is not None:
                out.problems.append(f"the option {options.unknown} of sed")
            words = again
    scripts = options.values("e", "expression")
    for value, place in options.values("f", "file"):
        out.named(place, f"the script {value} of sed")
    if not scripts and not options.has("f", "file"):
        scripts = [(words[i], i) for i in options.operands[:1]]
    for value, place in scripts:
        if isinstance(value, Dynamic) or not harmless_sed(value):
            out.code(place, "a script for sed that runs commands or writes files")
    out.edits = in_place
    return out


def harmless_sed(script: str) -> bool:
    """Whether nothing in a sed script runs a command or names a file to write. False where it is not understood."""
    i, end = 0, len(script)

    def delimited(i: int, delimiter: str) -> int:
        """Behind the next delimiter that counts; -1 if there is none."""
        brackets = False
        while i < end:
            char = script[i]
            if char == "\\":
                i += 2
                continue
            if brackets:
                brackets = char != "]"
            elif char == "[" and delimiter != "[":
                brackets = "]" in script[i + 2 :]
                i += 2 if script[i + 1 : i + 2] == "]" else 1
                continue
            elif char == delimiter:
                return i + 1
            elif char == "\n":
                return -1
            i += 1
        return -1

    while i < end:
        while i < end and script[i] in " \t\n;{}":
            i += 1
        if i >= end:
            return True
        if script[i] == "#":
            newline = script.find("\n", i)
            i = end if newline < 0 else newline
            continue
        for _ in range(2):  # addresses
            if i < end and (script[i].isdigit() or script[i] in "$"):
                while i < end and (script[i].isdigit() or script[i] in "$~"):
                    i += 1
            elif i < end and script[i] == "/":
                i = delimited(i + 1, "/")
                if i < 0:
                    return False
                while i < end and script[i] in "IM":
                    i += 1
            elif i < end and script[i] in "+~":
                i += 1
                while i < end and script[i].isdigit():
                    i += 1
            while i < end and script[i] in " \t":
                i += 1
            if i < end and script[i] == ",":
                i += 1
                while i < end and script[i] in " \t":
                    i += 1
            else:
                break
        while i < end and script[i] in " \t!":
            i += 1
        if i >= end:
            return False
        command = script[i]
        i += 1
        if command in "sy":
            if i >= end or script[i] in "\\\n":
                return False
            delimiter = script[i]
            if delimiter.isalnum() or delimiter in " ;[":
                return False
            i = delimited(i + 1, delimiter)
            if i < 0:
                return False
            while i < end and script[i] != delimiter:
                i += 2 if script[i] == "\\" else 1
            if i >= end:
                return False
            i += 1
            flags = i
            while i < end and script[i] not in " \t\n;}":
                i += 1
            if not re.fullmatch(r"[gpiIMm0-9]*", script[flags:i]):
                return False
        elif command in "aic":
            newline = script.find("\n", i)
            return not ("\\" in script[i:] or newline >= 0)
        elif command in ":btT":
            while i < end and script[i] not in "\n;}":
                i += 1
        elif command in "qQlL":
            while i < end and (script[i].isdigit() or script[i] in " \t"):
                i += 1
        elif command not in "=dDgGhHnNpPxz{}F":
            return False
        while i < end and script[i] in " \t":
            i += 1
        if i < end and script[i] not in "\n;{}#":
            return False
    return True


# -- tools that can be given a command -------------------------------------------------------------------------------------------


def _long_options(words: Words, dangerous: Sequence[str], short: str = "", start: int = 1) -> list[int]:
    """Places of the values of options that are given a command, or name one; abbreviated ones too."""
    out = []
    for i, word in enumerate(words[start:], start):
        if word == "--":
            break
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            if name and any(full.startswith(name) for full in dangerous):
                out.append(i if "=" in word else i + 1)
        elif word.startswith("-") and short and any(letter in word[1:] for letter in short):
            out.append(i if len(word) > 2 else i + 1)
        elif isinstance(word, Dynamic) and not word.start:
            continue
    return out


def _given(dangerous: str, short: str = "", what: str = "a command that it runs") -> Handler:
    def handler(words: Words) -> Opened:
        out = Opened()
        for place in _long_options(words, dangerous.split(), short):
            out.code(min(place, len(words)), what)
        return out

    return handler


HANDLERS.update({
    "sort": _given("compress-program", "", "a program that sort runs"),
    "rg": _given("pre hostname-bin", "", "a program that rg runs"),
    "man": _given("pager html browser preprocessor extension", "PHp", "a pager that man runs"),
    "zip": lambda words: _zip(words),
    "split": _given("filter", "", "a command that split runs"),
    "vim": lambda words: _vim(words), "vi": lambda words: _vim(words), "ex": lambda words: _vim(words),
    "view": lambda words: _vim(words), "gvim": lambda words: _vim(words), "less": lambda words: _vim(words),
    "more": lambda words: _vim(words), "emacs": _given("eval execute load script funcall batch", "lf", "code for emacs"),
    "sqlite3": lambda words: _sqlite(words), "mysql": _given("execute init-command", "e", "commands of mysql"),
    "gcc": _given("wrapper specs", "B", "a program that the compiler runs"), "wget": _given("use-askpass", "", "a program"),
    "tcpdump": _given("", "z", "a command that tcpdump runs"), "nmap": _given("script", "", "a script"),
    "apt": _given("option config-file", "oc", "an option of apt that can run commands"),
    "apt-get": _given("option config-file", "oc", "an option of apt that can run commands"),
    "dpkg": _given("pre-invoke post-invoke status-logger", "", "a command that dpkg runs"),
    "pytest": _given("pdbcls", "p", "a plug-in"), "ctest": _given("build-and-test script", "S", "a script"),
    "cmake": _given("", "P", "a script for cmake"), "ansible": _given("module-name args", "ma", "a command"),
})  # fmt: skip


def _sqlite(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if re.match(r"--?(?:cmd|init)\b", word) or re.search(r"\.(?:shell|system|load|import|output|once|excel)|load_extension|writefile", word):
            out.code(min(i + 1, len(words)), "commands of sqlite3")
    return out


def _zip(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if re.match(r"-[a-zA-Z]*TT|--unzip-", word):
            out.code(i + 1, "a command that zip runs")
    return out


def _vim(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if word.startswith("+") and len(word) > 1 and not word[1:].isdigit():
            out.code(i, f"a command for {words[0]}")
        elif word in ("-c", "-S", "--cmd", "-s", "-u", "-U", "-W", "-w", "-k", "-K", "-o", "-O", "--lesskey-file"):
            out.code(i + 1, f"a command for {words[0]}")
        elif re.match(r"--cmd|-[cSsuU].", word):
            out.code(i, f"a command for {words[0]}")
    return out


@_for("tar")
def _tar(words: Words) -> Opened:
    out = Opened()
    dangerous = ("checkpoint-action", "to-command", "use-compress-program", "rsh-command", "rmt-command", "info-script",
                 "new-volume-script")  # fmt: skip
    for i, word in enumerate(words[1:], 1):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name and name != "checkpoint" and any(full.startswith(name) for full in dangerous):
                value = value if equals else (words[i + 1] if i + 1 < len(words) else "")
                out.code(i if equals else i + 1, f"a command that tar runs: {value}")
                if value.startswith("exec="):
                    _script(out, value[5:])
        elif (word.startswith("-") or i == 1) and not isinstance(word, Dynamic) and re.search(r"[IF]", word):
            cluster = word.lstrip("-")
            if "I" in cluster or ("F" in cluster and word.startswith("-")):
                out.code(i + 1, "a program that tar runs")
        elif isinstance(word, Dynamic) and not word.start and "*" in word:
            # The shell may find a file of the name --checkpoint-action=...
            out.problems.append(f"{word} may be an option of tar")
    return out


@_for("make", "gmake", "ninja", "just", "task", "rake")
def _make(words: Words) -> Opened:
    out = Opened()
    options = _Options(words, "bBdeikLmnpqrRsStvw", "CfIjloOWxE", "always-make keep-going silent quiet dry-run just-print recon"
                       " print-directory no-print-directory warn-undefined-variables touch question environment-overrides"
                       " ignore-errors no-builtin-rules no-builtin-variables trace check-symlink-times version help print-data-base",
                       "directory file makefile include-dir jobs load-average max-load old-file assume-old output-sync new-file"
                       " assume-new what-if eval debug shuffle", permute=True)  # fmt: skip
    for value, place in options.values("f", "file", "makefile"):
        out.named(place, f"the makefile {value}")
        if value == "-":
            out.code(place, "make reads its rules")
    for _, place in options.values("eval", "E", "x"):
        out.code(place, "rules for make")
    for i in options.operands:
        name, equals, value = words[i].partition("=")
        if equals and (isinstance(words[i], Dynamic) or not re.fullmatch(r"[\w./:+,@%-]*", value) or name.rstrip(":+?!") in
                       ("SHELL", "MAKEFLAGS", "GNUMAKEFLAGS", "MAKEFILES", ".SHELLFLAGS", "MAKE")):  # fmt: skip
            out.code(i, "a variable of make, in which there may be commands")
    if options.unknown is not None and not re.fullmatch(
        r"-j\d*|-l[\d.]*|-O\w*|--(jobs|output-sync|debug|shuffle)", options.unknown
    ):
        out.code(options.place - 1, f"the option {options.unknown} of make")
    operands = tuple([words[i] for i in options.operands])
    if operands != words[1:]:
        out.spellings.append(((words[0], *operands), not options.has("I", "include-dir", "f", "file", "makefile")))
    return out


@_for("npm", "pnpm", "yarn", "npx", "bunx", "pipx", "uvx", "uv", "poetry", "pipenv", "bundle", "hatch", "pdm", "rye", "conda", "mise",
      "rbenv", "pyenv", "asdf", "nox", "tox", "mamba", "micromamba", "dotenv", "doppler", "op", "aws-vault", "envchain", "chamber",
      "gh", "heroku", "fly", "nvm", "corepack", "turbo", "lerna", "nx", "bazel", "cargo")  # fmt: skip
def _packages(words: Words) -> Opened:
    out = Opened()
    name = str(words[0]).rsplit("/", 1)[-1]
    if name in ("npx", "bunx", "uvx"):
        for i, word in enumerate(words[1:], 1):
            if word in ("-c", "--call"):
                if i + 1 < len(words):
                    _script(out, words[i + 1])
                out.code(i + 1, "a script")
                return out
            if not word.startswith("-") or isinstance(word, Dynamic):
                out.named(i, "a package that is run")
                out.maybe.append(words[i:])
                break
        return out
    valued = {"npm": "prefix C w workspace loglevel registry userconfig globalconfig script-shell cache",
              "pnpm": "C dir filter F prefix", "yarn": "cwd", "poetry": "C directory P project", "uv": "directory project python p",
              "cargo": "config Z color C", "conda": "", "bundle": "", "pipenv": "python"}.get(name, "")  # fmt: skip
    i = 1
    dropped = False
    while i < len(words) and (words[i].startswith(("-", "+")) or isinstance(words[i], Dynamic)):
        if isinstance(words[i], Dynamic) and not words[i].start:  # type: ignore[union-attr]
            out.problems.append(f"{words[i]} may be what {name} does")
            break
        option = words[i].lstrip("-").partition("=")
        dropped = True
        i += 2 if option[0] in valued.split() and not option[1] else 1
    if dropped and i < len(words):
        out.spellings.append(((words[0], *words[i:]), False))
    verb = words[i] if i < len(words) else ""
    if (verb in ("run", "exec", "x", "dlx", "with") and name not in ("cargo", "gh", "fly", "heroku", "nx", "turbo", "lerna", "op", "bazel")) or (
        name in ("envchain", "doppler", "chamber", "dotenv", "op") and len(words) > i):  # fmt: skip
        # What is run may be behind any of the options.
        for j in range(i + 1, len(words)):
            if not words[j].startswith("-") and (name not in ("npm", "pnpm", "yarn") or verb in ("exec", "x", "dlx")):
                out.maybe.append(words[j:])
        if verb in ("dlx", "exec", "x") or name == "pipx":
            out.named(i + 1, "a package that is run")
    if any(word.startswith(("--script-shell", "--node-options", "--config=", "--onload-script")) for word in words[1:]):
        out.code(len(words), f"an option of {name} that has code run")
    if name == "cargo":
        for k, word in enumerate(words[1:], 1):
            if word == "--config" or word.startswith("--config="):
                out.code(k + ("=" not in word), "a configuration for cargo")
    return out


@_for("terraform", "tofu", "terragrunt")
def _terraform(words: Words) -> Opened:
    out = Opened()
    i = 1
    while i < len(words) and words[i].startswith("-"):
        i += 1
    if i > 1:
        out.spellings.append(((words[0], *words[i:]), False))
    return out


# -- git ---------------------------------------------------------------------------------------------------------------------------

GIT_COMMANDS = frozenset(
    """add am annotate apply archive bisect blame branch bugreport bundle cat-file check-attr check-ignore check-mailmap
    check-ref-format checkout checkout-index cherry cherry-pick citool clean clone column commit commit-graph commit-tree config
    count-objects credential credential-cache credential-store daemon describe diagnose diff diff-files diff-index diff-tree difftool
    fast-export fast-import fetch fetch-pack filter-branch fmt-merge-msg for-each-ref for-each-repo format-patch fsck gc
    get-tar-commit-id grep gui hash-object help hook imap-send index-pack init init-db instaweb interpret-trailers log ls-files
    ls-remote ls-tree mailinfo mailsplit maintenance merge merge-base merge-file merge-index merge-octopus merge-one-file merge-ours
    merge-recursive merge-resolve merge-subtree merge-tree mergetool mktag mktree multi-pack-index mv name-rev notes p4 pack-objects
    pack-redundant pack-refs patch-id prune prune-packed pull push quiltimport range-diff read-tree rebase receive-pack reflog refs
    remote repack replace replay request-pull rerere reset restore rev-list rev-parse revert rm send-email send-pack shortlog show
    show-branch show-index show-ref sparse-checkout stage stash status stripspace submodule subtree switch symbolic-ref tag
    unpack-file unpack-objects update-index update-ref update-server-info upload-archive upload-pack var verify-commit verify-pack
    verify-tag version whatchanged worktree write-tree backfill survey""".split()
)
_GIT_KEYS = re.compile(
    r"(?:color\.|user\.(?:name|email)(?==|$)|advice\.|log\.(?:date|decorate|abbrevcommit)|diff\.(?:renames|context|noprefix|mnemonicprefix"
    r"|colormoved|algorithm|renamelimit)|core\.(?:quotepath|abbrev|autocrlf|safecrlf|filemode|precomposeunicode|ignorecase|longpaths"
    r"|preloadindex)|commit\.gpgsign=?(?:false)?$|tag\.gpgsign=?(?:false)?$|gc\.auto|init\.defaultbranch|pull\.(?:rebase|ff)"
    r"|merge\.(?:conflictstyle|ff)|rebase\.autostash|status\.|column\.|blame\.|grep\.|pager\.[a-z]+=false$|submodule\.recurse"
    r"|push\.default|fetch\.prune|protocol\.version|safe\.directory|http\.(?:version|postbuffer|lowspeed)|core\.pager=(?:cat|less)?$)",
    re.IGNORECASE,
)
_GIT_VALUED = frozenset("-C -c --git-dir --work-tree --namespace --super-prefix --config-env --exec-path --attr-source".split())
_GIT_FLAGS = frozenset(
    "-p --paginate -P --no-pager --no-replace-objects --bare --literal-pathspecs --glob-pathspecs --noglob-pathspecs"
    " --icase-pathspecs --no-optional-locks --no-lazy-fetch --no-advice".split()
)
_GIT_RUNNING = {
    "rebase": ("exec", "x"), "bisect": ("", ""), "clone": ("upload-pack config template server-option bundle-uri", "cu"),
    "fetch": ("upload-pack", ""), "pull": ("upload-pack", ""), "push": ("receive-pack exec", ""),
    "ls-remote": ("upload-pack exec", ""), "archive": ("remote exec", ""), "grep": ("open-files-in-pager", "O"),
    "difftool": ("extcmd tool", "xt"), "mergetool": ("tool", "t"), "filter-branch":
    ("env-filter tree-filter index-filter msg-filter commit-filter parent-filter tag-name-filter setup", ""),
    "send-email": ("smtp-server sendmail-cmd to-cmd cc-cmd header-cmd", ""), "instaweb": ("httpd browser", "db"),
    "diff": ("ext-diff", ""), "show": ("ext-diff", ""), "log": ("ext-diff", ""), "init": ("template", ""),
    "daemon": ("access-hook", ""), "help": ("", ""), "submodule": ("", ""), "config": ("edit", "e"), "commit": ("template", ""),
    "am": ("", ""), "fetch-pack": ("upload-pack exec", ""), "send-pack": ("receive-pack exec", ""),
    "interpret-trailers": ("", ""), "credential": ("", ""), "remote": ("", ""),
}  # fmt: skip


_GIT_OUTPUT = frozenset("log diff show shortlog format-patch archive whatchanged range-diff".split())


@_for("git")
def _git(words: Words) -> Opened:
    out = Opened()
    i = 1
    harmless = True
    while i < len(words):
        word = words[i]
        if isinstance(word, Dynamic):
            out.problems.append(f"{word} may be what git does")
            return out
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        if (
            name in ("--version", "--help", "-h", "-v", "--html-path", "--man-path", "--info-path", "--list-cmds")
            or word == "--exec-path"
        ):
            return out
        if word in _GIT_FLAGS:
            i += 1
            continue
        if word.startswith("-c") and len(word) > 2 and not word.startswith("--"):
            out.code(i, "a setting for git")
            harmless = False
            i += 1
            continue
        if name not in _GIT_VALUED:
            out.problems.append(f"the option {word} of git")
            i += 1
            continue
        place = i if equals else i + 1
        given: Word = value if equals else (words[place] if place < len(words) else "")
        if name == "-c":
            if isinstance(given, Dynamic) or not _GIT_KEYS.match(given):
                out.code(place, f"the setting {given} for git")
                harmless = False
                alias = re.match(r"alias\.([^=]+)=(.*)", given, re.DOTALL | re.IGNORECASE)
                if alias and alias[2].startswith("!") and not isinstance(given, Dynamic):
                    _script(out, alias[2][1:])
                elif alias and not isinstance(given, Dynamic):
                    out.spellings.append(((words[0], *alias[2].split(), *words[place + 2 :]), False))
        elif name in ("--exec-path", "--config-env", "--super-prefix", "--attr-source"):
            out.code(place, f"{name} of git")
            harmless = False
        elif isinstance(given, Dynamic) and given.many:
            out.problems.append(f"{given} may be what git does")
        i = place + 1
    if i > 1:
        out.spellings.append(((words[0], *words[i:]), harmless))
    if i >= len(words):
        return out
    verb = words[i]
    rest = words[i + 1 :]
    if verb not in GIT_COMMANDS:
        out.named(i, f"git {verb} is an alias or a program of its own")
        out.guarded = i + 1
    dangerous, short = _GIT_RUNNING.get(verb, ("", ""))
    for place in _long_options(words, dangerous.split(), short, i + 1) if dangerous or short else ():
        out.code(min(place, len(words)), f"a command that git {verb} runs")
        if verb == "rebase" and place < len(words):
            _script(out, words[place].partition("=")[2] if words[place].startswith("-") else words[place])
    output = verb in _GIT_OUTPUT
    for j, word in enumerate(rest, i + 1):
        if "ext::" in word and re.match(r"(?:--[\w-]+=)?ext::", word):
            out.code(j, "a command that git runs to connect")
        if output and word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            if len(option) > 3 and "output".startswith(option):
                out.writes.append(value if equals else (words[j + 1] if j + 1 < len(words) else MANY))
    if verb == "submodule" and "foreach" in rest:
        where = rest.index("foreach") + 1
        tail = [word for word in rest[where:] if word not in ("--recursive", "-q", "--quiet")]
        _joined(out, tail)
        out.code(i + 2, "a command that git submodule runs")
    if verb == "bisect" and rest[:1] == ("run",):
        out.inner.append(rest[1:])
    if verb == "help" or (verb == "config" and any(re.match(r"alias\.|core\.(pager|editor|sshcommand|fsmonitor|hookspath|askpass)"
                                                            r"|.*\.(textconv|command|cmd|driver|clean|smudge|process|helper)$", word,
                                                            re.IGNORECASE) for word in rest)):  # fmt: skip
        out.guarded = len(words) if verb == "config" and len([w for w in rest if not w.startswith("-")]) > 1 else None
    return out


# -- windows ------------------------------------------------------------------------------------------------------------------------


@_for("cmd")
def _cmd(words: Words) -> Opened:
    """`cmd /c`: commands of plain words are taken apart; `^`, `%`, `!`, quotes and parentheses are not."""
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if re.match(r"/[ck]", word, re.IGNORECASE):
            text = script_of((word[2:], *words[i + 1 :]))
            if text is None or re.search(r"[\^%!()<>\"'`\n\r]", text):
                out.code(i + 1, "a script for cmd")
                text = text or ""
            out.inner += [tuple(part.replace("\\", "/").split()) for part in re.split(r"&&|\|\||[&|]", text) if part.split()]
            out.transparent = bool(out.inner) and not out.payloads
            return out
        if not re.fullmatch(r"/[dqsaue](:\w+)?", word, re.IGNORECASE):
            out.code(i, f"the option {word} of cmd")
            return out
    out.reads_code = True
    return out


_POWERSHELL_RUNS = frozenset("iex invoke-expression icm invoke-command start saps start-process . & add-type new-object".split())


@_for("powershell", "pwsh")
def _powershell(words: Words) -> Opened:
    out = Opened()
    i = 1
    while i < len(words):
        word = str(words[i]).lower().replace("/", "-", 1)
        if word and "-command".startswith(word) and len(word) > 1:
            text = script_of(words[i + 1 :])
            if text is None or not re.fullmatch(r"[\w ./\\:=,|;-]*", text):
                out.code(i + 1, "a script for PowerShell")
                text = re.sub(r"[^\w ./\\:=,|;-]", " ", text or "")
            out.inner += [tuple(part.split()) for part in re.split(r"[|;]", text) if part.split()]
            if any(vector[0].lower() in _POWERSHELL_RUNS for vector in out.inner):
                out.code(i + 1, "a script for PowerShell")
            out.transparent = bool(out.inner) and not out.payloads
            return out
        if word in ("-noprofile", "-nop", "-noninteractive", "-nologo"):
            i += 1
        elif word in ("-executionpolicy", "-ep", "-version", "-windowstyle"):
            i += 2
        else:
            out.code(i, "a script for PowerShell")
            return out
    out.reads_code = True
    return out
