"""Bytes of assumed optimizers, beside those that `torch.optim` allocates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from remat_compile.device.memory import measure_peak
from remat_compile.ir.analysis.optimizer_states import OPTIMIZERS, assumed_optimizer
from remat_compile.ir.diagnostics import FBError

Made = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MADE: dict[str, Made] = {
    "adamw": lambda p: torch.optim.AdamW(p, foreach=True),  # the default on an accelerator
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, foreach=True),
    "sgd-momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
}
SIZES = (10_000, 3_000, 777)
SCALARS = 64
"""Bytes of the few scalars that an update makes for its own."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", MADE)
def test_states_and_updates_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    parameters = [nn.Parameter(torch.randn(n, dtype=dtype)) for n in SIZES]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = MADE[name](parameters)
    optimizer.step()
    states = [v for own in optimizer.state.values() for v in own.values() if v.dim()]
    _, use = measure_peak(optimizer.step)
    assumed = OPTIMIZERS[name]
    width = dtype.itemsize
    assert sum(s.nbytes for s in states) == sum(assumed.state_bytes(n, width) for n in SIZES)
    update = sum(assumed.update_bytes(n, width) for n in SIZES)
    assert 0 <= use.peak_bytes_over_entry - update <= SCALARS


def test_narrow_states() -> None:
    of_8bit, of_fp32 = OPTIMIZERS["adamw-8bit"], OPTIMIZERS["adamw-fp32"]
    assert of_8bit.state_bytes(1 << 20, 2) == 2 * (1 << 20) + 2 * 4 * (1 << 12)
    assert of_8bit.state_bytes(4095, 2) == 8 * 4095
    assert (of_fp32.state_bytes(10, 4), of_fp32.state_bytes(10, 2)) == (80, 120)


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(FBError) as refused:
        assumed_optimizer("adam-w")
    assert refused.value.diagnostics[0].code == "FB0968"
    assert 'Did you mean "adamw"?' in str(refused.value)
