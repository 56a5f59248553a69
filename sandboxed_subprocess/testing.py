"""For tests, ours and our users': gates by capability, and a backend that records instead of sandboxing."""

from __future__ import annotations

import os

from . import _backends
from ._errors import Missing, SandboxUnavailable
from ._plan import Feature, compile_view
from ._policy import Policy

__all__ = ["enforceable", "missing", "must_work", "needs"]


def must_work() -> frozenset[str]:
    """Names in MUST_WORK: what this machine is known to offer, so that its absence is a failure and not a skip."""
    return frozenset(os.environ.get("MUST_WORK", "").split())


def missing(name: str) -> str | None:
    """Why a backend ("namespaces") or a feature ("HOST_FIFOS") is not there, or None if it is."""
    if name in Feature.__members__:
        try:
            _backends.choose(frozenset({Feature[name]}))
        except SandboxUnavailable as error:
            return str(error)
        return None
    if name not in _backends.names():
        return f"no backend {name!r} on this platform"
    found = _backends.detect(name)
    return found.reason if isinstance(found, Missing) else None


def needs(*names: str) -> None:
    """Skips the calling test where a backend or feature is missing; fails it where MUST_WORK says that it is there."""
    import pytest

    for name in names:
        reason = missing(name)
        if reason is not None:
            (pytest.fail if name in must_work() else pytest.skip)(f"{name}: {reason}")


def enforceable(policy: Policy) -> str | None:
    """Why a policy would be refused on this host, or None if it would run."""
    try:
        _backends.choose(compile_view(policy).features)
    except SandboxUnavailable as error:
        return str(error)
    return None
