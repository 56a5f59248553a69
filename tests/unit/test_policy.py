"""Policy as data: frozen, comparable, hashable, picklable, and the same after a trip through TOML and JSON."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle

import pytest

import sandboxed_subprocess as sp
from sandboxed_subprocess.danger import UNRESTRICTED_NETWORK, WRITABLE_INTERPRETER

SAMPLES = {
    "workspace": sp.Policy.workspace_write("/srv/repo"),
    "read-only": sp.Policy.read_only(),
    "full": sp.Policy.danger_full_access(),
    "full, filtered": sp.Policy.danger_full_access(environment=sp.Environment()),
    "network": sp.Policy.workspace_write("/a", network=UNRESTRICTED_NETWORK),
    "everything": sp.Policy.workspace_write(
        "/srv/with space",
        "~/x",
        write=[WRITABLE_INTERPRETER],
        read=["/srv/data", "~/y"],
        deny_read=[sp.Glob("**/.env"), "/etc/x"],
        deny_write=[sp.Glob("/srv/**/lock"), "/srv/with space/ünï\nline"],
        exceptions=["~/.npmrc"],
        git="commit",
        tmp="/var/scratch",
        devices=["/dev/fuse"],
        unix_sockets=["/run/x.sock"],
        network=[sp.network_rule("api.example.org", 443), sp.network_rule("*.bad.org", decision="deny", justification="no")],
        publish=[8000],
        limits=sp.Limits(memory_bytes=1 << 30, wall_seconds=1.5),
        environment=sp.Environment(
            inherit="core", include=["A_*"], exclude=["B"], set={"Z": "1", "A": "2"}, marker_prefixes=["M"]
        ),
        syscall_exceptions=["ptrace"],
        enforcement="best-effort",
        terminate_grace=0.5,
        upgrade_to=sp.Policy.workspace_write("/other"),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_policy_survives_toml_json_pickle_and_copy(name):
    """It is kept in files, sent to workers and used as a key; each trip has to give the same policy."""
    policy = SAMPLES[name]
    for again in (
        sp.Policy.from_toml(policy.to_toml()),
        sp.Policy.from_json(policy.to_json()),
        sp.Policy.from_dict(policy.to_dict()),
        pickle.loads(pickle.dumps(policy)),
        copy.deepcopy(policy),
        policy.replace(),
    ):
        assert again == policy and hash(again) == hash(policy)


def test_callbacks_take_no_part_in_equality_and_files():
    """Two agents with the same policy and other callbacks have the same policy."""
    with_callback = sp.Policy.read_only(approver=print, on_event=print)
    assert with_callback == sp.Policy.read_only() and "approver" not in with_callback.to_dict()


def test_a_policy_is_frozen_and_a_change_is_another_policy():
    """Changed while a command runs, it would be anybody's guess what was enforced."""
    policy = sp.Policy.workspace_write("/a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.git = "writable"
    changed = (
        policy.with_write("/b")
        .with_deny_read("/a/x")
        .with_limits(open_files=9)
        .with_environment(inherit="core")
        .replace(git="commit")
    )
    assert policy == sp.Policy.workspace_write("/a")
    assert (changed.write, changed.deny_read, changed.limits.open_files, changed.environment.inherit, changed.git) == (
        ("/a", "/b"), ("/a/x",), 9, "core", "commit",
    )  # fmt: skip


def test_presets_take_the_keywords_of_the_parts():
    """One line says a policy."""
    policy = sp.Policy.workspace_write("/a", inherit="none", set={"CI": "1"}, wall_seconds=3)
    assert policy.environment == sp.Environment(inherit="none", set={"CI": "1"}) and policy.limits == sp.Limits(wall_seconds=3)
    with pytest.raises(sp.PolicyError, match="both given"):
        sp.Policy.workspace_write("/a", limits=sp.Limits(), wall_seconds=3)
    with pytest.raises(TypeError, match="did you mean 'deny_read'"):
        sp.Policy.workspace_write("/a", deny_raed=["/b"])
    with pytest.raises(sp.PolicyError, match="no writable roots"):
        sp.Policy.read_only(write=["/a"])


def test_relative_roots_are_fixed_when_the_policy_is_built(tmp_path, monkeypatch):
    """Not at each call: whoever changes the directory later must not move the root (CVE-2025-59532)."""
    monkeypatch.chdir(tmp_path)
    policy = sp.Policy.workspace_write(".", "sub")
    monkeypatch.chdir("/")
    assert policy.write == (str(tmp_path), f"{tmp_path}/sub")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"write": [""]}, "empty path"),
        ({"write": [b"/x"]}, "not a path"),
        ({"write": ["/x\0y"]}, "NUL"),
        ({"write": [3]}, "not a path"),
        ({"write": {"/a": 1}}, "not a list"),
        ({"write": [sp.Glob("*")]}, "cannot be granted"),
        ({"write": [UNRESTRICTED_NETWORK]}, "no meaning here"),
        ({"write": ["/a"], "deny_read": ["/a"]}, "both"),
        ({"write": ["/a"], "deny_write": ["/a"]}, "both"),
        ({"read": ["/a"], "deny_read": ["/a"]}, "both"),
        ({"exceptions": ["~/.ssh"], "deny_read": ["~/.ssh"]}, "both"),
        ({"read": "some"}, "read='some'"),
        ({"git": "yes"}, "'commit'"),
        ({"tmp": "hidden"}, "'private'"),
        ({"network": "all"}, "danger.UNRESTRICTED_NETWORK"),
        ({"network": [3]}, "network_rule"),
        ({"network": ["host:x"]}, "host:port"),
        ({"syscall_exceptions": ["mount"]}, "'ptrace'"),
        ({"enforcement": "soft"}, "'strict'"),
        ({"backend": 3}, "name of a backend"),
        ({"terminate_grace": -1}, "terminate_grace"),
        ({"terminate_grace": float("nan")}, "terminate_grace"),
        ({"approver": 3}, "called"),
        ({"environment": {"inherit": "all"}}, "not an Environment"),
        ({"upgrade_to": "read-only"}, "not a Policy"),
    ],
)
def test_what_cannot_be_is_refused_when_the_policy_is_built(fields, words):
    """As early as it can be known, with the value in the message."""
    with pytest.raises(sp.PolicyError, match=words):
        sp.Policy(**fields)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: sp.Limits(memory_bytes=512), "kilobytes"),
        (lambda: sp.Limits(processes=0), "positive"),
        (lambda: sp.Policy.danger_full_access(memory_bytes=1 << 30), "nobody to see to memory_bytes"),
        (lambda: sp.Policy.danger_full_access(audit_log="/log"), "nobody to see to audit_log"),
        (lambda: sp.Policy.danger_full_access(on_event=print), "nobody to see to on_event"),
        (lambda: sp.Limits(processes=1.5), "whole number"),
        (lambda: sp.Limits(wall_seconds="1"), "not a number"),
        (lambda: sp.Limits(open_files=2), "standard streams"),
        (lambda: sp.Environment(inherit="some"), "filtered"),
        (lambda: sp.Environment(set={"A=B": "x"}), "legal variable"),
        (lambda: sp.Environment(set={"A": 1}), "must both be str"),
        (lambda: sp.Environment(set=3), "mapping"),
        (lambda: sp.Environment(include=[""]), "not a name"),
        (lambda: sp.Glob(""), "non-empty"),
        (lambda: sp.Glob("../x"), "cannot match"),
        (lambda: sp.network_rule(""), "host"),
        (lambda: sp.network_rule("x", 70000), "65535"),
        (lambda: sp.network_rule("x", decision="maybe"), "allow"),
        (lambda: sp.network_rule("*"), "UNRESTRICTED_NETWORK"),
    ],
)
def test_parts_refuse_what_cannot_be(make, words):
    """Each part checks itself."""
    with pytest.raises(sp.PolicyError, match=words):
        make()


@pytest.mark.parametrize(
    "text, words",
    [
        ("wirte = ['/a']", "did you mean 'write'"),
        ("[limits]\nmemory = 1", "'memory' in \\[limits\\]"),
        ("limits = 3", "a table of"),
        ("preset = 'strict'", "unknown preset"),
        ("preset = 'read-only'\nnetwork = 'all'", "network='all'"),
        ("write = '/a'", "a list of paths"),
        ("write = [{globb = '*'}]", "neither a path nor"),
        ("network = [{hots = 'x'}]", "hots"),
        ("unconfined = true", "unknown key"),
        ("approver = 'x'", "unknown key"),
        ("a = ", "not TOML"),
    ],
)
def test_a_mistake_in_a_file_is_named(text, words, tmp_path):
    """With the file, the key, and what was probably meant; never ignored."""
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(sp.PolicyError, match=words) as error:
        sp.Policy.load(file)
    assert str(file) in str(error.value)


def test_a_preset_in_a_file_can_be_changed():
    """`preset` is where the other keys start from."""
    policy = sp.Policy.from_toml("preset = 'read-only'\ngit = 'commit'\n[environment]\nset = {CI = '1'}\n")
    assert policy == sp.Policy.read_only(git="commit", set={"CI": "1"})


def test_nothing_is_loaded_without_being_asked_for(ws, tier):
    """A policy that lies in the workspace is written by whoever writes the workspace."""
    for name in ("policy.toml", ".sandboxed_subprocess.toml", "sandboxed_subprocess.toml"):
        (ws / name).write_text("preset = 'danger-full-access'")
    result = sp.run(["sh", "-c", "touch ../outside-made; id"], cwd=ws, policy=sp.Policy.workspace_write(ws), capture_output=True)
    assert result.sandbox.backend and not os.path.exists(ws.parent / "outside-made")
