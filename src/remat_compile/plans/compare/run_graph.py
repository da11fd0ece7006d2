"""Two graphs of one model, executed side by side at random inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from ...backends.views import with_calls
from ...device.devices import forked_generators
from ...ir.analysis.order import capture_order, frees_after_last_use
from ...ir.diagnostics import FBError
from ...ir.graph import Arg, Atom, Call
from ...ir.program import Program
from ...ir.schedule import Compute, Free, Step
from ...operators.executor import execute
from ...operators.repeats import largest_difference, same_bits

SEEDS = (20240229, 7)
NARROW = ("f32", "f16", "bf16")
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 5e-2}
"""The largest difference that counts as rounding, as a share of the largest value."""


class Incomparable(Exception):
    """The graphs do not take or give the same things."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Outcome of comparing two graphs."""

    how: str
    wrong: str | None = None


def compare_runs(planned: Program, captured: Program, values: Mapping[str, Tensor]) -> Compared:
    """Executes both graphs at two random inputs, parameters and buffers, in float64 where the
    kernels allow it, and compares results, all gradients and new buffers.

    `values` are the tensors of the captured graph. What has a replay form runs twice, and its
    second results are read. Raises Incomparable.
    """
    planned = _on(planned, captured.header.device)
    ours_of = _interface(planned, captured)
    for wide in (True, False):
        pair = tuple(map(_widened, (planned, captured))) if wide else (planned, captured)
        try:
            return _compare(pair[0], pair[1], ours_of, values, wide)
        except (RuntimeError, NotImplementedError, FBError, TypeError) as error:
            reason = str(error).strip().split("\n")[0]
    raise Incomparable(f"they cannot be executed: {reason}")


def _compare(
    planned: Program,
    captured: Program,
    ours_of: Mapping[str, str],
    values: Mapping[str, Tensor],
    wide: bool,
) -> Compared:
    equal, worst = True, 0.0
    floats = {a.dtype for a in captured.graph.anodes if a.dtype in TOLERANCE}
    tolerance = TOLERANCE["f64"] if wide else max((TOLERANCE[d] for d in floats), default=0.0)
    types = "float64" if wide else "the types of the model"
    for seed in SEEDS:
        theirs = _drawn(values, seed, wide)
        ours = {name: theirs[other].clone() for name, other in ours_of.items()}
        mine, expected = _run(planned, ours, seed), _run(captured, theirs, seed)
        for name, tensor in expected.items():
            share = _difference(mine[name], tensor)
            if not share <= tolerance:
                text = f"{name} differs by {share:.3g} of its largest value, in {types}"
                return Compared("", text)
            equal, worst = equal and share == 0, max(worst, share)
    count = len(expected)
    end = "bit-equal" if equal else f"equal to {worst:.2g} of the largest value"
    allowed = "" if equal else f" (allowed {tolerance:g})"
    return Compared(f"in {types}: {count} tensors {end}{allowed}")


def _interface(planned: Program, captured: Program) -> dict[str, str]:
    """Return the tensors of the planned graph's caller, by the names of the captured one."""
    ours, theirs = (_taken(program) for program in (planned, captured))
    for what in ours:
        if ours[what].keys() != theirs[what].keys():
            raise Incomparable(f"they take other {what}")
    counterparts = {name: theirs[what][key] for what in ours for key, name in ours[what].items()}
    given = [_given(program) for program in (planned, captured)]
    if given[0] != given[1]:
        raise Incomparable("they give other results, gradients or buffers")
    for name, other in counterparts.items():
        mine, its = planned.graph.anode[name], captured.graph.anode[other]
        if (mine.dtype, mine.kind, mine.shape) != (its.dtype, its.kind, its.shape):
            raise Incomparable(f"%{name} has another kind, type or shape in the model")
    return counterparts


def _taken(program: Program) -> dict[str, dict[object, str]]:
    """The aNodes of what a caller gives, by kind and by the caller's own names."""
    binding = program.binding
    return {
        "parameters": {p.names: p.name for p in binding.params},
        "buffers": {b.names: b.name for b in binding.buffers},
        "arguments": {a.path: a.name for a in binding.arguments},
    }


def _given(program: Program) -> tuple[object, ...]:
    binding = program.binding
    return (
        [result.tangent is not None for result in binding.results],
        {p.names for p in binding.params if p.grad is not None},
        {b.names for b in binding.buffers if b.update is not None},
        {index for index, _ in binding.input_grads},
    )


def _drawn(values: Mapping[str, Tensor], seed: int, wide: bool) -> dict[str, Tensor]:
    """Tensors near those of the model: floats moved, all in proportion and so that equal
    ones become different, integers drawn from the values that are there, sizes kept."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _moved(tensor.detach().cpu(), generator, wide).to(tensor.device)
        for name, tensor in values.items()
    }


def _moved(tensor: Tensor, generator: torch.Generator, wide: bool) -> Tensor:
    if not tensor.is_floating_point():
        if tensor.dtype.is_complex or not tensor.numel():
            return tensor.clone()
        index = torch.randint(tensor.numel(), tensor.shape, generator=generator)
        return tensor.flatten()[index]
    base = tensor.double()
    # A variance stays positive and a mask a mask; what is zero throughout still gets values.
    share = 1 + 0.5 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    moved = base * share
    if bool((base == 0).all()):
        moved = 0.1 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    return moved if wide else moved.to(tensor.dtype)


def _run(program: Program, values: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Everything that leaves one step, by what it is."""
    binding = program.binding
    steps = tuple(_with_replays(program))
    with forked_generators():
        torch.manual_seed(seed)
        done = execute(program, steps, values)
    outputs = {f"result {i}": tensor for i, tensor in enumerate(done.results)}
    for p in binding.params:
        if p.grad is not None:
            outputs[f"the gradient of {p.names[0]}"] = done.param_grads[p.name]
    for index, gradient in done.input_grads.items():
        outputs[f"the gradient of {binding.arguments[index].path}"] = gradient
    for b in binding.buffers:
        if b.update is not None:
            outputs[f"buffer {b.names[0]}"] = values[b.name]
    return outputs


def _with_replays(program: Program) -> Iterator[Step]:
    """The step without recomputation, but that what has a replay form is computed, freed
    and computed again, so that all later readers see what the form gives."""
    graph = program.graph
    for step in frees_after_last_use(graph, capture_order(graph)):
        yield step
        c = graph.cnode[step.cnode] if isinstance(step, Compute) else None
        if c is not None and c.replay is not None:
            yield from (Free(name) for name in c.replay.writes if name is not None)
            yield step
            yield from () if c.token is None else (Free(c.token),)


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference as a share of the largest value; infinity for other types."""
    if theirs.is_floating_point():
        return largest_difference({"": ours}, {"": theirs})
    return 0.0 if same_bits(ours, theirs) else inf


def _widened(program: Program) -> Program:
    """The same graph with every float in float64. (Nobody counts its bytes.)"""
    wide = Atom("dtype", "f64")
    made = _mapped(program, lambda a: wide if a.kind == "dtype" and a.value in NARROW else a)
    anodes = tuple(
        replace(a, dtype="f64") if a.dtype in NARROW else a for a in program.graph.anodes
    )
    return replace(made, graph=replace(made.graph, anodes=anodes))


def _on(program: Program, device: str) -> Program:
    """The same graph on another device."""
    moved = _mapped(program, lambda a: Atom("device", device) if a.kind == "device" else a)
    return replace(moved, header=replace(program.header, device=device))


def _mapped(program: Program, change: Callable[[Atom], Atom]) -> Program:
    """The program with each named constant of the framework changed."""

    def of_arg(arg: Arg) -> Arg:
        if isinstance(arg, Atom):
            return change(arg)
        return tuple(map(of_arg, arg)) if isinstance(arg, tuple) else arg

    def of_call(call: Call) -> Call:
        kwargs = tuple((key, of_arg(arg)) for key, arg in call.kwargs)
        return replace(call, args=tuple(map(of_arg, call.args)), kwargs=kwargs)

    return replace(program, graph=with_calls(program.graph, of_call))
