"""`plan`, `compile` and `load` on a small model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.paths import ROOT
from remat_compile import FBError
from remat_compile.verifier import ProvenPlan

OFFLOAD = ROOT / "spec/conformance/valid/offload.fbir"


def make(extra: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(32, 32), nn.GELU()]
    model = nn.Sequential(*layers)
    if extra:
        model.unused = nn.Parameter(torch.ones(3))
    return model


def x() -> Tensor:
    return torch.randn(64, 32, generator=torch.Generator().manual_seed(1))


def code_of(error: pytest.ExceptionInfo[FBError]) -> list[str]:
    return [d.code for d in error.value.diagnostics]


def test_a_plan_knows_its_figures() -> None:
    plan = remat_compile.plan(
        make(), (x(),), activation_budget="70%", time_limit_s=2, progress=lambda _: None
    )
    assert plan.activation_peak_bytes <= 0.7 * plan.baseline.activation_peak_bytes
    assert plan.peak_bytes < plan.baseline.peak_bytes
    assert plan.proven is not None
    assert plan.proven.device_bytes >= plan.peak_bytes
    assert plan.time_s > 0
    assert plan.schedule in plan.program.schedules
    assert plan.graph is plan.program.graph
    assert isinstance(plan.verify(), ProvenPlan)
    assert "def forward(" in plan.emit("torch")
    for part in ("device memory", "activations", "nothing recomputed", plan.planner):
        assert part in plan.summary()
    assert {"capture", "lower", "costs", "plan", "verify"} <= plan.phase_s.keys()


def test_a_summary_compares_with_a_bound_that_says_something() -> None:
    plan = remat_compile.load(OFFLOAD)
    near = replace(plan, lower_bound_s=plan.time_s / 1.25).summary()
    assert "at most 25.00 % above the best" in near
    far = replace(plan, lower_bound_s=plan.time_s / 1e6).summary()
    assert "no plan in this order takes less than" in far
    assert "above the best" not in far


def test_progress_says_each_stage() -> None:
    said: list[str] = []
    remat_compile.plan(make(), (x(),), planner="store-all", progress=said.append)
    assert said[0] == "capturing the training step"
    assert "planning with store-all" in said
    assert said[-2:] == ["proving the plan", "running the graph once against eager"]


def test_compile_trains_alike() -> None:
    eager, original = make(), make()
    compiled = remat_compile.compile(original, (x(),), activation_budget="70%", time_limit_s=2)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in original.parameters()]
    assert compiled.state_dict().keys() == eager.state_dict().keys()
    for module in (eager, compiled):
        torch.autograd.backward(module(x()).square().sum())
    for a, b in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)


def test_a_parameter_without_gradient_is_named_and_keeps_none() -> None:
    plan = remat_compile.plan(make(extra=True), (x(),))
    assert [d.code for d in plan.warnings] == ["FB0510"]
    assert "unused" in plan.warnings[0].message
    with pytest.warns(UserWarning, match=r"FB0510.*unused"):
        compiled = remat_compile.compile(make(extra=True), (x(),))
    torch.autograd.backward(compiled(x()).sum())
    assert compiled.get_parameter("unused").grad is None
    assert compiled.get_parameter("0.weight").grad is not None


def test_save_load_bind(tmp_path: Path) -> None:
    model = make()
    plan = remat_compile.plan(model, (x(),), activation_budget="70%", time_limit_s=2)
    plan.save(tmp_path / "plan.fbir")
    loaded = remat_compile.load(tmp_path / "plan.fbir")
    assert loaded.program == plan.program
    assert (loaded.peak_bytes, loaded.time_s) == (plan.peak_bytes, plan.time_s)
    assert isinstance(loaded.verify(), ProvenPlan)
    with pytest.raises(FBError) as caught:
        loaded.bind()
    assert code_of(caught) == ["FB0709"]
    ours = loaded.bind(model, (x(),))
    assert torch.equal(ours(x()), make()(x()))
    with pytest.raises(FBError) as caught:
        loaded.bind(nn.Linear(32, 32), (x(),))
    assert code_of(caught) == ["FB0710"]
    loaded.save(tmp_path / "again.fbir")
    assert (tmp_path / "again.fbir").read_text() == (tmp_path / "plan.fbir").read_text()


def test_a_factory_file_is_a_model_too(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef make(): return torch.nn.Linear(4, 4), (torch.ones(2, 4),)\n"
    )
    plan = remat_compile.plan(f"{tmp_path}/net.py:make")
    assert plan.program.header.source == "net.py:make"


def test_refusals_come_together_and_before_any_work() -> None:
    with pytest.raises(FBError) as caught:
        remat_compile.plan(3, x(), budget="8", planner="nix", device="nix")  # type: ignore[arg-type]
    assert caught.value.usage
    for code in ("FB0450", "FB0401", "FB0906", "FB0706"):
        assert code in code_of(caught)


@pytest.mark.parametrize(
    ("keywords", "code"),
    [
        ({"costs": "guess"}, "FB0707"),
        ({"costs": "roofline"}, "FB0707"),
        ({"device": "h2000"}, "FB0906"),
        ({"grads": "old"}, "FB0707"),
        ({"activation_budget": 10}, "FB0466"),
    ],
)
def test_bad_keywords(keywords: dict[str, object], code: str) -> None:
    with pytest.raises(FBError) as caught:
        remat_compile.plan(make(), (x(),), **keywords)  # type: ignore[arg-type]
    assert code in code_of(caught)


def test_planning_changes_nothing_and_warns_of_nothing() -> None:
    model = make()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remat_compile.plan(model, (x(),), activation_budget="70%", time_limit_s=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
