"""Names that loosen a sandbox. An import from here is the audit trail: `grep -r sandboxed_subprocess.danger`."""

from __future__ import annotations

from typing import Final


class Danger:
    """A named loosening. Compares and pickles by name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"danger.{self.name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Danger) and other.name == self.name

    def __hash__(self) -> int:
        return hash((Danger, self.name))

    def __reduce__(self) -> tuple[type[Danger], tuple[str]]:
        return Danger, (self.name,)


UNRESTRICTED_NETWORK: Final = Danger("UNRESTRICTED_NETWORK")
"""`Policy(network=UNRESTRICTED_NETWORK)`: the host's own network, every address and port of it."""

WRITABLE_INTERPRETER: Final = Danger("WRITABLE_INTERPRETER")
"""In `write=`: opens `sys.prefix` (so that `pip install` into the running environment works). What a command
writes there runs unsandboxed the next time the interpreter starts. This package itself stays read-only."""

ROOT_FILE_ACCESS: Final = Danger("ROOT_FILE_ACCESS")
"""In `write=`: root's command keeps the capabilities by which root owns every file (CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER; see
capabilities(7)), for a workspace that belongs to somebody else. It reads what any user may read, and inside the writable roots
whose file it is makes no difference; the roots, denials and everything else hold. Prefer `user=`. No effect where the command
does not run as root."""

ALL: Final = {d.name: d for d in (UNRESTRICTED_NETWORK, WRITABLE_INTERPRETER, ROOT_FILE_ACCESS)}
