"""The operators that a graph may run, for every backend."""

from __future__ import annotations

from ...ir.graph import ACCUMULATE_OP, LOSS_OP, Graph

__all__ = ["called_operators"]


def called_operators(graph: Graph) -> tuple[str, ...]:
    """The operators of views, cNodes and replay forms, each once, in order of appearance."""
    calls = [view.call for view in graph.views]
    for c in graph.cnodes:
        calls += [c.call_at(1), c.call_at(2)]
    ops = dict.fromkeys(call.op for call in calls)
    return tuple(op for op in ops if op not in (LOSS_OP, ACCUMULATE_OP))
