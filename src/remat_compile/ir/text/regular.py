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
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..expr import Const, Expr
from ..graph import ANode, Arg, Call, CNode, Ref, View
from ..schedule import Compute, Free, HostFree, Offload, Prefetch, Step, Wait
from ..span import Loc, Span
from .printer import format_statement, format_step
from .syntax import duration_ns, unquote
from .tokens import FILE

__all__ = ["Irregular", "RegularRules", "with_regular_lines"]

SHORT = 18
"""Digits of a number that is read here."""

REMEMBERED = 1 << 14
"""How many expressions and calls are kept so that equal ones are read once."""

_TERMINAL = re.compile(r'^([A-Z]+)(?:\.\d+)?: (?:/(.+)/|"(.+)")$', re.MULTILINE)
_OPENS_GROUP = re.compile(r"(?<!\\)\((?!\?)")
_STEPS: dict[str, Callable[[str, Span], Step]] = {
    "free": Free,
    "offload": Offload,
    "prefetch": Prefetch,
    "wait": Wait,
    "hostfree": HostFree,
}
# <X> stands for the terminal X of the grammar, (<X>) for the part of the line that it matches.
# Arguments and sizes are taken as text here and read by the grammar.
_CALL = r"(<OPERATOR>[^\(\)\"\/;{}\n]*\))"
_ON_ANODE = "|".join(f"<{word.upper()}>" for word in _STEPS)
_ANODE = r"(<REF>) : (<KIND>) (<DTYPE>)([^\[\]\"\/;{}\n]*)\] bytes ([^\[\]\"\/;{}\n]+)"
_VIEW = rf"(<REF>) = view of (<REF>) {_CALL}(?:\[(<INT>)\])?"
_CNODE = (
    r"(<NAME>): (<PHASE>)(?: ((?:<REF>|<UNUSED>)(?:, (?:<REF>|<UNUSED>))*) =)? "
    rf"{_CALL}(?: of (<NAME>(?:, <NAME>)*))?(?: token (<REF>))?(?: <WORKSPACE> (<INT>))?"
    r"(?: time (<TIME>))?(?: at (<PLACE>)(?: (<STRING>))?)?"
)
_STEP = rf"(?:({_ON_ANODE}) (<REF>)|(?!{_ON_ANODE})(<NAME>)( <NOSAVE>)?)"
_RUNS = (
    ("_statement", "graph_lines", f"(?:{_ANODE}|{_VIEW}|{_CNODE})"),
    ("_step", "schedule_lines", _STEP),
)
"""A place of the grammar, the rule added there, and a line of the run it reads."""


class Irregular(Exception):
    """A line that looks regular and is not what the printer writes."""


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
    return re.sub("<([A-Z]+)>", lambda found: f"(?:{terminal[found[1]]})", pattern)


class RegularRules:
    """The rules of runs of lines. `read(text, start)` reads a part of a line by the grammar."""

    def __init__(self, grammar: str, read: Callable[[str, str], Any]):
        self._reader = _LineReader(grammar, read)

    def graph_lines(self, c: list[Any]) -> list[ANode | View | CNode]:
        nodes = []
        for line, number, column, file in _lines(c[0]):
            node = self._reader.statement(line, number, column, file)
            if format_statement(node) != line:
                raise Irregular
            nodes.append(node)
        return nodes

    def schedule_lines(self, c: list[Any]) -> list[Step]:
        steps = []
        for line, number, column, file in _lines(c[0]):
            step = self._reader.step(line, Span(number, column, column + len(line), file))
            if format_step(step) != line:
                raise Irregular
            steps.append(step)
        return steps


class _LineReader:
    """One node or step of one line. What it takes wrongly, the printer writes otherwise."""

    def __init__(self, grammar: str, read: Callable[[str, str], Any]):
        patterns = (_ANODE, _VIEW, _CNODE, _STEP, "<REF>")
        compiled = (re.compile(_filled(pattern, grammar)) for pattern in patterns)
        self._anode_line, self._view_line, self._cnode_line, self._step_line, self._ref = compiled
        self._shape = lru_cache(REMEMBERED)(lambda text: read(text, "shape"))
        self._expr = lru_cache(REMEMBERED)(lambda text: read(text, "expr"))
        self._pattern = lru_cache(REMEMBERED)(lambda text: read(text, "call"))

    def statement(self, line: str, number: int, column: int, file: str) -> ANode | View | CNode:
        if line[0] != "%":
            parts = _parts(self._cnode_line.fullmatch(line))
            return self._cnode(parts, Span(number, column, column + len(parts[0]), file))
        if found := self._anode_line.fullmatch(line):
            return self._anode(found.groups(), Span(number, column, column + found.end(1), file))
        parts = _parts(self._view_line.fullmatch(line))
        return self._view(parts, Span(number, column, column + len(parts[0]), file))

    def step(self, line: str, where: Span) -> Step:
        word, anode, cnode, nosave = _parts(self._step_line.fullmatch(line))
        return _STEPS[word](anode[1:], where) if word else Compute(cnode, bool(nosave), where)

    def _anode(self, parts: Sequence[Any], where: Span) -> ANode:
        name, kind, dtype, shape, size = parts
        if "(" in shape:
            dims = self._shape(shape)
        else:
            dims = tuple(map(self._expression, shape.split(", "))) if shape else ()
        return ANode(name[1:], kind, dtype[:-1], dims, self._expression(size), where)

    def _view(self, parts: Sequence[Any], where: Span) -> View:
        name, base, call, index = parts
        return View(name[1:], base[1:], self._call(call), index and _whole(index), where)

    def _cnode(self, parts: Sequence[Any], where: Span) -> CNode:
        name, phase, writes, call, of, token, workspace, time, place, module = parts
        return CNode(
            name,
            phase,
            tuple(None if w == "_" else w[1:] for w in writes.split(", ")) if writes else (),
            self._call(call),
            None,
            token and token[1:],
            tuple(of.split(", ")) if of else (),
            Const(_whole(workspace)) if workspace else Const(0),
            duration_ns(time) if time else None,
            _place(place, module) if place else None,
            where,
        )

    def _expression(self, text: str) -> Expr:
        return Const(_whole(text)) if text.isdecimal() else self._expr(text)

    def _call(self, text: str) -> Call:
        """Calls that differ in nothing but names of aNodes are read by the grammar once."""
        pattern: Call = self._pattern(self._ref.sub("%_", text))
        names = map(Ref, [name[1:] for name in self._ref.findall(text)])
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


def _lines(run: Any) -> Iterator[tuple[str, int, int, str]]:
    """The lines of a run without indentation: text, line number, column, file."""
    file = FILE.get()
    first, *others = run.split("\n  ")
    yield first, run.line, run.column, file
    for number, line in enumerate(others, run.line + 1):
        yield line, number, 3, file


def _parts(found: re.Match[str] | None) -> Sequence[Any]:
    if found is None:
        raise Irregular
    return found.groups()


def _place(place: str, module: str | None) -> Loc:
    file, _, number = place.rpartition(":")
    return Loc(file, _whole(number), unquote(module) if module else "")
