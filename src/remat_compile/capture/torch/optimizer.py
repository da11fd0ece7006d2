"""The step of a `torch.optim` optimizer as cNodes of phase `opt`, each for some parameters.

The optimizer's own code does an update (`update_call.py`). None of the supported optimizers lets
one parameter depend on another, so steps on some parameters after others give the bits of a step on
all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

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
from .update_call import AGAIN, State, Trained, UpdateCall, states_of, step

SUPPORTED: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW, RMSprop, Adagrad)
"""Optimizers whose states are zero, or there, before the first step, and whose step on a parameter
depends on nothing of another one."""

HOST_NS_AN_ELEMENT = 1.5
"""Nanoseconds of an update on the host for each element, fused and on several threads."""

_MEASURED = 1 << 20
"""Elements of an update on which its bytes are measured, at the most twice as many."""

_BUCKETS, _BUCKET_BYTES = 16, 32 << 20
_CALL_NS = 5_000_000

_Bound = tuple[ParamBinding, Trained]


class OptimizerUpdates:
    """The updates of `optimizer` on the parameters of `model`."""

    def __init__(
        self, optimizer: Optimizer, model: nn.Module, max_grad_norm: float | None = None
    ) -> None:
        """FB0541 for an optimizer that is not supported, FB0542 for parameters that the model has
        not or one twice, FB0543 for states that are not like the parameters."""
        kind = type(optimizer)
        if kind not in SUPPORTED:
            known = ", ".join(one.__name__ for one in SUPPORTED)
            message = f"the step of {kind.__module__}.{kind.__name__} cannot be planned"
            hint = f"use one of {known}, or leave out optimizer= and step after the backward"
            fail("FB0541", message, hint=hint)
        _refuse_hooks(optimizer, "FB0541")
        self.optimizer, self._max_norm = optimizer, max_grad_norm
        self._groups = [len(group["params"]) for group in optimizer.param_groups]
        names = {id(p): path for path, p in model.named_parameters()}
        self._of: dict[str, Trained] = {}
        for place, group in enumerate(optimizer.param_groups):
            states, numbers = states_of(optimizer, group)
            for parameter in group["params"]:
                path = names.get(id(parameter))
                if path is None:
                    shape = list(parameter.shape)
                    message = f"the optimizer has a parameter {shape} that the model has not"
                    hint = "make the optimizer of model.parameters() of the model that is compiled"
                    fail("FB0542", message, hint=hint)
                if path in self._of:
                    message = f"the optimizer has {path} twice, and would update it twice in a step"
                    hint = "give each parameter to one group, once"
                    fail("FB0542", message, hint=hint)
                self._look(parameter, group, path, states)
                self._of[path] = Trained(path, parameter, place, states, numbers)
        self._calls: dict[str, UpdateCall] = {}
        self._origin: dict[str, str] = {}
        self._inputs: list[str] = []
        self._parameters: dict[str, nn.Parameter] = {}

    def _look(
        self, parameter: nn.Parameter, group: Mapping[str, Any], path: str, states: Sequence[str]
    ) -> None:
        """Looks at the states that there are."""
        shape = parameter.shape
        if held := self.optimizer.state.get(parameter):
            wrong = [key for key in states if getattr(held.get(key), "shape", None) != shape]
            if wrong:
                message = f"the optimizer's {wrong[0]} of {path} is not a tensor like the parameter"
                fail("FB0543", message, hint="load the state of this model, or make it anew")
        elif group.get("momentum") and group.get("dampening"):
            message = "the first step of SGD with dampening leaves it out, and later ones do not"
            fail("FB0543", message, hint="take one step of the optimizer first")

    def begun(self) -> Optimizer:
        """Return the optimizer, with the states that its first step would make."""
        state = self.optimizer.state
        for one in (one for call in self._calls.values() for one in call.of):
            if state.get(one.parameter):
                continue
            with plain_mode(one.parameter.device):
                made = {key: torch.zeros_like(one.parameter) for key in one.states}
                made |= {key: torch.zeros_like(number) for key, number in one.numbers.items()}
            if made:  # the optimizer's state has no entry of an empty one
                state[one.parameter].update(made)
        return self.optimizer

    def on(
        self, program: Program, *, measured: bool, few: bool = False, as_in: Program | None = None
    ) -> Program:
        """The program with the updates of all parameters that get a gradient; with times of this
        machine where costs are `measured`. With `few`, a short step has fewer than memory asks for;
        where `as_in` is a program with updates, they are those."""
        graph, binding = program.graph, program.binding
        taken = {*graph.anode, *graph.view}
        self._calls, self._inputs, self._origin, self._parameters = {}, [], {}, {}
        anodes: list[ANode] = []
        cnodes: list[CNode] = []
        params: dict[str, ParamBinding] = {p.name: p for p in binding.params}
        consumed: set[str] = set()
        trained = self._trained(program)
        clipped: dict[str, str] = {}
        cut = self._clipping(program, measured=measured)
        if cut is not None:
            clipped = cut.clipped
            graph = replace(
                graph, anodes=(*graph.anodes, *cut.anodes), cnodes=(*graph.cnodes, *cut.cnodes)
            )
            taken |= {*graph.anode}
        step_ns = sum(c.time_ns_at(1) for c in graph.cnodes) if few else None
        buckets = _buckets(trained, step_ns) if as_in is None else _buckets_of(as_in, trained)
        for bucket in buckets:
            old: list[ANode] = []
            for param, one in bucket:
                like = graph.anode[param.name]
                states = [_state(like, f"{like.name}.{key}", taken) for key in one.states]
                old += [like, *states]
                anodes += states
                self._origin |= {a.name: like.name for a in states}
                self._inputs += [a.name for a in states]
                params[param.name] = replace(param, grad=None)
                self._parameters[param.name] = one.parameter
            new = [_state(a, f"{a.name}.new", taken, "updated") for a in old]
            self._origin |= {
                n.name: self._origin.get(o.name, o.name) for n, o in zip(new, old, strict=True)
            }
            grads = [param.grad for param, _ in bucket if param.grad is not None]
            consumed |= {graph.storage[name] for name in grads}
            name = f"U{len(cnodes) + 1}"
            update = UpdateCall(self.optimizer, tuple(one for _, one in bucket))
            self._calls[name] = update
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

    def _trained(self, program: Program) -> list[_Bound]:
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
        update: UpdateCall,
        old: Sequence[ANode],
        new: Sequence[ANode],
        grads: Sequence[str],
        *,
        measured: bool,
    ) -> CNode:
        kind = f"torch.optim.{type(self.optimizer).__name__}"
        read = (*(Ref(a.name) for a in old), *map(Ref, grads))
        call = Call(UPDATE_OP, (*read, kind, update.of[0].group))
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
        return states, max(
            (self._workspace_bytes(UpdateCall(self.optimizer, g)) for g in groups if g), default=0
        )

    @property
    def origin(self) -> dict[str, str]:
        """The parameter that each state lies like, by aNode."""
        return dict(self._origin)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The aNodes of the states, in the order of `tensors`."""
        return tuple(self._inputs)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are updated, by aNode."""
        return dict(self._parameters)

    def tensors(self) -> list[Tensor]:
        """The states as they are now. FB0544 where a step of the plan does not find what it was
        made for, or finds hooks."""
        groups = [len(group["params"]) for group in self.optimizer.param_groups]
        if groups != self._groups:
            fail("FB0544", "the optimizer has other groups of parameters than it had", hint=AGAIN)
        _refuse_hooks(self.optimizer, "FB0544")
        return [state for call in self._calls.values() for state in call.look()]

    def run(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Does the update `name`: of each parameter itself and its states, then all gradients;
        parameters and states are changed in place."""
        self._calls[name].run(tensors)

    def _workspace_bytes(self, update: UpdateCall) -> int:
        """Bytes that an update allocates on the device, measured on tensors as large; on smaller
        ones, with as many bytes an element, where these are many."""
        like = update.of[0].parameter
        device = like.device if like.device.type != "meta" else torch.device("cpu")
        counts = [one.parameter.numel() for one in update.of]
        scale = max(1, sum(counts) // _MEASURED)
        with plain_mode(device):
            made = [torch.zeros(-(-n // scale), dtype=like.dtype, device=device) for n in counts]
            state: State = {}
            for _ in range(2):  # the first one makes states
                held = [torch.zeros_like(parameter) for parameter in made]
                run = partial(step, self.optimizer, update.group, made, state, held)
                state, use = measure_peak(run, device)
        return scale * use.peak_bytes_over_entry

    def _measured_ns(self, update: UpdateCall) -> int:
        """The least of three updates of tensors like these."""
        device, times = update.of[0].parameter.device, []
        with plain_mode(device):
            made = [_zeros(one.parameter) for one in update.of]
            held = (self.optimizer.state.get(one.parameter, {}) for one in update.of)
            state: State = {
                p: {k: _zeros(v) if isinstance(v, Tensor) else v for k, v in own.items()}
                for p, own in zip(made, held, strict=True)
            }
            for _ in range(3):
                gradients = [torch.zeros_like(parameter) for parameter in made]
                start = time.perf_counter_ns()
                step(self.optimizer, update.group, made, state, gradients)
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


def _refuse_hooks(optimizer: Optimizer, code: str) -> None:
    """`code` for hooks around the optimizer's step, or that of all optimizers."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        message = "the optimizer has hooks around its step, which a planned step would not run"
        fail(code, message, hint="remove the hooks, or leave out optimizer=")


def _state(like: ANode, name: str, taken: set[str], kind: Any = "opt_state") -> ANode:
    while name in taken:
        name += "_"
    taken.add(name)
    return replace(like, name=name, kind=kind, span=None)


def _buckets(trained: Sequence[_Bound], step_ns: int | None) -> Iterator[list[_Bound]]:
    """Parameters that are updated together: of one group and type, one after the other, until they
    are a sixteenth of all or 32 MiB. A call of an optimizer takes up to 0.03 ms whatever it
    updates: a step of so many ns has none for each millisecond that it does not last."""
    count = _BUCKETS if step_ns is None else max(1, min(_BUCKETS, step_ns // _CALL_NS))
    most = min(_BUCKET_BYTES, -(-sum(one.parameter.nbytes for _, one in trained) // count))
    open_: dict[tuple[int, torch.dtype], list[_Bound]] = {}
    for param, one in trained:
        bucket = open_.setdefault((one.group, one.parameter.dtype), [])
        bucket.append((param, one))
        if sum(other.parameter.nbytes for _, other in bucket) >= most:
            yield open_.pop((one.group, one.parameter.dtype))
    yield from open_.values()


def _buckets_of(program: Program, trained: Sequence[_Bound]) -> Iterator[list[_Bound]]:
    """Parameters that are updated together in a program, as far as they are of one group and
    type."""
    updates = (c for c in program.graph.cnodes if c.is_update)
    place = {old: at for at, c in enumerate(updates) for old, _ in c.takes_over}
    buckets: dict[tuple[int, int, torch.dtype], list[_Bound]] = {}
    for param, one in trained:
        key = place.get(param.name, -1), one.group, one.parameter.dtype
        buckets.setdefault(key, []).append((param, one))
    yield from (buckets[key] for key in sorted(buckets, key=lambda key: key[0]))
