"""What of the environment a command sees: through the public API, by asking the command."""

from __future__ import annotations

import os
import sys

import pytest
from conftest import TIER

import sandboxed_subprocess as sp
from sandboxed_subprocess._environment import looks_innocent

MARKERS = {f"SANDBOXED_SUBPROCESS_{name}" for name in ("ACTIVE", "TYPE", "WRITABLE_ROOTS", "NETWORK_DISABLED")}


@pytest.fixture
def seen(run):
    """The environment as the command has it, read from /proc so that no shell adds to it."""

    def call(**kwargs):
        out = run(["cat", "/proc/self/environ"], text=False, **kwargs).stdout
        return dict(os.fsdecode(item).split("=", 1) for item in out.split(b"\0") if item)

    return call


def test_markers_tell_a_command_where_it_is(seen, ws):
    """Build tools skip what cannot work in a sandbox when they are told that they are in one."""
    env = seen()
    assert env["SANDBOXED_SUBPROCESS_ACTIVE"] == env["SANDBOXED_SUBPROCESS_NETWORK_DISABLED"] == "1"
    assert env["SANDBOXED_SUBPROCESS_TYPE"] == f"Linux{TIER.capitalize()}"
    assert env["SANDBOXED_SUBPROCESS_WRITABLE_ROOTS"] == str(ws)


def test_markers_under_other_names(seen, ws):
    """Other tools have taught their users other prefixes; CODEX has names of its own."""
    env = seen(policy=sp.Policy.workspace_write(ws, marker_prefixes=("VTCODE_SANDBOX", "CODEX")))
    assert env["VTCODE_SANDBOX_ACTIVE"] == "1" and env["VTCODE_SANDBOX_WRITABLE_ROOTS"] == str(ws)
    assert env["CODEX_SANDBOX_NETWORK_DISABLED"] == "1" and env["CODEX_SANDBOX"]


def test_network_disabled_is_said_only_when_it_is(seen, ws):
    """A marker that is always there says nothing."""
    env = seen(policy=sp.Policy.workspace_write(ws, network=sp.danger.UNRESTRICTED_NETWORK))
    assert "SANDBOXED_SUBPROCESS_NETWORK_DISABLED" not in env and env["SANDBOXED_SUBPROCESS_ACTIVE"] == "1"


def test_secrets_are_dropped_by_name_and_by_value_and_reported(run, monkeypatch, seen):
    """Names word-wise and in any case; values by the shapes of known tokens. The report has names, never values."""
    secrets = {
        "github_token": "a", "apiKey": "b", "OPENAI_API_KEY": "c", "MY_PASSWORD": "d", "PGPASSWORD": "e", "AWS_REGION": "f",
        "DATABASE_URL": "g", "SSH_AUTH_SOCK": "/x", "HTTPS_PROXY": "http://p", "no_proxy": "*", "DBUS_SESSION_BUS_ADDRESS": "x",
        "HARMLESS_NAME": "ghp_" + "a" * 36, "WHERE": "https://user:pass@example.org/", "BLOB": "-----BEGIN RSA PRIVATE KEY-----",
        "JWT_LIKE": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.sig",
    }  # fmt: skip
    kept = {
        "KEYBOARD": "de",
        "TOKENIZERS_PARALLELISM": "1",
        "MONKEY": "x",
        "LANG": "C.UTF-8",
        "TZ": "Asia/Tokyo",
        "EDITOR": "vim -u x.vim".split()[0],
    }
    for name, value in {**secrets, **kept}.items():
        monkeypatch.setenv(name, value)
    env = seen()
    assert set(secrets) & set(env) == set()
    assert kept.items() <= env.items()
    report = run(["true"]).sandbox
    assert set(secrets) <= set(report.environment_dropped)
    assert "ghp_" not in report.to_json() and "pass@" not in report.to_json()


def test_variables_that_execute_are_dropped(run, monkeypatch, seen, ws):
    """Secrets are half of it: these run code in commands that were allowed."""
    bad = {
        "BASH_ENV": "/ws/e", "ENV": "/ws/e", "BASH_FUNC_ls%%": "() { touch pw; }", "NODE_OPTIONS": "--require /ws/e.js",
        "PYTHONSTARTUP": "/x", "PYTHONPATH": "/x", "PERL5OPT": "-Mx", "RUBYOPT": "-rx", "GIT_SSH_COMMAND": "touch pw",
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "touch pw", "GIT_EXTERNAL_DIFF": "x",
        "PAGER": "touch pw", "LESSOPEN": "|touch pw", "PS4": "$(touch pw)", "RIPGREP_CONFIG_PATH": "/x", "LD_PRELOAD": "/nothere.so",
        "LD_AUDIT": "/x", "JAVA_TOOL_OPTIONS": "-javaagent:x", "PROMPT_COMMAND": "touch pw", "MAKEFLAGS": "--eval=x",
    }  # fmt: skip
    for name, value in bad.items():
        monkeypatch.setenv(name, value)
    assert set(bad) & set(seen()) == set()
    run(["bash", "-xc", "ls"])
    assert not (ws / "pw").exists()


def test_a_value_equal_to_the_callers_is_inherited_also_through_env(seen, monkeypatch):
    """env={**os.environ, "X": "1"} is how people add a variable; it must not hand over every secret."""
    monkeypatch.setenv("MY_TOKEN", "secret")
    env = seen(env={**os.environ, "X": "1"})
    assert "MY_TOKEN" not in env and env["X"] == "1"


def test_a_new_value_is_intent_and_stays(seen):
    """Somebody who passes a variable of their own means it, whatever its name."""
    env = seen(env={"MY_TOKEN": "mine", "LD_BIND_NOW": "1", "PATH": os.environ["PATH"]})
    assert env["MY_TOKEN"] == "mine" and env["LD_BIND_NOW"] == "1"


def test_an_empty_environment_has_markers_only(seen):
    """env={} means empty, and the documented markers."""
    assert set(seen(env={})) == MARKERS


def test_inherit_modes_include_exclude_and_set(seen, ws, monkeypatch):
    """The four modes, and the three ways to correct them."""
    monkeypatch.setenv("ORDINARY", "1")
    monkeypatch.setenv("ACME_TOKEN", "x")
    base = sp.Policy.workspace_write(ws)
    names = {
        mode: set(seen(policy=base.with_environment(inherit=mode))) - MARKERS for mode in ("all", "filtered", "core", "none")
    }
    assert "ACME_TOKEN" in names["all"] and "ACME_TOKEN" not in names["filtered"]
    assert "ORDINARY" in names["filtered"] and "ORDINARY" not in names["core"] and "PATH" in names["core"]
    assert names["none"] <= {"TMPDIR"}
    env = seen(policy=base.with_environment(include=["ACME_*"], exclude=["ORDINARY"], set={"CI": "1", "PAGER": "cat"}))
    assert env["ACME_TOKEN"] == "x" and "ORDINARY" not in env and (env["CI"], env["PAGER"]) == ("1", "cat")
    assert "X" not in seen(policy=base.with_environment(exclude=["X"]), env={"X": "intent", "PATH": os.environ["PATH"]})


def test_exported_functions_are_dropped_under_any_name():
    """bash imported functions from any variable whose value begins so (CVE-2014-6271)."""
    assert not looks_innocent("HARMLESS", "() { :; }; echo vulnerable")


def test_values_that_are_not_utf8_pass_unchanged(run):
    """The environment is bytes."""
    out = run(
        [sys.executable, "-c", "import os, sys; sys.stdout.buffer.write(os.environb[b'RAW'])"],
        env={b"RAW": b"\xff\xfe", b"PATH": os.environb[b"PATH"]},
        text=False,
    )
    assert out.stdout == b"\xff\xfe"


def test_full_access_has_the_environment_as_it_is(monkeypatch):
    """No wrapper, no filter, no markers."""
    monkeypatch.setenv("MY_TOKEN", "x")
    out = sp.run(["env"], policy="danger-full-access", capture_output=True, text=True)
    assert "MY_TOKEN=x" in out.stdout and "SANDBOXED_SUBPROCESS_ACTIVE" not in out.stdout


def test_a_change_of_the_callers_environment_is_seen_by_the_next_call(seen, monkeypatch):
    """What is cached between calls must not outlive a change."""
    assert "LATER" not in seen()
    monkeypatch.setenv("LATER", "1")
    assert seen()["LATER"] == "1"
    monkeypatch.setenv("LATER", "2")
    assert seen()["LATER"] == "2"
    monkeypatch.delenv("LATER")
    assert "LATER" not in seen()
