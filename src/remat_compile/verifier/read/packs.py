"""Packed values, as the proof sees them: which aNode stands for which, by the axiom of a codec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...ir.codecs import PACKS, UNPACKS, is_codec
from ...ir.expr import Const, Expr
from ...ir.graph import ANode, Arg, CNode, Graph, Ref
from ...ir.span import Span

Contradiction = tuple[str, Span | None]


def stand_ins(
    graph: Graph, anodes: Mapping[str, ANode], writer: Mapping[str, CNode]
) -> tuple[dict[str, str], list[Contradiction]]:
    """The source that each instance of an unpacking cNode stands for, and what is in no such pair.

    The premises of every axiom: a first cNode packs `%m` of a type that the codec takes, a second
    one reads what it wrote, with the shape of `%m`, and declares `%m`'s type and shape.
    """
    wrong: list[Contradiction] = []
    stands_for: dict[str, str] = {}
    packed: dict[str, str] = {}
    for call, span in _elsewhere(graph):
        wrong.append((f"{call} stands in no cNode of its own", span))
    for c in graph.cnodes:
        op = c.call.op
        if not is_codec(op):
            continue
        match op in PACKS, op in UNPACKS, c.call.args, c.writes:
            case True, False, (Ref(source),), (str(made),) if _packs(c, source, anodes, writer):
                packed[made] = source
            case False, True, (Ref(name), tuple(sizes)), (str(made),) if (
                name in packed and writer[name].call.op == UNPACKS[op].pack_op
            ):
                of = anodes[packed[name]]
                if _equal(sizes, of) and _alike(anodes[made], of) and c.phase == "bwd":
                    stands_for[made] = of.name
                else:
                    wrong.append((f"{c.name} makes what is not like %{of.name}", c.span))
            case _:
                wrong.append((f"{c.name} calls {op} on what it has no axiom for", c.span))
    for v in graph.views:
        if v.base in packed:
            wrong.append((f"%{v.name} is a view of a packed value", v.span))
    for c in graph.cnodes:
        if packed.keys() & {*c.call.refs()} and c.call.op not in UNPACKS:
            wrong.append((f"{c.name} reads a packed value", c.span))
    return stands_for, wrong


def _elsewhere(graph: Graph) -> Iterator[tuple[str, Span | None]]:
    """Codecs in views, regions, replay forms, and in cNodes with a token."""
    for v in graph.views:
        if is_codec(v.call.op):
            yield v.call.op, v.span
    for c in graph.cnodes:
        inner = [i.call.op for i in c.call.region]
        again = [] if c.replay is None else [c.replay.call.op]
        both = c.call.op if is_codec(c.call.op) and (again or c.token is not None) else ""
        for op in filter(is_codec, (*inner, *again, both)):
            yield op, c.span


def _packs(c: CNode, source: str, anodes: Mapping[str, ANode], writer: Mapping[str, CNode]) -> bool:
    """A value that a forward cNode has made, once: nothing else is written to it later."""
    known = source in anodes and source in writer and not c.call.kwargs
    return (
        known
        and c.phase == writer[source].phase == "fwd"
        and anodes[source].kind == "act"
        and anodes[source].dtype in PACKS[c.call.op].types
    )


def _alike(made: ANode, of: ANode) -> bool:
    return made.kind == "grad" and made.dtype == of.dtype and made.shape == of.shape


def _equal(sizes: tuple[Arg, ...], of: ANode) -> bool:
    """Return whether extents as arguments are those of a shape."""
    own: list[Arg | Expr] = [n.value if isinstance(n, Const) else n for n in of.shape]
    return repr([*sizes]) == repr(own)
