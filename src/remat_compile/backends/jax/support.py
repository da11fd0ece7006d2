"""Whether JAX can run the operators of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.diagnostics import Diagnostic, FBError, nearest
from ...ir.graph import ACCUMULATE_OP, LOSS_OP, Call, Graph
from .lowerings import missing, table

__all__ = ["operators", "require_lowerings"]

_STRUCTURE = frozenset((ACCUMULATE_OP, LOSS_OP))
_SHOWN = 3


def operators(graph: Graph) -> frozenset[str]:
    """The operators of all cNodes, replay forms and views; `loss` and `accumulate` left out."""
    return frozenset(call.op for call, _ in _calls(graph)) - _STRUCTURE


def require_lowerings(graph: Graph) -> None:
    """Raises FBError with all that JAX cannot run here: FB0920 for each operator that has no
    lowering, with its model lines, FB0921 for complex numbers."""
    found = [_diagnostic(graph, op) for op in missing(operators(graph))]
    found += _complex_numbers(graph)
    if found:
        raise FBError(found)


def _calls(graph: Graph) -> Iterator[tuple[Call, str]]:
    """Each call, and where in the model (or in the graph) it stands."""
    for c in graph.cnodes:
        place = str(c.loc) if c.loc is not None else c.name
        yield c.call, place
        if c.replay is not None:
            yield c.replay.call, place
    for view in graph.views:
        yield view.call, f"%{view.name}"


def _complex_numbers(graph: Graph) -> list[Diagnostic]:
    nodes = [a for a in graph.anodes if a.dtype in ("c64", "c128")]
    if not nodes:
        return []
    shown = ", ".join(f"%{a.name}" for a in nodes[:_SHOWN])
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return [
        Diagnostic(
            "FB0921",
            f"complex numbers have no JAX lowerings: {shown}{more}",
            nodes[0].span,
            hint="write real and imaginary parts as real tensors",
        )
    ]


def _diagnostic(graph: Graph, op: str) -> Diagnostic:
    places = list(dict.fromkeys(place for call, place in _calls(graph) if call.op == op))
    shown = ", ".join(places[:_SHOWN])
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    spans = [c.span for c in graph.cnodes if c.call.op == op]
    spans += [v.span for v in graph.views if v.call.op == op]
    return Diagnostic(
        "FB0920",
        f"{op} has no JAX lowering; used at {shown}{more}.{nearest(op, table())}",
        next((span for span in spans if span is not None), None),
        hint="rewrite these lines of the model with operators that docs/jax-operators.md lists",
    )
