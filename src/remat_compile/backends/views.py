"""Views that change nothing: `t(t(x))`, `detach(x)`. The code reads `x` instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.analysis.regions import renamed_call
from ..ir.graph import Call, CNode, Graph, Ref

_SELF_INVERSE = frozenset(("aten.t.default", "aten.transpose.int"))
_NOTHING = frozenset(("aten.detach.default", "aten.alias.default"))


def identities(graph: Graph) -> dict[str, str]:
    """View -> the aNode or view with the same storage, sizes and strides.

    Only where the operators alone say so, whatever the sizes: a `detach` (the code runs
    under `no_grad`), and two equal transpositions in a row.
    """
    same: dict[str, str] = {}
    for view in graph.views:
        if not view.call.args or not isinstance(first := view.call.args[0], Ref):
            continue
        source = same.get(first.name, first.name)
        if view.call.op in _NOTHING:
            same[view.name] = source
        elif view.call.op in _SELF_INVERSE and source in graph.view:
            before = graph.view[source].call
            if (before.op, before.args[1:]) == (view.call.op, view.call.args[1:]):
                inner = before.args[0]
                assert isinstance(inner, Ref)
                same[view.name] = same.get(inner.name, inner.name)
    return same


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
