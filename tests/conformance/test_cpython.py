"""CPython's own `test_subprocess`, with this package in the place of `subprocess`."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess.testing import must_work, needs

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("preset", ["workspace-write", pytest.param("danger-full-access", marks=pytest.mark.conformance)])
@pytest.mark.parametrize("which, least, sandboxed", [("subprocess", 250, 300), ("asyncio", 40, 30)])
def test_the_suite_of_this_interpreter(place, which, least, sandboxed, preset):
    """Drop-in means that the suite which defines the module passes: all of it but for skips.py, and in the sandbox."""
    needs("namespaces")
    name = {"subprocess": "test.test_subprocess", "asyncio": "test.test_asyncio.test_subprocess"}[which]
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        (pytest.fail if "CONFORMANCE" in must_work() else pytest.skip)("this Python comes without its test package")
    result = subprocess.run(
        [sys.executable, str(HERE / "suite.py"), which, preset, str(place)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.stdout, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["bad"] == {}, "\n".join(f"{name}\n{text}" for name, text in report["bad"].items())
    assert result.returncode == 0 and report["unexpected"] == []
    assert report["ran"] > least
    # A suite that had gone round the sandbox would pass as well.
    assert report["sandboxed"] > sandboxed if preset == "workspace-write" else report["sandboxed"] == 0


def test_no_new_spawner_comes_in_unseen():
    """A function that a later CPython adds to `subprocess` must be looked at before it is offered: it would not be
    sandboxed."""
    ours = set(sp.__all__)
    missing = {name for name in subprocess.__all__ if name not in ours}
    assert missing == set()
    for name in subprocess.__all__:
        theirs, mine = getattr(subprocess, name), getattr(sp, name)
        spawns = callable(theirs) and not (isinstance(theirs, type) and issubclass(theirs, Exception)) and name != "STARTUPINFO"
        assert (mine is not theirs) == spawns, name
