"""Costs are measured once for a graph: plans for other budgets rest on the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers import fused_plans
from helpers.fused_plans import check_step, codes, needs_compiler
from helpers.stored import rewrite
from remat_compile import Plan
from remat_compile.backends.torch.kernels import price
from remat_compile.planners.baselines.store_all import StoreAll
from remat_compile.plans.store import VARIABLE


class Net(nn.Module):
    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def made(budget: str | None, planner: Any = "dtr", **options: Any) -> Plan:
    return remat_compile.plan(
        Net(), (torch.ones(32, 16),), activation_budget=budget, planner=planner, **options
    )


def is_measured(plan: Plan) -> bool:
    return "costs" in plan.phase_s


def costs(plan: Plan) -> dict[str, Any]:
    graph = plan.graph
    return {
        **{c.name: (c.time_ns, c.workspace, c.replay) for c in graph.cnodes},
        **{a.name: a.size for a in graph.anodes},
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A plan and the folder in which it was kept with its costs; tests change copies of that."""
    folder = tmp_path_factory.mktemp("kept") / "plans"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, str(folder))
        return made("90%"), folder


@pytest.fixture
def first(folder: Path, kept: tuple[Plan, Path]) -> Plan:
    """The plan that lies in `folder` with its costs."""
    shutil.copytree(kept[1], folder)
    return kept[0]


def test_another_budget_measures_nothing(first: Plan) -> None:
    second = made("60%")
    assert is_measured(first)
    assert not is_measured(second)
    assert "plan" in second.phase_s
    assert second.warnings == ()
    assert costs(second) == costs(first)
    assert second.program.header == first.program.header
    assert second.program.target == first.program.target


def test_another_planner_measures_nothing(first: Plan) -> None:
    """Also one of somebody else, whose plans are not kept, and `least`."""

    class Mine(StoreAll):
        pass

    for plan in (made(None, Mine()), made("least"), made("90%", grads="accumulate")):
        assert not is_measured(plan)
        assert costs(plan).items() >= costs(first).items()


def test_without_a_cache_all_is_measured(first: Plan, folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert is_measured(made("60%", cache=False))
    assert sorted(folder.iterdir()) == before


def test_costs_of_a_device_are_computed(first: Plan, folder: Path) -> None:
    plan = made("60%", costs="roofline", device="h200")
    assert plan.program.header.costs == "roofline"
    assert len(list(folder.glob("*.remat-costs"))) == 1


def test_a_range_of_sizes_has_costs_of_its_own(folder: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)

    def plan(budget: str, dims: Any) -> Plan:
        return remat_compile.plan(
            Net(),
            (torch.ones(32, 16),),
            activation_budget=budget,
            planner="dtr",
            dynamic_shapes=({0: dims},),
        )

    first = plan("90%", batch)
    again = plan("60%", batch)
    assert not is_measured(again)
    assert costs(again) == costs(first)
    assert is_measured(plan("60%", torch.export.Dim("batch", min=2, max=32)))


def test_costs_that_cannot_be_used_are_measured_again(first: Plan, folder: Path) -> None:
    """`test_plan_cache` has what cannot be used."""
    path = rewrite(folder, "costs", lambda _: "nonsense")
    again = made("60%")
    assert is_measured(again)
    assert codes(again) == ["FB0959"]
    assert str(path) in again.warnings[0].message
    after = made("50%")
    assert not is_measured(after)
    assert costs(after) == costs(again)
    assert after.warnings == ()


def test_a_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "plans"))
    plan = made(None, StoreAll())
    texts = [d.message for d in plan.warnings]
    assert is_measured(plan)
    assert len(texts) == len(set(texts))
    assert codes(plan) == ["FB0959"] * len(texts)


# -- kernels ---------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fused cNodes whose kernels were timed."""
    names: list[str] = []
    real = price._measured

    def counted(kernel: Any, c: Any, *rest: Any) -> Any:
        names.append(c.name)
        return real(kernel, c, *rest)

    monkeypatch.setattr(price, "_measured", counted)
    return names


@needs_compiler
def test_a_kernel_is_timed_once_for_all_plans(folder: Path, timed: list[str]) -> None:
    unfused = fused_plans.made("none")
    first = fused_plans.made()
    assert is_measured(unfused)
    assert not is_measured(first)
    assert len(list(folder.glob("*.remat-plan"))) == 1
    assert first.peak_bytes <= unfused.peak_bytes
    assert timed
    timed.clear()
    again = fused_plans.made(time_limit_s=59)  # another key: planned and fused anew
    assert "plan" in again.phase_s
    assert "fuse" in again.phase_s
    assert timed == []
    assert again.schedule == first.schedule
    assert again.graph == first.graph
    check_step(again, 1e-5)
    path = rewrite(folder, "times", lambda _: [])
    again = fused_plans.made(time_limit_s=58)
    assert timed
    (warning,) = (d for d in again.warnings if d.code == "FB0959")
    assert str(path) in warning.message
    timed.clear()
    fused_plans.made(time_limit_s=57)
    assert timed == []
    fused_plans.made(cache=False)
    assert timed
