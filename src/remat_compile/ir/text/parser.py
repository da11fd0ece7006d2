"""The reader of the text form: `parse_program`. `fbir.lark` is the grammar.

A file with mistakes is refused with all of them where that is possible: after a
syntax error inside a statement the next statements are still read; well-formedness is
checked, all of it, once the syntax is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, cast

from ..checks.wellformed import check_program
from ..collector import collector_paused
from ..diagnostics import Diagnostic, FBError
from ..program import Program
from ..schedule import STORAGE_STEPS
from ..span import Span
from .syntax import MAX_DEPTH
from .tables import Tables

if TYPE_CHECKING:
    from lark import Lark, Token, Transformer
    from lark.exceptions import UnexpectedInput

    from .regular import Patterns
    from .rules import StatementRules
    from .rules_calls import ValueRules

LONG = 1 << 16
"""Characters of a text that is read faster in runs of lines than the tables for them are made."""

MAX_SYNTAX_ERRORS = 20
RECOVERY_CHARACTERS = 1 << 20
"""Limit on the characters read again to report more than the first syntax error."""

WORDS = {
    "_NL": "the end of the line",
    "$END": "the end of the file",
    "REF": "a name such as %x",
    "AT": "a name such as @plan",
    "NAME": "a name",
    "WORD": "a word",
    "LABEL": "a label such as F1:",
    "OPERATOR": "an operator such as aten.mm.default(",
    "KEY": "name=value",
    "UNUSED": "_",
    "DTYPE": "a type such as f32[",
    "ATOM": "dtype:…, device:…, layout:…, format:… or complex:…",
    "CONSTANT": "true, false, none, inf or nan",
    "KIND": "a kind of aNode (input, param, act, …)",
    "PHASE": "fwd, loss, bwd or opt",
    "COSTS": "none, measured or roofline",
    "GRADS": "fresh or accumulate",
    "NOSAVE": "`nosave`",
    "ON_HOST": "`on host`",
    "WORKSPACE": "`workspace`",
    "REPLAY": "`replay`",
    "COMPARED": "`compared`",
    "LAYOUT": "order or strides",
    "ON_STORAGE": " or ".join(f"`{word}`" for word in STORAGE_STEPS),
    "DIVISION": "floordiv(, ceildiv( or roundup(",
    "MAXIMUM": "max(",
    "PLACE": "a place such as model.py:12",
    "STRING": "a string in quotes",
    "FLOAT": "a number with a point",
    "INT": "a whole number",
    "VERSION": "1",
    "TIME": "a time such as 12.4us",
    "SIZE": "a size such as 8GiB",
    "RATE": "a rate such as 50GB/s",
    "SIGN": "+ or -",
}
"""The name of a terminal of the grammar in messages."""

VERSION = "1"

_BEGINS = re.compile(r"(?:[ \t\r\n;]|//[^\n]*(?:\n|$))*")
_VERSION = re.compile(r"fbir[ \t\r]*((?!//)[^ \t\r\n;]+)")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SECTION = re.compile(
    r"\s*(?:fbir|captured|layouts|source|sha256|sym|target|graph|bind|schedule|proven)\b"
)
_PIECE = re.compile(r'"(?:[^"\\\n]|\\.)*"|[%@]?[A-Za-z0-9_.:+-]+|.')
_NESTING = re.compile(r'"(?:[^"\\\n]|\\.)*"|//|[()\[\]]')


def parse_program(text: str, file: str = "<text>") -> Program:
    """The program that `text` holds; `file` is named in messages.

    Raises FBError with the syntax errors (FB01xx), or else with every violation of
    well-formedness (FB02xx, FB0307, FB0308), each with its place.
    """
    with collector_paused():
        program = read_syntax(text, file)
        diagnostics = check_program(program, text, file)
    if diagnostics:
        raise FBError(diagnostics)
    return program


def read_syntax(
    text: str, file: str = "<text>", *, by_grammar_alone: bool | None = None
) -> Program:
    """The program that `text` spells, well-formed or not. Raises FBError for its syntax.

    `by_grammar_alone` says whether runs of regular lines are read token by token as well: the
    same result, slower. Left out, short texts are.
    """
    error = _before_parsing(text, file)
    if error is None:
        alone = len(text) < LONG if by_grammar_alone is None else by_grammar_alone
        program = (None if alone else read_quickly(text, file)) or _attempt(text, file)
        if isinstance(program, Program):
            return program
        error = program
    raise FBError((error, *_more(text, file, error)))


@cache
def grammar_tables() -> Tables:
    """Tables of the grammar alone: their verdict on a text is authoritative."""
    grammar = files(__package__).joinpath("fbir.lark").read_text(encoding="utf-8")
    return Tables("fbir.tables", grammar, ("start",))


@cache
def line_tables() -> Tables:
    """Tables of the same grammar with regular lines in one piece; `regular` says why both agree."""
    from .regular import with_regular_lines

    grammar = with_regular_lines(grammar_tables().grammar)
    return Tables("lines.tables", grammar, ("start", "call", "shape", "expr"))


@cache
def _lark() -> Lark:
    return _reader(grammar_tables())


@cache
def _quick() -> tuple[Lark, Patterns]:
    from .regular import Patterns

    return _reader(line_tables()), Patterns.of(grammar_tables().grammar)


def _reader(tables: Tables) -> Lark:
    from .rules_calls import ValueRules

    return tables.reader(cast("Transformer[Token, object]", _Inlined(ValueRules())))


class _Inlined:
    """Rules that take the parts of what they match as parameters, for a parser that gives lists.

    lark's `v_args(inline=True)` is the same, and takes three calls more for every node of a text.
    """

    def __init__(self, rules: ValueRules):
        self._rules = rules

    def __getattr__(self, name: str) -> Callable[[list[object]], object]:
        rule: Callable[..., object] = getattr(self._rules, name)
        return lambda parts: rule(*parts)


def _read(lark: Lark, text: str, rules: StatementRules) -> Program:
    tree = lark.parse(text.removeprefix("\ufeff") + "\n", "start")
    return cast(Program, rules.build(tree))


def read_quickly(text: str, file: str = "<text>") -> Program | None:
    """The program, with runs of regular lines in one piece; None where that does not do.

    What it gives is what the grammar alone reads (`regular` says why); of None follows nothing.
    """
    from lark.exceptions import UnexpectedInput

    from .regular import Irregular, RegularRules

    if _before_parsing(text, file) is not None:
        return None
    lark, patterns = _quick()
    try:
        return _read(lark, text, RegularRules(file, patterns, lark.parse))
    except (UnexpectedInput, FBError, Irregular, ValueError):
        return None


def _attempt(text: str, file: str) -> Program | Diagnostic:
    from lark.exceptions import UnexpectedInput

    from .rules import StatementRules

    try:
        return _read(_lark(), text, StatementRules(file))
    except UnexpectedInput as error:
        return _explain(error, text, file)
    except FBError as error:
        return _placed(error.diagnostics[0], file)


def _placed(diagnostic: Diagnostic, file: str) -> Diagnostic:
    """Adds the file to refusals: rules of values do not know which file is read."""
    notes = tuple(replace(note, span=_in_file(note.span, file)) for note in diagnostic.notes)
    return replace(diagnostic, span=_in_file(diagnostic.span, file), notes=notes)


def _in_file(span: Span | None, file: str) -> Span | None:
    return span and replace(span, file=file)


def _before_parsing(text: str, file: str) -> Diagnostic | None:
    """The errors of the text as a whole."""
    if control := _CONTROL.search(text):
        where = _place(text, control.start(), 1, file)
        return Diagnostic("FB0104", f"U+{ord(control[0]):04X} cannot stand in a file", where)
    body = text.removeprefix("\ufeff")
    start = _BEGINS.match(body)
    first = 0 if start is None else start.end()
    if not re.compile(r"fbir\b").match(body, first):
        piece = _PIECE.match(body, first)
        where = _place(body, first, len(piece[0]) if piece else 1, file)
        hint = "the first line of a program is `fbir 1`"
        return Diagnostic("FB0102", "this is not a program in text form", where, hint=hint)
    version = _VERSION.match(body, first)
    if version and version[1] != VERSION:
        where = _place(body, version.start(1), len(version[1]), file)
        hint = "write it again with this version of remat-compile"
        message = f"version {version[1][:20]} of the text form; this reads version {VERSION}"
        return Diagnostic("FB0102", message, where, hint=hint)
    for number, line in enumerate(body.split("\n"), 1):
        if line.count("[") + line.count("(") > MAX_DEPTH and (column := _too_deep(line)):
            message = f"brackets nest deeper than {MAX_DEPTH}"
            return Diagnostic("FB0109", message, Span(number, column, column + 1, file))
    return None


def _too_deep(line: str) -> int | None:
    """The column of the bracket that nests too deep."""
    depth = 0
    for piece in _NESTING.finditer(line):
        match piece[0]:
            case "//":
                return None
            case "(" | "[":
                depth += 1
                if depth > MAX_DEPTH:
                    return piece.start() + 1
            case ")" | "]":
                depth -= 1
    return None


def _place(text: str, position: int, length: int, file: str) -> Span:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return Span(line, column, column + length, file)


def _explain(error: UnexpectedInput, text: str, file: str) -> Diagnostic:
    from lark.exceptions import UnexpectedToken

    lines = text.removeprefix("\ufeff").split("\n")
    if isinstance(error, UnexpectedToken):
        expected = _in_words(error.accepts or error.expected)
        if error.token.type == "$END" or error.token.line > len(lines):
            last = len(text.rstrip("\n").split("\n"))
            where = Span(last, len(lines[last - 1]) + 1, len(lines[last - 1]) + 2, file)
            return Diagnostic("FB0103", f"the file ends here; expected {expected}", where)
    else:
        expected = _in_words(getattr(error, "allowed", None) or ())
    line, column = error.line, error.column
    rest = lines[line - 1][column - 1 :]
    piece = _PIECE.match(rest)
    token = piece[0] if piece else ""
    where = Span(line, column, column + max(1, len(token)), file)
    if token == '"':
        return Diagnostic("FB0110", "this string does not end on its line", where)
    if not token or rest.startswith("//"):
        return Diagnostic("FB0101", f"the line ends here; expected {expected}", where)
    return Diagnostic("FB0101", f"`{token}` cannot stand here; expected {expected}", where)


def _in_words(terminals: Iterable[str]) -> str:
    patterns = {t.name: t.pattern.value for t in _lark().terminals}
    words = sorted({WORDS.get(name) or f"`{patterns.get(name, name)}`" for name in terminals})
    if len(words) < 2:
        return "".join(words) or "something else"
    return ", ".join(words[:-1]) + " or " + words[-1]


def _more(text: str, file: str, first: Diagnostic) -> list[Diagnostic]:
    """Further errors: the statement that failed is left out, and the rest read again.

    A statement that is spelled right and means nothing is found once all is spelled right, so
    an error may stand before the one that was found first.
    """
    diagnostics: list[Diagnostic] = []
    lines = text.split("\n")
    last = first
    reads = RECOVERY_CHARACTERS // max(1, len(text))
    while len(diagnostics) < min(reads, MAX_SYNTAX_ERRORS):
        if last.span is None or last.code not in ("FB0101", "FB0105", "FB0106", "FB0108", "FB0110"):
            break
        line = lines[last.span.line - 1]
        if not line or _SECTION.match(line) or line.count("{") != line.count("}"):
            break
        if line.strip() == "}":
            break
        lines[last.span.line - 1] = ""
        result = _attempt("\n".join(lines), file)
        if isinstance(result, Program) or result.span is None:
            break
        diagnostics.append(result)
        last = result
    return diagnostics
