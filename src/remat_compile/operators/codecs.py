"""Codecs as operators of PyTorch: `torch.ops.remat_compile.pack_bits` and its like.

Each works through its tensor in chunks, so that the workspace is some MiB whatever the size. Eight
elements of one byte are one number of 64 bits: element `i` of eight is byte `i` (little-endian) and
becomes bit `i` of a packed byte.

    x = 1 0 1 1 0 0 0 1        as bytes of one number, 0x0100000001010001
    (x * GATHER) >> 56     the top byte of the product has bit i where byte i is 1: 0b10001101
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from ..ir.codecs import NAMESPACE

CHUNK = 2**20
"""Elements that are packed at a time; a multiple of 8."""
GATHER = 0x0102040810204080
SPREAD = 0x0101010101010101
EACH = 0x8040201008040201 - 2**64
"""Bit `i` in byte `i`, as a signed number."""

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


def pack_bits(x: Tensor) -> Tensor:
    """Bits of a bool tensor in its order of elements: u8[ceil(n / 8)], unused bits 0.

    ValueError for a tensor of another type, or one that is not contiguous: what is made again is.
    """
    _need(x.dtype == torch.bool and x.is_contiguous(), "a contiguous bool tensor")
    elements = x.reshape(-1).view(torch.uint8)
    n = elements.numel()
    packed = elements.new_empty(-(-n // 8))
    for start in range(0, n, CHUNK):
        part = elements[start : start + CHUNK]
        if part.numel() % 8 or part.storage_offset() % 8:
            part = torch.cat([part, part.new_zeros(-part.numel() % 8)])
        words = part.view(torch.int64) * GATHER
        packed[start // 8 : start // 8 + words.numel()] = words.__irshift__(56)
    return packed


def unpack_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The contiguous bool tensor of `shape` whose bits these are.

    ValueError where the packed bytes are not as many as `shape` takes.
    """
    made = packed.new_empty(list(shape), dtype=torch.bool)
    elements, n = made.view(-1), made.numel()
    _need(packed.dtype == torch.uint8 and packed.numel() == -(-n // 8), f"{-(-n // 8)} bytes")
    for start in range(0, n, CHUNK):
        part = elements[start : start + CHUNK]
        words = packed[start // 8 : (start + CHUNK) // 8].to(torch.int64)
        bits = words.mul_(SPREAD).bitwise_and_(EACH).view(torch.uint8)
        torch.clamp_max(bits[: part.numel()], 1, out=part.view(torch.uint8))
    return made


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"a codec takes {what}")


def _register() -> None:
    if sys.byteorder != "little":
        return  # a plan with codecs is refused: there is no such operator (FB0901)
    for schema, function in (
        ("pack_bits(Tensor x) -> Tensor", pack_bits),
        ("unpack_bits(Tensor packed, SymInt[] shape) -> Tensor", unpack_bits),
    ):
        _LIBRARY.define(schema)
        _LIBRARY.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")


_register()
