"""Signals of a step: how far gradients are from the exact ones, and what codecs could not hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ....ir.codecs import PACKS
from ....ir.codecs.contract import CHUNK
from ....ir.codecs.lossy import GROUP, outliers

Z = 3.0
"""Standard deviations over the mean from which a channel is an outlier: Adacc, equation 1."""
CHUNK_BYTES = 4 * CHUNK
"""Bytes that the comparison of gradients takes, at most: four pieces in f64."""
PIECE = CHUNK_BYTES // (4 * 8)

Gradients = list[Tensor | None]


def norm_of(gradients: Gradients) -> float:
    """The norm of all gradients; NaN where one is not finite. Takes the bytes of numbers only."""
    norms = (float(torch.linalg.vector_norm(g)) for g in gradients if g is not None)
    return norm if math.isfinite(norm := math.hypot(*norms)) else math.nan


def compared(ours: Gradients, exact: Gradients) -> tuple[list[float], list[float]]:
    """For each parameter with a gradient, `|ours - exact|` and `<ours - exact, exact> / |exact|`,
    both over `|exact|` plus a hundredth of the norm of all gradients.

    That term keeps gradients that are 0 up to rounding from counting. The error of a parameter that
    has a gradient on one side alone, or of a gradient that is not finite, is infinite.
    """
    floor = norm_of(exact) / 100
    errors, biases = [], []
    for a, b in zip(ours, exact, strict=True):
        if b is None or a is None:
            if a is not b:
                errors.append(math.inf)
            continue
        if b.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        order = sorted(range(b.dim()), key=b.stride, reverse=True)  # as they lie in memory
        off = along = size = 0.0
        for mine, other in _pieces(a.permute(order), b.permute(order)):
            other = other.double()
            difference = mine.double() - other
            off += float(difference.dot(difference))
            along += float(difference.dot(other))
            size += float(other.dot(other))
        size = math.sqrt(size)
        over = size + floor
        error = 0.0 if off == 0 else math.sqrt(off) / over if math.isfinite(off) else math.inf
        errors.append(error)
        biases.append(along / size / over if size and math.isfinite(along) else 0.0)
    return errors, biases


def _pieces(*alike: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of tensors of one shape, row by row where one does not lie in one piece."""
    if all(x.is_contiguous() for x in alike):
        alike = tuple(x.view(-1) for x in alike)
    if alike[0].dim() == 1:
        yield from zip(*(torch.split(x, PIECE) for x in alike), strict=True)
        return
    for rows in zip(*(x.unbind(0) for x in alike), strict=True):
        yield from _pieces(*rows)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at what lossy codecs pack while it is entered, in less than their kernels' workspace.

    `bad_groups` counts groups with an element that is not finite; `overflow` channels of the last
    axis that are outliers (Adacc, equation 1), beside those that the codec keeps whole.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bad_groups = self.overflow = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        codec = PACKS.get(str(func))
        if codec is not None and codec.is_lossy:
            self._look(args[0], codec.name)
        return made

    def _look(self, x: Tensor, codec: str) -> None:
        for part in torch.split(x.view(-1), CHUNK):
            is_bad = part.isfinite().logical_not_()
            whole = len(part) // GROUP * GROUP
            self.bad_groups += int(is_bad[:whole].view(-1, GROUP).any(1).sum())
            self.bad_groups += bool(is_bad[whole:].any())
        channels = x.shape[-1] if x.dim() > 1 else 0
        if not 1 < channels <= CHUNK:
            return
        size = x.new_zeros(channels, dtype=torch.float32)
        for part in torch.split(x.view(-1, channels), CHUNK // channels):
            size += part.abs().sum(0, dtype=torch.float32)
        found = int((size > size.mean() + Z * size.std()).sum())
        self.overflow += max(0, found - (outliers(channels) if "outliers" in codec else 0))


def largest(values: Sequence[float], group: Any) -> list[float]:
    """On every rank, the largest of each of the values; NaN counts as infinity."""
    told = torch.tensor([math.inf if math.isnan(v) else v for v in values], dtype=torch.float64)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(told, dist.ReduceOp.MAX, group)
    reduced: list[float] = told.tolist()
    return reduced
