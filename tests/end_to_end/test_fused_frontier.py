"""Fused plans of one graph for several budgets: a lower budget gives no higher peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.fused_plans import check_step, codes, needs_compiler
from helpers.stored import rewrite
from remat_compile import Plan
from remat_compile.driver.fused_frontier import FusedFrontier, Taken
from remat_compile.driver.fused_ways import FusedWay, FusedWays
from remat_compile.driver.store import VARIABLE, Store

MB = 10**6
NOTHING: Any = None


# -- the rule alone ----------------------------------------------------------------------


def way(ms: float, mb: int) -> FusedWay:
    made: Any = f"{ms} ms, {mb} MB"
    return FusedWay(made, round(ms * 1e6), (mb * MB, mb * MB))


def taken(budget: int, ms: float, mb: int) -> Taken:
    return Taken(budget * MB, mb * MB, round(ms * 1e6), "")


def plan(budget: int, own_mb: int | None = None, ms: float = 200) -> Any:
    peak = (own_mb or budget) * MB
    trace = SimpleNamespace(peak_bytes=peak, time_ns=ms * 1e6)
    return SimpleNamespace(budget=SimpleNamespace(bytes=budget * MB), trace=trace)


ONLY = FusedFrontier(Store(Path()), "", is_activation=False)


def test_what_was_taken_within_a_larger_budget_is_taken_again() -> None:
    before, new = taken(90, 100.3, 74), way(100, 78)
    assert ONLY.ordered(plan(80), [new], [before]) == [before, new]
    lower = way(100.2, 73)  # found now, and faster
    assert ONLY.ordered(plan(80), [new, lower], [before]) == [lower, before, new]


def test_what_was_taken_within_a_smaller_budget_is_no_higher() -> None:
    before, new = taken(80, 100.1, 78), way(100.2, 74)
    assert ONLY.ordered(plan(90), [new], [before]) == [before, new]
    higher = way(100, 88)
    assert ONLY.ordered(plan(90), [new, higher], [before]) == [higher, before, new]


def test_what_fits_in_stays_as_it_was_found() -> None:
    made = [way(100.1, 75), way(100, 79)]
    assert ONLY.ordered(plan(80), made, [taken(90, 99, 79), taken(70, 101, 70)]) == made
    assert ONLY.ordered(plan(80), made, []) == made
    assert ONLY.ordered(plan(80), [], []) == []


def test_where_nothing_is_found_what_was_taken_is() -> None:
    before = taken(90, 99, 79)
    assert ONLY.ordered(plan(80), [], [before]) == [before]
    assert ONLY.ordered(plan(80, ms=98), [], [before]) == []  # no faster than the plan itself
    assert ONLY.ordered(plan(78), [], [before]) == []


def test_more_than_a_hundredth_of_the_time_is_not_yielded() -> None:
    new = way(100, 78)
    assert ONLY.ordered(plan(80), [new], [taken(90, 101.5, 74)]) == [new]


def test_what_is_above_the_own_plan_is_not_taken() -> None:
    new = way(100, 70)
    assert ONLY.ordered(plan(80, own_mb=76), [new], [taken(70, 100, 78)]) == [new]
    assert ONLY.ordered(plan(80, ms=100.2), [way(100, 78)], [taken(90, 100.3, 74)])[0].time_ns == (
        100 * MB
    )


def test_each_order_of_budgets_gives_peaks_that_rise_with_them() -> None:
    by_chance = {100: way(100.1, 74), 90: way(100.2, 88), 80: way(100, 78), 60: way(103, 60)}
    for budgets in ([100, 90, 80, 60], [60, 80, 90, 100], [80, 100, 60, 90]):
        known: list[Taken] = []
        for budget in budgets:
            first = ONLY.ordered(plan(budget), [by_chance[budget]], known)[0]
            peak = first.peak if isinstance(first, Taken) else first.peaks[0]
            known.append(Taken(budget * MB, peak, first.time_ns, ""))
        peaks = [one.peak for one in sorted(known, key=lambda one: one.budget)]
        assert peaks == sorted(peaks)


# -- files -------------------------------------------------------------------------------


class Block(nn.Module):
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
        self.blocks = nn.Sequential(*(Block(16) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.blocks(x).square().mean()
        return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


def made(budget: str, **options: Any) -> Plan:
    torch.manual_seed(0)
    return remat_compile.plan(
        Stack(),
        (torch.ones(128, 16),),
        activation_budget=budget,
        planner="dtr",
        fuse="inductor",
        **options,
    )


@pytest.fixture
def first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan for all of the range, that of the least bytes; searches behind it find none as low."""
    real = FusedWays.made

    def lowest(self: FusedWays) -> list[FusedWay]:
        return sorted(real(self), key=lambda way: way.peaks[1])

    with monkeypatch.context() as patched:
        patched.setattr(FusedWays, "made", lowest)
        plan = made("range:1.0")
    peak = plan.activation_peak_bytes

    def higher(self: FusedWays) -> Sequence[FusedWay]:
        ways = sorted(real(self), key=lambda way: way.time_ns)
        return [way for way in ways if way.peaks[1] > peak]

    monkeypatch.setattr(FusedWays, "made", higher)
    monkeypatch.setattr("remat_compile.driver.fused_frontier.YIELDED", 1000.0)
    return plan


LOWER = "range:0.95"


@needs_compiler
def test_a_plan_of_a_larger_budget_is_proven_and_runs_within_a_lower(first: Plan) -> None:
    again = made(LOWER)
    assert again.activation_peak_bytes == first.activation_peak_bytes
    assert again.schedule.steps == first.schedule.steps
    assert codes(again) == ["FB0470"]
    check_step(again, 1e-5)
    assert again.budget is not None
    assert first.budget is not None
    assert again.budget.bytes < first.budget.bytes
    assert made(LOWER, cache=False).activation_peak_bytes > first.activation_peak_bytes
    assert made(LOWER).schedule == again.schedule  # which is kept


def rewritten(
    folder: Path, change: Callable[[list[list[Any]]], object], *, seal: bool = True
) -> Path:
    def changed(rows: list[list[Any]]) -> list[list[Any]]:
        change(rows)
        return rows

    return rewrite(folder, "frontier", changed, seal=seal)


def set_text(change: Callable[[str], str]) -> Callable[[list[list[Any]]], object]:
    return lambda rows: [row.__setitem__(3, change(row[3])) for row in rows]


@needs_compiler
@pytest.mark.parametrize(
    "change",
    [
        set_text(lambda _: "nonsense"),
        set_text(lambda text: text.replace("fbir 1", "fbir 7")),
        set_text(lambda text: text.replace('"cpu" {', '"tpu" {')),
        set_text(lambda text: text.replace("aten.silu", "aten.sin")),
    ],
)
def test_a_text_that_is_no_such_plan_is_left(
    first: Plan, folder: Path, change: Callable[[list[list[Any]]], object]
) -> None:
    rewritten(folder, change)
    again = made(LOWER)
    assert again.activation_peak_bytes > first.activation_peak_bytes
    assert codes(again) == ["FB0470"]
    check_step(again, 1e-5)


@needs_compiler
@pytest.mark.parametrize(
    ("change", "seal"),
    [
        (lambda rows: rows.clear(), False),
        (lambda rows: rows[0].pop(), True),
        (lambda rows: rows[0].__setitem__(0, -1), True),
        (lambda rows: rows[0].__setitem__(1, "1"), True),
        (lambda rows: rows.append({}), True),
    ],
)
def test_a_file_that_cannot_be_used_is_told(
    first: Plan, folder: Path, change: Callable[[list[list[Any]]], object], seal: bool
) -> None:
    path = rewritten(folder, change, seal=seal)
    again = made(LOWER)
    assert codes(again) == ["FB0470", "FB0959"]
    (warning,) = (d for d in again.warnings if d.code == "FB0959")
    assert str(path) in warning.message
    assert again.activation_peak_bytes > first.activation_peak_bytes
