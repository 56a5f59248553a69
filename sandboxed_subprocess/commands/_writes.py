"""Commands that by nature write: what `upgrade_to` is for."""

from __future__ import annotations

import re

from ._evaluate import Evaluation
from ._identity import families
from ._rules import bare_name

_ALWAYS = frozenset(
    """mkdir touch cp mv ln rm rmdir unlink install chmod chown chgrp truncate tee dd mktemp mkfifo mknod rsync scp patch unzip zip gzip
    gunzip bzip2 xz zstd cmake ninja make meson bazel gradle gradlew mvn ant sbt tsc webpack vite rollup esbuild black isort prettier
    autopep8 gofmt rustfmt clang-format rename shred split csplit wget apt apt-get dnf yum apk brew pacman bundle composer""".split()
)
_VERBS = {
    "git": """add am apply bisect branch checkout cherry-pick clean clone commit config fetch gc init merge mv notes prune pull push rebase
    remote repack reset restore revert rm stash submodule switch tag update-index update-ref worktree""",
    "npm": "install i ci add uninstall remove rm update up dedupe prune link rebuild init create version pack audit run run-script test",
    "pnpm": "install i add remove rm update up dedupe prune link rebuild init create run test build",
    "yarn": "install add remove upgrade up link init create run build test",
    "bun": "install add remove update link init create run build", "pip": "install uninstall download wheel",
    "uv": "sync add remove lock pip venv init run build tool", "poetry": "install add remove update lock init build run",
    "pdm": "install add remove update lock init build sync", "hatch": "build run env new", "pipenv": "install uninstall lock sync update",
    "conda": "install create remove update env", "cargo": """build b check c test t bench run r add remove rm fix fmt install uninstall new init
    update clean clippy doc fetch vendor generate-lockfile package""", "go": "build get install mod generate fmt test run work clean vet fix",
    "dotnet": "build restore test publish add remove new run clean pack", "rustup": "install update toolchain target component default",
    "docker": "build compose pull", "terraform": "init apply fmt import", "ruff": "format check", "python": "-m", "tox": "", "nox": "",
    "jj": "commit new describe squash git", "hg": "commit add update pull clone merge", "svn": "commit update checkout add",
}  # fmt: skip
_TABLE = {name: frozenset(verbs.split()) for name, verbs in _VERBS.items()}


def writes(evaluation: Evaluation) -> bool:
    """Whether something in a command is there to write files."""
    return any(_part(part.argv) for part in evaluation.parts)


def _part(argv: tuple[str, ...]) -> bool:
    if argv[:1] == (">",):
        return True
    names = families(bare_name(argv[0])) if argv else ()
    if any(name in _ALWAYS for name in names):
        return True
    for name in names:
        verbs = _TABLE.get(name)
        if verbs is None:
            continue
        if name == "python":
            return argv[1:3] in (("-m", "venv"), ("-m", "build"), ("-m", "compileall")) or (
                argv[1:3] == ("-m", "pip") and any(word in _TABLE["pip"] for word in argv[3:])
            )
        plain = [word for word in argv[1:] if not word.startswith(("-", "+"))]
        if name == "git" and plain[:1] in (["branch"], ["tag"], ["stash"], ["remote"], ["config"], ["worktree"], ["notes"]):
            return plain[1:2] not in ([], ["list"], ["show"], ["get-url"]) or plain == ["stash"]
        # Behind a global option stands a value that is no verb: git -C dir commit.
        return not verbs or any(word in verbs for word in plain[:3])
    if "sed" in names or "perl" in names:
        return any(re.match(r"-[a-zA-Z]*i|--in-place", word) for word in argv[1:])
    if "tar" in names:
        return any(re.match(r"-{0,2}[a-zA-Z]*x|--extract|--get|-{0,2}[a-zA-Z]*c|--create", word) for word in argv[1:2])
    if "curl" in names:
        return any(re.match(r"-[a-zA-Z]*[oO]|--output|--remote-name", word) for word in argv[1:])
    return False
