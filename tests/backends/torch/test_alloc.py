"""Measured memory is exact: sizes are known for these runs, transients included."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random

import pytest
import torch
from torch import nn

from helpers.clock import HANGS_S
from helpers.execution.copied_steps import copied_step
from helpers.programs.random_plans import random_plan
from remat_compile.backends.python.allowed import check_generated
from remat_compile.backends.torch import Mark, emit, measure_peak, measure_regions
from remat_compile.backends.torch.code.allowed import allowed
from remat_compile.backends.torch.code.script import replay_helper
from remat_compile.backends.torch.readback import check_source
from remat_compile.backends.torch.runtime import ThreadEngine, host_layout
from remat_compile.backends.torch.runtime.arena import Tenancy, in_order_of_issue, place
from remat_compile.backends.torch.runtime.call import Arena
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate


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


# -- Code for a device draws random numbers again from that device's generator --------------------


@cache
def dropout_again() -> tuple[Program, Schedule]:
    """A plan that computes dropout a second time."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
    with lower(export(model, (torch.ones(2, 4),))) as lowered:
        program = lowered.program
    plans = (random_plan(Random(seed), program) for seed in range(100))
    return program, next(plan for plan in plans if "replay(rng" in emit(program, plan))


@pytest.mark.parametrize(
    ("device", "module"),
    [
        ("cpu", "torch"),
        ("cuda", "torch.cuda"),
        ("cuda:1", "torch.cuda"),
        ("xpu", "torch.xpu"),
        ("mps", "torch.mps"),
        ("__import__('os')", "torch"),
    ],
)
def test_generated_code_asks_the_generator_of_its_device(device: str, module: str) -> None:
    program, plan = dropout_again()
    program = replace(program, header=replace(program.header, device=device))
    source = emit(program, plan)
    assert source.count(".get_rng_state()") == source.count(f" {module}.get_rng_state()") > 1
    check_generated(source, allowed(program, plan, replay_helper(program)))
    check_source(source, program, plan)


# -- Addresses of host copies ---------------------------------------------------------------------


def check_placed(copies: list[Tenancy]) -> tuple[int, int]:
    """Bytes of the arena and how many copies lie in several pieces."""
    size, placed = place(copies)
    peak = max((sum(t.size_bytes for t in copies if t.begin <= now < t.end)) for now in range(100))
    assert size == peak
    for mine, pieces in zip(copies, placed, strict=True):
        assert sum(length for _, length in pieces) == mine.size_bytes
        assert all(address >= 0 and address + length <= size for address, length in pieces)
    for now in range(100):
        taken = sorted(
            piece
            for tenancy, pieces in zip(copies, placed, strict=True)
            if tenancy.begin <= now < tenancy.end
            for piece in pieces
        )
        assert all(a + n <= b for (a, n), (b, _) in pairwise(taken))
    return size, sum(len(pieces) > 1 for pieces in placed)


def random_tenancies(rng: Random) -> list[Tenancy]:
    copies = []
    for index in range(rng.randrange(1, 25)):
        begin = rng.randrange(0, 90)
        size = rng.choice((0, 1, 3, 8, 40, rng.randrange(100)))
        copies.append(Tenancy(f"a{index}", size, begin, rng.randrange(begin + 1, 100)))
    return sorted(copies, key=lambda tenancy: tenancy.begin)


def test_random_copies_fit_into_their_peak() -> None:
    split = [check_placed(random_tenancies(Random(seed)))[1] for seed in range(300)]
    assert 0 < sum(map(bool, split)) < 100  # some need several pieces, most do not


def test_the_example_of_the_documentation() -> None:
    copies = [
        Tenancy("a", 2, 0, 2),
        Tenancy("b", 2, 0, 4),
        Tenancy("c", 2, 0, 2),
        Tenancy("d", 4, 2, 4),
    ]
    assert in_order_of_issue(copies, 6)[3] == ((0, 2), (4, 2))
    assert check_placed(copies) == (6, 0)  # the largest first: %d at 0..4, %b behind it


def test_copies_that_come_and_go() -> None:
    copies = [
        Tenancy("a", 1, 0, 2),
        Tenancy("b", 1, 0, 5),
        Tenancy("c", 1, 1, 3),
        Tenancy("d", 1, 2, 6),
        Tenancy("e", 2, 5, 7),
        Tenancy("f", 2, 3, 5),
    ]
    check_placed(sorted(copies, key=lambda t: t.begin))


@pytest.mark.parametrize("seed", range(4))
def test_the_arena_of_a_plan_is_its_proven_host_peak(seed: int) -> None:
    step = copied_step("conv-bn-dropout-tied", seed)
    layout = host_layout(step.program, step.schedule)
    assert layout.size_bytes == simulate(step.program, step.schedule).host_peak_bytes
    arena = Arena(ThreadEngine(), layout.size_bytes)
    assert sum(block.numel() for block in arena.blocks) == layout.size_bytes


def test_pieces_go_over_the_borders_of_blocks() -> None:
    class Blocks(ThreadEngine):
        def host_memory(self, size_bytes: int) -> tuple[object, ...]:  # type: ignore[override]
            whole = super().host_memory(size_bytes)[0]
            return whole[:4], whole[4:6], whole[6:]

    arena = Arena(Blocks(), 12)
    for address in range(12):
        for block in arena.blocks:
            block.zero_()
        lengths = [part.numel() for part in arena.views(((7, 5), (address % 7, 3)))]
        assert sum(lengths) == 8
    first = arena.views(((5, 4), (0, 5)))
    assert [part.numel() for part in first] == [1, 3, 4, 1]
