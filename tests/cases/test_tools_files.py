"""T-18, T-19, T-20: renames and hard links, replacing a file by a new one, temporary directories."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import uuid

import pytest
from conftest import REFUSED, git, wait_until

import sandboxed_subprocess as sp

# -- T-18 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["read-only", "commit", "writable"])
def test_renames_and_hard_links_work_anywhere_in_the_workspace(sh, ws, tier, mode):
    """npm, pnpm, cargo and git gc rely on them; EPERM or EXDEV break them."""
    git("init", "-q", cwd=ws)
    (ws / ".vscode").mkdir()
    script = f"""set -e
    python() {{ {sys.executable} -c "import os; $1"; }}
    mkdir a b; echo x > a/f; mv a/f b/f; ln b/f b/g; mkdir new; mv b/g new/; ln new/g .; mv b a/; cp -al a copy
    python 'os.rename("new/g", "a/b/h"); os.link("a/b/h", "copy/h"); os.rename("a", "moved"); os.replace("copy/h", "moved/b/h")'
    ln -s moved/b/h link; ln -P link link2; stat -c %h moved/b/f"""
    policy = sp.Policy.workspace_write(ws, git=mode, backend=tier)
    result = sh(script, policy=policy)
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) == os.stat(ws / "moved/b/f").st_nlink == 5
    assert sorted(n for n in os.listdir(ws) if n[0] != ".") == ["copy", "g", "link", "link2", "moved", "new"]


def test_renames_and_hard_links_work_across_nested_repositories(sh, ws):
    """Each .git is a mount of its own; what lies beside it is not."""
    for name in ("one", "two/deep"):
        (ws / name).mkdir(parents=True)
        git("init", "-q", cwd=ws / name)
    (ws / "one/f").write_text("x\n")
    python = f"{sys.executable} -c 'import os; os.rename(\"one/f\", \"two/deep/f\"); os.link(\"two/deep/f\", \"one/g\")'"
    result = sh(f"{python} && mv one/g two/deep/g && ln two/deep/g h")
    assert (result.returncode, result.stderr) == (0, "")
    assert os.stat(ws / "h").st_nlink == 3 and sorted(os.listdir(ws / "two/deep")) == [".git", "f", "g"]


def test_renames_and_hard_links_work_across_roots_in_roots(py, ws, tier):
    """Naming a directory of the workspace once more must not cut it off from the rest."""
    (ws / "sub").mkdir()
    (ws / "f").write_text("x\n")
    policy = sp.Policy.workspace_write(ws, ws / "sub", backend=tier)
    result = py("import os; os.rename('f', 'sub/f'); os.link('sub/f', 'g'); os.rename('g', 'sub/h')", policy=policy)
    assert (result.returncode, result.stderr) == (0, "")
    assert os.stat(ws / "sub/h").st_nlink == 2


def test_a_clone_with_hard_links_and_a_garbage_collection_work(sh, ws, tier):
    """git itself links and renames objects, here and into new repositories."""
    git("init", "-q", "-b", "main", "one", cwd=ws)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=ws / "one")
    policy = sp.Policy.workspace_write(ws, git="commit", backend=tier)
    script = "git clone -q one two && cd two && git log --format=%s && git repack -adq && git fsck --strict"
    result = sh(script, policy=policy)
    assert (result.stdout, result.returncode) == ("first\n", 0), result.stderr
    assert git("log", "--format=%s", cwd=ws / "two") == "first\n"


def test_a_hard_link_brings_nothing_in_from_outside(sh, ws, outside):
    """A link to a file outside would be writable by its new name."""
    (outside / "f").write_text("good\n")
    result = sh(f"ln {outside}/f f; ln {outside}/f {outside}/g; mv {outside}/f f; echo evil >> f; echo ran")
    assert result.stdout == "ran\n" and result.stderr.count("cross-device") + result.stderr.count(REFUSED) >= 2
    assert (outside / "f").read_text() == "good\n" and os.stat(outside / "f").st_nlink == 1 and os.listdir(outside) == ["f"]


def test_a_moved_repository_leaves_no_room_for_a_planted_one(sh, ws):
    """The protected .git goes along with its directory; a new one in its old place is the command's own."""
    git("init", "-q", "package", cwd=ws)
    result = sh("mv package away; mkdir -p package/.git/hooks && echo evil > package/.git/hooks/post-checkout; echo ran")
    assert result.stdout == "ran\n"
    assert not (ws / "package/.git/hooks/post-checkout").exists()


# -- T-19 -----------------------------------------------------------------------------------------------------------


def test_a_single_file_as_a_root_is_refused_with_the_way_out(ws, tier):
    """A file that is a mount point cannot be replaced (EBUSY), and that is how editors and configuration writers save."""
    (ws / "cfg.json").write_text("old\n")
    with pytest.raises(sp.PolicyError) as caught:
        sp.run(["true"], policy=sp.Policy.workspace_write(ws / "cfg.json", backend=tier))
    assert "cfg.json" in str(caught.value) and "replaced" in str(caught.value) and repr(str(ws)) in str(caught.value)


def test_files_in_a_root_can_be_replaced(sh, ws, py):
    """Write a new file, then rename it over the old one: also where the directory holds protected names."""
    (ws / "cfg.json").write_text("old\n")
    (ws / ".envrc").write_text("old\n")
    (ws / ".vscode").mkdir()
    assert sh("echo new > cfg.tmp && mv cfg.tmp cfg.json && sed -i s/new/newer/ cfg.json").returncode == 0
    assert (ws / "cfg.json").read_text() == "newer\n"
    result = py("import os; open('t', 'w').write('x'); os.replace('t', '.envrc')")
    assert result.returncode == 1 and "Error" in result.stderr
    assert (ws / ".envrc").read_text() == "old\n"


# -- T-20 -----------------------------------------------------------------------------------------------------------


def environment(**changes):
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


@pytest.fixture
def token():
    return f"ss-token-{uuid.uuid4().hex[:12]}"


TMP_VALUES = ["unset", "outside", "missing", "file", "protected", "denied", "relative", "empty", "/var/tmp", "deep"]


@pytest.mark.parametrize("how", ["caller", "env="])
@pytest.mark.parametrize("value", TMP_VALUES)
def test_a_temporary_directory_always_exists_and_is_writable(sh, ws, outside, tier, monkeypatch, token, value, how):
    """An empty answer of mktemp has led to `rm -rf` in the wrong place."""
    (ws / ".vscode").mkdir()
    (ws / "keys").mkdir()
    (ws / "file").write_text("")
    values = {
        "unset": None, "outside": str(outside), "missing": f"{ws}/none", "file": f"{ws}/file", "relative": "x/tmp",
        "protected": f"{ws}/.vscode", "denied": f"{ws}/keys", "empty": "", "/var/tmp": "/var/tmp", "deep": f"/tmp/{token}/a/b",
    }  # fmt: skip
    policy = sp.Policy.workspace_write(ws, deny_read=[ws / "keys"], backend=tier)
    keywords = {}
    if how == "env=":
        keywords["env"] = environment(TMPDIR=values[value])
    elif values[value] is None:
        monkeypatch.delenv("TMPDIR", raising=False)
    else:
        monkeypatch.setenv("TMPDIR", values[value])
    script = f"""f=$(mktemp) && test -n "$f" && echo x > "$f" && d=$(mktemp -d) && touch "$d/{token}" &&
    touch "${{TMPDIR:-/tmp}}/{token}" && test -d "${{TMPDIR:-/tmp}}" && echo "$f" &&
    {sys.executable} -c 'import tempfile; print(tempfile.gettempdir())'"""
    result = sh(script, policy=policy, **keywords)
    assert result.returncode == 0, result.stderr
    file, directory = result.stdout.splitlines()
    assert os.path.dirname(file) == directory and os.path.isabs(directory)
    # Fresh, and gone afterwards: nothing is left where the host could see it.
    assert sorted(os.listdir(ws)) == [".vscode", "file", "keys"] and os.listdir(outside) == os.listdir(ws / ".vscode") == []
    assert not os.path.exists(file) and not any(token in n for n in os.listdir("/tmp") + os.listdir("/var/tmp"))


def test_a_temporary_directory_in_the_workspace_is_kept(sh, ws, monkeypatch):
    """TMPDIR=./build/tmp is somebody's choice, and what programs leave there is wanted."""
    (ws / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(ws / "tmp"))
    assert sh('echo x > "$TMPDIR/kept" && mktemp').stdout.startswith(f"{ws}/tmp/")
    assert (ws / "tmp/kept").read_text() == "x\n"


@pytest.mark.parametrize("home", [None, "", "/nonexistent", "relative"])
def test_temporary_files_and_commands_work_without_a_home(sh, ws, home):
    """Services and containers have no HOME; nothing in the sandbox may need one."""
    result = sh("mktemp >/dev/null && echo x > made && echo ok", env=environment(HOME=home, TMPDIR=None))
    assert (result.stdout, result.returncode) == ("ok\n", 0)
    assert (ws / "made").read_text() == "x\n"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_here_documents_work(run, shell):
    """Shells keep large ones in files, in TMPDIR or /tmp."""
    script = "cat <<EOF | wc -c\n" + "x" * 100_000 + "\nEOF\n"
    if shell == "bash":
        script += "cat <<< \"$(head -c 200000 /dev/zero | tr '\\0' x)\" | wc -c\n"
    result = run([shell], input=script)
    assert result.stdout.split() == ["100001", "200001"][: 2 if shell == "bash" else 1], result.stderr


@pytest.mark.parametrize("place_", ["/tmp", "/var/tmp", "/dev/shm"])
def test_hard_coded_temporary_directories_are_private(sh, token, place_):
    """Programs that know no TMPDIR; two runs, or the host, must not meet there."""
    with tempfile.NamedTemporaryFile(dir=place_, prefix=token) as file:
        script = f"ls -A {place_}; echo x > {place_}/{token} && cat {place_}/{token} && stat -c %a {place_}"
        assert sh(script).stdout == "x\n1777\n"
        assert sh(script).stdout == "x\n1777\n"
        assert [n for n in os.listdir(place_) if token in n] == [os.path.basename(file.name)]


def test_runs_at_the_same_time_do_not_share_temporary_files(sh, run, ws, policy, token):
    """Private means private to one run, and the first one goes on using its own."""
    with sp.Popen(["sh", "-c", f"echo mine > /tmp/{token}; touch ready; read _; cat /tmp/{token}"], policy=policy, cwd=ws,
                  stdin=sp.PIPE, stdout=sp.PIPE, text=True) as process:  # fmt: skip
        try:
            wait_until(lambda: (ws / "ready").exists())
            assert sh(f"ls -A /tmp; echo other > /tmp/{token}; cat /tmp/{token}").stdout == "other\n"
            output, _ = process.communicate("go\n", timeout=30)
        finally:
            process.kill()
    assert output == "mine\n"


def test_a_read_only_policy_names_no_temporary_directory_that_cannot_be_used(sh, ws, tier):
    """tmp="none": better no TMPDIR than one that fails at the first use."""
    script = f'echo "[$TMPDIR$TEMP$TMP]"; touch /tmp/x-{ws.parent.name}'
    result = sh(script, policy=sp.Policy.read_only(backend=tier), env=environment(TMPDIR="/tmp"))
    assert result.stdout == "[]\n" and REFUSED in result.stderr


def test_launches_from_threads_each_get_their_own(sh, token):
    """Concurrent launches of one policy share what is cached, and nothing else."""
    found = []
    script = f"ls -A /tmp; echo {token} > /tmp/f && cat /tmp/f"
    threads = [threading.Thread(target=lambda: found.append(sh(script).stdout)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [f"{token}\n"] * 6
