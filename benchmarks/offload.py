"""Recompute, offload and both: predicted times of every planner on networks of the literature.

    python benchmarks/offload.py                      # small: ResNet-18 and -50, a GPT; minutes
    python benchmarks/offload.py --nets resnet18 --shares 0.9,0.7,0.5 --planners pofo,rotor
    python benchmarks/offload.py --nets gpt2-small --device a100-80gb --batch 8

Networks are captured on the `meta` device; costs are by roofline for the device. Shares are of the
activations' peak with nothing recomputed; figures are times as multiples of that step's, all from
the simulator. Bounds are those of docs/planners/bounds.md: `joint` for any plan, by linear
programs, and `moving` for plans that recompute nothing.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from zoo.published import NETWORKS, make

import remat_compile
from remat_compile.driver.budget import Baseline
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import parse_planner
from remat_compile.planners.bounds.links import joint_ns
from remat_compile.planners.bounds.moving import moving_ns
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.planners.spelling.text import parse_list

PLANNERS = (
    "rotor, dtr, offload-greedy, offload-dp, vdnn, tflms, autoswap, opportunist, "
    "autocapper{of=rotor}, autocapper, pofo, rk-pofo"
)


def captured(name: str, size: int, batch: int, device: str) -> Program:
    if name not in NETWORKS:
        raise typer.BadParameter(f"no network {name}; there are {', '.join(NETWORKS)}")
    module, args = make(name, size, batch)
    plan = remat_compile.plan(
        module, args, planner="store-all", costs="roofline", device=device, cache=False
    )
    return plan.program


def row(program: Program, share: float, planners: list[str], limit_s: float) -> list[str]:
    base = Baseline.of(program)
    budget = Budget(int(share * base.activation_peak_bytes), "activation")
    instance = Instance.of(program, "activation")
    with MilpSolver() as solver:
        bound = joint_ns(instance, program.target, budget.bytes, solver, limit_s, relaxed=True)
    moving = moving_ns(instance, program.target, budget.bytes)
    cells = [f"{share:.0%}", f"{bound / base.time_ns:.3f}", f"{moving / base.time_ns:.3f}"]
    for planner in planners:
        began = time.process_time()
        result = parse_planner(planner).plan(program, budget, time_limit_s=limit_s)
        spent = time.process_time() - began
        found = getattr(result, "schedule", None) is not None
        ratio = f"{result.time_ns / base.time_ns:.3f}" if found else "–"  # type: ignore[union-attr]
        cells.append(f"{ratio} ({spent:.1f} s)" if spent >= 1 else ratio)
    return cells


def main(
    nets: Annotated[str, typer.Option(help="Networks, with commas.")] = "resnet18,resnet50,gpt",
    device: Annotated[str, typer.Option()] = "v100-16gb",
    shares: Annotated[str, typer.Option(help="Of the activations.")] = "0.9,0.7,0.5,0.35,0.25",
    planners: Annotated[str, typer.Option()] = PLANNERS,
    size: Annotated[int, typer.Option(help="Pixels of images.")] = 224,
    batch: Annotated[int, typer.Option()] = 16,
    time_limit: Annotated[float, typer.Option(help="Seconds for each plan.")] = 30.0,
) -> None:
    """Prints a table in Markdown for each network."""
    names = [planner.strip() for planner in _split(planners)]
    for net in nets.split(","):
        program = captured(net, size, batch, device)
        base = Baseline.of(program)
        print(
            f"\n{net}, batch {batch}, {device}: {len(program.graph.cnodes)} cNodes, activations "
            f"{base.activation_peak_bytes / 2**20:.0f} MiB (at least "
            f"{base.activation_floor_bytes / 2**20:.0f}), {base.time_ns / 1e6:.2f} ms\n"
        )
        print("| budget | joint | moving | " + " | ".join(f"`{n}`" for n in names) + " |")
        print("|" + "---|" * (len(names) + 3), flush=True)
        for share in map(float, shares.split(",")):
            print("| " + " | ".join(row(program, share, names, time_limit)) + " |", flush=True)


def _split(text: str) -> list[str]:
    """The planners of a list, as they are spelled."""
    from remat_compile.planners.registry import format_planner, parse_planners

    assert parse_list(text)
    return [format_planner(planner) for planner in parse_planners(text)]


if __name__ == "__main__":
    typer.run(main)
