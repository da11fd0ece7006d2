"""Wishes beside the budget: modules that run once, and a horizon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compile
from remat_compile.cli import main
from remat_compile.ir.diagnostics import FBError

WIDTH, EXPERTS = 16, 8


class Router(nn.Module):
    """Weights of two experts for each token, the others 0."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares = F.softmax(self.gate(x), -1)
        best, at = shares.topk(2, -1)
        return torch.zeros_like(shares).scatter(-1, at, best)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x)
        return x + sum(shares[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))


def mixture(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    """Two layers of experts, and a batch of tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer(), nn.Linear(WIDTH, 1, bias=False)).to(dtype)
    return model, torch.randn(32, WIDTH, dtype=dtype)


def plan(**options: Any) -> remat_compile.Plan:
    model, x = mixture()
    options = {"planner": "dtr", "activation_budget": "range:0.6", "cache": False} | options
    return remat_compile.plan(model, (x,), **options)


def again(made: remat_compile.Plan, module: str) -> list[str]:
    """The forward cNodes of a module that the plan runs more than once."""
    named = {c.name: c.loc.module for c in made.graph.in_phase("fwd") if c.loc is not None}
    runs = made.trace.executions
    return [name for name, inside in named.items() if inside.startswith(module) and runs[name] > 1]


def test_a_router_that_is_never_recomputed_runs_once() -> None:
    assert again(plan(), "0.router") + again(plan(), "1.router"), "else the wish says nothing"
    wished = plan(never_recompute="*.router")
    assert not again(wished, "0.router") + again(wished, "1.router")
    assert again(wished, ""), "others run again"


def test_a_module_that_is_kept_runs_once_and_the_rest_may_run_again() -> None:
    wishes: Any = {"keep": ["0"], "never_recompute": ["1.router"]}
    wished = plan(activation_budget="range:0.8", **wishes)
    assert not again(wished, "0") + again(wished, "1.router")
    assert again(wished, "1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_keep_every_bit(dtype: torch.dtype) -> None:
    model, x = mixture(dtype)
    model(x).sum().backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    options: Any = {"planner": "dtr", "activation_budget": "range:0.6", "cache": False}
    step = remat_compile.compile(model, (x,), never_recompute=["*.router"], **options)
    step(x).sum().backward()
    assert all(map(torch.equal, wanted, (p.grad for p in model.parameters())))


def test_a_plan_that_was_kept_is_taken_for_the_same_wish_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_COMPILE_CACHE", str(tmp_path))
    plan(cache=True, never_recompute=["*.router"])
    assert "costs" not in plan(cache=True, never_recompute=["*.router"]).phase_s
    assert again(plan(cache=True), "0.router") + again(plan(cache=True), "1.router")


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ({"keep": ["0.rooter"]}, "FB0489", 'Did you mean "0.router"?'),
        ({"keep": 3}, "FB0489", "keep is 3"),
        ({"never_recompute": [""]}, "FB0489", "never_recompute is"),
        ({"horizon": 0}, "FB0488", "horizon is 0"),
        ({"keep": ["0"], "planner": "pofo"}, "FB0474", "pofo copies to the host"),
    ],
)
def test_what_cannot_be_wished_is_refused(wrong: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(FBError) as refused:
        plan(**wrong)
    (told,) = refused.value.diagnostics
    assert told.code == code
    assert words in told.message


def test_the_command_line_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "net.fbir"
    plan().save(text)
    common = [str(text), "--planner=dtr", "--activation-budget=range:0.8", "--horizon=10"]
    written = tmp_path / "out.fbir"
    wishes = ["--never-recompute", "*.router", "--keep", "0"]
    assert main([*common, *wishes, "-o", str(written)]) == 0
    made = remat_compile.load(written)
    assert not again(made, "0") + again(made, "1.router")
    assert main([*common, "--keep", "nothing.here"]) == 2
    assert "FB0489" in capsys.readouterr().err
