"""Times by roofline: nothing is run, and neither the device nor PyTorch need be there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

from ..ir.expr import evaluate
from ..ir.graph import DTYPE_BYTES, LOSS_OP, Arg, Atom, Call, CNode, Graph, Ref
from ..ir.program import Program
from .device import Device

Shape = tuple[int, ...]


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


def flops_of(
    call: Call, shapes: Mapping[str, Shape], results: Sequence[Shape], env: Mapping[str, int]
) -> int:
    """Floating point operations of one execution of `call`; `results` are the shapes it writes.

    A multiply-add counts as 2. Matrix products, convolutions and attention have their own count;
    every other operator counts one per element that it writes (memory bounds it anyway).
    """
    args = [shapes.get(a.name, ()) if isinstance(a, Ref) else () for a in call.args]
    named = dict(call.kwargs)

    def value(name: str, position: int) -> Any:
        return value_of(named[name] if name in named else call.args[position], env)

    match call.op.split(".")[1] if call.op.count(".") == 2 else call.op:
        case "mm" | "bmm" | "mv" | "dot":
            return _product(*args[:2])
        case "addmm" | "baddbmm" | "addmv":
            return _product(*args[1:3])
        case "convolution":
            return _convolution(args[0], args[1], results[0], value("transposed", 6))
        case "convolution_backward":
            # One for the input's gradient and one for the weight's, as asked for.
            y, x, weight = args[:3]
            wanted = value("output_mask", 10)
            sides = sum(map(bool, wanted[:2])) if isinstance(wanted, tuple) else 2
            return sides * _convolution(x, weight, y, value("transposed", 7))
        case str(name) if name.startswith("_scaled_dot_product"):
            # Products over [batch, heads, queries, keys] of the head's width: 2, and 5 backward,
            # which computes the scores again. Causal masks are not taken off.
            is_backward = "backward" in name
            query, key = args[1:3] if is_backward else args[:2]
            return 2 * (5 if is_backward else 2) * prod(query) * key[-2]
    return sum(prod(shape) for shape in results)


def _product(a: Shape, b: Shape) -> int:
    """`[..., m, k] x [..., k, n]`."""
    return 2 * prod(a) * (b[-1] if len(b) > 1 else 1)


def _convolution(x: Shape, weight: Shape, y: Shape, transposed: object) -> int:
    """Each element of the output (of the input, when transposed) meets one filter's weights:
    the weight is `[out, in/groups, *kernel]`, transposed `[in, out/groups, *kernel]`."""
    return 2 * prod(x if transposed else y) * prod(weight[1:])


def shapes_of(graph: Graph, env: Mapping[str, int]) -> dict[str, Shape]:
    """The shape of every aNode and view, by name. A view's follows from its operator; where that is
    not known here, the shape of its base stands in: shapes serve estimates of time only."""
    shapes: dict[str, Shape] = {
        a.name: tuple(evaluate(extent, env) for extent in a.shape) for a in graph.anodes
    }
    for view in graph.views:
        first = view.call.args[0] if view.call.args else None
        source = first.name if isinstance(first, Ref) else view.base
        shape = shapes.get(source, shapes[view.base])
        namespace, _, name = view.call.op.rpartition(".")[0].partition(".")
        args = [value_of(arg, env) for arg in view.call.args]
        try:
            known = _shape_of(name, shape, args, view.index or 0) if namespace == "aten" else None
        except (IndexError, TypeError, ValueError):
            known = None
        shapes[view.name] = shape if known is None else known
    return shapes


def value_of(arg: Arg, env: Mapping[str, int]) -> object:
    """An argument with its integers evaluated; references and atoms stay as they are."""
    if isinstance(arg, tuple):
        return tuple(value_of(part, env) for part in arg)
    if arg is None or isinstance(arg, Ref | Atom | bool | int | float | str):
        return arg
    return evaluate(arg, env)


def _shape_of(name: str, shape: Shape, args: Sequence[Any], index: int) -> Shape | None:
    """The shape of a view by an operator of PyTorch; None for one that is not known here."""

    def arg(position: int, default: int = 0) -> Any:
        value = args[position] if position < len(args) else None
        return default if value is None else value

    def with_extent(axis: int, *extent: int) -> Shape:
        axis %= len(shape)
        return (*shape[:axis], *extent, *shape[axis + 1 :])

    match name:
        case "t":
            return shape[::-1]
        case "transpose":
            order = list(range(len(shape)))
            order[arg(1)], order[arg(2)] = order[arg(2)], order[arg(1)]
            return tuple(shape[axis] for axis in order)
        case "permute":
            return tuple(shape[axis] for axis in arg(1))
        case "view" | "_unsafe_view" | "reshape":
            rest = prod(extent for extent in arg(1) if extent != -1)
            return tuple(prod(shape) // max(1, rest) if n == -1 else n for n in arg(1))
        case "as_strided":
            return tuple(arg(1))
        case "expand":
            padded = (1,) * (len(arg(1)) - len(shape)) + shape
            return tuple(n if e == -1 else e for n, e in zip(padded, arg(1), strict=True))
        case "unsqueeze":
            axis = arg(1) % (len(shape) + 1)
            return (*shape[:axis], 1, *shape[axis:])
        case "squeeze":
            given = arg(1) if len(args) > 1 else range(len(shape))
            axes = {a % len(shape) for a in ((given,) if isinstance(given, int) else given)}
            return tuple(n for axis, n in enumerate(shape) if axis not in axes or n != 1)
        case "slice":
            extent = shape[arg(1)]
            picked = slice(arg(2), arg(3, extent), arg(4, 1))
            return with_extent(arg(1), len(range(*picked.indices(extent))))
        case "select" | "unbind":
            return with_extent(arg(1))
        case "split":
            return with_extent(arg(2), min(arg(1), shape[arg(2)] - index * arg(1)))
        case "split_with_sizes":
            return with_extent(arg(2), arg(1)[index])
    return None
