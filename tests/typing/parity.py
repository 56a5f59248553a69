"""What type checkers see. Checked as it stands, and again with this package's name in the place of `subprocess`."""

from __future__ import annotations

import pathlib
import subprocess
from typing import Any

from typing_extensions import assert_type


def anything() -> Any:
    return None


def flag() -> bool:
    return True


# run
assert_type(subprocess.run(["a"]).stdout, bytes)
assert_type(subprocess.run("a", shell=True, capture_output=True).stderr, bytes)
assert_type(subprocess.run([b"a", pathlib.Path("b")], text=None, encoding=None, errors=None).stdout, bytes)
assert_type(subprocess.run(["a"], text=False).stdout, bytes)
assert_type(subprocess.run(["a"], universal_newlines=False, input=bytearray(b"x")).stdout, bytes)
assert_type(subprocess.run(["a"], text=True, input="x", check=True, timeout=1.5).stdout, str)
assert_type(subprocess.run(["a"], encoding="utf-8").stdout, str)
assert_type(subprocess.run(["a"], errors="replace", cwd=pathlib.Path(), env={"A": "b"}).stdout, str)
assert_type(subprocess.run(["a"], universal_newlines=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout, str)
assert_type(subprocess.run(["a"], text=flag()).stdout, Any)
assert_type(subprocess.run(["a"], text=anything()).returncode, int)
assert_type(subprocess.run(["a"], -1, user="nobody", group=0, extra_groups=["x", 1], umask=0o22, pipesize=4096).returncode, int)

# Popen
assert_type(subprocess.Popen(["a"]), "subprocess.Popen[bytes]")
assert_type(subprocess.Popen(["a"], 0, stdin=subprocess.PIPE, pass_fds=(3,), start_new_session=True), "subprocess.Popen[bytes]")
assert_type(subprocess.Popen(["a"], text=True), "subprocess.Popen[str]")
assert_type(subprocess.Popen(["a"], encoding="utf-8"), "subprocess.Popen[str]")
assert_type(subprocess.Popen(["a"], errors="strict"), "subprocess.Popen[str]")
assert_type(subprocess.Popen(["a"], universal_newlines=True, preexec_fn=lambda: None), "subprocess.Popen[str]")
assert_type(subprocess.Popen(["a"], text=flag()), "subprocess.Popen[Any]")
with subprocess.Popen(["a"], text=True) as process:
    assert_type(process.communicate("x", timeout=1), tuple[str, str])
    assert_type(process.poll(), "int | None")
    assert_type(process.wait(1.0), int)
    process.send_signal(15)
with subprocess.Popen(["a"], executable="/bin/a", creationflags=0, startupinfo=None, restore_signals=False) as raw:
    assert_type(raw.communicate(), tuple[bytes, bytes])

# the small functions
assert_type(subprocess.call(["a"], timeout=1, text=True, stdout=subprocess.DEVNULL), int)
assert_type(subprocess.check_call("a", shell=True, close_fds=False), int)
assert_type(subprocess.check_output(["a"]), bytes)
assert_type(subprocess.check_output(["a"], text=False, input=b"x"), bytes)
assert_type(subprocess.check_output(["a"], text=True, input="x", timeout=3), str)
assert_type(subprocess.check_output(["a"], encoding="utf-8", stderr=subprocess.STDOUT), str)
assert_type(subprocess.check_output(["a"], errors="ignore"), str)
assert_type(subprocess.check_output(["a"], universal_newlines=True), str)
assert_type(subprocess.check_output(["a"], text=flag()), Any)
assert_type(subprocess.getoutput("a"), str)
assert_type(subprocess.getstatusoutput("a"), tuple[int, str])

# what must not type
subprocess.run(["a"], txet=True)  # type: ignore[call-overload]
subprocess.run(3)  # type: ignore[call-overload]
subprocess.Popen(["a"], cwd=3)  # type: ignore[call-overload]
subprocess.check_output(["a"], stdout=subprocess.PIPE)  # type: ignore[call-overload]
subprocess.nothing  # type: ignore[attr-defined]

try:
    subprocess.run(["a"], check=True)
except subprocess.CalledProcessError as error:
    assert_type(error.returncode, int)
except subprocess.TimeoutExpired as expired:
    assert_type(expired.timeout, float)
