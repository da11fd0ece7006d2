"""Rules of `fbir.lark` for the statements of a graph."""

from __future__ import annotations

from typing import Any, cast

from ..expr import Const, Expr
from ..graph import ANode, ANodeKind, CNode, Graph, Phase, Replay, View
from ..span import Loc, Span
from .tokens import FILE, duration_of, integer, once, span_of, string, title

__all__ = ["GraphRules"]


class GraphRules:
    """Rules of the graph. An attribute becomes (key, token, value)."""

    def shape(self, c: list[Any]) -> tuple[Expr, ...]:
        return tuple(c)

    def anode(self, c: list[Any]) -> ANode:
        name, kind, dtype, shape, size = c
        return ANode(
            str(name[1:]), cast(ANodeKind, str(kind)), str(dtype[:-1]), shape, size, span_of(name)
        )

    def index(self, c: list[Any]) -> int:
        return integer(c[0])

    def view(self, c: list[Any]) -> View:
        index = c[3] if len(c) == 4 else None
        return View(str(c[0][1:]), str(c[1][1:]), c[2], index, span_of(c[0]))

    def writes(self, c: list[Any]) -> tuple[str | None, ...]:
        return tuple(None if token == "_" else str(token[1:]) for token in c)

    def time(self, c: list[Any]) -> tuple[str, Any, int]:
        return "time", c[0], duration_of(c[0])

    def workspace(self, c: list[Any]) -> tuple[str, Any, Expr]:
        return "workspace", c[0], c[1]

    def token(self, c: list[Any]) -> tuple[str, Any, str]:
        return "token", c[0], str(c[0][1:])

    def of(self, c: list[Any]) -> tuple[str, Any, tuple[str, ...]]:
        return "of", c[0], tuple(map(str, c))

    def at_place(self, c: list[Any]) -> tuple[str, Any, Loc]:
        file, _, line = c[0].rpartition(":")
        module = "" if c[1] is None else string(c[1])
        return "at", c[0], Loc(file, integer(line, c[0]), module)

    def at_quoted(self, c: list[Any]) -> tuple[str, Any, Loc]:
        first, line, module = c
        if line is None:
            return "at", first, Loc("", 0, string(first))
        place = Loc(string(first), integer(line), "" if module is None else string(module))
        return "at", first, place

    def replay(self, c: list[Any]) -> tuple[str, Any, Replay]:
        given = once(c[3:], "in this replay form")
        workspace = given.get("workspace", Const(0))
        return "replay", c[0], Replay(c[1] or (), c[2], workspace, given.get("time"))

    def cnode(self, c: list[Any]) -> CNode:
        label, phase, writes, call = c[:4]
        name = label.rstrip(": \t")
        where = Span(label.line, label.column, label.column + len(name), FILE.get())
        given = once(c[4:], f"for {name}") if len(c) > 4 else {}
        return CNode(
            name,
            cast(Phase, str(phase)),
            writes or (),
            call,
            given.get("replay"),
            given.get("token"),
            given.get("of", ()),
            given.get("workspace", Const(0)),
            given.get("time"),
            given.get("at"),
            where,
        )

    def graph(self, c: list[Any]) -> Graph:
        nodes = c[1:]
        return Graph(
            title(c[0]),
            tuple(node for node in nodes if type(node) is ANode),
            tuple(node for node in nodes if type(node) is View),
            tuple(node for node in nodes if type(node) is CNode),
        )
