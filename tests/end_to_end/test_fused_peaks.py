"""A fused plan takes no more bytes than the plan it was made from, nor one of a lower budget more
than one of a higher. Times are computed and kernels priced by their bytes: no machine counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.clock import HANGS_S, skips
from remat_compile import Plan
from remat_compile.backends.torch import kernels
from remat_compile.backends.torch.kernels import InductorPrice, missing
from remat_compile.backends.torch.kernels.price import KernelCost
from remat_compile.costs import load_device, roofline
from remat_compile.driver import fused_ways, make_plan
from remat_compile.driver.fused_ways import FusedWay, FusedWays, in_order
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Budget, Program
from remat_compile.verifier import ProvenPlan

needs_compiler = pytest.mark.skipif(
    missing(torch.device("cpu")) is not None, reason="no C++ compiler"
)


class Block(nn.Module):
    """A gated layer after a root-mean-square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.up, self.gate = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        made: Tensor = x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))
        return made


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(32), Block(32))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.blocks(x).square().mean()
        return made


def computed(lowered: Any) -> Program:
    program: Program = lowered.program
    timed = roofline(program, load_device("cpu"))
    return replace(program, graph=timed.graph, header=timed.header)


class ByBytes(InductorPrice):
    """Kernels that nobody compiles: what they read and write, at 20 GB/s."""

    def cost(self, c: CNode) -> KernelCost | None:
        tensors = [self.values[name] for name in (*c.call.refs(), *c.results)]
        return KernelCost(5000 + sum(t.numel() * t.element_size() for t in tensors) // 20, 0)


@needs_compiler
def test_no_fused_plan_takes_more_than_its_own_plan_or_that_of_a_larger_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(make_plan, "_measured", computed)
    monkeypatch.setattr(kernels, "InductorPrice", ByBytes)
    model, x = Stack(), torch.randn(256, 32)

    def plan(budget: str, way: str) -> Plan:
        return remat_compile.plan(
            model, (x,), activation_budget=budget, planner="dtr", fuse=way, cache=False
        )

    larger = None
    for budget in ("range:0.8", "range:0.7", "range:0.5"):
        fused, unfused = plan(budget, "auto"), plan(budget, "none")
        assert any(c.is_fused for c in fused.graph.cnodes)
        assert fused.time_s < unfused.time_s
        assert fused.peak_bytes <= unfused.peak_bytes
        assert fused.activation_peak_bytes <= unfused.activation_peak_bytes
        assert larger is None or fused.peak_bytes <= larger.peak_bytes
        assert isinstance(fused.verify(), ProvenPlan)
        larger = fused


# -- the rule alone --------------------------------------------------------------------

MB = 10**6


@dataclass
class _Known(FusedWays):
    """Plans that are known: those of the budget itself, and those of rungs, by their MB."""

    most: int = 100 * MB
    own: Sequence[FusedWay] = ()
    of_rung: Callable[[int], Sequence[FusedWay]] = lambda _: ()
    asked: tuple[int, ...] = ()

    def ways(self) -> Iterator[Any]:
        yield from self.own

    def rung_ways(self, rung: Budget, until: float) -> Iterator[Any]:
        self.asked += (rung.bytes,)
        yield from self.of_rung(rung.bytes)

    def within_peaks(self, ways: Any) -> Iterator[FusedWay]:
        yield from (way for way in ways if way.peaks[0] <= self.most)

    def rungs(self, ways: Sequence[FusedWay]) -> tuple[Sequence[Budget], Sequence[Budget]]:
        rungs = [Budget(n * 10 * MB) for n in range(10, 0, -1) if n * 10 * MB < self.most]
        first = sum(rung.bytes >= in_order(ways)[0].peaks[0] for rung in rungs)
        return rungs[:first], rungs[first:]


def way(ms: float, mb: float) -> FusedWay:
    made: Any = f"{ms} ms, {mb} MB"
    return FusedWay(made, round(ms * 1e6), (round(mb * MB), round(mb * MB)))


def known(most_mb: int, own: Sequence[FusedWay], of_rung: Any, **options: Any) -> _Known:
    request: Any = type("Request", (), {"time_limit_s": 100 * HANGS_S})
    measured: Any = type("Measured", (), {"is_late": False, **options})
    nothing: Any = None
    return _Known(nothing, request, nothing, measured, (), most_mb * MB, own, of_rung)


def test_of_plans_about_as_fast_that_with_the_lowest_peak_comes_first() -> None:
    ways = [way(100, 90), way(100.18, 70), way(100.22, 40), way(100.1, 80)]
    assert in_order(ways) == [ways[1], ways[3], ways[0], ways[2]]
    assert in_order([]) == []


def test_a_lower_budget_gives_no_higher_peak() -> None:
    """As it was: within 90 MB a plan of 74 was there by chance, and within 80 one of 78."""
    by_rung = {90: [way(100, 88)], 80: [way(100, 77)], 70: [way(100.12, 69)], 60: [way(100.18, 59)]}

    def of_rung(most: int) -> Sequence[FusedWay]:
        return by_rung.get(most // MB, [way(110, most / MB - 1)])

    by_chance = {100: [way(100, 95)], 90: [way(100, 74)], 80: [way(100.1, 78), way(100, 79)]}
    peaks = []
    for most, own in by_chance.items():
        ways = known(most, own, of_rung)
        peaks.append(ways.made()[0].peaks[0] // MB)
        assert ways.asked[-1] == 50 * MB
    assert peaks == [59, 59, 59]


def test_where_no_rung_is_as_fast_the_own_plan_is_taken() -> None:
    own = [way(100, 75), way(100.2, 74)]
    ways = known(100, own, lambda most: [way(120, most / MB)])
    assert ways.made()[:2] == [own[1], own[0]]
    assert ways.asked == (80 * MB, 90 * MB, 70 * MB)  # that it is within, above it, below it


def test_within_a_rung_chance_does_not_choose() -> None:
    """Two measurements of the same plans: of 38 MB about as fast, of 37 now and then."""
    peaks = []
    for ms in (100.16, 100.26):
        ways = known(50, [way(100, 49)], lambda most, ms=ms: [way(100.1, 38), way(ms, 37)])
        peaks.append(ways.made()[0].peaks[0])
    assert peaks == [37 * MB] * 2
    slow = known(50, [way(100, 49)], lambda _: [way(100.1, 38), way(100.42, 37)])
    assert slow.made()[0].peaks[0] == 38 * MB


def test_bytes_that_nobody_asked_for_cost_no_time() -> None:
    """As it was: a plan that runs a kernel more was taken for bytes below the budget."""
    rungs = {40: [way(100.5, 38)], 30: [way(100.9, 29)]}
    ways = known(50, [way(100, 49)], lambda most: rungs.get(most // MB, [way(110, 20)]))
    assert ways.made()[0] == way(100, 49)


def test_rungs_have_the_time_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit is 100 units and each rung takes 40: the third is the last. None where kernels have
    had their time."""
    skip = skips(monkeypatch)

    def of_rung(most: int) -> Sequence[FusedWay]:
        skip(40 * HANGS_S)
        return [way(100, most / MB)]

    ways = known(100, [way(100, 95)], of_rung)
    assert ways.made()[0].peaks[0] == 70 * MB
    assert len(ways.asked) == 3
    late = known(100, [way(100, 95)], of_rung, is_late=True)
    assert late.made() == [*late.own]
    assert late.asked == ()


@dataclass
class _Slow(FusedWays):
    """Plans of nothing, which a planner looks for as long as `skip` says; `limits_s` are those that
    it is given."""

    skip: Callable[[float], None] = lambda _: None
    limits_s: tuple[float, ...] = ()

    def planned(self, program: Program, budget: Budget, time_limit_s: float) -> None:
        self.limits_s += (time_limit_s,)
        self.skip(40 * HANGS_S)

    def at_shares(self, shares: Mapping[str, float]) -> Program:
        nothing: Any = None
        return nothing

    @property
    def peaks(self) -> tuple[int, int]:
        return 100 * MB, 100 * MB


def test_a_rung_that_began_in_time_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its two planners has what is left, and not as much as the first one had."""
    skip = skips(monkeypatch)
    of_100: Any = known(100, [], None).request
    nothing: Any = None
    whole: Any = type("Whole", (), {"program": None})
    slow = _Slow(nothing, of_100, nothing, nothing, [whole], skip)
    until = fused_ways.monotonic() + 100 * HANGS_S
    assert [*slow.rung_ways(Budget(50 * MB), until)] == []
    first, second = slow.limits_s
    assert 99 * HANGS_S < first <= 100 * HANGS_S
    assert 59 * HANGS_S < second <= 60 * HANGS_S
