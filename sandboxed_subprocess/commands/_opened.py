"""What a command turns out to be, once its arguments have been read as its program reads them.

Options are read as each program reads them. One that is not known here is a problem, with which nothing is allowed without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ._words import Dynamic, Word

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


class Options:
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


def handles(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return add


def script_of(words: Sequence[Word]) -> str | None:
    """Words that a program joins into a script; None where one of them is not known."""
    return None if any(isinstance(word, Dynamic) for word in words) else " ".join(words)


def run_script(out: Opened, word: Word, shell: str = "sh") -> None:
    if isinstance(word, Dynamic):
        out.problems.append(f"{word} is run as a script")
    else:
        out.scripts.append((word, shell))


def run_joined(out: Opened, words: Sequence[Word], shell: str = "sh") -> None:
    text = script_of(words)
    if text is None:
        out.problems.append(f"{' '.join(words)} is run as a script")
    else:
        out.scripts.append((text, shell))
