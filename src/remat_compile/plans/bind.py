"""A plan meets its model again: the same graph, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ..ir.diagnostics import Diagnostic, FBError, Note
from ..ir.rewrites.updates import has_updates
from ..verifier.obligations.same_values import instances
from .compare.graph import graph_differences
from .compare.layouts import check_layouts, warn_of_layouts
from .fusion.kernels import kernels_here, warn_of_calls

if TYPE_CHECKING:
    from torch import nn

    from ..backends.torch.kernels import Kernels
    from ..capture.lowered import Exported, Lowered
    from ..capture.torch.optimizer import OptimizerUpdates
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
    optimizer: OptimizerUpdates | None = None,
) -> nn.Module:
    """The drop-in module; FB0710 where the model gives another graph than the plan's.

    Fused cNodes run as `kernels`, or as those that this machine makes (else the warning FB0916);
    with `by_calls` as their calls one after the other, which gives the bits of eager. With
    `cuda_graph` later steps are replayed as CUDA graphs.

    FB0967 where there are none; FB0912 for a plan that copies to the host on a device that cannot.
    The graph is run once against eager before the module is handed out (FB0512). A plan with
    updates is a whole training step, for which the `optimizer` is needed (FB0547).
    """
    from ..backends.torch import TrainingStep, build, recorder_for
    from ..capture.trace.parallel import around_replica

    if has_updates(program) and optimizer is None:
        message = "the plan updates parameters, and no optimizer is given"
        hint = "pass it, plan.bind(model, args, optimizer=...), or return it from the factory"
        raise FBError(Diagnostic("FB0547", message, hint=hint))
    if kernels is None and not by_calls:
        kernels = kernels_here(program)
    with lowered_again(program, exported, optimizer) as lowered:
        recorder = recorder_for(lowered) if cuda_graph else None
        tied = under(lowered, program)
        if optimizer is not None:
            tied = tied.with_program(program, optimizer.origin)
            optimizer.begin()
        module = build(tied, schedule, kernels, recorder, optimizer)
    # Outside of the block, in which PyTorch traces and warnings are silenced.
    warn_of_calls(kernels)
    if optimizer is not None:
        return TrainingStep(module, optimizer.optimizer)
    return around_replica(exported, module)


def under(lowered: Lowered, program: Program) -> Lowered:
    """Return `lowered` under a plan's program, whose fused cNodes may make values once more under
    other names."""
    is_fused = any(c.is_fused for c in program.graph.cnodes)
    return lowered.with_program(program, instances(lowered.program, program) if is_fused else {})


@contextmanager
def lowered_again(
    program: Program, exported: Exported, optimizer: OptimizerUpdates | None = None
) -> Iterator[Lowered]:
    """Inside the block, the model with its values, lowered as it was for `program`; with an
    `optimizer`, that has the same updates.

    FB0710 where it gives another graph, FB0740 where its tensors lie in memory in another way;
    FB0512, at the end of the block, where that graph does not compute what eager computes.
    """
    from ..capture.torch import ensure_trusted, lower

    with ExitStack() as stack:
        lowered = stack.enter_context(lower(exported))
        captured = lowered.program
        if optimizer is not None:
            captured = optimizer.on(captured, measured=False, as_in=program)
        different = graph_differences(program, captured)
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
