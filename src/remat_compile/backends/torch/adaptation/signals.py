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
    norm = math.hypot(*(float(n) for g in gradients if g is not None for n in _norms(g)))
    return norm if math.isfinite(norm) else math.nan


def _norms(x: Tensor) -> Iterator[Tensor]:
    if x.dtype == torch.float16:  # whose norm may be more than it has numbers for
        yield from (torch.linalg.vector_norm(piece.float()) for (piece,) in _pieces(x))
    else:
        yield torch.linalg.vector_norm(x)


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
    """Looks at each tensor that a lossy codec packs while it is entered, in chunks that take less
    than the codec's own kernel.

    `bad_groups` counts groups with an element that is not finite; `overflow` the channels of the
    last axis whose sum of absolute values is an outlier (Adacc, equation 1), beside those that
    the codec keeps whole.
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


def is_same_on_ranks(told: list[str], group: Any) -> bool:
    """Return whether all ranks of the group say the same."""
    if not _has_ranks():
        return True
    answers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, told, group)
    return all(answer == told for answer in answers)


def _has_ranks() -> bool:
    return dist.is_available() and dist.is_initialized()


def largest(
    values: Sequence[float], signed: Sequence[float], group: Any
) -> tuple[list[float], ...]:
    """On every rank, the largest of each of the `values`, NaN if one is, and of the `signed` those
    of the largest size."""
    if not _has_ranks():
        return list(values), list(signed)
    # NaN as infinity: what `MAX` makes of NaN is left open.
    plain = [math.inf if math.isnan(v) else v for v in values]
    told = torch.tensor([*plain, *signed, *(-s for s in signed)], dtype=torch.float64)
    dist.all_reduce(told, dist.ReduceOp.MAX, group)
    reduced: list[float] = told.tolist()
    most, least = (
        reduced[len(values) : len(values) + len(signed)],
        reduced[len(values) + len(signed) :],
    )
    chosen = [high if high >= low else -low for high, low in zip(most, least, strict=True)]
    return reduced[: len(values)], chosen
