"""Kernels of lossless codecs: identities, and stand-ins for their readers.

They are for the CPU: an axiom is of a device's kernels, and `tests/operators/test_codecs.py` holds
all of them there only.

Each works through its tensor in chunks, so that its workspace is a few MiB whatever the size. Eight
flags of a byte each are one number of 64 bits: flag `i` is byte `i` (little-endian), and becomes
bit `i` of one packed byte.

    x = 1 0 1 1 0 0 0 1        as bytes of one number: 0x0100000001010001
    (x * GATHER) >> 56         its top byte has bit `i` where byte `i` of x is 1: 0b10001101
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**20
"""Elements that are packed at a time; a multiple of 8."""
FEW = 2**17
"""The same where an operator of PyTorch takes no bytes of its own."""
GATHER = 0x0102040810204080
SPREAD = 0x0101010101010101
EACH = 0x8040201008040201 - 2**64
"""Bit `i` in byte `i`, as a signed number."""
NARROW = torch.uint8, torch.int16, torch.int32


def pack_bits(x: Tensor) -> Tensor:
    """The flags of a contiguous bool tensor, in its order: u8[ceil(n / 8)], unused bits 0."""
    _need(x.dtype == torch.bool, "a bool tensor")
    return _packed(x, lambda part: part)


def unpack_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The contiguous bool tensor of `shape` with these flags."""
    made = packed.new_empty(list(shape), dtype=torch.bool)
    for part, flags in _flags(packed, made):
        part.view(torch.uint8).copy_(flags)
    return made


def pack_signs(y: Tensor) -> Tensor:
    """A flag for each element that is not <= 0, NaN among them."""
    return _packed(y, lambda part: torch.logical_not(part <= 0))


def threshold_backward_signs(g: Tensor, packed: Tensor) -> Tensor:
    """`threshold_backward(g, y, 0)` with 1 and 0 in place of y: the same of them are not <= 0."""
    kernel = torch.ops.aten.threshold_backward
    if not g.is_contiguous():  # as it lies in memory, so does the result of the kernel
        y = torch.empty(g.shape, dtype=g.dtype)
        for part, flags in _flags(packed, y):
            part.copy_(flags)
        laid_out: Tensor = kernel.default(g, y, 0)
        return laid_out
    made = torch.empty_like(g)
    given = g.view(-1)
    for part, flags in _flags(packed, made, FEW):
        taken, given = given[: part.numel()], given[part.numel() :]
        kernel.grad_input(taken, part.copy_(flags), 0, grad_input=part)
    return made


def pack_shape(x: Tensor) -> Tensor:
    """One element, which is expanded where no more than the shape is read."""
    _need(x.is_contiguous(), "a contiguous tensor")
    return x.new_zeros(1)


def pack_narrow(i: Tensor, *, dtype: torch.dtype) -> Tensor:
    _need(i.dtype == torch.int64 and i.is_contiguous(), "contiguous indices of type i64")
    return i.to(dtype)


def unpack_narrow(packed: Tensor) -> Tensor:
    return packed.to(torch.int64)


def _packed(x: Tensor, flags: Callable[[Tensor], Tensor]) -> Tensor:
    """Bits of the flags of each chunk."""
    _need(x.is_contiguous(), "a contiguous tensor")
    elements, n = x.view(-1), x.numel()
    packed = x.new_empty(-(-n // 8), dtype=torch.uint8)
    for start in range(0, n, CHUNK):
        part = flags(elements[start : start + CHUNK]).view(torch.uint8)
        if part.numel() % 8 or part.storage_offset() % 8:
            part = torch.cat([part, part.new_zeros(-part.numel() % 8)])
        words = part.view(torch.int64) * GATHER
        packed[start // 8 : start // 8 + words.numel()] = words.__irshift__(56)
    return packed


def _flags(packed: Tensor, made: Tensor, chunk: int = CHUNK) -> Any:
    """The chunks of what is made, each with its flags as bytes of 0 and 1."""
    elements, n = made.view(-1), made.numel()
    _need(packed.dtype == torch.uint8 and packed.numel() == -(-n // 8), f"{-(-n // 8)} bytes")
    for start in range(0, n, chunk):
        part = elements[start : start + chunk]
        words = packed[start // 8 : (start + chunk) // 8].to(torch.int64)
        bits = words.mul_(SPREAD).bitwise_and_(EACH).view(torch.uint8)
        yield part, bits[: part.numel()].clamp_(max=1)


def _need(holds: bool, what: str) -> None:
    """ValueError where a codec is given what its axiom says nothing of."""
    if not holds:
        raise ValueError(f"a codec takes {what}")


BITS = pack_bits, unpack_bits
SIGNS = pack_signs, threshold_backward_signs
SHAPE = pack_shape, None
NARROW_U8, NARROW_I16, NARROW_I32 = (
    (partial(pack_narrow, dtype=dtype), unpack_narrow) for dtype in NARROW
)
