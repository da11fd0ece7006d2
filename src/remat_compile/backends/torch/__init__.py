"""PyTorch backend: a schedule becomes straight-line Python, in an autograd node."""

from __future__ import annotations

from ...device.memory import Mark, measure_peak, measure_regions
from .build import CompiledStep, build, compiled_step
from .calls.on_change import RunEagerly, RunPlannedAgain
from .calls.refusals import GuardFailure
from .code.emit import emit
from .graphs import GraphRecorder, check_graphs, recorder_for
from .measure import StepUse, bytes_at_entries, measure_step
from .module import PlannedModule
from .train import TrainingStep

__all__ = [
    "CompiledStep",
    "GraphRecorder",
    "GuardFailure",
    "Mark",
    "PlannedModule",
    "RunEagerly",
    "RunPlannedAgain",
    "StepUse",
    "TrainingStep",
    "build",
    "bytes_at_entries",
    "check_graphs",
    "compiled_step",
    "emit",
    "measure_peak",
    "measure_regions",
    "measure_step",
    "recorder_for",
]
