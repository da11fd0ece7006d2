"""A lowered model and a verified schedule -> a callable: generated code in an autograd node.

The node is one of its own (`plain_wrappers.py`) where a step needs nothing of AOTAutograd's
wrappers, and else AOTAutograd's, which is given the borders of both functions (`borders.py`).
"""

from __future__ import annotations

import linecache
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from ...capture.lowered import Lowered
from ...capture.trace.plain_wrappers import PlainWrappers
from ...ir.diagnostics import Diagnostic, fail, render
from ...ir.graph import CNode
from ...ir.program import Program
from ...ir.schedule import Compute, Offload, Schedule
from ..python.quote import comment
from ..python.regions import regions_of
from .calls.caller_memory import CallerMemory
from .calls.pending_call import Flight
from .calls.refusals import BackwardGuards, GuardFailure
from .code.emit import emit_with_saved
from .code.interface import TICKET, Interface, copies_of
from .gradients.borders import borders
from .gradients.layouts import LayoutWatch
from .gradients.unused import UnusedOutputs
from .graphs import GraphRecorder, StepGraphs
from .kernels import Kernel, Kernels, make_kernels
from .module import PlannedModule, planned_module
from .runtime import PlanCopies
from .runtime.updates import Optimizer

TITLE = "<remat-compile"
"""Beginning of the name of a module of generated code."""

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class CompiledStep:
    """A step: `run(*params, *buffers, *args)` gives the flat results."""

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
    optimizer: Optimizer | None = None,
) -> PlannedModule:
    """A drop-in for the original module that runs `schedule`; see `compiled_step`."""
    step = compiled_step(lowered, schedule, kernels, recorder=recorder, optimizer=optimizer)
    module = planned_module(lowered, schedule, step.run, step.flight, step.source, step.copies)
    module.planned_step.graphs = step.graphs
    return module


def compiled_step(
    lowered: Lowered,
    schedule: Schedule,
    kernels: Kernels | None = None,
    name: str = "",
    recorder: GraphRecorder | None = None,
    optimizer: Optimizer | None = None,
) -> CompiledStep:
    """The step that runs `schedule`, without any guard; regions as `kernels`, where it makes one,
    and else by their calls. Warnings of a part of a model call it by its `name`. With a `recorder`
    later calls replay what it recorded of an earlier one. The `optimizer` does the updates that the
    program has.

    `schedule` must have been verified on `lowered.program`. Call it inside the `with`
    block that gave `lowered`; the result outlives the block. Raises FBError FB0901 for
    an operator that is missing, FB0911 when PyTorch refuses the partition, FB0912 for a
    plan that copies to the host on a device that cannot, FB0945 or FB0946 where the code
    read back is another step.
    """
    program = lowered.program
    interface = Interface(
        inputs=(*lowered.placeholders, *(() if optimizer is None else optimizer.inputs)),
        outputs=lowered.forward_outputs,
        tangents=lowered.tangents,
        grads=_left(program, lowered.backward_outputs),
    )
    keys = copies_of(program, schedule)
    exported = lowered.exported
    away = next(exported.original.parameters()) if exported.is_away else None
    given = program, schedule, interface.inputs, optimizer, away
    copies = PlanCopies(*given) if keys or exported.is_away else None
    source, saved = emit_with_saved(program, schedule, interface)
    title = comment(f"{TITLE} {program.graph.name} @{schedule.name}>")
    compiled = _kernels(lowered, kernels)
    forward, backward = _load(source, title, compiled)
    constants = tuple(lowered.constants[a.name] for a in program.graph.anodes if a.kind == "const")

    def partition(
        joint: fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, **_: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        ticket = () if graphs is None else (TICKET,)
        given = replace(interface, grads=lowered.backward_outputs)
        return borders(lowered, joint, given, (*saved, *keys, *ticket), schedule.homes)

    moved = {step.anode for step in schedule.steps if isinstance(step, Offload)}
    is_fixed = bool(compiled) or recorder is not None
    layouts = LayoutWatch(lowered, name, moved, is_fixed=is_fixed)
    guards = BackwardGuards(lowered.exported, name)
    memory = CallerMemory(program, schedule, interface, saved)
    flight = Flight(guards, UnusedOutputs(lowered), layouts, memory)
    tangents = len(lowered.tangents)
    runs = Counter(step.cnode for step in schedule.steps if isinstance(step, Compute))
    draws_again = any(c.token and runs[c.name] > 1 for c in program.graph.cnodes)
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
    copies_at = len(program.symbols) + len(saved)
    run_one, run_other = (
        (forward, backward) if graphs is None else (graphs.forward, graphs.backward)
    )

    def run_backward(args: list[Any], constants: tuple[Tensor, ...]) -> Any:
        flight.end()
        if optimizer is not None and not flight.is_step and flight.mark is None:
            message = "a backward that updates parameters was begun outside of its training step"
            hint = (
                "call step(...); for micro-batches, loss scaling or a loss of your own compile "
                "without optimizer=, and step after the last backward"
            )
            fail("FB0550", message, hint=hint)
        if (compiled or draws_again) and any(map(_is_batch, args[len(args) - tangents :])):
            message = (
                "gradients come in a batch (is_grads_batched=True), which no kernel of this plan "
                "reads, and in which no dropout can be drawn again"
            )
            hint = "ask for one after the other, or call the model itself"
            raise GuardFailure(Diagnostic("FB0910", message, hint=hint))
        first = len(args) - tangents
        args[first:] = flight.layouts.fit(args[first:], flight.unused.missing)
        if compiled:
            _resolve(args, first)
        # Without homes nothing of `args` is held here: the step frees what it was given.
        call = args[copies_at] if copies is not None and schedule.homes else None
        try:
            made = run_other(args, constants)
        except BaseException:
            if call is not None:
                call.abandon()
            raise
        if copies is not None and call is not None:
            at_home = copies.gradients(call, interface.grads)
            made = [at_home.get(at, gradient) for at, gradient in enumerate(made)]
        return flight.unused.leave_out(made)

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
            _ends(boxed[1], copies, copies_at),
        )
    for function in boxed:
        function._boxed_call = True  # type: ignore[attr-defined]
    try:
        # Sizes that are saved for the backward are no tensors.
        wrappers = (
            lowered.joint if program.symbols else lowered.joint.wrappers(lowered.backward_outputs)
        )
        halves = partition, lambda *_: boxed[0], lambda *_: boxed[1]
        if isinstance(wrappers, PlainWrappers):
            flight.is_begun_by_node = True
            run = wrappers.compile(*halves, flight.begin)
        else:
            run = wrappers.compile(*halves)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        fail(
            "FB0911",
            f"PyTorch {torch.__version__} refuses the generated step: {error}",
            hint="please report this with the model; the plan itself was verified",
        )
    return CompiledStep(run, flight, source, copies, graphs)


def _kernels(lowered: Lowered, kernels: Kernels | None) -> dict[str, Kernel]:
    """Return the stand-ins for the functions of regions, by name."""
    graph = lowered.program.graph
    regions = regions_of(graph)
    if kernels is None or not regions.of:
        return {}

    def user(name: str) -> tuple[CNode, list[Tensor]]:
        c = graph.cnode[name]
        return c, [lowered.nodes[ref].meta["val"] for ref in c.call.refs()]

    users: dict[str, list[tuple[CNode, list[Tensor]]]] = {}
    for name, function in regions.of.items():
        users.setdefault(function, []).append(user(name))
    return make_kernels(kernels, users)


def _load(source: str, name: str, kernels: Mapping[str, Kernel]) -> tuple[Function, Function]:
    """Runs the generated module; tracebacks and debuggers show its lines. Kernels run instead of
    its functions of regions."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    space.update((function, kernel.runner()) for function, kernel in kernels.items())
    # A `torch.compile` around the step would look for the module of this text among files.
    for function in (space["forward"], space["backward"]):
        function._torchdynamo_disable = True
    return space["forward"], space["backward"]


def generated_lines(module: str) -> list[str] | None:
    """The lines of generated code that runs as a module of this name; None for any other."""
    return linecache.getlines(module) if module.startswith(TITLE) else None


def _resolve(args: list[Any], first: int = 0) -> None:
    """Return the arguments from `first` on as kernels can read them: with the values that a mark
    (`is_neg`, `is_conj`) gives it. The values inside the step bear one only where they did at
    capture."""
    for place in range(first, len(args)):
        value = args[place]
        if isinstance(value, Tensor) and (value.is_neg() or value.is_conj()):
            args[place] = value.resolve_conj().resolve_neg()
            warnings.warn(render(_flagged(value), level="warning"), stacklevel=2)


def _is_batch(gradient: Tensor) -> bool:
    """Return whether it stands for several, under `vmap` or `is_grads_batched=True`."""
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(gradient) or functorch.is_batchedtensor(gradient)


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
        # Past autograd, and past functions around PyTorch's own, as `instances.plain_mode`.
        with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
            if flight.mark is None:
                return function(args, constants)
            with flight.mark(region):
                return function(args, constants)

    return run


def _left(program: Program, grads: Sequence[str | None]) -> tuple[str | None, ...]:
    """The gradients that the caller gets: none of what updates take in."""
    bound = {p.grad for p in program.binding.params}
    bound |= {name for _, name in program.binding.input_grads}
    return tuple(name if name in bound else None for name in grads)


def _begins(forward: Function, copies: PlanCopies, place: int) -> Function:
    """The forward with copies of its own, and in the place where it saves them their ticket."""

    def run(args: list[Any]) -> Any:
        args += copies.states()
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
