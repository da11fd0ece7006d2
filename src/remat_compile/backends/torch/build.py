"""A lowered model and a verified schedule -> a callable inside AOTAutograd's wrappers.

AOTAutograd asks for two graph modules; it reads only their borders (names and fake
values of inputs and outputs). So ours hold a single marker node per result, and the
generated source is what runs.
"""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx

from ..._torch.handles import fast_handles, kernels_alone
from ..._torch.lowered import Lowered
from ...ir.diagnostics import Diagnostic, fail, render
from ...ir.expr import evaluate
from ...ir.graph import CNode
from ...ir.schedule import Offload, Schedule
from ..python.names import symbol_key
from ..python.quote import comment
from ..python.regions import regions_of
from .emit import emit_with_saved
from .flight import Flight
from .graphs import GraphRecorder, StepGraphs
from .interface import COPIES, TICKET, Interface, copies_of
from .kernels import Kernel, Kernels, make_kernels
from .layouts import LayoutWatch
from .module import GuardFailure, PlannedModule, planned_module
from .more_terms import MoreTerms
from .reinterpret import reinterpret_views
from .runtime import PlanCopies
from .unused import UnusedOutputs
from .view_functions import VIEWS

__all__ = ["CompiledStep", "build", "compiled_step", "generated_lines"]

TITLE = "<remat-compile"
"""How the name of a module of generated code begins."""

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class CompiledStep:
    """A step in AOTAutograd's wrappers: `run(*params, *buffers, *args)` gives the flat results."""

    run: Function
    flight: Flight
    source: str
    copies: PlanCopies | None
    graphs: StepGraphs | None


def build(
    lowered: Lowered,
    schedule: Schedule,
    kernels: Kernels | None = None,
    recorder: GraphRecorder | None = None,
) -> PlannedModule:
    """A drop-in for the original module that runs `schedule`; see `compiled_step`."""
    step = compiled_step(lowered, schedule, kernels, recorder=recorder)
    module = planned_module(lowered, schedule, step.run, step.flight, step.source, step.copies)
    module.planned_step.graphs = step.graphs
    return module


def compiled_step(
    lowered: Lowered,
    schedule: Schedule,
    kernels: Kernels | None = None,
    name: str = "",
    recorder: GraphRecorder | None = None,
) -> CompiledStep:
    """The step that runs `schedule`, without any guard; regions as `kernels`, where it makes one,
    and else by their calls. Warnings of a part of a model call it by its `name`. With a `recorder`
    later calls replay what it recorded of an earlier one.

    `schedule` must have been verified on `lowered.program`. Call it inside the `with`
    block that gave `lowered`; the result outlives the block. Raises FBError FB0901 for
    an operator that is missing, FB0911 when PyTorch refuses the partition, FB0912 for a
    plan that copies to the host on a device that cannot, FB0945 or FB0946 where the code
    read back is another step.
    """
    interface = Interface(
        inputs=lowered.placeholders,
        outputs=lowered.forward_outputs,
        tangents=lowered.tangents,
        grads=lowered.backward_outputs,
    )
    program = lowered.program
    keys = copies_of(schedule)
    copies = PlanCopies(program, schedule, interface.inputs) if keys else None
    source, saved = emit_with_saved(program, schedule, interface)
    title = comment(f"{TITLE} {program.graph.name} @{schedule.name}>")
    compiled = _kernels(lowered, kernels)
    forward, backward = _load(source, title, compiled, fast_handles(program.graph))
    constants = tuple(lowered.constants[a.name] for a in program.graph.anodes if a.kind == "const")

    def partition(
        joint: fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        ticket = () if graphs is None else (TICKET,)
        return _borders(lowered, joint, interface, (*saved, *keys, *ticket))

    moved = {step.anode for step in schedule.steps if isinstance(step, Offload)}
    # On the host there is room for a dense gradient, not for a slice of something larger.
    in_order = lowered if moved.isdisjoint(lowered.tangents) else replace(lowered, takes=None)
    is_fixed = bool(compiled) or recorder is not None
    layouts = LayoutWatch(in_order, name, is_fixed=is_fixed)
    flight = Flight(UnusedOutputs(lowered), layouts, MoreTerms(lowered))
    tangents = len(lowered.tangents)
    graphs = None
    if recorder is not None:
        graphs = StepGraphs(
            forward,
            backward,
            recorder,
            lambda: flight.mark is not None,
            own=len(lowered.joint.held()),
            results=len(interface.outputs),
            tangents=tangents,
            with_copies=copies is not None,
        )
    run_one, run_other = (
        (forward, backward) if graphs is None else (graphs.forward, graphs.backward)
    )

    device_type, default_dtype = lowered.exported.device.type, torch.get_default_dtype()

    def run_backward(args: list[Any], constants: tuple[Tensor, ...]) -> Any:
        flight.end()
        if torch.is_autocast_enabled(device_type):
            message = "backward() is called inside torch.autocast; the plan's runs outside of it"
            hint = "end the block after the forward and the loss, as PyTorch asks"
            raise GuardFailure(Diagnostic("FB0910", message, hint=hint))
        if torch.get_default_dtype() is not default_dtype:
            message = f"backward() is called under another default dtype than {default_dtype}"
            hint = "torch.set_default_dtype as it was when the model was captured"
            raise GuardFailure(Diagnostic("FB0910", message, hint=hint))
        args[len(args) - tangents :] = flight.layouts.fit(args[len(args) - tangents :])
        if compiled:
            _resolve(args, len(args) - tangents)
        grads = flight.unused.leave_out(run_other(args, constants))
        flight.terms.look(grads)
        return grads

    def run_forward(args: list[Any], constants: tuple[Tensor, ...]) -> Any:
        if compiled:
            _resolve(args)
        return run_one(args, constants)

    boxed = (
        _boxed(run_forward, constants, flight, "forward"),
        _boxed(run_backward, constants, flight, "backward"),
    )
    if copies is not None:
        boxed = (
            _begins(boxed[0], copies, len(interface.outputs) + len(saved)),
            _ends(boxed[1], copies, len(program.symbols) + len(saved)),
        )
    for function in boxed:
        function._boxed_call = True  # type: ignore[attr-defined]
    try:
        run = lowered.joint.compile(partition, lambda *_: boxed[0], lambda *_: boxed[1])
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        fail(
            "FB0911",
            f"PyTorch {torch.__version__} refuses the generated step: {error}",
            hint="please report this with the model; the plan itself was verified",
        )
    return CompiledStep(run, flight, source, copies, graphs)


def _kernels(lowered: Lowered, kernels: Kernels | None) -> dict[str, Kernel]:
    """What stands in for the functions of regions, by name."""
    graph = lowered.program.graph
    regions = regions_of(graph)
    if kernels is None or not regions.of:
        return {}
    users: dict[str, list[tuple[CNode, list[Tensor]]]] = {}
    for name, function in regions.of.items():
        c = graph.cnode[name]
        args = [lowered.nodes[ref].meta["val"] for ref in c.call.refs()]
        users.setdefault(function, []).append((c, args))
    return make_kernels(kernels, users)


def _load(
    source: str, name: str, kernels: Mapping[str, Kernel], fast: Mapping[Function, Function]
) -> tuple[Function, Function]:
    """Runs the generated module; tracebacks and debuggers show its lines. `fast` runs instead of
    its handles of operators, kernels instead of its functions of regions, and functions of views
    where they are known to lie."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    handles = {n: value for n, value in space.items() if isinstance(value, BuiltinFunctionType)}
    space.update((n, fast[value]) for n, value in handles.items() if value in fast)
    space.update((function, kernel.runner()) for function, kernel in kernels.items())
    # The handle of an operator in a namespace `views` begins with `_views` as well.
    functions = [name for name, value in space.items() if isinstance(value, FunctionType)]
    reinterpret_views(space, [name for name in functions if name.startswith(VIEWS)])
    return space["forward"], space["backward"]


def generated_lines(module: str) -> list[str] | None:
    """The lines of generated code that runs as a module of this name; None for any other."""
    return linecache.getlines(module) if module.startswith(TITLE) else None


def _resolve(args: list[Any], first: int = 0) -> None:
    """What is given from `first` on as kernels can read it: with the values that a mark (`is_neg`,
    `is_conj`) gives it. The values inside the step bear one only where they did at capture."""
    for place in range(first, len(args)):
        value = args[place]
        if isinstance(value, Tensor) and (value.is_neg() or value.is_conj()):
            args[place] = value.resolve_conj().resolve_neg()
            warnings.warn(render(_flagged(value), level="warning"), stacklevel=2)


def _flagged(tensor: Tensor) -> Diagnostic:
    mark = "negated" if tensor.is_neg() else "conjugated"
    message = (
        f"a kernel cannot read what is only marked as {mark}: {tuple(tensor.shape)} is copied, "
        "which is not in the proven bound"
    )
    hint = "give what resolve_neg() and resolve_conj() return, or plan without fusion here"
    return Diagnostic("FB0915", message, hint=hint)


def _boxed(
    function: Function, constants: tuple[Tensor, ...], flight: Flight, region: str
) -> Function:
    def run(args: list[Any]) -> Any:
        with kernels_alone():
            if flight.mark is None:
                return function(args, constants)
            with flight.mark(region):
                return function(args, constants)

    return run


def _begins(forward: Function, copies: PlanCopies, place: int) -> Function:
    """The forward with copies of its own, and in the place where it saves them their ticket."""

    def run(args: list[Any]) -> Any:
        call = copies.begin(args)
        args.append(call)
        made = forward(args)
        return (*made[:place], copies.ticket(call), *made[place + 1 :])

    return run


def _ends(backward: Function, copies: PlanCopies, place: int) -> Function:
    """The backward, given the copies of its own forward for the ticket in that place."""

    def run(args: list[Any]) -> Any:
        call = args[place] = copies.redeem(args[place])
        made = backward(args)
        copies.end(call)
        return made

    return run


def _borders(
    lowered: Lowered, joint: fx.GraphModule, interface: Interface, saved: tuple[str, ...]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and backward graph modules as AOTAutograd wants to see them."""
    values = _BorderValues(lowered)
    symbols = [symbol_key(s.name) for s in lowered.program.symbols]
    placeholders = joint.graph.find_nodes(op="placeholder")

    forward = fx.Graph()
    known: dict[str, fx.Node] = {}
    for node, name in zip(placeholders, interface.inputs, strict=False):
        copy = _placeholder(forward, node.name, node.meta)
        if name is not None:
            known.setdefault(name, copy)

    def result(name: str | None) -> fx.Node | None:
        if name is None:
            return None
        if name not in known:
            known[name] = forward.call_function(_made_by_generated_code, (name,))
            known[name].meta["val"] = values.of(name)
        return known[name]

    forward.output(tuple(result(n) for n in (*interface.outputs, *saved, *symbols)), type_expr=None)

    backward = fx.Graph()
    for index, name in enumerate((*symbols, *saved)):
        _placeholder(backward, f"saved_{index}", {"val": known[name].meta["val"]})
    for node in placeholders[len(interface.inputs) :]:
        _placeholder(backward, node.name, node.meta)
    grads: list[fx.Node | None] = []
    for name in interface.grads:
        if name is None:
            grads.append(None)
            continue
        grads.append(backward.call_function(_made_by_generated_code, (name,)))
        grads[-1].meta["val"] = values.of(name)  # type: ignore[union-attr]
    backward.output(tuple(grads))
    return (
        fx.GraphModule(torch.nn.Module(), forward),
        fx.GraphModule(torch.nn.Module(), backward),
    )


def _placeholder(graph: fx.Graph, name: str, meta: dict[str, Any]) -> fx.Node:
    node = graph.placeholder(name)
    node.meta.update(meta)
    return node


def _made_by_generated_code(name: str) -> Any:
    """Stands in the border graphs for a value; never runs."""
    raise AssertionError(f"{name}: the border graphs are not meant to run")


class _BorderValues:
    """Fake values of what crosses the border."""

    def __init__(self, lowered: Lowered):
        self._lowered = lowered

    def of(self, name: str) -> Any:
        lowered = self._lowered
        graph = lowered.program.graph
        for symbol in lowered.program.symbols:
            if symbol_key(symbol.name) == name:
                argument = lowered.program.binding.arguments[symbol.argument].name
                return lowered.nodes[argument].meta["val"].shape[symbol.dim]
        if name in graph.anode and graph.anode[name].kind == "rng":
            return self._on_host(evaluate(graph.anode[name].size, {}), torch.uint8)
        if name in (COPIES, TICKET):
            return self._on_host(1, torch.int64)
        return lowered.nodes[name].meta["val"]

    def _on_host(self, size: int, dtype: torch.dtype) -> Tensor:
        some = next(n.meta["val"] for n in self._lowered.nodes.values())
        with some.fake_mode:
            return torch.empty(size, dtype=dtype)
