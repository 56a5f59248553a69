"""Control groups of the second kind: where a place for them was given to the caller, the kernel holds what it can hold.

On most machines that run this there are no controllers to be had without moving the whole host to the second kind, so the limits
are looked at in booted kernels (`-m kernel`); what a group is without controllers, wherever cgroup2 is mounted.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import sysconfig
import uuid

import pytest
from conftest import ROOT

from sandboxed_subprocess._backends import _groups

HERE = pathlib.Path(__file__).parent
HELPERS = HERE.parent / "helpers"
PROBE = HELPERS / "in_groups.py"
TIERS = ("namespaces", "bubblewrap", "landlock")

# Within the guest: everything of the second kind, and a part of it given away.
DELEGATE = """
set -e
mount -t cgroup2 none /sys/fs/cgroup
cd /sys/fs/cgroup
echo "+memory +pids" > cgroup.subtree_control
mkdir -p d/leaf
python3 -c 'import os; os.setxattr("d", "user.delegate", b"1")'
chown $2 d d/cgroup.procs d/cgroup.subtree_control d/leaf d/leaf/cgroup.procs
chown -R $2 $1
cd $1
SANDBOX_TEST_GROUP=/sys/fs/cgroup/d exec "$3" "$4" "$1" namespaces bubblewrap landlock
"""
_found = {}


def booted(kernel, who, place):
    if (kernel, who) not in _found:
        place.chmod(0o777)
        user = {"SANDBOX_TEST_USER": "yes"} if who == "user" else {}
        # The interpreter of an ordinary user may not lie in root's home; then the packages are borrowed.
        python = sys.executable if who == "root" else "/usr/bin/python3"
        packages = f"{HERE.parents[1]}:{sysconfig.get_paths()['purelib']}"
        result = subprocess.run(
            ["bash", HELPERS / "vm-run.sh", kernel, "-a", "cgroup_no_v1=all", "--", "env", f"PYTHONPATH={packages}",
             *[f"{k}={v}" for k, v in user.items()], "bash", "-c", DELEGATE, "delegate", str(place), "1234" if user else "0", python, str(PROBE)],
            capture_output=True, text=True, cwd=place, check=False,
            env={**os.environ, "VMOUT": str(place), "VM_TIMEOUT": "800", "VM_MEM": "3000"},
        )  # fmt: skip
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
        _found[kernel, who] = json.loads(result.stdout.strip().splitlines()[-1])
    return _found[kernel, who]


def check(found, tier, holds):
    """What holds on every tier, of which `in_groups.py` has told."""
    here = found[tier]
    by = "cgroup" if holds else "init"
    crossed = {"threads": "processes", "child": "memory_bytes", "short burners": "cpu_seconds"}
    if holds:
        crossed |= {"memfds in flight": "memory_bytes", "pipes": "memory_bytes"}
    for case, limit in crossed.items():
        assert here[case][:2] == ["limit", limit] and here[case][3] == by, (case, here[case])
        # The kernel's own limit for one process may come first, where making a child is as dear as what that does.
        assert here[case][2] == -9 or (case, here[case][2]) == ("short burners", -signal.SIGXCPU), (case, here[case])
    for case in ("fine", "many threads", "a file that is read"):
        assert here[case][:4] == ["exit", None, 0, by], (case, here[case])
    assert here["threads"][4] > 256 and here["child"][4] > 100 << 20 and (here["short burners"][4] or 2) > 1
    assert {name: left for name, left in here.items() if name.endswith(" left") and left} == {}
    wrote, errors = here["escape"]
    assert "wrote" not in wrote and "made" not in wrote, (wrote, errors)
    assert "cgroup" not in wrote.partition("0::")[0], wrote  # none of its files is open
    assert wrote.rstrip().endswith("0::/") or tier == "landlock"
    assert here["modes"] == [[], "0o40755"]
    if holds:
        assert here["jail"] == [-9, "init", []]
    if "init" in here:
        assert here["init"][:4] == ["limit", "memory_bytes", -9, "cgroup"] and here["init"][4] > 100 << 20 and here["init"][5] == []
    for how in ("caller", "both"):
        up, there, survivors, left = here[how]
        assert (up, there, survivors) == ("up\n", 1, [])
        assert left == [] if how == "caller" else left[1] == []


@pytest.mark.kernel
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not ROOT, reason="installs and boots kernels")
@pytest.mark.parametrize("kernel,who", [("6.1", "user"), ("6.12", "root")])
def test_limits_are_held_by_a_group_where_one_may_be_made(kernel, who, place):
    """Also what no look at /proc sees: memory in flight, buffers, and the time of processes that nobody waits for. The group is
    gone afterwards, whoever was killed; the command cannot write to it."""
    found = booted(kernel, who, place)
    assert found["kernel"].startswith(kernel)
    assert found["place"] == ["/sys/fs/cgroup/d", True, "/d/leaf"], found["why_not"]
    for tier in TIERS:
        check(found, tier, True)


@pytest.fixture
def delegated():
    """A group with a leaf, given to us, without controllers; wherever the second kind is mounted."""
    mounted = _groups._mount() if ROOT else None
    if mounted is None:
        pytest.skip("no cgroup2 here, or none to give away")
    group = pathlib.Path(mounted[0], f"ss-test-{uuid.uuid4().hex[:8]}")
    (group / "leaf").mkdir(parents=True)
    os.setxattr(group, "user.delegate", b"1")
    yield group
    for directory, _, _ in os.walk(group, topdown=False):
        os.rmdir(directory)


def test_a_group_without_controllers_counts_and_ends(delegated, place):
    """As on hosts where memory and pids belong to the first kind: time is counted exactly, and nobody gets away."""
    result = subprocess.run(
        [sys.executable, PROBE, place, *TIERS],
        capture_output=True, text=True, check=False, env={**os.environ, "SANDBOX_TEST_GROUP": str(delegated)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["place"] == [str(delegated / "leaf"), False, f"/{delegated.name}/leaf"]
    for tier in TIERS:
        check(found, tier, False)


# -- where a group may be made ------------------------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Makes directories that look like groups, of {path: {file: content}}; a file "given" stands for systemd's mark."""
    monkeypatch.setattr(_groups, "_is_marked", lambda directory: os.path.exists(os.path.join(directory, "given")))

    def make(tree):
        for path, files in tree.items():
            directory = tmp_path / path
            directory.mkdir(parents=True, exist_ok=True)
            for name, text in {"cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.type": "domain", **files}.items():
                (directory / name).write_text(text + "\n" * bool(text))
        return tmp_path

    return make


BOTH = {"cgroup.subtree_control": "cpu memory pids"}
GIVEN = {**BOTH, "given": ""}


@pytest.mark.parametrize(
    "tree,own,expected",
    [
        ({".": BOTH, "a": GIVEN, "a/b": {}}, "/a/b", ("a", True)),
        ({".": BOTH, "a": GIVEN, "a/b": BOTH, "a/b/c": {}}, "/a/b/c", ("a/b", True)),
        ({".": BOTH, "a": GIVEN, "a/b": {}, "a/b/c": {}}, "/a/b/c", ("a", True)),
        ({".": BOTH, "a": GIVEN, "a/b": {"memory.max": "100000"}}, "/a/b", ("a/b", False)),
        ({".": BOTH, "a": GIVEN, "a/b": {"memory.max": "max", "cpu.max": "max 100000", "cpu.weight": "100"}}, "/a/b", ("a", True)),
        ({".": BOTH, "a": GIVEN, "a/b": {"cpu.weight": "10"}}, "/a/b", ("a/b", False)),
        ({".": BOTH, "a": GIVEN, "a/b": {"memory.high": "1"}, "a/b/c": {}}, "/a/b/c", ("a/b/c", False)),
        ({".": BOTH, "a": GIVEN, "a/b": {"pids.max": "300"}, "a/b/c": {"pids.max": "max"}}, "/a/b/c", ("a/b/c", False)),
        # What is given ends there, whatever lies above.
        ({".": GIVEN, "a": {"cgroup.subtree_control": "memory", "given": ""}, "a/b": {}}, "/a/b", ("a/b", False)),
        ({".": GIVEN, "a": {**GIVEN, "cgroup.type": "threaded"}, "a/b": {}}, "/a/b", ("a/b", False)),
        ({".": {}, "a": {"given": ""}}, "/a", ("a", False)),
        ({".": {"given": ""}}, "/", (".", False)),
    ],
)
def test_a_place_is_the_nearest_of_what_was_given(groups, tree, own, expected):
    """And not out of what somebody has set bounds to: then there is no group that holds."""
    top = groups(tree)
    found = _groups._choose((str(top), "/"), f"1:name=systemd:/\n0::{own}\n".encode())
    assert found == (os.path.normpath(top / expected[0]), expected[1], own)


def test_what_was_not_given_is_no_place(groups):
    """Root owns everything; a service that it runs in has more to it than the limits of a group (devices, addresses, its end)."""
    top = groups({".": BOTH, "system.slice": BOTH, "system.slice/x.service": {}})
    assert "delegated" in _groups._choose((str(top), "/"), b"0::/system.slice/x.service\n")


def test_what_was_given_is_set_up_where_nobody_is_in_it(groups):
    """systemd delegates a group and hands nothing on in it: that is for its user."""
    top = groups({".": BOTH, "a": {"given": "", "cgroup.controllers": "cpu memory pids"}, "a/b": {"cgroup.procs": "1"}})
    _groups._choose((str(top), "/"), b"0::/a/b\n")
    assert (top / "a" / "cgroup.subtree_control").read_text() == "+memory +pids"
    top = groups({"c": {"given": "", "cgroup.controllers": "memory pids", "cgroup.procs": "1"}, "c/b": {}})
    assert _groups._choose((str(top), "/"), b"0::/c/b\n") == (str(top / "c/b"), False, "/c/b")
    assert (top / "c" / "cgroup.subtree_control").read_text() == ""


def test_what_is_not_ours_is_no_place(groups):
    """By its mode: the top of all groups belongs to root, who needs a power to write there that the launcher does not keep."""
    top = groups({".": GIVEN, "a": {}})
    top.chmod(0o555)
    (top / "a").chmod(0o555)
    try:
        assert "delegated" in _groups._choose((str(top), "/"), b"0::/a\n")
    finally:
        top.chmod(0o755)
        (top / "a").chmod(0o755)


@pytest.mark.parametrize("root", ["/here", "/../.."])
@pytest.mark.parametrize("own", [b"0::/../x\n", b"0::/elsewhere\n", b"1:name=systemd:/\n", b""])
def test_a_group_that_is_not_to_be_seen_is_no_place(groups, root, own):
    """In a container /proc/self/cgroup may name what lies outside of it, and the mount what is above its own top."""
    assert "none that it can see" in _groups._choose((str(groups({".": GIVEN})), root), own)


def test_bounds_that_are_set_later_are_seen(groups):
    """`systemctl set-property` while a service runs: the choice was kept for the life of the process."""
    top = groups({".": BOTH, "a": GIVEN, "a/b": {}})
    assert _groups._choose((str(top), "/"), b"0::/a/b\n", 1).holds
    (top / "a/b" / "memory.max").write_text("1000000\n")
    assert not _groups._choose((str(top), "/"), b"0::/a/b\n", 2).holds


def test_only_what_was_left_long_ago_is_swept(groups):
    """Another process may just have made one."""
    top = groups({".": GIVEN})
    old, new, other = (top / name for name in ("sandboxed-subprocess-1-a", "sandboxed-subprocess-2-b", "other"))
    for directory in (old, new, other):
        directory.mkdir()
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    _groups._choose((str(top), "/"), b"0::/\nswept")
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)
