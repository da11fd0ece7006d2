"""The drop-in module: the original's parameters, buffers and attributes, a planned step."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, ParamAOTInput
from torch.utils._pytree import tree_flatten, tree_leaves

from ..._torch.alloc import Mark
from ..._torch.lowered import Lowered
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.expr import evaluate
from ...ir.schedule import Schedule
from .runtime import PlanCopies
from .unused import UnusedOutputs

__all__ = ["Flight", "GuardFailure", "PlannedModule", "PlannedStep", "planned_module"]

_STEP = "_remat_compile_step"

Slot = tuple[dict[str, Any], str, bool]
"""A tensor of a module: its dictionary, its key, and whether it requires a gradient."""


class GuardFailure(FBError):
    """A call that the plan was not made for (FB0910): other shapes, dtypes or modes."""


class Flight:
    """What the generated functions and the module share while a step runs.

    Knows whether a forward still waits for its backward: the bound covers one call at a
    time. `mark`, when set, is entered around each of the two functions (to measure them).
    """

    def __init__(self, unused: UnusedOutputs) -> None:
        self.unused = unused
        self.mark: Mark | None = None
        self._waiting: weakref.ref[Any] | None = None
        self._warned = False

    def end(self) -> None:
        self._waiting = None

    def start(self, outputs: Any) -> None:
        """Warns once if the graph of an earlier forward is still alive and unused."""
        waiting = self._waiting() if self._waiting is not None else None
        if waiting is not None and not self._warned:
            self._warned = True
            warnings.warn(
                "remat-compile: a second forward runs before the backward of the first; "
                "the memory bound covers one call in flight",
                stacklevel=4,
            )
        self.unused.watch(outputs)
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                self._waiting = weakref.ref(leaf.grad_fn)
                return


class PlannedStep:
    """The compiled step and its guards: everything that capture baked in."""

    def __init__(
        self,
        lowered: Lowered,
        schedule: Schedule,
        run: Callable[..., Any],
        flight: Flight,
        source: str,
        copies: PlanCopies | None,
    ):
        exported, owner = lowered.exported, lowered.exported.original
        self.program = lowered.program
        self.schedule = schedule
        self.run = run
        self.flight = flight
        self.source = source
        self.copies = copies
        self._spec = exported.in_spec
        self._sample = [_described(leaf) for leaf in exported.flat_args]
        graph = lowered.program.graph
        shapes = iter([graph.anode[a.name].shape for a in lowered.program.binding.arguments])
        self._shapes = [
            next(shapes) if isinstance(leaf, Tensor) else () for leaf in exported.flat_args
        ]
        self._symbols = lowered.program.symbols
        self._tensor_slots = [
            i for i, leaf in enumerate(exported.flat_args) if isinstance(leaf, Tensor)
        ]
        self._device_type = exported.device.type
        # Look-ups that each call repeats are flattened once: the dictionaries are the
        # modules' own, so replaced parameters are seen and replaced modules are caught.
        self._modes = [(name, m, m.training) for name, m in owner.named_modules()]
        self._children = [
            (m._modules, key, child) for _, m, _ in self._modes for key, child in m._modules.items()
        ]
        self._state, self._extra = _state_of(lowered)

    def __call__(self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        problems = self._problems(owner, args, kwargs)
        if problems:
            hint = "compile again for this call, or restore what the plan was made for"
            raise GuardFailure([Diagnostic("FB0910", p, hint=hint) for p in problems])
        outputs = self.run(*[held[name] for held, name, _ in self._state], *args, **kwargs)
        self.flight.start(outputs)
        return outputs

    def _problems(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[str]:
        flat, spec = tree_flatten((args, kwargs))
        if spec != self._spec:
            return ["the call passes other arguments than the sample did"]
        env, found = self._bind_symbols(flat)
        for index, (leaf, sample) in enumerate(zip(flat, self._sample, strict=True)):
            if (now := _described(leaf)) != sample and not self._fits(index, now, sample, env):
                found.append(f"argument {index} is {_text(now)}; the plan is for {_text(sample)}")
        for name, module, training in self._modes:
            if (owner if name == "" else module).training != training:
                mode = "eval" if training else "train"
                found.append(f"module {name or 'itself'} is in {mode} mode, unlike at capture")
                break
        for children, key, child in self._children:
            if children.get(key) is not child:
                found.append(f"submodule {key} was replaced since capture")
        for held, name, requires_grad in self._state:
            tensor = held.get(name)
            if tensor is None or tensor.requires_grad != requires_grad:
                what = "was removed" if tensor is None else "has another requires_grad"
                found.append(f"{name} {what} since capture")
        if torch.is_autocast_enabled(self._device_type):
            found.append("autocast is on; the plan was made without it")
        return found

    def _bind_symbols(self, flat: list[Any]) -> tuple[dict[str, int], list[str]]:
        """The dynamic dimensions of this call, and complaints about those out of range."""
        env: dict[str, int] = {}
        problems = []
        for s in self._symbols:
            leaf = flat[self._tensor_slots[s.argument]]
            if not isinstance(leaf, Tensor) or leaf.dim() <= s.dim:
                continue  # reported as another type or rank
            env[s.name] = leaf.shape[s.dim]
            if not s.low <= env[s.name] <= s.high:
                problems.append(f"{s.name} is {env[s.name]}, outside [{s.low}, {s.high}]")
        return env, problems

    def _fits(self, index: int, now: Any, sample: Any, env: dict[str, int]) -> bool:
        """Whether a tensor differs from the sample in dynamic dimensions only."""
        if not isinstance(now, tuple) or not isinstance(sample, tuple) or now[1:] != sample[1:]:
            return False
        if len(env) < len(self._symbols):
            return False
        return bool(now[0] == tuple(evaluate(size, env) for size in self._shapes[index]))


def _state_of(lowered: Lowered) -> tuple[list[Slot], dict[str, Tensor | None]]:
    """Where each flat input before the arguments is found: a dictionary and a key.

    Buffers that only the exported module has (lifted constants) stand in one of their own.
    """
    exported = lowered.exported
    modules = dict(exported.original.named_modules(remove_duplicate=False))
    extra: dict[str, Tensor | None] = {}
    slots: list[Slot] = []
    for node in lowered.joint.graph_module.graph.find_nodes(op="placeholder"):
        desc = node.meta["desc"]
        if not isinstance(desc, ParamAOTInput | BufferAOTInput):
            continue
        path, _, name = desc.target.rpartition(".")
        module = modules.get(path)
        held: dict[str, Any] = extra
        key = desc.target
        if module is not None and name in module._parameters:
            held, key = module._parameters, name
        elif module is not None and name in module._buffers:
            held, key = module._buffers, name
        else:
            extra[key] = exported.module.get_buffer(desc.target)
        slots.append((held, key, held[key].requires_grad))
    return slots, extra


def _described(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return (tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad)
    return leaf


def _text(described: Any) -> str:
    if not isinstance(described, tuple):
        return repr(described)
    shape, dtype, device, requires_grad = described
    grad = ", requires grad" if requires_grad else ""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}{grad}"


class PlannedModule(nn.Module):
    """Mixed into a subclass of the original's class; see `planned_module`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The planned step; without gradients, the original's forward."""
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        return self.__dict__[_STEP](self, args, kwargs)

    @property
    def planned_step(self) -> PlannedStep:
        """The compiled step: its source, its schedule, and the hooks to measure it."""
        step: PlannedStep = self.__dict__[_STEP]
        return step

    @property
    def planned_source(self) -> str:
        """The generated Python that runs."""
        return self.planned_step.source


def planned_module(
    lowered: Lowered,
    schedule: Schedule,
    run: Callable[..., Any],
    flight: Flight,
    source: str,
    copies: PlanCopies | None = None,
) -> PlannedModule:
    """A module of a subclass of the original's class that shares its state.

    Parameters, buffers, submodules and attributes are the original's own objects, so
    `parameters()`, `state_dict()`, `train()` and `isinstance` behave as there.
    """
    original = lowered.exported.original
    base = type(original)
    cls: type[PlannedModule] = type(
        f"Planned{base.__name__}", (PlannedModule, base), {"__module__": base.__module__}
    )
    module = cls.__new__(cls)
    module.__dict__.update(original.__dict__)
    module.__dict__.pop("forward", None)
    module.__dict__[_STEP] = PlannedStep(lowered, schedule, run, flight, source, copies)
    return module
