"""Other kernels, really booted: user-mode Linux without Landlock, and Debian's 6.1 and 6.12 in an emulator. Slow, so marked:

    python -m pytest -m kernel tests/platforms       (as root; installs what it needs with apt)
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT
from test_hosts import without

HERE = pathlib.Path(__file__).parent
RUN = HERE.parent / "helpers" / "vm-run.sh"
SUPPORT = HERE.parents[1] / "docs" / "reference" / "support.md"

# Options of vm-run.sh; for people; the tier that best-effort takes, whether strict runs the presets, and Landlock's ABI.
KERNELS = {
    "uml": ("user-mode Linux 6.1, without Landlock", "namespaces", False, 0),
    "6.1": ("Linux 6.1 (Debian 12): Landlock ABI 2", "namespaces", True, 2),
    "6.1 -a lsm=yama,apparmor": ("the same, Landlock not in `lsm=`", "namespaces", False, 0),
    "6.12": ("Linux 6.12: Landlock ABI 6", "namespaces", True, 6),
}
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not ROOT, reason="installs and boots kernels"),
    pytest.mark.timeout(900),
]

PROBE = """
import json, os, sys, warnings
import sandboxed_subprocess as sp
from sandboxed_subprocess import _backends
from sandboxed_subprocess._backends._landlock import landlock
from sandboxed_subprocess._errors import Missing
warnings.simplefilter("ignore")
out = sys.argv[1]
found = {"abi": landlock().abi, "kernel": os.uname().release}
os.environ["HOME"] = out
for enforcement in ("strict", "best-effort"):
    for name in (None, "namespaces", "bubblewrap", "landlock"):
        policy = sp.Policy.workspace_write(out + "/ws", enforcement=enforcement, backend=name)
        os.makedirs(out + "/ws", exist_ok=True)
        try:
            result = sp.run(["sh", "-c", f"echo x > {out}/outside; echo ran"], cwd=out + "/ws", policy=policy, capture_output=True, text=True)
        except sp.SandboxUnavailable as error:
            found[f"{enforcement} {name}"] = ["refused", error.reasons, error.advice]
            continue
        report = result.sandbox
        found[f"{enforcement} {name}"] = [report.enforcement.name, report.backend, report.gaps, result.stdout]
        # Everything that is promised, tried.
        test = sp.self_test(policy)
        found[f"{enforcement} {name} test"] = [test.ok, [c.feature for c in test.checks if c.holds is not True]]
print(json.dumps(found))
"""

_found = {}


def cannot_boot(kernel):
    """User-mode Linux 6.1 has room for so many registers; with AMX there are more, and its first process dies of that."""
    if kernel == "uml" and " amx_tile" in pathlib.Path("/proc/cpuinfo").read_text():
        return "user-mode Linux 6.1 cannot run on a processor with AMX"
    return None


def booted(kernel, place):
    if kernel not in _found:
        which, *options = kernel.split()
        result = subprocess.run(
            ["bash", RUN, which, *options, "--", "env", f"PYTHONPATH={HERE.parents[1]}", sys.executable, "-c", PROBE, str(place)],
            capture_output=True, text=True, cwd=place, env={**os.environ, "VMOUT": str(place), "VM_TIMEOUT": "600"}, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
        _found[kernel] = json.loads(result.stdout.strip().splitlines()[-1])
    return _found[kernel]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel(kernel, place):
    """Which tier is taken, that strict refuses by name what is missing, and that everything promised holds there."""
    if cannot_boot(kernel):
        pytest.skip(cannot_boot(kernel))
    found = booted(kernel, place)
    _, tier, strict, abi = KERNELS[kernel]
    assert found["abi"] == abi
    assert (found["strict None"][0] == "FULL") == strict, found["strict None"]
    assert found["best-effort None"][1] == tier
    for name, outcome in found.items():
        if name.endswith(" test"):
            assert outcome[0] is True, (name, outcome)
        elif name not in ("abi", "kernel") and outcome[0] != "refused":
            assert outcome[3] == "ran\n"
    assert not (place / "outside").exists()
    if abi < 2:
        assert found["best-effort landlock"][0] == "refused" and "no Landlock" in str(found["strict None"][1])
    else:
        assert found["best-effort landlock"][0] == "PARTIAL"


def test_the_table_of_kernels_is_that_of_the_documents(place):
    """Made by booting them; rows of those that do not run here stay as they were made elsewhere."""
    head, _, rest = SUPPORT.read_text().partition("<!-- made by tests/platforms/test_kernels.py -->\n")
    lines = ["| kernel | `strict` | `best-effort` | `best-effort`, `landlock` |", "|---|---|---|---|"]
    for kernel, (title, _, _, _) in KERNELS.items():
        if cannot_boot(kernel):
            lines += [line for line in rest.splitlines() if line.startswith(f"| {title} |")]
            continue
        found = booted(kernel, place)
        cells = []
        for key in ("strict None", "best-effort None", "best-effort landlock"):
            outcome = found[key]
            cells.append("refused" if outcome[0] == "refused" else f"`{outcome[1]}`{without(outcome[1], outcome[2])}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    if os.environ.get("SANDBOX_WRITE_SUPPORT"):
        _, _, after = rest.partition("<!-- end -->\n")
        SUPPORT.write_text(f"{head}<!-- made by tests/platforms/test_kernels.py -->\n{table}<!-- end -->\n{after}")
    assert table in SUPPORT.read_text()
