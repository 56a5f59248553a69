"""`doctor`: what works on this machine, what does not, why, and what to do."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import warnings
from typing import Any

from .. import _backends
from .._errors import Missing, SandboxError
from .._plan import Feature, required_features
from .._policy import Policy
from .._prepare import SandboxWarning
from .._selftest import self_test
from .._version import __version__
from . import table


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def _rules() -> str:
    """What of the command rules works here."""
    missing = [name for name in ("starlark", "tree_sitter", "tree_sitter_bash") if importlib.util.find_spec(name) is None]
    if not missing:
        return "rules files can be read, scripts taken apart"
    what = "rules files cannot be read" if "starlark" in missing else "scripts cannot be taken apart, so all are asked for"
    return f"{what} (no {', '.join(missing)}): pip install 'sandboxed-subprocess[rules]'"


def _facts() -> dict[str, str]:
    facts = {
        "sandboxed_subprocess": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "command rules": _rules(),
        "user": str(os.geteuid()) if hasattr(os, "geteuid") else "",
    }
    if sys.platform == "linux":
        from .._backends._landlock import landlock

        found = landlock()
        from .._backends import _groups

        place = _groups.place()
        held = place is not None and place.holds
        facts["control groups"] = f"below {place.path}" if place is not None and held else f"none ({_groups.why_not()})"
        facts["landlock"] = f"ABI {found.abi}" + (f" ({found.missing})" if found.missing else "")
        for name, path in (
            ("user namespaces", "/proc/sys/user/max_user_namespaces"),
            ("unprivileged_userns_clone", "/proc/sys/kernel/unprivileged_userns_clone"),
            ("apparmor_restrict_unprivileged_userns", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        ):
            value = _read(path)
            if value is not None:
                facts[name] = value
    return facts


def _tried(backend: str) -> dict[str, Any]:
    """What `self_test` says of a backend: canaries for everything that it promises here, really tried."""
    policy = Policy.workspace_write(backend=backend, enforcement="best-effort")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SandboxWarning)
            return self_test(policy).to_dict()
    except (SandboxError, OSError) as error:
        return {"ok": None, "checks": [], "error": str(error)}


def examine() -> dict[str, Any]:
    """Plain data: facts, and for each backend what it can enforce here or why it cannot work."""
    backends: dict[str, Any] = {}
    for name in _backends.names():
        found = _backends.detect(name)
        if isinstance(found, Missing):
            backends[name] = {"works": False, "reason": found.reason, "advice": found.advice}
        else:
            backends[name] = {
                "self_test": _tried(name),
                "works": True,
                "features": sorted(f.name for f in found.features),
                "missing": {f.name: found.why_not.get(f, "not yet in this version") for f in Feature if f not in found.features},
            }
    presets = {}
    for name, policy in (("workspace-write", Policy.workspace_write(os.path.expanduser("~"))), ("read-only", Policy.read_only())):
        try:
            presets[name] = _backends.choose(required_features(policy))[0].name
        except Exception as error:
            presets[name] = f"refused: {error}"
    return {"facts": _facts(), "backends": backends, "presets": presets}


def main(*, json_output: bool = False) -> int:
    """Prints it; 0 if the presets can be enforced in full here, and nothing got through in the self-tests; else 1."""
    found = examine()
    healthy = not any(value.startswith("refused") for value in found["presets"].values())
    # A backend that promises what it does not hold is worse than none.
    healthy = healthy and not any(b["works"] and b["self_test"]["ok"] is False for b in found["backends"].values())
    if json_output:
        print(json.dumps(found, indent=2))
        return 0 if healthy else 1
    print(table(("what", "found"), list(found["facts"].items())))
    print()
    rows = []
    for name, backend in found["backends"].items():
        if not backend["works"]:
            rows.append((name, "no", backend["reason"]))
            if backend["advice"]:
                rows.append(("", "", f"What to do: {backend['advice']}"))
            continue
        tried = backend["self_test"]
        verdict = {True: "self-test: everything held", False: "SELF-TEST: SOMETHING GOT THROUGH"}
        rows.append((name, "yes", verdict.get(tried["ok"], f"self-test: not possible ({tried.get('error')})")))
        checks = {check["feature"]: check for check in tried["checks"]}
        for feature in Feature:
            if feature.name in backend["features"]:
                check = checks.get(feature.name, {"holds": None})
                how = {True: ", tried", False: f": GOT THROUGH: {check.get('detail')}"}.get(check["holds"], "")
                rows.append(("", "yes" if check["holds"] is not False else "NO", feature.value + how))
        rows += [("", "no", f"{Feature[f].value}: {why}") for f, why in backend["missing"].items()]
    if not rows:
        rows.append(("-", "no", f"there is no backend for {sys.platform} yet"))
    print(table(("backend", "works", "what"), rows))
    print()
    print(table(("preset", "enforced by"), list(found["presets"].items())))
    return 0 if healthy else 1
