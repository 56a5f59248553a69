"""Words of a command: literal ones, and those of which only the shell will know what becomes of them."""

from __future__ import annotations

from typing import Union


class Dynamic(str):
    """A word that is not known before it is run (`$X`, `*.py`). As a string it is its own source text.

    Attributes:
        many: it may become any number of words, none included.
        start: what it begins with in any case.
    """

    __slots__ = ("many", "start")
    many: bool
    start: str

    def __new__(cls, text: str, many: bool = False, start: str = "") -> Dynamic:
        self = super().__new__(cls, text)
        self.many = many
        self.start = start
        return self

    def __getnewargs__(self) -> tuple[str, bool, str]:  # type: ignore[override]
        return str(self), self.many, self.start


Word = Union[str, Dynamic]
MANY = Dynamic("...", many=True)


def literal(word: Word) -> bool:
    return type(word) is str


def text_of(words: tuple[Word, ...] | list[Word]) -> tuple[str, ...]:
    """The words as plain strings: for people, and for keys."""
    return tuple([str(word) for word in words])
