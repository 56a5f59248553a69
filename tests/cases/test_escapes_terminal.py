"""The caller's terminal: nothing that runs inside may type into it, take it, or signal who sits behind it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap

import pytest
from helpers.escapes_probe import PROBE

# The caller, on a terminal of its own: a session leader that runs a probe in the sandbox with the terminal as stdin, and
# then looks whether anything can be read from it.
CALLER = """
import ctypes, fcntl, os, select, sys, termios, tty
import sandboxed_subprocess as sp
ws, probe, control = sys.argv[1:4]
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
tty.setraw(0)
if control == "control":
    try:
        fcntl.ioctl(0, 0x5412, b"X")
    except OSError as error:
        sys.stderr.write(f"control refused {error.errno}")
else:
    result = sp.run([sys.executable, "-c", probe], policy=sp.Policy.workspace_write(ws), cwd=ws, stdout=-1, text=True, timeout=30)
    sys.stderr.write(result.stdout)
got = b""
while select.select([0], [], [], 0)[0]:
    got += os.read(0, 100)
sys.stderr.write(f"typed {got.decode()!r}" + chr(10))
sys.stderr.write(f"foreground {os.tcgetpgrp(0) == os.getpgrp()}" + chr(10))
"""

TYPING = PROBE + """
print("isatty", os.isatty(0))
for where in ("0", "tty", "path"):
    try:
        fd = {"0": lambda: 0, "tty": lambda: os.open("/dev/tty", os.O_RDWR), "path": lambda: os.open("/proc/self/fd/0", os.O_RDWR)}[where]()
    except OSError as error:
        print(where, "open", errno.errorcode[error.errno])
        continue
    for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
        for form, high in (("", 0), ("+high", 1 << 32), ("+all", 0xFFFFFFFF << 32)):
            text = ctypes.create_string_buffer(b"A" if name == "TIOCSTI" else b"\\x03A")
            print(where, name + form, call(16 if X86 else 29, fd, request | high, text))
print("end")
"""


def on_terminal(ws, probe, control="sandbox"):
    """What the caller wrote about it: a list of lines."""
    leader, follower = pty.openpty()
    try:
        return subprocess.run(
            [sys.executable, "-c", CALLER, str(ws), textwrap.dedent(probe), control],
            stdin=follower, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, timeout=60,
            check=True,
        ).stderr.splitlines()  # fmt: skip
    finally:
        os.close(leader)
        os.close(follower)


def test_nothing_can_be_typed_into_the_callers_terminal(ws, tier):
    """TIOCSTI pushes characters into the input of the caller's shell, which executes them when the agent ends
    (CVE-2017-5226); a filter that compares all 64 bits of the request is passed by a high bit (CVE-2019-10063)."""
    lines = on_terminal(ws, TYPING)
    assert lines[0] == "isatty True"
    assert "end" in lines
    answers = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines if " TIOC" in line}
    assert len(answers) >= 6
    assert set(answers.values()) == {"EPERM"}
    assert "typed ''" in lines


def test_the_attack_works_without_a_sandbox(ws):
    """Otherwise the test above would prove nothing on this kernel."""
    lines = on_terminal(ws, "", "control")
    if any(line.startswith("control refused") for line in lines):
        pytest.skip("this kernel has no TIOCSTI (sysctl dev.tty.legacy_tiocsti)")
    assert lines[0] == "typed 'X'"


def test_the_terminal_stays_with_its_session(ws, tier):
    """A child in the caller's session can take the foreground away, open /dev/tty behind redirected streams, or send the
    whole group a SIGINT."""
    lines = on_terminal(
        ws,
        PROBE + """
import fcntl, signal, termios
attempt("open /dev/tty", os.open, "/dev/tty", os.O_RDWR)
attempt("TIOCSCTTY", fcntl.ioctl, 0, termios.TIOCSCTTY, 1)
attempt("TIOCNOTTY", fcntl.ioctl, 0, termios.TIOCNOTTY)
attempt("tcsetpgrp", os.tcsetpgrp, 0, os.getpgrp())
attempt("tcgetsid", fcntl.ioctl, 0, termios.TIOCGSID if hasattr(termios, "TIOCGSID") else 0x5429, b"0000")
signal.signal(signal.SIGHUP, signal.SIG_IGN)
attempt("kill group", os.kill, 0, signal.SIGHUP)
if os.fork() == 0:
    os.setsid()
    attempt("TIOCSCTTY as leader", fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
    attempt("TIOCSCTTY stealing", fcntl.ioctl, 0, termios.TIOCSCTTY, 1)
    os._exit(0)
os.wait()
print("end")
""",
    )
    assert "end" in lines
    refused = [line for line in lines if line.startswith(("open", "TIOC", "tc"))]
    assert len(refused) == 7
    assert [line for line in refused if line.endswith(" OK")] == []
    assert "foreground True" in lines
