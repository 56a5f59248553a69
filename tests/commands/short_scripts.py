"""Every script of three pieces, with a command behind it, in a real shell with stubs for programs: what runs has to be among what was
found. What the grammar and a shell read differently shows in a few characters; random scripts rarely put the right ones together.

    python tests/commands/short_scripts.py [SHELL] [PART OF]

The whole takes ten minutes or so for each shell; the tests take a part. Ends with 1 if anything was found.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator

PIECES = [
    *"01a <>&|;(){}!=$'\"\\`\n\t-#~*[]A/:%^@?+,", "ls", "if", "do", "{v}", "<<", "&&", "time", "\\\n", "<E", "$(", "$'", "\nE\n",
]  # fmt: skip
BEFORE = (
    "0", "1", "00", "12", "{v}", "{v[0]}", "a 0", "A=1 0", "0\\\n", "\\\n0", "'0'", "\\0", '"x"0', "$x0", "x0", "`ls`0", ">f 0", "<<<a 0",
    "(ls) 0", "{ ls; } 0", "if ls; then ls; fi 0", "f() { ls; } 0", "! 0", "time 0", "env 0", "A=0", "A=", "A=$", "; 0", "|| 0", "| 0", "&& 0",
    "ls & 0", "$(0", "0\\", "$",
)  # fmt: skip
OPERATORS = ("<f ", ">f ", ">>f ", "<<<f ", "<&1 ", ">&1 ", ">|f ", "<>f ", "&>f ", "&>>f ", "<(ls) ", "<<E ", "<&- ", ">& - ", "\\\n<f ", ">$ ", " ")


def redirections() -> Iterator[str]:
    for before, operator, head, tail in itertools.product(BEFORE, OPERATORS, ("", "ls ", "ls; "), ("rm x", "A=1 rm x", "if rm")):
        yield head + before + operator + tail + ("\nE\n" if "<<E" in operator else "")


def short(part: int, of: int) -> Iterator[str]:
    for pieces in itertools.islice(itertools.product(PIECES, repeat=3), part, None, of):
        text = "".join(pieces)
        yield from (text + " rm x", text + "rm x", "ls " + text + " rm x", "ls" + text + "rm x")


def main(shell: str, part: int, of: int) -> int:
    here = pathlib.Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parent), str(here.parent / "helpers")]
    import test_differential
    from stub_shell import Shell

    place = pathlib.Path(tempfile.mkdtemp(prefix="ss-test-", dir="/srv" if os.geteuid() == 0 else os.path.expanduser("~")))
    place.chmod(0o755)
    looked = compared = wrong = 0
    try:
        real = Shell(place, shell)
        for text in itertools.chain(redirections() if part == 0 else (), short(part, of)):
            # Where $'...' is none, its word begins with a dollar and means nothing; it is read as bash reads it.
            said = test_differential.check_one(real, re.sub(r"\$+'", "'", text) if shell in ("sh", "dash") else text)
            looked += 1
            compared += said is not None
            if said:
                wrong += 1
                print(said, flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"{shell}: {looked} scripts, {compared} of them run, {wrong} wrong")
    return 1 if wrong or not compared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "bash", *map(int, sys.argv[2:4] or ("0", "1"))))
