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
mkdir -p d/leaf; echo "+memory +pids" > d/cgroup.subtree_control
chown $2 d d/cgroup.procs d/leaf d/leaf/cgroup.procs
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
    for case in ("fine", "a file that is read"):
        assert here[case][:4] == ["exit", None, 0, by], (case, here[case])
    assert here["threads"][4] > 256 and here["child"][4] > 100 << 20 and (here["short burners"][4] or 2) > 1
    assert {name: left for name, left in here.items() if name.endswith(" left") and left} == {}
    wrote, errors = here["escape"]
    assert "wrote" not in wrote and "made" not in wrote, (wrote, errors)
    assert "cgroup" not in wrote.partition("0::")[0], wrote  # none of its files is open
    assert wrote.rstrip().endswith("0::/") or tier == "landlock"
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
    assert found["place"] == ["/sys/fs/cgroup/d", True, None], found["why_not"]
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
    assert found["place"] == [str(delegated / "leaf"), False, None]
    for tier in TIERS:
        check(found, tier, False)


# -- where a group may be made ------------------------------------------------------------------------------------------------------


def groups(top, tree):
    """Directories that look like groups: {path: {file: content}}."""
    for path, files in tree.items():
        directory = top / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in {"cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.type": "domain", **files}.items():
            (directory / name).write_text(text + "\n")


BOTH = {"cgroup.subtree_control": "cpu memory pids"}


@pytest.mark.parametrize(
    "tree,own,expected",
    [
        ({".": BOTH, "a": BOTH, "a/b": {}}, "/a/b", ("a", True, None)),
        ({".": BOTH, "a": BOTH, "a/b": {}, "a/b/c": {}}, "/a/b/c", ("a", True, None)),
        ({".": BOTH, "a": BOTH, "a/b": {"memory.max": "100000"}}, "/a/b", ("a/b", False, None)),
        ({".": BOTH, "a": BOTH, "a/b": {"memory.max": "max", "cpu.max": "max 100000"}}, "/a/b", ("a", True, None)),
        ({".": BOTH, "a": BOTH, "a/b": {"cpu.max": "50000 100000"}}, "/a/b", ("a/b", False, None)),
        ({".": BOTH, "a": BOTH, "a/b": {"memory.high": "1"}, "a/b/c": {}}, "/a/b/c", ("a/b/c", False, None)),
        ({".": BOTH, "a": BOTH, "a/b": {"pids.max": "300"}, "a/b/c": {"pids.max": "max"}}, "/a/b/c", ("a", True, 300)),
        ({".": BOTH, "a": {"cgroup.subtree_control": "memory"}, "a/b": {}}, "/a/b", (".", True, None)),
        ({".": BOTH, "a": {**BOTH, "cgroup.type": "threaded"}, "a/b": {}}, "/a/b", (".", True, None)),
        ({".": {}, "a": {}}, "/a", ("a", False, None)),
        ({".": {}}, "/", (".", False, None)),
    ],
)
def test_a_place_is_the_nearest_that_hands_on_and_not_out_of_bounds(tmp_path, tree, own, expected):
    """A command must not get out of what an administrator has set bounds to: then there is no group that holds."""
    groups(tmp_path, tree)
    found = _groups._choose((str(tmp_path), "/"), f"1:name=systemd:/\n0::{own}\n".encode())
    assert found == (os.path.normpath(tmp_path / expected[0]), *expected[1:])


def test_what_is_not_ours_is_no_place(tmp_path):
    """By its mode: the top of all groups belongs to root, who needs a power to write there that the launcher does not keep."""
    groups(tmp_path, {".": BOTH, "a": {}})
    tmp_path.chmod(0o555)
    (tmp_path / "a").chmod(0o555)
    try:
        assert "belongs to somebody else" in _groups._choose((str(tmp_path), "/"), b"0::/a\n")
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("own", [b"0::/../x\n", b"0::/elsewhere\n", b"1:name=systemd:/\n", b""])
def test_a_group_that_is_not_to_be_seen_is_no_place(tmp_path, own):
    """In a container /proc/self/cgroup may name what lies outside of it."""
    groups(tmp_path, {".": BOTH})
    assert "none that it can see" in _groups._choose((str(tmp_path), "/here"), own)


def test_only_what_was_left_long_ago_is_swept(tmp_path):
    """Another process may just have made one."""
    groups(tmp_path, {".": BOTH})
    old, new, other = (tmp_path / name for name in ("sandboxed-subprocess-1-a", "sandboxed-subprocess-2-b", "other"))
    for directory in (old, new, other):
        directory.mkdir()
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))
    _groups._choose((str(tmp_path), "/"), b"0::/\nswept")
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)
