"""The nine CNNs that the package `onnx` carries without weights, planned, proven and run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from torch import nn

import remat_compile
from remat_compile.plans.bind import bind
from remat_compile.plans.compare.step import StepReport, compare_step

LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)

BUDGET = "60%"
LEAST = {"vgg19": "75%"}
"""Where one operator alone works on more than `BUDGET`: backward of the second convolution."""


@dataclass(frozen=True)
class Outcome:
    """One training step of a file under a plan, beside ordinary autograd. Times in seconds."""

    name: str
    parameters: int
    operators: int
    unplanned_activation_bytes: int
    activation_bytes: int
    unplanned_bytes: int
    proven_bytes: int
    report: StepReport
    planning_s: float

    @property
    def holds(self) -> bool:
        """Whether every bit is that of autograd and no byte is beyond the proof."""
        return self.report.bit_equal and self.report.measured_bytes <= self.proven_bytes


def light_file(name: str) -> Path:
    """Where the installed package has it."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return data / f"light_{name}.onnx"


def run_light(
    name: str, budget: str | None = None, planner: str = "dtr", time_limit_s: float = 60.0
) -> Outcome:
    """Imports, plans and proves, gives every parameter random values, and compares one step.

    `budget` is a share of the bytes of activations, `BUDGET` or the model's `LEAST` if it is left
    out. The batch of the files is 1.
    """
    began = time.monotonic()
    plan = remat_compile.plan(
        light_file(name),
        activation_budget=budget or LEAST.get(name, BUDGET),
        planner=planner,
        costs="measured",  # which know what the operators of the CPU need inside
        time_limit_s=time_limit_s,
    ).trusted()
    planning_s = time.monotonic() - began
    exported = plan._exported
    assert exported is not None
    assert plan.proven is not None
    _randomise(exported.original)
    compiled = bind(plan.program, plan.schedule, exported)
    report = compare_step(plan, compiled, exported, 1)
    return Outcome(
        name,
        sum(p.numel() for p in exported.original.parameters()),
        len(plan.graph.cnodes),
        plan.baseline.activation_peak_bytes,
        plan.activation_peak_bytes,
        plan.baseline.peak_bytes,
        plan.proven.device_bytes,
        report,
        planning_s,
    )


def _randomise(module: nn.Module) -> None:
    """Weights so small that nothing overflows, and scales around 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 1
            mean, spread = (0.0, math.sqrt(2 / fan)) if parameter.ndim > 1 else (0.5, 0.1)
            parameter.normal_(mean, spread, generator=generator)
