"""Hosts that offer less: what is refused, by which words, and what best-effort leaves out. docs/reference/support.md is the table.

    SANDBOX_WRITE_SUPPORT=1 python -m pytest tests/platforms      writes the table anew
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from sandboxed_subprocess._backends.linux_landlock import INHERENT
from sandboxed_subprocess.testing import needs

HERE = pathlib.Path(__file__).parent
DEGRADE = HERE.parent / "helpers" / "degrade.py"
SUPPORT = HERE.parents[1] / "docs" / "reference" / "support.md"

# The lack, for people; the words that its refusal has to have (None: nothing is refused); and the tier that best-effort takes.
HOSTS = {
    "no-landlock-enosys": ("no Landlock in the kernel", "this kernel has no Landlock", "namespaces"),
    "no-landlock-disabled": ("Landlock built in, but not active (`lsm=`)", "this kernel has no Landlock", "namespaces"),
    "landlock-abi=1": ("Landlock ABI 1 (Linux 5.13), and a foreign seccomp listener", "ABI 2 (Linux 5.19)", "namespaces"),
    "landlock-abi=2": ("Landlock ABI 2 (Linux 5.19), and a foreign seccomp listener", "already has a seccomp listener", "namespaces"),
    "landlock-abi=3": ("Landlock ABI 3 (Linux 6.2), and a foreign seccomp listener", "already has a seccomp listener", "namespaces"),
    "landlock-abi=4": ("Landlock ABI 4 (Linux 6.7), and a foreign seccomp listener", "already has a seccomp listener", "namespaces"),
    "landlock-abi=5": ("Landlock ABI 5 (Linux 6.10), and a foreign seccomp listener", "already has a seccomp listener", "namespaces"),
    "landlock-abi=6": ("Landlock ABI 6 (Linux 6.12), and a foreign seccomp listener", "already has a seccomp listener", "namespaces"),
    "foreign-listener": ("a foreign seccomp listener (some container runtimes)", "already has a seccomp listener", "namespaces"),
    "no-seccomp": ("no seccomp filters", "no system call filter", "namespaces"),
    "docker": ("Docker's default profile", "docs/how-to/hosts.md", "landlock"),
    "no-userns-eperm": ("user namespaces forbidden", "user namespaces are forbidden", "landlock"),
    "no-userns-enospc": ("`user.max_user_namespaces` is 0", "sysctl user.max_user_namespaces", "landlock"),
    "ubuntu-apparmor": ("user namespaces without power (Ubuntu 24.04's AppArmor)", "docs/how-to/hosts.md", "landlock"),
    "docker,landlock-abi=2": ("Docker's default profile, Landlock ABI 2 (Linux 5.19)", "docs/how-to/hosts.md", "landlock"),
    "docker,no-landlock-disabled": ("Docker's default profile, and no Landlock", "docs/how-to/hosts.md", None),
    "docker,no-seccomp": ("Docker's default profile, and no filters of one's own", "docs/how-to/hosts.md", "landlock"),
    "no-memfd": ("no `memfd_create`", "memfd_create", None),
    "no-pidfd": ("no `pidfd_open` (before Linux 5.3)", "pidfd_open", None),
    "no-clone3": ("no `clone3`", None, "namespaces"),
}

PROBE = """
import json, sys
import sandboxed_subprocess as sp
import warnings
found = {"warnings": []}
warnings.showwarning = lambda message, *_: found["warnings"].append(str(message))
for name, policy in (("workspace_write", sp.Policy.workspace_write(sys.argv[1])), ("read_only", sp.Policy.read_only())):
    for enforcement in ("strict", "best-effort"):
        try:
            result = sp.run(
                ["sh", "-c", f"echo x > {sys.argv[1]}/../outside; echo ran"], capture_output=True, text=True, cwd=sys.argv[1],
                policy=policy.replace(enforcement=enforcement),
            )
        except sp.SandboxUnavailable as error:
            found[f"{name}, {enforcement}"] = ["refused", error.reasons, error.advice, str(error)]
        else:
            report = result.sandbox
            found[f"{name}, {enforcement}"] = [report.enforcement.name, report.backend, report.gaps, result.stdout]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def rows():
    return {}


@pytest.fixture(autouse=True)
def capable():
    """The lacks are simulated: what is not taken away has to be here."""
    needs("namespaces", "HOST_FIFOS", "UNIX_SOCKETS", "ABSTRACT_SOCKETS", "SYSTEM_CALLS")


def probe(lack, ws):
    result = subprocess.run(
        [sys.executable, DEGRADE, lack, "--", sys.executable, "-c", PROBE, ws],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    found = json.loads(result.stdout)
    gaps = {tuple(outcome[2]) for name, outcome in found.items() if name != "warnings" and outcome[0] == "PARTIAL"}
    # Once in each process, however often it runs something.
    assert sorted(found.pop("warnings")) == sorted(f"enforcement='best-effort': run without: {'; '.join(g)}" for g in gaps)
    return found


@pytest.mark.parametrize("lack", HOSTS)
def test_a_poorer_host(lack, ws, place, rows):
    """Strict refuses by name, with a way out, and nothing has run; what best-effort runs still cannot write outside."""
    words = HOSTS[lack][1]
    for name, found in probe(lack, ws).items():
        if found[0] == "refused":
            assert words is not None and words in found[3], found[3]
            # Never to turn the protection off. ("unconfined" is what AppArmor calls a profile that adds a right.)
            assert "=unconfined" not in found[3] and "--privileged" not in found[3] and "danger-full" not in found[3]
            assert set(found[1]) == {"namespaces", "bubblewrap", "landlock"}, "every tier has its reason"
            assert found[2], "no way out is named"
        else:
            assert found[0] == ("FULL" if "strict" in name or words is None else "PARTIAL")
            assert found[1] == HOSTS[lack][2] and found[3] == "ran\n" and bool(found[2]) == (found[0] == "PARTIAL")
        assert not (place / "outside").exists()
    found = probe(lack, ws)
    assert (found["workspace_write, strict"][0] == "refused") == (words is not None)
    assert (found["workspace_write, best-effort"][0] == "refused") == (HOSTS[lack][2] is None)


def without(tier, gaps):
    """What is missing besides what the tier never has, which a table of its own says."""
    never = {feature.value for feature in INHERENT} if tier == "landlock" else set()
    rest = [gap for gap in gaps if gap not in never]
    if not gaps:
        return ", everything"
    return ", what it has" + (f", but for: {'; '.join(rest)}" if rest else "") if never else f", without: {'; '.join(rest)}"


def test_the_table_of_hosts_is_that_of_the_documents(ws):
    """Whoever reads it can rely on it: it is made by running this."""
    head, _, rest = SUPPORT.read_text().partition("<!-- made by tests/platforms/test_hosts.py -->\n")
    lines = ["| host | `strict` (the default) | `best-effort` |", "|---|---|---|"]
    for lack, (title, _, _) in HOSTS.items():
        found = probe(lack, ws)["workspace_write, strict"], probe(lack, ws)["workspace_write, best-effort"]
        strict = "refused" if found[0][0] == "refused" else f"`{found[0][1]}`, everything"
        loose = "refused" if found[1][0] == "refused" else f"`{found[1][1]}`{without(found[1][1], found[1][2])}"
        lines.append(f"| {title} | {strict} | {loose} |")
    table = "\n".join(lines) + "\n"
    if os.environ.get("SANDBOX_WRITE_SUPPORT"):
        _, _, after = rest.partition("<!-- end -->\n")
        SUPPORT.write_text(f"{head}<!-- made by tests/platforms/test_hosts.py -->\n{table}<!-- end -->\n{after}")
    assert table in SUPPORT.read_text()
