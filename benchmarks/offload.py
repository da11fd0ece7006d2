"""Recompute, offload and both: predicted times of every planner on networks of the literature.

    python benchmarks/offload.py                      # small: ResNet-18 and -50, a GPT; minutes
    python benchmarks/offload.py --nets resnet18 --budgets 90%,70%,50% --planners pofo,rotor
    python benchmarks/offload.py --transformers --kept transformers.jsonl

Networks are captured once on the `meta` device; costs are by roofline for each device. Budgets are
of the activations; figures are times as multiples of the step with nothing recomputed, all from
the simulator. Beside planners: the bounds of docs/design/bounds.md (`joint` for any plan, by
linear programs, and sharper as `joint-exact`, by integer programs; `moving` for plans that
recompute nothing), and `layer-windows`, which has the rules of published planners.

With `--kept` each figure is a line of JSON in that file, as soon as it is there, and is not
computed again by the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from _kept import Kept
from _layer_windows import layer_windows
from zoo.published import NETWORKS, make

import remat_compile
from remat_compile.costs import load_device, roofline
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import parse_planner
from remat_compile.planners.bounds.links import joint_ns
from remat_compile.planners.bounds.moving import moving_ns
from remat_compile.planners.instance import Instance
from remat_compile.planners.registry import format_planner, parse_planners
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.budget import Baseline, parse_budgets, resolve_budget

PLANNERS = (
    "rotor, dtr, offload-greedy, offload-dp, vdnn, tflms, autoswap, opportunist, "
    "autocapper{of=rotor}, autocapper, pofo, rk-pofo"
)
SMALL = "resnet18,resnet50,gpt"
TRANSFORMERS = "gpt2-small,gpt2-medium,llama-1b"
ACCELERATORS = "a100-80gb,h200,rtx-4090"
TEN = ",".join(f"range:{place / 100}" for place in (90, 80, 70, 60, 50, 40, 30, 20, 10, 5))


def captured(name: str, size: int, batch: int) -> Program:
    """The network's step, without costs that mean anything."""
    if name not in NETWORKS:
        raise typer.BadParameter(f"no network {name}; there are {', '.join(NETWORKS)}")
    module, args = make(name, size, batch)
    plan = remat_compile.plan(
        module, args, planner="store-all", costs="roofline", device="h200", cache=False
    )
    return plan.program


def _joint(program: Program, budget: Budget, limit_s: float, *, relaxed: bool) -> int:
    instance = Instance.of(program, "activation")
    with MilpSolver() as solver:
        return joint_ns(instance, program.target, budget.bytes, solver, limit_s, relaxed=relaxed)


def _windows(program: Program, budget: Budget, limit_s: float) -> int | None:
    return layer_windows(program, budget)


BESIDE: Mapping[str, Callable[[Program, Budget, float], int | None]] = {
    "joint": lambda program, budget, limit_s: _joint(program, budget, limit_s, relaxed=True),
    "joint-exact": lambda program, budget, limit_s: _joint(program, budget, limit_s, relaxed=False),
    "moving": lambda program, budget, _: moving_ns(
        Instance.of(program, "activation"), program.target, budget.bytes
    ),
    "layer-windows": _windows,
}


def time_ns(column: str, program: Program, budget: Budget, limit_s: float) -> int | None:
    """Nanoseconds of the step by a planner, or of what stands beside planners; None: no plan."""
    if column in BESIDE:
        return BESIDE[column](program, budget, limit_s)
    result = parse_planner(column).plan(program, budget, time_limit_s=limit_s)
    return result.time_ns if getattr(result, "schedule", None) is not None else None  # type: ignore[union-attr]


def main(
    nets: Annotated[str, typer.Option(help="Networks, with commas.")] = "",
    device: Annotated[str, typer.Option(help="Device files, with commas.")] = "",
    budgets: Annotated[str, typer.Option(help="Of the activations, with commas.")] = "",
    planners: Annotated[str, typer.Option()] = "",
    beside: Annotated[str, typer.Option(help=f"Of {', '.join(BESIDE)}.")] = "",
    size: Annotated[int, typer.Option(help="Pixels of images.")] = 224,
    batch: Annotated[int, typer.Option(help="16 images; 8 texts for GPT-2, 4 for Llama.")] = 0,
    time_limit: Annotated[float, typer.Option(help="Seconds for each plan.")] = 30.0,
    kept: Annotated[Path | None, typer.Option(help="JSON lines to go on from.")] = None,
    transformers: Annotated[bool, typer.Option(help="Other defaults: transformers.")] = False,
) -> None:
    """Prints a table in Markdown for each network and device."""
    if transformers:
        defaults = (
            TRANSFORMERS,
            ACCELERATORS,
            TEN,
            "rotor, dtr, autocapper",
            "joint,layer-windows",
        )
    else:
        defaults = (SMALL, "v100-16gb", "90%,70%,50%,35%,25%", PLANNERS, "joint,moving")
    given = zip((nets, device, budgets, planners, beside), defaults, strict=True)
    nets, device, budgets, planners, beside = (asked or default for asked, default in given)
    columns = [*beside.split(","), *map(format_planner, parse_planners(planners))]
    known = Kept(kept)
    for net in nets.split(","):
        texts = batch or {"llama-1b": 4, "gpt2-small": 8, "gpt2-medium": 8}.get(net, 16)
        captured_once = captured(net, size, texts)
        for name in device.split(","):
            program = roofline(captured_once, load_device(name))
            print(*_head(net, texts, name, program, columns), sep="\n", flush=True)
            for budget, cells in _rows(program, budgets, columns, time_limit, known, (net, texts)):
                print(f"| {budget} | " + " | ".join(cells) + " |", flush=True)


def _head(
    net: str, batch: int, device: str, program: Program, columns: list[str]
) -> tuple[str, ...]:
    base = Baseline.of(program)
    peak, floor = base.activation_peak_bytes / 2**20, base.activation_floor_bytes / 2**20
    return (
        f"\n{net}, batch {batch}, {device}: {len(program.graph.cnodes)} cNodes, activations "
        f"{peak:.0f} MiB (at least {floor:.0f}), {base.time_ns / 1e6:.2f} ms\n",
        "| budget | " + " | ".join(f"`{column}`" for column in columns) + " |",
        "|" + "---|" * (len(columns) + 1),
    )


def _rows(
    program: Program,
    budgets: str,
    columns: list[str],
    limit_s: float,
    kept: Kept,
    of: tuple[str | int, ...],
) -> Iterator[tuple[str, list[str]]]:
    base = Baseline.of(program)
    for text in parse_budgets(budgets, "activation"):
        budget = resolve_budget(text, base)
        cells = []
        for column in columns:
            plan_ns, spent_s = kept.figure(
                (*of, program.target.name, text.text, column),
                partial(time_ns, column, program, budget, limit_s),
            )
            ratio = "–" if plan_ns is None else f"{plan_ns / base.time_ns:.3f}"
            cells.append(f"{ratio} ({spent_s:.1f} s)" if spent_s >= 1 else ratio)
        yield text.text, cells


if __name__ == "__main__":
    typer.run(main)
