"""What a run plants where the host would trust it: put out of action, kept, reported; and nothing else is touched."""

from __future__ import annotations

import os

import pytest

import sandboxed_subprocess as sp


def test_what_appeared_is_renamed_kept_and_reported(sh, ws):
    """A violation with the path, and the content still there for whoever wants to look."""
    result = sh("mkdir .vscode && echo '{}' > .vscode/tasks.json; echo x > .envrc")
    assert sorted(os.path.basename(was) for was, _ in result.sandbox.quarantined) == [".envrc", ".vscode"]
    for was, now in result.sandbox.quarantined:
        assert not os.path.lexists(was) and os.path.lexists(now)
    assert {v.detail for v in result.sandbox.violations} == {str(ws / ".envrc"), str(ws / ".vscode")}


def test_the_sweep_follows_no_link_out_of_the_root(sh, ws, outside):
    """The command puts a link in the place of a directory: the rename must not reach what it leads to on the host."""
    (ws / "sub/.git").mkdir(parents=True)
    (outside / ".git").mkdir()
    result = sh(f"mv sub away && ln -s {outside} sub")
    assert os.listdir(outside) == [".git"]
    assert [was for was, _ in result.sandbox.quarantined] == [str(ws / "sub")]
    assert not (ws / "sub").exists() and (ws / "away/.git").exists()


def test_a_file_that_the_host_saves_meanwhile_is_left_alone(policy, ws):
    """Editors write a new file and rename it; git does so with its configuration. Only the host can do that to a protected name."""
    (ws / ".envrc").write_text("old")
    with sp.Popen(["cat"], policy=policy, cwd=ws, stdin=sp.PIPE) as p:
        (ws / "tmp").write_text("new")
        (ws / "tmp").rename(ws / ".envrc")
        p.communicate(b"")
    assert (ws / ".envrc").read_text() == "new"
    assert p.sandbox.quarantined == () and p.sandbox.violations == ()


@pytest.mark.parametrize("mode", ["0555", "0111", "0000"])
def test_a_closed_root_is_opened_for_the_sweep(sh, ws, mode):
    """Without the owner's rights on the directory, nothing in it could be found or renamed."""
    result = sh(f"mkdir .git && touch .git/HEAD; chmod {mode} .")
    assert result.sandbox.quarantined and not (ws / ".git").exists()


def test_writable_git_keeps_it_all(sh, ws):
    """For those who want the command to make repositories."""
    result = sh("mkdir -p .git/hooks && echo x > .git/hooks/pre-commit", policy=sp.Policy.workspace_write(ws, git="writable"))
    assert (ws / ".git/hooks/pre-commit").exists() and result.sandbox.quarantined == ()


def test_no_root_no_sweep(ws):
    """Under a read-only policy there is nothing that could have been planted."""
    assert sp.run(["true"], policy="read-only").sandbox.quarantined == ()
