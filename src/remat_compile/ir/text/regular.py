"""Regular lines: what the printer writes for statements and steps, read without the grammar.

`fbir.lark` is the one definition of the language; reading by it alone takes five times as
long. `with_regular_lines` adds to it, at the two places where a statement of a graph and a
step of a schedule may stand, one terminal for a run of whole lines, put together from the
grammar's own terminals. Why that is still one language:

* Where a run may stand is decided by the grammar's automaton: exactly where it would read a
  statement (or a step) and then others. Sections, their order and braces are read as ever.
* What a line says is checked against the printer: the node or step that was built is
  written again, and must give the line, character by character. Its names are what the
  terminals for names match, so the printer can write it, and what the printer writes the
  grammar reads as that very node (the round trip that the tests hold it to).
* A line that fails this, and every error, sends the whole text to the grammar alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias, TypeVar, cast

from lark import Token

from ..expr import Const, Expr
from ..graph import ANode, ANodeKind, Arg, Call, CNode, Graph, Phase, Ref, View
from ..schedule import STORAGE_STEPS, Compute, Schedule, Step
from ..span import Loc, Span
from .printer import format_statement, format_step
from .rules import StatementRules
from .syntax import duration_ns, unquote
from .tokens import span_of

T = TypeVar("T")
Node: TypeAlias = ANode | View | CNode

SHORT = 18
"""Digits of a number that is read here."""

_TERMINAL = re.compile(r'^([A-Z_]+)(?:\.\d+)?: (?:/(.+)/|"(.+)")$', re.MULTILINE)
_OPENS_GROUP = re.compile(r"(?<!\\)\((?!\?)")
# <X> stands for the terminal X of the grammar, (<X>) for the part of the line that it matches.
# Arguments and sizes are taken as text here and read by the grammar.
_CALL = r"(<OPERATOR>[^\(\)\"\/;{}\n]*\))"
_ANODE = r"(<REF>) : (<KIND>) (<DTYPE>)([^\[\]\"\/;{}\n]*)\] bytes ([^\[\]\"\/;{}\n]+)"
_VIEW = rf"(<REF>) = view of (<REF>) {_CALL}(?:\[(<INT>)\])?"
_CNODE = (
    r"(<NAME>): (<PHASE>)(?: ((?:<REF>|<UNUSED>)(?:, (?:<REF>|<UNUSED>))*) =)? "
    rf"{_CALL}(?: of (<NAME>(?:, <NAME>)*))?(?: token (<REF>))?(?: <WORKSPACE> (<INT>))?"
    r"(?: time (<TIME>))?(?: at (<PLACE>)(?: (<STRING>))?)?"
)
_STEP = r"(?:(<ON_STORAGE>) (<REF>)|(?!<ON_STORAGE>)(<NAME>)( <NOSAVE>| <ON_HOST>)?)"
_RUNS = (
    ("_statement", "graph_lines", f"(?:{_ANODE}|{_VIEW}|{_CNODE})"),
    ("_step", "schedule_lines", _STEP),
)
"""A place of the grammar, the rule added there, and a line of the run it reads."""


class Irregular(Exception):
    """A line that looks regular and is not what the printer writes."""


class Patterns(NamedTuple):
    """The regular lines, and a name in one."""

    anode: re.Pattern[str]
    view: re.Pattern[str]
    cnode: re.Pattern[str]
    step: re.Pattern[str]
    ref: re.Pattern[str]

    @classmethod
    def of(cls, grammar: str) -> Patterns:
        lines = (_ANODE, _VIEW, _CNODE, _STEP, "<REF>")
        return cls(*(re.compile(_filled(line, grammar)) for line in lines))


def with_regular_lines(grammar: str) -> str:
    """The grammar in which a run of regular lines is one token."""
    added = []
    for place, rule, pattern in _RUNS:
        line = _OPENS_GROUP.sub("(?:", _filled(pattern, grammar)) + r"(?=\n)"
        added.append(f"%extend {place}: {rule}")
        added.append(f"{rule}: {rule.upper()}")
        added.append(rf"{rule.upper()}.9: /{line}(?:\n  {line})*/")
    return "\n".join([grammar, *added, ""])


def _filled(pattern: str, grammar: str) -> str:
    terminal = {name: regex or word for name, regex, word in _TERMINAL.findall(grammar)}
    return re.sub("<([A-Z_]+)>", lambda match: f"(?:{terminal[match[1]]})", pattern)


class RegularRules(StatementRules):
    """The rules with those of runs of lines. `read(text, start)` reads a part of a line."""

    def __init__(self, file: str, patterns: Patterns, read: Callable[[str, str], object]):
        super().__init__(file)
        self._reader = _LineReader(patterns, read)

    def graph_lines(self, run: Token) -> list[Node]:
        nodes = []
        for line, number, column in _lines(run):
            node = self._reader.statement(line, number, column, self._file)
            if format_statement(node) != line:
                raise Irregular
            nodes.append(node)
        return nodes

    def schedule_lines(self, run: Token) -> list[Step]:
        steps = []
        for line, number, column in _lines(run):
            where = Span(number, column, column + len(line), self._file)
            step = self._reader.step(line, where)
            if format_step(step) != line:
                raise Irregular
            steps.append(step)
        return steps

    def graph(self, name: Token, *parts: Node | list[Node]) -> Graph:
        nodes: list[Node] = _flat(parts)
        return super().graph(name, *nodes)

    def schedule(self, name: Token, planner: Token | None, *parts: Step | list[Step]) -> Schedule:
        steps: list[Step] = _flat(parts)
        return super().schedule(name, planner, *steps)


def _flat(parts: Iterable[T | list[T]]) -> list[T]:
    """The parts, with those of runs of lines in their places."""
    return [one for part in parts for one in (part if isinstance(part, list) else (part,))]


class _LineReader:
    """One node or step of one line. What it takes wrongly, the printer writes otherwise.

    Equal shapes, expressions and calls of a text are read by the grammar once. Equal names and
    numbers are one object: what is read of a long text takes a quarter less memory by it.
    """

    def __init__(self, patterns: Patterns, read: Callable[[str, str], object]):
        self._lines = patterns
        expr = cache(lambda text: cast(Expr, read(text, "expr")))
        self._number = number = cache(lambda text: Const(_whole(text)))
        self._pattern = cache(lambda text: cast(Call, read(text, "call")))
        self._ref = cache(Ref)
        self._known: dict[str, str] = {}

        def expression(text: str) -> Expr:
            return number(text) if text.isdecimal() else expr(text)

        @cache
        def dims(shape: str) -> tuple[Expr, ...]:
            if "(" in shape:
                return cast("tuple[Expr, ...]", read(shape, "shape"))
            return tuple(map(expression, shape.split(", "))) if shape else ()

        # None of these knows the reader: what it has read by them goes with it, in no cycle.
        self._expression, self._dims = expression, dims

    def statement(self, line: str, number: int, column: int, file: str) -> Node:
        if line[0] != "%":
            parts = _parts(self._lines.cnode.fullmatch(line))
            return self._cnode(parts, Span(number, column, column + len(parts[0]), file))
        if match := self._lines.anode.fullmatch(line):
            return self._anode(match.groups(), Span(number, column, column + match.end(1), file))
        parts = _parts(self._lines.view.fullmatch(line))
        return self._view(parts, Span(number, column, column + len(parts[0]), file))

    def step(self, line: str, where: Span) -> Step:
        word, anode, cnode, how = _parts(self._lines.step.fullmatch(line))
        if word:
            return STORAGE_STEPS[" ".join(word.split())](self._one(anode[1:]), where)
        return Compute(self._one(cnode), how == " nosave", how == " on host", where)

    def _one(self, name: str) -> str:
        """The same string for equal ones."""
        return self._known.setdefault(name, name)

    def _anode(self, parts: Sequence[str], where: Span) -> ANode:
        name, kind, dtype, shape, size = parts
        return ANode(
            self._one(name[1:]),
            cast(ANodeKind, self._one(kind)),
            self._one(dtype[:-1]),
            self._dims(shape),
            self._expression(size),
            where,
        )

    def _view(self, parts: Sequence[str], where: Span) -> View:
        name, base, call, index = parts
        names = self._one(name[1:]), self._one(base[1:])
        return View(*names, self._call(call), _whole(index) if index else None, where)

    def _cnode(self, parts: Sequence[str], where: Span) -> CNode:
        name, phase, writes, call, of, token, workspace, time, place, module = parts
        return CNode(
            self._one(name),
            cast(Phase, self._one(phase)),
            tuple(None if w == "_" else self._one(w[1:]) for w in writes.split(", "))
            if writes
            else (),
            self._call(call),
            None,
            token and self._one(token[1:]),
            tuple(map(self._one, of.split(", "))) if of else (),
            self._number(workspace or "0"),
            duration_ns(time) if time else None,
            self._place(place, module) if place else None,
            where,
        )

    def _place(self, place: str, module: str | None) -> Loc:
        file, _, number = place.rpartition(":")
        return Loc(self._one(file), _whole(number), self._one(unquote(module)) if module else "")

    def _call(self, text: str) -> Call:
        """Calls that differ in nothing but names of aNodes are read by the grammar once."""
        pattern: Call = self._pattern(self._lines.ref.sub("%_", text))
        names = map(self._ref, [self._one(name[1:]) for name in self._lines.ref.findall(text)])
        args = tuple(_named(arg, names) for arg in pattern.args)
        kwargs = tuple((key, _named(arg, names)) for key, arg in pattern.kwargs)
        return Call(pattern.op, args, kwargs)


def _named(arg: Arg, names: Iterator[Ref]) -> Arg:
    """The argument with the next names in the places of names."""
    if type(arg) is Ref:
        return next(names)
    return tuple(_named(part, names) for part in arg) if type(arg) is tuple else arg


def _whole(digits: str) -> int:
    """Numbers near the limit of the language are left to the grammar."""
    if len(digits) > SHORT:
        raise Irregular
    return int(digits)


def _lines(run: Token) -> Iterator[tuple[str, int, int]]:
    """The lines of a run without indentation: text, line number, column."""
    place = span_of(run)
    first, *others = run.split("\n  ")
    yield first, place.line, place.column
    for number, line in enumerate(others, place.line + 1):
        yield line, number, 3


def _parts(match: re.Match[str] | None) -> Sequence[str]:
    if match is None:
        raise Irregular
    return match.groups()
