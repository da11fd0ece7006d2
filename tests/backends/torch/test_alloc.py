"""Measured memory is exact: sizes are known for these runs, transients included."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from helpers.clock import HANGS_S
from remat_compile.backends.torch import Mark, measure_peak, measure_regions
from remat_compile.ir.diagnostics import FBError


def test_peak_and_end_over_entry() -> None:
    def run() -> torch.Tensor:
        big = torch.empty(1000, dtype=torch.float32)
        del big
        return torch.empty(100, dtype=torch.float32)

    result, use = measure_peak(run)
    assert result.numel() == 100
    assert use.peak_bytes_over_entry == 4000
    assert use.end_bytes_over_entry == 400
    assert use.allocations == 2


def test_workspace_inside_an_operator_is_seen() -> None:
    x = torch.randn(64, 64)
    result, use = measure_peak(lambda: torch.ops.aten.mse_loss.default(x, x))
    assert result.untyped_storage().nbytes() == 64 * 64 * 4
    assert use.peak_bytes_over_entry >= 2 * 64 * 64 * 4
    assert use.end_bytes_over_entry == 64 * 64 * 4


def test_nothing_allocated() -> None:
    x = torch.ones(8)
    _, use = measure_peak(lambda: x.view(2, 4))
    assert (use.peak_bytes_over_entry, use.end_bytes_over_entry, use.allocations) == (0, 0, 0)


def test_regions_nest_and_see_frees() -> None:
    def run(mark: Mark) -> torch.Tensor:
        kept = torch.empty(250)
        with mark("outer"):
            with mark("inner"):
                grown = torch.empty(1000)
            del kept
        return grown

    _, uses = measure_regions(run)
    assert uses["inner"].peak_bytes_over_entry == 4000
    assert uses["outer"].peak_bytes_over_entry == 4000
    assert uses["outer"].end_bytes_over_entry == 3000


def test_many_regions_in_one_profile() -> None:
    def run(mark: Mark) -> list[torch.Tensor]:
        kept = []
        for index in range(200):
            with mark(str(index)):
                kept.append(torch.empty(index))
        return kept

    _, uses = measure_regions(run)
    assert [uses[str(i)].peak_bytes_over_entry for i in range(200)] == [4 * i for i in range(200)]


def test_inside_a_profiler_is_refused() -> None:
    with torch.profiler.profile(), pytest.raises(FBError) as caught:
        measure_peak(lambda: None)
    assert caught.value.diagnostics[0].code == "FB0903"


def test_nothing_is_written_to_stderr() -> None:
    code = (
        "from remat_compile.backends.torch import measure_peak; import torch;"
        "print(measure_peak(lambda: torch.empty(10))[1].peak_bytes_over_entry)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS_S
    )
    assert (done.stdout, done.stderr) == ("40\n", "")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_counters() -> None:
    device = torch.device("cuda")
    _, use = measure_peak(lambda: torch.empty(1000, device=device), device)
    assert use.peak_bytes_over_entry == 4096
