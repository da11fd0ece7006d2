"""Signals of a step, against what they are by definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch.adaptation.signals import CHUNK_BYTES, Watch, compared, norm_of
from remat_compile.device.memory import measure_peak
from remat_compile.ir.codecs import CODECS
from remat_compile.operators.codecs import register

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def laid_out() -> list[Tensor]:
    """Gradients of several shapes and layouts; one is 0, and one empty."""
    torch.manual_seed(0)
    conv = torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last)
    numbers = torch.randn(()), torch.zeros(0), torch.zeros(3)
    return [torch.randn(130, 70), torch.randn(9, 4).T, conv, *numbers]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_errors_and_biases(dtype: torch.dtype) -> None:
    exact = [g.to(dtype) for g in laid_out()]
    ours = [g + 0.1 * torch.randn_like(g) for g in exact]
    ours[1] = ours[1].contiguous()  # another layout than the exact one
    kept = [g.clone() for g in (*exact, *ours)]
    errors, biases = compared([*ours], [*exact])
    assert all(map(torch.equal, kept, (*exact, *ours)))
    total = torch.stack([g.double().norm() for g in exact]).norm()
    assert norm_of([*exact, None]) == pytest.approx(float(total), rel=0.01)
    for a, b, error, bias in zip(ours, exact, errors, biases, strict=True):
        off, b = a.double() - b.double(), b.double()
        assert error == pytest.approx(float(off.norm() / (b.norm() + total / 100)), rel=0.01)
        along = float((off * b).sum() / b.norm() / (b.norm() + total / 100)) if b.any() else 0.0
        assert bias == pytest.approx(along, rel=0.01, abs=1e-9)


def test_gradients_that_cannot_be_compared() -> None:
    x = torch.ones(3)
    assert compared([None, x], [None, x]) == ([0.0], [0.0])
    assert compared([None], [x])[0] == compared([x], [None])[0] == [math.inf]
    assert compared([x * math.nan], [x])[0] == compared([x * math.inf], [x])[0] == [math.inf]
    z = torch.tensor([1 + 1j])
    assert compared([z.conj().resolve_conj()], [z])[0] == [pytest.approx(math.sqrt(2), rel=0.02)]
    assert math.isnan(norm_of([x, x * math.inf]))
    assert norm_of([None]) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_comparison_takes_few_bytes(dtype: torch.dtype) -> None:
    exact = [torch.randn(512, 512).to(dtype)]
    ours = [exact[0] * 1.1]
    for run in (lambda: compared([*ours], [*exact]), lambda: norm_of([*exact])):
        _, use = measure_peak(run)
        assert use.peak_bytes_over_entry <= CHUNK_BYTES


@pytest.mark.parametrize("codec", ["int8", "int4_outliers"])
def test_what_codecs_cannot_hold_is_counted(codec: str) -> None:
    """Groups that are not finite, and outlier channels without a place."""
    register(CODECS[codec])
    pack = getattr(torch.ops.remat_compile, f"pack_{codec}")
    seed = (0,) if CODECS[codec].is_random else ()
    torch.manual_seed(0)
    x = torch.randn(700, 96)
    x[:, [3, 50]] *= 50  # two places for 96 channels
    x[:, 70] *= 60
    given = x.clone()
    with Watch() as watch:
        packed = pack(x, *seed)
        again = x.clone()
    assert torch.equal(packed, pack(given, *seed))
    assert torch.equal(again, given)
    assert (watch.bad_groups, watch.overflow) == (0, 3 if codec == "int8" else 1)
    flat = torch.randn(64 * 3 + 5)
    flat[[0, 63, 64, -1]] = torch.tensor([math.nan, math.inf, -math.inf, math.nan])
    with Watch() as watch:
        pack(flat.view(1, -1), *seed)
    assert watch.bad_groups == 3
