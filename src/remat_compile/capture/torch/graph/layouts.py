"""Layouts of the caller's tensors in memory, as the header of a plan has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import SymInt, Tensor, fx
from torch import strided as _strided

from ....device.strides import is_dense, outermost_first
from ....ir.program import Binding, TensorLayout


def layouts_of(binding: Binding, nodes: Mapping[str, fx.Node]) -> tuple[TensorLayout, ...]:
    """Return the arguments, parameters and buffers that are not contiguous, in this order."""
    names = [a.name for a in binding.arguments]
    names += [p.name for p in binding.params] + [b.name for b in binding.buffers]
    values = {name: nodes[name].meta.get("val") for name in names if name in nodes}
    layouts = (
        layout_of(name, value)
        for name, value in values.items()
        if isinstance(value, Tensor) and value.layout is _strided
    )
    return tuple(layout for layout in layouts if layout is not None)


def layout_of(name: str, tensor: Tensor) -> TensorLayout | None:
    """None for a tensor that is contiguous; dimensions of one element have no say in that."""
    sizes, strides = [*map(_sampled, tensor.shape)], [*map(_sampled, tensor.stride())]
    order = outermost_first(strides)
    if 0 in sizes or is_dense(sizes, strides, range(len(sizes))):
        return None
    form: Literal["order", "strides"] = "order" if is_dense(sizes, strides, order) else "strides"
    return TensorLayout(name, form, tuple(order if form == "order" else strides))


def _sampled(size: int | SymInt) -> int:
    """Its value at the sample, without a guard on it."""
    return size if isinstance(size, int) else int(size.node.hint)
