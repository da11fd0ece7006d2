"""A codec in a package of its own: activations are bfloat16 between forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from remat_compile.ir.codecs import Codec
from remat_compile.ir.expr import Const, Expr, mul


def size(shape: tuple[Expr, ...], itemsize: int) -> Expr:
    """Two bytes for each element, whatever it takes itself."""
    return mul(Const(2), *shape)


def pack(x: Tensor) -> Tensor:
    """`x` is contiguous; the largest numbers are not to become infinite."""
    most = torch.finfo(torch.bfloat16).max
    finite = torch.where(x.isfinite(), x.clamp(-most, most), x)
    return finite.to(torch.bfloat16).view(-1).view(torch.uint8)


def unpack(packed: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return packed.view(torch.bfloat16).to(dtype).view(list(shape))


KERNELS = pack, unpack

BRIEF = Codec(
    "brief",
    "lossy",
    "|error| <= |x| / 256 + 2^-133",
    frozenset(("f32", "f64")),
    gives=("shape", "dtype"),
    size=size,
    kernels="my_codec:KERNELS",
)
