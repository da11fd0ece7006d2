"""Views that change nothing, `t(t(x))` or `detach(x)`, and views that are there twice."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..analysis.regions import renamed_call
from ..graph import Graph, Ref

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


def equal_views(graph: Graph, same: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """View -> the first one that the same call derives of the same; of `same`, what stands for
    them."""
    first: dict[str, str] = {}
    equal = dict(same)
    for view in graph.views:
        if view.name in same:
            continue
        call = repr((renamed_call(view.call, equal), view.index))  # 1 and True are not alike
        name = first.setdefault(call, view.name)
        if name != view.name:
            equal[view.name] = name
    return {name: equal.get(source, source) for name, source in equal.items()}
