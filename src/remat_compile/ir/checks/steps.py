"""Checks that the steps of a schedule name nodes of the graph."""

from __future__ import annotations

from ..diagnostics import Diagnostic, nearest
from ..graph import Graph
from ..schedule import Compute, Schedule

MAX_SUGGESTIONS = 10
"""Looking for near names takes time in large graphs, so only the first findings get it."""


def check_names(graph: Graph, schedule: Schedule) -> list[Diagnostic]:
    """Steps that name nodes the graph does not have."""
    diagnostics: list[Diagnostic] = []
    for step in schedule.steps:
        if isinstance(step, Compute) and step.cnode not in graph.cnode:
            near = nearest(step.cnode, graph.cnode) if len(diagnostics) < MAX_SUGGESTIONS else ""
            message = f"no cNode {step.cnode} in this graph.{near}"
            diagnostics.append(Diagnostic("FB0307", message, step.span))
        elif not isinstance(step, Compute) and step.anode not in graph.anode:
            base = graph.storage.get(step.anode)
            what = f"is a view; name its base %{base}" if base else "is not in this graph"
            diagnostics.append(Diagnostic("FB0308", f"%{step.anode} {what}", step.span))
    return diagnostics
