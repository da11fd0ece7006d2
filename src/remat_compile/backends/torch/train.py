"""A whole training step: forward, backward and the optimizer, by one plan."""

from __future__ import annotations

from copy import deepcopy
from threading import RLock
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...ir.diagnostics import fail
from .module import PlannedModule


def place_of_loss(module: PlannedModule) -> int:
    """The place of the loss among the results. FB0545 for a model that gives no number to minimise,
    or several."""
    program = module.planned_step.program
    places = [at for at, r in enumerate(program.binding.results) if r.tangent is not None]
    shapes = [program.graph.anode[program.graph.storage[r.name]].shape
              for r in program.binding.results if r.tangent is not None]  # fmt: skip
    if len(places) != 1 or shapes[0]:
        message = (
            f"a training step minimises one number, and the model gives {len(places)} "
            "results to differentiate"
            if len(places) != 1
            else "a training step minimises one number, and the model's result has several"
        )
        hint = 'let the model return its loss, or name it: loss="loss"'
        fail("FB0545", message, hint=hint)
    return places[0]


class TrainingStep(nn.Module):
    """`step(*args)` trains on one batch and gives the loss. It changes the parameters of the model
    that was compiled and the states of its optimizer, as `loss.backward(); optimizer.step()` does,
    and leaves no gradients of what it updates.

    `module` is the drop-in of the model, to evaluate it; `optimizer` is the caller's. Calls from
    several threads train one after the other.
    """

    def __init__(self, module: PlannedModule, optimizer: Optimizer) -> None:
        """FB0545 as `place_of_loss`."""
        super().__init__()
        self.module, self.optimizer = module, optimizer
        self._one_at_a_time = RLock()
        self.place = place_of_loss(module)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads the model's."""
        return self.module.load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = object.__new__(type(self))
        memo |= {id(self): made, id(self._one_at_a_time): self._one_at_a_time}
        vars(made).update(deepcopy(vars(self), memo))
        return made

    def __reduce_ex__(self, _: Any) -> NoReturn:
        """FB0950: a step is bound to the parameters and the optimizer of its process."""
        message = "a training step cannot be pickled: its plan is proven for this process alone"
        hint = "save the state_dict of the model and of the optimizer; load them and compile again"
        fail("FB0950", message, hint=hint)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Trains on one batch. FB0910 for a call that the plan was not made for, FB0544 for an
        optimizer that changed, FB0550 for a backward of `module` beside it."""
        with self._one_at_a_time:
            with torch.enable_grad():
                made = self.module(*args, **kwargs)
            loss = self.module.planned_step.tensors(made)[self.place]
            flight = self.module.planned_step.flight
            flight.is_step = True
            try:
                torch.autograd.backward(loss)
            finally:
                flight.is_step = False
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers look at it
        return loss.detach()
