"""The launcher: a small static program, compiled when the package is built."""

from __future__ import annotations

import os

from .._errors import Missing

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher")


def locate() -> str:
    """Path of the launcher.

    Raises:
        Missing: this installation has none.
    """
    if not os.access(PATH, os.X_OK):
        raise Missing(
            "this installation of sandboxed_subprocess has no launcher",
            "Install it again from where it came (in a checkout: pip install --force-reinstall --no-cache-dir .), without"
            " SANDBOXED_SUBPROCESS_NO_LAUNCHER in the environment; pip brings a compiler if there is none",
        )
    return PATH
