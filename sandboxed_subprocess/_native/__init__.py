"""The launcher: a small static program, compiled when the package is built."""

from __future__ import annotations

import os

from .._errors import Missing

NAME = "launcher"


def locate() -> str:
    """Path of the launcher.

    Raises:
        Missing: this installation has none.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    if not os.access(path, os.X_OK):
        raise Missing(
            "this installation of sandboxed_subprocess has no launcher",
            "Reinstall it where it can be compiled: pip install --force-reinstall --no-cache-dir sandboxed_subprocess"
            " (pip brings a compiler by itself; musl-tools or any C compiler serves as well)",
        )
    return path
