"""The verbs of the command line, one module each, and how they print tables."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

_COLOURS = {"ok": "32", "WRONG": "31;1", "no": "31", "yes": "32", "not here": "33"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text in columns, the last one folded to the terminal; coloured on a terminal only."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
    width = max(30, (shutil.get_terminal_size().columns if sys.stdout.isatty() else 140) - sum(widths) - 2 * len(widths))
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.ljust(size) if not (colour and cell in _COLOURS) else f"\033[{_COLOURS[cell]}m{cell.ljust(size)}\033[0m"
            for cell, size in zip(row, widths)
        ]
        folded = textwrap.wrap(row[-1], width) or [""]
        lines.append("  ".join([*cells, folded[0]]).rstrip())
        lines += [" " * (sum(widths) + 2 * len(widths)) + rest for rest in folded[1:]]
        if row is head:
            lines.append("  ".join("-" * size for size in [*widths, min(width, max(len(r[-1]) for r in [head, *rows]))]))
    return "\n".join(lines)
