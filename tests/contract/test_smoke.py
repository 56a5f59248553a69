"""The main job, in its smallest form."""

from __future__ import annotations

from conftest import REFUSED

import sandboxed_subprocess as sp


def test_a_command_runs_and_its_output_comes_back(run):
    """Everything else is in vain if this fails."""
    result = run(["echo", "hello"])
    assert (result.returncode, result.stdout) == (0, "hello\n")
    assert result.sandbox.enforcement is sp.Enforcement.FULL


def test_the_workspace_is_writable_and_the_rest_is_not(sh, ws, outside):
    """The one rule that everybody expects of a workspace-write policy; looked at on the host."""
    result = sh(f"echo inside > made; echo out > {outside}/made")
    assert (ws / "made").read_text() == "inside\n"
    assert not (outside / "made").exists()
    assert REFUSED in result.stderr
