"""What running through a plan costs: `store-all` against eager, the same work, and its predicted
time against the measured one; then what plans cost over it, beside what is predicted.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --check        # exit code 1 above the limits
    python benchmarks/overhead.py --plans        # what plans of one model cost
    python benchmarks/overhead.py --updates      # whole steps, with AdamW in the plan

A step is forward, loss and backward from gradients set to None, without an optimizer; with
`--updates` also its step, fused and not, against `loss.backward(); optimizer.step()`.
Steps of both sides are interleaved; the ratio is the median over the rounds, and the
times are medians too. Models whose steps take long, where kernels decide, and such whose
operators take microseconds, where the dispatch decides.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from _common import gpt2, interleave, machine, ratio
from _tables import print_table
from torch import Tensor, nn

import remat_compile
from remat_compile.ir.semantics.simulate import simulate

Sample = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """A model to time. `limit` bounds the ratio of `store-all` to eager."""

    name: str
    make: Callable[[], Sample]
    limit: float
    least_ms: float = 0.0
    repeat: int = 1


@dataclass(frozen=True)
class Outcome:
    case: str
    eager_ms: float
    ours_ms: float
    predicted_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    limit: float


@dataclass(frozen=True)
class PlanOutcome:
    """Of a plan: its predicted and measured time over that of the plan that recomputes nothing."""

    budget: str
    predicted: float
    ratio: float
    ratio_low: float
    ratio_high: float


POINTS = 0.02
"""A plan costs at most this share of the step more than is predicted."""
BUDGETS = ("range:0.8", "range:0.6", "range:0.4", "range:0.2")


class MLP(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def mlp(depth: int, width: int, batch: int) -> Sample:
    return MLP(depth, width), (torch.randn(batch, width),)


def gpt(layers: int, width: int, heads: int, vocab: int, seq: int, batch: int) -> Sample:
    model = gpt2(layers=layers, width=width, heads=heads, vocab=vocab, seq=seq)
    ids = torch.randint(0, vocab, (batch, seq))
    return model, (ids, torch.roll(ids, -1, 1))


CASES = (
    Case("gpt 4 x 384", lambda: gpt(4, 384, 6, 4096, 256, 4), limit=1.02, least_ms=200.0),
    Case("gpt 4 x 256", lambda: gpt(4, 256, 4, 1024, 128, 4), limit=1.00),
    Case("gpt 6 x 32", lambda: gpt(6, 32, 2, 64, 16, 2), limit=1.15, repeat=20),
    Case("mlp 50 x 16", lambda: mlp(50, 16, 16), limit=1.00, repeat=20),
)


UPDATE_CASES = (
    Case("mlp 7 x 64", lambda: mlp(7, 64, 32), limit=1.5, repeat=20),
    Case("mlp 80 x 64", lambda: mlp(80, 64, 32), limit=1.2, repeat=5),
    Case("mlp 7 x 512", lambda: mlp(7, 512, 256), limit=1.05, least_ms=15.0, repeat=3),
    Case("gpt 4 x 256", lambda: gpt(4, 256, 4, 1024, 128, 4), limit=1.05, least_ms=20.0),
)
"""A planned step without an optimizer takes 0.15 ms more than eager: much of the first case."""


def step_of(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[[], None]:
    params = list(model.parameters())

    def step() -> None:
        for p in params:
            p.grad = None
        torch.autograd.backward(model(*args))

    return step


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> Outcome:
    eager, args = case.make()
    ours = remat_compile.compile(copy.deepcopy(eager), args, planner="store-all")
    step = ours.planned_step
    predicted_ms = simulate(step.program, step.schedule).time_ns / 1e6
    steps = {"ours": step_of(ours, args), "eager": step_of(eager, args)}
    times = interleave(steps, rounds=rounds, repeat=case.repeat, clock=clock)
    medians = {name: statistics.median(seconds) * 1e3 for name, seconds in times.items()}
    if medians["eager"] < case.least_ms:
        raise SystemExit(
            f"{case.name}: a step takes {medians['eager']:.0f} ms here, not the "
            f"{case.least_ms:.0f} ms that its limit is for"
        )
    middle, low, high = ratio(times["ours"], times["eager"])
    eager_ms, ours_ms = medians["eager"], medians["ours"]
    return Outcome(case.name, eager_ms, ours_ms, predicted_ms, middle, low, high, case.limit)


def measure_updates(case: Case, rounds: int, clock: Callable[[], float], fused: bool) -> Outcome:
    """A step with AdamW, where no budget is given."""
    eager, args = case.make()
    model = copy.deepcopy(eager)
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=1e-4, fused=fused or None) for m in (eager, model)
    ]
    ours = remat_compile.compile(
        model, args, optimizer=optimizers[1], planner="store-all", progress=False
    )
    forward = step_of(eager, args)

    def step() -> None:
        forward()
        optimizers[0].step()

    plan = ours.module.planned_step  # type: ignore[union-attr]
    predicted_ms = simulate(plan.program, plan.schedule).time_ns / 1e6
    steps = {"ours": lambda: ours(*args), "eager": step}
    times = interleave(steps, rounds=rounds, repeat=case.repeat, clock=clock)
    eager_ms, ours_ms = (statistics.median(times[name]) * 1e3 for name in ("eager", "ours"))
    calls = sum(c.is_update for c in plan.program.graph.cnodes)
    name = f"{case.name}, {'fused, ' * fused}{calls} call{'s' * (calls > 1)}"
    figures = ratio(times["ours"], times["eager"])
    limit = case.limit if eager_ms >= case.least_ms else float("inf")
    return Outcome(name, eager_ms, ours_ms, predicted_ms, *figures, limit)


def measure_plans(case: Case, budgets: Sequence[str], rounds: int) -> list[PlanOutcome]:
    """Plans under shares of the activations, and that which recomputes nothing, in turns."""
    eager, args = case.make()

    def planned(**options: str) -> tuple[Callable[[], None], float]:
        ours = remat_compile.compile(copy.deepcopy(eager), args, progress=False, **options)
        step = ours.planned_step
        once_ns = sum(c.time_ns_at(1) for c in step.program.graph.cnodes)
        return step_of(ours, args), simulate(step.program, step.schedule).time_ns / once_ns

    made = {budget: planned(planner="dtr", activation_budget=budget) for budget in budgets}
    made[""] = planned(planner="store-all")
    steps = {budget: step for budget, (step, _) in made.items()}
    times = interleave(steps, rounds=rounds, repeat=case.repeat)
    return [PlanOutcome(b, made[b][1], *ratio(times[b], times[""])) for b in budgets]


def main(
    rounds: int = 21,
    only: Annotated[str, typer.Option(help="Cases with this in their name.")] = "",
    processor_time: Annotated[bool, typer.Option(help="On a machine that does more.")] = False,
    check: Annotated[bool, typer.Option(help="Fail above the limits.")] = False,
    plans: Annotated[bool, typer.Option(help="What plans of one case cost.")] = False,
    updates: Annotated[bool, typer.Option(help="Steps with an optimizer.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Times `store-all` against eager."""
    known = UPDATE_CASES if updates else CASES
    cases = [case for case in known if only in case.name]
    if not cases:
        raise typer.BadParameter(f"no such case; there are {', '.join(c.name for c in known)}")
    clock = time.process_time if processor_time else time.perf_counter
    print(machine())
    if plans:
        costs = measure_plans(cases[0], BUDGETS, rounds)
        print_table(
            ("budget", "predicted", "measured", "quartiles"),
            [
                (
                    o.budget,
                    f"{o.predicted:.3f}",
                    f"{o.ratio:.3f}",
                    f"{o.ratio_low:.3f}-{o.ratio_high:.3f}",
                )
                for o in costs
            ],
        )
        if check and any(o.ratio > o.predicted + POINTS for o in costs):
            raise SystemExit(1)
        return
    outcomes = (
        [measure_updates(case, rounds, clock, f) for f in (False, True) for case in cases]
        if updates
        else [measure(case, rounds, clock) for case in cases]
    )
    print_table(
        ("case", "eager ms", "ours ms", "predicted ms", "ratio", "quartiles", "limit"),
        [
            (
                o.case,
                f"{o.eager_ms:.2f}",
                f"{o.ours_ms:.2f}",
                f"{o.predicted_ms:.2f}",
                f"{o.ratio:.3f}",
                f"{o.ratio_low:.3f}-{o.ratio_high:.3f}",
                f"{o.limit:.2f}",
            )
            for o in outcomes
        ],
    )
    if out is not None:
        out.write_text(json.dumps({"machine": machine(), "cases": [asdict(o) for o in outcomes]}))
    if check and any(o.ratio > o.limit for o in outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
