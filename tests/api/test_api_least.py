"""`least` as a budget: the fewest bytes that a planner has a plan for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import remat_compile
from helpers.cli import chain_text
from helpers.clock import HANGS_S
from helpers.planners.graphs import random_dag
from remat_compile import FBError
from remat_compile.ir.analysis.liveness import lower_bound_bytes
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import Infeasible, parse_planner
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.eviction.search import Search
from remat_compile.planners.instance import Order
from remat_compile.plans.run_planner import Attempt
from remat_compile.plans.sweep import least


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "chain.fbir").write_text(chain_text())
    return tmp_path / "chain.fbir"


@pytest.mark.parametrize("name", ["activation_budget", "budget"])
@pytest.mark.parametrize("planner", ["dtr", "rotor"])
def test_the_planner_has_none_for_a_byte_less(
    path: Path, name: Literal["budget", "activation_budget"], planner: str
) -> None:
    kind: dict[str, str] = {name: "least"}
    plan = remat_compile.plan(path, planner=planner, time_limit_s=HANGS_S, **kind)  # type: ignore[arg-type]
    assert plan.budget is not None
    peak = plan.peak_bytes if name == "budget" else plan.activation_peak_bytes
    assert peak == plan.budget.bytes
    assert plan.proven is not None
    assert plan.proven.certificate is not None
    assert plan.budget in plan.proven.certificate.budgets
    less = remat_compile.Budget(int(peak * (1 - 2 * least.CLOSE)), plan.budget.kind)
    refused = parse_planner(planner).plan(plan.program, less)
    assert isinstance(refused, Infeasible)


def test_no_fewer_bytes_than_the_floor_and_no_more_than_dtr(path: Path) -> None:
    plan = remat_compile.plan(path, activation_budget="least", time_limit_s=8)
    assert plan.budget is not None
    reach = Dtr(rounds=0).plan(plan.program, remat_compile.Budget(1, "activation"))
    assert isinstance(reach, Infeasible)
    assert reach.min_budget is not None
    floor, _ = lower_bound_bytes(plan.program, "activation")
    assert plan.baseline.activation_floor_bytes < floor
    assert floor <= plan.budget.bytes <= reach.min_budget.bytes
    (row,) = [
        line for line in plan.summary().splitlines() if line.strip().startswith("activations")
    ]
    assert remat_compile.plans.budget.format_bytes(floor) in row


def test_the_least_of_a_planner_that_saves_nothing(path: Path) -> None:
    plan = remat_compile.plan(path, budget="least", planner="store-all", time_limit_s=2)
    assert plan.peak_bytes == plan.baseline.peak_bytes


def test_ctrl_c_takes_the_least_so_far(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    usual = Attempt.ask

    def ask(self: Attempt, **options: bool) -> object:
        asked.append(self.budget)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return usual(self, **options)

    monkeypatch.setattr(Attempt, "ask", ask)
    monkeypatch.setattr(least, "CLOSE", 0.0)
    plan = remat_compile.plan(path, activation_budget="least", planner="dtr")
    assert len(asked) == 3
    assert plan.activation_peak_bytes == plan.budget.bytes  # type: ignore[union-attr]


def test_it_is_no_bound_for_a_proof_or_a_sweep(path: Path) -> None:
    plan = remat_compile.plan(path, planner="store-all")
    with pytest.raises(FBError, match="found by planning one schedule") as error:
        plan.verify("least")
    assert [d.code for d in error.value.diagnostics] == ["FB0450"]
    with pytest.raises(FBError, match="found by planning one schedule"):
        remat_compile.sweep(path, budgets="least", planners="dtr")


@pytest.fixture
def random_path(tmp_path: Path) -> Path:
    (tmp_path / "random.fbir").write_text(format_program(random_dag(1, 20)))
    return tmp_path / "random.fbir"


def test_walks_that_vary_find_fewer_bytes(
    random_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least, "WALKS", 300)
    plan = remat_compile.plan(
        random_path, activation_budget="least", planner="dtr", time_limit_s=HANGS_S
    )
    assert plan.schedule.planner == "dtr{walks=300}"
    assert plan.activation_peak_bytes <= 736 < 744
    assert plan.proven is not None
    assert not plan.warnings


def test_a_limit_that_ends_the_walks_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Search.least

    def late(self: Search, enough_bytes: int = 0) -> Order:
        order = usual(self, self.limit_bytes)
        self.late = True
        return order

    monkeypatch.setattr(least, "WALKS", 0)
    monkeypatch.setattr(least, "CLOSE", -1.0)  # nothing is close enough
    monkeypatch.setattr(Search, "least", late)
    plan = remat_compile.plan(path, activation_budget="least", planner="dtr", time_limit_s=HANGS_S)
    assert [w.code for w in plan.warnings] == ["FB0732"]
    assert "ended the search for fewer bytes" in plan.warnings[0].message
