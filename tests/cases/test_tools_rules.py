"""T-32, T-33, T-34: patterns at every depth, rules inside rules in any order, thousands of rules."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess import Glob


def put(path, text="SECRET\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# -- T-32 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cwd", [".", "a", "a/b"])
@pytest.mark.parametrize("pattern", ["**/.env", "{ws}/**/.env", "**/.en[v]", "**/.e?v"])
def test_a_pattern_denies_at_every_depth_wherever_the_command_starts(sh, ws, tier, pattern, cwd):
    """Anchored to cwd, or matched at the first level only, a pattern protects what nobody meant."""
    names = [".env", "a/.env", "a/b/.env", "a/b/c/d/e/.env", "node_modules/x/.env", ".hidden/.env"]
    for name in names:
        put(ws / name)
    put(ws / "a/plain.env", "plain\n")
    policy = sp.Policy.workspace_write(ws, deny_read=[Glob(pattern.format(ws=ws))], backend=tier)
    files = " ".join(f"{ws}/{name}" for name in names)
    script = f"for f in {files}; do cat $f; echo evil > $f; rm -f $f; mv $f $f.away; cp $f copy; done; cat {ws}/a/plain.env"
    result = sh(script, cwd=ws / cwd, policy=policy)
    assert result.stdout == "plain\n"
    assert [(ws / name).read_text() for name in names] == ["SECRET\n"] * len(names)


def test_patterns_of_every_form_match_what_they_say(sh, ws, place, tier):
    """A wildcard in the middle, a directory, a trailing `**`, a root below a link, a home."""
    expected = {
        "mid/x/secrets/f": True, "mid/x/public/f": False, "mid/secrets/f": False, "tree/a": True, "tree/b/c": True,
        "keys.d/k": True, "sub/keys.d/k": True,
        "one.pem": True, "deep/two.pem": False, "three.pem.txt": False, "x[y]": False, "xy": True,
    }  # fmt: skip
    for name in expected:
        put(ws / name)
    (place / "link").symlink_to(ws)
    patterns = [f"{place}/link/mid/*/secrets", "tree/**", "**/keys.d", "*.pem", "x[y]"]
    policy = sp.Policy.workspace_write(ws, deny_read=[Glob(p) for p in patterns], backend=tier)
    names = " ".join(repr(n) for n in expected)
    result = sh(f'for f in {names}; do cat "$f" > /dev/null 2>&1 && echo "$f"; done; true', policy=policy)
    assert set(result.stdout.split()) == {name for name, denied in expected.items() if not denied}


def test_a_pattern_applies_below_every_root(sh, ws, outside, tier):
    """Relative patterns are for the writable roots, all of them, and for nothing else."""
    other = ws.parent / "other"
    for base in (ws, other, outside):
        put(base / "d/.env", f"{base.name}\n")
    policy = sp.Policy.workspace_write(ws, other, deny_read=[Glob("**/.env")], backend=tier)
    assert sh(f"cat d/.env {other}/d/.env {outside}/d/.env", policy=policy).stdout == "outside\n"
    policy = sp.Policy.workspace_write(ws, deny_read=[Glob(f"{outside}/**/.env")], backend=tier)
    assert sh(f"cat d/.env {outside}/d/.env", policy=policy).stdout == "ws\n"


def test_a_pattern_denies_writing_at_every_depth(sh, ws, tier):
    """deny_write: can be read, and neither changed, replaced nor removed."""
    names = ["go.sum", "a/go.sum", "a/b/go.sum"]
    for name in names:
        put(ws / name, "good\n")
    policy = sp.Policy.workspace_write(ws, deny_write=[Glob("**/go.sum")], backend=tier)
    attack = "cat $f; echo evil > $f; rm -f $f; mv $f x; echo y > t; mv t $f; chmod 777 $f"
    result = sh(f"for f in {' '.join(names)}; do {attack}; done; echo ok > a/new", policy=policy)
    assert result.stdout == "good\n" * 3
    assert [(ws / name).read_text() for name in names] == ["good\n"] * 3 and (ws / "a/new").read_text() == "ok\n"
    assert not any((ws / name).stat().st_mode & 0o111 for name in names)


def test_a_pattern_sees_files_that_came_after_the_first_run(sh, ws, tier):
    """Expanded at launch, not when the policy was built; what the command itself makes is documented as not covered."""
    policy = sp.Policy.workspace_write(ws, deny_read=[Glob("**/.env")], backend=tier)
    assert sh("mkdir c; echo k > c/.env; cat c/.env", policy=policy).stdout == "k\n"
    assert sh("cat c/.env; echo ran", policy=policy).stdout == "ran\n"
    put(ws / "c/d/.env")
    assert sh("cat c/d/.env; echo ran", policy=policy).stdout == "ran\n"


def test_a_match_that_is_a_link_hides_what_it_leads_to(sh, ws, outside, tier):
    """.env -> ../shared/env: the name and the content."""
    put(outside / "env")
    put(ws / "store/env")
    (ws / ".env").symlink_to(outside / "env")
    (ws / "a").mkdir()
    (ws / "a/.env").symlink_to("../store/env")
    policy = sp.Policy.workspace_write(ws, deny_read=[Glob("**/.env")], backend=tier)
    assert sh(f"cat .env {outside}/env a/.env store/env; echo ran", policy=policy).stdout == "ran\n"


# -- T-33 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(["outer", "inner", "pub"])), ids="-".join)
def test_a_workspace_inside_a_hidden_directory_is_all_that_shows_of_it(sh, place, tier, order):
    """Mounted in the wrong order the workspace is gone, or its siblings are there. Several levels, any order of the list."""
    put(place / "cfg/token")
    put(place / "cfg/app/token")
    put(place / "cfg/app/ws/keys/token")
    put(place / "cfg/app/ws/keys/pub/key", "public\n")
    write = {"outer": [], "inner": [place / "cfg/app/ws"], "pub": [place / "cfg/app/ws/keys/pub"]}
    deny = {"outer": [place / "cfg"], "inner": [place / "cfg/app/ws/keys"], "pub": []}
    policy = sp.Policy.workspace_write(
        *(p for name in order for p in write[name]), deny_read=[p for name in order for p in deny[name]], backend=tier
    )
    script = "touch ok; ls ..; ls ../..; cat ../token ../../token keys/token; cat keys/pub/key; touch keys/pub/new keys/new; ls"
    result = sh(script, cwd=place / "cfg/app/ws", policy=policy)
    assert result.stdout == "ws\napp\npublic\nkeys\nok\n"
    assert sorted(os.listdir(place / "cfg/app/ws/keys/pub")) == ["key", "new"] and (place / "cfg/app/ws/ok").exists()
    assert sorted(os.listdir(place / "cfg/app/ws/keys")) == ["pub", "token"]


@pytest.mark.parametrize("order", [1, -1])
def test_read_only_and_writable_directories_nest(sh, ws, tier, order):
    """A read-only part of the workspace with a writable part in it, with a read-only part in that."""
    for name in ("a/b/c/d", "a/x"):
        (ws / name).mkdir(parents=True)
    policy = sp.Policy.workspace_write(
        *[ws, ws / "a/b", ws / "a/b/c/d"][::order], deny_write=[ws / "a", ws / "a/b/c"][::order], backend=tier
    )
    sh("for d in . a a/x a/b a/b/c a/b/c/d; do touch $d/new; done", policy=policy)
    assert sorted(str(p.relative_to(ws)) for p in ws.rglob("new")) == ["a/b/c/d/new", "a/b/new", "new"]


def test_a_readable_path_inside_a_hidden_one(sh, ws, outside, tier):
    """read= as a list: what it names, and nothing beside it, also inside what is denied."""
    put(outside / "in/f", "shown\n")
    put(outside / "in/secret/f")
    put(outside / "f")
    policy = sp.Policy.workspace_write(ws, read=[outside / "in"], deny_read=[outside / "in/secret"], backend=tier)
    script = f"cat {outside}/in/f {outside}/in/secret/f {outside}/f; echo x > {outside}/in/new; touch ok; ls {outside}"
    result = sh(script, policy=policy)
    assert result.stdout == "shown\nin\n"
    assert (ws / "ok").exists() and not (outside / "in/new").exists()


# -- T-34 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exist", [False, True], ids=["missing", "existing"])
def test_six_thousand_rules_are_enforced(sh, ws, tier, exist):
    """No argument vector and no table may be the limit; then every command fails, echo included."""
    paths = [ws / f"d/{i}.parquet" for i in range(6000)]
    (ws / "d").mkdir()
    if exist:
        for path in paths:
            path.write_text("SECRET\n")
    (ws / "d/plain").write_text("plain\n")
    policy = sp.Policy.workspace_write(ws, deny_read=paths, backend=tier)
    result = sh("cat d/0.parquet d/3123.parquet d/5999.parquet; cat d/plain; echo ok > made", policy=policy)
    assert (result.stdout, result.returncode) == ("plain\n", 0)
    assert (ws / "made").exists() and sum(1 for p in paths if p.exists()) == (6000 if exist else 0)


@pytest.mark.parametrize("field", ["write", "deny_write", "pattern"])
def test_a_thousand_rules_of_the_other_kinds(sh, ws, tier, field):
    """Writable roots each cost an open file while the view is made; 1024 is the usual limit."""
    paths = [ws / f"d/{i}" for i in range(1100)]
    for path in paths:
        path.mkdir(parents=True)
    if field == "write":
        policy = sp.Policy.workspace_write(*paths, backend=tier)
    else:
        deny = [Glob("d/*")] if field == "pattern" else paths
        policy = sp.Policy.workspace_write(ws, deny_write=deny, backend=tier)
    try:
        result = sh("touch d/0/new d/777/new d/1099/new d/beside; echo ran", policy=policy)
    except sp.SandboxError as error:
        assert "RLIMIT_NOFILE" in str(error)
        return
    assert result.stdout == "ran\n"
    made = sorted(p.name for p in paths if (p / "new").exists())
    assert (made, (ws / "d/beside").exists()) == (["0", "1099", "777"], False) if field == "write" else ([], True)


def test_a_long_argument_vector_works_as_it_does_outside(run, ws, tier):
    """1 MB in a thousand arguments, with many rules as well; the arguments arrive unchanged."""
    arguments = [f"{i:04}" + "a" * 996 for i in range(1000)]
    policy = sp.Policy.workspace_write(ws, deny_read=[ws / f"{i}" for i in range(2000)], backend=tier)
    result = run(["printf", "%s\n", *arguments], policy=policy)
    assert result.stdout.split() == arguments


def test_an_argument_that_the_system_refuses_is_the_systems_error(run):
    """A 140 000 byte string is E2BIG for execve, sandboxed or not; the error names the program."""
    for spawn in (subprocess.run, run):
        with pytest.raises(OSError) as caught:
            spawn(["/bin/true", "a" * 140_000])
        assert (type(caught.value), caught.value.errno, caught.value.filename) == (OSError, errno.E2BIG, "/bin/true")
    assert run(["echo", "a" * 130_000]).stdout == "a" * 130_000 + "\n"


def test_a_long_environment_works_as_it_does_outside(sh):
    """The rules do not travel in the environment either."""
    result = sh('echo "$V7" | wc -c; env | grep -c ^V', env={**os.environ, **{f"V{i}": "x" * 100_000 for i in range(8)}})
    assert result.stdout.split() == ["100001", "8"]
