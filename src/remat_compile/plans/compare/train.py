"""Some training steps of a plan beside ordinary training: losses, parameters, states of the
optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ...backends.torch import TrainingStep, measure_step
from ...device.devices import forked_generators, synchronize
from ...device.memory import measure_peak
from ...ir.analysis.liveness import held_bytes
from ...ir.semantics.simulate import Sizes
from .step import SEED

if TYPE_CHECKING:
    from ...capture.lowered import Exported
    from ..plan import Plan


@dataclass(frozen=True)
class TrainReport:
    """Bytes are those of the device and of the host, times the medians of the steps in seconds.

    `differing` names what is not bit-equal after the steps, the losses first.
    """

    steps: int
    measured_bytes: int
    host_measured_bytes: int
    eager_bytes: int
    time_s: float
    eager_time_s: float
    tensors: int
    differing: tuple[str, ...]


def compare_training(plan: Plan, step: TrainingStep, exported: Exported, steps: int) -> TrainReport:
    """Trains `steps` steps on the sample with the plan, and with a copy of the model and of its
    optimizer in the ordinary way, each step from the same random state. The model is trained
    afterwards."""
    model, optimizer = deepcopy((exported.original, step.optimizer))
    args, kwargs = exported.args, exported.kwargs
    place = step.place

    def ordinary() -> Tensor:
        with exported.autocast.around():
            loss = exported.tensors(model(*args, **kwargs))[place]
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    ours, theirs, differing = [], [], []
    eager_peak = 0
    for number in range(steps):
        with forked_generators():
            mine, time_s = _timed(lambda: step(*args, **kwargs), exported, number)
            if number == 0:
                torch.manual_seed(SEED + number)
                expected, taken = measure_peak(ordinary, exported.device)
                eager_peak, eager_s = taken.peak_bytes_over_entry, 0.0
            else:
                expected, eager_s = _timed(ordinary, exported, number)
        ours.append(time_s)
        theirs.append(eager_s)
        if not torch.equal(mine, expected):
            differing.append(f"loss of step {number + 1}")
    pairs = [*_pairs(exported.original, step.optimizer, model, optimizer)]
    differing += [name for name, one, other in pairs if not torch.equal(one, other)]
    use = measure_step(step.module, args, kwargs)
    held = held_bytes(plan.program, "device", Sizes.of(plan.program))
    return TrainReport(
        steps,
        use.measured_bytes,
        use.host_measured_bytes,
        held + eager_peak,
        median(ours[1:] or ours),
        median(theirs[1:] or theirs),
        steps + len(pairs),
        tuple(differing),
    )


def _timed(run: Callable[[], Tensor], exported: Exported, number: int) -> tuple[Tensor, float]:
    torch.manual_seed(SEED + number)
    start = time.perf_counter()
    made = run()
    synchronize(exported.device)
    return made, time.perf_counter() - start


def _pairs(
    model: nn.Module, optimizer: Optimizer, other: nn.Module, other_optimizer: Optimizer
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """All tensors of a model and its optimizer, with those of another."""
    one, two = model.state_dict(), other.state_dict()
    for name in one:
        if isinstance(one[name], Tensor):
            yield name, one[name], two[name]
    mine, theirs = _states(optimizer), _states(other_optimizer)
    for at, (state, expected) in enumerate(zip(mine, theirs, strict=True)):
        yield f"state {at} of the optimizer", state, expected


def _states(optimizer: Optimizer) -> list[Tensor]:
    leaves: list[Any] = tree_leaves(optimizer.state_dict()["state"])
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
