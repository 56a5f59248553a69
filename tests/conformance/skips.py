"""Tests of CPython's own suite that cannot pass with this module in the place of `subprocess`, each with its reason.

`Class.test`, or `*.test` for every class. WORKSPACE holds for every restricting policy.
"""

from __future__ import annotations

BOTH: dict[str, str] = {
}

WORKSPACE = {
    "POSIXProcessTestCase.test_preexec": "os.putenv() in preexec_fn: the command's environment is a snapshot, taken before",
    "POSIXProcessTestCase.test_exception_errpipe_normal": (
        "forges an exec failure of the only program that the stdlib executes here, which is the launcher"
    ),
    "POSIXProcessTestCase.test_close_fds": "close_fds=False: under a restricting policy only pass_fds are inherited",
}


def reason(test_id: str, policy: str) -> str | None:
    """Why a test (`module.Class.test`) is left out under a policy, or None."""
    class_name, name = test_id.split(".")[-2:]
    found = BOTH if policy == "danger-full-access" else {**BOTH, **WORKSPACE}
    return found.get(f"{class_name}.{name}") or found.get(f"*.{name}")
