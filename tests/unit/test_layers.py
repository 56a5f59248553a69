"""The architecture, as a test."""

from __future__ import annotations

import ast
import pathlib

import sandboxed_subprocess

PACKAGE = pathlib.Path(sandboxed_subprocess.__file__).parent
# Top to bottom. A module may import from layers below its own only; a package counts as one name, but for the rules.
LAYERS = [
    ["__init__", "__main__", "testing"],
    ["_cli"],
    ["_selftest", "_debug"],
    ["_canaries"],
    ["_popen", "aio"],
    ["_asyncio", "_trio"],
    ["_outcome"],
    ["_typing"],
    ["_prepare"],
    ["commands"],
    ["approvals"],
    ["_backends"],
    ["_native"],
    ["_output"],
    ["_launch"],
    ["_evidence"],
    ["_report"],
    ["_plan"],
    ["_environment", "_paths"],
    ["_policy"],
    ["danger"],
    ["evaluation"],
    ["commands._rules", "network._rules", "network"],
    ["commands._words"],
    ["_errors", "_fields", "_version"],
]
# Parts of a package that count as one name.
GROUPS = {
    "approvals": "_approval _approvers _trust _writes",
    "evaluation": "_execpolicy _starlark _evaluate _heuristics _programs _wrappers _interpreters _tools _git _opened _identity _shell",
}
GROUP = {f"commands.{module}": group for group, modules in GROUPS.items() for module in modules.split()}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layer(parts):
    joined = ".".join(parts[:2])
    joined = GROUP.get(joined, joined)
    return joined if joined in RANK else parts[0]


def relative_imports():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        here = parts if parts[-1] != "__init__" or len(parts) == 1 else parts[:-1]
        package = parts[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = package[: len(package) - node.level + 1]
            target = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                full = target or [alias.name]
                yield layer(list(here)), layer(full if target else [alias.name]), path.name


def test_every_import_points_down():
    """An upward import is the first sign that a decision is made in two places."""
    wrong = [f"{where}: {a} imports {b}" for a, b, where in relative_imports() if a != b and RANK[b] <= RANK[a]]
    assert wrong == []


def test_every_module_has_a_layer():
    """A new module has to say where it belongs."""
    modules = {layer(list(p.relative_to(PACKAGE).with_suffix("").parts)) for p in PACKAGE.rglob("*.py")}
    assert modules - set(RANK) == set()


def test_importing_the_package_loads_nothing_that_a_launch_does_not_need():
    """People import this in place of `subprocess`; libseccomp, psutil and a TOML parser can wait."""
    import subprocess
    import sys

    heavy = ("pyseccomp", "landlock", "psutil", "tomli_w", "tomllib", "asyncio", "argparse", "anyio", "sandboxed_subprocess.commands")
    code = f"import sandboxed_subprocess, sys; print([m for m in {heavy!r} if m in sys.modules and m not in START])"
    code = "import sys; START = set(sys.modules)\n" + code
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
