"""Views that change nothing: `t(t(x))`, `detach(x)`. The code reads `x` instead."""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Arg, Call, CNode, Graph, Ref

__all__ = ["identities", "without_identities"]

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
    if not same:
        return graph
    return replace(
        graph,
        views=tuple(replace(v, call=_renamed(v.call, same)) for v in graph.views),
        cnodes=tuple(_renamed_cnode(c, same) for c in graph.cnodes),
    )


def _renamed_cnode(c: CNode, same: dict[str, str]) -> CNode:
    again = c.replay and replace(c.replay, call=_renamed(c.replay.call, same))
    return replace(c, call=_renamed(c.call, same), replay=again)


def _renamed(call: Call, same: dict[str, str]) -> Call:
    if not any(name in same for name in call.refs()):
        return call
    kwargs = tuple((key, _renamed_arg(arg, same)) for key, arg in call.kwargs)
    return replace(call, args=tuple(_renamed_arg(a, same) for a in call.args), kwargs=kwargs)


def _renamed_arg(arg: Arg, same: dict[str, str]) -> Arg:
    match arg:
        case Ref(name):
            return Ref(same.get(name, name))
        case tuple():
            return tuple(_renamed_arg(part, same) for part in arg)
        case _:
            return arg
