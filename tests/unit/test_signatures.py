"""The stdlib module's surface, compared with the running interpreter's, and as type checkers see it."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess.testing import must_work

FUNCTIONS = ["run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "list2cmdline", "Popen", "CompletedProcess"]
METHODS = ["communicate", "wait", "poll", "send_signal", "terminate", "kill", "__enter__", "__exit__"]


def shape(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_and_defaults_are_the_stdlibs(name):
    """In the same order, of the same kinds; after them `policy`, by name only, and nothing else."""
    theirs, ours = shape(getattr(subprocess, name)), shape(getattr(sp, name))
    extra = [p for p in ours if p not in theirs]
    assert [p for p in ours if p in theirs] == theirs
    # 3.11's encoding= and errors= of getoutput() are there on 3.10 as well.
    assert {p[0] for p in extra} <= {"policy"} | ({"encoding", "errors"} if sys.version_info < (3, 11) else set())
    assert all(kind == inspect.Parameter.KEYWORD_ONLY and default is None for _, kind, default in extra)


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_popen_have_the_stdlibs_parameters(name):
    """A caller may pass any of them by name."""
    assert shape(getattr(sp.Popen, name)) == shape(getattr(subprocess.Popen, name))


def test_a_subclass_of_popen_has_its_own_signature():
    """The computed one must not be inherited by a class with another constructor."""

    class Mine(sp.Popen):
        def __init__(self, what, *, how=1):
            super().__init__([what])

    assert [p[0] for p in shape(Mine)] == ["what", "how"]


def test_exceptions_and_constants_are_the_stdlibs_own():
    """`except subprocess.TimeoutExpired` in code that was not changed has to catch ours."""
    for name in ("CalledProcessError", "TimeoutExpired", "SubprocessError", "PIPE", "STDOUT", "DEVNULL"):
        assert getattr(sp, name) is getattr(subprocess, name)
    assert issubclass(sp.Popen, subprocess.Popen) and issubclass(sp.CompletedProcess, subprocess.CompletedProcess)
    assert sp.Popen[str] and sp.CompletedProcess[bytes]


def test_private_names_are_shared_with_the_stdlib(monkeypatch):
    """A mock of one has to reach the Popen that reads it."""
    monkeypatch.setattr(sp, "_USE_POSIX_SPAWN", "changed")
    assert subprocess._USE_POSIX_SPAWN == "changed"
    monkeypatch.undo()
    assert subprocess._USE_POSIX_SPAWN == sp._USE_POSIX_SPAWN != "changed"
    assert sp.os is os and sp._cleanup is subprocess._cleanup


def test_a_name_that_nobody_has_is_an_attribute_error():
    """Typos must not be swallowed by the sharing."""
    with pytest.raises(AttributeError, match="has no attribute 'rnu'"):
        sp.rnu  # noqa: B018


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_type_checkers_see_what_they_see_in_the_stdlib(tmp_path, version, platform):
    """One file of assertions, about both modules. Where an import is swapped, `mypy --strict` must find nothing new."""
    if importlib.util.find_spec("mypy") is None:
        (pytest.fail if "MYPY" in must_work() else pytest.skip)("mypy is not installed")
    text = pathlib.Path(__file__).parent.parent.joinpath("typing", "parity.py").read_text()
    (tmp_path / "theirs.py").write_text(text)
    (tmp_path / "ours.py").write_text(re.sub("(?m)^import subprocess$", "import sandboxed_subprocess as subprocess", text))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--python-version={version}", f"--platform={platform}",
         f"--cache-dir={tmp_path / 'cache'}", "theirs.py", "ours.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "MYPYPATH": str(pathlib.Path(sp.__file__).parent.parent)},
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "Success: no issues found in 2 source files\n"), result.stdout + result.stderr
