"""What the rules say of a command: of each simple command in it, and so of the whole.

The decision is the most restrictive of all rules that match, over all parts. Rules that forbid match however a program is spelled;
rules that allow match the program that the caller's own PATH finds, and nothing else of that name.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._identity import Aliases, Directories, Program, families, identify, search_path, trusted
from ._programs import HANDLERS, SHELLS, Opened, Words
from ._rules import MAYBE, NO, YES, CommandRule, Decision, HostExecutable, bare_name, strictest
from ._shell import Simple, parse
from ._words import Dynamic, Word, text_of

if TYPE_CHECKING:
    from ._execpolicy import ExecPolicy

_DEEPEST = 16  # scripts in scripts
_MOST_PARTS = 4000

BUILTINS = frozenset(
    """. : [ alias bg bind break builtin caller cd command compgen complete compopt continue coproc declare dirs disown echo enable eval
    exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read readarray
    readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias unset wait""".split()
)
# Variables with which a program is made to run, load or read something else.
_INFLUENCE = [
    "PATH", "IFS", "ENV", "BASH_*", "SHELL", "SHELLOPTS", "BASHOPTS", "PS[0-9]", "PROMPT_COMMAND", "CDPATH", "LD_*", "DYLD_*", "GCONV_PATH",
    "GIT_*", "SSH_ASKPASS", "EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESS*", "*_PAGER", "*_EDITOR", "*_COMMAND", "*_ASKPASS",
    "PYTHON*", "PERL*", "RUBY*", "NODE_*", "npm_config_*", "NPM_CONFIG_*", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS",
    "MAVEN_OPTS", "CLASSPATH", "LUA_*", "PHP_INI_SCAN_DIR", "PHPRC", "AWKPATH", "AWKLIBPATH", "MAKEFLAGS", "GNUMAKEFLAGS", "MAKEFILES",
    "CARGO_*", "RUSTC*", "RUSTFLAGS", "RUSTDOC*", "GO*", "CGO_*", "CC", "CXX", "AR", "LINK", "*_WRAPPER", "*_PRELOAD", "HOME", "XDG_*",
    "DOCKER_*", "KUBECONFIG", "KUBE_*", "TERMINFO*", "VIMINIT", "EXINIT", "GVIMINIT", "RIPGREP_CONFIG_PATH", "TAR_OPTIONS", "GZIP", "ZIPOPT",
    "UNZIP", "RSYNC_RSH", "RSYNC_*", "CVS_RSH", "SVN_*", "HG*", "PIP_*", "UV_*", "GEM_*", "BUNDLE_*", "COMPOSER*", "ZDOTDIR", "FPATH",
    "TF_*", "AWS_*", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "CURL_HOME", "WGETRC", "OPENSSL_*",
    "TCL*", "R_*", "JULIA_*", "QT_*", "GTK_*", "NETRC", "MANPATH", "INFOPATH", "LOCPATH", "NLSPATH", "MALLOC_*", "*_OPTIONS", "*OPTS", "*_RC",
]  # fmt: skip
_EXACT = frozenset(name for name in _INFLUENCE if not any(c in name for c in "*?["))
_SHAPES = [name for name in _INFLUENCE if any(c in name for c in "*?[")]
_NOTHING = frozenset("export unset break continue return exit shift".split())  # nothing that a rule could be about
_MOVING = frozenset("cd pushd popd eval . source command builtin exec trap time".split())
_SETTERS = frozenset("read getopts mapfile readarray unset wait vared".split())
_SINKS = frozenset("/dev/null /dev/stdout /dev/stderr /dev/tty /dev/fd/1 /dev/fd/2 /proc/self/fd/1 /proc/self/fd/2".split())
_WRITING = frozenset([">", ">>", "&>", "&>>", ">|"])


class Part(NamedTuple):
    """A simple command, as it was found, and what becomes of it.

    Attributes:
        argv: its words; one that is not known before it runs stands as it was written. A file that is written is `(">", path)`.
        decision: of this part; None where it counts for nothing (a wrapper that was looked into).
        rules: those that match.
        program: the file that is started, or None: not found, or a builtin of the shell.
        reason: why it is so, where no rule says it.
        literal: every word of it is known.
        open: a rule that allows it would settle it.
        doubt: it may be what a rule restricts.
    """

    argv: tuple[str, ...]
    decision: Decision | None
    rules: tuple[CommandRule, ...] = ()
    program: str | None = None
    reason: str = ""
    literal: bool = True
    open: bool = True
    doubt: bool = False


class Evaluation(NamedTuple):
    """What the rules say of a command.

    Attributes:
        decision: "allow", "prompt" or "forbidden".
        rules: all that match, of all parts.
        justification: of the rule that decided, if it has one.
        reason: one line for people: what decided.
        parts: what the command was taken apart into.
        program: the file that will be started, or None where there is none yet, or the shell's.
        settleable: there is nothing in it but its parts that would have to be asked for.
    """

    decision: Decision
    rules: tuple[CommandRule, ...] = ()
    justification: str | None = None
    reason: str = ""
    parts: tuple[Part, ...] = ()
    program: str | None = None
    settleable: bool = True

    def to_dict(self) -> dict[str, Any]:
        return {
            "decision": self.decision,
            "justification": self.justification,
            "reason": self.reason,
            "program": self.program,
            "rules": [_rule_out(rule) for rule in self.rules],
            "parts": [
                {"argv": list(p.argv), "decision": p.decision, "program": p.program, "reason": p.reason,
                 "rules": [str(rule) for rule in p.rules]}
                for p in self.parts
            ],
        }  # fmt: skip

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def _rule_out(rule: CommandRule) -> dict[str, Any]:
    return {"rule": str(rule), "decision": rule.decision, "justification": rule.justification, "source": rule.source}


@functools.lru_cache(4096)
def influences(name: str) -> bool:
    """Whether a variable of this name can make a program run or load something else."""
    return name in _EXACT or any(fnmatch.fnmatchcase(name, shape) for shape in _SHAPES)


@functools.lru_cache(4096)
def _names(spelled: str, names: frozenset[str], multicall: bool) -> frozenset[str]:
    """Every name that a rule may know a program by."""
    out = set(families(bare_name(spelled)))
    for name in () if multicall else names:
        out.update(families(name))
    return frozenset(out)


@functools.lru_cache(4096)
def _handler(spelled: str, names: frozenset[str], multicall: bool) -> Any:
    """Who reads the arguments of a program: by the name that it is called by, or by any other that its file has."""
    for known in (bare_name(spelled), *(() if multicall else sorted(names))):
        for name in families(known):
            if name in HANDLERS:
                return HANDLERS[name]
    return None


class Index:
    """The rules of a policy, by the names of their programs."""

    def __init__(self, rules: Sequence[CommandRule], executables: Sequence[HostExecutable]) -> None:
        self.by_name: dict[str, list[tuple[int, CommandRule]]] = {}
        self._known: dict[Any, tuple[frozenset[str], tuple[CommandRule, ...]]] = {}
        restrictive = set()
        for number, rule in enumerate(rules):
            for token in rule.pattern[0]:
                entries = self.by_name.setdefault(bare_name(token), [])
                if not entries or entries[-1][0] != number:
                    entries.append((number, rule))
                if rule.decision != "allow" and "/" not in token:
                    restrictive.add(token)
        self.aliases = Aliases(frozenset(restrictive))
        self.executables = {entry.name: entry.paths for entry in executables}

    def known(self, program: Program, aliases: frozenset[str]) -> tuple[frozenset[str], tuple[CommandRule, ...]]:
        """(every name that a rule may know a program by, the rules that may be about it)."""
        key = (program.spelled, program.names, program.multicall, aliases)
        found = self._known.get(key)
        if found is None:
            names = _names(program.spelled, program.names, program.multicall) | aliases
            if len(self._known) > 4096:
                self._known.clear()
            found = self._known[key] = (names, tuple(self.about(names)))
        return found

    def about(self, names: Iterable[str]) -> list[CommandRule]:
        found: dict[int, CommandRule] = {}
        for name in names:
            found.update(self.by_name.get(name, ()))
        return [found[number] for number in sorted(found)] if len(found) > 1 else list(found.values())


class Context(NamedTuple):
    """Where a command stands."""

    path: tuple[str, ...]
    inner_path: tuple[str, ...]  # what a command of this one searches
    caller: tuple[str, ...]  # the caller's own PATH
    cwd: str | None
    roots: Collection[str]
    home: str | None
    shell: str | None = None  # the shell that runs it, which has builtins
    functions: frozenset[str] = frozenset()
    depth: int = 0


class Evaluator:
    def __init__(self, policy: ExecPolicy) -> None:
        self.policy = policy
        self.index = policy.index
        self.parts: list[Part] = []
        self.floors: list[str] = []
        self.doubts: list[str] = []  # the same, because of a rule
        self.verdicts: list[tuple[Decision, str]] = []  # of the heuristics, about a whole script
        self.found: dict[tuple[str, tuple[str, ...], str | None], Program] = {}
        self.tables: dict[tuple[str, ...], dict[str, tuple[str, ...]] | None] = {}
        self.whole = False  # a rule allows the whole vector, to the last word

    # -- one vector -----------------------------------------------------------------------------------------------------------

    def command(self, words: Words, context: Context, simple: Simple | None = None,
                executable: Word | None = None) -> Program | None:  # fmt: skip
        """Adds the parts of a command: itself, and what it runs."""
        if len(self.parts) > _MOST_PARTS or context.depth > _DEEPEST:
            self.floor("there is too much in it to be looked at")
            return None
        called = words[0] if executable is None else executable
        if isinstance(called, Dynamic):
            reason = f"what {called} is, is known only when it runs"
            self.parts.append(Part(text_of(words), strictest(("prompt", self.policy.default)), (), None, reason, False, False))
            return None
        name = str(called)
        builtin = context.shell is not None and "/" not in name and (name in BUILTINS or name in context.functions)
        program = Program(name, names=frozenset({name})) if builtin else self.identify(name, context)
        if program.path is None and "/" in name and context.cwd is None and not os.path.isabs(name):
            self.floor(f"where {name} is, is known only when it runs")
        if executable is not None:
            words = (name, *words[1:])
        handler = _handler(program.spelled, program.names, program.multicall)
        opened = handler(words) if handler is not None else None
        if opened is None:
            self.decide(words, program, None, context)
            return program
        if opened.reads_code:
            document = simple.document if simple is not None else None
            family = families(bare_name(name))
            elsewhere = simple is not None and (simple.piped or any(r.operator in ("<", "<&") for r in simple.redirects))
            if document is not None and not elsewhere and any(f in SHELLS for f in family):
                opened.scripts.append((document, "bash" if "bash" in name else "sh"))
            else:
                opened.code(len(words), f"{name} runs what it reads")
        self.decide(words, program, opened, context)
        for vector in opened.maybe:
            self.suspect(vector, context)
        for target in opened.writes:
            self.write(target)
        if not (opened.inner or opened.scripts or opened.assigns):
            return program
        inner = context._replace(depth=context.depth + 1, shell=None, functions=frozenset(), path=context.inner_path)
        if opened.cwd:
            inner = inner._replace(cwd=None)
        if name in ("command", "builtin", "exec", "time", "noglob", "nocorrect", "-", "coproc"):
            inner = inner._replace(shell=context.shell, functions=frozenset())
        for variable, value in opened.assigns:
            if influences(variable):
                self.floor(f"{variable} is set for what is run")
            if variable == "PATH" and not isinstance(value, Dynamic):
                found = tuple(value.split(":"))
                inner = inner._replace(path=found, inner_path=found)
        for vector in opened.inner:
            if vector:
                self.command(vector, inner)
        for text, shell in opened.scripts:
            self.script(text, shell, inner)
        return program

    def identify(self, name: str, context: Context) -> Program:
        key = (name, context.path, context.cwd if "/" in name else None)
        program = self.found.get(key)
        if program is None:
            table = None
            if "/" not in name:
                if context.path not in self.tables:
                    self.tables[context.path] = Directories.of(context.path, context.roots)
                table = self.tables[context.path]
            program = self.found[key] = identify(name, context.path, context.cwd, table)
        return program

    def floor(self, reason: str) -> None:
        self.floors.append(reason)

    def decide(self, words: Words, program: Program, opened: Opened | None, context: Context) -> None:
        names, candidates = self.index.known(program, self.index.aliases.of(program, context.caller))
        matched: list[CommandRule] = []
        counted = doubt = False
        reasons: list[str] = []
        spellings: list[tuple[Words, int, bool]] = [(words, 0, True)]
        last = -1
        inline = False
        if opened is not None:
            spellings += [(other, len(words) - len(other), harmless) for other, harmless in opened.spellings]
            last = max((place for place, _, _ in opened.payloads), default=-1)
            inline = any(given for _, given, _ in opened.payloads)
            reasons += list(opened.problems)
        if opened is None:
            counts = not (context.shell is not None and words[0] in _NOTHING)
            simple = True
        else:
            counts = not (opened.transparent and (opened.inner or opened.scripts))
            simple = not (opened.payloads or opened.problems or opened.spellings or opened.guarded is not None)
        if not candidates and simple and not self.policy.heuristic:
            literal = all(type(word) is str for word in words)
            self.parts.append(
                Part(words if literal else text_of(words), self.policy.default if counts else None, (), program.path, "no rule is about it" if counts else "", literal)
            )
            return
        for other, _, _ in spellings[1:]:
            if bare_name(other[0]) not in names:  # `python -m pip`
                others = self.index.about(families(bare_name(other[0])))
                candidates = (*candidates, *[rule for rule in others if rule.decision != "allow"])
        for rule in candidates:
            restrictive = rule.decision != "allow"
            if restrictive:
                best = NO
                for other, _, _ in spellings:
                    if other[0] is words[0] or other[0] == words[0]:
                        if not self.named_by(rule, names, program):
                            continue
                    elif not any(bare_name(t) in families(bare_name(other[0])) for t in rule.pattern[0]):
                        continue
                    found = rule.match_arguments(other[1:])
                    if found == NO and len(rule.pattern) > 1 and not rule.exact and rule.match_around_options(other[1:]):
                        found = MAYBE
                    best = max(best, found)
                if best == YES:
                    matched.append(rule)
                elif best == MAYBE:
                    doubt = True
                    reasons.append(f"it may be what is {rule.decision} by {rule.brief}")
                continue
            if not any(self.means(token, program, context) for token in rule.pattern[0]):
                continue
            for other, dropped, harmless in spellings:
                if not harmless or rule.match_arguments(other[1:]) != YES:
                    continue
                matched.append(rule)
                covered = rule.exact or len(rule.pattern) + dropped > last
                self.whole = self.whole or (rule.exact and not dropped and not self.parts and not context.depth)
                guarded = opened is not None and opened.guarded is not None
                if guarded and not rule.exact and len(rule.pattern) + dropped < opened.guarded:  # type: ignore[operator, union-attr]
                    covered = False
                counted = counted or covered
                break
        restrictive_rules = [rule for rule in matched if rule.decision != "allow"]
        heuristic = self.heuristics(words, program, opened, context)
        decisions: list[Decision] = [rule.decision for rule in restrictive_rules]
        if counted:
            decisions.append("allow")
        reason = ""
        if heuristic is not None:
            decisions.append(heuristic[0])
            if heuristic[0] == strictest(decisions):
                reason = heuristic[1]
        decision: Decision | None
        if decisions:
            decision = strictest(decisions)
        elif not counts:
            decision = None
        else:
            decision = self.policy.default
            reason = "no rule is about it" if not matched else "the rules about it do not reach as far as what it runs"
        if opened is not None:
            if inline and not counted:
                reasons.append(next(what for _, given, what in opened.payloads if given))
            if opened.guarded is not None and not counted:
                reasons.append(f"{words[0]} runs something with other rights, elsewhere, or by another name")
        if reasons and decision != "forbidden":
            if decision != "prompt" or not restrictive_rules:
                reason = reasons[0]
            decision = strictest(("prompt", self.policy.default))
        literal = all(type(word) is str for word in words)
        self.parts.append(Part(words if literal else text_of(words), decision, tuple(matched), program.path, reason, literal, not reasons, doubt))

    def heuristics(self, words: Words, program: Program, opened: Opened | None, context: Context) -> tuple[Decision, str] | None:
        if not self.policy.heuristic:
            return None
        from ._heuristics import judge

        found = judge(words, program, opened, _names(program.spelled, program.names, program.multicall))
        if found is not None and found[0] == "allow" and not self.means(bare_name(program.spelled), program, context):
            return None
        return found

    def named_by(self, rule: CommandRule, names: frozenset[str], program: Program) -> bool:
        """Whether a rule that restricts is about the program: by any of its names, or its file."""
        for token in rule.pattern[0]:
            if "/" not in token:
                if bare_name(token) in names or token in names:
                    return True
            elif token == program.spelled or program.path is None:
                if os.path.normpath(token) == os.path.normpath(program.spelled) or token == program.spelled:
                    return True
            else:
                other = identify(token, (), None)
                if other.inode is not None and other.inode == program.inode:
                    return not program.multicall or bare_name(token) == bare_name(program.spelled)
                if os.path.normpath(token) in (os.path.normpath(program.path), program.real):
                    return True
        return False

    def means(self, token: str, program: Program, context: Context) -> bool:
        """Whether a rule that allows `token` is about the file that will be started."""
        spelled = program.spelled
        if "/" in token:
            if spelled == token:
                return True
            other = identify(token, (), None)
            return other.inode is not None and other.inode == program.inode and bare_name(token) in program.names
        if "/" not in spelled:
            if spelled != token:
                return False
            if context.shell is not None and (token in BUILTINS or token in context.functions):
                return True
            if program.path is None:
                return True  # there is nothing yet that could be started
        elif os.path.basename(spelled) != token or program.path is None:
            return False
        if token in self.index.executables:
            allowed = self.index.executables[token]
            return os.path.normpath(program.path) in allowed or program.real in allowed
        if "/" not in spelled and context.path == context.caller:
            return trusted(program, context.roots)
        known = identify(token, tuple([p for p in context.caller if p.startswith("/")]), None)
        return known.inode is not None and known.inode == program.inode and trusted(program, context.roots)

    def suspect(self, words: Words, context: Context) -> None:
        """A vector that may be what is run, somewhere: a rule against it is a reason to ask."""
        name = words[0]
        names = set() if isinstance(name, Dynamic) else set(families(bare_name(name)))
        for rule in self.index.about(frozenset(names)):
            if rule.decision != "allow" and rule.match_arguments(words[1:]) != NO:
                self.doubts.append(f"it may run what is {rule.decision} by {rule.brief}")

    def write(self, target: Word) -> None:
        if not isinstance(target, Dynamic) and os.path.normpath(target) in _SINKS:
            return
        words: Words = (">", target)
        matched = [
            rule
            for rule in self.index.about((">",))
            if rule.match_arguments(words[1:]) == YES or (rule.decision != "allow" and rule.match_arguments(words[1:]) == MAYBE)
        ]
        decision = strictest([rule.decision for rule in matched]) if matched else self.policy.default
        reason = "" if matched else f"it writes {target}"
        self.parts.append(Part(text_of(words), decision, tuple(matched), None, reason, not isinstance(target, Dynamic)))

    # -- one script ---------------------------------------------------------------------------------------------------------------

    def script(self, text: str, shell: str, context: Context) -> None:
        parsed = parse(text.encode("utf-8", "surrogateescape"), shell, context.home)
        for problem in parsed.problems:
            self.floor(problem)
        here = context._replace(shell=shell, functions=parsed.functions)
        for redirect in parsed.redirects:
            self.redirect(redirect.operator, redirect.target)
        for simple in parsed.commands:
            for name, value in simple.assignments:
                if influences(name) and not (simple.declares and value == ""):
                    self.floor(f"{name} is set")
            for redirect in simple.redirects:
                self.redirect(redirect.operator, redirect.target)
            if not simple.words:
                continue
            if simple.declares:
                self.decide(simple.words, Program(str(simple.words[0]), names=frozenset({str(simple.words[0])})), None, here)
                if self.parts[-1].decision == self.policy.default and not self.parts[-1].rules:
                    self.parts[-1] = self.parts[-1]._replace(decision=None, reason="")
                continue
            if simple.words[0] == "set":
                self.parts.append(Part(text_of(simple.words), None))
                if not self.harmless_set(simple.words):
                    self.floor(f"{' '.join(simple.words)} changes how the rest is read")
                continue
            if simple.words[0] in _SETTERS:
                for word in simple.words[1:]:
                    if influences(word):
                        self.floor(f"{word} is set")
            self.command(simple.words, here, simple)
            if simple.words[0] in _MOVING:
                here = here._replace(cwd=self.directory(simple, here))
        if self.policy.heuristic:
            from ._heuristics import judge_script

            self.verdicts += judge_script(parsed)

    def harmless_set(self, words: Words) -> bool:
        options = ("pipefail", "errexit", "nounset", "xtrace", "verbose", "noglob", "noclobber")
        return len(words) > 1 and all(
            not isinstance(w, Dynamic) and (w in options or (w[:1] in "-+" and w[1:].strip("euxvfCEo") == "" and len(w) > 1))
            for w in words[1:]
        )

    def directory(self, simple: Simple, context: Context) -> str | None:
        """The current directory behind a `cd`; None where it is not known."""
        if simple.words[0] in ("command", "builtin", "exec", "trap", "time"):
            return None if any("cd" in word or "pushd" in word or "popd" in word for word in simple.words) else context.cwd
        if simple.words[0] != "cd":
            return None
        target = simple.words[1] if len(simple.words) == 2 else None
        if not simple.plain or target is None or isinstance(target, Dynamic) or target.startswith("-") or context.cwd is None:
            return None
        return os.path.normpath(os.path.join(context.cwd, target))

    def redirect(self, operator: str, target: Word) -> None:
        if operator in _WRITING:
            self.write(target)
        elif operator == ">&":
            if isinstance(target, Dynamic) or not (target.rstrip("-").isdigit() or target == "-"):
                self.write(target)
        elif operator == "<" and (target.start if isinstance(target, Dynamic) else target).startswith(("/dev/tcp", "/dev/udp")):
            self.write(target)  # bash connects

    # -- the whole -----------------------------------------------------------------------------------------------------------------

    def evaluation(self, program: Program | None) -> Evaluation:
        if self.whole:
            # The rule has seen it all. What rules forbid, or ask for, they do all the same.
            self.floors = self.doubts
            self.parts = [self.parts[0], *[self.covered(part) for part in self.parts[1:]]]
        else:
            self.floors += self.doubts
        counting = [(part.decision, part) for part in self.parts if part.decision is not None]
        decisions: list[Decision] = [decision for decision, _ in counting]
        decisions += [decision for decision, _ in self.verdicts]
        whole: Decision = strictest(decisions) if decisions else self.policy.default
        reason, justification = "", None
        for decision, why in self.verdicts:
            if decision == whole:
                reason = why
        if not reason:
            for decision, part in counting:
                if decision != whole:
                    continue
                deciding = [rule for rule in part.rules if rule.decision == whole]
                if deciding:
                    justification = next((rule.justification for rule in deciding if rule.justification), None)
                    reason = deciding[0].brief + (f" ({deciding[0].source})" if deciding[0].source else "")
                else:
                    reason = f"{_shown(part.argv)}: {part.reason}" if part.reason else _shown(part.argv)
                if justification or whole != "allow":
                    break
        if not decisions:
            reason = "there is nothing in it that a rule could be about"
        if self.floors and whole != "forbidden" and strictest(("prompt", self.policy.default)) != whole:
            whole, reason, justification = strictest(("prompt", self.policy.default)), self.floors[0], None
        rules = tuple(dict.fromkeys([rule for part in self.parts for rule in part.rules]))
        settleable = not self.floors and not self.verdicts
        return Evaluation(whole, rules, justification, reason, tuple(self.parts), program.path if program else None, settleable)

    def covered(self, part: Part) -> Part:
        """A part of what an exact rule allows: no longer asked for because nothing else is said of it."""
        restricted = part.doubt or any(rule.decision != "allow" for rule in part.rules)
        heuristic = self.policy.heuristic and part.decision == "forbidden"
        return part if restricted or heuristic or part.decision is None else part._replace(decision="allow", reason="")


def _shown(argv: Sequence[str]) -> str:
    import shlex

    text = shlex.join(argv) if argv[:1] != (">",) else "> " + " ".join(argv[1:])
    return text if len(text) <= 80 else text[:77] + "..."


def evaluate(
    policy: ExecPolicy, argv: Sequence[str], *, path: tuple[str, ...], inner_path: tuple[str, ...], cwd: str, roots: Collection[str],
    executable: str | None, home: str | None,
) -> Evaluation:  # fmt: skip
    """The evaluation of one vector.

    Args:
        path: the directories in which it will be searched; inner_path: in which it will search.
        roots: directories that commands write to: no program in them is trusted by its name.
        executable: the program, where that is not `argv[0]`.
    """
    evaluator = Evaluator(policy)
    context = Context(path, inner_path, search_path(), cwd, roots, home)
    program = evaluator.command(tuple(argv), context, executable=executable)
    if executable is not None and program is not None and program.multicall and bare_name(argv[0]) != bare_name(executable):
        # It does what it is called, whatever its file is called.
        evaluator.command(tuple(argv), context)
    return evaluator.evaluation(program)
