"""`least` as a budget: the fewest bytes that a planner has a plan for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import remat_compile
from helpers.cli import chain_text
from helpers.clock import HANGS_S
from remat_compile import FBError
from remat_compile.driver import least
from remat_compile.driver.run_planner import Attempt
from remat_compile.ir.analysis.liveness import lower_bound_bytes
from remat_compile.planners import Infeasible, parse_planner
from remat_compile.planners.dtr import Dtr


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
    assert remat_compile.driver.budget.format_bytes(floor) in row


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
