"""The drop-in module: the original's parameters, buffers and attributes, a planned step."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy, deepcopy
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._C import _TorchDispatchModeKey
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten

from ...capture.lowered import Lowered
from ...capture.torch.fetched import fetching
from ...capture.trace.branches import changed_reads
from ...capture.trace.lock import do_originals_run, settled, undisturbed
from ...capture.trace.module import StandIn
from ...capture.trace.outputs import tensors_of
from ...capture.trace.parallel import check_not_spread
from ...device.strides import lie_alike
from ...ir.diagnostics import Diagnostic, FBError, fail, render
from ...ir.expr import evaluate
from ...ir.schedule import Schedule
from .calls.arguments import OTHERS, Arguments
from .calls.described import described, has_another_shape_only, is_as_described, otherwise
from .calls.guards import StepGuards
from .calls.pending_call import Flight
from .calls.refusals import GuardFailure
from .graphs import StepGraphs
from .runtime import PlanCopies

OnChange = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Sequence[str]], Any]
"""Runs a call that the plan was not made for; of the module, its arguments and what changed."""

Slot = tuple[dict[str, Any], str]
"""A parameter or buffer: the dictionary of its module that holds it, and its key there."""

AS_SAMPLE = (
    "compile again for this call, restore what the plan was made for, or compile with "
    'on_change="replan" or "eager"'
)

ONE_BACKWARD = (
    "a planned step has one forward and one backward: it cannot be called inside of torch.func "
    "(grad, vmap, jvp) or forward-mode differentiation"
)
BY_MODEL = "call the model itself there, which was not changed"

_STEP = "_remat_compile_step"
_OWN = ("forward", "_is_full_backward_hook")
"""Attributes of the original that a planned module has of its own."""


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
        exported = lowered.exported
        self.base = type(exported.original)
        self.program = lowered.program
        self.schedule = schedule
        self.run = run
        self.flight = flight
        self.source = source
        self.copies = copies
        self._exported = exported
        self._spec = exported.in_spec
        self._arguments = Arguments(exported.original.forward, exported.args, exported.kwargs)
        spec = tree_flatten((exported.args, exported.kwargs))[1]
        self._flat = self._arguments.flat if spec == self._spec else _by_tree
        self._sample = [described(leaf) for leaf in exported.flat_args]
        graph = lowered.program.graph
        shapes = iter([graph.anode[a.name].shape for a in lowered.program.binding.arguments])
        self._shapes = [
            next(shapes) if isinstance(leaf, Tensor) else () for leaf in exported.flat_args
        ]
        self._symbols = lowered.program.symbols
        self._tensor_slots = [
            i for i, leaf in enumerate(exported.flat_args) if isinstance(leaf, Tensor)
        ]
        self.autocast = exported.autocast
        self._state = StateSlots(lowered)
        self._guards = StepGuards(exported)
        self.original = vars(exported.original)
        self._returns = exported.returns
        self.on_change: OnChange = refuse
        self.graphs: StepGraphs | None = None
        self._reads = lowered.reads
        self._device = exported.device

    def __call__(self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if do_originals_run():
            return self.eager(owner, args, kwargs)
        inputs, changes = undisturbed(self.look, owner, args, kwargs)
        if changes:
            return self.on_change(owner, args, kwargs, changes)
        return self.run_on(inputs)

    def look(
        self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Sequence[str]]:
        """The flat inputs of a call, and what is otherwise than the step was made for."""
        flat, spec = self._flat(args, kwargs), self._spec
        if flat is None:
            flat, spec = tree_flatten((args, kwargs))
        if spec != self._spec:
            same = self._arguments.as_in_sample(args, kwargs)
            if isinstance(same, str):
                return [], [same]
            args, kwargs = same
            flat, spec = tree_flatten((args, kwargs))
            if spec != self._spec:
                return [], [OTHERS]
        if problems := self._problems(flat):
            return [], problems
        if problems := self._guards.changes(owner, args, kwargs):
            return [], problems
        tensors = self._state.tensors(owner)
        if self._reads and (problems := changed_reads(self._reads, flat, self._device)):
            return [], problems
        return [*tensors, *flat], ()

    def run_on(self, inputs: list[Any]) -> Any:
        """The step, on what `look` gave."""
        self.flight.memory.look(inputs)
        if self.copies is not None:
            self.copies.look(inputs)
        if self.autocast.dtype is None:
            outputs = self.run(list(inputs))
        else:  # the casts are part of the graph
            with torch._C._DisableAutocast():
                outputs = self.run(list(inputs))
        self.flight.start(outputs, inputs, self.autocast)
        return outputs if self._returns is None else self._returns.put_together(outputs)

    def eager(self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward of the model itself. It does not begin while it is traced elsewhere."""
        with settled():
            pass
        forward = self.original.get("forward")  # one that was set on the module
        with fetching(self._exported) if self._exported.is_away else nullcontext():
            return (
                self.base.forward(owner, *args, **kwargs)
                if forward is None
                else forward(*args, **kwargs)
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedStep:
        """The step for a copy of the model: what is generated is shared, its state is not."""
        same = ("program", "schedule", "flight", "copies", "graphs", "_spec", "_arguments")
        for name in (*same, "_exported", "_returns", "_reads"):
            shared = getattr(self, name)
            memo[id(shared)] = shared
        made = copy(self)
        memo[id(self)] = made
        vars(made).update(deepcopy(vars(self), memo))
        return made

    def tensors(self, made: Any) -> list[Tensor]:
        """The flat results in what a call returned."""
        return tensors_of(made, self._returns)

    def _problems(self, flat: list[Any]) -> list[str]:
        """Return the differences of the arguments from the sample."""
        env, problems = self._bind_symbols(flat) if self._symbols else ({}, [])
        for index, (leaf, sample) in enumerate(zip(flat, self._sample, strict=True)):
            now = described(leaf)
            if not is_as_described(leaf, now, sample) and not self._fits(index, now, sample, env):
                problems.append(otherwise(index, now, sample))
        return problems

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
        """Return whether a tensor differs from the sample in dynamic dimensions only."""
        if not has_another_shape_only(now, sample):
            return False
        if now[0] != sample[0]:
            if len(env) < len(self._symbols):
                return False
            if now[0] != tuple(evaluate(size, env) for size in self._shapes[index]):
                return False
        return lie_alike(now[0], now[-1], sample[0], sample[-1])


class StateSlots:
    """The parameters and buffers that a step takes, found by their paths in its model.

    Buffers that only the exported module has (lifted constants) are held here.
    """

    def __init__(self, lowered: Lowered):
        exported = lowered.exported
        self._paths = lowered.joint.held()
        self._extra: dict[str, Tensor | None] = {}
        held = {path for path, _ in _tensors_of(exported.original)}
        for path in self._paths:
            if path not in held:
                self._extra[path] = exported.module.get_buffer(path)
        self._find(exported.original)

    def tensors(self, owner: nn.Module) -> list[Tensor | None]:
        """Return the present tensors, in the order of the step."""
        if [list(children.values()) for children in self._children] != self._modules:
            self._find(owner)  # a submodule was replaced
        return [held.get(key) for held, key in self._slots]

    def _find(self, owner: nn.Module) -> None:
        slots = dict(_tensors_of(owner))
        extra = self._extra
        self._slots = [slots.get(path, (extra, path)) for path in self._paths]
        self._children = [m._modules for m in owner.modules() if m._modules]
        self._modules = [list(children.values()) for children in self._children]


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Slot]]:
    for path, module in model.named_modules(remove_duplicate=False):
        for held in (module._parameters, module._buffers):
            for key in held:
                yield f"{path}.{key}" if path else key, (held, key)


def refuse(
    owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], changes: Sequence[str]
) -> NoReturn:
    """FB0910 with what changed: `on_change="error"`."""
    check_not_spread(owner, but=("",))
    raise GuardFailure(Diagnostic("FB0910", "; ".join(changes), hint=AS_SAMPLE))


def _by_tree(_: tuple[Any, ...], __: dict[str, Any]) -> None:
    """In place of `Arguments.flat`, where leaves stand in another order."""


class PlannedModule(StandIn, nn.Module):
    """Mixed into a subclass of the original's class; see `planned_module`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The planned step; without gradients, or while PyTorch traces, the original's forward."""
        step: PlannedStep = self.__dict__[_STEP]
        if not torch.is_grad_enabled() or _is_traced():
            return step.eager(self, args, kwargs)
        try:
            return step(self, args, kwargs)
        except (FBError, NotImplementedError, RuntimeError):  # of a guard, or of PyTorch
            if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
                fail("FB0949", ONE_BACKWARD, hint=BY_MODEL)
            raise

    def _remat_compile_original(self) -> nn.Module:
        step = self.planned_step
        made = object.__new__(step.base)
        made.__dict__.update({key: v for key, v in self.__dict__.items() if key != _STEP})
        for key in _OWN:
            if key in step.original:
                made.__dict__[key] = step.original[key]
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedModule:
        made = object.__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update(deepcopy(self.__dict__, memo))
        return made

    def __reduce_ex__(self, _: Any) -> Any:
        """Pickled is the model itself: a plan is proven for the process that made it."""
        message = "pickled is the model without its plan, which runs in eager when it is loaded"
        hint = "save its state_dict, or compile it again after loading"
        diagnostic = Diagnostic("FB0950", message, hint=hint)
        warnings.warn(render(diagnostic, level="warning"), stacklevel=2)
        return self._remat_compile_original().__reduce_ex__(
            1
        )  # names the class, and asks for no more

    @property
    def _is_full_backward_hook(self) -> bool | None:
        """The original's, as the hooks themselves are: which kind those of backward are."""
        kind: bool | None = self.__dict__[_STEP].original["_is_full_backward_hook"]
        return kind

    @_is_full_backward_hook.setter
    def _is_full_backward_hook(self, kind: bool | None) -> None:
        self.__dict__[_STEP].original["_is_full_backward_hook"] = kind

    @property
    def planned_step(self) -> PlannedStep:
        """The compiled step: its source, its schedule, and the hooks to measure it."""
        step: PlannedStep = self.__dict__[_STEP]
        return step

    @property
    def planned_source(self) -> str:
        """The generated Python that runs."""
        return self.planned_step.source


def _is_traced() -> bool:
    """Return whether the tensors of this moment are fake."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    return torch._C._get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None


def _with_signature_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def forward(self: PlannedModule, *args: Any, **kwargs: Any) -> Any:
        return PlannedModule.forward(self, *args, **kwargs)

    signature = inspect.signature(original)
    owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [owner, *signature.parameters.values()]
    forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return forward


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
    # Named as the original: `save_pretrained` writes the name of the class into a file.
    space = {key: getattr(base, key) for key in ("__module__", "__qualname__", "__doc__")}
    space["forward"] = _with_signature_of(original.forward)
    cls: type[PlannedModule] = type(base.__name__, (PlannedModule, base), space)
    module = object.__new__(cls)  # some classes make others in `__new__`
    module.__dict__.update(original.__dict__)
    for shared in _OWN:
        module.__dict__.pop(shared, None)
    module.__dict__[_STEP] = PlannedStep(lowered, schedule, run, flight, source, copies)
    return module
