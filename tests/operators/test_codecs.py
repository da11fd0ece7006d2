"""The axioms of codecs, held by the kernels of this PyTorch on the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from remat_compile.ir.codecs import CODECS, INDEX_AXES, Codec
from remat_compile.ir.codecs.lossless import NARROW, SHAPE
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const, evaluate
from remat_compile.ir.graph import ANode
from remat_compile.operators.aten import torch_dtype
from remat_compile.operators.codecs.lossless import CHUNK

OPS = torch.ops.remat_compile
aten = torch.ops.aten
LENGTHS = [*range(71), CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 13]
HALVES = [torch.float16, torch.bfloat16]
SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), -float("nan")]


def same_bits(a: Tensor, b: Tensor) -> bool:
    alike = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    return alike and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def values(dtype: torch.dtype) -> Tensor:
    """All values of a half; of others random bits, special values and subnormal ones."""
    if dtype in HALVES:
        return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    tiny = torch.finfo(dtype).smallest_normal
    given = torch.tensor([*SPECIAL, tiny, -tiny, tiny / 2, -tiny / 2, tiny / 2**20], dtype=dtype)
    bits = torch.randint(0, 256, (10**5 * dtype.itemsize,), dtype=torch.uint8)
    return torch.cat([given.repeat(13), bits.view(dtype)])


@pytest.mark.parametrize("n", LENGTHS)
def test_bits_come_back(n: int) -> None:
    x = torch.rand(n) < 0.5
    packed = OPS.pack_bits(x)
    assert packed.shape == (-(-n // 8),)
    assert packed.dtype == torch.uint8
    assert same_bits(OPS.unpack_bits(packed, [n]), x)


def test_each_byte_has_its_flags() -> None:
    """All 256 bytes: flag `i` of eight is bit `i`."""
    x = (torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 1
    assert torch.equal(OPS.pack_bits(x), torch.arange(256, dtype=torch.uint8))
    assert same_bits(OPS.unpack_bits(OPS.pack_bits(x), [256, 8]), x)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_a_threshold_reads_signs_only(dtype: torch.dtype) -> None:
    """Every value, under gradients of every value, at all lengths (vectors, and what is left)."""
    y = values(dtype)
    gradients = [y.flip(0), *(torch.full_like(y, value) for value in SPECIAL)]
    for n in (*range(71), y.numel()):
        part = y[-n:].contiguous() if n else y[:0]
        packed = OPS.pack_signs(part)
        for g in gradients:
            given = g[:n].contiguous()
            expected = aten.threshold_backward(given, part, 0)
            assert same_bits(OPS.threshold_backward_signs(given, packed), expected)


def test_a_threshold_is_taken_chunk_by_chunk_and_as_the_gradient_lies() -> None:
    y, g = torch.randn(2 * CHUNK + 77), torch.randn(2 * CHUNK + 77)
    made = OPS.threshold_backward_signs(g, OPS.pack_signs(y))
    assert same_bits(made, aten.threshold_backward(g, y, 0))
    y = torch.randn(2, 8, 5, 7)
    for g in (y.flip(0), y.to(memory_format=torch.channels_last), y[:, :1].expand(2, 8, 5, 7)):
        expected = aten.threshold_backward(g, y, 0)
        made = OPS.threshold_backward_signs(g, OPS.pack_signs(y))
        assert made.stride() == expected.stride()
        assert torch.equal(made, expected)


@pytest.mark.parametrize("codec", NARROW, ids=lambda codec: codec.name)
def test_indices_come_back(codec: Codec) -> None:
    own = codec
    assert own.limit is not None
    edge = torch.arange(min(own.limit, 2**16))
    i = torch.cat([edge, own.limit - 1 - edge, torch.randint(0, own.limit, (1000,))]).view(4, -1)
    packed = getattr(OPS, f"pack_{own.name}")(i)
    assert packed.dtype == torch_dtype(own.packed_type or "")
    assert same_bits(getattr(OPS, f"unpack_{own.name}")(packed), i)


def shape_readers(dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Callable[[Tensor], Tensor]]]:
    """Each operator of the codec, with an input of the forward and its backward of that input."""
    for special in (False, True):
        for n, c in ((2, 3), (1, 1), (2, 32)):
            x1, x2, x3 = (torch.randn(n, c, *own) for own in ((20,), (12, 10), (6, 8, 4)))
            for x in (x1, x2, x3) if special else ():
                x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
            x1, x2, x3 = (x.to(dtype) for x in (x1, x2, x3))
            for k, s, p in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
                for d, x in ((2, x2), (3, x3)):
                    window = [k] * d, [s] * d, [p] * d
                    forward = getattr(aten, f"max_pool{d}d_with_indices")
                    y, i = forward(x, *window)
                    name = f"max_pool{d}d_with_indices_backward"
                    yield name, x, _of(name, y, *window, [1] * d, False, i)
                    if d == 3 and dtype in HALVES:
                        continue  # no such kernel
                    y = getattr(aten, f"avg_pool{d}d")(x, *window)
                    name = f"avg_pool{d}d_backward"
                    yield name, x, _of(name, y, *window, False, True, None)
            for d, x in ((2, x2), (3, x3)):
                y, i = getattr(aten, f"adaptive_max_pool{d}d")(x, [3] * d)
                name = f"adaptive_max_pool{d}d_backward"
                yield name, x, _of(name, y, i)
                name = f"_adaptive_avg_pool{d}d_backward"
                yield name, x, _of(name, getattr(aten, f"_adaptive_avg_pool{d}d")(x, [3] * d))
            for kind in ("reflection", "replication"):
                for d, x in ((1, x1), (2, x2), (3, x3)):
                    pads = [1, 2] * d
                    name = f"{kind}_pad{d}d_backward"
                    yield name, x, _of(name, getattr(aten, f"{kind}_pad{d}d")(x, pads), pads)


def _of(name: str, y: Tensor, *rest: object) -> Callable[[Tensor], Tensor]:
    g = torch.randn(y.shape).to(y.dtype)
    return lambda x: getattr(aten, name)(g, x, *rest)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_pooling_and_padding_read_the_shape_only(dtype: torch.dtype) -> None:
    seen = set()
    for name, x, backward in shape_readers(dtype):
        packed = OPS.pack_shape(x)
        assert packed.untyped_storage().nbytes() == x.itemsize
        assert same_bits(backward(packed.expand(x.shape)), backward(x)), name
        seen.add(f"aten.{name}.default")
    named = {op for (op, place), _ in SHAPE.places}
    assert seen == named - ({"aten.avg_pool3d_backward.default"} if dtype in HALVES else set())


@pytest.mark.parametrize(("op", "axes"), [(op, axes) for (op, _), axes in INDEX_AXES.items()])
def test_indices_of_pooling_are_within_the_last_axes(op: str, axes: int) -> None:
    """Also where a window holds NaN alone, or -inf, and in a padded border."""
    for fill in (None, float("nan"), -float("inf")):
        x = torch.randn(2, 3, *([6, 5, 7][:axes]))
        x = x if fill is None else torch.full_like(x, fill)
        call = getattr(aten, op.split(".")[1])
        window = [3] * axes
        given = [window, [2] * axes, [1] * axes] if "with_indices" in op else [window]
        _, i = call(x, *given)
        assert i.dtype == torch.int64
        assert int(i.min()) >= 0
        assert int(i.max()) < x[0, 0].numel()


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
def test_the_operators_do_as_the_language_says(codec: Codec) -> None:
    """Types, shapes and bytes of what is packed; and a tensor that is not contiguous is refused."""
    own = codec
    dtype = next(iter(sorted(own.types)))
    x = torch.zeros(5, 3, 3).to(torch_dtype(dtype))
    source = ANode("x", "act", dtype, (Const(5), Const(3), Const(3)), Const(45 * x.itemsize))
    declared = own.packed(source, "p")
    pack = getattr(OPS, f"pack_{own.name}")
    seed = (7,) if own.is_random else ()
    packed = pack(x, *seed)
    assert tuple(packed.shape) == tuple(evaluate(n, {}) for n in declared.shape)
    assert packed.dtype == torch_dtype(declared.dtype)
    assert packed.untyped_storage().nbytes() == evaluate(declared.size, {})
    with pytest.raises((ValueError, FBError), match="contiguous"):
        pack(x.transpose(0, 2), *seed)


def test_what_is_packed_in_another_way_is_refused() -> None:
    with pytest.raises(ValueError, match="bool"):
        OPS.pack_bits(torch.zeros(8))
    with pytest.raises(ValueError, match="2 bytes"):
        OPS.unpack_bits(torch.zeros(3, dtype=torch.uint8), [16])
    with pytest.raises(ValueError, match="i64"):
        OPS.pack_narrow_u8(torch.zeros(8))
