"""The step of a `torch.optim` optimizer as cNodes of phase `opt`, each for some parameters.

The optimizer's own code does an update: a second object of its class has the group's numbers of the
moment (a schedule of learning rates changes them), those parameters and their states. None of the
supported optimizers lets one parameter depend on another, so steps on some parameters after others
give the bits of a step on all.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ...device.memory import measure_peak
from ...device.shards import is_sharded, own_rows
from ...ir.diagnostics import fail
from ...ir.expr import Const
from ...ir.graph import UPDATE_OP, ANode, Call, CNode, Ref
from ...ir.program import ParamBinding, Program
from ...operators.instances import plain_mode
from ..lowered import Exported
from ..trace.module import has_values
from .clipping import Clipping

SUPPORTED: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW, RMSprop, Adagrad)
"""Optimizers whose states are zero, or there, before the first step, and whose step on a parameter
depends on nothing of another one."""

HOST_NS_AN_ELEMENT = 1.5
"""Nanoseconds of an update on the host for each element, fused and on several threads."""

_MEASURED = 1 << 20
"""Elements of an update on which its bytes are measured, at the most twice as many."""

_BUCKETS, _BUCKET_BYTES = 16, 32 << 20

_OF_OBJECT = ("step", "param_groups", "state")


@dataclass(frozen=True)
class _Trained:
    """A parameter of the optimizer: its group, its states in order, and its other numbers."""

    parameter: nn.Parameter
    group: int
    states: tuple[str, ...]
    numbers: Mapping[str, Tensor]


@dataclass(frozen=True)
class _Update:
    """A cNode: the parameters that one step of the optimizer's code takes together."""

    of: tuple[_Trained, ...]

    @property
    def group(self) -> int:
        return self.of[0].group


class OptimizerUpdates:
    """The updates of `optimizer` on the parameters of `model`."""

    def __init__(
        self, optimizer: Optimizer, model: nn.Module, max_grad_norm: float | None = None
    ) -> None:
        """FB0541 for an optimizer that is not supported, FB0542 for parameters that the model has
        not, FB0543 for states that are not like the parameters."""
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
        self.optimizer, self._max_norm = optimizer, max_grad_norm
        self._groups = [len(group["params"]) for group in optimizer.param_groups]
        names = {id(p): path for path, p in model.named_parameters()}
        self._of: dict[str, _Trained] = {}
        for place, group in enumerate(optimizer.param_groups):
            states, numbers = _states_of(optimizer, group)
            for parameter in group["params"]:
                path = names.get(id(parameter))
                if path is None:
                    shape = list(parameter.shape)
                    message = f"the optimizer has a parameter {shape} that the model has not"
                    hint = "make the optimizer of model.parameters() of the model that is compiled"
                    fail("FB0542", message, hint=hint)
                self._look(parameter, group, path, states)
                self._of[path] = _Trained(parameter, place, states, numbers)
        self._updates: dict[str, _Update] = {}
        self._origin: dict[str, str] = {}
        self._inputs: list[tuple[str, nn.Parameter, str]] = []

    def _look(
        self, parameter: nn.Parameter, group: Mapping[str, Any], path: str, states: Sequence[str]
    ) -> None:
        """Looks at the states that there are."""
        if held := self.optimizer.state.get(parameter):
            wrong = [key for key in states if _shape(held.get(key)) != parameter.shape]
            if wrong:
                message = f"the optimizer's {wrong[0]} of {path} is not a tensor like the parameter"
                fail("FB0543", message, hint="load the state of this model, or make it anew")
        elif group.get("momentum") and group.get("dampening"):
            message = "the first step of SGD with dampening leaves it out, and later ones do not"
            fail("FB0543", message, hint="take one step of the optimizer first")

    def _begin(self, one: _Trained) -> None:
        """Makes the states that the optimizer's first step would make, where there are none."""
        if self.optimizer.state.get(one.parameter):
            return
        like = torch.preserve_format
        made = {key: torch.zeros_like(one.parameter, memory_format=like) for key in one.states}
        numbers = {key: torch.zeros_like(number) for key, number in one.numbers.items()}
        self._hold(one.parameter, made | numbers)

    def _hold(self, parameter: nn.Parameter, values: Mapping[str, Any]) -> None:
        """Puts values into the optimizer's state, which has no entry of an empty one."""
        if values:
            self.optimizer.state[parameter].update(values)

    def on(self, program: Program, *, measured: bool) -> Program:
        """The program with the updates of all parameters that get a gradient; with times of this
        machine where costs are `measured`."""
        graph, binding = program.graph, program.binding
        taken = {*graph.anode, *graph.view}
        self._updates, self._inputs, self._origin = {}, [], {}
        anodes: list[ANode] = []
        cnodes: list[CNode] = []
        params: dict[str, ParamBinding] = {p.name: p for p in binding.params}
        consumed: set[str] = set()
        trained = self._trained(program)
        for _, one in trained:
            with plain_mode(one.parameter.device):  # a capture may be open
                self._begin(one)
        clipped: dict[str, str] = {}
        cut = self._clipping(program, measured=measured)
        if cut is not None:
            clipped = cut.clipped
            graph = replace(
                graph, anodes=(*graph.anodes, *cut.anodes), cnodes=(*graph.cnodes, *cut.cnodes)
            )
            taken |= {*graph.anode}
        for bucket in _buckets(trained):
            old: list[ANode] = []
            for param, one in bucket:
                like = graph.anode[param.name]
                states = [_state(like, f"{like.name}.{key}", taken) for key in one.states]
                old += [like, *states]
                anodes += states
                self._origin |= {a.name: like.name for a in states}
                pairs = zip(states, one.states, strict=True)
                self._inputs += [(a.name, one.parameter, key) for a, key in pairs]
                params[param.name] = replace(param, grad=None)
            new = [_state(a, f"{a.name}.new", taken, "updated") for a in old]
            self._origin |= {
                n.name: self._origin.get(o.name, o.name) for n, o in zip(new, old, strict=True)
            }
            grads = [param.grad for param, _ in bucket if param.grad is not None]
            consumed |= {graph.storage[name] for name in grads}
            name, update = f"U{len(cnodes) + 1}", _Update(tuple(one for _, one in bucket))
            self._updates[name] = update
            grads = [clipped.get(grad, grad) for grad in grads]
            cnodes.append(self._cnode(name, update, old, new, grads, measured=measured))
            anodes += new
        known = tuple(replace(a, kind="grad") if a.name in consumed else a for a in graph.anodes)
        graph = replace(graph, anodes=(*known, *anodes), cnodes=(*graph.cnodes, *cnodes))
        binding = replace(binding, params=tuple(params.values()))
        return replace(program, graph=graph, binding=binding)

    def _clipping(self, program: Program, *, measured: bool) -> Clipping | None:
        """Return the computations that clip the gradients, in the order of the
        parameters. FB0541 for parameters of several types."""
        if self._max_norm is None:
            return None
        graph = program.graph
        grads = [
            (p.grad, self._of[name].parameter, graph.anode[p.name].dtype)
            for p in program.binding.params
            for name in p.names[:1]
            if p.grad is not None and name in self._of
        ]
        types = {dtype for _, _, dtype in grads}
        if len(types) != 1:
            message = f"gradients of {len(types)} types have no norm in common"
            fail("FB0541", message, hint="leave out max_grad_norm=")
        plain = [(name, like) for name, like, _ in grads]
        with plain_mode(plain[0][1].device):  # a capture may be open
            return Clipping(graph, plain, self._max_norm, types.pop(), measured=measured)

    def _trained(self, program: Program) -> list[tuple[ParamBinding, _Trained]]:
        """The parameters that are updated, in the order in which their gradients are made."""
        graph = program.graph
        place = {c.name: index for index, c in enumerate(graph.cnodes)}
        trained = [
            (place[graph.writer[graph.storage[p.grad]].name], p, self._of[name])
            for p in program.binding.params
            for name in p.names[:1]
            if p.grad is not None and name in self._of
        ]
        return [(param, one) for _, param, one in sorted(trained, key=lambda row: row[0])]

    def _cnode(
        self,
        name: str,
        update: _Update,
        old: Sequence[ANode],
        new: Sequence[ANode],
        grads: Sequence[str],
        *,
        measured: bool,
    ) -> CNode:
        kind = f"torch.optim.{type(self.optimizer).__name__}"
        read = (*(Ref(a.name) for a in old), *map(Ref, grads))
        call = Call(UPDATE_OP, (*read, kind, update.group))
        elements = sum(own_rows(one.parameter).numel() for one in update.of)
        made = CNode(name, "opt", tuple(a.name for a in new), call)
        return replace(
            made,
            workspace=Const(self._workspace_bytes(update)),
            time_ns=self._measured_ns(update) if measured else None,
            host_time_ns=round(HOST_NS_AN_ELEMENT * elements) + 1,
        )

    def bytes_on(self, names: Sequence[str]) -> tuple[int, int]:
        """Bytes of the states of these parameters, and what one step of the optimizer takes for
        itself on them."""
        found = [self._of[name] for name in names if name in self._of]
        states = sum(len(one.states) * one.parameter.nbytes for one in found)
        groups = [tuple(one for one in found if one.group == g) for g, _ in enumerate(self._groups)]
        return states, max((self._workspace_bytes(_Update(g)) for g in groups if g), default=0)

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
        made for, or finds hooks of a parameter."""
        groups = [len(group["params"]) for group in self.optimizer.param_groups]
        if groups != self._groups:
            fail("FB0544", "the optimizer has other groups of parameters than it had", hint=_AGAIN)
        state = self.optimizer.state
        held = [state.get(p, {}).get(key) for _, p, key in self._inputs]
        for (name, p, _), tensor in zip(self._inputs, held, strict=True):
            if _shape(tensor) != p.shape:
                fail("FB0544", f"the optimizer's state %{name} is gone", hint=_AGAIN)
        updated = [one.parameter for update in self._updates.values() for one in update.of]
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in updated):
            message = "a parameter has hooks, which a planned step would not run"
            fail("FB0544", message, hint="remove the hooks, or leave out optimizer=")
        if any(parameter.grad is not None for parameter in updated):
            message = "a parameter has a gradient already, which a planned step does not add to"
            fail("FB0544", message, hint="optimizer.zero_grad() before the step")
        return held

    def run(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Does the update `name`: of each parameter itself and its states, then all gradients;
        parameters and states are changed in place."""
        update, given = self._updates[name], iter(tensors)
        parameters: list[Tensor] = []
        states: list[dict[str, Any]] = []
        for one in update.of:
            parameters.append(next(given).detach())
            own = self.optimizer.state.get(one.parameter, {})
            states.append({**own, **{key: next(given) for key in one.states}})
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = gradient
        group = self.optimizer.param_groups[update.group]
        after = _step(self.optimizer, group, parameters, states)
        for one, state in zip(update.of, after, strict=True):
            kept = {key: value for key, value in state.items() if key not in one.states}
            self._hold(one.parameter, kept)

    def _workspace_bytes(self, update: _Update) -> int:
        """Bytes that an update allocates on the device, measured on tensors as large; on smaller
        ones, with as many bytes an element, where these are many."""
        group, like = self.optimizer.param_groups[update.group], update.of[0].parameter
        device = like.device if like.device.type != "meta" else torch.device("cpu")
        counts = [one.parameter.numel() for one in update.of]
        scale = max(1, sum(counts) // _MEASURED)
        with plain_mode(device):
            made = [torch.zeros(-(-n // scale), dtype=like.dtype, device=device) for n in counts]
            states: list[dict[str, Any]] = [{} for _ in made]
            for _ in range(2):  # the first one makes states
                held = [torch.zeros_like(parameter) for parameter in made]
                for parameter, gradient in zip(made, held, strict=True):
                    parameter.grad = gradient
                run = partial(_step, self.optimizer, group, made, states)
                states, use = measure_peak(run, device)
        return scale * use.peak_bytes_over_entry

    def _measured_ns(self, update: _Update) -> int:
        """The least of three updates of tensors like these."""
        group, times = self.optimizer.param_groups[update.group], []
        device = update.of[0].parameter.device
        with plain_mode(device):
            made = [_zeros(one.parameter) for one in update.of]
            states = [
                {k: _zeros(v) if isinstance(v, Tensor) else v for k, v in own.items()}
                for own in (self.optimizer.state.get(one.parameter, {}) for one in update.of)
            ]
            for _ in range(3):
                for parameter in made:
                    parameter.grad = torch.zeros_like(parameter)
                start = time.perf_counter_ns()
                _step(self.optimizer, group, made, states)
                if device.type != "cpu":
                    torch.accelerator.synchronize()
                times.append(time.perf_counter_ns() - start)
        return min(times)


def updates_of(
    optimizer: Optimizer, exported: Exported, max_grad_norm: float | None
) -> OptimizerUpdates:
    """The updates of a captured model. FB0546 for a replica, whose gradients are to be summed over
    the processes before an update."""
    if isinstance(exported.given, DistributedDataParallel):
        message = "a replica of DistributedDataParallel sums gradients before its optimizer steps"
        hint = "leave out optimizer=, and step after the backward"
        fail("FB0546", message, hint=hint)
    home = exported.home or exported
    if max_grad_norm is not None and any(map(is_sharded, home.original.parameters())):
        message = "the norm of sharded gradients is known to no rank alone"
        fail("FB0556", message, hint="leave out max_grad_norm=")
    # One on `meta` was copied for capture: the optimizer has the parameters of the user's own.
    given = exported.given
    model = home.original if given is None or has_values(given) else given
    return OptimizerUpdates(optimizer, model, max_grad_norm)


def _zeros(like: Tensor) -> Tensor:
    """Zeros that lie in memory as a tensor does, on its device; all of one that is sharded."""
    form: Any = {"dtype": like.dtype, "device": like.device}
    return torch.empty_strided(like.shape, like.stride(), **form).zero_()


_AGAIN = "compile again with the optimizer as it is now"


def _shape(value: object) -> torch.Size | None:
    return value.shape if isinstance(value, Tensor) else None


def _state(like: ANode, name: str, taken: set[str], kind: Any = "opt_state") -> ANode:
    while name in taken:
        name += "_"
    taken.add(name)
    return replace(like, name=name, kind=kind, span=None)


def _buckets(
    trained: Sequence[tuple[ParamBinding, _Trained]],
) -> Iterator[list[tuple[ParamBinding, _Trained]]]:
    """Parameters that are updated together: of one group and type, one after the other, until they
    are a sixteenth of all or 32 MiB. (A call of an optimizer takes 0.1 ms whatever it updates.)"""
    most = min(_BUCKET_BYTES, sum(one.parameter.nbytes for _, one in trained) // _BUCKETS)
    open_: dict[tuple[int, torch.dtype], list[tuple[ParamBinding, _Trained]]] = {}
    for param, one in trained:
        bucket = open_.setdefault((one.group, one.parameter.dtype), [])
        bucket.append((param, one))
        if sum(other.parameter.nbytes for _, other in bucket) >= most:
            yield open_.pop((one.group, one.parameter.dtype))
    yield from open_.values()


def _states_of(
    optimizer: Optimizer, group: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """The names of the states that lie like the parameter, and the other numbers, by a step of a
    small parameter."""
    like = group["params"][0] if group["params"] else torch.zeros(())
    parameter = torch.zeros(2, 3, dtype=like.dtype, device=like.device)
    parameter.grad = torch.zeros_like(parameter)
    (made,) = _step(optimizer, group, [parameter], [{}])
    tensors = {key: value for key, value in made.items() if isinstance(value, Tensor)}
    own = tuple(key for key, value in tensors.items() if value.shape == parameter.shape)
    return own, {key: value for key, value in tensors.items() if key not in own}


def _step(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    parameters: Sequence[Tensor],
    states: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """One step of an object of the optimizer's class that has these parameters alone; their states
    afterwards. Their gradients are gone then."""
    kind = type(optimizer)
    alone = object.__new__(kind)
    vars(alone).update({k: v for k, v in vars(optimizer).items() if k not in _OF_OBJECT})
    alone._optimizer_step_pre_hooks = OrderedDict()
    alone._optimizer_step_post_hooks = OrderedDict()
    alone.param_groups = [{**group, "params": [*parameters]}]
    alone.state = defaultdict(dict)
    for parameter, state in zip(parameters, states, strict=True):
        if kind is Adagrad and not state:  # it makes its states when it is made
            state["sum"] = torch.full_like(parameter, group["initial_accumulator_value"])
            state["step"] = torch.zeros(())
        if state:
            alone.state[parameter] = state
    kind.step(alone)
    for parameter in parameters:
        parameter.grad = None
    return [dict(alone.state[parameter]) for parameter in parameters]
