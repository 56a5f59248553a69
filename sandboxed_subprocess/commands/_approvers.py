"""Approvers that are ready to use."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import unicodedata
from collections.abc import Callable
from typing import IO

from ._approval import Answer, ApprovalRequest, Kind

_turn = threading.Lock()  # one question at a time


def _visible(text: str) -> str:
    """What a terminal shows as it is, and nothing that it obeys: no escapes, no text that runs backwards, no second line."""
    return "".join(
        char
        if char == " " or (char.isprintable() and unicodedata.category(char)[0] not in "CZ")
        else char.encode("unicode_escape").decode()
        for char in text
    )


def question(request: ApprovalRequest) -> str:
    """The question, as lines for a person."""
    asked = [part for part in request.parts if part.decision == "prompt"]
    lines = ["", "A command asks to run:", f"  {_visible(shlex.join(request.argv))}", f"  in {_visible(request.cwd)}"]
    if len(request.parts) > 1:
        lines += [f"  part: {_visible(shlex.join(part.argv))}" for part in asked[:8]]
        if len(asked) > 8:
            lines.append(f"  ... and {len(asked) - 8} more")
    lines.append(f"It is asked for because: {_visible(request.reason)}")
    if request.justification:
        lines.append(f"  {_visible(request.justification)}")
    if request.upgrade is not None:
        lines.append("It would run under a wider policy than the read-only one of this call.")
    lines.append("The sandbox lets it:")
    lines += [f"  {_visible(line)}" for line in request.permits]
    if request.suggested_rule is not None:
        lines.append(f"'a' would save: {_visible(str(request.suggested_rule))}")
    return "\n".join(lines)


def approve_on_terminal(*, timeout: float | None = None) -> Callable[[ApprovalRequest], Answer]:
    """An approver that asks on the terminal of this process: once, for the session, always, or, by default, no.

    Without a terminal, at the end of its input, and after `timeout` seconds the answer is no.
    """

    def ask(request: ApprovalRequest) -> Answer:
        with _turn:
            try:
                return _on_terminal(request, timeout)
            except OSError as error:
                return Answer("deny", reason=f"there is no terminal to ask on ({error.strerror})")

    return ask


_ANSWERS: dict[str, Kind] = {"y": "once", "yes": "once", "s": "session", "session": "session", "a": "always", "always": "always"}


def _on_terminal(request: ApprovalRequest, timeout: float | None) -> Answer:
    if sys.platform == "win32":
        with open("CONIN$", encoding="utf-8", errors="replace") as source, open("CONOUT$", "w", encoding="utf-8") as target:
            _show(request, target)
            return _said(source.readline())
    # Not stdin: it may be what the command is to read.
    fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "wb", buffering=0) as raw:
        import io
        import select
        import termios

        # What was typed before the question was seen answers nothing.
        termios.tcflush(fd, termios.TCIFLUSH)
        with io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace") as target:
            _show(request, target)
            ready, _, _ = select.select([fd], [], [], timeout)
            if not ready:
                target.write("\nno answer, which means no\n")
                return Answer("deny", reason=f"nobody answered within {timeout:g} s")
            return _said(os.read(fd, 4096).decode("utf-8", "replace"))


def _show(request: ApprovalRequest, target: IO[str]) -> None:
    target.write(f"{question(request)}\nRun it? [y]es, for this [s]ession, [a]lways, [N]o: ")
    target.flush()


def _said(line: str) -> Answer:
    word = line.strip().lower()
    if word in _ANSWERS:
        return Answer(_ANSWERS[word])
    return Answer("deny", reason="refused on the terminal")


def approve_all_for_tests(request: ApprovalRequest) -> Answer:
    """An approver that says yes to everything, once. For tests, as its name says: it makes "prompt" mean "allow"."""
    return Answer("once")
