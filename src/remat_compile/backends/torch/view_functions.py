"""Several views that one computation reads of one tensor, as a function of the generated module.

    def _views0(a0):
        t0 = a0.view(8, 128, 384)
        (t1, t2, t3,) = _aten_split_Tensor(t0, 128, -1)[:3]
        t4 = t1.view(8, 128, 4, -1)
        ...
        return (t5, t7, t9,)

In between nothing is allocated, so there is nothing to `del`. One function serves all that differ
in names only. A step that runs calls it once for each layout and knows then where the views lie
(`reinterpret.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from ...ir.expr import Expr
from ...ir.graph import Arg, Graph, View

__all__ = ["VIEWS", "ViewGroup", "view_groups"]

VIEWS = "_views"
"""How the functions are called, with a number behind. No variable begins so, and no operator's
name is as short."""

_LEAST_SAVED = 3
"""Views more than a group gives. With cold caches a call of its function takes as long as two."""


@dataclass(frozen=True)
class ViewGroup:
    """Views to derive, in order, of the one tensor `source`; `results` are those that are read."""

    source: str
    views: tuple[View, ...]
    results: tuple[str, ...]

    @property
    def is_worth_a_function(self) -> bool:
        """Whether it takes more views than it gives, each part that is taken being one."""
        calls = {(view.call, view.index is None) for view in self.views}
        parts = sum(view.index is not None for view in self.views)
        return parts + len(calls) >= len(self.results) + _LEAST_SAVED

    def calls(self) -> Iterator[tuple[View, ...]]:
        """What one call of an operator gives, in order: a view, or the parts that are taken."""
        parts: dict[object, list[View]] = {}
        for view in self.views:
            if view.index is not None:
                parts.setdefault(view.call, []).append(view)
        for view in self.views:
            if view.index is None:
                yield (view,)
            elif view.call in parts:
                yield tuple(parts.pop(view.call))


def view_groups(graph: Graph, names: Sequence[str], derived: Container[str]) -> Iterator[ViewGroup]:
    """What is to be derived of each tensor before `names` can be read, where all of it is a
    function of that tensor: no dynamic dimension, no other tensor, no part that is taken twice."""
    wanted: dict[str, dict[str, None]] = {}
    for name in names:
        if name in graph.view and name not in derived:
            wanted.setdefault(graph.view[name].base, {})[name] = None
    for results in wanted.values():
        views: dict[str, View] = {}
        for name in results:
            views |= {v.name: v for v in graph.views_below(name, derived) if v.name not in views}
        sources = {ref for v in views.values() for ref in v.call.refs()} - views.keys()
        parts = [(v.call, v.index) for v in views.values() if v.index is not None]
        fixed = all(_is_fixed(arg) for v in views.values() for arg in _arguments(v))
        if len(sources) == 1 and len({*parts}) == len(parts) and fixed:
            yield ViewGroup(sources.pop(), tuple(views.values()), tuple(results))


def _arguments(view: View) -> Iterator[Arg]:
    yield from view.call.args
    yield from (value for _, value in view.call.kwargs)


def _is_fixed(arg: Arg) -> bool:
    match arg:
        case tuple():
            return all(map(_is_fixed, arg))
        case _:
            return not isinstance(arg, Expr)
