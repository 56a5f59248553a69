"""Every program whose arguments are looked into. A module for each kind; each adds its own to `HANDLERS`.

To add one: a function from the words of a command to an `Opened`, with `@handles(names)`. Options are to be read as the program reads
them, abbreviations included; one that is not known is a problem, with which nothing is allowed without asking.
"""

from __future__ import annotations

from . import _git, _interpreters, _tools, _wrappers
from ._opened import HANDLERS, SHELLS, Opened, Options, Words

__all__ = ["HANDLERS", "SHELLS", "Opened", "Options", "Words", "_git", "_interpreters", "_tools", "_wrappers"]
