"""A call of an optimizer's own code on some of its parameters.

A second object of its class has the group's numbers of the moment (a schedule of learning rates
changes them), those parameters and their states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer

from ...ir.diagnostics import fail

AGAIN = "compile again with the optimizer as it is now"
State = dict[Any, dict[str, Any]]


@dataclass(frozen=True)
class Trained:
    """A parameter of the optimizer, its path and group, the names of its states in order, and its
    other numbers."""

    path: str
    parameter: nn.Parameter
    group: int
    states: tuple[str, ...]
    numbers: Mapping[str, Tensor]


class UpdateCall:
    """The parameters `of` one group that are updated together."""

    def __init__(self, optimizer: Optimizer, of: tuple[Trained, ...]) -> None:
        self.optimizer, self.of = optimizer, of
        self._parameters = [one.parameter for one in of]
        self._held: list[Tensor] = []

    @property
    def group(self) -> dict[str, Any]:
        """The group as it is now."""
        group: dict[str, Any] = self.optimizer.param_groups[self.of[0].group]
        return group

    def look(self) -> list[Tensor]:
        """The states as they are now. FB0544 where one is gone, or a parameter has hooks or a
        gradient."""
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self._parameters):
            message = "a parameter has hooks, which a planned step would not run"
            fail("FB0544", message, hint="remove the hooks, or leave out optimizer=")
        if any(p.grad is not None for p in self._parameters):
            message = "a parameter has a gradient already, which a planned step does not add to"
            hint = (
                "optimizer.zero_grad() before the step; for micro-batches compile without "
                "optimizer=, and step after the last backward"
            )
            fail("FB0544", message, hint=hint)
        state: State = self.optimizer.state
        held: list[Any] = []
        for one in self.of:
            own = state.get(one.parameter, {})
            held += (one.parameter, *map(own.get, one.states))
        if len(held) != len(self._held) or not all(map(is_, held, self._held)):
            self._check(held)
            self._held = held
        states = held[:]
        del states[:: len(held) // len(self.of)]
        return states

    def _check(self, held: Sequence[Any]) -> None:
        """FB0544 where a state is gone."""
        tensors = iter(held)
        for one in self.of:
            shape = next(tensors).shape
            for key in one.states:
                tensor = next(tensors)
                if not isinstance(tensor, Tensor) or tensor.shape != shape:
                    fail("FB0544", f"the optimizer's {key} of {one.path} is gone", hint=AGAIN)

    def run(self, tensors: Sequence[Tensor]) -> None:
        """Updates: of each parameter itself and its states, then all gradients. Parameters and
        states are changed in place."""
        state: State = self.optimizer.state
        gradients = tensors[len(tensors) - len(self.of) :]
        if all(map(is_, self._held, tensors)):
            step(self.optimizer, self.group, self._parameters, state, gradients)
        else:  # some were brought here
            self._run_on(tensors, gradients, state)
        torch.autograd.graph.increment_version(self._parameters)

    def _run_on(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor], state: State) -> None:
        given, parameters, states = iter(tensors), [], State()
        for one in self.of:
            parameters.append(next(given).detach())
            own = {key: next(given) for key in one.states}
            states[parameters[-1]] = {**state.get(one.parameter, {}), **own}
        after = step(self.optimizer, self.group, parameters, states, gradients)
        for one, parameter in zip(self.of, parameters, strict=True):
            numbers = {k: v for k, v in after[parameter].items() if k not in one.states}
            if numbers:
                state[one.parameter].update(numbers)


_code_of: Callable[[Any], Callable[[Optimizer], object]] = cache(lambda kind: unwrap(kind.step))
"""The step of a class of optimizers, without what PyTorch has around it."""


def step(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameters: Sequence[Tensor],
    state: State,
    gradients: Sequence[Tensor],
) -> State:
    """One step of an object of the optimizer's class that has these parameters alone, without hooks
    and gradients of itself; their states afterwards."""
    kind = type(optimizer)
    alone = object.__new__(kind)
    vars(alone).update(vars(optimizer))
    alone.param_groups = [{**group, "params": parameters}]
    alone.state = state if isinstance(state, defaultdict) else defaultdict(dict, state)
    if kind is Adagrad:  # it makes its states when it is made
        for parameter in parameters:
            if not alone.state[parameter]:
                value = group["initial_accumulator_value"]
                alone.state[parameter]["sum"] = torch.full_like(parameter, value)
                alone.state[parameter]["step"] = torch.zeros(())
    try:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        _code_of(kind)(alone)
    finally:
        for parameter in parameters:
            parameter.grad = None
    return alone.state


def states_of(
    optimizer: Optimizer, group: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """The names of the states that lie like the parameter, and the other numbers, by a step of a
    small parameter."""
    like = group["params"][0] if group["params"] else torch.zeros(())
    parameter = torch.zeros(2, 3, dtype=like.dtype, device=like.device)
    made = step(optimizer, group, [parameter], {}, [torch.zeros_like(parameter)])[parameter]
    tensors = {key: value for key, value in made.items() if isinstance(value, Tensor)}
    own = tuple(key for key, value in tensors.items() if value.shape == parameter.shape)
    return own, {key: value for key, value in tensors.items() if key not in own}
