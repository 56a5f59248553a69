"""Output on its way to the caller: what is kept of it, as text, in lines."""

from __future__ import annotations

import codecs
import io
import locale
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._report import Report

# For the line that stands where something is missing. Under a limit that is smaller than a few of them there is none.
_MARK = 64


class Kept:
    """What is kept of one output: all of it; or, under a limit, its beginning and its end, and a line between them that says
    how much is missing.

    `subprocess.Popen` appends to one of these in the place of its list, and joins it.

    Args:
        limit: bytes, the line between included.
        encoding: of a text stream. What is kept can then be decoded if the whole could be.
    """

    def __init__(self, limit: int | None, encoding: str | None = None) -> None:
        self._limit = limit
        self._encoding = encoding
        self._total = 0
        self._chunks: list[bytes] = []
        self._head = bytearray()
        self._tail = bytearray()
        if limit is not None:
            room = limit if limit < 4 * _MARK else limit - _MARK
            self._head_size = room // 2
            self._tail_size = room - self._head_size

    def append(self, data: bytes) -> None:
        self._total += len(data)
        if self._limit is None:
            self._chunks.append(data)
            return
        missing = self._head_size - len(self._head)
        if missing > 0:
            self._head += data[:missing]
            data = data[missing:]
        # As much of the end as may be needed if nothing has to go. Cut when it is twice that: each byte is moved once.
        self._tail += data
        most = self._limit - self._head_size
        if len(self._tail) > 2 * most:
            del self._tail[:-most]

    @property
    def dropped(self) -> int:
        """Bytes that are not kept."""
        if self._limit is None or self._total <= self._limit:
            return 0
        head, tail = self._ends()
        return self._total - len(head) - len(tail)

    def _ends(self) -> tuple[bytes, bytes]:
        head, tail = bytes(self._head), bytes(self._tail[len(self._tail) - self._tail_size :])
        if self._encoding is not None:
            head = head[: len(head) - _unfinished(head, self._encoding)]
            unit = _unit(self._encoding)
            tail = tail[(len(tail) - self._total) % unit :]
            tail = tail[_astray(tail, self._encoding, unit) :]
        return head, tail

    def __iter__(self) -> Iterator[bytes]:
        if self._limit is None:
            yield from self._chunks
        elif self._total <= self._limit:
            yield bytes(self._head)
            yield bytes(self._tail)
        else:
            head, tail = self._ends()
            yield head
            if self._limit >= 4 * _MARK and (self._encoding is None or _unit(self._encoding) == 1):
                yield f"\n[... {self._total - len(head) - len(tail)} bytes dropped ...]\n".encode()
            yield tail

    def __bool__(self) -> bool:
        return self._total > 0

    def joined(self) -> bytes:
        return b"".join(self)


def _unfinished(data: bytes, encoding: str) -> int:
    """How many bytes at the end are the beginning of a character."""
    try:
        decoder = codecs.getincrementaldecoder(encoding)("ignore")
        decoder.decode(data)
        return len(decoder.getstate()[0])
    except (LookupError, ValueError):
        return 0  # an encoding without such a decoder: as good as it gets


def _unit(encoding: str) -> int:
    """Bytes of a code unit: each character takes a multiple of it."""
    try:
        return len("aa".encode(encoding)) - len("a".encode(encoding)) or 1
    except (LookupError, ValueError):
        return 1


def _astray(data: bytes, encoding: str, unit: int) -> int:
    """How many bytes at the beginning are the end of a character."""
    for start in range(0, 4, unit):
        try:
            codecs.getincrementaldecoder(encoding)("strict").decode(data[start:])
            return start
        except LookupError:
            break
        except ValueError:
            continue
    return 0


class Text:
    """What Popen's text mode does to bytes. Takes `text`, `encoding`, `errors` and `universal_newlines` out of the options.

    Raises:
        subprocess.SubprocessError: text and universal_newlines contradict each other.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        text, newlines = options.pop("text", None), options.pop("universal_newlines", None)
        if text is not None and newlines is not None and bool(newlines) != bool(text):
            raise subprocess.SubprocessError(
                "Cannot disambiguate when both text and universal_newlines are supplied but different. Pass one or the other."
            )
        encoding, errors = options.pop("encoding", None), options.pop("errors", None)
        self.encoding: str | None = None
        self.errors = errors or "strict"
        if text or newlines or encoding or errors:
            self.encoding = encoding or ("utf-8" if sys.flags.utf8_mode else locale.getpreferredencoding(False))
            codecs.lookup(self.encoding)

    def encode(self, value: Any) -> Any:
        return value.encode(self.encoding, self.errors) if self.encoding and isinstance(value, str) else value

    def decode(self, data: bytes | None) -> Any:
        if data is None or self.encoding is None:
            return data
        return data.decode(self.encoding, self.errors).replace("\r\n", "\n").replace("\r", "\n")


# File descriptor of the command, what arrived there, and when (time.monotonic()).
Chunk = tuple[int, bytes, float]


class Source:
    """A started command, to the one who takes its output, on whatever event loop."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    def returncode(self) -> int | None:
        raise NotImplementedError

    async def take(self) -> list[Chunk] | None:
        """Waits for more. None: there is no more, and the command has ended. Empty: the time is up."""
        raise NotImplementedError

    async def end(self, grace: float | None) -> None:
        """The tree is dead and reaped, and everything closed, when this returns, or raises a cancellation.

        Args:
            grace: seconds between SIGTERM and the end; None: no SIGTERM.
        """
        raise NotImplementedError

    def cancelled(self, error: BaseException) -> bool:
        """Whether this is how the loop's cancellation of the current task looks."""
        raise NotImplementedError

    def kill(self) -> None:
        """Ends the tree. What it had written can still be taken."""
        raise NotImplementedError

    def discard(self) -> None:
        """Ends the tree where nothing can be awaited any more: in a destructor, or in a coroutine that is thrown away."""
        raise NotImplementedError

    def send_signal(self, number: int) -> None:
        """To the command. Nothing happens once it has ended."""
        raise NotImplementedError


class Output(NamedTuple):
    """A piece of a command's output.

    Attributes:
        stream: "stdout" or "stderr".
        data: a line with its newline, or what arrived; bytes, in text mode str.
        time: when it arrived, in seconds since the command was started.
    """

    stream: str
    data: Any
    time: float


class Pieces:
    """Cuts one stream into what its reader asked for.

    Args:
        lines: whole lines; otherwise what arrives, as it arrives.
        longest: a line of more bytes (in text mode: characters) comes in pieces of this size.
    """

    def __init__(self, text: Text, lines: bool, longest: int) -> None:
        self._decoder: Any = None
        if text.encoding is not None:
            inner = codecs.getincrementaldecoder(text.encoding)(text.errors)
            self._decoder = io.IncrementalNewlineDecoder(inner, translate=True)
        self._newline: Any = b"\n" if text.encoding is None else "\n"
        self._lines = lines
        self._longest = longest
        # The line that has no end yet.
        self._begun: list[Any] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Any]:
        """What is complete with this.

        Raises:
            UnicodeDecodeError: as the text mode of a file.
        """
        return self._cut(data if self._decoder is None else self._decoder.decode(data))

    def close(self) -> list[Any]:
        """What is left at the end of the stream."""
        found = self._cut(self._decoder.decode(b"", final=True)) if self._decoder is not None else []
        if self._begun:
            found.append(self._taken())
        return found

    def _cut(self, data: Any) -> list[Any]:
        if not data:
            return []
        if not self._lines:
            return [data]
        newline = self._newline
        first, *rest = data.split(newline)
        if not rest:
            return self._begin(first)
        last = rest.pop()
        found = self._begin(first)
        self._begun.append(newline)
        found.append(self._taken())
        for line in rest:
            if len(line) < self._longest:
                found.append(line + newline)
            else:
                found += self._begin(line)
                self._begun.append(newline)
                found.append(self._taken())
        return found + self._begin(last)

    def _begin(self, data: Any) -> list[Any]:
        """More of a line without its end. Returns the pieces that it is too long for."""
        found = []
        while self._size + len(data) > self._longest:
            room = self._longest - self._size
            self._begun.append(data[:room])
            found.append(self._taken())
            data = data[room:]
        if data:
            self._begun.append(data)
            self._size += len(data)
        return found

    def _taken(self) -> Any:
        line = self._newline[:0].join(self._begun)
        self._begun.clear()
        self._size = 0
        return line
