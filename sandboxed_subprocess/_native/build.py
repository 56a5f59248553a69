"""Build hook: compiles the launcher into the wheel. Runs under hatchling; imports nothing of the package.

A C library makes the launcher slow to start: glibc's static start-up alone costs 0.4 ms at every launch. So: musl-gcc
where it is installed; else the compiler in the PyPI package `ziglang`, which brings musl along and which this hook
asks for as a build requirement; else any C compiler, with a warning.

Where none of them works the build fails and says so. pip keeps wheels that it has built, and hides what a successful
build prints: an install that "succeeds" without a launcher would be cached as if it were good. Who wants a package
without a launcher all the same says so with SANDBOXED_SUBPROCESS_NO_LAUNCHER=1.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = ["-static", "-O2", "-Wall", "-Wextra", "-fno-pie", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-s"]
# Where ziglang has wheels; elsewhere asking for it would fail the whole build.
ZIG_MACHINES = {"x86_64", "aarch64", "armv7l", "i686", "ppc64le", "riscv64"}


def compilers() -> list[tuple[str, list[str]]]:
    """(name, command) of what could compile the launcher here, best first."""
    found = []
    if path := shutil.which("musl-gcc"):
        found.append(("musl-gcc", [path, *FLAGS]))
    try:
        import ziglang
    except ImportError:
        pass
    else:
        zig = os.path.join(os.path.dirname(ziglang.__file__), "zig")
        machine = {"i686": "x86", "armv7l": "arm", "ppc64le": "powerpc64le"}.get(platform.machine(), platform.machine())
        abi = "musleabihf" if machine == "arm" else "musl"
        flags = [flag for flag in FLAGS if not flag.startswith("-Wl,")]  # its linker knows neither, and needs neither
        found.append(("zig", [zig, "cc", "-target", f"{machine}-linux-{abi}", *flags]))
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            found.append((name, [path, *FLAGS]))
            break
    return found


def compile_launcher(target: str) -> str:
    """Compiles to `target` and returns the name of the compiler.

    Raises:
        RuntimeError: no compiler here can; the message says what each one said.
    """
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        environ = {
            **os.environ,
            "ZIG_GLOBAL_CACHE_DIR": os.path.join(scratch, "zig"),
            "ZIG_LOCAL_CACHE_DIR": os.path.join(scratch, "zig"),
        }
        output = os.path.join(scratch, "launcher")
        for name, command in compilers():
            result = subprocess.run(
                [*command, "-o", output, os.path.join(HERE, "launcher.c")], capture_output=True, text=True, env=environ
            )
            if result.returncode == 0:
                # It has to run here as well, and to know what it is.
                if subprocess.run([output], stderr=subprocess.DEVNULL).returncode == 64:
                    # Renamed, not written over: a launcher that is in use must stay whole (ETXTBSY otherwise).
                    fresh = f"{target}.{os.getpid()}"
                    shutil.copyfile(output, fresh)
                    os.chmod(fresh, 0o755)
                    os.replace(fresh, target)
                    return name
                failures.append(f"{name}: what it made does not run")
            else:
                failures.append(f"{name}: {result.stderr.strip() or result.returncode}")
    raise RuntimeError(
        "the launcher of sandboxed_subprocess could not be compiled: " + ("; ".join(failures) or "no C compiler found")
        + ". Install one (Debian, Ubuntu: apt install musl-tools); without any, pip brings ziglang by itself, unless"
        " --no-build-isolation forbids it."
        " SANDBOXED_SUBPROCESS_NO_LAUNCHER=1 builds the package without it: then every sandboxed call on Linux raises"
        " SandboxUnavailable."
    )  # fmt: skip


class CustomBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        wanted = sys.platform == "linux" and not os.environ.get("SANDBOXED_SUBPROCESS_NO_LAUNCHER")
        if wanted and not shutil.which("musl-gcc") and platform.machine() in ZIG_MACHINES:
            return ["ziglang"]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if sys.platform != "linux":
            return
        if os.environ.get("SANDBOXED_SUBPROCESS_NO_LAUNCHER"):
            self.app.display_warning(
                "sandboxed_subprocess is built without its launcher, as SANDBOXED_SUBPROCESS_NO_LAUNCHER asks:"
                " every sandboxed call on Linux will raise SandboxUnavailable"
            )
            return
        if version == "editable":
            used = compile_launcher(os.path.join(HERE, "launcher"))
        else:
            self.scratch = tempfile.mkdtemp()
            target = os.path.join(self.scratch, "launcher")
            used = compile_launcher(target)
            build_data["force_include"][target] = "sandboxed_subprocess/_native/launcher"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag()}"
        if used in ("cc", "gcc", "clang"):
            self.app.display_warning(
                f"the launcher was compiled with {used} and the system's C library: each launch is about 0.4 ms slower"
                " than with musl (Debian, Ubuntu: apt install musl-tools, then reinstall)"
            )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        scratch = getattr(self, "scratch", None)
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _platform_tag() -> str:
    # The launcher is static and needs no C library, so the plain tag of the machine is true everywhere.
    return f"linux_{platform.machine()}"
