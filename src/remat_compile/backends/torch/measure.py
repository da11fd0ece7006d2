"""Measured memory of one planned step, beside what the simulator predicts for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...device.memory import Mark, measure_regions
from ...ir.graph import CALLER_KINDS, Graph
from ...ir.program import Program
from ...ir.schedule import Schedule
from ...ir.semantics.simulate import simulate
from ...ir.semantics.sizes import Sizes, existing_grads
from .code.interface import saved_at_loss
from .module import PlannedModule

LossFunction = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class StepUse:
    """Device bytes of one step, all of them comparable with a budget.

    The measured peaks are those of the generated forward and backward, from entry to
    exit of each, over what the plan says is held at entry. Those of the host are of the copies.
    """

    forward_measured_bytes: int
    forward_predicted_bytes: int
    backward_measured_bytes: int
    backward_predicted_bytes: int
    time_s: float
    host_measured_bytes: int = 0
    host_predicted_bytes: int = 0

    @property
    def measured_bytes(self) -> int:
        return max(self.forward_measured_bytes, self.backward_measured_bytes)

    @property
    def predicted_bytes(self) -> int:
        return max(self.forward_predicted_bytes, self.backward_predicted_bytes)


def measure_step(
    module: PlannedModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: LossFunction | None = None,
    env: Mapping[str, int] | None = None,
) -> StepUse:
    """Runs one step and measures it; gradients are added to `.grad` as usual.

    `loss` maps the differentiable outputs to a scalar; by default a single scalar
    output is its own loss, else the sum of squares. `env` are the symbols' values at
    these arguments. Raises FBError FB0903 inside another profile.
    """
    step = module.planned_step
    trace = simulate(step.program, step.schedule, env)
    flight = step.flight

    def run(mark: Mark) -> float:
        flight.mark = mark
        try:
            start = time.perf_counter()
            with step.autocast.around():
                outputs = module(*args, **(kwargs or {}))
            tensors = [o for o in step.tensors(outputs) if o.requires_grad]
            (loss or _default_loss)(tensors).backward()  # type: ignore[no-untyped-call]
            return time.perf_counter() - start
        finally:
            flight.mark = None

    seconds, uses = measure_regions(run, torch.device(step.program.header.device))
    before, between = bytes_at_entries(step.program, step.schedule, env)
    # What is carried over is measured too: kernels of a GPU give some of it, a seed or a state of
    # a generator, on the host.
    updates = [b.update for b in step.program.binding.buffers if b.update is not None]
    handed = _carried_over(step.program, step.schedule).union(updates)
    made_bytes = _sizes_of(handed, step.program, step.schedule, env)
    between += uses["forward"].end_bytes_over_entry - made_bytes
    border = trace.loss_step
    return StepUse(
        forward_measured_bytes=before + uses["forward"].peak_bytes_over_entry,
        forward_predicted_bytes=max(trace.during[:border], default=before),
        backward_measured_bytes=between + uses["backward"].peak_bytes_over_entry,
        backward_predicted_bytes=max(trace.during[border + 1 :], default=0),
        time_s=seconds,
        host_measured_bytes=0 if step.copies is None else step.copies.last_host_peak_bytes,
        host_predicted_bytes=trace.host_peak_bytes,
    )


def _default_loss(outputs: Sequence[Tensor]) -> Tensor:
    if len(outputs) == 1 and outputs[0].dim() == 0:
        return outputs[0]
    return torch.stack([(o * o).sum().double() for o in outputs]).sum()


def bytes_at_entries(
    program: Program, schedule: Schedule, env: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """Bytes alive when the forward begins, and when the backward begins.

    Between the two, PyTorch keeps what the plan carries over, the results, and the
    tangents; the rest (new buffer contents, once written back) is gone.
    """
    graph: Graph = program.graph
    sizes = Sizes.of(program, env)
    held = sum(sizes.anode[name] for name in _held(graph, schedule))
    held += existing_grads(program, sizes, schedule.homes)[0]
    kept = {*_carried_over(program, schedule), *graph.loss.results}
    return held, held + _sizes_of(kept, program, schedule, env)


def _held(graph: Graph, schedule: Schedule) -> set[str]:
    """The storages of the caller that are on the device between two steps."""
    return {a.name for a in graph.anodes if a.kind in CALLER_KINDS} - schedule.homes


def _carried_over(program: Program, schedule: Schedule) -> set[str]:
    """Storages that the forward returns and that are there until the backward: what it reads, and
    the results."""
    results = (program.graph.storage[r.name] for r in program.binding.results)
    return {*saved_at_loss(program, schedule), *results}


def _sizes_of(
    names: Iterable[str], program: Program, schedule: Schedule, env: Mapping[str, int] | None
) -> int:
    """Bytes of the storages under these names, without those that the caller holds there."""
    graph, size = program.graph, Sizes.of(program, env).anode
    storages = {graph.storage[name] for name in names}
    return sum(size[name] for name in storages - _held(graph, schedule))
