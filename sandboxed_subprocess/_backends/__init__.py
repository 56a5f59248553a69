"""The backends: which there are, which work here, and which one a plan gets.

To add one: write a module with `detect()`, which returns a working `Backend` or raises `Missing(reason)`, and name it
in `PREFERENCE`. A backend has `features` and `wrap(plan)`; it rewrites, it never spawns.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from typing import TYPE_CHECKING, Protocol

from .._errors import Missing, PolicyError, SandboxUnavailable
from .._plan import Feature, Plan
from .._report import Enforcement, Report

if TYPE_CHECKING:
    from .._launch import Launch


class Backend(Protocol):
    """What enforces plans.

    Attributes:
        name: as in `PREFERENCE` and `Report.backend`.
        kind: what the marker …_TYPE says.
        features: what it can enforce on this host.
        why_not: reasons for features that it lacks here.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def features(self) -> frozenset[Feature]: ...
    @property
    def why_not(self) -> dict[Feature, str]: ...
    def wrap(self, plan: Plan, report: Report) -> Launch: ...


PREFERENCE: dict[str, dict[str, str]] = {
    "linux": {"namespaces": "linux_namespaces", "bubblewrap": "linux_bubblewrap", "landlock": "linux_landlock"},
    "darwin": {},
    "win32": {},
}

if sys.platform == "linux":
    # For the backend, which is imported at the first call: by then the caller may be in a directory that is gone, where
    # some versions of Python cannot import this one (3.13.0: "error return without exception set").
    import socket  # noqa: F401

    # And these: by then this package may be in the stdlib module's place, in sys.modules.
    import subprocess

    DEVNULL, PIPE = subprocess.DEVNULL, subprocess.PIPE
    StdlibPopen, TimeoutExpired = subprocess.Popen, subprocess.TimeoutExpired

    from . import _descriptors  # noqa: F401  # which are there from the import on

# Imported where they are used, which keeps the import of the package short; but before the first command at the latest:
# afterwards "import json" could find a file that the command has put into the current directory.
_TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"
_LATER = ("json", "dataclasses", "difflib", "fnmatch", "grp", "psutil", "tomli_w", _TOML)

_lock = threading.Lock()
_found: dict[str, Backend | Missing] = {}
_chosen: dict[tuple[object, ...], tuple[Backend, tuple[str, ...]]] = {}


def detect(name: str) -> Backend | Missing:
    """The backend, or why it does not work here. Tried once in each process."""
    known = _found.get(name)
    if known is None:
        with _lock:
            known = _found.get(name)
            if known is None:
                for later in _LATER:
                    # One that is not installed is missed where it is used, if it ever is.
                    with contextlib.suppress(ImportError):
                        importlib.import_module(later)
                module = importlib.import_module(f".{PREFERENCE[sys.platform][name]}", __name__)
                try:
                    known = module.detect()
                except Missing as missing:
                    known = missing
                    if missing.transient:
                        return missing
                _found[name] = known
    return known


def names() -> tuple[str, ...]:
    return tuple(PREFERENCE.get(sys.platform, {}))


def choose(features: frozenset[Feature], *, forced: str | None = None, strict: bool = True) -> tuple[Backend, Report]:
    """The backend for what a policy needs, and a report that says what will be missing.

    Raises:
        PolicyError: `forced` is not a backend of this platform.
        SandboxUnavailable: nothing here works; or, if `strict`, nothing here has every feature.
    """
    known = _chosen.get((features, forced, strict, *_found.values()))
    if known is None:
        if forced is not None and forced not in names():
            raise PolicyError(f"backend={forced!r}: on this platform there are {', '.join(names()) or 'none'}")
        known, passing = _choose(features, forced, strict)
        if not passing:
            if len(_chosen) > 256:
                _chosen.clear()
            key = (features, forced, strict, *_found.values())
            _chosen[key] = known
    backend, gaps = known
    if gaps:
        return backend, Report(backend=backend.name, enforcement=Enforcement.PARTIAL, gaps=gaps)
    return backend, Report(backend=backend.name, enforcement=Enforcement.FULL)


def _choose(features: frozenset[Feature], forced: str | None, strict: bool) -> tuple[tuple[Backend, tuple[str, ...]], bool]:
    """The backend and what people are told will be missing; and whether one was left out for a reason that may pass."""
    passing = False
    reasons: dict[str, str] = {}
    advice = ""
    best: tuple[int, Backend, frozenset[Feature]] | None = None
    for name in (forced,) if forced else names():
        backend = detect(name)
        if isinstance(backend, Missing):
            passing |= backend.transient
            reasons[name] = backend.reason
            advice = advice or backend.advice
            continue
        gaps = features - backend.features
        if not gaps:
            return (backend, ()), passing
        ordered = sorted(gaps, key=lambda f: f.name)
        reasons[name] = "cannot enforce " + ", ".join(
            f.value + (f" ({backend.why_not[f]})" if f in backend.why_not else "") for f in ordered
        )
        if best is None or len(gaps) < best[0]:
            best = (len(gaps), backend, gaps)
    if not reasons:
        reasons[sys.platform] = "no backend for this platform yet"
    if best is None or strict:
        if best is not None:
            advice = advice or (
                "Remove what cannot be enforced from the policy; enforcement='best-effort' runs without it and reports the gap"
            )
        raise SandboxUnavailable(reasons, advice)
    return (best[1], tuple(sorted(f.value for f in best[2]))), passing
