"""T-38 and T-11: variables that programs need, secrets that they do not; name resolution through /run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from sandboxed_subprocess import Environment

# -- T-38 -----------------------------------------------------------------------------------------------------------

NEEDED = {
    "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "LC_TIME": "C", "LANGUAGE": "en", "TZ": "Asia/Tokyo",
    "TERM": "xterm-256color", "COLORTERM": "truecolor",
    "USER": "someone", "LOGNAME": "someone", "SHELL": "/bin/bash", "EDITOR": "vi", "PAGER": "less",
    "XDG_CONFIG_HOME": "/srv/cfg",
    "XDG_CACHE_HOME": "/srv/cache", "XDG_DATA_DIRS": "/usr/share", "CI": "true", "NO_COLOR": "1",
    "CARGO_HOME": "/srv/cargo", "GOPATH": "/srv/go",
    "JAVA_HOME": "/usr/lib/jvm", "VIRTUAL_ENV": "/srv/venv",
}  # fmt: skip
INNOCENT = {
    "KEYBOARD": "de", "TOKENIZERS_PARALLELISM": "1", "MONKEY": "1", "KEYMAP": "us", "PASSENGER_COUNT": "3",
    "AUTHOR": "me", "SECRETARY": "x",
    "PATHEXT_X": "a", "OMP_NUM_THREADS": "2", "DEBUG": "1", "MY_APP_MODE": "test", "DONKEYS": "2", "TURKEY_REGION": "x",
    "COMPASS": "n",
    "HOCKEY": "1", "TOKENIZER": "bpe", "CREDO": "x", "AUTHENTIC": "yes", "PATTERN": "x",
}  # fmt: skip
SECRETS = {
    "github_token": "a", "apiKey": "b", "OPENAI_API_KEY": "c", "Aws_Secret_Access_Key": "d", "AWS_SESSION_TOKEN": "e",
    "npm_config__authToken": "f",
    "DB_PASSWORD": "g", "dbPassword": "h", "PGPASSWORD": "i", "MYSQL_PWD": "j", "client-secret": "k",
    "stripeSecretKey": "l", "X_CREDENTIALS": "m",
    "SSH_AUTH_SOCK": "/run/agent", "DATABASE_URL": "postgres://x", "HTTP_PROXY": "http://proxy", "GITHUBTOKEN": "n",
    "Passphrase": "o",
    "INNOCENT_URL": "https://user:pass@example.org/", "JUST_A_NAME": "ghp_" + "a1B2" * 9,
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nx",
    "LD_PRELOAD": "/x.so", "BASH_ENV": "/x.sh", "PYTHONSTARTUP": "/x.py", "NODE_OPTIONS": "--require /x",
    "GIT_CONFIG_COUNT": "0",
}  # fmt: skip


@pytest.fixture
def seen(run):
    """The environment as a command sees it."""

    def call(**kwargs):
        result = run([sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"], **kwargs)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout), result.sandbox

    return call


@pytest.fixture
def crowded(monkeypatch):
    for name, value in {**NEEDED, **INNOCENT, **SECRETS}.items():
        monkeypatch.setenv(name, value)
    # The caller's own interpreter must not be affected.
    return {**NEEDED, **INNOCENT, **SECRETS}


def test_what_programs_need_stays_and_secrets_go(seen, crowded):
    """Mojibake and wrong times on one side, leaked keys on the other; names match by words and in any case."""
    inside, report = seen()
    assert {name: inside.get(name) for name in {**NEEDED, **INNOCENT}} == {**NEEDED, **INNOCENT}
    assert not set(SECRETS) & set(inside)
    assert inside["HOME"] == os.environ["HOME"] and inside["PATH"] == os.environ["PATH"]
    assert set(SECRETS) <= set(report.environment_dropped)
    assert not set(report.environment_dropped) & set(inside)


def test_the_report_names_what_was_removed_and_tells_no_value(seen, crowded, monkeypatch):
    """A report is logged: it must not be where the secret gets out."""
    monkeypatch.setenv("MY_TOKEN", "very-secret-value")
    _, report = seen()
    assert "MY_TOKEN" in report.environment_dropped
    assert "very-secret-value" not in report.to_json() and "very-secret-value" not in repr(report)


def test_the_usual_idiom_adds_a_variable_and_brings_no_secret_in(seen, crowded):
    """env={**os.environ, "X": "1"}: equal to the caller's own is inherited; a new value is intent."""
    inside, report = seen(env={**os.environ, "X": "1", "github_token": "chosen"})
    assert inside["X"] == "1" and inside["github_token"] == "chosen" and inside["TZ"] == "Asia/Tokyo"
    assert not set(inside) & (set(SECRETS) - {"github_token"})
    assert "OPENAI_API_KEY" in report.environment_dropped and "github_token" not in report.environment_dropped


def test_an_environment_given_in_full_stays_as_it_is(seen):
    """env={"A": "b"} is complete: nothing but the markers is added, not even TMPDIR."""
    inside, _ = seen(env={"A": "b"})
    assert {n for n in inside if not n.startswith("SANDBOXED_SUBPROCESS_")} - {"LC_CTYPE"} == {"A"}


@pytest.mark.parametrize("inherit", ["core", "none", "all"])
def test_the_other_modes(seen, crowded, policy, monkeypatch, inherit):
    """core keeps the short list, none nothing, all everything."""
    for name in ("LD_PRELOAD", "BASH_ENV", "PYTHONSTARTUP", "NODE_OPTIONS", "PATH_"):
        monkeypatch.delenv(name, raising=False)
    expected = {"core": NEEDED, "none": {}, "all": {n: v for n, v in crowded.items() if n in os.environ}}[inherit]
    inside, _ = seen(policy=policy.replace(inherit=inherit))
    assert {n: v for n, v in inside.items() if n in crowded} == expected


def test_include_exclude_and_set(seen, crowded, policy):
    """The way out where a list is wrong, for one name or a family; exclude is for whoever sets it."""
    chosen = {"OPENAI_API_KEY": "for-tests", "NEW": "1"}
    environment = Environment(include=["github_token", "npm_*"], exclude=["TZ", "LC_*"], set=chosen)
    inside, report = seen(policy=policy.replace(environment=environment))
    assert {n: inside.get(n) for n in chosen} == chosen
    assert (inside["github_token"], inside["npm_config__authToken"]) == ("a", "f")
    assert not {"TZ", "LC_ALL", "LC_TIME", "apiKey"} & set(inside) and {"TZ", "LC_ALL"} <= set(report.environment_dropped)
    assert "LANG" in inside


def test_values_arrive_unchanged(seen, sh):
    """Not UTF-8, newlines, empty, very long: as the caller wrote them."""
    values = {"V_BYTES": os.fsdecode(b"\xff\xfe/x"), "V_LINES": "a\nb\n", "V_EMPTY": "", "V_ÜML": "ö", "V-DASH": "1"}
    values["V_LONG"] = "x" * 100_000
    inside, _ = seen(env={**os.environ, **values})
    assert {name: inside.get(name) for name in values} == values
    assert sh("date +%Z", env={**os.environ, "TZ": "XYZ-9"}).stdout == "XYZ\n"


def test_the_markers_tell_the_truth(seen, ws, policy):
    """Tools ask for them to find out whether the network is off; nobody can forge their absence."""
    inside, _ = seen(env={"SANDBOXED_SUBPROCESS_ACTIVE": "0", "SANDBOXED_SUBPROCESS_TYPE": "none"})
    assert inside["SANDBOXED_SUBPROCESS_ACTIVE"] == inside["SANDBOXED_SUBPROCESS_NETWORK_DISABLED"] == "1"
    assert inside["SANDBOXED_SUBPROCESS_WRITABLE_ROOTS"] == str(ws)
    inside, _ = seen(policy=policy.replace(marker_prefixes=["OTHER"]))
    assert inside["OTHER_ACTIVE"] == "1" and inside["OTHER_WRITABLE_ROOTS"] == str(ws)


# -- T-11 -----------------------------------------------------------------------------------------------------------

RESOLV = """
import os, shutil, subprocess, sys
import sandboxed_subprocess as sp
place, target, text, read = sys.argv[1:]
for directory in ("/run", "/media"):
    subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
os.makedirs(f"{place}/etc")
for name in ("passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache", "localtime"):
    if os.path.exists(f"/etc/{name}"):
        shutil.copy(f"/etc/{name}", f"{place}/etc/{name}")
subprocess.run(["mount", "--bind", f"{place}/etc", "/etc"], check=True)
os.makedirs(os.path.dirname(target), exist_ok=True)
os.makedirs("/run/other")
for path in (target, os.path.dirname(target) + "/private", "/run/secret", "/run/other/secret"):
    with open(path, "w") as file:
        file.write("nameserver 192.0.2.1\\n" if path == target else "SECRET\\n")
if text == "chain":
    os.symlink(target, "/run/step")
    text = "../run/step"
os.symlink(text, "/etc/resolv.conf")
policy = sp.Policy.workspace_write(f"{place}/ws", read=read)
script = f"cat /etc/resolv.conf; find /run /media -type f 2>/dev/null | xargs cat; echo x > {target}; echo ran"
result = sp.run(["sh", "-c", script], policy=policy, cwd=f"{place}/ws", capture_output=True, text=True)
print(result.stdout, end="")
print(result.stderr, end="", file=sys.stderr)
assert open(target).read() == "nameserver 192.0.2.1\\n"
"""


@pytest.mark.skipif(not ROOT, reason="needs root: /run and /etc are replaced, in a mount namespace of the test's own")
@pytest.mark.parametrize("read", ["all", "minimal"])
@pytest.mark.parametrize("target, text", [
    ("/run/systemd/resolve/stub-resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
    ("/run/resolvconf/resolv.conf", "/run/resolvconf/resolv.conf"), ("/run/r", "/run/r"), ("/run/x/r", "chain"),
    ("/media/wsl/resolv.conf", "/media/wsl/resolv.conf"),
])  # fmt: skip
def test_resolv_conf_is_found_where_its_link_leads(place, ws, target, text, read):
    """With /run hidden the link dangles and every lookup fails with no hint. Nothing else of /run may come with it."""
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", RESOLV, str(place), target, text, read]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "nameserver 192.0.2.1" and lines[-1] == "ran", result.stderr
    if not target.startswith("/media") or read == "minimal":
        assert "SECRET" not in lines
