"""Rules of `fbir.lark` for the statements of a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from lark import Token, Tree

from ..expr import Expr
from ..graph import ANode, ANodeKind, Call, CNode, Graph, InnerCall, Phase, View
from ..span import Span
from .tokens import Entry, once, span_of, title


class GraphRules:
    """Nodes with their places in `file`, out of what the rules inside a statement made."""

    def __init__(self, file: str):
        self._file = file

    def build(self, part: object) -> object:
        """The rules' results for a tree: a method takes the parts of its node as parameters."""
        if type(part) is not Tree:
            return part
        return getattr(self, part.data)(*map(self.build, part.children))

    def _span(self, token: Token, last: Token | None = None) -> Span:
        return span_of(token, last, self._file)

    def anode(
        self, name: Token, kind: Token, dtype: Token, shape: tuple[Expr, ...], size: Expr
    ) -> ANode:
        where = self._span(name)
        return ANode(name[1:], cast(ANodeKind, str(kind)), dtype[:-1], shape, size, where)

    def view(self, name: Token, base: Token, call: Call, index: int | None) -> View:
        return View(name[1:], base[1:], call, index, self._span(name))

    def cnode(
        self,
        label: Token,
        phase: Token,
        writes: tuple[str | None, ...] | None,
        call: Call,
        region: tuple[InnerCall, ...] | None,
        *attributes: Entry,
    ) -> CNode:
        name = label.rstrip(": \t")
        place = self._span(label)
        span = Span(place.line, place.column, place.column + len(name), self._file)
        if region:
            call = replace(call, region=region)
        given = once(attributes, f"for {name}") if attributes else {}
        return CNode(name, cast(Phase, str(phase)), writes or (), call, **given, span=span)

    def graph(self, name: Token, *nodes: ANode | View | CNode) -> Graph:
        return Graph(
            title(name),
            tuple(node for node in nodes if type(node) is ANode),
            tuple(node for node in nodes if type(node) is View),
            tuple(node for node in nodes if type(node) is CNode),
        )
