"""Shapes of everything that a cNode can read, without PyTorch.

aNodes carry their shape; a view's follows from its operator. Where an operator is not
known here the shape of its base stands in: shapes serve estimates of time only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import cast

from ..ir.expr import evaluate
from ..ir.graph import Arg, Atom, Call, Graph, Ref, View

Shape = tuple[int, ...]


def shapes_of(graph: Graph, env: Mapping[str, int]) -> dict[str, Shape]:
    """The shape of every aNode and view, by name."""
    shapes: dict[str, Shape] = {
        a.name: tuple(evaluate(extent, env) for extent in a.shape) for a in graph.anodes
    }
    for view in graph.views:
        shapes[view.name] = _shape_of(view, shapes, env)
    return shapes


def value_of(arg: Arg, env: Mapping[str, int]) -> object:
    """An argument with its integers evaluated; references and atoms stay as they are."""
    if isinstance(arg, tuple):
        return tuple(value_of(part, env) for part in arg)
    if arg is None or isinstance(arg, Ref | Atom | bool | int | float | str):
        return arg
    return evaluate(arg, env)


def _shape_of(view: View, shapes: Mapping[str, Shape], env: Mapping[str, int]) -> Shape:
    first = view.call.args[0] if view.call.args else None
    source = first.name if isinstance(first, Ref) else view.base
    shape = shapes.get(source, shapes[view.base])
    rule = _RULES.get(view.call.op.split(".")[1]) if view.call.op.startswith("aten.") else None
    if rule is None:
        return shape
    try:
        return rule(shape, _Args(view.call, env), view.index or 0)
    except (IndexError, TypeError, ValueError):
        return shape


class _Args:
    """Evaluated arguments of a call by position, `default` where they are left out."""

    def __init__(self, call: Call, env: Mapping[str, int]):
        self._values = [value_of(arg, env) for arg in call.args]

    def integer(self, position: int, default: int | None = None) -> int:
        value = self._values[position] if position < len(self._values) else default
        return cast(int, default if value is None else value)

    def integers(self, position: int) -> Shape:
        return cast(Shape, self._values[position])

    def __len__(self) -> int:
        return len(self._values)


_Rule = Callable[[Shape, _Args, int], Shape]


def _transpose(shape: Shape, args: _Args, _: int) -> Shape:
    order = list(range(len(shape)))
    a, b = args.integer(1), args.integer(2)
    order[a], order[b] = order[b], order[a]
    return tuple(shape[axis] for axis in order)


def _permute(shape: Shape, args: _Args, _: int) -> Shape:
    return tuple(shape[axis] for axis in args.integers(1))


def _view(shape: Shape, args: _Args, _: int) -> Shape:
    wanted = args.integers(1)
    rest = prod(extent for extent in wanted if extent != -1)
    return tuple(prod(shape) // max(1, rest) if extent == -1 else extent for extent in wanted)


def _expand(shape: Shape, args: _Args, _: int) -> Shape:
    wanted = args.integers(1)
    padded = (1,) * (len(wanted) - len(shape)) + shape
    return tuple(n if e == -1 else e for n, e in zip(padded, wanted, strict=True))


def _unsqueeze(shape: Shape, args: _Args, _: int) -> Shape:
    axis = args.integer(1) % (len(shape) + 1)
    return (*shape[:axis], 1, *shape[axis:])


def _squeeze(shape: Shape, args: _Args, _: int) -> Shape:
    if len(args) < 2:
        return tuple(extent for extent in shape if extent != 1)
    given = args.integers(1)
    axes = {axis % len(shape) for axis in (given if isinstance(given, tuple) else (given,))}
    return tuple(n for axis, n in enumerate(shape) if axis not in axes or n != 1)


def _with(shape: Shape, axis: int, extent: int) -> Shape:
    changed = list(shape)
    changed[axis] = extent
    return tuple(changed)


def _slice(shape: Shape, args: _Args, _: int) -> Shape:
    axis = args.integer(1, 0)
    picked = slice(args.integer(2, 0), args.integer(3, shape[axis]), args.integer(4, 1))
    return _with(shape, axis, len(range(*picked.indices(shape[axis]))))


def _select(shape: Shape, args: _Args, _: int) -> Shape:
    axis = args.integer(1) % len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def _split(shape: Shape, args: _Args, index: int) -> Shape:
    size, axis = args.integer(1), args.integer(2, 0)
    return _with(shape, axis, min(size, shape[axis] - index * size))


def _split_with_sizes(shape: Shape, args: _Args, index: int) -> Shape:
    return _with(shape, args.integer(2, 0), args.integers(1)[index])


def _unbind(shape: Shape, args: _Args, _: int) -> Shape:
    axis = args.integer(1, 0) % len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


_RULES: dict[str, _Rule] = {
    "t": lambda shape, args, index: shape[::-1],
    "transpose": _transpose,
    "permute": _permute,
    "view": _view,
    "_unsafe_view": _view,
    "reshape": _view,
    "as_strided": lambda shape, args, index: args.integers(1),
    "expand": _expand,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "slice": _slice,
    "select": _select,
    "split": _split,
    "split_with_sizes": _split_with_sizes,
    "unbind": _unbind,
}
