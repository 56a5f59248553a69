"""What is documented is run: every Python block of the README, and the commands that it names."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_python_of_the_readme_runs(number, ws, tier):
    """An example that does not run is worse than none. It is run as a reader would: in a directory of its own."""
    (ws / "Makefile").write_text("test:\n\techo tested\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    if "best-effort" in blocks("python")[number]:
        del env["PYTHONWARNINGS"]  # there is one, as there should be
    result = subprocess.run([sys.executable, "-c", blocks("python")[number]], cwd=ws, capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr
    code = blocks("python")[number]
    if number < 2:
        assert result.stdout == "0\n"
    elif "b\"through\"" in code:
        assert result.stdout == "out\n (b'through', None)\n"
    elif "aio.stream" in code:
        *events, returncode = result.stdout.splitlines()
        assert sorted(event.split()[1:] for event in events) == [["stderr", "two"], ["stdout", "one"], ["stdout", "three"]]
        assert returncode == "0"
    elif "output_bytes" in code:
        head, size, dropped = re.fullmatch(r"(\[.*\]) (\d+) \(\('stdout', (\d+)\),\)\n", result.stdout).groups()
        assert head == "['1', '2', '3']" and int(size) <= 100_000 and 0 < int(size) + int(dropped) - 6_888_896 <= 64
    elif "limit_reached" in code:
        line, peak = result.stdout.splitlines()
        assert re.fullmatch(r"-9 memory_bytes 2\d{9}\.0", line) and int(peak) >= 2 << 30
    elif "observe=" in code:
        assert result.stdout == "/etc/x True\n"
    elif "violations[0]" in code:
        assert result.stdout.startswith("write /etc/x\nwritable: ") and "write=['/etc'] allows it" in result.stdout
    elif "approve_on_terminal" in code:
        assert result.stdout == "allow\na person pushes\n"
    elif "self_test" in code or "best-effort" in code:
        assert result.stdout == ""  # they assert for themselves
    else:
        assert (ws / "made").read_text() == "hello\n" and ("denied" in result.stdout or "No such file" in result.stdout)


COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text()
SAID = ["forbidden | a person pushes", "approver once", "write: "]


@pytest.mark.parametrize("number", range(3))
def test_the_python_of_the_page_on_commands_runs(number, ws, tier):
    """And says what its comments say."""
    code = re.findall(r"^```python\n(.*?)^```", COMMANDS, re.S | re.M)[number]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ws, capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr
    assert SAID[number] in result.stdout
    if number == 0:
        assert result.stdout.splitlines()[-1] == "allow"


def test_the_rules_of_the_page_on_commands_load_and_its_commands_run(ws, tier):
    """A file that one copies from the documents has to be one."""
    import sandboxed_subprocess as sp

    (text,) = re.findall(r"^```starlark\n(.*?)^```", COMMANDS, re.S | re.M)
    policy = sp.ExecPolicy.from_text(text)
    assert policy.check(["git", "show"]).decision == "allow" and policy.check("ls > x", shell=True).decision == "prompt"
    (ws / "team.rules").write_text(text)
    (lines,) = re.findall(r"^```sh\n(.*?)^```", COMMANDS, re.S | re.M)
    for line, status in zip(lines.strip().splitlines(), (20, 0)):
        words = line.partition("#")[0].replace("sandboxed-subprocess", f"{sys.executable} -m sandboxed_subprocess")
        assert subprocess.run(words, shell=True, cwd=ws, stdout=subprocess.DEVNULL).returncode == status


def test_the_set_up_is_two_commands():
    """The first creates, installs and demonstrates; the second tests."""
    section = README.partition("## Set up")[2].partition("\n## ")[0]
    commands = re.findall(r"^```sh\n(.*?)^```", section, re.S | re.M)
    assert len(commands) == 2 and all(len(c.strip().splitlines()) == 1 for c in commands)
    assert "pip install" in commands[0] and commands[0].strip().endswith("demo") and "pytest" in commands[1]


def test_the_policy_file_of_the_readme_loads():
    """Nobody should have to read the source to write one."""
    import sandboxed_subprocess as sp

    policy = sp.Policy.from_toml(blocks("toml")[0])
    assert policy.git == "commit" and policy.limits.wall_seconds == 600 and sp.Glob("**/.env") in policy.deny_read


def test_modules_in_the_current_directory_are_not_imported(ws, tier):
    """`python -m` looks there first: one command plants argparse.py, and the next call would run it unconfined."""
    for name in ("argparse", "landlock", "pyseccomp", "psutil", "socket", "struct", "dataclasses", "subprocess", "json"):
        (ws / f"{name}.py").write_text("raise SystemExit('planted')")
    result = cli("run", "--", "echo", "fine", cwd=ws)
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stderr
    script = os.path.join(os.path.dirname(sys.executable), "sandboxed-subprocess")
    if os.path.exists(script):
        assert subprocess.run([script, "run", "--", "true"], cwd=ws).returncode == 0


def test_the_command_line_says_what_nobody_should_have_to_ask_for(ws, tier):
    """A limit, a gap, a repository that was put out of action: one line each, on stderr."""
    (ws / "p.toml").write_text(f"write = ['{ws}']\nenforcement = 'best-effort'\npublish = [8000]\n[limits]\nwall_seconds = 0.3\n")
    result = cli("run", "--policy", "./p.toml", "--", "sh", "-c", "mkdir .git; touch .git/HEAD; sleep 60", cwd=ws)
    assert result.returncode == -9
    assert "limit wall_seconds" in result.stderr and "ports published" in result.stderr and ".git.quarantined-" in result.stderr


def cli(*args, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "sandboxed_subprocess", *args], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, **kwargs,
    )  # fmt: skip


def test_run_has_the_exit_status_of_the_command(ws, tier):
    """For scripts: 7 is 7, a signal is that signal, and our own failures are those of env(1)."""
    assert cli("run", "--", "sh", "-c", "echo x > made; exit 7", cwd=ws).returncode == 7
    assert (ws / "made").exists()
    assert cli("run", "--", "sh", "-c", "kill -TERM $$", cwd=ws).returncode == -15
    assert cli("run", "--", "sh", "-c", "kill -KILL $$", cwd=ws).returncode == -9
    assert cli("run", "--", "no-such-program", cwd=ws).returncode == 127
    assert cli("run", "--", "/etc/passwd", cwd=ws).returncode == 126
    assert cli("run", "--policy", "no-such-preset", "--", "true", cwd=ws).returncode == 125
    assert cli("run", cwd=ws).returncode == 2


def test_run_takes_a_policy_file_and_more_roots(ws, outside, tier):
    """`--policy FILE`, `--write DIR`, `--report`."""
    (ws / "policy.toml").write_text(f'write = ["{ws}"]\n')
    result = cli(
        "run", "--policy", "./policy.toml", "--write", str(outside), "--report", "--", "sh", "-c", f"touch a {outside}/b", cwd=ws
    )
    assert result.returncode == 0 and (ws / "a").exists() and (outside / "b").exists()
    assert '"backend": "namespaces"' in result.stderr
    (ws / "bad.toml").write_text('wirte = ["."]\n')
    result = cli("run", "--policy", "./bad.toml", "--", "true", cwd=ws)
    assert result.returncode == 125 and "'write'" in result.stderr and "bad.toml" in result.stderr


def test_without_the_grammar_a_script_is_asked_for_and_without_starlark_a_file_is_an_error():
    """An installation without the extra knows rules of Python and vectors; what it cannot read it does not wave through."""
    code = """
import sys
sys.modules.update(starlark=None, tree_sitter=None)
import sandboxed_subprocess as sp
policy = sp.ExecPolicy([sp.prefix_rule(["ls"])], default="allow")
print(policy.check(["ls"]).decision, policy.check("ls", shell=True).decision, policy.check("ls", shell=True).reason)
try:
    sp.ExecPolicy.from_text("")
except sp.PolicyError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0].startswith("allow prompt scripts cannot be taken apart here") and "[rules]" in out[0] and "[rules]" in out[1]


def test_doctor_says_what_works(tier):
    """For people, and as JSON for machines."""
    import json

    result = cli("doctor")
    assert result.returncode == 0 and "writes confined to the writable roots" in result.stdout
    found = json.loads(cli("doctor", "--json").stdout)
    assert found["backends"]["namespaces"]["works"] and found["presets"]["workspace-write"] == "namespaces"


def test_the_demonstration_has_no_wrong_outcome(tier):
    """It is the first thing that a newcomer runs."""
    home = set(os.listdir(os.path.expanduser("~")))
    result = cli("demo")
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 wrong" in result.stdout and result.stdout.count(" ok ") >= 12
    new = set(os.listdir(os.path.expanduser("~"))) - home
    assert not [name for name in new if name.startswith(".sandboxed-subprocess-demo-")]
