"""Output on its way to the caller: what is kept of it, as text, in lines."""

from __future__ import annotations

import codecs
import io
import locale
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ._report import Report

if TYPE_CHECKING:
    from ._launch import Launch

# For the line that stands where something is missing. Under a limit that is smaller than a few of them there is none.
_MARK = 64


class Kept:
    """What is kept of one output: all of it; or, under a limit, its beginning and its end, and a line between them that says
    how much is missing.

    `subprocess.Popen` appends to one of these in the place of its list, and joins it.

    Args:
        limit: bytes, the line between included; characters where there is an encoding. None: no limit.
        encoding, errors: of a text stream. A limit cuts its text, not its bytes, so that what could be decoded still can be.
    """

    def __init__(self, limit: int | None, encoding: str | None = None, errors: str | None = None) -> None:
        self._limit = limit
        self._encoding = encoding
        self._errors = errors or "strict"
        self._chunks: list[bytes] = []
        self._bytes = 0
        if limit is None:
            return
        room = limit if limit < 4 * _MARK else limit - _MARK
        self._head_size = room // 2
        self._tail_size = room - self._head_size
        self._decoder: Any = None if encoding is None else codecs.getincrementaldecoder(encoding)(self._errors)
        self._total = 0
        self._head: Any = bytearray() if encoding is None else ""
        self._tail: Any = bytearray() if encoding is None else ""

    def append(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._limit is None:
            self._chunks.append(data)
        else:
            self._put(data if self._decoder is None else self._decoder.decode(data))

    def _put(self, data: Any) -> None:
        assert self._limit is not None
        self._total += len(data)
        missing = self._head_size - len(self._head)
        if missing > 0:
            self._head += data[:missing]
            data = data[missing:]
        # As much of the end as may be needed if nothing has to go. Cut when it is twice that: each byte is moved once.
        self._tail += data
        most = self._limit - self._head_size
        if len(self._tail) > 2 * most:
            self._tail = self._tail[-most:]

    @property
    def dropped(self) -> int:
        """Bytes that are not kept."""
        if self._limit is None or self._total <= self._limit:
            return 0
        head, tail = self._ends()
        return max(1, self._bytes - len(head) - len(tail))

    def _ends(self) -> tuple[bytes, bytes]:
        head, tail = self._head, self._tail[len(self._tail) - self._tail_size :]
        return (bytes(head), bytes(tail)) if self._encoding is None else (self._encoded(head), self._encoded(tail))

    def _encoded(self, text: str) -> bytes:
        assert self._encoding is not None
        try:
            return text.encode(self._encoding, self._errors)
        except UnicodeError:  # a codec that reads more than it writes
            return text.encode(self._encoding, "replace")

    def _shown(self) -> Any:
        if self._total <= self._limit:  # type: ignore[operator]
            return self._head + self._tail
        head, tail = self._head, self._tail[len(self._tail) - self._tail_size :]
        mark = f"\n[... {self.dropped} bytes dropped ...]\n" if self._limit >= 4 * _MARK else ""  # type: ignore[operator]
        return head + (mark.encode() if self._encoding is None else mark) + tail

    def text(self) -> Any:
        """What is kept, at the end; text where there are a limit and an encoding.

        Raises:
            UnicodeDecodeError: it ends in the middle of a character.
        """
        if self._limit is None:
            return b"".join(self._chunks)
        if self._decoder is None:
            return bytes(self._shown())
        self._put(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return self._shown()

    def joined(self) -> bytes:
        """What is kept so far. There may be more, so half a character at the end is no error."""
        if self._limit is None:
            return b"".join(self._chunks)
        if self._decoder is None:
            return bytes(self._shown())
        pending: bytes = self._decoder.getstate()[0]
        return self._encoded(self._shown()) + pending

    def __iter__(self) -> Iterator[bytes]:
        yield self.joined()

    def __bool__(self) -> bool:
        return self._bytes > 0


class Text:
    """What Popen's text mode does to bytes. Takes `text`, `encoding`, `errors` and `universal_newlines` out of the options.

    Raises:
        subprocess.SubprocessError: text and universal_newlines contradict each other.
        LookupError: an unknown encoding.
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
            if encoding is None or encoding == "locale":
                encoding = "utf-8" if sys.flags.utf8_mode and encoding is None else locale.getpreferredencoding(False)
            codecs.lookup(encoding)
            self.encoding = encoding

    def encode(self, value: Any) -> memoryview:
        """What to write of `input=`.

        Raises:
            AttributeError, TypeError: bytes in text mode, or text in the other.
        """
        if self.encoding is not None and value is not None:
            value = value.encode(self.encoding, self.errors)
        return memoryview(value or b"").cast("B")

    def decode(self, kept: Kept | None) -> Any:
        if kept is None:
            return None
        data = kept.text()
        if self.encoding is None:
            return data
        text: str = data if isinstance(data, str) else data.decode(self.encoding, self.errors)
        return text.replace("\r\n", "\n").replace("\r", "\n")


# File descriptor of the command, what arrived there, and when (time.monotonic()).
Chunk = tuple[int, bytes, float]


class Source:
    """A started command, to the one who takes its output, on whatever event loop."""

    def __init__(self, report: Report, launch: Launch | None) -> None:
        self.report = report
        self.launch = launch  # None without a sandbox

    @property
    def returncode(self) -> int | None:
        raise NotImplementedError

    def late(self) -> bool:
        """Whether the time is up, and the command has not done all that it will."""
        raise NotImplementedError

    async def take(self) -> list[Chunk] | None:
        """Waits for more. None: there is no more, and the command has ended. Empty: the time is up."""
        raise NotImplementedError

    async def end(self, grace: float | None) -> None:
        """The tree is dead and reaped, and everything closed, when this returns, or raises a cancellation. Where it is being
        ended already, this waits for that.

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
        time: when it arrived, in seconds since the command was started. On trio: when it was read, which is when somebody
            asked for it.
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
        found = [] if self._decoder is None else self._cut(self._decoder.decode(b"", final=True))
        if self._begun:
            found.append(self._taken())
        return found

    def _cut(self, data: Any) -> list[Any]:
        if not data or not self._lines:
            return [data] if data else []
        newline, longest = self._newline, self._longest
        *whole, last = data.split(newline)
        found: list[Any] = []
        if whole and self._begun:
            self._finish(whole.pop(0), found)
        for line in whole:
            if len(line) <= longest:
                found.append(line + newline)
            else:
                self._finish(line, found)
        self._begin(last, found)
        return found

    def _finish(self, data: Any, found: list[Any]) -> None:
        """The rest of a line."""
        self._begin(data, found)
        self._begun.append(self._newline)
        found.append(self._taken())

    def _begin(self, data: Any, found: list[Any]) -> None:
        """More of a line without its end; into `found` go the pieces that it is too long for."""
        at = 0
        while self._size + len(data) - at > self._longest:
            room = self._longest - self._size
            self._begun.append(data[at : at + room])
            at += room
            found.append(self._taken())
        if at < len(data):
            self._begun.append(data[at:])
            self._size += len(data) - at

    def _taken(self) -> Any:
        line = self._newline[:0].join(self._begun)
        self._begun.clear()
        self._size = 0
        return line
