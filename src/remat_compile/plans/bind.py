"""A plan meets its model again: the same graph, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ..ir.diagnostics import Diagnostic, FBError, Note
from ..ir.expr import Const
from ..verifier.obligations.same_values import instances, same_values
from .compare.layouts import check_layouts, warn_of_layouts
from .fusion.kernels import kernels_here, warn_of_calls

if TYPE_CHECKING:
    from torch import nn

    from ..backends.torch.kernels import Kernels
    from ..capture.lowered import Exported, Lowered
    from ..ir.graph import CNode, View
    from ..ir.program import Program
    from ..ir.schedule import Schedule


def bind(
    program: Program,
    schedule: Schedule,
    exported: Exported,
    kernels: Kernels | None = None,
    *,
    by_calls: bool = False,
    cuda_graph: bool = False,
) -> nn.Module:
    """The drop-in module; FB0710 where the model gives another graph than the plan's.

    Fused cNodes run as `kernels`, or as those that this machine makes (else the warning FB0916);
    with `by_calls` as their calls one after the other, which gives the bits of eager. With
    `cuda_graph` later steps are replayed as CUDA graphs.

    FB0967 where there are none; FB0912 for a plan that copies to the host on a device that cannot.
    The graph is run once against eager before the module is handed out (FB0512).
    """
    from ..backends.torch import build, recorder_for
    from ..capture.trace.parallel import around_replica

    if kernels is None and not by_calls:
        kernels = kernels_here(program)
    with lowered_again(program, exported) as lowered:
        recorder = recorder_for(lowered) if cuda_graph else None
        module = build(under(lowered, program), schedule, kernels, recorder)
    # Outside of the block, in which PyTorch traces and warnings are silenced.
    warn_of_calls(kernels)
    return around_replica(exported, module)


def under(lowered: Lowered, program: Program) -> Lowered:
    """Return `lowered` under a plan's program, whose fused cNodes may make values once more under
    other names."""
    is_fused = any(c.is_fused for c in program.graph.cnodes)
    return lowered.with_program(program, instances(lowered.program, program) if is_fused else {})


@contextmanager
def lowered_again(program: Program, exported: Exported) -> Iterator[Lowered]:
    """Inside the block, the model with its values, lowered as it was for `program`.

    FB0710 where it gives another graph, FB0740 where its tensors lie in memory in another way;
    FB0512, at the end of the block, where that graph does not compute what eager computes.
    """
    from ..capture.torch import ensure_trusted, lower

    with ExitStack() as stack:
        lowered = stack.enter_context(lower(exported))
        different = graph_differences(program, lowered.program)
        if different and (as_eager := exported.with_caches()) is not None:
            stack.close()
            lowered = stack.enter_context(lower(as_eager))
            if not graph_differences(program, lowered.program):
                different = []
        if different:
            message = "the model gives another graph than the one that was planned"
            notes = tuple(Note(line) for line in different)
            hint = "plan the model again"
            raise FBError(Diagnostic("FB0710", message, notes=notes, hint=hint))
        check_layouts(program, lowered.program)
        yield lowered
    ensure_trusted(lowered)
    warn_of_layouts(program, lowered.program)


def graph_differences(planned: Program, captured: Program, limit: int = 5) -> list[str]:
    """Return the differences of two captures of a model, in words; costs and sizes do not count.

    Sizes are left out because measuring corrects them, and so are the ranges of symbols. Calls
    are compared by `repr`, to which `1`, `1.0` and `true` are not equal, and `nan` is.
    """
    if any(c.is_fused for c in planned.graph.cnodes):
        return fused_differences(planned, captured)[:limit]
    lines: list[str] = []
    ours = {c.name: _bare(c) for c in planned.graph.cnodes}
    theirs = {c.name: _bare(c) for c in captured.graph.cnodes}
    for name in dict.fromkeys((*ours, *theirs)):
        own, new = ours.get(name), theirs.get(name)
        if own is None or new is None:
            where = "plan" if new is None else "model"
            lines.append(f"{name} is only in the {where}")
        elif repr(own) != repr(new):
            lines.append(_difference(own, new))
        elif not _same_replay(planned.graph.cnode[name], captured.graph.cnode[name]):
            lines.append(f"the replay form of {name} differs")
    if [*map(_view, planned.graph.views)] != [*map(_view, captured.graph.views)]:
        lines.append("views differ")
    if _dimensions(planned) != _dimensions(captured):
        lines.append("other dimensions are dynamic")
    shapes = [
        {a.name: (a.kind, a.dtype, a.shape) for a in program.graph.anodes}
        for program in (planned, captured)
    ]
    for name in dict.fromkeys((*shapes[0], *shapes[1])):
        mine, other = (anode_of.get(name) for anode_of in shapes)
        if mine is None or other is None:
            lines.append(f"%{name} is only in the {'plan' if other is None else 'model'}")
        elif mine != other:
            lines.append(f"%{name} has another kind, type or shape")
    if replace(planned.binding, grads="fresh") != replace(captured.binding, grads="fresh"):
        lines.append("arguments, parameters or results are bound differently")
    if len(lines) > limit:
        lines[limit:] = [f"and {len(lines) - limit} more differences"]
    return lines


def fused_differences(planned: Program, captured: Program) -> list[str]:
    """The same where the plan has fused cNodes: every value is to be that of the capture."""
    if _dimensions(planned) != _dimensions(captured):
        return ["other dimensions are dynamic"]
    first = instances(captured, planned)
    sizes = {first.get(a.name, a.name): a.size for a in reversed(planned.graph.anodes)}
    anodes = tuple(replace(a, size=sizes.get(a.name, a.size)) for a in captured.graph.anodes)
    grads = planned.binding.grads
    as_planned = replace(
        captured,
        graph=replace(captured.graph, anodes=anodes),
        symbols=planned.symbols,
        target=planned.target,
        binding=replace(captured.binding, grads=grads),
    )
    return [d.message for d in same_values(as_planned, planned)]


def _difference(planned: CNode, captured: CNode) -> str:
    for what in ("call", "writes", "token", "phase", "of"):
        ours, theirs = getattr(planned, what), getattr(captured, what)
        if repr(ours) == repr(theirs):
            continue
        if what == "call" and ours.op != theirs.op:
            return f"{planned.name} is {ours.op} in the plan and {theirs.op} in the model"
        return f"{planned.name}: {'arguments' if what == 'call' else what} differ"
    return f"{planned.name} differs"


def _bare(c: CNode) -> CNode:
    """The cNode without what a cost source fills in, and without its place in the model."""
    return replace(c, workspace=Const(0), time_ns=None, loc=None, replay=None)


def _view(view: View) -> tuple[str, str, str, int | None]:
    return view.name, view.base, repr(view.call), view.index


def _dimensions(program: Program) -> list[tuple[str, int, int]]:
    """Which dimension of which argument each symbol is."""
    return [(s.name, s.argument, s.dim) for s in program.symbols]


def _same_replay(planned: CNode, captured: CNode) -> bool:
    """Return whether both replay alike. Measuring may add a replay form that is the call itself."""
    return _replay(planned) == _replay(captured)


def _replay(c: CNode) -> tuple[tuple[str | None, ...], str]:
    """Return the writes and calls of the second execution."""
    form = c if c.replay is None else c.replay
    return form.writes, repr(form.call)
