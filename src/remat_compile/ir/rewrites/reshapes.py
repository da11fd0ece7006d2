"""Views of views that are one view: `view(view(x, a), b)` is `view(x, b)`."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Call, Graph, Ref, View

VIEW = "aten.view.default"
RESHAPES = frozenset((VIEW, "aten._unsafe_view.default"))
"""The same elements in order, in other sizes; without autograd they do the same."""


def with_short_reshapes(graph: Graph) -> Graph:
    """The graph with each reshape of a reshape taken of what that was of. Names, and what each
    view is, stay.

    Only to sizes that are all known and above 1: then there is one way in which the elements may
    lie, whatever lies between (the stride of a dimension of one element is anything).
    """
    reshapes: dict[str, View] = {}
    views: list[View] = []
    for view in graph.views:
        short = view
        if view.call.op in RESHAPES and _are_known(view.call):
            (source,) = view.call.refs()
            before = reshapes.get(source)
            source = source if before is None else before.call.refs()[0]
            short = replace(view, call=Call(VIEW, (Ref(source), *view.call.args[1:])))
        if view.call.op in RESHAPES:
            reshapes[view.name] = short
        views.append(short)
    return replace(graph, views=tuple(views))


def _are_known(call: Call) -> bool:
    match call.args:
        case (Ref(), tuple() as sizes) if not call.kwargs:
            return all(isinstance(size, int) and size > 1 for size in sizes)
        case _:
            return False
