"""The codecs of this package whose axiom is an equality of bits."""

from __future__ import annotations

from .contract import FLOATS, Codec

KERNELS = "remat_compile.operators.codecs.lossless"

_SHAPE_READERS = tuple(
    f"aten.{name}_backward.default"
    for name in (
        *("max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    )
)

BITS = Codec(
    "bits",
    "identity",
    "unpack_bits(pack_bits(x)) = x for bool x",
    frozenset(("bool",)),
    "u8",
    "bit",
    ("shape",),
    kernels=f"{KERNELS}:BITS",
)
SHAPE = Codec(
    "shape",
    "reader-exact",
    "pooling and padding backward read no more than the shape of their input",
    FLOATS,
    None,
    "single",
    ("shape",),
    places=tuple(((op, 1), ()) for op in _SHAPE_READERS),
    kernels=f"{KERNELS}:SHAPE",
)
SIGNS = Codec(
    "signs",
    "reader-exact",
    "threshold_backward_signs(g, pack_signs(y)) = threshold_backward(g, y, 0)",
    FLOATS,
    "u8",
    "bit",
    places=((("aten.threshold_backward.default", 1), ((2, 0),)),),
    is_read=True,
    kernels=f"{KERNELS}:SIGNS",
)


def _narrow(dtype: str, bits: int) -> Codec:
    name = f"narrow_{dtype}"
    return Codec(
        name,
        "identity",
        f"unpack_{name}(pack_{name}(i)) = i for indices below {2**bits}",
        frozenset(("i64",)),
        dtype,
        "element",
        limit=2**bits,
        kernels=f"{KERNELS}:{name.upper()}",
    )


NARROW_U8, NARROW_I16, NARROW_I32 = _narrow("u8", 8), _narrow("i16", 15), _narrow("i32", 31)
NARROW = (NARROW_U8, NARROW_I16, NARROW_I32)
