"""Interpreters: where in their arguments code stands, or the name of code."""

from __future__ import annotations

import re

from ._opened import Opened, Options, Words, handles
from ._tools import packages
from ._words import Dynamic


def code_from(
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


@handles("python", "python2", "pypy")
def _python(words: Words) -> Opened:
    return code_from(words, "c", flags="bBdEiIOPqsSuvx3", valued="WX", module="m", nothing="V h version help help-all",
                      long_valued="check-hash-based-pycs")  # fmt: skip


@handles("node", "bun")
def _node(words: Words) -> Opened | None:
    if words[0].endswith("bun") and len(words) > 1:
        return packages(words)
    return code_from(words, "ep", "r", flags="ic", long_code="eval print require import loader experimental-loader", nothing="v h"
                      " version help", long="check interactive no-warnings trace-warnings test watch enable-source-maps",
                      long_valued="max-old-space-size stack-trace-limit")  # fmt: skip


@handles("perl")
def _perl(words: Words) -> Opened:
    return code_from(words, "eE", "MmIdDx", flags="acflnpsSTtuUvwWX0i", nothing="v V h")


@handles("ruby", "php", "lua", "luajit", "Rscript", "rscript", "r", "julia", "osascript", "groovy", "scala", "swipl", "ghci", "elixir",
      "tclsh", "wish", "guile", "racket", "sbcl", "clojure", "erl", "irb", "ipython", "jshell", "pwsh-preview", "dc", "ed", "gnuplot", "octave", "ocaml", "ghc", "jrunscript", "m4", "maxima", "lldb", "pry")  # fmt: skip
def _interpreter(words: Words) -> Opened:
    return code_from(words, "eErcipBRFxl", long_code="eval expr execute run command", nothing="v V h version help")


@handles("deno")
def _deno(words: Words) -> Opened:
    out = Opened()
    if len(words) > 1 and words[1] == "eval":
        out.code(2, "code for deno")
    elif len(words) > 1 and words[1] in ("run", "task", "test", "bench", "serve"):
        out.named(2, "a script for deno")
    return out


@handles("java")
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


@handles("awk")
def _awk(words: Words) -> Opened:
    out = Opened()
    options = Options(words, "bcCghInNOPrsStV", "FvfEeildDLopW", "traditional posix re-interval sandbox lint version help"
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


@handles("sed")
def _sed(words: Words) -> Opened:
    out = Opened()
    options = Options(words, "nErszub", "efl", "quiet silent debug follow-symlinks posix regexp-extended separate sandbox unbuffered"
                       " null-data zero-terminated in-place help version", "expression file line-length", permute=True)  # fmt: skip
    in_place = False
    if options.unknown is not None:
        # -i takes what is attached to it; so does --in-place
        again = tuple([w for w in words if not re.fullmatch(r"-[nErszub]*i.*|--in-place(=.*)?", w)])
        in_place = len(again) != len(words)
        if not in_place:
            out.problems.append(f"the option {options.unknown} of sed")
        else:
            options = Options(again, "nErszub", "efl", "quiet silent debug follow-symlinks posix regexp-extended separate sandbox"
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
