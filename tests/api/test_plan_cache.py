"""Plans on disk: found again, proven again, and never believed."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers import fused_plans
from helpers.fused_plans import check_step, codes, needs_compiler
from helpers.stored import rewrite
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError, Plan
from remat_compile.backends.torch.kernels import price
from remat_compile.capture.torch import export, lower
from remat_compile.ir.program import Program
from remat_compile.planners.baselines.store_all import StoreAll
from remat_compile.plans.files.cache import SETTINGS, PlanCache, graph_key, surroundings
from remat_compile.plans.files.store import VARIABLE, Store
from remat_compile.plans.make import plan_source
from remat_compile.plans.options import Errors
from remat_compile.plans.request import PlanRequest, read_request
from remat_compile.plans.run_planner import Phases
from remat_compile.plans.source import Source

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    def __init__(self, depth: int = 5, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def made(model: nn.Module | None = None, **options: Any) -> Plan:
    chosen = {"activation_budget": "70%", "planner": "dtr", **options}
    x = torch.ones(32, 16)
    return remat_compile.plan(model or Net(), (x,), **chosen)


def is_from_cache(plan: Plan) -> bool:
    return "plan" not in plan.phase_s


def test_a_plan_is_made_once(folder: Path) -> None:
    first, second = made(), made()
    assert not is_from_cache(first)
    assert is_from_cache(second)
    assert "costs" not in second.phase_s
    assert second.schedule == first.schedule
    assert second.program == first.program
    assert second.budget == first.budget
    assert second.lower_bound_s == first.lower_bound_s
    assert second.proven is not None
    assert len(list(folder.glob("*.remat-plan"))) == 1


def test_a_plan_that_was_found_trains_as_eager_does(folder: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(32, 16)
    twins = copy.deepcopy(model), copy.deepcopy(model)
    for twin in twins:
        ours = remat_compile.compile(twin, (x,), activation_budget="70%", planner="dtr")
        runs = train_steps(ours, (x,)), train_steps(copy.deepcopy(model), (x,))
        assert_bit_equal(*runs)
    assert len(list(folder.glob("*.remat-plan"))) == 1


@dataclass(frozen=True)
class Known:
    """A plan with what it is looked up by."""

    captured: Program
    request: PlanRequest
    plan: Plan


@pytest.fixture(scope="module")
def known() -> Known:
    asked = wanted()
    exported = export(Net(), (torch.ones(32, 16),))
    with lower(exported) as lowered:
        captured = lowered.program
    plan = plan_source(Source(exported), replace(asked, cache=False), Phases())
    return Known(captured, asked, plan)


def wanted(**options: Any) -> PlanRequest:
    errors = Errors()
    chosen = {"activation_budget": "70%", "planner": "dtr", "costs": "measured", **options}
    asked = read_request(errors, **chosen)
    errors.raise_if_any()
    assert asked is not None
    return asked


@pytest.mark.parametrize(
    "options",
    [
        {"activation_budget": "71%"},
        {"activation_budget": None, "budget": "70%"},
        {"planner": "dtr{rounds=0}"},
        {"grads": "accumulate"},
        {"time_limit_s": 30},
        {"costs": "roofline", "device": "h200"},
        {"link": "25GB/s"},
        {"host_budget": "1GiB"},
    ],
    ids=str,
)
def test_what_is_asked_is_part_of_the_key(known: Known, options: dict[str, Any]) -> None:
    cache = PlanCache(Store(Path()), "k")
    key = cache.plan_key(known.request)
    assert key == cache.plan_key(wanted())
    assert key != cache.plan_key(wanted(**options))
    assert key != PlanCache(Store(Path()), "other").plan_key(known.request)


def test_the_graph_is_part_of_the_key(known: Known) -> None:
    c = known.captured.graph.cnodes[0]
    other = replace(c, call=replace(c.call, op="aten.mm.default"))
    graph = replace(known.captured.graph, cnodes=(other, *known.captured.graph.cnodes[1:]))
    changed = replace(known.captured, graph=graph)
    assert graph_key(changed) != graph_key(known.captured)


class StridedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)).square().mean()


def test_how_tensors_lie_is_part_of_the_key(folder: Path) -> None:
    """A convolution takes other bytes of workspace for the same shapes in another order."""
    x = torch.ones(4, 4, 16, 16)
    turned = x.contiguous(memory_format=torch.channels_last)
    plans = [remat_compile.plan(StridedConv(), (t,), planner="store-all") for t in (x, turned)]
    assert not any(map(is_from_cache, plans))
    assert len(list(folder.glob("*.remat-plan"))) == 2
    again = remat_compile.plan(StridedConv(), (turned,), planner="store-all")
    assert is_from_cache(again)
    assert again.peak_bytes == plans[1].peak_bytes


def test_a_planner_of_somebody_else_has_no_key(known: Known) -> None:
    class Mine(type(known.request.planner)):  # type: ignore[misc]
        pass

    asked = replace(known.request, planner=Mine())
    assert PlanCache(Store(Path()), "k").plan_key(asked) is None


def test_it_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_from_cache(made(cache=False))
    assert not folder.exists()
    monkeypatch.setenv(VARIABLE, "off")
    assert not is_from_cache(made())
    with pytest.raises(FBError) as refused:
        made(cache="no")
    assert refused.value.diagnostics[0].code == "FB0707"


# -- files that cannot be used -----------------------------------------------------------


def drop_a_step(text: str) -> str:
    """A schedule that forgets a computation."""
    lines = text.splitlines(keepends=True)
    at = max(i for i, line in enumerate(lines) if line.strip() == "B3")
    return "".join(lines[:at] + lines[at + 1 :])


def of_another_graph(text: str) -> str:
    return text.replace("aten.tanh.default", "aten.sin.default")


def without_times(text: str) -> str:
    return re.sub(r" time [0-9.]+ ?[nuµm]?s\b", "", text)


def each(pair: Any) -> Callable[[Any], Any]:
    return lambda times: dict.fromkeys(times, pair)


DAMAGE: dict[str, list[tuple[Callable[[Any], Any], str]]] = {
    "plan": [
        (lambda value: ["nonsense", value[1]], "FB0"),
        (lambda value: value[0], "it is no plan"),
        (lambda value: [drop_a_step(value[0]), value[1]], "FB0"),
        (lambda value: [of_another_graph(value[0]), value[1]], "graph is another"),
        (lambda value: [value[0], 10**15], "above its own"),
        (lambda value: [value[0], "1"], "it is no plan"),
        (lambda value: [value[0], True], "it is no plan"),
    ],
    "costs": [
        (lambda _: 7, "no graph with costs"),
        (lambda _: "nonsense", "FB0"),
        (of_another_graph, "graph is another"),
        (lambda text: text.replace('"cpu" {', '"tpu" {'), "no graph with costs"),
        (without_times, "has no time"),
        (lambda text: text.replace("device cpu", "device cuda"), "captured elsewhere"),
    ],
    "times": [
        (lambda _: [], "holds no times"),
        (each([1]), "no number"),
        (each([-1, 5]), "no number"),
        (each([1.5, 5]), "no number"),
        (each([10**18, 5]), "no number"),
        (each(["1", 5]), "no number"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "change", "says"), [(kind, *case) for kind, cases in DAMAGE.items() for case in cases]
)
def test_what_cannot_be_used_is_told(
    known: Known, folder: Path, kind: str, change: Callable[[Any], Any], says: str
) -> None:
    cache = PlanCache(Store(folder), "k")
    costed = replace(known.plan.program, schedules=(), proven=())
    keep, find = {
        "plan": (
            lambda: cache.keep_plan(known.plan, known.request),
            lambda: cache.find_plan(known.captured, known.request),
        ),
        "costs": (lambda: cache.keep_costs(costed), lambda: cache.find_costs(known.captured)),
        "times": (lambda: cache.keep_times({"kernel": (3, 5)}), cache.find_times),
    }[kind]
    assert keep() == ()
    wanted, warned = find()
    assert wanted
    assert warned == ()
    path = rewrite(folder, kind, change)
    found, (warning,) = find()
    assert not found
    assert warning.code == "FB0959"
    assert str(path) in warning.message
    assert says in warning.message
    keep()
    again, warned = find()
    assert getattr(again, "program", again) == getattr(wanted, "program", wanted)
    assert warned == ()


def test_a_file_that_cannot_be_used_is_written_again(folder: Path) -> None:
    made()
    (path,) = folder.glob("*.remat-plan")
    path.write_text("{")
    with pytest.warns(UserWarning, match="FB0959"):
        remat_compile.compile(Net(), (torch.ones(32, 16),), activation_budget="70%", planner="dtr")
    assert is_from_cache(made())


@pytest.mark.parametrize("name", SETTINGS)
def test_what_changes_costs_is_part_of_the_key(
    name: str, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = graph_key(known.captured)
    monkeypatch.setenv(name, "other")
    assert graph_key(known.captured) != before


def test_threads_are_part_of_the_key(known: Known) -> None:
    before = graph_key(known.captured)
    torch.set_num_threads((threads := torch.get_num_threads()) + 1)
    try:
        assert graph_key(known.captured) != before
    finally:
        torch.set_num_threads(threads)


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


KEY = """
import sys; sys.path.insert(0, "tests")
from api.test_plan_cache import *
with lower(export(Net(), (torch.ones(32, 16),))) as lowered:
    print(graph_key(lowered.program))
"""


def test_another_process_has_the_same_key(known: Known) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    ran = subprocess.run(
        [sys.executable, "-c", KEY], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-1] == graph_key(known.captured)


# -- Costs are measured once for a graph -----------------------------------------------------------


def costed(budget: str | None, planner: Any = "dtr", **options: Any) -> Plan:
    return remat_compile.plan(
        Net(), (torch.ones(32, 16),), activation_budget=budget, planner=planner, **options
    )


def is_measured(plan: Plan) -> bool:
    return "costs" in plan.phase_s


def costs_of(plan: Plan) -> dict[str, Any]:
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
        return costed("90%"), folder


@pytest.fixture
def first(folder: Path, kept: tuple[Plan, Path]) -> Plan:
    """The plan that lies in `folder` with its costs."""
    shutil.copytree(kept[1], folder)
    return kept[0]


def test_another_budget_measures_nothing(first: Plan) -> None:
    second = costed("60%")
    assert is_measured(first)
    assert not is_measured(second)
    assert "plan" in second.phase_s
    assert second.warnings == ()
    assert costs_of(second) == costs_of(first)
    assert second.program.header == first.program.header
    assert second.program.target == first.program.target


def test_another_planner_measures_nothing(first: Plan) -> None:
    """Also one of somebody else, whose plans are not kept, and `least`."""

    class Mine(StoreAll):
        pass

    for plan in (costed(None, Mine()), costed("least"), costed("90%", grads="accumulate")):
        assert not is_measured(plan)
        assert costs_of(plan).items() >= costs_of(first).items()


def test_without_a_cache_all_is_measured(first: Plan, folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert is_measured(costed("60%", cache=False))
    assert sorted(folder.iterdir()) == before


def test_costs_of_a_device_are_computed(first: Plan, folder: Path) -> None:
    plan = costed("60%", costs="roofline", device="h200")
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
    assert costs_of(again) == costs_of(first)
    assert is_measured(plan("60%", torch.export.Dim("batch", min=2, max=32)))


def test_costs_that_cannot_be_used_are_measured_again(first: Plan, folder: Path) -> None:
    """`test_plan_cache` has what cannot be used."""
    path = rewrite(folder, "costs", lambda _: "nonsense")
    again = costed("60%")
    assert is_measured(again)
    assert codes(again) == ["FB0959"]
    assert str(path) in again.warnings[0].message
    after = costed("50%")
    assert not is_measured(after)
    assert costs_of(after) == costs_of(again)
    assert after.warnings == ()


def test_a_folder_that_cannot_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "plans"))
    plan = costed(None, StoreAll())
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
