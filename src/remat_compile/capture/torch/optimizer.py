"""The step of a `torch.optim` optimizer as cNodes of phase `opt`, one for each parameter.

What an optimizer does to one parameter is asked of its own code: a second object of its class, with
the group's numbers of the moment (a schedule of learning rates changes them), that one parameter
and its states. So a step on parameters one after the other gives the bits of a step on all.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ...device.memory import measure_peak
from ...ir.diagnostics import fail
from ...ir.expr import Const
from ...ir.graph import UPDATE_OP, ANode, Call, CNode, Ref
from ...ir.program import ParamBinding, Program
from ...operators.instances import plain_mode

SUPPORTED: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW, RMSprop, Adagrad)
"""Optimizers whose states are zero, or there, before the first step, and whose step on a parameter
depends on nothing of another one."""

HOST_NS_AN_ELEMENT = 1.5
"""Nanoseconds of an update on the host for each element, fused and on several threads."""

_OF_OBJECT = ("step", "param_groups", "state")


@dataclass(frozen=True)
class _Update:
    """The update of a parameter: its group, and its states in order."""

    parameter: nn.Parameter
    group: int
    states: tuple[str, ...]


class OptimizerUpdates:
    """The updates of `optimizer` on the parameters of `model`."""

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        """Makes the states that the optimizer's first step would make. FB0541 for an optimizer that
        is not supported, FB0542 for one of other parameters than the model's, FB0543 for states
        that are none of its first step."""
        kind = type(optimizer)
        if kind not in SUPPORTED:
            known = ", ".join(one.__name__ for one in SUPPORTED)
            message = f"the step of {kind.__module__}.{kind.__name__} cannot be planned"
            hint = f"use one of {known}, or leave out optimizer= and step after the backward"
            fail("FB0541", message, hint=hint)
        hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        if any(hooks):
            message = "the optimizer has hooks around its step, which a planned step would not run"
            fail("FB0541", message, hint="remove the hooks, or leave out optimizer=")
        self.optimizer = optimizer
        self._groups = [len(group["params"]) for group in optimizer.param_groups]
        names = {id(p): path for path, p in model.named_parameters()}
        self._of: dict[str, _Update] = {}
        for place, group in enumerate(optimizer.param_groups):
            states, numbers = _states_of(optimizer, group)
            for parameter in group["params"]:
                path = names.get(id(parameter))
                if path is None:
                    shape = list(parameter.shape)
                    message = f"the optimizer has a parameter {shape} that the model has not"
                    hint = "make the optimizer of model.parameters() of the model that is compiled"
                    fail("FB0542", message, hint=hint)
                self._begin(parameter, group, path, states, numbers)
                self._of[path] = _Update(parameter, place, states)
        self._updates: dict[str, _Update] = {}
        self._origin: dict[str, str] = {}
        self._inputs: list[tuple[str, nn.Parameter, str]] = []

    def _begin(
        self,
        parameter: nn.Parameter,
        group: Mapping[str, Any],
        path: str,
        states: Sequence[str],
        numbers: Mapping[str, Tensor],
    ) -> None:
        """Makes the states of a parameter that has none, or looks at those that there are."""
        held = self.optimizer.state.get(parameter)
        if held:
            wrong = [key for key in states if _shape(held.get(key)) != parameter.shape]
            if wrong:
                message = f"the optimizer's {wrong[0]} of {path} is not a tensor like the parameter"
                fail("FB0543", message, hint="load the state of this model, or make it anew")
            return
        if group.get("momentum") and group.get("dampening"):
            message = "the first step of SGD with dampening leaves it out, and later ones do not"
            fail("FB0543", message, hint="take one step of the optimizer first")
        like = torch.preserve_format
        made = {key: torch.zeros_like(parameter, memory_format=like) for key in states}
        made |= {key: torch.zeros_like(number) for key, number in numbers.items()}
        self._hold(parameter, made)

    def _hold(self, parameter: nn.Parameter, values: Mapping[str, Any]) -> None:
        """Puts values into the optimizer's state, which has no entry of an empty one."""
        if values:
            self.optimizer.state[parameter].update(values)

    def on(self, program: Program, *, measured: bool) -> Program:
        """The program with the updates of all parameters that get a gradient; with times and
        workspaces of this machine where costs are `measured`."""
        graph, binding = program.graph, program.binding
        taken = {*graph.anode, *graph.view}
        anodes: list[ANode] = []
        cnodes: list[CNode] = []
        params: list[ParamBinding] = []
        consumed: set[str] = set()
        for param in binding.params:
            update = next((self._of[name] for name in param.names if name in self._of), None)
            if update is None or param.grad is None:
                params.append(param)
                continue
            like = graph.anode[param.name]
            old = [like, *(_state(like, f"{like.name}.{key}", taken) for key in update.states)]
            new = [_state(a, f"{a.name}.new", taken, "updated") for a in old]
            name, kind = f"U{len(cnodes) + 1}", f"torch.optim.{type(self.optimizer).__name__}"
            read = (*(Ref(a.name) for a in old), Ref(param.grad))
            call = Call(UPDATE_OP, (*read, kind, update.group))
            cnode = CNode(name, "opt", tuple(a.name for a in new), call)
            host_ns = round(HOST_NS_AN_ELEMENT * update.parameter.numel()) + 1
            if measured:
                time_ns, bytes_ = self._measured(update)
                cnode = replace(cnode, time_ns=time_ns, workspace=Const(bytes_))
            cnodes.append(replace(cnode, host_time_ns=host_ns))
            anodes += [*old[1:], *new]
            params.append(replace(param, grad=None))
            consumed.add(graph.storage[param.grad])
            self._updates[name] = update
            self._origin |= {a.name: like.name for a in (*old, *new)}
            self._inputs += [
                (a.name, update.parameter, key)
                for a, key in zip(old[1:], update.states, strict=True)
            ]
        known = tuple(replace(a, kind="grad") if a.name in consumed else a for a in graph.anodes)
        graph = replace(graph, anodes=(*known, *anodes), cnodes=(*graph.cnodes, *cnodes))
        return replace(program, graph=graph, binding=replace(binding, params=tuple(params)))

    @property
    def origin(self) -> dict[str, str]:
        """The parameter that each state lies like, by aNode."""
        return dict(self._origin)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The aNodes of the states, in the order of `tensors`."""
        return tuple(name for name, _, _ in self._inputs)

    def tensors(self) -> list[Tensor]:
        """The states as they are now. FB0544 where a step of the plan does not find what it was
        made for."""
        groups = [len(group["params"]) for group in self.optimizer.param_groups]
        if groups != self._groups:
            fail("FB0544", "the optimizer has other groups of parameters than it had", hint=_AGAIN)
        state = self.optimizer.state
        held = [state.get(p, {}).get(key) for _, p, key in self._inputs]
        for (name, p, _), tensor in zip(self._inputs, held, strict=True):
            if _shape(tensor) != p.shape:
                fail("FB0544", f"the optimizer's state %{name} is gone", hint=_AGAIN)
        for update in self._updates.values():
            if update.parameter.grad is not None:
                message = "a parameter has a gradient already, which a planned step does not add to"
                fail("FB0544", message, hint="optimizer.zero_grad() before the step")
        return held

    def run(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Does the update `name`: parameter, states and gradient are changed in place."""
        update = self._updates[name]
        parameter, gradient = tensors[0].detach(), tensors[len(update.states) + 1]
        own = self.optimizer.state.get(update.parameter, {})
        states = dict(zip(update.states, tensors[1:], strict=False))
        group = self.optimizer.param_groups[update.group]
        after = _step(self.optimizer, group, parameter, gradient, {**own, **states})
        own = {key: value for key, value in after.items() if key not in states}
        self._hold(update.parameter, own)

    def _measured(self, update: _Update) -> tuple[int, int]:
        """The nanoseconds of an update of tensors like these, the least of three, and the bytes of
        its temporaries."""
        group, times = self.optimizer.param_groups[update.group], []
        own = self.optimizer.state.get(update.parameter, {})
        with plain_mode(update.parameter.device):
            parameter = torch.zeros_like(update.parameter, requires_grad=False)
            states = {k: torch.zeros_like(v) for k, v in own.items() if isinstance(v, Tensor)}
            gradient = torch.zeros_like(parameter)

            def run() -> None:
                _step(self.optimizer, group, parameter, gradient, dict(states))
                if parameter.device.type != "cpu":
                    torch.accelerator.synchronize()

            for _ in range(3):
                start = time.perf_counter_ns()
                run()
                times.append(time.perf_counter_ns() - start)
            _, use = measure_peak(run, parameter.device)
        return min(times), use.peak_bytes_over_entry


_AGAIN = "compile again with the optimizer as it is now"


def _shape(value: object) -> torch.Size | None:
    return value.shape if isinstance(value, Tensor) else None


def _state(like: ANode, name: str, taken: set[str], kind: Any = "opt_state") -> ANode:
    while name in taken:
        name += "_"
    taken.add(name)
    return replace(like, name=name, kind=kind, span=None)


def _states_of(
    optimizer: Optimizer, group: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """The names of the states that lie like the parameter, and the other numbers, by a step of a
    small parameter."""
    like = group["params"][0] if group["params"] else torch.zeros(())
    parameter = torch.zeros(2, 3, dtype=like.dtype, device=like.device)
    made = _step(optimizer, group, parameter, torch.zeros_like(parameter), {})
    tensors = {key: value for key, value in made.items() if isinstance(value, Tensor)}
    own = tuple(key for key, value in tensors.items() if value.shape == parameter.shape)
    return own, {key: value for key, value in tensors.items() if key not in own}


def _step(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
) -> dict[str, Any]:
    """One step of an object of the optimizer's class that has this parameter alone; its state
    afterwards."""
    kind = type(optimizer)
    alone = object.__new__(kind)
    vars(alone).update({k: v for k, v in vars(optimizer).items() if k not in _OF_OBJECT})
    alone._optimizer_step_pre_hooks = OrderedDict()
    alone._optimizer_step_post_hooks = OrderedDict()
    if kind is Adagrad and not state:  # it makes its states when it is made
        state["sum"] = torch.full_like(parameter, group["initial_accumulator_value"])
        state["step"] = torch.zeros(())
    parameter.grad = gradient
    alone.param_groups = [{**group, "params": [parameter]}]
    alone.state = defaultdict(dict, {parameter: state} if state else {})
    kind.step(alone)
    parameter.grad = None
    return dict(alone.state[parameter])
