"""Lossy codecs: unpacked values are within an error bound for each element.

Elements are taken in groups of 64 that lie side by side. Each group has a step, and int4 the least
of its elements too, in f64 for a source of f64 and else in f32; a group that is not finite comes
back as NaN. With u = 2^-24 (2^-53 for f64) the steps are these, rounded once:

    int8   max |x| / 127           codes -127 to 127
    int4   (max x - min x) / 15    codes 0 to 15, counted from min x
    fp8    max |x| / 448           codes are numbers of float8_e4m3fn

A step that would be subnormal is 0, and the group comes back as 0 (int4: as its least element).
"""

from __future__ import annotations

from ..expr import Const, Expr, add, mul
from .contract import EXPONENTIATED, FLOATS, Codec, Place, SizeRule, ceil_div

GROUP = 64
CHANNELS_PER_OUTLIER = 64
"""`int4_outliers` keeps one of so many channels of the last axis whole; of fewer, one."""
KERNELS = "remat_compile.operators.codecs.lossy"
WORKSPACE = 20
"""Bytes that a kernel takes for an element of a chunk, at most."""

ATTENTION: frozenset[Place] = frozenset(
    (f"aten._scaled_dot_product_{kind}_backward.default", place)
    for kind in ("flash_attention_for_cpu", "flash_attention", "efficient_attention")
    for place in range(1, 6)
)
"""Arguments of which the backward of attention computes its weights again, by an exponential."""


def _grouped(bits: int, numbers: int) -> SizeRule:
    """Codes of so many bits, and numbers of each group."""

    def size(shape: tuple[Expr, ...], itemsize: int) -> Expr:
        groups = ceil_div(mul(Const(1), *shape), GROUP)
        return mul(Const(GROUP * bits // 8 + numbers * max(4, itemsize)), groups)

    return size


def outliers(channels: int) -> int:
    """The number of channels that `int4_outliers` keeps whole, of so many."""
    return -(-channels // CHANNELS_PER_OUTLIER)


def _with_outliers(shape: tuple[Expr, ...], itemsize: int) -> Expr | None:
    """As int4; then the places of the outliers, and what is there. The last axis is a number."""
    match shape:
        case (*rows, Const(channels)):
            kept = outliers(channels)
            grouped = _grouped(4, 2)(shape, itemsize) or Const(0)
            return add(grouped, mul(Const(kept * itemsize), *rows), Const(8 * kept))
        case _:
            return None


def _lossy(
    name: str,
    bound: str,
    size: SizeRule,
    *,
    is_random: bool = False,
    denied: frozenset[Place] = EXPONENTIATED | ATTENTION,
) -> Codec:
    rounding = "; at random by seed, with mean 0" if is_random else ""
    return Codec(
        name,
        "lossy",
        f"{bound} in groups of {GROUP}{rounding}",
        FLOATS,
        gives=("shape", "dtype"),
        size=size,
        is_random=is_random,
        denied=denied,
        kernels=f"{KERNELS}:{name.upper()}",
        workspace_bytes=WORKSPACE,
    )


INT8 = _lossy("int8", "|error| <= max |x| / 254", _grouped(8, 1), denied=EXPONENTIATED)
INT8_RANDOM = _lossy(
    "int8_random",
    "|error| <= max |x| / 127",
    _grouped(8, 1),
    is_random=True,
    denied=EXPONENTIATED,
)
INT4 = _lossy("int4", "|error| <= (max x - min x) / 15", _grouped(4, 2), is_random=True)
INT4_NEAREST = _lossy("int4_nearest", "|error| <= (max x - min x) / 30", _grouped(4, 2))
INT4_OUTLIERS = _lossy(
    "int4_outliers",
    "0 for one channel of 64, else |error| <= (max x - min x) / 15",
    _with_outliers,
    is_random=True,
)
FP8 = _lossy("fp8", "|error| <= |x| / 16 + max |x| / 458752", _grouped(8, 1))
