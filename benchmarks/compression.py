"""Lossless packing on the CPU: bytes kept between forward and backward, and time within a budget.

    python benchmarks/compression.py [--budgets 90%,80%,70%,60%,50%] [--time-limit 5]

Per model, costs are measured with and without packed values; what both steps have costs the same.
`kept` are the bytes of activations at the loss with nothing run again.
Then, per budget (a share of the activations' peak): the predicted time over the step with nothing
run again nor packed, without and with codecs; how many values are packed; the time of an executed
step with codecs over that without (median of interleaved rounds, with its quartiles); and measured
bytes, which must be the proven ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from _common import interleave, machine, ratio
from _tables import print_table
from torch import Tensor, nn
from torch.nn import functional

from remat_compile import FBError, Plan
from remat_compile.backends.torch import PlannedModule, build, measure_step
from remat_compile.capture.lowered import Lowered
from remat_compile.capture.torch import export, lower
from remat_compile.costs import measured
from remat_compile.ir.codecs import pairs
from remat_compile.ir.program import Program
from remat_compile.ir.rewrites.packs import with_costs_of
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.plans.budget import Baseline
from remat_compile.plans.make import plan_costed
from remat_compile.plans.options import Errors
from remat_compile.plans.packed import better_plan, packed
from remat_compile.plans.request import PlanRequest, read_request
from remat_compile.plans.run_planner import Phases
from remat_compile.report.subject import store_all

Sample = tuple[nn.Module, tuple[Tensor, ...]]
ROUNDS = 9


def dropout_mlp() -> Sample:
    parts: list[nn.Module] = [nn.Linear(64, 512)]
    for _ in range(8):
        parts += [nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512)]
    return nn.Sequential(*parts), (torch.randn(2048, 64),)


def vgg() -> Sample:
    """VGG-11 for 32 pixels, in half of its width; dropout before each classifier."""
    parts: list[nn.Module] = []
    before = 3
    for width, convolutions in ((32, 1), (64, 1), (128, 2), (256, 2)):
        for _ in range(convolutions):
            parts += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        parts += [nn.MaxPool2d(2)]
    parts += [nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10)]
    return nn.Sequential(*parts), (torch.randn(64, 3, 32, 32),)


class Block(nn.Module):
    """Pre-norm, attention that keeps its weights, dropout in the places of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        shape = n, t, self.heads, width // self.heads
        q, k, v = (p.reshape(shape).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * shape[-1] ** -0.5
        y = self.drop(scores.softmax(-1)) @ v
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(n, t, width)))
        hidden: Tensor = x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))
        return hidden


def gpt() -> Sample:
    blocks = (Block(128, 4) for _ in range(4))
    net = nn.Sequential(nn.Embedding(256, 128), nn.Dropout(0.1), *blocks, nn.Linear(128, 256))
    return net, (torch.randint(0, 256, (8, 128)),)


MODELS: dict[str, Callable[[], Sample]] = {"dropout-MLP": dropout_mlp, "VGG-11": vgg, "GPT": gpt}


@dataclass(frozen=True)
class Subject:
    """A model with every value packed that can be, and its costs."""

    lowered: Lowered
    program: Program
    whole: Program
    args: tuple[Tensor, ...]
    request: dict[str, Any]

    def plan(self, budget: str, codecs: str) -> Plan | None:
        """None where no plan fits."""
        asked = read_request(Errors(), activation_budget=budget, codecs=codecs, **self.request)  # type: ignore[typeddict-item]
        assert asked is not None
        program = self.program if codecs == "lossless" else self.whole

        def plan(each: Program, request: PlanRequest = asked) -> Plan:
            return plan_costed(each, request, Phases())

        try:
            return better_plan(program, self.whole, asked, plan)
        except FBError:
            return None

    def built(self, plan: Plan) -> PlannedModule:
        return build(self.lowered.with_program(plan.program), plan.schedule)


def kept_bytes(program: Program) -> int:
    trace = simulate(program, store_all(program))
    return trace.during_activation[trace.loss_step]


@dataclass
class Row:
    """A budget: the plans for it, the predicted times, and what was measured of them."""

    budget: str
    plans: dict[str, Plan]
    steps: dict[str, PlannedModule]
    measured: dict[str, Any]
    whole_ns: int

    def run(self, args: tuple[Tensor, ...]) -> None:
        if "lossless" not in self.steps:
            return
        measure_step(self.steps["lossless"], args)
        use = measure_step(self.steps["lossless"], args)
        self.measured = {"proven": use.predicted_bytes, "measured": use.measured_bytes}

        def step(name: str) -> None:
            self.steps[name](*args).square().mean().backward()

        if len(self.steps) == 2:
            runs = {name: (lambda name=name: step(name)) for name in self.steps}
            seconds = interleave(runs, rounds=ROUNDS)
            self.measured["executed"] = ratio(seconds["lossless"], seconds["none"])

    def cells(self) -> dict[str, str]:
        cells = {"budget": self.budget}
        for name in ("none", "lossless"):
            plan = self.plans.get(name)
            time = None if plan is None else plan.trace.time_ns / self.whole_ns
            cells[name] = "no plan" if time is None else f"{time:.3f}"
        cells["packed"] = "–"
        if "lossless" in self.plans:
            sources = {pair.source for pair in pairs(self.plans["lossless"].graph)}
            cells["packed"] = str(len(sources))
        cells["executed"] = "–"
        if "executed" in self.measured:
            middle, low, high = self.measured["executed"]
            cells["executed"] = f"{middle:.3f} ({low:.3f}–{high:.3f})"
        for name in ("proven", "measured"):
            cells[name] = f"{self.measured[name]:,}" if name in self.measured else "–"
        return cells


def row_of(subject: Subject, budget: str) -> Row:
    plans = {codecs: subject.plan(budget, codecs) for codecs in ("none", "lossless")}
    known = {codecs: plan for codecs, plan in plans.items() if plan is not None}
    steps = {codecs: subject.built(plan) for codecs, plan in known.items()}
    return Row(budget, known, steps, {}, Baseline.of(subject.whole).time_ns)


def main(
    budgets: Annotated[
        str, typer.Option(help="Shares of the activations.")
    ] = "90%,80%,70%,60%,50%",
    time_limit: Annotated[float, typer.Option(help="Seconds for the planner.")] = 5.0,
    only: Annotated[str, typer.Option(help="One model.")] = "",
) -> None:
    torch.set_num_threads(1)
    print(machine())
    for name, make in MODELS.items():
        if only not in ("", name):
            continue
        torch.manual_seed(0)
        module, args = make()
        options = {"planner": "auto", "time_limit_s": time_limit}
        asked = read_request(Errors(), codecs="lossless")
        assert asked is not None
        with lower(export(module, args)) as lowered:
            small = packed(lowered, asked)
            whole = measured(lowered.program, lowered.values())
            program = with_costs_of(measured(small.program, small.values()), whole.graph)
            subject = Subject(small, program, whole, args, options)
            kept = kept_bytes(program) / kept_bytes(whole)
            codecs = sorted({pair.codec.name for pair in pairs(program.graph)})
            rows = [row_of(subject, budget) for budget in budgets.split(",")]
        for row in rows:
            row.run(args)
        print(f"\n{name}: kept {kept:.3f} of the bytes, by {', '.join(codecs)}")
        cells = [row.cells() for row in rows]
        print_table([*cells[0]], [[*row.values()] for row in cells])


if __name__ == "__main__":
    typer.run(main)
