"""Kernels that write results over arguments that die with the call, and what they are tried for.

Inductor takes a function whose last deed is to store results into its arguments, and orders its
loops so that nothing reads there afterwards; where it cannot, it makes a copy, which is seen as
workspace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..overwrites import Pairs
from .inductor import Function, KernelError, Layout

__all__ = ["copied", "ensure_dense", "problem_over", "storing"]


def storing(function: Function, over: Pairs) -> Function:
    """The function with results stored into arguments: by place, that of a result and that of the
    argument where it is returned."""

    def run(*args: Tensor) -> tuple[Tensor, ...]:
        made = [*function(*args)]
        for result, argument in over:
            into, value = args[argument], made[result]
            made[result] = into.copy_(value.view(into.shape)).view(value.shape)
        return tuple(made)

    return run


def ensure_dense(layouts: Sequence[Layout], over: Pairs) -> None:
    """KernelError where an argument to be written over has gaps, or elements in one place."""
    for _, argument in over:
        layout, expected = layouts[argument], 1
        extents = sorted((s, n) for n, s in zip(layout.shape, layout.stride, strict=True) if n != 1)
        for stride, extent in extents:
            if stride != expected:
                raise KernelError("what it would write over is not dense")
            expected *= extent


def copied(args: Sequence[Tensor]) -> list[Tensor]:
    """The same layouts and values, each in a storage of its own."""
    sizes = [a.untyped_storage().nbytes() // a.element_size() for a in args]
    flat = [a.as_strided((size,), (1,), 0).clone() for a, size in zip(args, sizes, strict=True)]
    pairs = zip(flat, args, strict=True)
    return [f.as_strided(a.shape, a.stride(), a.storage_offset()) for f, a in pairs]


def problem_over(
    args: Sequence[Tensor], before: Sequence[Tensor], results: Sequence[Tensor], over: Pairs
) -> str | None:
    """Whether results lie where they should, and nothing else was written over."""
    for result, argument in over:
        if results[result].data_ptr() != args[argument].data_ptr():
            return "a result is not written over its argument"
    written = {argument for _, argument in over}
    kept = [place for place in range(len(args)) if place not in written]
    if not all(torch.equal(args[place], before[place]) for place in kept):
        return "it writes over another argument"
    return None
