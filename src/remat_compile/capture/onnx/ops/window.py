"""Padding arithmetic shared by convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ..call import Call


def explicit_pads(
    call: Call,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Begins then ends per spatial dimension, from `pads` or `auto_pad`."""
    rank = len(sizes)
    auto = call.one_of("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if auto == "NOTSET":
        return call.integers("pads", [0] * 2 * rank)
    if auto == "VALID":
        return [0] * 2 * rank
    begins, ends = [], []
    for i in range(rank):
        out = -(-sizes[i] // strides[i])
        reach = (kernel[i] - 1) * dilations[i] + 1
        total = max(0, (out - 1) * strides[i] + reach - sizes[i])
        small, large = total // 2, total - total // 2
        begins.append(small if auto == "SAME_UPPER" else large)
        ends.append(large if auto == "SAME_UPPER" else small)
    return begins + ends


def pad_spatial(data: Tensor, pads: Sequence[int], value: float) -> Tensor:
    """Pad (or cut, where negative) the last `len(pads) / 2` dimensions."""
    rank = len(pads) // 2
    flat = [n for i in reversed(range(rank)) for n in (pads[i], pads[i + rank])]
    return F.pad(data, flat, value=value) if any(flat) else data
