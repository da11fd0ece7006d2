"""Gradients that arrive in another memory layout than the backward was traced with.

Each is copied into the layout of its result. Sums over the copy may round otherwise than in eager,
and the copy is not among the bytes that are proven: one warning says so. A gradient that is one
number for all elements (of a loss that ends in `sum()` or `mean()`) is taken as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from ....capture.lowered import Lowered
from ....device.strides import Strides
from ....ir.diagnostics import Diagnostic, render
from ....ir.graph import Graph

_AS_STRIDED = "aten.as_strided.default"


class LayoutWatch:
    """Fits the tangents of a step, and warns once (FB0918) of one that is copied.

    `name` is what a region is called in messages, `moved` are tangents that are copied to the host,
    where there is room for dense ones. A step that `is_fixed` is of one layout, as kernels and
    graphs are, and takes no other.
    """

    def __init__(
        self,
        lowered: Lowered,
        name: str = "",
        moved: Collection[str] = (),
        *,
        is_fixed: bool = False,
    ) -> None:
        self._of_region = f" of {name}" if name else ""
        self._tangents = lowered.tangents
        self._expected = lowered.joint.tangent_strides()
        self._is_fixed = is_fixed
        kept = {*moved, *_laid_out(lowered.program.graph)}
        self._takes_numbers = [not is_fixed and name not in kept for name in lowered.tangents]
        results = lowered.program.binding.results
        self._result = {r.tangent: at for at, r in enumerate(results) if r.tangent is not None}
        self._numbers = {
            number: r.tangent
            for number, output in enumerate(lowered.forward_outputs)
            for r in results
            if r.name == output and r.tangent is not None
        }
        self._is_told = False

    def watch(self, node: Node, outputs: Any) -> None:
        """Hooks the autograd node of a call that gave `outputs`, where sizes are dynamic: there
        AOTAutograd copies."""
        if self._expected is None and not self._is_told:
            strides = {
                leaf.output_nr: leaf.stride()
                for leaf in tree_leaves(outputs)
                if isinstance(leaf, Tensor) and leaf.dim() > 1 and leaf.grad_fn is node
            }
            node.register_prehook(self._looking(strides))

    def _looking(self, strides: dict[int, Strides]) -> Callable[[tuple[Tensor | None, ...]], None]:
        def look(gradients: tuple[Tensor | None, ...]) -> None:
            for number, name in self._numbers.items():
                gradient, stride = gradients[number], strides.get(number)
                if gradient is not None and stride is not None and _differs(gradient, stride):
                    self._tell(name)

        return look

    def fit(self, tangents: Sequence[Tensor], missing: Collection[str]) -> list[Tensor]:
        """The tangents of a backward as it takes them. Of those that are `missing`, which the loss
        does not use, zeros are given, here without a layout where the backward takes that: a sum
        with them has the layout of its other term, as in eager."""
        if self._expected is None:
            return [*tangents]
        fitted: list[Tensor] = []
        for at, (tangent, stride) in enumerate(zip(tangents, self._expected, strict=True)):
            name = self._tangents[at]
            if name in missing and self._takes_numbers[at]:
                fitted.append(tangent.new_zeros(()).expand(tangent.shape))
                continue
            is_number = _is_one_number(tangent)
            if not _differs(tangent, stride) or (is_number and self._takes_numbers[at]):
                fitted.append(tangent)
                continue
            # In kernels, sums round otherwise anyway, and the dense copy of one number was counted.
            if name not in missing and not (is_number and self._is_fixed):
                self._tell(name)
            fitted.append(tangent.new_empty_strided(tangent.shape, stride).copy_(tangent))
        return fitted

    def _tell(self, tangent: str) -> None:
        if self._is_told:
            return
        self._is_told = True
        message = (
            f"the gradient of result {self._result[tangent]}{self._of_region} comes in another "
            "memory layout than the result and is copied before the backward: sums over it may "
            "round otherwise than in eager, and the copy is not in the bound"
        )
        hint = "compute what transposes the result inside the model, or return it contiguous"
        warning = Diagnostic("FB0918", message, hint=hint)
        warnings.warn(render(warning, level="warning"), stacklevel=2)


def _laid_out(graph: Graph) -> set[str]:
    """Storages whose layout the graph relies on: sums are added into them, or their elements are
    picked by strides."""
    summed = {graph.storage[c.call.refs()[0]] for c in graph.cnodes if c.is_accumulate}
    return summed | {view.base for view in graph.views if view.call.op == _AS_STRIDED}


def _differs(tensor: Tensor, stride: Strides) -> bool:
    """Return whether it has other strides; those of dimensions of one element say nothing."""
    pairs = zip(tensor.shape, tensor.stride(), stride, strict=True)
    return tensor.stride() != stride and any(a != b for size, a, b in pairs if size > 1)


def _is_one_number(tensor: Tensor) -> bool:
    """Return whether all elements are one in memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return not any(step for size, step in pairs if size > 1)
