"""Kernels of the lossy codecs: group-wise codes, each group with a step of its own.

`x` is taken in chunks of whole groups. A packed value has the codes of all groups, then their
steps, then (int4) their least elements; `int4_outliers` appends the places of its outliers and what
stands there, and packs 0 in their place.

Random rounding adds to `x / step` a number that is uniform in [0, 1), and takes what is below. The
numbers come of the seed and of the bits of the tensor: a tensor packed again has the same codes,
another step of the training has other numbers, and the user's generator is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...ir.codecs.contract import CHUNK
from ...ir.codecs.lossy import GROUP, outliers

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FP8_MAX = 448.0
NUMBERS = {8: 1, 4: 2}
"""The step and the least element of each group, by the bits of a code."""


def generator(x: Tensor, seed: int) -> torch.Generator:
    """The numbers by which a tensor is rounded."""
    parts = torch.split(x.view(-1).view(BITS[x.itemsize]), CHUNK)
    bits = sum(int(part.sum(dtype=torch.int64)) for part in parts)
    return torch.Generator().manual_seed((bits * 0x9E3779B97F4A7C15 + seed) % 2**63)


def pack_int8(x: Tensor) -> Tensor:
    return _pack_int8(x, None)


def pack_int8_random(x: Tensor, seed: int) -> Tensor:
    return _pack_int8(x, generator(x, seed))


def unpack_int8(packed: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    def decoded(codes: Tensor, step: Tensor, _: Tensor) -> Tensor:
        return codes.view(torch.int8).to(step.dtype).mul_(step)

    return _unpacked(packed, shape, dtype, 8, decoded)


def pack_int4(x: Tensor, seed: int) -> Tensor:
    return _pack_int4(x, generator(x, seed))


def pack_int4_nearest(x: Tensor) -> Tensor:
    return _pack_int4(x, None)


def unpack_int4(packed: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    def decoded(codes: Tensor, step: Tensor, least: Tensor) -> Tensor:
        pairs = torch.stack([codes & 15, codes >> 4], dim=-1).view(-1, GROUP)
        half = pairs >> 1
        # In two parts: the range of a group may be more than there are numbers.
        return (half * step).add_(least).add_((pairs - half) * step)

    return _unpacked(packed, shape, dtype, 4, decoded)


def pack_int4_outliers(x: Tensor, seed: int) -> Tensor:
    """The channels whose elements have the largest sums of absolute values are kept whole."""
    rows = x.view(-1, x.shape[-1])
    size = x.new_zeros(x.shape[-1], dtype=_wide(x.dtype))
    for part in torch.split(rows, max(1, CHUNK // max(1, x.shape[-1]))):
        size += part.to(size.dtype).abs().sum(0)
    places = size.topk(outliers(x.shape[-1])).indices.sort().values
    behind = _as_bytes(places), _as_bytes(rows[:, places].contiguous())
    packed = _pack_int4(x, generator(x, seed), places, sum(map(len, behind)))
    at = len(packed)
    for part in reversed(behind):
        packed[at - len(part) : at] = part
        at -= len(part)
    return packed


def unpack_int4_outliers(packed: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    channels, n = shape[-1], _number(shape)
    kept = outliers(channels)
    groups = -(-n // GROUP)
    at = groups * (GROUP // 2 + 2 * _wide(dtype).itemsize)
    made = unpack_int4(packed[:at], shape, dtype)
    places = packed[at : at + 8 * kept].view(torch.int64)
    values = packed[at + 8 * kept :].view(dtype).view(-1, kept)
    made.view(-1, channels)[:, places] = values
    return made


def pack_fp8(x: Tensor) -> Tensor:
    def coded(part: Tensor, step: Tensor, _: Tensor) -> Tensor:
        scaled = _scaled(part, step).clamp_(-FP8_MAX, FP8_MAX)
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)

    return _packed(x, 8, lambda part: (_step(part.abs().amax(1, True) / FP8_MAX),), coded)


def unpack_fp8(packed: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    def decoded(codes: Tensor, step: Tensor, _: Tensor) -> Tensor:
        return codes.view(torch.float8_e4m3fn).to(step.dtype).mul_(step)

    return _unpacked(packed, shape, dtype, 8, decoded)


def _pack_int8(x: Tensor, noise: torch.Generator | None) -> Tensor:
    def coded(part: Tensor, step: Tensor, _: Tensor) -> Tensor:
        codes = _rounded(_scaled(part, step), noise).clamp_(-127, 127)
        return codes.to(torch.int8).view(torch.uint8)

    return _packed(x, 8, lambda part: (_step(part.abs().amax(1, True) / 127),), coded)


def _pack_int4(
    x: Tensor, noise: torch.Generator | None, left_out: Tensor | None = None, behind: int = 0
) -> Tensor:
    def numbers(part: Tensor) -> tuple[Tensor, ...]:
        low, high = part.aminmax(dim=1, keepdim=True)
        # The range itself may be infinite.
        step = _step(high / 15 - low / 15)
        return step, torch.where(step.isnan(), step, low)

    def coded(part: Tensor, step: Tensor, least: Tensor) -> Tensor:
        scaled = _scaled(part, step).sub_(_scaled(least, step))
        codes = _rounded(scaled, noise).clamp_(0, 15).to(torch.uint8).view(-1, 2)
        return codes[:, 0] | codes[:, 1] << 4

    return _packed(x, 4, numbers, coded, left_out, behind)


def _packed(
    x: Tensor,
    bits: int,
    numbers: Callable[[Tensor], tuple[Tensor, ...]],
    coded: Callable[[Tensor, Tensor, Tensor], Tensor],
    left_out: Tensor | None = None,
    behind: int = 0,
) -> Tensor:
    """`numbers` of each group of a chunk, the step first; codes by the first of them and the last.
    The last group is filled with the last element. Channels that are `left_out` are packed as 0; so
    many bytes are left free `behind`."""
    elements, n = x.view(-1), x.numel()
    groups, wide = -(-n // GROUP), _wide(x.dtype)
    size = GROUP * bits // 8 + NUMBERS[bits] * wide.itemsize
    packed = x.new_empty(groups * size + behind, dtype=torch.uint8)
    codes, kept = _parts(packed[: groups * size], groups, bits, wide)
    for start in range(0, n, CHUNK):
        part = elements[start : start + CHUNK].to(wide)
        if left_out is not None:
            channel = torch.arange(start, start + len(part)).remainder_(x.shape[-1])
            part = part.masked_fill(torch.isin(channel, left_out), 0)
        if filling := -part.numel() % GROUP:
            part = torch.cat([part, part[-1:].expand(filling)])
        part = part.view(-1, GROUP)
        group = slice(start // GROUP, start // GROUP + len(part))
        made = numbers(part)
        for column, values in zip(kept, made, strict=True):
            column[group] = values
        codes[group] = coded(part, made[0], made[-1]).view(len(part), -1)
    return packed


def _unpacked(
    packed: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    bits: int,
    decoded: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    made = packed.new_empty(list(shape), dtype=dtype)
    elements, n = made.view(-1), made.numel()
    codes, kept = _parts(packed, -(-n // GROUP), bits, _wide(dtype))
    for start in range(0, n, CHUNK):
        part = elements[start : start + CHUNK]
        group = slice(start // GROUP, -(-(start + part.numel()) // GROUP))
        given = decoded(codes[group], kept[0][group], kept[-1][group])
        # The largest one may be rounded to infinity.
        most = min(torch.finfo(given.dtype).max, torch.finfo(dtype).max)
        part.copy_(given.view(-1)[: part.numel()].clamp_(-most, most))
    return made


def _parts(
    packed: Tensor, groups: int, bits: int, wide: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """The codes of each group, and the columns of numbers behind them."""
    at = groups * GROUP * bits // 8
    numbers = packed[at:].view(wide)
    columns = numbers.view(NUMBERS[bits], groups, 1)
    return packed[:at].view(groups, GROUP * bits // 8), [*columns]


def _step(step: Tensor) -> Tensor:
    """As it is kept: 0 for a subnormal one, NaN for one that is not finite."""
    step = torch.where(step < torch.finfo(step.dtype).smallest_normal, 0.0, step)
    return torch.where(step.isfinite(), step, torch.nan)


def _scaled(x: Tensor, step: Tensor) -> Tensor:
    """In steps; 0 where there is none."""
    return torch.where(step > 0, x / step, 0.0)


def _rounded(x: Tensor, noise: torch.Generator | None) -> Tensor:
    if noise is None:
        return x.round_()
    return x.add_(torch.rand(x.shape, dtype=x.dtype, generator=noise)).floor_()


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _as_bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


def _number(shape: Sequence[int]) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


INT8 = pack_int8, unpack_int8
INT8_RANDOM = pack_int8_random, unpack_int8
INT4 = pack_int4, unpack_int4
INT4_NEAREST = pack_int4_nearest, unpack_int4
INT4_OUTLIERS = pack_int4_outliers, unpack_int4_outliers
FP8 = pack_fp8, unpack_fp8
