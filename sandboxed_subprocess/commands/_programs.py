"""Every program whose arguments are looked into. A module for each kind; each adds its own to `HANDLERS`.

To add one: a function from the words of a command to an `Opened`, with `@handles(names)`. Options are to be read as the program reads
them, abbreviations included; one that is not known is a problem, with which nothing is allowed without asking.
"""

from __future__ import annotations

from ._git import GIT_COMMANDS
from ._interpreters import harmless_sed
from ._opened import HANDLERS, SHELLS, Opened, Options, Words
from ._tools import packages
from ._wrappers import shell_program

__all__ = ["GIT_COMMANDS", "HANDLERS", "SHELLS", "Opened", "Options", "Words", "harmless_sed", "packages", "shell_program"]
