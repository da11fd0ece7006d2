"""What equal computations share: told apart where the plan makes it twice, in groups as well."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.jax.arrays import quick_compilation
from helpers.jax.plans import case, fused_case
from helpers.paths import fbir
from remat_compile.backends.jax.emit.shared_work import SharedWork
from remat_compile.backends.jax.observe.absences import Absence
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.jax.make import jax_step
from remat_compile.plans.jax.run import JaxReport, run_step
from remat_compile.plans.jax.source import source_of_plan


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with quick_compilation(x64=True):
        yield


ACTIVATION = fbir("backends/jax/texts/shared_work")


def read(operator: str = "gelu", arguments: str = "") -> Program:
    text = ACTIVATION.replace("aten.gelu.", f"aten.{operator}.")
    text = text.replace("aten.gelu_backward.", f"aten.{operator}_backward.")
    text = text.replace("(%da, %hv)", f"(%da, %hv{arguments})")
    return parse_program(text, "plan.fbir")


@pytest.mark.parametrize("operator", ["gelu", "silu"])
def test_a_costly_operation_that_a_backward_has_too_is_shared(operator: str) -> None:
    """Both read a view of %h: what is told apart is what has storage."""
    program = read(operator)
    shared = SharedWork(program)
    assert shared.operands("F2", "B2") == ("h",)
    assert shared.operands("F3", "B1") == ()
    text = source_of_plan(program, program.schedules[0])
    again, after = text.split('"F2#2"')[1].split('"B1#1"')
    assert "optimization_barrier" in again
    assert "h," in again.split("optimization_barrier((")[1]
    assert "F2" not in after


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [("leaky_relu", ", 0.01, false"), ("hardtanh", ", -1, 1"), ("softplus", ", 1, 20")],
)
def test_what_is_cheap_or_differs_is_not_told_apart(operator: str, arguments: str) -> None:
    """XLA computes comparisons and products in both loops by itself."""
    assert SharedWork(read(operator, arguments)).operands("F2", "B2") == ()


@pytest.mark.parametrize("make", [case, fused_case])
def test_gelu_made_again_right_before_its_backward_holds_no_erf(make: object) -> None:
    """XLA held one array more for it: 1.17 of what is predicted."""
    assert callable(make)
    made = make("mlp-loss", "dtr", "range:0.4")
    observed = made.looked_at()[0]
    assert observed.defects() == []
    assert 0.9 <= observed.temp_bytes / made.predicted <= 1.1


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)


class _SameTanh(_Net):
    """`tanh` of one value three times: three cNodes."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.second(torch.tanh(h) + torch.tanh(h) * torch.tanh(h))
        return (torch.tanh(y) * torch.tanh(y)).sum()


class _SameConstants(_Net):
    """The same layer of the same constants twice."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        c, d = (self.second(torch.ones(16, 8, dtype=x.dtype)) for _ in range(2))
        return (h * c + h.tanh() * d).square().sum()


class _Undone(_Net):
    """XLA needs neither negation."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).neg().neg().abs().relu()
        result: Tensor = self.second(h.tanh()).square().sum()
        return result


def report(module: nn.Module, planner: str, budget: str | None) -> JaxReport:
    plan = remat_compile.plan(
        module.double(),
        (torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3)),),
        planner=planner,
        activation_budget=budget,
        costs="roofline",
        device="cpu",
        cache=False,
    )
    with jax.enable_x64(True):
        return run_step(plan, jax_step(plan), plan._exported)


@pytest.mark.parametrize(
    ("module", "planner", "budget"),
    [
        (_SameTanh, "periodic{segments=2}", None),  # was FB0945: one barrier for both runs
        (_SameConstants, "dtr", "range:0.3"),  # was FB0938: a barrier on the bias alone
    ],
)
def test_equal_computations_that_run_again_together_are_told_apart(
    module: type[nn.Module], planner: str, budget: str | None
) -> None:
    made = report(module(), planner, budget)
    assert made.is_sound, made.observed.defects()
    assert made.observed.missing == ()


def test_what_xla_finds_without_computing_it_is_not_merged() -> None:
    made = report(_Undone(), "periodic{segments=2}", None)
    assert made.is_sound, made.observed.defects()
    simplified = [n for n, why in made.observed.absent.items() if why is Absence.SIMPLIFIED]
    assert {"F2#1", "F2#2", "F3#1", "F3#2"} <= {*simplified}
