"""Costs are measured once for a graph: plans for other budgets rest on the same."""

from __future__ import annotations

import re
from collections.abc import Callable
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
from remat_compile.plans.cache import surroundings
from remat_compile.plans.store import VARIABLE


class Net(nn.Module):
    def __init__(self, depth: int = 5, width: int = 16) -> None:
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


def test_another_budget_measures_nothing(folder: Path) -> None:
    first, second = made("90%"), made("60%")
    assert is_measured(first)
    assert not is_measured(second)
    assert "plan" in second.phase_s
    assert second.warnings == ()
    assert costs(second) == costs(first)
    assert second.program.header == first.program.header
    assert second.program.target == first.program.target


def test_another_planner_measures_nothing(folder: Path) -> None:
    """Also one of somebody else, whose plans are not kept, and `least`."""

    class Mine(StoreAll):
        pass

    first = made("90%")
    for plan in (made(None, Mine()), made("least"), made("90%", grads="accumulate")):
        assert not is_measured(plan)
        assert costs(plan).items() >= costs(first).items()


def test_fused_and_unfused_plans_are_made_from_one(folder: Path) -> None:
    unfused = fused_plans.made("none")
    fused = fused_plans.made("auto")
    assert not is_measured(fused)
    assert len(list(folder.glob("*.remat-plan"))) == 1
    assert fused.peak_bytes <= unfused.peak_bytes


def test_without_a_cache_all_is_measured(folder: Path) -> None:
    first = made("90%")
    before = sorted(folder.iterdir())
    assert is_measured(made("60%", cache=False))
    assert sorted(folder.iterdir()) == before
    assert costs(made("50%")) == costs(first)


def test_what_times_depend_on_is_part_of_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("90%")
    torch.set_num_threads((threads := torch.get_num_threads()) + 1)
    try:
        assert is_measured(made("60%"))
    finally:
        torch.set_num_threads(threads)
    wider = torch.ones(48, 16)
    assert is_measured(remat_compile.plan(Net(), (wider,), planner="store-all"))
    assert len(list(folder.glob("*.remat-costs"))) == 3


def test_costs_of_a_device_are_computed(folder: Path) -> None:
    made("90%")
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


# -- files that cannot be used -------------------------------------------------------------


def without_times(text: str) -> str:
    return re.sub(r" time [0-9.]+ ?[nuµm]?s\b", "", text)


DAMAGE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no text": (lambda _: 7, "no graph with costs"),
    "nonsense": (lambda _: "nonsense", "FB0"),
    "another graph": (lambda t: t.replace("aten.tanh", "aten.sigmoid"), "graph is another"),
    "another target": (lambda t: t.replace('"cpu" {', '"tpu" {'), "no graph with costs"),
    "without times": (without_times, "has no time"),
    "elsewhere": (
        lambda t: t.replace("captured device cpu", "captured device cuda"),
        "captured elsewhere",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_costs_that_cannot_be_used_are_measured_again(folder: Path, name: str) -> None:
    made("90%")
    change, says = DAMAGE[name]
    path = rewrite(folder, "costs", change)
    again = made("60%")
    assert is_measured(again)
    assert codes(again) == ["FB0959"]
    assert str(path) in again.warnings[0].message
    assert says in again.warnings[0].message
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
    first = fused_plans.made()
    assert timed
    timed.clear()
    again = fused_plans.made(time_limit_s=59)  # another key: planned and fused anew
    assert "plan" in again.phase_s
    assert "fuse" in again.phase_s
    assert timed == []
    assert again.schedule == first.schedule
    assert again.graph == first.graph
    check_step(again, 1e-5)
    fused_plans.made(cache=False)
    assert timed


def set_all(pair: Any) -> Callable[[Any], Any]:
    return lambda times: dict.fromkeys(times, pair)


@needs_compiler
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: [], "holds no times"),
        (set_all([1]), "no number"),
        (set_all([-1, 5]), "no number"),
        (set_all([1.5, 5]), "no number"),
        (set_all([10**18, 5]), "no number"),
        (set_all(["1", 5]), "no number"),
    ],
)
def test_prices_that_cannot_be_used_are_measured_again(
    folder: Path, timed: list[str], change: Callable[[Any], Any], says: str
) -> None:
    fused_plans.made()
    timed.clear()
    path = rewrite(folder, "times", change)
    again = fused_plans.made(time_limit_s=59)
    assert timed
    (warning,) = (d for d in again.warnings if d.code == "FB0959")
    assert str(path) in warning.message
    assert says in warning.message
    timed.clear()
    fused_plans.made(time_limit_s=58)
    assert timed == []


def test_settings_of_inductor_belong_to_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are others by them, and so are their times; where they lie is none of them."""
    from torch._inductor import config

    def now() -> str:
        return repr(surroundings())

    before = now()
    with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        assert now() != before
    assert now() == before
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert now() == before
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert now() != before
