"""Memory layouts of tensors: strides, and the order of dimensions that they give."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Strides = tuple[int, ...]


def strides_of(tensor: Tensor) -> Strides | None:
    """In elements; None for a tensor that has none (sparse, nested)."""
    return tensor.stride() if tensor.layout is torch.strided else None


def lie_alike(
    shape: Sequence[int], strides: Strides | None, other_shape: Sequence[int], other: Strides | None
) -> bool:
    """Return whether two tensors of as many dimensions lie alike. Dimensions of one element have no
    say; of two sizes, the order of the dimensions has, and whether elements follow without gaps."""
    if strides == other or 0 in (*shape, *other_shape):
        return True
    if strides is None or other is None:
        return False
    long = [d for d, sizes in enumerate(zip(shape, other_shape, strict=True)) if 1 not in sizes]
    if tuple(shape) == tuple(other_shape):
        return all(strides[d] == other[d] for d in long)
    one, two = _order(strides, long), _order(other, long)
    if one != two:
        return False
    return is_dense(shape, strides, outermost_first(strides)) == is_dense(
        other_shape, other, outermost_first(other)
    )


def _order(strides: Strides, dimensions: Sequence[int]) -> list[tuple[int, bool]]:
    """From the outermost to the innermost, with whether each is expanded."""
    return [(d, strides[d] == 0) for d in outermost_first(strides) if d in dimensions]


def outermost_first(strides: Sequence[int]) -> list[int]:
    """The dimensions by how far apart their elements lie."""
    return sorted(range(len(strides)), key=lambda d: (-strides[d], d))


def is_dense(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Return whether elements follow each other without gaps, the last of these dimensions
    innermost."""
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and strides[d] != step:
            return False
        step *= shape[d]
    return True
