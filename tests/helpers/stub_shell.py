"""Runs scripts by a real shell whose programs are stubs, and says what it ran. In a sandbox, of course."""

from __future__ import annotations

import json
import os
import pathlib
import stat

import sandboxed_subprocess as sp
from sandboxed_subprocess.commands._words import Dynamic

NAMES = "ls cat rm git touch a b echo2 env nice timeout nohup xargs find sh bash sudo curl x".split()
# Real ones, for they run what they are given: without them a wrapper would end everything.
REAL = {"env", "nice", "timeout", "nohup", "xargs", "find", "sh", "bash"}

# Each stub says by what words it was called, each in one write(), which a pipe takes whole.
STUB = """#!{python} -IS
import os, sys
os.write({fd}, ("\\0".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\0\\0").encode("utf-8", "surrogateescape"))
"""
C_STUB = r"""
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
	static char out[4000];
	size_t used = 0;
	for (int i = 0; i < argc; i++) {
		const char *word = i ? argv[i] : (strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0]);
		size_t length = strlen(word) + 1;
		if (used + length + 2 > sizeof out) break;
		memcpy(out + used, word, length);
		used += length;
	}
	out[used++] = 1;
	return write(99, out, used) < 0;
}
"""


def build(directory: pathlib.Path) -> pathlib.Path:
    """A directory of stubs; a C compiler makes them a hundred times faster than Python would."""
    import shutil
    import subprocess

    programs = directory / "programs"
    programs.mkdir()
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("musl-gcc")
    assert compiler, "a C compiler is needed for the stubs"
    source = directory / "stub.c"
    source.write_text(C_STUB)
    stub = directory / "stub"
    subprocess.run([compiler, "-O1", "-o", stub, source], check=True)
    stub.chmod(stub.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    for name in NAMES:
        real = shutil.which(name)
        (programs / name).symlink_to(os.path.realpath(real) if name in REAL and real else stub)
    return programs


class Shell:
    """One shell with its stubs."""

    def __init__(self, directory: pathlib.Path, shell: str = "bash") -> None:
        self.directory = directory
        self.programs = build(directory)
        self.shell = shell
        self.work = directory / "work"
        self.work.mkdir()
        self.policy = sp.Policy.workspace_write(self.work, tmp="none", limits=sp.Limits(wall_seconds=5, processes=64, file_bytes=1 << 20))

    def run(self, script: str, timeout: float = 5.0) -> list[tuple[str, ...]]:
        """The vectors that were executed."""
        read, write = os.pipe()
        try:
            # The number that the stubs know; a script cannot close it by accident.
            os.dup2(write, 99)
            os.close(write)
            path = f"{self.programs}"
            try:
                sp.run(
                    [f"/bin/{self.shell}", "-c", script], policy=self.policy, pass_fds=(99,), cwd=self.work, env={"PATH": path, "HOME": "/nowhere"},
                    stdin=sp.DEVNULL, stdout=sp.DEVNULL, stderr=sp.DEVNULL, timeout=timeout,
                )  # fmt: skip
            except sp.TimeoutExpired:
                pass
            finally:
                os.close(99)
            data = b""
            while chunk := os.read(read, 65536):
                data += chunk
        finally:
            os.close(read)
        return [tuple(part.decode("utf-8", "surrogateescape").split("\0"))[:-1] for part in data.split(b"\1") if part]


def explained(vector: tuple[str, ...], parts: tuple[tuple[str, ...], ...]) -> bool:
    """Whether an executed vector is one of the parts that were found, whose dynamic words stand as they were written."""
    return any(_fits(vector, part) for part in parts)


def _fits(vector: tuple[str, ...], part: tuple[str, ...]) -> bool:
    # zsh's `- program` puts a dash before its name.
    if not part or os.path.basename(vector[0]) not in (os.path.basename(part[0]), f"-{os.path.basename(part[0])}"):
        return False
    if part[1:] == vector[1:]:
        return True
    # Something in it was not known: then only the words before it can be compared.
    for i, word in enumerate(part[1:], 1):
        if isinstance(word, Dynamic) or any(c in word for c in "$`*?[~{<>") or word == "...":
            return vector[1:i] == part[1:i]
    return False


def shown(vectors: list[tuple[str, ...]]) -> str:
    return json.dumps(vectors)
