"""Rules files: Starlark, read by the library that others read it by too (`starlark-pyo3`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Union

from .._errors import PolicyError, RulesError
from ..network._rules import NetworkRule, network_rule
from ._rules import CommandRule, HostExecutable, exact_rule, host_executable, prefix_rule

Rule = Union[CommandRule, NetworkRule, HostExecutable]

# A file of rules is short. Starlark has no recursion and no endless loops, but `range()` can be long.
_SECONDS = 5.0
_MOST = 4 << 20  # bytes

# The names are functions of Starlark, which know from where they are called; those that they call are ours and do not.
_PRELUDE = "".join(
    f"def {name}(*args, **named):\n    _{name}(call_stack(strip_frames = 1), *args, **named)\n"
    for name in ("prefix_rule", "exact_rule", "network_rule", "host_executable")
)
_FRAME = re.compile(r"^  \* (.*):([0-9]+), in ", re.MULTILINE)
_ARROW = re.compile(r"^ *--> (.*):([0-9]+):[0-9]+$", re.MULTILINE)


def read_rules(text: str, name: str) -> tuple[Rule, ...]:
    """The rules that a file's text makes, in its order.

    Raises:
        RulesError: the text is not Starlark, or a rule cannot be, or an example fails. Then none of them count.
    """
    try:
        import starlark
    except ImportError as error:
        raise PolicyError(f"rules files are Starlark: pip install 'sandboxed-subprocess[rules]' ({error})") from None
    if len(text) > _MOST:
        raise RulesError(f"{name}: {len(text)} characters are no file of rules", name)
    rules: list[Rule] = []
    failed: list[BaseException] = []

    def made(make: Callable[..., Rule], keyword: str) -> Callable[..., None]:
        def call(stack: str, *args: Any, **named: Any) -> None:
            line = int(frames[-1][1]) if (frames := _FRAME.findall(stack)) else None
            source = f"{name}:{line}" if line else name
            try:
                rules.append(make(*args, **named, source=source))
            except RulesError as error:
                error.file, error.line = name, line
                failed.append(error)
                raise
            except (PolicyError, TypeError) as error:
                # The function is ours; what the message says of it is what the file's author calls it by.
                failed.append(RulesError(f"{source}: {str(error).removeprefix('_rules.')}", name, line, keyword))
                raise
            except BaseException as error:
                failed.append(error)
                raise

        return call

    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    dialect.enable_load = False  # a file says all that it says
    module = starlark.Module()
    for keyword, make in _MAKERS.items():
        module.add_callable(f"_{keyword}", made(make, keyword))
    library = starlark.Globals.extended_by([starlark.LibraryExtension.CallStack])
    starlark.eval(module, starlark.parse("<rules>", _PRELUDE, dialect), library)
    end = time.monotonic() + _SECONDS
    options = starlark.EvalOptions(check_cancelled=lambda: time.monotonic() > end, max_callstack_size=100)
    try:
        starlark.eval_with(options, module, starlark.parse(name, text, dialect), library)
    except starlark.StarlarkError as error:
        if failed:
            raise failed[0] from None
        raise _error(str(error), name) from None
    if failed:
        raise failed[0]
    return tuple(rules)


def _error(message: str, name: str) -> RulesError:
    place = _ARROW.search(message)
    line = int(place[2]) if place else None
    lines = [part for part in message.splitlines() if part.startswith("error: ")]
    what = lines[0].removeprefix("error: ") if lines else message.strip()
    return RulesError(f"{name}:{line}: {what}" if line else f"{name}: {what}", name, line)


def _network(*args: Any, source: str | None = None, **named: Any) -> NetworkRule:
    """`network_rule`, whose data does not say where it comes from. Other tools have the protocol in the second place."""
    if len(args) > 1 and isinstance(args[1], str):
        return network_rule(args[0], named.pop("port", None), *args[1:], **named)
    return network_rule(*args, **named)


_MAKERS: dict[str, Callable[..., Rule]] = {
    "prefix_rule": prefix_rule,
    "exact_rule": exact_rule,
    "network_rule": _network,
    "host_executable": host_executable,
}
