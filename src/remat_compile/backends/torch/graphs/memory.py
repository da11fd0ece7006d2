"""Tensors in the memory of a record: copies into it, and copies out of it for the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....device.strides import is_dense, outermost_first


def static_like(like: Tensor, device: torch.device | None = None) -> Tensor:
    """A tensor in a storage of its own that lies as `like` does; its contents are anything."""
    offset, strides = int(like.storage_offset()), like.stride()
    elements = offset + 1 + sum((n - 1) * s for n, s in zip(like.shape, strides, strict=True))
    if like.numel() == 0:
        elements = offset
    made = torch.empty(elements, dtype=like.dtype, device=device or like.device)
    return made.as_strided(like.shape, strides, offset)


def fill(static: Tensor, given: Tensor) -> None:
    """The contents of `given` to one that lies alike; each element of what is expanded once."""
    for dimension, (size, stride) in enumerate(zip(static.shape, static.stride(), strict=True)):
        if stride == 0 and size > 1:
            static, given = static.narrow(dimension, 0, 1), given.narrow(dimension, 0, 1)
    static.copy_(given)


class Fresh:
    """Copies of tensors whose memory the next replay writes. What is one tensor stays one."""

    def __init__(self, values: Sequence[Any]) -> None:
        of: dict[int, int] = {}
        self._tensors: list[Tensor] = []
        self._places: list[int | None] = []
        for value in values:
            if not isinstance(value, Tensor):
                self._places.append(None)
                continue
            if id(value) not in of:
                of[id(value)] = len(self._tensors)
                self._tensors.append(value)
            self._places.append(of[id(value)])
        self._dense = [i for i, tensor in enumerate(self._tensors) if _is_dense(tensor)]
        self._sources = [self._tensors[i] for i in self._dense]

    @property
    def tensors(self) -> Sequence[Tensor]:
        return self._tensors

    def copies(self) -> list[Tensor | None]:
        """In the order of the values, None for what is no tensor."""
        made: list[Tensor | None] = [None] * len(self._tensors)
        dense = [torch.empty_like(source) for source in self._sources]
        if dense:
            torch._foreach_copy_(dense, self._sources)
        for i, copied in zip(self._dense, dense, strict=True):
            made[i] = copied
        for i, tensor in enumerate(self._tensors):
            if made[i] is None:  # with gaps, or expanded: all of its storage
                whole = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
                own = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                made[i] = own.set_(
                    whole, int(tensor.storage_offset()), tensor.shape, tensor.stride()
                )
        return [None if place is None else made[place] for place in self._places]


def _is_dense(tensor: Tensor) -> bool:
    strides = tensor.stride()
    return is_dense(tensor.shape, strides, outermost_first(strides))
