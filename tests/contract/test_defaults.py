"""Which policy a call gets, and who is protected by it without being asked."""

from __future__ import annotations

import contextvars
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import warnings

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess import _prepare


@pytest.fixture
def here(ws, monkeypatch, tier):
    monkeypatch.chdir(ws)
    return ws


def test_the_default_is_workspace_write_at_the_callers_directory(here, outside):
    """The import swap alone has to give a sandbox."""
    sp.run(["sh", "-c", f"echo x > made; echo x > {outside}/made"], stderr=sp.DEVNULL)
    assert (here / "made").exists() and not (outside / "made").exists()


def test_cwd_does_not_move_the_root(here, outside):
    """cwd= is often chosen by a model; whoever chooses it must not choose what can be written (CVE-2025-59532)."""
    for directory in (outside, here.parent, "/", os.path.expanduser("~"), here / ".."):
        sp.run(["sh", "-c", "touch sp-escape"], cwd=directory, stderr=sp.DEVNULL)
        assert not os.path.exists(os.path.join(directory, "sp-escape"))


@pytest.mark.parametrize("where", ["/", "~", "gone"])
def test_no_root_where_the_current_directory_is_no_workspace(where, tier, place, monkeypatch):
    """At / or in the home directory everything would be writable; one warning says so, and the call runs."""
    target = {"/": "/", "~": os.path.expanduser("~")}.get(where)
    if target is None:
        target = place / "gone"
        target.mkdir()
    old = os.open(".", os.O_RDONLY)
    try:
        os.chdir(target)
        if where == "gone":
            target.rmdir()
        monkeypatch.setattr(_prepare, "_warned", False)
        with pytest.warns(sp.SandboxWarning, match="no workspace"):
            first = sp.run(["sh", "-c", "touch /tmp/x && echo ok; touch ./sp-made"], capture_output=True, text=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sp.run(["true"])
    finally:
        os.fchdir(old)
        os.close(old)
    assert first.stdout == "ok\n"
    assert where == "gone" or not os.path.exists(os.path.join(target, "sp-made"))


def test_a_context_has_its_own_default(here, outside):
    """default_policy() is a context variable: another thread, another context, does not see it."""
    seen = []
    with sp.default_policy(sp.Policy.workspace_write(outside)) as chosen:
        assert chosen.write == (str(outside),)
        sp.run(["sh", "-c", f"touch made; touch {outside}/made"], stderr=sp.DEVNULL)
        thread = threading.Thread(target=lambda: seen.append(_prepare.resolve_policy(None)))
        thread.start()
        thread.join()
        assert contextvars.copy_context().run(_prepare.resolve_policy, None) is chosen
    assert (outside / "made").exists() and not (here / "made").exists()
    assert seen[0].write == (str(here),)


def test_the_process_has_a_default(here, outside):
    """set_default_policy() is for the start of a program; None goes back to the built-in."""
    sp.set_default_policy("read-only")
    try:
        assert sp.run(["touch", "made"], stderr=sp.DEVNULL).returncode != 0
    finally:
        sp.set_default_policy(None)
    assert sp.run(["touch", "made"]).returncode == 0


def test_read_only_writes_nothing_at_all(here):
    """Not even a private /tmp: a command under it that needs to write should say so."""
    x = f"x-{here.parent.name}"  # a name that nobody else has: times of what exists are another matter
    places = f"./{x} /tmp/{x} /var/tmp/{x} /dev/shm/{x} ~/{x}"
    script = f"for f in {places}; do touch $f && echo wrote $f; done; echo y > /dev/null && echo null"
    result = sp.run(["sh", "-c", script], policy="read-only", capture_output=True, text=True)
    assert result.stdout == "null\n"
    assert list(here.iterdir()) == []


def test_presets_by_name(here):
    """Strings for the common cases."""
    assert sp.run(["touch", "a"], policy="workspace-write").returncode == 0
    assert sp.run(["touch", "/tmp/full-access-was-here"], policy="danger-full-access").returncode == 0
    os.unlink("/tmp/full-access-was-here")


def test_the_package_and_the_interpreter_are_read_only_inside_a_root(place, tier):
    """A virtual environment in the workspace is the usual layout: what one run writes into it, the next call executes."""
    venv = place / "ws/.venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", venv], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    package = site / "sandboxed_subprocess"
    shutil.copytree(pathlib.Path(sp.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("landlock", "pyseccomp", "psutil", "tomli_w", "tomli"):
        spec = __import__("importlib.util").util.find_spec(name)
        if spec and spec.origin:
            source = pathlib.Path(spec.origin)
            if source.name == "__init__.py":
                shutil.copytree(source.parent, site / source.parent.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, site)
    code = (
        "import sandboxed_subprocess as sp, sys\n"
        "assert sp.__file__.startswith(sys.prefix), (sp.__file__, sys.prefix)\n"
        "script = f'echo x >> {sys.prefix}/bin/activate; echo x >> {sp.__path__[0]}/_policy.py; echo x >> {sp.__path__[0]}/_native/launcher;"
        " mv {sp.__path__[0]} {sp.__path__[0]}2; touch {sys.prefix}/new; echo done > made'\n"
        "sp.run(['sh', '-c', script], stderr=sp.DEVNULL)\n"
        "P = sp.Policy.workspace_write('.', write=[sp.danger.WRITABLE_INTERPRETER])\n"
        "sp.run(['sh', '-c', f'touch {sys.prefix}/opened; echo x >> {sp.__path__[0]}/_policy.py'], policy=P, stderr=sp.DEVNULL)\n"
    )
    before = {p: p.read_bytes() for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    activate = (venv / "bin/activate").read_bytes()
    out = subprocess.run(
        [venv / "bin/python", "-B", "-c", code],
        cwd=place / "ws",
        capture_output=True,
        text=True,
        env={n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert out.returncode == 0, out.stderr
    assert (place / "ws/made").read_text() == "done\n"
    assert {p: p.read_bytes() for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts} == before
    assert (venv / "bin/activate").read_bytes() == activate and not (venv / "new").exists()
    assert (venv / "opened").exists()


def test_an_interpreter_below_tmp_is_still_there_inside(tmp_path, tier):
    """Environments in /tmp are common in CI; the private /tmp must not hide the interpreter from its own programs."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", venv], check=True)
    code = (
        "import sys; sys.path[:0] = eval(sys.argv[1])\n"
        "import sandboxed_subprocess as sp\n"
        "r = sp.run([sys.executable, '-c', 'import sys; print(sys.prefix)'], policy='read-only', cwd='/', capture_output=True, text=True)\n"
        "print(r.stdout, r.stderr, end='')\n"
    )
    out = subprocess.run([venv / "bin/python", "-c", code, repr(sys.path)], capture_output=True, text=True)
    assert out.stdout.strip() == str(venv.resolve()), out
