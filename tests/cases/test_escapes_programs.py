"""Programs under other names or with none, and two sandboxes at once: the confinement does not depend on what is run."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import socket
import sys

import pytest

import sandboxed_subprocess as sp

ATTACK = """
import os, socket
for what in ("{outside}/made", "{outside}/f"):
    try:
        open(what, "w").close()
        print("written", what)
    except OSError:
        pass
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, "{outside}/d.sock")):
    try:
        socket.socket(family).connect(address)
        print("connected", address)
    except OSError:
        pass
print("ran")
"""


@pytest.fixture
def target(outside):
    """The script of an attack on files and sockets, and a check that nothing of it has arrived."""
    (outside / "f").write_text("host")
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(outside / "d.sock"))
        for server in (tcp, unix):
            server.listen()
            server.setblocking(False)

        def untouched():
            assert sorted(os.listdir(outside)) == ["d.sock", "f"]
            assert (outside / "f").read_text() == "host"
            for server in (tcp, unix):
                with pytest.raises(BlockingIOError):
                    server.accept()

        yield ATTACK.format(outside=outside, port=tcp.getsockname()[1]), untouched


MEMORY = """
import os, sys
fd = os.memfd_create("x")
with open("/bin/sh", "rb") as program:
    os.write(fd, program.read())
os.execve(fd, ["sh", "-c", sys.argv[1], "sh", *sys.argv[2:]], dict(os.environ))
"""


def test_a_program_without_a_path_is_confined_like_any_other(run, target):
    """memfd_create and execveat run code that no rule about names has ever seen; what holds it is not the name."""
    script, untouched = target
    result = run([sys.executable, "-c", MEMORY, 'readlink /proc/$$/exe; exec "$1" -c "$2"', sys.executable, script])
    assert result.stdout.splitlines()[0].startswith("/memfd:x"), result.stderr
    assert result.stdout.splitlines()[1:] == ["ran"]
    untouched()


def test_a_file_run_by_the_dynamic_loader_is_confined_like_any_other(run, ws, target):
    """`ld.so ./file` runs what has no x bit, and what lies where nothing may be executed."""
    script, untouched = target
    loader = next((p for p in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if os.path.exists(p)), None)
    if loader is None:
        pytest.skip("no dynamic loader of glibc")
    shutil.copy("/bin/sh", ws / "shell")
    (ws / "shell").chmod(0o644)
    result = run([loader, str(ws / "shell"), "-c", 'exec "$1" -c "$2"', "sh", sys.executable, script])
    assert result.stdout == "ran\n", result.stderr
    untouched()


@pytest.mark.parametrize("alias", ["/proc/self/root/bin/sh", "link", "copy", "exec -a", "script", "executable="])
def test_another_name_for_a_program_changes_nothing(alias, run, ws, target):
    """Aliases defeat rules about names (canyonroad/agentsh#118); the sandbox must not care."""
    script, untouched = target
    arguments = ["-c", 'exec "$1" -c "$2"', "sh", sys.executable, script]
    options = {}
    if alias == "link":
        (ws / "x").symlink_to("/bin/sh")
        command = [str(ws / "x"), *arguments]
    elif alias == "copy":
        shutil.copy("/bin/sh", ws / "x")
        command = [str(ws / "x"), *arguments]
    elif alias == "exec -a":
        command = ["bash", "-c", 'exec -a ls sh "$@"', "bash", *arguments]
    elif alias == "script":
        (ws / "x").write_text(f"#!{sys.executable}\n{script}")
        (ws / "x").chmod(0o755)
        command = [str(ws / "x")]
    elif alias == "executable=":
        command, options = ["sandboxed-subprocess 3", *arguments], {"executable": "/bin/sh"}
    else:
        command = [alias, *arguments]
    result = run(command, **options)
    assert result.stdout == "ran\n", result.stderr
    untouched()


def test_the_launcher_takes_no_orders_from_inside(sh, target, outside):
    """Our own launcher is a program in the sandbox as well: run again with a forged plan it must have no power."""
    _, untouched = target
    launcher = os.path.join(os.path.dirname(sp.__file__), "_native", "launcher")
    result = sh(f"""
head -c 4096 /dev/zero > plan; exec 3< plan
bash -c 'exec -a "sandboxed-subprocess 3" {launcher} touch {outside}/made'; echo $?
bash -c 'exec -a "sandboxed-subprocess 99" {launcher} touch {outside}/made'; echo $?
{launcher} touch {outside}/made; echo $?""")
    codes = result.stdout.split()
    assert len(codes) == 3
    assert "0" not in codes
    untouched()


def test_two_policies_at_the_same_time_stay_apart(place, tier):
    """State that is kept in the module (a proxy's allow-list, a cached filter) leaks from one call into another that runs
    beside it (anthropics/claude-code#81572)."""
    roots = [place / "a", place / "b"]
    for root in roots:
        root.mkdir()
        (root / "hidden").write_text(f"hush {root.name}")
    policies = [
        sp.Policy.workspace_write(roots[0], deny_read=[roots[1]], set={"WHO": "a"}),
        sp.Policy.workspace_write(roots[1], deny_read=[roots[0]], set={"WHO": "b"}, git="commit", open_files=100),
    ]
    script = f"""
touch {roots[0]}/$1 2>/dev/null && echo wrote a; touch {roots[1]}/$1 2>/dev/null && echo wrote b
cat {roots[0]}/hidden {roots[1]}/hidden 2>/dev/null; echo; echo $WHO; ulimit -n"""

    def call(number):
        which = number % 2
        result = sp.run(["sh", "-c", script, "sh", str(number)], policy=policies[which], cwd="/", capture_output=True, text=True, timeout=60)
        return which, result.stdout.split("\n"), result.sandbox.quarantined

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(call, range(50)))
    for which, lines, quarantined in answers:
        name = "ab"[which]
        assert lines[:3] == [f"wrote {name}", f"hush {name}", name]
        assert (lines[3] == "100") == (which == 1)
        assert quarantined == ()
    for which, root in enumerate(roots):
        assert sorted(os.listdir(root), key=str) == sorted(["hidden", *(str(n) for n in range(50) if n % 2 == which)])


def test_a_run_keeps_the_policy_that_it_was_started_with(ws, outside, policy):
    """A reload of settings in the middle of a run neither opens nor shuts what runs already."""
    with sp.Popen(["sh", "-c", f"read x; touch made {outside}/made; echo ran"], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE,
                  stderr=sp.DEVNULL, text=True) as process:  # fmt: skip
        with pytest.raises(AttributeError):
            policy.write = (str(outside),)
        wider = policy.with_write(outside)
        with sp.default_policy(wider):
            assert sp.run(["touch", outside / "allowed"], policy=wider).returncode == 0
            output, _ = process.communicate("\n", timeout=30)
    assert output == "ran\n"
    assert (ws / "made").exists()
    assert os.listdir(outside) == ["allowed"]


def test_what_one_sandbox_listens_on_is_not_there_for_another(ws, policy):
    """A port, an abstract name or a file in /tmp of one run must not be a way into the next."""
    server = """
import os, socket
tcp = socket.create_server(("127.0.0.1", 47813))
abstract = socket.socket(socket.AF_UNIX); abstract.bind(chr(0) + "ss-escape"); abstract.listen()
open("/tmp/ss-escape", "w").close(); open("/dev/shm/ss-escape", "w").close()
print("up", flush=True)
input()
tcp.setblocking(False); abstract.setblocking(False)
for s in (tcp, abstract):
    try:
        s.accept(); print("reached", flush=True)
    except BlockingIOError:
        pass
print("end")
"""
    client = """
import os, socket
for family, address in ((socket.AF_INET, ("127.0.0.1", 47813)), (socket.AF_UNIX, chr(0) + "ss-escape")):
    try:
        socket.socket(family).connect(address); print("connected", address)
    except OSError:
        pass
print([p for p in ("/tmp/ss-escape", "/dev/shm/ss-escape") if os.path.exists(p)])
"""
    with sp.Popen([sys.executable, "-c", server], policy=policy, cwd=ws, stdin=sp.PIPE, stdout=sp.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        result = sp.run([sys.executable, "-c", client], policy=policy, cwd=ws, capture_output=True, text=True)
        output, _ = process.communicate("\n", timeout=30)
    assert result.stdout == "[]\n"
    assert output == "end\n"
