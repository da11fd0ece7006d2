"""Recompute, offload and both: predicted times of every planner on networks of the literature.

    python benchmarks/offload.py                      # small: ResNet-18 and -50, a GPT; minutes
    python benchmarks/offload.py --nets resnet18 --shares 0.9,0.7,0.5 --planners pofo,rotor

Networks are captured without running them; costs are by roofline for the device. Shares are of the
activations' peak with nothing recomputed; figures are times as multiples of that step's, all from
the simulator; `bound` is the joint bound of docs/planners/bounds.md, by linear programs.
"""

from __future__ import annotations

import time
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import remat_compile
from remat_compile.driver.budget import Baseline
from remat_compile.ir.program import Budget, Program
from remat_compile.planners import parse_planner
from remat_compile.planners.bounds.links import joint_ns
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.planners.spelling.text import parse_list

PLANNERS = (
    "rotor, dtr, offload-greedy, offload-dp, vdnn, tflms, autoswap, opportunist, "
    "autocapper{of=rotor}, autocapper, pofo, rk-pofo"
)


class Bottleneck(nn.Module):
    """Two 3 x 3 convolutions, or a bottleneck of three; the input is added."""

    def __init__(self, inside: int, outside: int, stride: int, *, deep: bool):
        super().__init__()
        plain = [inside, outside, outside]
        width = [inside, outside // 4, outside // 4, outside] if deep else plain
        kernels = [1, 3, 1] if deep else [3, 3]
        strides = [1, stride, 1] if deep else [stride, 1]
        layers: list[nn.Module] = []
        for i, (kernel, step) in enumerate(zip(kernels, strides, strict=True)):
            layers += [
                nn.Conv2d(width[i], width[i + 1], kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(width[i + 1]),
                nn.ReLU(),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet(blocks: tuple[int, ...], *, deep: bool) -> nn.Module:
    """ResNet with this many blocks in its four stages, for images of 1000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = 64
    for stage, count in enumerate(blocks):
        outside = (256 if deep else 64) << stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            layers.append(Bottleneck(inside, outside, stride, deep=deep))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Gpt(nn.Module):
    """Blocks of attention and a perceptron, without embeddings."""

    def __init__(self, layers: int, width: int, heads: int):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def network(name: str, size: int, batch: int) -> tuple[nn.Module, Tensor]:
    images = torch.zeros(batch, 3, size, size)
    match name:
        case "resnet18":
            return resnet((2, 2, 2, 2), deep=False), images
        case "resnet34":
            return resnet((3, 4, 6, 3), deep=False), images
        case "resnet50":
            return resnet((3, 4, 6, 3), deep=True), images
        case "resnet101":
            return resnet((3, 4, 23, 3), deep=True), images
        case "gpt":
            return Gpt(4, 256, 4), torch.zeros(batch, 256, 256)
        case _:
            raise typer.BadParameter(f"no network {name}")


def captured(name: str, size: int, batch: int, device: str) -> Program:
    module, x = network(name, size, batch)
    plan = remat_compile.plan(
        module.train(), (x,), planner="store-all", costs="roofline", device=device
    )
    return plan.program


def row(program: Program, share: float, planners: list[str], limit_s: float) -> list[str]:
    base = Baseline.of(program)
    budget = Budget(int(share * base.activation_peak_bytes), "activation")
    instance = Instance.of(program, "activation")
    with MilpSolver() as solver:
        bound = joint_ns(instance, program.target, budget.bytes, solver, limit_s, relaxed=True)
    cells = [f"{share:.0%}", f"{bound / base.time_ns:.3f}"]
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
        print("| budget | bound | " + " | ".join(f"`{n}`" for n in names) + " |")
        print("|" + "---|" * (len(names) + 2), flush=True)
        for share in map(float, shares.split(",")):
            print("| " + " | ".join(row(program, share, names, time_limit)) + " |", flush=True)


def _split(text: str) -> list[str]:
    """The planners of a list, as they are spelled."""
    from remat_compile.planners.registry import format_planner, parse_planners

    assert parse_list(text)
    return [format_planner(planner) for planner in parse_planners(text)]


if __name__ == "__main__":
    typer.run(main)
