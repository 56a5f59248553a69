"""Keywords that do not choose the type of a result, and what may be a command. For type checkers only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, Any, Union

from typing_extensions import TypedDict

from ._policy import Policy

StrOrBytesPath = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Argv = Union[StrOrBytesPath, Sequence[StrOrBytesPath]]
File = Union[None, int, IO[Any]]
if sys.platform == "win32":
    Env = Mapping[str, str]
else:
    Env = Union[Mapping[bytes, StrOrBytesPath], Mapping[str, StrOrBytesPath]]


class Options(TypedDict, total=False):
    """For `check_output`, which has the stdout for itself."""

    executable: StrOrBytesPath | None
    stdin: File
    stderr: File
    preexec_fn: Callable[[], object] | None
    close_fds: bool
    shell: bool
    cwd: StrOrBytesPath | None
    env: Env | None
    startupinfo: Any
    creationflags: int
    restore_signals: bool
    start_new_session: bool
    pass_fds: Collection[int]
    user: str | int | None
    group: str | int | None
    extra_groups: Iterable[str | int] | None
    umask: int
    pipesize: int
    process_group: int | None
    policy: Policy | str | None


class PopenOptions(Options, total=False):
    stdout: File


class AnyOptions(PopenOptions, total=False):
    """For functions whose result is a number whatever the streams are."""

    text: bool | None
    encoding: str | None
    errors: str | None
    universal_newlines: bool | None
