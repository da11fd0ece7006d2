"""A graph in which the code reads `x` in place of views that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.analysis.regions import renamed_call
from ..ir.graph import Call, CNode, Graph


def without_identities(graph: Graph, same: dict[str, str]) -> Graph:
    """The graph with each read of a view in `same` replaced; the views themselves stay."""
    return with_calls(graph, lambda call: _renamed(call, same), inside=False) if same else graph


def with_calls(graph: Graph, change: Callable[[Call], Call], *, inside: bool = True) -> Graph:
    """The graph with each call of a view, cNode or replay form changed, and those inside regions,
    which have names of their own."""

    def changed(c: CNode) -> CNode:
        again = c.replay and replace(c.replay, call=change(c.replay.call))
        region = c.call.region
        if inside:
            region = tuple(replace(inner, call=change(inner.call)) for inner in region)
        return replace(c, call=replace(change(c.call), region=region), replay=again)

    return replace(
        graph,
        views=tuple(replace(view, call=change(view.call)) for view in graph.views),
        cnodes=tuple(map(changed, graph.cnodes)),
    )


def _renamed(call: Call, same: dict[str, str]) -> Call:
    if call.region or not any(name in same for name in call.refs()):
        return call  # a region knows what it is given by its names
    return renamed_call(call, same)
