"""Times by roofline: nothing is run, and neither the device nor PyTorch need be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import cast

from ..ir.expr import evaluate
from ..ir.graph import DTYPE_BYTES, LOSS_OP, Arg, Atom, Call, CNode, Graph, Ref, View
from ..ir.program import Program
from .device import Device


def roofline(program: Program, device: Device) -> Program:
    """The program with the time of each cNode on `device`, at the sample of the symbols.

    Time = max(operations / peak of the dtype, bytes read and written / bandwidth) + launch
    overhead. Workspace stays as the capture left it: the bytes of unused results, and 0
    otherwise (`assumptions` says so). The target becomes the device.
    """
    model = _RooflineModel(program.graph, device, program.sample)
    cnodes = tuple(model.costed(c) for c in program.graph.cnodes)
    return replace(
        program,
        graph=replace(program.graph, cnodes=cnodes),
        header=replace(program.header, costs="roofline"),
        target=device.target,
        proven=(),
    )


class _RooflineModel:
    def __init__(self, graph: Graph, device: Device, env: Mapping[str, int]):
        self.graph = graph
        self.device = device
        self.env = env
        self.shapes = shapes_of(graph, env)

    def costed(self, c: CNode) -> CNode:
        if c.call.op == LOSS_OP:
            return replace(c, time_ns=0)
        first = self._time_ns(c.call, c.writes)
        if c.replay is None:
            return replace(c, time_ns=first)
        again = self._time_ns(c.replay.call, c.replay.writes)
        return replace(c, time_ns=first, replay=replace(c.replay, time_ns=again))

    def _time_ns(self, call: Call, writes: Sequence[str | None]) -> int:
        results = [name for name in writes if name is not None]
        shapes = [self.shapes[name] for name in results]
        dtype = self.graph.anode[results[0]].dtype if results else "f32"
        operations = flops_of(call, self.shapes, shapes, self.env)
        moved = sum(self._bytes(name) for name in results) + self._read(call, shapes)
        seconds = max(
            operations / self.device.peak_flops_per_s(dtype),
            moved / self.device.memory_bytes_per_s,
        )
        return ceil(seconds * 1e9) + self.device.launch_ns

    def _read(self, call: Call, results: Sequence[Shape]) -> int:
        """Bytes read: of a view no more than its elements, of a table that is looked up no
        more than what comes out of it."""
        total = sum(self._bytes(name) for name in call.refs())
        if call.op.split(".")[1:2] in (["embedding"], ["gather"], ["index"], ["index_select"]):
            table, *rest = call.refs()
            picked = sum(prod(shape) for shape in results) * self._item(table)
            total = min(self._bytes(table), picked) + sum(self._bytes(name) for name in rest)
        return total

    def _bytes(self, name: str) -> int:
        """Bytes that a read or write of this aNode or view touches."""
        storage = self.graph.anode[self.graph.storage[name]]
        elements = prod(self.shapes[name])
        return min(elements * self._item(name), evaluate(storage.size, self.env))

    def _item(self, name: str) -> int:
        return DTYPE_BYTES[self.graph.anode[self.graph.storage[name]].dtype]


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Shapes of a call's arguments and results; `()` for what is not a tensor."""

    call: Call
    args: tuple[Shape, ...]
    results: tuple[Shape, ...]
    env: Mapping[str, int]

    def named(self, name: str, position: int) -> object:
        """An argument by keyword or position."""
        for key, value in self.call.kwargs:
            if key == name:
                return value_of(value, self.env)
        return value_of(self.call.args[position], self.env)


def flops_of(
    call: Call, shapes: Mapping[str, Shape], results: Sequence[Shape], env: Mapping[str, int]
) -> int:
    """Floating point operations of one execution of `call`; `results` are the shapes it writes.

    A multiply-add counts as 2. Matrix products, convolutions and attention have their own count;
    every other operator counts one per element that it writes (memory bounds it anyway).
    """
    args = tuple(shapes.get(a.name, ()) if isinstance(a, Ref) else () for a in call.args)
    given = _Shapes(call, args, tuple(results), env)
    name = call.op.split(".")[1] if call.op.count(".") == 2 else call.op
    rule = _FLOPS.get(name) or _attention_rule(name)
    if rule is not None:
        return rule(given)
    return sum(prod(shape) for shape in results)


def _product(first: int) -> Callable[[_Shapes], int]:
    """`[..., m, k] x [..., k, n]`: the first factor stands at position `first`."""

    def count(given: _Shapes) -> int:
        a, b = given.args[first], given.args[first + 1]
        return 2 * prod(a) * (b[-1] if len(b) > 1 else 1)

    return count


def _one_convolution(x: Shape, weight: Shape, y: Shape, transposed: bool) -> int:
    """Each element of the output (of the input, when transposed) meets one filter's weights:
    the weight is `[out, in/groups, *kernel]`, transposed `[in, out/groups, *kernel]`."""
    return 2 * prod(x if transposed else y) * prod(weight[1:])


def _convolution(given: _Shapes) -> int:
    transposed = bool(given.named("transposed", 6))
    return _one_convolution(given.args[0], given.args[1], given.results[0], transposed)


def _convolution_backward(given: _Shapes) -> int:
    """One convolution for the input's gradient and one for the weight's, as asked for."""
    y, x, weight = given.args[:3]
    wanted = given.named("output_mask", 10)
    sides = sum(bool(side) for side in wanted[:2]) if isinstance(wanted, tuple) else 2
    return sides * _one_convolution(x, weight, y, bool(given.named("transposed", 7)))


def _attention(first: int, products: int) -> Callable[[_Shapes], int]:
    """`products` matrix products over `[batch, heads, queries, keys]`, of the head's width;
    the query stands at position `first`. Causal masks are not taken off."""

    def count(given: _Shapes) -> int:
        query, key = given.args[first], given.args[first + 1]
        return 2 * products * prod(query) * key[-2]

    return count


def _attention_rule(name: str) -> Callable[[_Shapes], int] | None:
    """Forward: 2 products; backward recomputes the scores: 5. By the family's name, since
    each device has operators of its own."""
    if not name.startswith("_scaled_dot_product"):
        return None
    return _attention(1, 5) if "backward" in name else _attention(0, 2)


_FLOPS: dict[str, Callable[[_Shapes], int]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "addmm": _product(1),
    "baddbmm": _product(1),
    "addmv": _product(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}


Shape = tuple[int, ...]


def shapes_of(graph: Graph, env: Mapping[str, int]) -> dict[str, Shape]:
    """The shape of every aNode and view, by name. A view's follows from its operator; where that is
    not known here, the shape of its base stands in: shapes serve estimates of time only."""
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
    rule = _VIEWS.get(view.call.op.split(".")[1]) if view.call.op.startswith("aten.") else None
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


_VIEWS: dict[str, _Rule] = {
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
