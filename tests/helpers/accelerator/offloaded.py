"""Steps with copies on the queued device, under every order of its streams that matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from helpers.accelerator import accelerator
from helpers.models import MODELS
from helpers.planners.matrix import linked
from helpers.training import Record, train_steps
from remat_compile.backends.torch import GraphRecorder, PlannedModule, build
from remat_compile.backends.torch.runtime import AcceleratorEngine, PlanCopies
from remat_compile.capture.torch import export, lower
from remat_compile.costs import measured
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Schedule
from remat_compile.planners import NotApplicable, parse_planner
from remat_compile.plans.budget import Baseline


@dataclass(frozen=True)
class Order:
    """`late` names streams that run only when somebody waits for them; the others run at once,
    or by a chance of this seed where it is not 0."""

    late: tuple[str, ...]
    seed: int = 0

    @contextmanager
    def of(self, engine: AcceleratorEngine) -> Any:
        """Inside, the streams of an engine, and that of the computations, run in this order."""
        streams = {name: stream.stream_id for name, stream in engine._streams.items()}
        accelerator().starve([streams.get(name, 0) for name in self.late], self.seed)
        try:
            yield
        finally:
            accelerator().starve()


AT_ONCE = Order(())
LATE = tuple(map(Order, (("d2h", "h2d"), ("compute",), ("d2h",), ("h2d",))))
"""Each wait and event that is missing shows in one of these."""

ORDERS = (AT_ONCE, *LATE, Order((), seed=1), Order((), seed=2))


def sample(
    name: str, device: torch.device | None = None
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model of `MODELS` on a device, the queued one by default, with its arguments."""
    module, args, kwargs = MODELS[name](torch.float32)
    device = device or accelerator().device

    def moved(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    args, kwargs = pytree.tree_map_only(Tensor, moved, (args, kwargs))
    return module.to(device), args, kwargs


@dataclass(frozen=True)
class Model:
    """A captured model, what it costs on the device, and three steps of it in eager."""

    exported: Any
    program: Program
    values: Mapping[str, Tensor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state: Mapping[str, Any]
    eager: Record


@cache
def captured(name: str, device: torch.device | None = None) -> Model:
    """Of `MODELS`, on a device, the queued one by default."""
    module, args, kwargs = sample(name, device)
    state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    exported = export(module, args, kwargs)
    with lower(exported) as lowered:
        values = lowered.values()
        program = measured(lowered.program, values, time_limit_s=0.2)
    eager = train_steps(sample(name, device)[0], args, kwargs)
    return Model(exported, program, values, args, kwargs, state, eager)


def built(model: Model, schedule: Schedule, recorder: GraphRecorder | None = None) -> PlannedModule:
    """The model's step by a plan, with the parameters that it was captured with."""
    with lower(model.exported) as lowered:
        made = build(lowered.with_program(model.program), schedule, recorder=recorder)
    made.load_state_dict(model.state)
    return made


def copies_of(module: nn.Module) -> PlanCopies:
    assert isinstance(module, PlannedModule)
    copies = module.planned_step.copies
    assert copies is not None
    return copies


def engine_of(copies: PlanCopies) -> AcceleratorEngine:
    assert isinstance(copies.engine, AcceleratorEngine)
    return copies.engine


def plans_of(planner: str, model: Model, shares: Sequence[float]) -> Iterator[Schedule]:
    """Plans of a planner under budgets that are shares of the activations' range, as far as it has
    some; skips the test where it does not apply."""
    program = linked(model.program)
    base = Baseline.of(program)
    low, high = base.activation_floor_bytes, base.activation_peak_bytes
    for share in shares:
        budget = Budget(int(low + share * (high - low)), "activation")
        made = parse_planner(planner).plan(program, budget, time_limit_s=20.0)
        if isinstance(made, NotApplicable):
            pytest.skip(made.why.message)
        schedule: Schedule | None = getattr(made, "schedule", None)
        if schedule is not None:
            yield schedule


class Deaf(AcceleratorEngine):
    """One wait does nothing, as if the code did not have it."""

    def __init__(self, device: torch.device, deaf_to: int) -> None:
        super().__init__(device)
        self.deaf_to, self.waits = deaf_to, 0

    def wait(self, flight: Any) -> None:
        self.waits += 1
        if self.waits - 1 != self.deaf_to:
            super().wait(flight)
