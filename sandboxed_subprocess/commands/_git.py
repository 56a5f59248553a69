"""git, whose options and subcommands run what they are given."""

from __future__ import annotations

import re

from ._opened import Opened, Words, handles, run_joined, run_script
from ._tools import long_options
from ._words import MANY, Dynamic, Word

GIT_COMMANDS = frozenset(
    """add am annotate apply archive bisect blame branch bugreport bundle cat-file check-attr check-ignore check-mailmap
    check-ref-format checkout checkout-index cherry cherry-pick citool clean clone column commit commit-graph commit-tree config
    count-objects credential credential-cache credential-store daemon describe diagnose diff diff-files diff-index diff-tree difftool
    fast-export fast-import fetch fetch-pack filter-branch fmt-merge-msg for-each-ref for-each-repo format-patch fsck gc
    get-tar-commit-id grep gui hash-object help hook imap-send index-pack init init-db instaweb interpret-trailers log ls-files
    ls-remote ls-tree mailinfo mailsplit maintenance merge merge-base merge-file merge-index merge-octopus merge-one-file merge-ours
    merge-recursive merge-resolve merge-subtree merge-tree mergetool mktag mktree multi-pack-index mv name-rev notes p4 pack-objects
    pack-redundant pack-refs patch-id prune prune-packed pull push quiltimport range-diff read-tree rebase receive-pack reflog refs
    remote repack replace replay request-pull rerere reset restore rev-list rev-parse revert rm send-email send-pack shortlog show
    show-branch show-index show-ref sparse-checkout stage stash status stripspace submodule subtree switch symbolic-ref tag
    unpack-file unpack-objects update-index update-ref update-server-info upload-archive upload-pack var verify-commit verify-pack
    verify-tag version whatchanged worktree write-tree backfill survey""".split()
)
_GIT_KEYS = re.compile(
    r"(?:color\.|user\.(?:name|email)(?==|$)|advice\.|log\.(?:date|decorate|abbrevcommit)|diff\.(?:renames|context|noprefix|mnemonicprefix"
    r"|colormoved|algorithm|renamelimit)|core\.(?:quotepath|abbrev|autocrlf|safecrlf|filemode|precomposeunicode|ignorecase|longpaths"
    r"|preloadindex)|commit\.gpgsign=?(?:false)?$|tag\.gpgsign=?(?:false)?$|gc\.auto|init\.defaultbranch|pull\.(?:rebase|ff)"
    r"|merge\.(?:conflictstyle|ff)|rebase\.autostash|status\.|column\.|blame\.|grep\.|pager\.[a-z]+=false$|submodule\.recurse"
    r"|push\.default|fetch\.prune|protocol\.version|safe\.directory|http\.(?:version|postbuffer|lowspeed)|core\.pager=(?:cat|less)?$)",
    re.IGNORECASE,
)
_GIT_VALUED = frozenset("-C -c --git-dir --work-tree --namespace --super-prefix --config-env --exec-path --attr-source".split())
_GIT_FLAGS = frozenset(
    "-p --paginate -P --no-pager --no-replace-objects --bare --literal-pathspecs --glob-pathspecs --noglob-pathspecs"
    " --icase-pathspecs --no-optional-locks --no-lazy-fetch --no-advice".split()
)
_GIT_RUNNING = {
    "rebase": ("exec", "x"), "bisect": ("", ""), "clone": ("upload-pack config template server-option bundle-uri", "cu"),
    "fetch": ("upload-pack", ""), "pull": ("upload-pack", ""), "push": ("receive-pack exec", ""),
    "ls-remote": ("upload-pack exec", ""), "archive": ("remote exec", ""), "grep": ("open-files-in-pager", "O"),
    "difftool": ("extcmd tool", "xt"), "mergetool": ("tool", "t"), "filter-branch":
    ("env-filter tree-filter index-filter msg-filter commit-filter parent-filter tag-name-filter setup", ""),
    "send-email": ("smtp-server sendmail-cmd to-cmd cc-cmd header-cmd", ""), "instaweb": ("httpd browser", "db"),
    "diff": ("ext-diff", ""), "show": ("ext-diff", ""), "log": ("ext-diff", ""), "init": ("template", ""),
    "daemon": ("access-hook", ""), "help": ("", ""), "submodule": ("", ""), "config": ("edit", "e"), "hook": ("", ""),
    "am": ("", ""), "fetch-pack": ("upload-pack exec", ""), "send-pack": ("receive-pack exec", ""),
    "interpret-trailers": ("", ""), "credential": ("", ""), "remote": ("", ""),
}  # fmt: skip


_GIT_OUTPUT = frozenset("log diff show shortlog format-patch archive whatchanged range-diff".split())


@handles("git")
def _git(words: Words) -> Opened:
    out = Opened()
    i = 1
    harmless = True
    while i < len(words):
        word = words[i]
        if isinstance(word, Dynamic):
            out.problems.append(f"{word} may be what git does")
            return out
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        if (
            name in ("--version", "--help", "-h", "-v", "--html-path", "--man-path", "--info-path", "--list-cmds")
            or word == "--exec-path"
        ):
            return out
        if word in _GIT_FLAGS:
            i += 1
            continue
        if word.startswith("-c") and len(word) > 2 and not word.startswith("--"):
            out.code(i, "a setting for git")
            harmless = False
            i += 1
            continue
        if name not in _GIT_VALUED:
            out.problems.append(f"the option {word} of git")
            i += 1
            continue
        place = i if equals else i + 1
        given: Word = value if equals else (words[place] if place < len(words) else "")
        if name == "-c":
            if isinstance(given, Dynamic) or not _GIT_KEYS.match(given):
                out.code(place, f"the setting {given} for git")
                harmless = False
                alias = re.match(r"alias\.([^=]+)=(.*)", given, re.DOTALL | re.IGNORECASE)
                if alias and alias[2].startswith("!") and not isinstance(given, Dynamic):
                    run_script(out, alias[2][1:])
                elif alias and not isinstance(given, Dynamic):
                    out.spellings.append(((words[0], *alias[2].split(), *words[place + 2 :]), False))
        elif name in ("--exec-path", "--config-env", "--super-prefix", "--attr-source"):
            out.code(place, f"{name} of git")
            harmless = False
        elif isinstance(given, Dynamic) and given.many:
            out.problems.append(f"{given} may be what git does")
        i = place + 1
    if i > 1:
        out.spellings.append(((words[0], *words[i:]), harmless))
    if i >= len(words):
        return out
    verb = words[i]
    rest = words[i + 1 :]
    if verb not in GIT_COMMANDS:
        out.named(i, f"git {verb} is an alias or a program of its own")
        out.guarded = i + 1
    dangerous, short = _GIT_RUNNING.get(verb, ("", ""))
    for place in long_options(words, dangerous.split(), short, i + 1) if dangerous or short else ():
        out.code(min(place, len(words)), f"a command that git {verb} runs")
        if verb == "rebase" and place < len(words):
            run_script(out, words[place].partition("=")[2] if words[place].startswith("-") else words[place])
    output = verb in _GIT_OUTPUT
    for j, word in enumerate(rest, i + 1):
        if "ext::" in word and re.match(r"(?:--[\w-]+=)?ext::", word):
            out.code(j, "a command that git runs to connect")
        if output and word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            if len(option) > 3 and "output".startswith(option):
                out.writes.append(value if equals else (words[j + 1] if j + 1 < len(words) else MANY))
    if verb == "submodule" and "foreach" in rest:
        where = rest.index("foreach") + 1
        tail = [word for word in rest[where:] if word not in ("--recursive", "-q", "--quiet")]
        run_joined(out, tail)
        out.code(i + 2, "a command that git submodule runs")
    if verb == "hook":
        out.code(i + 1, "a hook")
    if verb == "bisect" and rest[:1] == ("run",):
        out.inner.append(rest[1:])
    if verb == "help" or (verb == "config" and any(re.match(r"alias\.|core\.(pager|editor|sshcommand|fsmonitor|hookspath|askpass)"
                                                            r"|.*\.(textconv|command|cmd|driver|clean|smudge|process|helper)$", word,
                                                            re.IGNORECASE) for word in rest)):  # fmt: skip
        out.guarded = len(words) if verb == "config" and len([w for w in rest if not w.startswith("-")]) > 1 else None
    return out
