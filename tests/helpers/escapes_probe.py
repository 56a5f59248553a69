"""The first lines of probes that run inside: raw system calls, and one printed line for each attempt."""

from __future__ import annotations

PROBE = """
import ctypes, errno, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"

def word(value):
    return ctypes.c_ulong(value & (1 << 64) - 1) if isinstance(value, int) else value

def done(result):
    return "OK" if result != -1 else errno.errorcode.get(ctypes.get_errno(), "E?")

def call(number, *arguments):
    ctypes.set_errno(0)
    return done(libc.syscall(ctypes.c_long(number), *map(word, arguments)))

def attempt(name, function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        print(name, errno.errorcode[error.errno], flush=True)
    else:
        print(name, "OK", flush=True)
"""


def outcomes(result):
    """{attempt: "OK" or the name of an errno} of a probe that printed such lines and came to its end."""
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    found = dict(line.rsplit(" ", 1) for line in result.stdout.splitlines())
    assert found, result
    return found
