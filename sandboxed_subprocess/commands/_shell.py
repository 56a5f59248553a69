"""What a shell script runs: its simple commands, wherever they stand in it.

tree-sitter's grammar of bash finds the structure. What it says is not taken on trust: between the pieces of the tree there may be
nothing but blanks, each word is read again here, character by character, and whatever is neither understood nor known to be
harmless is a *problem*, with which nothing is allowed without asking. The grammar is bash's; a script for another shell is one
that means the same there, or has a problem.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
import threading
from typing import Any, NamedTuple

from ._words import Dynamic, Word


class Redirect(NamedTuple):
    operator: str
    target: Word


class Simple(NamedTuple):
    """One simple command.

    Attributes:
        words: what it is called by, and with. Empty where there are only assignments.
        assignments: (name, value) of what stands before it, or is all of it.
        redirects: of this command alone.
        document: the literal text that a here-document or here-string feeds to it; None if there is none, or it is dynamic.
        start: where in the script (bytes).
        plain: whether it always runs, in its turn: it is not in a branch, a loop, a function, a subshell, a pipeline.
        piped: its standard input is the output of another one.
        declares: it is `export`, `local` or the like, and `assignments` are its arguments.
    """

    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    document: str | None = None
    start: int = 0
    plain: bool = False
    declares: bool = False
    piped: bool = False


class Pipeline(NamedTuple):
    stages: tuple[tuple[int, int], ...]  # where each begins and ends

    def stage(self, command: Simple) -> int:
        for number, (start, end) in enumerate(self.stages):
            if start <= command.start < end:
                return number
        return -1


class Script(NamedTuple):
    commands: tuple[Simple, ...]
    redirects: tuple[Redirect, ...]  # those of compound commands
    pipelines: tuple[Pipeline, ...]
    functions: frozenset[str]
    problems: tuple[str, ...]
    bomb: bool  # a function that starts itself twice, and goes on


MOST = 1 << 18  # bytes of a script that are looked at
DEEPEST = 150  # levels of nesting

_PLAIN = re.compile(rb"[\w@%+,./:-][\w@%+=:,./-]*")
# What may stand between two pieces of a tree. A continued line has to be seen to be one: it begins with a blank.
_QUOTED = re.compile(rb"""'[^']*'|"[^"\\$`]*\"""")
_RUN = re.compile(r"[\w@%+,./:-]+", re.ASCII)
_QUOTED_RUN = re.compile(r'[^"\\$`]+')
_GAP = re.compile(rb"(?:[ \t\n]|\\\n(?=[ \t]))*")
_LOST = re.compile(rb"[ \t]+-[ \t]+")
_USUAL = frozenset([b" ", b"  ", b"    ", b"        "])
_BLANK = re.compile(rb"(?:[ \t]|\\\n(?=[ \t]))*")
_CONTAINERS = frozenset(
    "program list subshell compound_statement if_statement elif_clause else_clause while_statement do_group negated_command"
    " command_substitution process_substitution pipeline variable_assignments".split()
)
_LINES = frozenset("function_definition for_statement case_statement case_item array".split())  # the same, read by methods
_CONDITIONAL = frozenset(
    "subshell if_statement while_statement command_substitution process_substitution pipeline compound_statement list".split()
)
_TOKENS = frozenset(
    "; & && || | |& \n ( ) { } if then else elif fi while until do done for in case esac ;; ;& ;;& function ! $( ` <( >( select"
    " )".split(" ")
)
RESERVED = frozenset("! if then else elif fi case esac for select while until do done in function { } [[ ]]".split())
_EXPANSIONS = frozenset("simple_expansion expansion command_substitution arithmetic_expansion process_substitution".split())
_WORDS = frozenset(
    "command_name word string raw_string ansi_c_string translated_string concatenation number brace_expression test_operator variable_name"
    " special_variable_name regex simple_expansion expansion command_substitution arithmetic_expansion"
    " process_substitution".split()
)
_INNER = frozenset("command_substitution process_substitution arithmetic_expansion expansion simple_expansion".split())
_BRACED = re.compile(
    rb"\$\{(?:#[A-Za-z_]\w*|#[@*]|(?:[A-Za-z_]\w*|[0-9]+|[@*?$!#-])"
    rb"(?:\[(?:[0-9]+|[@*])\])?(?:(?::?[-=?+]|##?|%%?|//?[#%]?|\^\^?|,,?)(?P<rest>.*)|:[ ]?-?[0-9]+(?::-?[0-9]+)?)?)\}",
    re.DOTALL,
)
_ARITHMETIC = re.compile(rb"\$\(\((?:[0-9+*/%() \t<>=!&|^~-]|\b0[xX][0-9a-fA-F]+\b)*\)\)")
_DASHED = re.compile(rb"[0-9]*[<>]&(?:[ \t]|\\\n(?=[ \t]))*-[^ \t\n;|&<>()]")
# A number, or a name in braces, that touches a redirection is its descriptor, and no word.
_DESCRIPTOR = re.compile(rb"(?:[0-9]|\\\n)+|\{[^{}]*\}")
_BEGINS_DESCRIPTOR = frozenset(bytes([byte]) for byte in b"0123456789{\\")
_REDIRECTS = re.compile(rb"(?:\\\n)*[<>]")
_VARIABLE = re.compile(rb"\$(?:\w+|[@*#?$!-])")
# What zsh reads in a way of its own, wherever it stands: `&!` and `&|` end a command, `>!` writes over a file, `=ls` is its path, `0=` is
# an assignment; and lines that go on.
_ZSH = re.compile(rb"&[!|]|>&?!|(?:^|[\s;|&(){}<>])(?:[0-9]+\+?)?=|\\\n")
_DELIMITER = re.compile(rb"-?[ \t]*(?:\\?([A-Za-z_][\w.-]*)|'([^'\n$`\\]+)'|\"([^\"\n$`\\]+)\")")
# tests of `[[` that read their operands as arithmetic, or as the names of variables, and so run what stands in them
_EVALUATING = frozenset("-eq -ne -lt -le -gt -ge -v -R".split())
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v", "\\": "\\",
    "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ANSI = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|c(.)|(.))", re.DOTALL)


class _Problem(Exception):
    """Something that is not understood; ends the reading of one word."""


_plain: dict[bytes, str] = {}  # words that stand for themselves, as they were met

_alone = threading.Lock()  # a parser has a state


@functools.lru_cache(1)
def _parser() -> Any:
    """
    Raises:
        ImportError: the grammar is not installed.
    """
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


@functools.lru_cache(512)
def parse(text: bytes, shell: str, home: str | None = None) -> Script:
    """The commands of a script.

    Args:
        shell: the name of the shell that it is for: "bash", or one that understands less ("sh", "dash"), or "zsh".
        home: what `~` stands for.
    """
    if len(text) > MOST:
        return _nothing(f"a script of {len(text)} bytes is too long to be looked at")
    if b"\0" in text:
        return _nothing("a NUL in the script")
    try:
        parser = _parser()
    except ImportError as error:
        return _nothing(f"scripts cannot be taken apart here ({error}): pip install 'sandboxed-subprocess[rules]'")
    reader = _Reader(text, shell, home)
    try:
        with _alone:
            tree = parser.parse(text)
        reader.read(tree.root_node)
    except RecursionError:  # pragma: no cover - the walk itself does not recurse
        reader.problem("too deeply nested")
    commands = sorted(reader.commands, key=lambda command: command.start)
    if reader.pipelines:
        fed = sorted(span for pipeline in reader.pipelines for span in pipeline.stages[1:])
        starts = [command.start for command in commands]
        for begin, end in fed:
            for place in range(bisect.bisect_left(starts, begin), bisect.bisect_left(starts, end)):
                commands[place] = commands[place]._replace(piped=True)
    return Script(
        tuple(commands),
        tuple(reader.redirects),
        tuple(reader.pipelines),
        frozenset(reader.functions),
        tuple(dict.fromkeys(reader.problems)),
        reader.bomb(),
    )


def _nothing(problem: str) -> Script:
    return Script((), (), (), frozenset(), (problem,), False)


class _Reader:
    def __init__(self, text: bytes, shell: str, home: str | None) -> None:
        self.text = text
        self.bash = shell == "bash"
        self.zsh = shell == "zsh"
        self.home = home
        self.commands: list[Simple] = []
        self.redirects: list[Redirect] = []
        self.pipelines: list[Pipeline] = []
        self.functions: dict[str, tuple[int, int]] = {}
        self.problems: list[str] = []
        self.todo: list[tuple[Any, int, bool]] = []  # (node, depth, plain)
        self.depth = 0

    def problem(self, what: str) -> None:
        self.problems.append(what)

    def slice(self, node: Any) -> bytes:
        return self.text[node.start_byte : node.end_byte]

    def show(self, node: Any) -> str:
        text = self.slice(node).decode("utf-8", "replace")
        return repr(text if len(text) <= 40 else text[:37] + "...")

    # -- structure ------------------------------------------------------------------------------------------------------

    def read(self, root: Any) -> None:
        if root.has_error:
            self.problem("the script is not what bash's grammar knows")
        if not _GAP.fullmatch(self.text[: root.start_byte]) or not _GAP.fullmatch(self.text[root.end_byte :]):
            self.problem("something around the script is no part of it")
        if self.zsh and _ZSH.search(self.text):
            self.problem("there is something in it that zsh reads in its own way")
        self.push(root, 0, True)
        while self.todo:
            node, depth, plain = self.todo.pop()
            if depth > DEEPEST:
                self.problem("too deeply nested")
                continue
            self.depth = depth
            self.visit(node, depth, plain)

    def push(self, node: Any, depth: int, plain: bool = False) -> None:
        self.todo.append((node, depth, plain))

    def gap(self, here: int, start: int, lines: bool) -> None:
        """What the grammar skipped between two pieces must be what the shell skips."""
        between = self.text[here:start]
        if between != b" " and not (_GAP if lines else _BLANK).fullmatch(between):
            self.problem(f"{between.decode('utf-8', 'replace')!r} between two words")

    def gaps(self, node: Any, children: list[Any]) -> None:
        lines = node.type in _CONTAINERS or node.type in _LINES
        here = node.start_byte
        for child in children:
            start = child.start_byte
            if start > here:
                self.gap(here, start, lines)
            here = max(here, child.end_byte)
        if node.end_byte > here:
            self.gap(here, node.end_byte, lines)

    def touch(self, node: Any) -> None:
        """Between its parts there is nothing, not even a line that goes on: behind `a=` that would be the end of the word."""
        for one, other in itertools.pairwise(node.children):
            if one.end_byte != other.start_byte:
                self.problem(f"{self.show(node)} is not one word")

    def visit(self, node: Any, depth: int, plain: bool) -> None:
        kind = node.type
        if kind == "command":
            self.command(node, plain)
        elif kind in _CONTAINERS:
            self.container(node, kind, depth, plain)
        elif kind == "comment" or kind in _TOKENS:
            pass
        else:
            method = getattr(self, f"visit_{kind}", None)
            if method is None or not node.is_named:
                self.problem(f"{kind.replace('_', ' ')} {self.show(node)} is not understood")
            else:
                method(node, depth, plain)

    def container(self, node: Any, kind: str, depth: int, plain: bool) -> None:
        children = node.children
        here = node.start_byte
        self.check_container(node, kind, here)
        # `a && b`: b may not run, but where it does, it does after a.
        inner = plain and (kind not in _CONDITIONAL or (kind == "list" and b"||" not in self.operators(children)))
        # a list of a thousand commands is a thousand lists in one another
        deeper = depth + (kind != "list")
        for child in children:
            start = child.start_byte
            if start > here and self.text[here:start] not in _USUAL:
                self.gap(here, start, True)
            here = child.end_byte
            what = child.type
            if what == "&":
                # In the background nothing happens in its turn, and nothing changes for what follows.
                inner = False
            elif what not in _TOKENS:
                self.todo.append((child, deeper, inner))
        end = node.end_byte
        if end > here:
            self.gap(here, end, True)

    def operators(self, children: list[Any]) -> list[bytes]:
        return [self.slice(child) for child in children if not child.is_named]

    def check_container(self, node: Any, kind: str, start: int) -> None:
        text = self.text
        if text.startswith(b"((", start):
            self.problem("(( )) is arithmetic to one shell and runs commands in another")
        if kind == "command_substitution" and text.startswith(b"`", start) and b"\\" in self.slice(node):
            self.problem("a backslash in backquotes")
        if kind == "pipeline":
            self.pipelines.append(Pipeline(tuple([(c.start_byte, c.end_byte) for c in node.children if c.is_named])))

    def visit_function_definition(self, node: Any, depth: int, plain: bool) -> None:
        self.gaps(node, node.children)
        name = node.child_by_field_name("name")
        self.functions[self.slice(name).decode("utf-8", "replace")] = (node.start_byte, node.end_byte)
        for child in node.children:
            if child.id == name.id or not child.is_named:
                continue
            if child.type.endswith("_redirect"):
                self.redirection(child, [], self.redirects)
            else:
                self.push(child, depth + 1)

    def visit_for_statement(self, node: Any, depth: int, plain: bool) -> None:
        self.gaps(node, node.children)
        for child in node.children:
            if child.type == "variable_name":
                self.commands.append(Simple((), ((self.slice(child).decode(), Dynamic("for")),), start=node.start_byte))
            elif child.type in _WORDS:
                self.word(child)
            elif child.is_named:
                self.push(child, depth + 1)

    def visit_case_statement(self, node: Any, depth: int, plain: bool) -> None:
        self.gaps(node, node.children)
        for child in node.children:
            if child.type in _WORDS:
                self.word(child)
            elif child.is_named:
                self.push(child, depth + 1)

    def visit_case_item(self, node: Any, depth: int, plain: bool) -> None:
        self.gaps(node, node.children)
        values = {value.id for value in node.children_by_field_name("value")}
        for child in node.children:
            if child.id in values:
                if re.search(rb"[$`(<>;&\\]", self.slice(child)):
                    self.problem(f"the pattern {self.show(child)} is not understood")
            else:
                self.push(child, depth + 1)

    def visit_redirected_statement(self, node: Any, depth: int, plain: bool) -> None:
        body = node.child_by_field_name("body")
        if body is not None and body.type == "command":
            # The grammar loses a "-" in front of a here-document.
            lost = 0
            here = node.start_byte
            for child in node.children:
                if _LOST.fullmatch(self.text, here, child.start_byte):
                    lost += 1
                elif child.start_byte > here:
                    self.gap(here, child.start_byte, False)
                here = child.end_byte
            self.command(body, plain, [child for child in node.children if child.id != body.id], lost)
            return
        self.gaps(node, node.children)
        words: list[Word] = []
        redirects: list[Redirect] = []
        document = None
        for child in node.children:
            if body is not None and child.id == body.id:
                self.push(child, depth + 1)
            elif child.type.endswith("_redirect"):
                document = self.redirection(child, words, redirects) or document
            else:
                self.problem(f"{self.show(child)} beside a redirection")
        if body is None:
            # `>out git push`: the grammar takes the command for further names of the file.
            self.simple(words, [], redirects, document, node.start_byte, plain, raw_first=True)
        else:
            self.redirects.extend(redirects)
            if words:
                self.problem("words behind the redirection of a group")

    def visit_file_redirect(self, node: Any, depth: int, plain: bool) -> None:
        """On its own, as in `$(<file)`."""
        words: list[Word] = []
        self.redirection(node, words, self.redirects)
        if words:
            self.simple(words, [], [], None, node.start_byte, plain, raw_first=True)

    def visit_variable_assignment(self, node: Any, depth: int, plain: bool) -> None:
        self.commands.append(Simple((), (self.assignment(node),), start=node.start_byte, plain=plain))

    def visit_declaration_command(self, node: Any, depth: int, plain: bool) -> None:
        self.gaps(node, node.children)
        keyword = node.children[0].type
        assignments = []
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                assignments.append(self.assignment(child))
            elif child.type == "variable_name":
                assignments.append((self.slice(child).decode(), Dynamic("")))
            else:
                word = self.word(child) if child.type in _WORDS else Dynamic(self.show(child))
                # -i and -n have the shell evaluate what is assigned.
                if not re.fullmatch(r"-[xrgaAfFplu]+", word):
                    self.problem(f"{keyword} {word} is not understood")
        self.commands.append(Simple((keyword,), tuple(assignments), start=node.start_byte, plain=plain, declares=True))

    def visit_unset_command(self, node: Any, depth: int, plain: bool) -> None:
        self.gaps(node, node.children)
        words: list[Word] = [self.slice(node.children[0]).decode()]
        for child in node.children[1:]:
            word = self.word(child) if child.type in _WORDS else Dynamic(self.show(child))
            if isinstance(word, Dynamic) or not re.fullmatch(r"-[fvn]|[A-Za-z_]\w*", word):
                self.problem(f"unset {word} is not understood")
            words.append(word)
        self.commands.append(Simple(tuple(words), start=node.start_byte, plain=plain))

    def visit_test_command(self, node: Any, depth: int, plain: bool) -> None:
        double = self.text.startswith(b"[[", node.start_byte)
        if double and not self.bash and not self.zsh:
            self.problem("[[ is a program where the shell is not bash")
        words: list[Word] = ["[[" if double else "["]
        todo = list(reversed(node.children))
        while todo:
            child = todo.pop()
            if child.type == "regex":
                if re.search(rb"[`<>;&\n]|\$[\w({@*#?!\[-]", self.slice(child)):
                    self.problem(f"the pattern {self.show(child)} is not understood")
                words.append(self.slice(child).decode("utf-8", "replace"))
            elif child.type in _WORDS:
                word = self.word(child)
                words.append(word)
                if child.type == "test_operator" and double and word in _EVALUATING:
                    self.problem(f"[[ {word} ]] evaluates what it compares")
            elif child.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
                self.gaps(child, child.children)
                todo.extend(reversed(child.children))
            elif not child.is_named:
                token = self.slice(child).decode("utf-8", "replace")
                if not double and token not in ("[", "]", "=", "==", "!=", "!", "-a", "-o"):
                    self.problem(f"{token!r} in a test is not understood")
                words.append(token)
            else:
                self.problem(f"{self.show(child)} in a test is not understood")
        self.gaps(node, node.children)
        if not double:
            # Written out again, since the grammar reads operators into it; nothing depends on them.
            self.commands.append(Simple(tuple(words[:1] + words[2:]), start=node.start_byte, plain=plain))
            if "-v" in words or any("[" in word for word in words[2:]):
                self.problem("a test of a variable's name")
        else:
            self.commands.append(Simple((), (), start=node.start_byte, plain=plain))

    # -- one command ------------------------------------------------------------------------------------------------------

    def command(self, node: Any, plain: bool, outside: list[Any] | None = None, lost: int = 0) -> None:
        words: list[Word] = []
        assignments: list[tuple[str, Word]] = []
        redirects: list[Redirect] = []
        document: str | None = None
        text = self.text
        begin = here = node.start_byte
        raw_first = False
        for child in node.children:
            start, stop, kind = child.start_byte, child.end_byte, child.type
            touching = start == here and start > begin
            if start > here and text[here:start] != b" ":
                self.gap(here, start, False)
            here = stop
            if kind in _WORDS:
                if touching:
                    self.problem(f"{self.show(child)} begins where another word ends")
                raw = text[start:stop]
                if raw[:1] in _BEGINS_DESCRIPTOR and self.is_descriptor(child):
                    raw_first = True
                    continue
                word = _plain.get(raw)
                if word is None:
                    word = self.word(child)
                words.append(word)
            elif kind == "variable_assignment":
                assignments.append(self.assignment(child))
            elif kind.endswith("_redirect"):
                document = self.redirection(child, words, redirects) or document
            elif not child.is_named and re.fullmatch(rb"[=~!$]+", text[start:stop]) and not touching:
                words.append(text[start:stop].decode())
            else:
                self.problem(f"{self.show(child)} in a command is not understood")
        if node.end_byte > here:
            self.gap(here, node.end_byte, False)
        words.extend(["-"] * lost)
        for child in outside or ():
            if child.type.endswith("_redirect"):
                document = self.redirection(child, words, redirects, node) or document
            else:
                self.problem(f"{self.show(child)} beside a redirection")
        self.simple(words, assignments, redirects, document, node.start_byte, plain, raw_first)

    def is_descriptor(self, node: Any) -> bool:
        """The grammar has words where it does not know a number for one ("0" before a redirection), and shells differ about those
        of several digits and about names in braces."""
        raw = self.slice(node)
        if not _DESCRIPTOR.fullmatch(raw) or not _REDIRECTS.match(self.text, node.end_byte):
            return False
        if raw not in (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9") or self.text.startswith(b"(", node.end_byte + 1):
            self.problem(f"whether {self.show(node)} is a descriptor differs between shells")
        return True

    def simple(
        self, words: list[Word], assignments: list[tuple[str, Word]], redirects: list[Redirect], document: str | None,
        start: int, plain: bool, raw_first: bool = False,
    ) -> None:  # fmt: skip
        if raw_first and words and re.match(r"[A-Za-z_]\w*\+?=", words[0]):
            self.problem("an assignment behind a redirection")
        if words and not self.bash and words[0].endswith(":") and words[0] != ":":
            self.problem(f"{words[0]!r} is a label, and no command, to ksh")
        if words and words[0] in RESERVED:
            self.problem(f"{words[0]!r} where a command should be")
        if self.zsh and redirects and not words:
            self.problem("a redirection alone has zsh run what NULLCMD says")
        self.commands.append(Simple(tuple(words), tuple(assignments), tuple(redirects), document, start, plain))

    def assignment(self, node: Any) -> tuple[str, Word]:
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        text = self.slice(name).decode("utf-8", "replace")
        if name.type != "variable_name":  # a subscript is arithmetic, and is evaluated
            if not re.fullmatch(r"[A-Za-z_]\w*\[[0-9]+\]", text):
                self.problem(f"{self.show(name)} is not understood")
            text = text.partition("[")[0]
        self.gaps(node, node.children)
        self.touch(node)
        if value is None:
            return text, ""
        if value.type == "array":
            self.gaps(value, value.children)
            for child in value.children:
                if child.type in _WORDS:
                    word = self.word(child)
                    if word.startswith("["):
                        self.problem("a subscript in an array")
                elif child.is_named:
                    self.problem(f"{self.show(child)} in an array is not understood")
            return text, Dynamic(self.slice(value).decode("utf-8", "replace"))
        if value.type not in _WORDS:
            self.problem(f"{self.show(value)} is not understood")
            return text, Dynamic(self.slice(value).decode("utf-8", "replace"))
        return text, self.word(value)

    def redirection(self, node: Any, words: list[Word], redirects: list[Redirect], command: Any = None) -> str | None:
        """Reads a redirection into `redirects`; words that stand behind it in fact belong to the command.

        Returns:
            The literal text that it feeds to the command.
        """
        for child in node.children:
            if child.type == "file_descriptor" and child.end_byte - child.start_byte > 1:
                self.problem(f"whether {self.show(child)} is a descriptor differs between shells")
        if node.type == "heredoc_redirect":
            return self.here_document(node, words, redirects, command)
        self.gaps(node, node.children)
        operator = ""
        descriptor = b""
        targets: list[Word] = []
        if _DASHED.match(self.text, node.start_byte):
            # bash takes the dash alone and the rest for an argument, even behind a gap; zsh a file's name; dash nothing.
            self.problem(f"what {self.show(node)} closes differs between shells")
        for child in node.children:
            if child.type == "file_descriptor":
                descriptor = self.slice(child)
                continue
            if child.type in _WORDS and self.is_descriptor(child):
                continue
            if not child.is_named:
                operator = self.slice(child).decode("utf-8", "replace")
            elif child.type in _WORDS:
                if targets and self.text[child.start_byte - 1 : child.start_byte] not in (b" ", b"\t", b"\n"):
                    self.problem(f"{self.show(child)} begins where another word ends")
                targets.append(self.word(child))
            else:
                self.problem(f"{self.show(child)} in a redirection is not understood")
        if node.type == "herestring_redirect":
            if descriptor not in (b"", b"0"):
                return None
            if operator != "<<<" or len(targets) != 1:
                self.problem(f"{self.show(node)} is not understood")
                return None
            return None if isinstance(targets[0], Dynamic) else targets[0] + "\n"
        if operator in ("&>", "&>>"):
            before = self.text[node.start_byte - 1 : node.start_byte]
            if not self.bash and not (self.zsh and before in (b"", b" ", b"\t", b"\n")):
                # Where it is no operator, `&` ends a command, and what stands behind the file is another one.
                self.problem(f"what {self.show(node)} redirects differs between shells")
        if operator in ("<&-", ">&-"):
            words.extend(targets)
            return None
        if operator not in ("<", ">", ">>", "&>", "&>>", "<&", ">&", ">|") or not targets:
            self.problem(f"the redirection {self.show(node)} is not understood")
            return None
        redirects.append(Redirect(operator, targets[0]))
        words.extend(targets[1:])
        return None

    def here_document(self, node: Any, words: list[Word], redirects: list[Redirect], command: Any) -> str | None:
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        end = next((child for child in node.children if child.type == "heredoc_end"), None)
        delimiter = _DELIMITER.fullmatch(self.slice(start)) if start is not None else None
        if start is None or end is None or delimiter is None:
            self.problem(f"the here-document {self.show(node)} is not understood")
            return None
        quoted = delimiter[1] is None or b"\\" in self.slice(start)
        name = delimiter[1] or delimiter[2] or delimiter[3]
        dash = any(child.type == "<<-" for child in node.children)
        if self.slice(end).strip(b"\t" if dash else b"") != name:
            self.problem("a here-document does not end as it says")
        before = self.text[self.text.rfind(b"\n", 0, end.start_byte) + 1 : end.start_byte]
        behind = self.text[end.end_byte : end.end_byte + 1]
        if before.strip(b"\t" if dash else b"") or behind not in (b"", b"\n"):
            self.problem("the end of a here-document is not alone in its line")
        line_end = self.text.find(b"\n", node.start_byte)
        if self.text.count(b"<<", node.start_byte, line_end if line_end >= 0 else len(self.text)) > 1:
            self.problem("two here-documents in one line")
        line = [c for c in node.children if c.start_byte < (body or end).start_byte and c.id != end.id]
        stages = [(command.start_byte, command.end_byte)] if command is not None else [(node.start_byte, start.end_byte)]
        here = None
        for child in line:
            if here is not None and not _GAP.fullmatch(self.text, here, child.start_byte):
                self.problem("something behind the name of a here-document is not understood")
            here = child.end_byte
            if child.id == start.id:
                continue
            if child.type in _WORDS:
                if self.text[child.start_byte - 1 : child.start_byte] not in (b" ", b"\t", b"\n"):
                    self.problem(f"{self.show(child)} begins where another word ends")
                if not self.is_descriptor(child):
                    words.append(self.word(child))
            elif child.type.endswith("_redirect"):
                self.redirection(child, words, redirects)
            elif child.type == "pipeline":
                self.gaps(child, child.children)
                stages += [(c.start_byte, c.end_byte) for c in child.children if c.is_named]
                self.pipelines.append(Pipeline(tuple(stages)))
                for part in child.children:
                    self.push(part, self.depth + 1)
            elif child.is_named and child.type != "file_descriptor":
                self.push(child, self.depth + 1)
            elif not child.is_named and child.type not in ("<<", "<<-", "&&", "||", "|", "|&", "\n"):
                self.problem(f"{self.show(child)} is not understood")
        text = self.text[line_end + 1 : end.start_byte] if line_end >= 0 else b""
        if re.search(rb"^" + (rb"\t*" if dash else rb"") + re.escape(name) + rb"$", text, re.MULTILINE):
            self.problem("a here-document ends before its end")
        if any(child.type == "file_descriptor" and self.slice(child) != b"0" for child in node.children):
            return None  # not its standard input
        if quoted:
            return text.decode("utf-8", "surrogateescape")
        dynamic = self.inside(body, text, line_end + 1) if body is not None else False
        return None if dynamic or b"\\" in text else text.decode("utf-8", "surrogateescape")

    def inside(self, node: Any, text: bytes, offset: int) -> bool:
        """Reads a text in which variables and substitutions are expanded, but no quotes. Returns whether there are any."""
        spans = self.spans(node)
        place = 0
        found = False
        while place < len(text):
            span = spans.get(offset + place)
            if span is not None:
                self.expansion(span)
                found = True
                place = span.end_byte - offset
                continue
            if text[place] == 0x5C:
                place += 2
                continue
            if text[place] == 0x60 or (text[place] == 0x24 and re.match(rb"[\w{(@*#?$!\[-]", text[place + 1 : place + 2])):
                self.problem("an expansion in a here-document is not understood")
            place += 1
        return found

    # -- words ------------------------------------------------------------------------------------------------------------

    def spans(self, node: Any) -> dict[int, Any]:
        """Where in it something is expanded."""
        if not node.child_count:
            return {}
        found = {}
        todo = [node]
        while todo:
            here = todo.pop()
            if here.type in _EXPANSIONS:
                found[here.start_byte] = here
            elif here.child_count:
                todo.extend(here.children)
        return found

    def word(self, node: Any) -> Word:
        text = self.slice(node)
        if _PLAIN.fullmatch(text):
            word = text.decode("utf-8", "surrogateescape")
            if len(_plain) < 10_000 and len(word) < 100:
                _plain[text] = word
            return word
        quoted = _QUOTED.fullmatch(text)
        if quoted is not None:
            return text[1:-1].decode("utf-8", "surrogateescape")
        try:
            return self.evaluate(text, node.start_byte, self.spans(node))
        except _Problem as problem:
            self.problem(str(problem))
        except ValueError as error:
            self.problem(f"{self.show(node)}: {error}")
        return Dynamic(text.decode("utf-8", "replace"), many=True)

    def evaluate(self, raw: bytes, offset: int, spans: dict[int, Any]) -> Word:
        out: list[str] = []
        dynamic = many = False
        start: str | None = None
        text = raw.decode("latin-1")  # a byte, a character: places in one are places in the other
        place, end = 0, len(text)
        quoted = False
        if text.startswith("~"):
            user = re.match(r"~([^/]*)", text)
            assert user is not None
            place = user.end()
            if user[1] or self.home is None:
                dynamic, start = True, ""
            else:
                out.append(self.home.encode("utf-8", "surrogateescape").decode("latin-1"))
        if self.zsh and text.startswith("="):
            dynamic, start = True, ""

        def unknown(several: bool) -> None:
            nonlocal dynamic, many, start
            if start is None:
                start = "".join(out)
            dynamic = True
            many = many or several

        while place < end:
            # What means nothing to a shell is taken at once; nothing is expanded in it.
            run = (_QUOTED_RUN if quoted else _RUN).match(text, place)
            if run is not None:
                out.append(run[0])
                place = run.end()
                continue
            span = spans.get(offset + place) if spans else None
            if span is not None:
                several = self.expansion(span) or not quoted
                unknown(several)
                place = span.end_byte - offset
                continue
            char = text[place]
            if quoted:
                if char == '"':
                    quoted = False
                elif char == "\\" and text[place + 1 : place + 2] in ("$", "`", '"', "\\", "\n"):
                    place += 1
                    if text[place] != "\n":
                        out.append(text[place])
                elif char == "`" or (char == "$" and re.match(r"[\w{(@*#?$!\[-]", text[place + 1 : place + 2])):
                    raise _Problem(f"{raw.decode('utf-8', 'replace')!r} is not understood")
                else:
                    out.append(char)
                place += 1
                continue
            if char == '"':
                quoted = True
            elif char == "'":
                close = text.find("'", place + 1)
                if close < 0:
                    raise _Problem("a quote that does not end")
                out.append(text[place + 1 : close])
                place = close
            elif char == "\\":
                place += 1
                if place < end and text[place] == "\n":
                    raise _Problem("a word that goes on in the next line")
                out.append(text[place] if place < end else "\\")
            elif char == "$":
                following = text[place + 1 : place + 2]
                if following == "'":
                    close = place + 2
                    while close < end and text[close] != "'":
                        close += 2 if text[close] == "\\" else 1
                    if close >= end:
                        raise _Problem("a quote that does not end")
                    body = text[place + 2 : close]
                    if "\\'" in body and not self.bash and not self.zsh:
                        raise _Problem("$'...\\'...' ends elsewhere where the shell is not bash")
                    out.append(_ansi(body))
                    place = close
                elif following == '"':
                    unknown(False)
                elif re.match(r"[\w{(@*#?$!\[-]", following):
                    raise _Problem(f"{raw.decode('utf-8', 'replace')!r} is not understood")
                else:
                    out.append(char)
            elif char in "`;&|<>()\n \t":
                raise _Problem(f"{raw.decode('utf-8', 'replace')!r} is not one word")
            elif char in "*?[" and text not in ("[", "[["):
                unknown(True)
            elif char == "{":
                if text != "{}" and re.search(r",|\.\.", text[place:]):
                    unknown(True)
                else:
                    out.append(char)
            elif char == "~" and place and text[place - 1] in "=:":
                unknown(False)
            elif char < " " or char == "\x7f":
                raise _Problem(f"a control character in {raw.decode('utf-8', 'replace')!r}")
            else:
                out.append(char)
            place += 1
        if quoted:
            raise _Problem("a quote that does not end")
        if dynamic:
            shown = raw.decode("utf-8", "surrogateescape")
            return Dynamic(shown, many, (start or "").encode("latin-1").decode("utf-8", "surrogateescape"))
        return "".join(out).encode("latin-1").decode("utf-8", "surrogateescape")

    def expansion(self, node: Any) -> bool:
        """Looks into an expansion. Returns whether it may become several words even in quotes."""
        text = self.slice(node)
        kind = node.type
        if kind in ("command_substitution", "process_substitution"):
            self.push(node, self.depth + 1)
            return False
        if kind == "arithmetic_expansion":
            # A name in it is evaluated, and what it holds again, down to the commands in a subscript.
            if not _ARITHMETIC.fullmatch(text):
                self.problem(f"arithmetic with variables ({self.show(node)}) runs what they hold")
            return False
        if kind == "simple_expansion":
            if not _VARIABLE.fullmatch(text):  # the grammar lets `$` and a name be apart, which are two words
                self.problem(f"{self.show(node)} is not understood")
            return text in (b"$@", b"$*")
        form = _BRACED.fullmatch(text)
        if form is None:
            self.problem(f"{self.show(node)} is not understood")
        else:
            rest = form["rest"]
            assigned = re.match(rb"\$\{([A-Za-z_]\w*):?=", text)
            if assigned is not None:
                self.commands.append(Simple((), ((assigned[1].decode(), Dynamic(self.show(node))),), start=node.start_byte))
            if rest is not None:
                self.inner_expansions(node, node.end_byte - 1 - len(rest), rest)
        return b"@" in text

    def inner_expansions(self, node: Any, offset: int, rest: bytes) -> None:
        spans: dict[int, Any] = {}
        todo = list(node.children)
        while todo:
            here = todo.pop()
            if here.type in _INNER:
                spans[here.start_byte] = here
            elif here.child_count:
                todo.extend(here.children)
        place = 0
        while place < len(rest):
            span = spans.get(offset + place)
            if span is not None and span.end_byte > offset + place:
                self.expansion(span)
                place = span.end_byte - offset
                continue
            char = rest[place : place + 1]
            if char in b"`()<>\\" or (char == b"$" and rest[place + 1:place + 2] != b""):
                self.problem(f"{self.show(node)} is not understood")
                return
            place += 1

    # -- afterwards ---------------------------------------------------------------------------------------------------------

    def bomb(self) -> bool:
        """A function that calls itself from a pipeline or from the background."""
        for name, (start, end) in self.functions.items():
            calls = [c for c in self.commands if start < c.start < end and c.words and c.words[0] == name]
            piped = [p for p in self.pipelines if any(p.stage(call) >= 0 for call in calls)]
            if calls and (piped or re.search(rb"&(?![&>0-9])", self.text[start:end])):
                return True
        return False


def _ansi(body: str) -> str:
    """What `$'...'` stands for, a byte a character."""

    def one(match: re.Match[str]) -> str:
        octal, hexadecimal, short, long, control, other = match.groups()
        if octal is not None:
            code = int(octal, 8) & 0xFF
        elif hexadecimal is not None:
            code = int(hexadecimal, 16)
        elif short is not None or long is not None:
            code = int(short or long, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise _Problem("a character that is none")
            if code:
                return chr(code).encode("utf-8").decode("latin-1")
        elif control is not None:
            code = ord(control.upper()) ^ 0x40 if control != "?" else 0x7F
            code &= 0x7F
        else:
            return _ESCAPES.get(other, "\\" + other)
        if not code:
            raise _Problem("a NUL in a word")
        return chr(code)

    return _ANSI.sub(one, body)
