"""Variables and files that run code: never outside on the way into the sandbox, and not unasked inside it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import sandboxed_subprocess as sp

SHARED = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) { close(open(MARK, O_CREAT | O_WRONLY, 0644)); }
unsigned int la_version(unsigned int v) { run(); return v; }
"""
PATH = os.environ["PATH"]


@pytest.mark.sanitizer_unfriendly
@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"])
def test_a_library_in_the_commands_environment_is_not_loaded_outside(name, run, ws, outside):
    """What is meant for the command is also the environment of whatever is executed before it: a helper that is linked
    dynamically runs the command's constructor unconfined (cloudflare/sandbox#1)."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    library = ws / ("libc.so.6" if name == "LD_LIBRARY_PATH" else "evil.so")
    source = ws / "evil.c"
    source.write_text(SHARED)
    subprocess.run(["gcc", "-shared", "-fPIC", f'-DMARK="{outside}/own"', "-o", library, source], check=True)
    value = str(ws) if name == "LD_LIBRARY_PATH" else str(library)
    if name != "LD_LIBRARY_PATH":
        subprocess.run(["true"], env={"PATH": PATH, name: value}, check=True)
        assert (outside / "own").exists(), "the library does nothing"
        (outside / "own").unlink()
    result = run(["sh", "-c", f"echo ${name}; echo ran >&2"], env={"PATH": PATH, name: value})
    assert not (outside / "own").exists()
    if name != "LD_LIBRARY_PATH":
        # A new value is intent: it is the command's, and acts inside.
        assert (result.returncode, result.stdout, result.stderr) == (0, f"{value}\n", "ran\n")


CALLER = """
import sys
import sandboxed_subprocess as sp
ws = sys.argv[1]
print(sp.run(["echo", "ran"], policy=sp.Policy.workspace_write(ws), cwd=ws, capture_output=True, text=True, timeout=30).stdout)
"""
PLANTED_TOOLS = "bwrap gcc cc c99 ld ldconfig objdump crle uname newuidmap newgidmap sh env python python3 sandboxed-subprocess git".split()


def plant(directory, mark):
    for name in PLANTED_TOOLS:
        (directory / name).write_text(f"#!/bin/sh\n/usr/bin/touch {mark}-{name}\n")
        (directory / name).chmod(0o755)


def test_a_tool_planted_in_path_is_not_executed_outside(ws, outside):
    """A helper that is looked up in PATH (bwrap; gcc and ldconfig by ctypes.util.find_library) comes from wherever the
    workspace, a virtual environment or a model put itself in front."""
    plant(ws, outside / "own")
    environment = {**os.environ, "PATH": f"{ws}:{PATH}"}
    result = subprocess.run([sys.executable, "-I", "-c", CALLER, str(ws)], env=environment, cwd=ws, capture_output=True, text=True, check=False)
    assert result.stdout == "ran\n\n", result.stderr
    assert list(outside.iterdir()) == []


def test_a_tool_planted_in_the_path_of_env_is_not_executed_outside(run, ws, outside):
    """The same through `env=`, which a model may choose; the command itself may come from there, inside."""
    plant(ws, outside / "own")
    (ws / "sh").write_text("#!/bin/sh\necho planted\n")
    result = run(["sh"], env={"PATH": f"{ws}:{PATH}"})
    assert result.stdout == "planted\n"
    assert list(outside.iterdir()) == []


def test_a_python_module_planted_for_the_command_is_not_imported_outside(run, ws, outside):
    """A launcher written in Python reads PYTHONPATH, PYTHONSTARTUP, PYTHONHOME and sitecustomize before it confines anyone."""
    for name in ("sitecustomize", "usercustomize", "os", "ctypes", "landlock", "pyseccomp"):
        (ws / f"{name}.py").write_text(f"open({str(outside / name)!r}, 'w').close()\n")
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONBREAKPOINT", "PYTHONPYCACHEPREFIX"):
        value = str(ws / "os.py") if name == "PYTHONSTARTUP" else str(ws)
        assert run(["sh", "-c", "echo ran"], env={"PATH": PATH, name: value}).stdout == "ran\n"
    assert list(outside.iterdir()) == []


SECOND_RUN = """
import os, sys
import sandboxed_subprocess as sp
ws, outside = sys.argv[1:3]
policy = sp.Policy.workspace_write(ws)
done = sp.run(["true"], policy=policy)
# What a first command can do: a file for every module that this process has not loaded yet.
names = {n for n in sys.stdlib_module_names if not n.startswith("_")} | {"landlock", "pyseccomp", "psutil", "tomli_w", "tomli"}
missing = sorted(n for n in names if n not in sys.modules)
script = "".join(f"echo 'import os; open(\\"{outside}/{n}\\", \\"w\\").close(); raise ImportError' > {n}.py;" for n in missing)
done = sp.run(["sh", "-c", script + "ls | wc -l"], policy=policy, cwd=ws, stdout=-1, text=True)
print("planted", len(missing), done.stdout.strip())
# What a caller may do afterwards.
sp.run(["true"], policy=policy.replace(deny_read=[sp.Glob("**/*.key"), "~/x"], deny_write=[sp.Glob("*.lock")]), cwd=ws)
sp.run("true", shell=True, policy="read-only", cwd=ws, env={"A": "b"})
sp.run(["true"], policy=policy.replace(git="commit", wall_seconds=9), capture_output=True, text=True, encoding="utf-8", input="x")
try:
    sp.run(["sleep", "9"], policy=policy, timeout=0.05)
except sp.TimeoutExpired:
    pass
try:
    sp.run(["false"], policy=policy, check=True)
except sp.CalledProcessError as error:
    str(error), error.sandbox.to_json()
try:
    sp.run(["/nowhere"], policy=policy)
except FileNotFoundError:
    pass
if os.geteuid() == 0:
    sp.run(["true"], policy=policy.replace(tmp="shared"), user="nobody", group="nogroup", extra_groups=[])
print("end")
"""


def test_a_module_planted_by_the_first_command_is_not_imported_for_the_second(ws, outside):
    """`python -m agent` has the workspace at the front of sys.path: whatever the library imports late, the command that ran
    before has chosen."""
    result = subprocess.run(
        [sys.executable, "-c", SECOND_RUN, str(ws), str(outside)], cwd=ws, capture_output=True, text=True, check=False, timeout=120,
        env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
    )  # fmt: skip
    lines = result.stdout.splitlines()
    assert lines[0].startswith("planted "), result.stderr
    assert int(lines[0].split()[1]) == int(lines[0].split()[2])
    assert sorted(p.name for p in outside.iterdir()) == []
    assert lines[-1] == "end", result.stderr


def executing(ws):
    """Variables that run code in ordinary commands, each with a value that would make a file named pw."""
    script = ws / "e"
    script.write_text("touch pw\n")
    return {
        "BASH_ENV": str(script), "ENV": str(script), "BASH_FUNC_ls%%": "() { touch pw; }", "SS_FUNCTION": "() { :; }; touch pw",
        "PS4": "$(touch pw)", "SHELLOPTS": "xtrace", "PROMPT_COMMAND": "touch pw", "NODE_OPTIONS": f"--require {ws}/e.js",
        "PYTHONSTARTUP": str(script), "PYTHONPATH": str(ws), "PYTHONHOME": str(ws), "PYTHONWARNINGS": "error", "PERL5OPT": f"-I{ws} -Me",
        "PERL5LIB": str(ws), "RUBYOPT": f"-r{ws}/e", "GIT_SSH_COMMAND": "touch pw;", "GIT_SSH": str(script), "GIT_ASKPASS": str(script),
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "touch pw", "GIT_EXTERNAL_DIFF": "touch pw",
        "GIT_DIR": str(ws), "GIT_PAGER": "touch pw", "GIT_EDITOR": "touch pw", "GIT_EXEC_PATH": str(ws), "GIT_TEMPLATE_DIR": str(ws),
        "PAGER": "sh -c 'touch pw'", "EDITOR": "touch pw;", "VISUAL": "$(touch pw)", "MANPAGER": "touch pw", "LESSOPEN": "|touch pw",
        "LESSCLOSE": "touch pw", "RIPGREP_CONFIG_PATH": str(script), "LD_PRELOAD": f"{ws}/e.so", "LD_AUDIT": f"{ws}/e.so",
        "LD_LIBRARY_PATH": str(ws), "GLIBC_TUNABLES": "glibc.malloc.check=3", "GCONV_PATH": str(ws), "LUA_INIT": "os.execute('touch pw')",
        "JAVA_TOOL_OPTIONS": "-javaagent:e.jar", "_JAVA_OPTIONS": "-javaagent:e.jar", "MAKEFLAGS": "--eval=$(shell touch pw)",
        "MAKEFILES": str(script), "RUSTC_WRAPPER": str(script), "GOFLAGS": "-toolexec=e", "TAR_OPTIONS": "--to-command=e",
        "OPENSSL_CONF": str(script), "INPUTRC": str(script), "ZDOTDIR": str(ws), "VIMINIT": ":!touch pw", "BROWSER": "touch pw",
        "npm_config_script_shell": str(script), "npm_config_node_options": f"--require {ws}/e.js", "CC": "sh e", "HISTFILE": str(ws / "h"),
        "GIT_PROXY_COMMAND": str(script), "SUDO_ASKPASS": str(script), "DOTNET_STARTUP_HOOKS": f"{ws}/e.dll", "COMPlus_EnableDiagnostics": "1",
        "PIP_INDEX_URL": "http://user@evil.test/", "UV_INDEX_URL": "http://evil.test/", "YARN_RC_FILENAME": "e", "BUNDLE_GEMFILE": str(script),
    }  # fmt: skip


# These run code only in the hands of programs that ask for them by name, or are what builds are configured with.
LEFT_ALONE = {"CC", "HISTFILE", "PIP_INDEX_URL", "UV_INDEX_URL", "COMPlus_EnableDiagnostics", "YARN_RC_FILENAME", "BUNDLE_GEMFILE"}


def test_inherited_variables_that_execute_are_dropped_and_named(run, ws, monkeypatch):
    """A sanitiser that takes out only secrets leaves `BASH_ENV` and its kin, with which `ls` is no longer `ls`: command rules
    decide about one program and another one runs (fabro-sh/fabro#633)."""
    variables = executing(ws)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SS_INNOCENT", "kept")
    for env in (None, {**os.environ, "SS_OWN": "1"}):
        result = run([sys.executable, "-I", "-c", "import os; print(*os.environ, sep='\\n')"], env=env)
        seen = set(result.stdout.splitlines())
        assert "SS_INNOCENT" in seen
        assert sorted(seen & (set(variables) - LEFT_ALONE)) == []
        assert {"BASH_ENV", "NODE_OPTIONS", "LD_PRELOAD"} <= set(result.sandbox.environment_dropped)


def test_nothing_that_was_inherited_runs(run, ws, monkeypatch):
    """The same by its effect, in the programs that read them."""
    for name, value in executing(ws).items():
        monkeypatch.setenv(name, value)
    (ws / "e.js").write_text("require('fs').writeFileSync('pw', '')")
    (ws / "e.pm").write_text("system('touch pw'); 1;")
    (ws / "sitecustomize.py").write_text("open('pw', 'w').close()")
    tools = {"bash": "ls", "sh": "ls", "perl": None, "node": None, "git": None, "python3": None}
    ran = []
    for tool, script in tools.items():
        path = sys.executable if tool == "python3" else shutil.which(tool)
        if path is None:
            continue
        arguments = {"perl": ["-e", "1"], "node": ["-e", "1"], "git": ["--version"], "python3": ["-c", "1"]}.get(tool, ["-c", script or ""])
        result = run([path, *arguments])
        assert result.returncode == 0, (tool, result.stderr)
        ran.append(tool)
    assert {"sh", "bash", "python3"} <= set(ran)
    assert not (ws / "pw").exists()


def test_a_variable_that_the_caller_passes_is_intent_and_acts_inside(run, ws, outside, policy):
    """`env={"BASH_ENV": ...}` is a decision of the program that calls; it is kept, and what it runs is confined like the rest."""
    script = ws / "e"
    script.write_text(f"echo from-bash-env; touch {outside}/made")
    result = run(["bash", "-c", "echo command"], env={"PATH": PATH, "BASH_ENV": str(script)})
    assert result.stdout == "from-bash-env\ncommand\n"
    assert list(outside.iterdir()) == []
    excluded = policy.with_environment(exclude=["BASH_*"])
    assert run(["bash", "-c", "echo command"], env={"PATH": PATH, "BASH_ENV": str(script)}, policy=excluded).stdout == "command\n"


def test_the_report_never_contains_the_value_of_a_variable(run, monkeypatch):
    """Reports go into logs."""
    monkeypatch.setenv("SS_API_TOKEN", "hush-hush")
    report = run(["true"]).sandbox
    assert "SS_API_TOKEN" in report.environment_dropped
    assert "hush-hush" not in report.to_json() + repr(report)


def test_rules_that_cannot_be_kept_are_refused(ws, policy):
    """Rules that are silently not applied are worse than none: somebody counts on them."""
    for fields in ({"commands": object()}, {"approver": print}, {"upgrade_to": sp.Policy.danger_full_access()}):
        with pytest.raises(sp.PolicyError):
            sp.run(["touch", ws / "ran"], policy=policy.replace(**fields))
    assert not pathlib.Path(ws / "ran").exists()
