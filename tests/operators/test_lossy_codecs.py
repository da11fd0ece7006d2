"""Lossy codecs: each element is within its bound, and nothing else comes back than is stated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from remat_compile.ir.codecs import CODECS, Codec
from remat_compile.ir.codecs.contract import CHUNK
from remat_compile.ir.codecs.lossy import GROUP, outliers
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const, Sym, evaluate
from remat_compile.operators.codecs import _Held, register

OPS = torch.ops.remat_compile
LOSSY = [codec for codec in CODECS.values() if codec.is_lossy]
PLAIN = [codec for codec in LOSSY if codec.name != "int4_outliers"]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LENGTHS = [0, 1, GROUP - 1, GROUP, GROUP + 1, 5 * GROUP + 7]
STEPS = {"int8": 127, "int8_random": 127, "int4": 15, "int4_nearest": 15, "int4_outliers": 15}


def again(codec: Codec, x: Tensor, seed: int = 7) -> Tensor:
    """Packed and made again, in the bytes that are declared."""
    assert codec.size is not None
    size = codec.size(tuple(map(Const, x.shape)), x.itemsize)
    assert size is not None
    packed = getattr(OPS, f"pack_{codec.name}")(x, *((seed,) if codec.is_random else ()))
    assert packed.shape == (evaluate(size, {}),)
    made: Tensor = getattr(OPS, f"unpack_{codec.name}")(packed, list(x.shape), x.dtype)
    assert (made.shape, made.dtype) == (x.shape, x.dtype)
    return made


def bound(codec: Codec, x: Tensor) -> Tensor:
    """The bound of each element by the docstring of `ir/codecs/lossy.py`: the step as it is
    rounded, half of it to the nearest, and the rounding of what comes back in its type."""
    wide = torch.float64
    flat = x.reshape(-1).to(wide)
    filled = torch.cat([flat, flat[-1:].expand(-flat.numel() % GROUP)]).view(-1, GROUP)
    most = filled.abs().amax(1, keepdim=True)
    info = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32)
    rounding = 4 * info.eps * most + torch.finfo(x.dtype).eps * 1.01 * most
    if codec.name == "fp8":
        error = filled.abs() / 16 + most / 458752
        least = 448 * info.smallest_normal
    else:
        is_int8 = codec.name.startswith("int8")
        span = most if is_int8 else filled.amax(1, keepdim=True) - filled.amin(1, keepdim=True)
        number = STEPS[codec.name]
        error = (span / number / (1 if codec.is_random else 2)).expand_as(filled)
        error = error * (1 + 8 * number * info.eps)
        least = number * info.smallest_normal
    subnormal = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
    return (error + rounding + least + subnormal).reshape(-1)[: x.numel()].view(x.shape)


def samples(dtype: torch.dtype, n: int) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=gen, dtype=torch.float64)
    info = torch.finfo(dtype)
    return {
        "normal": x.to(dtype),
        "outliers": (x * torch.where(torch.arange(n) % 50 == 3, 100.0, 1.0)).to(dtype),
        "one-sided": x.abs().neg().sub(3.0).to(dtype),
        "largest": (x.sign() * (info.max if dtype != torch.float64 else 1e300)).to(dtype),
        "denormal": (x * info.smallest_normal / 8).to(dtype),
        "steps are subnormal": (x * info.smallest_normal * 20).to(dtype),
        "zero": torch.zeros(n, dtype=dtype),
        "equal": torch.full((n,), -1.7, dtype=dtype),
        "masked": (x * (x > 0)).to(dtype),
    }


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("codec", PLAIN, ids=lambda codec: codec.name)
def test_every_element_is_within_its_bound(codec: Codec, dtype: torch.dtype) -> None:
    for n in (*LENGTHS, CHUNK + GROUP + 5):
        for name, x in samples(dtype, n).items():
            made = again(codec, x)
            error = (made.double() - x.double()).abs()
            assert bool((error <= bound(codec, x)).all()) if n else made.numel() == 0, (n, name)
            if name == "zero":
                assert torch.equal(made, x)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_all_values_of_halves(dtype: torch.dtype) -> None:
    """In groups of neighbours, which share their magnitude, and in mixed ones."""
    if dtype.itemsize != 2:
        return
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[x.isfinite()]
    for order in (torch.arange(len(x)), torch.randperm(len(x))):
        for codec in PLAIN:
            made = again(codec, x[order].contiguous())
            error = (made.double() - x[order].double()).abs()
            assert bool((error <= bound(codec, x[order])).all()), codec.name


@pytest.mark.parametrize("codec", PLAIN, ids=lambda codec: codec.name)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_group_that_is_not_finite_is_nan_and_others_are_whole(codec: Codec, bad: float) -> None:
    x = torch.randn(4 * GROUP + 3)
    plain = again(codec, x)
    x[GROUP + 5] = bad
    made = again(codec, x)
    assert bool(made[GROUP : 2 * GROUP].isnan().all())
    others = torch.ones(len(x), dtype=torch.bool)
    others[GROUP : 2 * GROUP] = False
    assert bool(made[others].isfinite().all())
    if not codec.is_random:
        assert torch.equal(made[others], plain[others])


def test_outlying_channels_come_back_bit_for_bit() -> None:
    codec = CODECS["int4_outliers"]
    for dtype in TYPES:
        for rows, channels in ((33, 130), (1, 64), (7, 3), (0, 8)):
            x = torch.randn(rows, channels).to(dtype)
            places = [1, 77, 129][: outliers(channels)]
            x[:, places] *= 50
            if rows:
                x[0, places[0]] = float("nan")
            made = again(codec, x)
            kept = torch.equal(made[:, places].view(torch.uint8), x[:, places].view(torch.uint8))
            assert kept or rows < 2  # of one row the largest elements are the outliers
            others = x.clone()
            others[:, places] = 0
            error = (made.double() - x.double()).abs()
            error[:, places] = 0
            assert rows < 2 or bool((error <= bound(codec, others)).all())


def test_outliers_take_a_last_axis_that_is_a_number() -> None:
    size = CODECS["int4_outliers"].size
    assert size is not None
    assert size((Const(4), Sym("b")), 4) is None
    assert size((), 4) is None
    held = size((Sym("b"), Const(128)), 4)
    assert held is not None
    assert evaluate(held, {"b": 10}) == 1280 // 64 * 40 + 2 * 8 + 10 * 2 * 4


@pytest.mark.parametrize("codec", [c for c in PLAIN if c.is_random], ids=lambda c: c.name)
def test_rounding_at_random_is_unbiased_and_told_by_its_seed(codec: Codec) -> None:
    x = torch.randn(2048, generator=torch.Generator().manual_seed(1))
    state = torch.get_rng_state()
    assert torch.equal(again(codec, x, 5), again(codec, x, 5))
    assert not torch.equal(again(codec, x, 5), again(codec, x, 6))
    assert torch.equal(state, torch.get_rng_state())
    made = torch.stack([again(codec, x, seed).double() for seed in range(1024)])
    deviation = made.std(0) / 1024**0.5
    off = (made.mean(0) - x.double()).abs()
    # One in a thousand of such sets is above; of an element next to a code few are another one.
    assert bool((off <= 5 * (deviation + bound(codec, x) / 1024)).all())
    other = torch.cat([x[:-1], x[-1:] + 1])  # another step of the training
    assert not torch.equal(again(codec, x)[:GROUP], again(codec, other)[:GROUP])


@pytest.mark.parametrize(
    ("name", "kernel", "code", "why"),
    [
        ("short", lambda x: x.new_empty(3, dtype=torch.uint8), "FB0559", "gives torch.uint8[3]"),
        ("wide", lambda x: x.new_empty(64), "FB0559", "gives torch.float32[64]"),
        ("held", lambda x: x.new_empty(99, dtype=torch.uint8)[:64], "FB0559", "storage of 99"),
        ("none", lambda x: None, "FB0559", "NoneType"),
        ("writes", lambda x: x.zero_().view(torch.uint8)[:64].clone(), "FB0559", "writes"),
        ("fails", lambda x: x.no_such, "FB0560", "AttributeError"),
    ],
)
def test_a_codec_that_lies_or_fails(name: str, kernel: Any, code: str, why: str) -> None:
    codec = Codec(name, "lossy", "any", frozenset(("f32",)), size=lambda shape, _: Const(64))
    with pytest.raises(FBError) as refused:
        _Held(codec, kernel).pack(torch.ones(32))
    (said,) = refused.value.diagnostics
    assert (said.code, name in said.message, bool(said.hint)) == (code, True, True)
    assert why in said.message
    if name == "fails":
        with pytest.raises(FBError, match="to unpack fails"):
            _Held(codec, kernel).unpack(torch.ones(32))


def test_kernels_that_do_not_load() -> None:
    codec = Codec("gone", "lossy", "any", frozenset(("f32",)), kernels="no.such.module:IT")
    with pytest.raises(FBError, match="FB0558"):
        register(codec)
