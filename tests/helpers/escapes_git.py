"""Repositories for the tests of escapes through git."""

from __future__ import annotations

import subprocess

from conftest import git


def repository(path, **options):
    path.mkdir(parents=True, exist_ok=True)
    git("init", "-q", "-b", "main", ".", cwd=path)
    (path / "file").write_text("one\n")
    git("add", "file", cwd=path)
    git("commit", "-q", "-m", "first", cwd=path)
    return path


def snapshot(directory):
    """Every file of a git directory that git executes or follows, with its content."""
    found = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if relative.split("/")[0] not in ("objects", "refs", "logs", "index", "HEAD", "COMMIT_EDITMSG", "ORIG_HEAD"):
            found[relative] = path.read_bytes() if path.is_file() else None
    return found


def fires(path, mark):
    """Whether the user's own git, on the host, runs something that leaves `mark`."""
    for arguments in (["status"], ["log", "-1"], ["add", "-A", "--dry-run"], ["commit", "-qm", "x", "--allow-empty"], ["checkout", "-q", "."]):
        try:
            git(*arguments, cwd=path)
        except subprocess.CalledProcessError:
            continue
    return mark.exists()
