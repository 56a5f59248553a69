"""Run commands that nobody has read: `subprocess`, in the tightest sandbox the host offers.

import sandboxed_subprocess as subprocess
"""

import importlib as _importlib
import sys

if sys.argv[:1] == ["-m"] and "sandboxed_subprocess" in sys.orig_argv and not getattr(sys.flags, "safe_path", False):
    # `python -m sandboxed_subprocess`: the current directory, which commands write to, must not supply our imports.
    # (A directory of our own name there would have been imported in our place; the script `sandboxed-subprocess` has no
    # such weakness, which is why it is the one in the documents.)
    del sys.path[0]

import subprocess as _stdlib
import types as _types
import typing as _typing
from subprocess import DEVNULL, PIPE, STDOUT, CalledProcessError, SubprocessError, TimeoutExpired, list2cmdline

from . import danger
from ._errors import (
    CommandRejected,
    LimitExceeded,
    PolicyError,
    RulesError,
    SandboxError,
    SandboxSetupError,
    SandboxUnavailable,
)
from ._outcome import CompletedProcess
from ._policy import Environment, Glob, Limits, Policy
from ._popen import (
    Popen,
    call,
    check_call,
    check_output,
    getoutput,
    getstatusoutput,
    run,
)
from ._prepare import SandboxWarning, default_policy, set_default_policy
from ._report import Enforcement, Progress, Report, Usage, Violation
from ._version import __version__
from .network._rules import NetworkRule, network_rule

# The stdlib's names first. Nothing comes in by a star: a spawner that a later CPython adds must not arrive unsandboxed.
__all__ = [
    "Popen", "PIPE", "STDOUT", "call", "check_call", "getstatusoutput", "getoutput", "check_output", "run",
    "CalledProcessError", "DEVNULL", "SubprocessError", "TimeoutExpired", "CompletedProcess",
    "CommandRejected", "Enforcement", "Environment", "Glob", "LimitExceeded", "Limits", "NetworkRule", "Policy",
    "PolicyError", "Progress", "Report", "RulesError", "SandboxError", "SandboxSetupError", "SandboxUnavailable",
    "SandboxWarning", "Usage", "Violation", "default_policy", "network_rule", "set_default_policy",
]  # fmt: skip

if _typing.TYPE_CHECKING:
    from . import aio
    from ._debug import check_command
    from ._selftest import self_test
    from .aio import create_subprocess_exec, create_subprocess_shell
    from .commands import (
        Answer,
        ApprovalRequest,
        Evaluation,
        ExecPolicy,
        TrustStore,
        approve_all_for_tests,
        approve_on_terminal,
        exact_rule,
        host_executable,
        prefix_rule,
    )

if _typing.TYPE_CHECKING and sys.platform == "win32":
    from subprocess import (
        ABOVE_NORMAL_PRIORITY_CLASS,
        BELOW_NORMAL_PRIORITY_CLASS,
        CREATE_BREAKAWAY_FROM_JOB,
        CREATE_DEFAULT_ERROR_MODE,
        CREATE_NEW_CONSOLE,
        CREATE_NEW_PROCESS_GROUP,
        CREATE_NO_WINDOW,
        DETACHED_PROCESS,
        HIGH_PRIORITY_CLASS,
        IDLE_PRIORITY_CLASS,
        NORMAL_PRIORITY_CLASS,
        REALTIME_PRIORITY_CLASS,
        STARTF_USESHOWWINDOW,
        STARTF_USESTDHANDLES,
        STARTUPINFO,
        STD_ERROR_HANDLE,
        STD_INPUT_HANDLE,
        STD_OUTPUT_HANDLE,
        SW_HIDE,
    )

# Windows constants and STARTUPINFO: values and classes, nothing that spawns.
for _name in _stdlib.__all__:
    _value = getattr(_stdlib, _name)
    if _name not in __all__ and (isinstance(_value, int) or _name == "STARTUPINFO"):
        globals()[_name] = _value
        __all__.append(_name)

# Command rules come when they are asked for: they are no part of the import.
_COMMANDS = frozenset(
    "Answer ApprovalRequest Evaluation ExecPolicy TrustStore approve_all_for_tests approve_on_terminal exact_rule"
    " host_executable prefix_rule".split()
)

if not _typing.TYPE_CHECKING:
    # What else the stdlib module holds, which its users' tests reach for: private names and modules, never a public
    # callable. Hidden from type checkers, to which a wrong name must stay one.
    _borrowed = {
        _name
        for _name, _value in vars(_stdlib).items()
        if (_name.startswith("_") and not _name.startswith("__")) or isinstance(_value, _types.ModuleType)
    } - globals().keys()
    globals().update({_name: getattr(_stdlib, _name) for _name in _borrowed})

    class _Module(_types.ModuleType):
        """The asynchronous side comes when it is asked for: asyncio is no part of the import.

        Setting or deleting a borrowed name does it to the stdlib module too, since ours is its Popen:
        `mock.patch("subprocess._fork_exec")` works as ever."""

        def __getattr__(self, name: str) -> object:
            if name == "self_test":
                return _importlib.import_module(f"{__name__}._selftest").self_test
            if name == "check_command":
                return _importlib.import_module(f"{__name__}._debug").check_command
            if name in _COMMANDS:
                return getattr(_importlib.import_module(f"{__name__}.commands"), name)
            if name not in ("aio", "create_subprocess_exec", "create_subprocess_shell"):
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            # By name: a "from . import aio" would ask here again.
            aio = _importlib.import_module(f"{__name__}.aio")
            return aio if name == "aio" else getattr(aio, name)

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name in _borrowed:
                setattr(_stdlib, name, value)

        def __delattr__(self, name: str) -> None:
            super().__delattr__(name)
            if name in _borrowed:
                delattr(_stdlib, name)

    sys.modules[__name__].__class__ = _Module

del _name, _value
