"""Gradients that arrive in another memory layout than the result that they belong to.

AOTAutograd copies them into that layout before the backward, so that a sum over one may round
otherwise than in eager, and the copy is not among the bytes that are proven.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from ...ir.diagnostics import Diagnostic, render

__all__ = ["LayoutWatch"]


class LayoutWatch:
    """Warns once of a step (FB0918)."""

    def __init__(self) -> None:
        self._told = False

    def watch(self, node: Node, outputs: Any) -> None:
        """Hooks the autograd node of a call that gave `outputs`."""
        if self._told:
            return
        strides = {
            leaf.output_nr: leaf.stride()
            for leaf in tree_leaves(outputs)
            if isinstance(leaf, Tensor) and leaf.dim() > 1 and leaf.grad_fn is node
        }
        if strides:
            node.register_prehook(lambda gradients: self._look(strides, gradients))

    def _look(
        self, strides: dict[int, tuple[int, ...]], gradients: tuple[Tensor | None, ...]
    ) -> None:
        for index, expected in strides.items():
            if self._told or not _is_laid_out_otherwise(gradients[index], expected):
                continue
            self._told = True
            message = (
                f"the gradient of result {index} comes in another memory layout than the result "
                "and is copied before the backward: sums over it may round otherwise than in "
                "eager, and the copy is not in the bound"
            )
            hint = "compute what transposes the result inside the model, or return it contiguous"
            warning = Diagnostic("FB0918", message, hint=hint)
            warnings.warn(render(warning, level="warning"), stacklevel=2)


def _is_laid_out_otherwise(gradient: Tensor | None, expected: tuple[int, ...]) -> bool:
    """Expanded ones are not: their copy is the gradient that was counted."""
    if gradient is None or gradient.dim() != len(expected):
        return False
    pairs = zip(gradient.shape, gradient.stride(), expected, strict=True)
    differing = [own for size, own, theirs in pairs if size > 1 and own != theirs]
    return bool(differing) and 0 not in differing
