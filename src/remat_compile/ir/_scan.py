"""A quick reader of regular lines: what the printer writes, without strings or replay forms.

`fbir.lark` stays the one definition of the language. A line that this module
recognises is taken out of the text before the grammar sees it and its node is put back
afterwards; literals and expressions inside such a line are read by the grammar too,
each distinct one once. If the grammar refuses the rest, the whole text is read by
the grammar alone, so that messages never depend on this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

from ._syntax import duration_ns
from .expr import Const, Expr
from .graph import ANode, Arg, Call, CNode, Graph, Ref, View
from .program import Program
from .schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Step, Wait
from .span import Loc, Span

__all__ = ["Scan", "Scanner"]

_REF = r"%[A-Za-z0-9_][A-Za-z0-9_.]*"
_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
_CALL = rf"({_NAME})\(([^()\"/]*)\)"
_WRITTEN = rf"(?:{_REF}|_(?![A-Za-z0-9_.]))"
_ANODE = re.compile(
    rf"  ({_REF}) : (input|param_grad|param|buffer|const|tangent|act|phantom|grad|output|pending"
    r"|rng|opt_state) ([A-Za-z][A-Za-z0-9]*)\[([^\[\]\"/()]*)\] bytes ([^\"/;]+)"
)
_VIEW = re.compile(rf"  ({_REF}) = view of ({_REF}) {_CALL}(?:\[([0-9]{{1,9}})\])?")
_CNODE = re.compile(
    rf"  ({_NAME}): (fwd|loss|bwd|opt)(?: ({_WRITTEN}(?:, {_WRITTEN})*) =)? {_CALL}"
    rf"(?: of ({_NAME}(?:, {_NAME})*))?(?: token ({_REF}))?(?: workspace ([0-9]{{1,18}}))?"
    r"(?: time ([0-9]+(?:\.[0-9]+)?(?:ns|us|ms|s)))?"
    r"(?: at ([A-Za-z0-9_.\\+@~-]+):([0-9]{1,9})(?: \"([^\"\\]*)\")?)?"
)
_COMPUTE = re.compile(rf"  ({_NAME})( nosave)?")
_ON_ANODE = re.compile(rf"  (free|offload|prefetch|wait|hostfree) ({_REF})")
_GRAPH = re.compile(r"graph @[^ \";/]+ \{")
_SCHEDULE = re.compile(r"schedule @[^ \";/]+ (?:by \"[^\"\\]*\" )?\{")
_PIECE = re.compile(r"(\[[^\[\]]*\]|[^,\[\]]+)(?:, (?!$)|$)")
_PLAIN_INT = re.compile(r"-?[0-9]{1,18}")
_PLAIN_REF = re.compile(_REF)
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")

_STEPS: dict[str, Callable[[str, Span], Step]] = {
    "free": Free,
    "offload": Offload,
    "prefetch": Prefetch,
    "wait": Wait,
    "hostfree": HostFree,
}
_STEP_WORDS = frozenset((*_STEPS, "nosave"))


@dataclass
class Scan:
    """What was recognised: the remaining text, and the nodes and steps by their lines."""

    rest: str = ""
    nodes: list[ANode | View | CNode] = field(default_factory=list)
    steps: list[list[Step]] = field(default_factory=list)

    def merged(self, program: Program) -> Program:
        """The program that the grammar read from `rest`, with what was recognised put in."""
        graph = program.graph
        nodes = sorted((*graph.anodes, *graph.views, *graph.cnodes, *self.nodes), key=_line)
        graph = Graph(
            graph.name,
            tuple(node for node in nodes if type(node) is ANode),
            tuple(node for node in nodes if type(node) is View),
            tuple(node for node in nodes if type(node) is CNode),
        )
        by_schedule = self.steps or [[] for _ in program.schedules]
        schedules = tuple(
            Schedule(s.name, s.planner, tuple(sorted((*s.steps, *steps), key=_line)), s.span)
            for s, steps in zip(program.schedules, by_schedule, strict=True)
        )
        return replace(program, graph=graph, schedules=schedules)


def _line(node: ANode | View | CNode | Step) -> tuple[int, int]:
    return (0, 0) if node.span is None else (node.span.line, node.span.column)


class Scanner:
    """`parse(text, start)` reads one `argument` or `expr` by the grammar, or raises ValueError."""

    def __init__(self, parse: Callable[[str, str], Any]):
        self._literal = cache(lambda text: parse(text, "argument"))
        self._expr = cache(lambda text: parse(text, "expr"))

    def scan(self, text: str, file: str) -> Scan:
        """Recognises what it can."""
        found = Scan()
        rest: list[str] = []
        inside = ""
        for number, line in enumerate(text.split("\n"), 1):
            if inside == "graph" and (node := self._statement(line, number, file)):
                found.nodes.append(node)
                line = ""
            elif inside == "schedule" and (step := _step(line, number, file)):
                found.steps[-1].append(step)
                line = ""
            elif line == "}":
                inside = ""
            elif line.startswith("graph ") and _GRAPH.fullmatch(line):
                inside = "graph"
            elif line.startswith("schedule "):
                inside = "schedule" if _SCHEDULE.fullmatch(line) else ""
                found.steps.append([])
            rest.append(line)
        found.rest = "\n".join(rest)
        return found

    def _statement(self, line: str, number: int, file: str) -> ANode | View | CNode | None:
        try:
            return self._recognised(line, number, file)
        except ValueError:
            return None

    def _recognised(self, line: str, number: int, file: str) -> ANode | View | CNode | None:
        if line.startswith("  %"):
            if found := _ANODE.fullmatch(line):
                return self._anode(found, number, file)
            return self._view(found, number, file) if (found := _VIEW.fullmatch(line)) else None
        return self._cnode(found, number, file) if (found := _CNODE.fullmatch(line)) else None

    def _anode(self, found: re.Match[str], number: int, file: str) -> ANode:
        name, kind, dtype, shape, size = found.groups()
        parts = tuple(map(self._expression, shape.split(", "))) if shape else ()
        where = Span(number, 3, 3 + len(name), file)
        return ANode(name[1:], cast(Any, kind), dtype, parts, self._expression(size), where)

    def _view(self, found: re.Match[str], number: int, file: str) -> View:
        name, base, op, arguments, index = found.groups()
        where = Span(number, 3, 3 + len(name), file)
        call = self._call(op, arguments)
        return View(name[1:], base[1:], call, None if index is None else int(index), where)

    def _cnode(self, found: re.Match[str], number: int, file: str) -> CNode:
        name, phase, writes, op, arguments, of, token, workspace, time, place, line, module = (
            found.groups()
        )
        return CNode(
            name,
            cast(Any, phase),
            tuple(None if w == "_" else w[1:] for w in writes.split(", ")) if writes else (),
            self._call(op, arguments),
            None,
            token and token[1:],
            tuple(of.split(", ")) if of else (),
            Const(int(workspace)) if workspace else Const(0),
            duration_ns(time) if time else None,
            Loc(place, int(line), module or "") if place else None,
            Span(number, 3, 3 + len(name), file),
        )

    def _expression(self, text: str) -> Expr:
        if _PLAIN_INT.fullmatch(text):
            return Const(int(text))
        expr: Expr = self._expr(text)
        return expr

    def _call(self, op: str, text: str) -> Call:
        if not text:
            return Call(op)
        if "=" not in text:
            return Call(op, self._arguments(text))
        plain: list[Arg] = []
        named: dict[str, Arg] = {}
        for piece in _pieces(text):
            if key := _KEY.match(piece):
                if key[1] in named:
                    raise ValueError
                named[key[1]] = self._argument(piece[key.end() :])
            elif named:
                raise ValueError
            else:
                plain.append(self._argument(piece))
        return Call(op, tuple(plain), tuple(named.items()))

    def _arguments(self, text: str) -> tuple[Arg, ...]:
        return tuple(self._argument(piece) for piece in _pieces(text))

    def _argument(self, text: str) -> Arg:
        if text.startswith("%"):
            if not _PLAIN_REF.fullmatch(text):
                raise ValueError
            return Ref(text[1:])
        if text.startswith("[") and "%" in text:
            return self._arguments(text[1:-1])
        if _PLAIN_INT.fullmatch(text):
            return int(text)
        literal: Arg = self._literal(text)
        return literal


def _pieces(text: str) -> list[str]:
    """The arguments of a call or a list, apart at the commas between them."""
    if "[" not in text:
        return text.split(", ")
    pieces = []
    at = 0
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            raise ValueError
        pieces.append(found[1])
        at = found.end()
    return pieces


def _step(line: str, number: int, file: str) -> Step | None:
    if found := _ON_ANODE.fullmatch(line):
        return _STEPS[found[1]](found[2][1:], Span(number, 3, 3 + len(line) - 2, file))
    found = _COMPUTE.fullmatch(line)
    if found is None or found[1] in _STEP_WORDS:
        return None
    return Compute(found[1], found[2] is not None, Span(number, 3, 3 + len(line) - 2, file))
