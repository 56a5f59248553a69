"""Tools that can be given a command, or have commands of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ._opened import HANDLERS, Handler, Opened, Options, Words, handles, run_script, script_of
from ._words import Dynamic


def long_options(words: Words, dangerous: Sequence[str], short: str = "", start: int = 1) -> list[int]:
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
        for place in long_options(words, dangerous.split(), short):
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
    "sqlite3": lambda words: _sqlite(words), "mysql": _given("execute init-command pager", "e", "commands of mysql"),
    "wget": _given("use-askpass", "", "a program"),
    "tcpdump": _given("", "z", "a command that tcpdump runs"), "nmap": _given("script", "", "a script"),
    "apt": _given("option config-file", "oc", "an option of apt that can run commands"),
    "apt-get": _given("option config-file", "oc", "an option of apt that can run commands"),
    "dpkg": _given("pre-invoke post-invoke status-logger", "", "a command that dpkg runs"),
    "pytest": _given("pdbcls", "p", "a plug-in"), "ctest": _given("build-and-test script", "S", "a script"),
    "ansible": _given("module-name args", "ma", "a command"),
})  # fmt: skip


def _sqlite(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if re.match(r"--?(?:cmd|init)\b", word) or re.search(
            r"\.(?:shell|system|load|import|output|once|excel)|load_extension|writefile", word
        ):
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


HANDLERS.update({
    "emacsclient": _given("eval", "e", "code for emacs"),
    "fzf": _given("preview bind execute become", "", "a command that fzf runs"),
    "bat": _given("pager", "", "a pager that bat runs"), "ag": _given("pager", "", "a pager"), "ack": _given("pager", "", "a pager"),
    "delta": _given("pager", "", "a pager"), "cpio": _given("rsh-command", "", "a program that cpio runs"),
    "install": _given("strip-program", "", "a program that install runs"), "rpm": _given("eval pipe define", "ED", "a macro of rpm"),
})  # fmt: skip


def _matching(pattern: str, what: str) -> Handler:
    """Programs of which a word that looks like this is a command, or names one."""
    shape = re.compile(pattern, re.IGNORECASE)

    def handler(words: Words) -> Opened:
        out = Opened()
        for i, word in enumerate(words[1:], 1):
            if shape.search(word):
                out.code(i, what)
        return out

    return handler


_COMPILER = _matching(r"^-(?:wrapper|fplugin|specs|-specs|B.|B$|fuse-ld|-ld-path|load|Xclang|fpass-plugin|no-canonical)", "a program that the compiler runs")
HANDLERS.update(dict.fromkeys("gcc g++ cc c++ clang clang++ cpp gfortran".split(), _COMPILER))
HANDLERS.update({
    "psql": _matching(r"\\!|\\o\s*\||\bprogram\b", "a command that psql runs"),
    "socat": _matching(r"^(?:exec|system|shell)(?::|$)|[|,](?:exec|system|shell):", "a command that socat runs"),
    "nc": _matching(r"^-[a-z0-9]*[ec]|^--(?:exec|sh-exec|lua-exec)", "a command that nc runs"),
    "ncat": _matching(r"^-[a-z0-9]*[ec]|^--(?:exec|sh-exec|lua-exec)", "a command that nc runs"),
    "netcat": _matching(r"^-[a-z0-9]*[ec]|^--(?:exec|sh-exec|lua-exec)", "a command that nc runs"),
})  # fmt: skip


@handles("cmake")
def _cmake(words: Words) -> Opened:
    out = Opened()
    for i, word in enumerate(words[1:], 1):
        if word == "-E":
            rest = words[i + 1 :]
            if rest[:1] == ("env",):
                out.inner.append(rest)
            elif rest[:1] == ("time",):
                out.inner.append(rest[1:])
            elif rest:
                out.inner.append(rest)  # rm, copy, make_directory, ...: named as the programs are
            out.code(i + 1, "a command of cmake")
            break
        if word == "-P":
            out.code(i + 1, "a script for cmake")
    return out


@handles("tar")
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
                    run_script(out, value[5:])
        elif (word.startswith("-") or i == 1) and not isinstance(word, Dynamic) and re.search(r"[IF]", word):
            cluster = word.lstrip("-")
            if "I" in cluster or ("F" in cluster and word.startswith("-")):
                out.code(i + 1, "a program that tar runs")
        elif isinstance(word, Dynamic) and not word.start and "*" in word:
            # The shell may find a file of the name --checkpoint-action=...
            out.problems.append(f"{word} may be an option of tar")
    return out


@handles("make", "gmake", "ninja", "just", "task", "rake")
def _make(words: Words) -> Opened:
    out = Opened()
    options = Options(words, "bBdeikLmnpqrRsStvw", "CfIjloOWxE", "always-make keep-going silent quiet dry-run just-print recon"
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


# They set variables, and run what follows.
_ENVIRONMENTS = frozenset("envchain doppler chamber dotenv op env-cmd dotenvx teller sops cross-env cross-env-shell hyperfine concurrently".split())


@handles("npm", "pnpm", "yarn", "npx", "bunx", "pipx", "uvx", "uv", "poetry", "pipenv", "bundle", "hatch", "pdm", "rye", "conda", "mise",
      "rbenv", "pyenv", "asdf", "nox", "tox", "mamba", "micromamba", "dotenv", "doppler", "op", "aws-vault", "envchain", "chamber",
      "env-cmd", "dotenvx", "teller", "sops", "cross-env", "cross-env-shell", "hyperfine", "concurrently", "gh", "heroku", "fly", "nvm", "corepack", "turbo", "lerna", "nx", "bazel", "cargo")  # fmt: skip
def packages(words: Words) -> Opened:
    out = Opened()
    name = str(words[0]).rsplit("/", 1)[-1]
    if name in ("npx", "bunx", "uvx"):
        for i, word in enumerate(words[1:], 1):
            if word in ("-c", "--call"):
                if i + 1 < len(words):
                    run_script(out, words[i + 1])
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
        name in _ENVIRONMENTS and len(words) > i):  # fmt: skip
        # What is run may be behind any of the options.
        for j in range(i + (name not in _ENVIRONMENTS), len(words)):
            if not words[j].startswith("-") and (name not in ("npm", "pnpm", "yarn") or verb in ("exec", "x", "dlx")):
                out.maybe.append(words[j:])
        if verb in ("dlx", "exec", "x") or name == "pipx":
            out.named(i + 1, "a package that is run")
    if name in ("hyperfine", "concurrently", "cross-env-shell", "sops"):
        # Each of their words may be a script.
        out.scripts += [(word, "sh") for word in words[1:] if " " in word and not word.startswith("-") and not isinstance(word, Dynamic)]
    if any(word.startswith(("--script-shell", "--node-options", "--config=", "--onload-script")) for word in words[1:]):
        out.code(len(words), f"an option of {name} that has code run")
    if name == "cargo":
        for k, word in enumerate(words[1:], 1):
            if word == "--config" or word.startswith("--config="):
                out.code(k + ("=" not in word), "a configuration for cargo")
    return out


@handles("terraform", "tofu", "terragrunt")
def _terraform(words: Words) -> Opened:
    out = Opened()
    i = 1
    while i < len(words) and words[i].startswith("-"):
        i += 1
    if i > 1:
        out.spellings.append(((words[0], *words[i:]), False))
    return out


@handles("cmd")
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


@handles("powershell", "pwsh")
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
