"""What one run prepares for the next: a command that is run again and again has all the time in the world."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

import pytest

import sandboxed_subprocess as sp


def fresh(code, *args, timeout=60):
    """A new process of the caller's, to which nothing is known of the run before."""
    program = "import sandboxed_subprocess as sp, sys\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, timeout=timeout)


def test_a_directory_for_tmp_inside_a_root_does_not_become_a_link_out(ws, outside, tier):
    """Each call of a command line with a policy file is such a new process: the next run's /tmp would be what the link names."""
    (ws / ".tmp").mkdir()
    code = "sp.run(['sh', '-c', sys.argv[2]], policy=sp.Policy.workspace_write(sys.argv[1], tmp=sys.argv[1] + '/.tmp'))"
    assert fresh(code, ws, f"mv .tmp old; ln -s {outside} .tmp; cd {ws} && mv .tmp old; ln -s {outside} .tmp").returncode == 0
    second = fresh(code, ws, f"touch /tmp/planted {outside}/planted")
    assert "PolicyError" in second.stderr or second.returncode == 0
    assert os.listdir(outside) == []


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("field", ["deny_read", "deny_write"])
def test_what_is_denied_is_not_carried_away_where_roots_nest(order, field, ws, tier):
    """The inner root is a directory of the outer one, and can be moved like any other, mask and all."""
    (ws / "sub/x").mkdir(parents=True)
    (ws / "sub/x/secret").write_text("TOPSECRET")
    roots = [str(ws), str(ws / "sub")][:: 1 if order else -1]
    policy = sp.Policy.workspace_write(*roots, **{field: [str(ws / "sub/x/secret")]})
    for script in (
        "mv sub other; mkdir sub",
        "cat other/x/secret sub/x/secret; echo changed > other/x/secret; echo changed > sub/x/secret",
    ):
        try:
            result = sp.run(["sh", "-c", script], cwd=ws, policy=policy, capture_output=True, text=True)
        except sp.SandboxError:
            continue
        assert field == "deny_write" or "TOPSECRET" not in result.stdout
    found = [p.read_text() for p in ws.rglob("secret")]
    assert found == ["TOPSECRET"]


def test_what_is_denied_is_not_carried_away_in_a_shared_tmp(tmp_path, ws, tier):
    """With tmp="shared" /tmp is written like a root."""
    secret = tmp_path / "in/secret"
    secret.parent.mkdir()
    secret.write_text("TOPSECRET")
    policy = sp.Policy.workspace_write(ws, tmp="shared", deny_read=[str(secret)])
    for script in (f"mv {secret.parent} {tmp_path}/away", f"cat {tmp_path}/away/secret {secret}"):
        result = sp.run(["sh", "-c", script], cwd=ws, policy=policy, capture_output=True, text=True)
        assert "TOPSECRET" not in result.stdout
    assert secret.read_text() == "TOPSECRET"


def test_a_granted_socket_is_not_exchanged_for_another(ws, outside, tier):
    """`unix_sockets=` names a path; a command in whose root it lies would put a link to the docker socket there."""
    with socket.socket(socket.AF_UNIX) as granted, socket.socket(socket.AF_UNIX) as other:
        for server, path in ((granted, ws / "ok.sock"), (other, outside / "other.sock")):
            server.bind(str(path))
            server.listen()
            server.setblocking(False)
        code = (
            "P = sp.Policy.workspace_write(sys.argv[1], unix_sockets=[sys.argv[1] + '/ok.sock'])\n"
            "probe = \"import socket; s = socket.socket(1); s.connect('ok.sock'); print('connected')\"\n"
            "print(sp.run(['sh', '-c', sys.argv[2]], cwd=sys.argv[1], policy=P, capture_output=True, text=True).stdout)\n"
            "print(sp.run([sys.executable, '-c', probe], cwd=sys.argv[1], policy=P, capture_output=True, text=True).stdout)\n"
        )
        assert "connected" in fresh(code, ws, "true").stdout
        granted.accept()[0].close()
        fresh(code, ws, f"rm ok.sock; ln -s {outside}/other.sock ok.sock; mv ok.sock x; ln -s {outside}/other.sock ok.sock")
        fresh(code, ws, "true")
        with pytest.raises(BlockingIOError):
            other.accept()


def test_commit_mode_does_not_open_what_deny_write_closed(ws, tier):
    """A repository below a path in deny_write is the policy's before it is git's."""
    (ws / "vendor/lib").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", ws / "vendor/lib"], check=True)
    (ws / "vendor/store").mkdir()
    (ws / "vendor/store/HEAD").write_text("host")
    policy = sp.Policy.workspace_write(ws, git="commit", deny_write=[str(ws / "vendor")])
    script = "mkdir -p sub; printf 'gitdir: ../vendor/store\\n' > sub/.git; for f in vendor/lib/.git/HEAD vendor/store/HEAD; do echo evil > $f; done"
    for _ in range(2):
        result = sp.run(["sh", "-c", script + "; echo tried"], cwd=ws, policy=policy, capture_output=True, text=True)
        assert result.stdout == "tried\n"
    assert "evil" not in (ws / "vendor/lib/.git/HEAD").read_text() + (ws / "vendor/store/HEAD").read_text()


@pytest.mark.parametrize("mode", ["read-only", "commit"])
@pytest.mark.parametrize(
    "plant",
    ["mkdir sub; mkfifo sub/.git", "mkdir sub; mkfifo p; ln -s ../p sub/.git", "mkdir -p sub/.git; mkfifo sub/.git/commondir"],
)
def test_a_named_pipe_for_a_repository_does_not_stop_the_caller(plant, mode, ws, tier):
    """The caller reads pointers to find what to protect; to open a pipe waits for ever, whatever `timeout=` says."""
    code = "print(sp.run(['sh', '-c', sys.argv[2]], cwd=sys.argv[1], policy=sp.Policy.workspace_write(sys.argv[1], git=sys.argv[3])).returncode)"
    for script in (plant, "true"):
        assert fresh(code, ws, script, mode, timeout=30).stdout == "0\n"


def test_a_pointer_to_the_root_does_not_close_it(sh, ws):
    """`gitdir: ..` would have made the whole workspace read-only for every later run."""
    assert sh("mkdir sub; echo 'gitdir: ..' > sub/.git").returncode == 0
    assert sh("touch made").returncode == 0 and (ws / "made").exists()


def test_start_up_files_behind_a_planted_link_are_put_out_of_action(place, tier, monkeypatch):
    """With the home directory as the root, and no ~/.config yet: the link is what was planted."""
    home = place / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    script = "mkdir -p x/systemd/user && touch x/systemd/user/e.service && ln -s x .config; mkdir -p y/bin && touch y/bin/ls && mkdir .local && ln -s ../y/bin .local/bin"
    result = sp.run(["sh", "-c", script], cwd=home, policy=sp.Policy.workspace_write(home), capture_output=True, text=True)
    assert result.stderr == ""
    assert not (home / ".config/systemd").exists() and not (home / ".local/bin").exists()
    assert len(result.sandbox.quarantined) >= 2


def test_modules_that_are_imported_late_do_not_come_from_the_workspace(ws, tier):
    """The caller's own imports, after the first command: it must not have been able to supply them."""
    code = """
        import os
        os.chdir(sys.argv[1]); sys.path.insert(0, '')
        P = sp.Policy.workspace_write('.')
        names = ('psutil', 'tomllib', 'tomli', 'tomli_w', 'json', 'difflib', 'fnmatch', 'grp', 'pwd', 'ctypes', 'textwrap')
        script = ''.join(f'echo "print(1 // 0)" > {n}.py; ' for n in names)
        sp.run(['sh', '-c', script], policy=P)
        sp.run(['true'], policy='danger-full-access')
        sp.run(['true'], policy=P.replace(deny_read=[sp.Glob('**/.env')]))
        sp.Policy.from_toml(P.to_toml()); sp.Policy.from_json(P.to_json())
        try: sp.Policy.from_preset('reed-only')
        except sp.PolicyError as error: print('did you mean' in str(error))
    """
    assert fresh(code, ws).stdout == "True\n"
