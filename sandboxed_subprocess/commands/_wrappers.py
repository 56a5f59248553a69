"""Shells, and programs that run another one: otherwise, with other rights, or elsewhere."""

from __future__ import annotations

import re

from ._identity import MULTICALL
from ._interpreters import code_from
from ._opened import HANDLERS, SHELLS, Handler, Opened, Options, Words, handles, run_joined, run_script, script_of
from ._rules import bare_name
from ._shell import RESERVED
from ._words import MANY, Dynamic, Word


@handles(*SHELLS)
def shell_program(words: Words) -> Opened:
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
            run_script(out, words[i], shell)
    elif i < len(words):
        out.named(i, "a shell's script", words[i])
    else:
        out.reads_code = True
    return out


@handles("csh", "tcsh", "fish", "xonsh", "nu", "elvish", "es", "rc", "yash", "scsh", "expect", "osh", "ysh", "oil", "posh", "lksh", "oksh", "heirloom-sh")
def _other_shell(words: Words) -> Opened:
    return code_from(words, "c", "e", named=True)


@handles("eval")
def _eval(words: Words) -> Opened:
    out = Opened()
    out.transparent = True
    run_joined(out, words[1:], "bash")
    return out


@handles("trap")
def _trap(words: Words) -> Opened:
    out = Opened()
    out.transparent = True
    if len(words) > 2 and words[1] not in ("-", "--", "-l", "-p"):
        run_script(out, words[1], "bash")
    elif len(words) > 1 and words[1] == "--":
        out.problems.append("trap --")
    return out


@handles("source", ".")
def _source(words: Words) -> Opened:
    out = Opened()
    out.code(1, "a script that is read")
    return out


@handles("let", "alias", "enable", "fc", "bind", "complete", "compgen", "mapfile", "readarray", "hash", "coproc", "repeat", "foreach",
      "autoload", "zmodload", "vared", "print", "emulate", "history", "caller", "typeset", "integer", "float")  # fmt: skip
def _evaluating(words: Words) -> Opened:
    out = Opened()
    out.code(len(words), f"{words[0]} has the shell run or load what it is given")
    if words[0] == "coproc":
        out.inner.append(words[1:])
    return out


@handles("read", "printf", "unset", "wait", "getopts", "test", "[", "local", "declare", "export", "readonly")
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


def _wrapper(
    flags: str = "", valued: str = "", long: str = "", long_valued: str = "", skip: int = 0, numbers: bool = False,
    writes: str = "", nothing: str = "",
) -> Handler:  # fmt: skip
    def handler(words: Words) -> Opened:
        out = Opened()
        options = Options(words, flags, valued, f"{long} help version", long_valued, numbers=numbers)
        for value, _ in options.values(*writes.split()) if writes else ():
            if value.startswith(("|", "!")):
                out.problems.append(f"{words[0]} writes to the command {value}")
            else:
                out.writes.append(value)
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
            if words[0] == "time" and (rest[0] in RESERVED or re.match(r"[A-Za-z_]\w*\+?=", rest[0])):
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
    "exec": lambda words: _exec(words),
    "noglob": _wrapper(), "nocorrect": _wrapper(), "-": _wrapper(),
    "setarch": lambda words: _setarch(words),
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


_SETARCH = _wrapper("vRFILSTXZB3", "", "uname-2.6 addr-no-randomize 32bit fdpic-funcptrs mmap-page-zero addr-compat-layout"
                    " read-implies-exec short-inode whole-seconds sticky-timeouts 3gb 4gb verbose show")  # fmt: skip


def _setarch(words: Words) -> Opened | None:
    """`setarch [arch] [options] program`."""
    named = len(words) > 1 and not words[1].startswith("-")
    return _SETARCH((words[0], *words[2:]) if named else words)


_EXEC = _wrapper("cl", "a")


def _exec(words: Words) -> Opened | None:
    out = _EXEC(words)
    if out is not None and any(word.startswith("-") and "a" in word for word in words[1:3]):
        # A program of many names does what it is called.
        for vector in out.inner:
            if bare_name(vector[0]) in MULTICALL:
                out.problems.append(f"{vector[0]} by another name")
    return out


@handles("env")
def _env(words: Words) -> Opened:
    out = Opened()
    options = Options(
        words, "i0v", "uCS", "ignore-environment null debug list-signal-handling block-signal default-signal ignore-signal help"
        " version", "unset chdir split-string",
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


HANDLERS.update({
    "heaptrack": _wrapper("o", "p"), "envdir": _wrapper(skip=1), "arch": _wrapper("", "d", "arm64 x86_64 i386"),
    "s6-setuidgid": _wrapper(skip=1), "setuidgid": _wrapper(skip=1), "envuidgid": _wrapper(skip=1), "s6-envdir": _wrapper(skip=1),
    "chpst": _wrapper("vPV012", "uUbe/nlLmdorpftc"), "s6-softlimit": _wrapper("", "adfmlorstch"), "rr": _wrapper(skip=1),
    "ssh-agent": _wrapper("csDdk", "aEPtO"), "faketime": _wrapper("mp", "f", skip=1), "fakechroot": _wrapper("sh"),
    "cpulimit": _wrapper("zvibf", "lpePc", "lazy verbose include-children background foreground", "limit pid exe path cpu"),
    "nocache": _wrapper(), "annotate-output": _wrapper(), "logsave": _wrapper("asv", skip=1), "run-one": _wrapper(),
    "sem": _wrapper("", "j"), "dtach": _wrapper("", "nAacN"),
})  # fmt: skip


@handles("xargs")
def _xargs(words: Words) -> Opened:
    out = Opened()
    options = Options(
        words, "0prtxo", "aEeIiLlnPsd", "null interactive no-run-if-empty verbose exit open-tty show-limits help version",
        "arg-file delimiter eof replace max-lines max-args max-procs max-chars process-slot-var",
    )  # fmt: skip
    # -e -i -l take what is attached to them only.
    place, value = 1, None
    options_again = [word for word in words[1 : options.place] if re.fullmatch(r"-[eil]", word)]
    if options_again:
        options = Options(words, "0prtxoeil", "aEILnPsd", "null interactive no-run-if-empty verbose exit open-tty show-limits",
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


@handles("flock")
def _flock(words: Words) -> Opened:
    out = Opened()
    options = Options(words, "sexnuFovh", "wEc", "shared exclusive unlock nonblock close no-fork verbose",
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
        run_script(out, value)
    if rest and not scripts:
        out.inner.append(rest)
    out.transparent = bool(out.inner or out.scripts)
    return out


@handles("busybox", "toybox")
def _busybox(words: Words) -> Opened:
    out = Opened()
    if len(words) > 1 and not words[1].startswith("-"):
        out.inner.append(words[1:])
        out.transparent = True
    elif len(words) > 1 and isinstance(words[1], Dynamic):
        out.problems.append(f"{words[1]} is a program of {words[0]}")
    return out


@handles("watch")
def _watch(words: Words) -> Opened:
    out = Opened()
    options = Options(words, "bcdegprtwxC", "nqs", "beep color no-color differences errexit chgexit precise no-rerun no-title exec"
                       " no-wrap", "interval equexit")  # fmt: skip
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of watch")
    rest = words[options.place :]
    if options.has("x", "exec"):
        out.inner.append(rest)
    elif rest:
        run_joined(out, rest)
    out.transparent = bool(rest)
    return out


@handles("script", "scriptlive")
def _script_program(words: Words) -> Opened:
    out = Opened()
    options = Options(words, "aefqt", "cEIBOTom", "append return flush force quiet", "command echo log-in log-out log-io log-timing"
                       " output-limit logging-format", permute=True)  # fmt: skip
    for value, _ in options.values("c", "command"):
        run_script(out, value)
    if not out.scripts:
        out.reads_code = True
    out.writes += [value for value, _ in options.values("I", "B", "O", "T", "log-in", "log-out", "log-io", "log-timing")]
    out.writes += [words[i] for i in options.operands] or ["typescript"]
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of script")
    out.transparent = bool(out.scripts)
    return out


@handles("find")
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


@handles("fd")
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


def _guard(
    flags: str, valued: str, long: str, long_valued: str, skip: int = 0, assigns: bool = False, scripts: str = "",
) -> Handler:  # fmt: skip
    """Programs that run another one with other rights or elsewhere: rules have to speak of them too."""

    def handler(words: Words) -> Opened:
        out = Opened()
        options = Options(words, flags, valued, f"{long} help version", long_valued)
        place = options.place + skip
        if options.unknown is not None:
            out.problems.append(f"the option {options.unknown} of {words[0]}")
        if assigns:
            while place < len(words) and re.match(r"[A-Za-z_]\w*=", words[place]):
                name, _, value = words[place].partition("=")
                out.assigns.append((name, value))
                place += 1
        for value, _ in options.values(*scripts.split()) if scripts else []:
            run_script(out, value)
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


HANDLERS.update({
    name: _guard("", "", "", "")
    for name in """xterm uxterm rxvt urxvt gnome-terminal konsole kitty alacritty x-terminal-emulator foot wezterm dbus-launch startx
    nsjail minijail0 runc crun ctr run0 flatpak flatpak-spawn distrobox toolbox nix guix trickle abduco autoexpect""".split()
})


@handles("su", "runuser", "sg")
def _su(words: Words) -> Opened:
    out = Opened()
    options = Options(
        words, "flmPh", "cgGsuTwV", "fast login preserve-environment pty help version", "command session-command group supp-group"
        " shell user whitelist-environment", permute=True,
    )  # fmt: skip
    if options.unknown is not None:
        out.problems.append(f"the option {options.unknown} of {words[0]}")
    for value, _ in options.values("c", "command", "session-command"):
        run_script(out, value)
    operands = tuple([words[i] for i in options.operands])
    if options.has("u", "user") and operands:
        out.inner.append(operands)
    out.guarded = len(words)
    return out


@handles("ssh", "slogin", "autossh")
def _ssh(words: Words) -> Opened:
    out = Opened()
    options = Options(words, "46AaCfGgKkMNnqsTtVvXxYy", "BbcDEeFIiJLlmOoPpQRSWw")
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


@handles("scp", "sftp", "rsync")
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


@handles("docker", "podman", "nerdctl", "kubectl", "oc", "helm")
def _container(words: Words) -> Opened:
    out = Opened()
    name = str(words[0]).rsplit("/", 1)[-1]
    if name in ("kubectl", "oc", "helm"):
        options = Options(words, "", "nsv", "help version insecure-skip-tls-verify", "namespace context cluster user request-timeout"
                           " server kubeconfig token as as-group certificate-authority kube-context v log-file cache-dir")  # fmt: skip
        harmless = not options.has("s", "server", "kubeconfig", "token", "as", "as-group", "user", "cluster", "log-file")
    else:
        options = Options(words, "Dv", "HlcL", "debug tls tlsverify version help", "host log-level context config tlscacert tlscert"
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
