"""Gradients that arrive in another memory layout than the backward was traced with.

Eager takes them as they come, and a sum over one rounds by its layout. Here one is taken as it
comes where the same operators run on it, and is else copied into the layout of its result, which
is told: sums may round otherwise then, and the copy is not among the bytes that are proven.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from ..._torch.lowered import Lowered
from ..._torch.strides import Strides
from ...ir.diagnostics import Diagnostic, render

__all__ = ["LayoutWatch"]

_NONE: frozenset[int] = frozenset()
_NO_ZEROS: Mapping[int, Strides] = {}
_MOST = 64
"""Ways in which gradients were laid out that are remembered."""


class _BegunLayouts(threading.local):
    """Of the backward that begins on this thread: tangents taken as they come, and those that are
    zeros, with the strides of these."""

    given = _NONE
    missing = _NO_ZEROS


class LayoutWatch:
    """Of the tangents of a step. `name` is what a region is called in messages.

    Warns (FB0918) of the first gradient that is copied, and of the first that is not and for which
    operators may copy more than was counted. A step that `is_fixed` is of one layout,
    as kernels (which round otherwise than eager anyway) and graphs are: each gradient is copied
    into it.
    """

    def __init__(self, lowered: Lowered, name: str = "", *, is_fixed: bool = False) -> None:
        self._of_region = f" of {name}" if name else ""
        self._expected = lowered.joint.tangent_strides()
        self._is_fixed = is_fixed
        self._takes = None if is_fixed else lowered.takes
        results = lowered.program.binding.results
        places = {name: at for at, name in enumerate(lowered.tangents)}
        tangents: dict[str, list[int]] = {}
        for r in results:
            if r.tangent in places:
                tangents.setdefault(r.name, []).append(places[r.tangent])
        often = Counter(lowered.forward_outputs)
        self._result = {places[r.tangent]: i for i, r in enumerate(results) if r.tangent in places}
        # Numbers of the autograd node's outputs, and the tangents of those.
        # What is returned twice is one tensor, whose gradients autograd adds: that sum comes to the
        # last of its numbers, and nothing to the others.
        self._places: list[tuple[int, int]] = []
        self._same: dict[int, int] = {}
        for name, of_one in tangents.items():
            numbers = [n for n, output in enumerate(lowered.forward_outputs) if output == name]
            if often[name] == len(of_one):
                self._places += zip(numbers, of_one, strict=True)
                self._same |= dict.fromkeys(of_one[:-1], of_one[-1])
        self._places.sort()
        self._known: dict[tuple[Strides, ...], bool] = {}
        self._all = frozenset(place for _, place in self._places)
        self._begun = _BegunLayouts()
        self._warned: set[bool] = set()

    def watch(self, node: Node, outputs: Any) -> None:
        """Hooks the autograd node of a call that gave `outputs`, where it has to be known how those
        lie."""
        if self._expected is None and not self._warned:
            strides = {
                leaf.output_nr: leaf.stride()
                for leaf in tree_leaves(outputs)
                if isinstance(leaf, Tensor) and leaf.dim() > 1 and leaf.grad_fn is node
            }
            node.register_prehook(lambda gradients: self._look_only(strides, gradients))

    def _look_only(self, strides: dict[int, Strides], gradients: tuple[Tensor | None, ...]) -> None:
        """Where sizes are dynamic, and AOTAutograd copies."""
        for number, at in self._places:
            gradient, stride = gradients[number], strides.get(number)
            if gradient is None or stride is None:
                continue
            if _meant(gradient.stride(), stride, gradient.shape) != stride:
                self._tell(at, is_taken=False)

    def look(self, gradients: Sequence[Tensor | None]) -> None:
        """Before the backward: whether its tangents are taken as they come.

        One that never came is a zero without a layout, so that a sum with it has that of the other
        summand, which is all that eager has.
        """
        expected = self._expected
        if expected is None:
            return
        strides = list(expected)
        missing = set()
        for number, at in self._places:
            gradient = gradients[number]
            if gradient is None:
                missing.add(at)
                strides[at] = (0,) * len(expected[at])
            elif (stride := gradient.stride()) != expected[at]:
                strides[at] = _meant(stride, expected[at], gradient.shape)
        # Zeros that are added to a sum leave its layout as it is, if they have that themselves.
        is_expanded = False
        for at, last in self._same.items():
            if at in missing and last not in missing:
                strides[at] = strides[last]
                is_expanded |= 0 in strides[last] and 0 not in expected[last]
        key = tuple(strides)
        if key == expected:
            self._begun.given, self._begun.missing = self._all, _NO_ZEROS
            return
        is_taken = self._known.get(key)
        if is_taken is None:
            is_taken = not is_expanded and self._takes is not None and self._takes(key)
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = is_taken
        self._begun.missing = {at: key[at] for at in missing} if is_taken else _NO_ZEROS
        self._begun.given = self._all - missing if is_taken else _NONE
        for _, at in self._places:
            if at in missing or key[at] == expected[at]:
                continue
            # The copy of an expanded one was counted.
            if 0 not in key[at] or not (is_taken or self._is_fixed):
                self._tell(at, is_taken)

    def fit(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """The tangents of a backward as it takes them."""
        if self._expected is None:
            return [*tangents]
        begun = self._begun
        given, missing = begun.given, begun.missing
        begun.given, begun.missing = _NONE, _NO_ZEROS
        return [
            _zeros(tangent, missing[at])
            if at in missing
            else tangent
            if at in given or tangent.stride() == stride
            else torch.empty_strided(
                tangent.shape, stride, dtype=tangent.dtype, device=tangent.device
            ).copy_(tangent)
            for at, (tangent, stride) in enumerate(zip(tangents, self._expected, strict=True))
        ]

    def _tell(self, at: int, is_taken: bool) -> None:
        if is_taken in self._warned:
            return
        self._warned.add(is_taken)
        result = f"result {self._result[at]}{self._of_region}"
        came = f"the gradient of {result} comes in another memory layout"
        if is_taken:
            message = f"{came}; what operators copy of it is not in the bound"
        else:
            message = (
                f"{came} than the result and is copied before the backward: sums over it may round "
                "otherwise than in eager, and the copy is not in the bound"
            )
        hint = "compute what transposes the result inside the model, or return it contiguous"
        warning = Diagnostic("FB0918", message, hint=hint)
        warnings.warn(render(warning, level="warning"), stacklevel=2)


def _zeros(like: Tensor, stride: Strides) -> Tensor:
    if not any(stride):
        return like.new_zeros(()).expand(like.shape)
    return like.new_empty_strided(like.shape, stride).zero_()


def _meant(stride: Strides, expected: Strides, shape: Sequence[int]) -> Strides:
    """The strides, without what those of dimensions of one element say."""
    return tuple(
        own if size > 1 else other for own, other, size in zip(stride, expected, shape, strict=True)
    )
