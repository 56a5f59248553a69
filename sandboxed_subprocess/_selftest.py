"""self_test: canaries for every feature that a policy is promised, run inside a real sandbox and looked at from outside."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._errors import SandboxError
from ._policy import Policy


class Check(NamedTuple):
    """One feature, tried.

    Attributes:
        feature: as in `Feature` ("WRITE_RULES").
        what: for a person.
        holds: None if it could not be tried; then `detail` says why.
        detail: what got through.
    """

    feature: str
    what: str
    holds: bool | None
    detail: str = ""


class SelfTest(NamedTuple):
    """What `self_test` found.

    Attributes:
        backend: which one ran it.
        checks: one for each feature that the policy was promised here.
        gaps: what the policy asks for and was not promised (`enforcement="best-effort"`).
    """

    backend: str
    checks: tuple[Check, ...]
    gaps: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing got through."""
        return all(check.holds is not False for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "ok": self.ok,
            "checks": [check._asdict() for check in self.checks],
            "gaps": list(self.gaps),
        }


def self_test(policy: Policy | None = None) -> SelfTest:
    """Tries to break out of a policy, and says what held.

    Args:
        policy: what to try; by default `workspace_write()`. A directory made for the purpose is added to it, with what the
            attempts need, and removed afterwards. It takes some tenths of a second.

    Raises:
        SandboxError: as for `run()` with this policy; or there is no place to try it.
    """
    if policy is None:
        policy = Policy.workspace_write()
    if policy.unconfined:
        raise SandboxError("self_test: policy='danger-full-access' promises nothing that could be tried")
    if sys.platform != "linux":
        raise SandboxError(f"self_test: there is no backend for {sys.platform} yet")
    from . import _canaries

    backend, found, gaps = _canaries.try_out(policy)
    return SelfTest(backend, tuple(Check(*item) for item in found), gaps)
