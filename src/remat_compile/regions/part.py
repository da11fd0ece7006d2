"""A region at one kind of call: its bytes, its plan, its report."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx

from ..ir.diagnostics import Diagnostic, FBError, render
from ..ir.semantics.sizes import Sizes
from .report import RegionReport, Status
from .share import Needs, Used

if TYPE_CHECKING:
    from ..backends.torch import CompiledStep
    from ..capture.lowered import Lowered
    from ..capture.torch import RegionCall
    from ..ir.program import Program
    from ..ir.semantics.simulate import Trace
    from ..plans.budget import Baseline

NO_GRADIENT = "no result has a gradient"


@dataclass(eq=False)
class Part:
    """A region at one kind of call: its costed graph, and the step that is planned for it.

    `share_bytes` is what its activations may take, None where it is alone and has the budget of
    the user as it was written. `failed` is why there is no plan for that, and `is_provisional` says
    that the share was found while the step was under way, in which others may still come. `owned`
    are the inputs that are parameters and buffers: place, bytes, and bytes of the gradient.
    """

    name: str
    graph: fx.GraphModule | None = None
    sources: Sequence[str] = ()
    program: Program | None = None
    needs: Needs | None = None
    baseline: Baseline | None = None
    step: CompiledStep | None = None
    used: Used | None = None
    device_bytes: int = 0
    share_bytes: int | None = None
    is_provisional: bool = True
    failed: tuple[Diagnostic, ...] = ()
    order: tuple[int, ...] = ()
    constants: tuple[Any, ...] = ()
    returned: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    outside: tuple[int, ...] = ()
    owned: tuple[tuple[int, int, int], ...] = ()
    is_eager: bool = False
    is_aliasing_reported: bool = False
    why: str = ""
    most_in_flight: int = 0

    @classmethod
    def eager(cls, name: str, why: str) -> Part:
        """One that is not planned."""
        return cls(name, is_eager=True, why=why)


def fall_back(part: Part, why: tuple[Diagnostic, ...], *, may: bool) -> None:
    """Runs it in eager from now on, with one warning; raises where it may not."""
    if not may:
        raise FBError(why)
    part.is_eager, part.step, part.used, part.failed = True, None, None, why
    first = why[0]
    part.why = f"{first.code}: {first.message}"
    hint = 'options={"fallback": False} refuses it'
    if first.hint:
        hint = f"{first.hint}; {hint}"
    warn(f"{part.name} runs in eager, and its memory is not bounded: {part.why}", hint)


def warn(message: str, hint: str) -> None:
    diagnostic = Diagnostic("FB0957", message, hint=hint)
    warnings.warn(render(diagnostic, level="warning"), stacklevel=3)


Storages = tuple[int, ...]
"""Where the parameters and buffers of a call are, as in `Part.owned`."""


Calls = Mapping[Part, int]
"""Number of calls of each that are in flight together."""


def contains(more: Calls, calls: Calls) -> bool:
    return all(more.get(part, 0) >= count for part, count in calls.items())


def planned(calls: Calls) -> dict[Part, int]:
    return {part: count for part, count in calls.items() if not part.is_eager}


def writes_to_argument(part: Part, inputs: Sequence[Any]) -> bool:
    """Return whether what the region writes to shares its memory with an argument of this call:
    eager sees what is written at once, a planned step when its forward ends."""
    if not part.written:
        return False
    places = {_storage(inputs[at]) for at in part.written}
    return any(_storage(inputs[at]) in places for at in part.outside)


def needs_of(program: Program, lowered: Lowered, baseline: Baseline) -> Needs:
    values = lowered.values()
    sizes = Sizes.of(program).anode
    held: dict[Hashable, int] = {}
    inputs = 0
    for a in program.graph.anodes:
        if a.kind in ("param", "buffer"):
            held[_storage(values[a.name])] = sizes[a.name]
        elif a.kind in ("input", "const"):
            inputs += sizes[a.name]
    grads: dict[Hashable, int] = {
        _storage(values[p.name]): sizes[p.name]
        for p in program.binding.params
        if p.grad is not None
    }
    return Needs(
        baseline.activation_floor_bytes,
        baseline.activation_peak_bytes,
        inputs,
        held,
        grads,
        call_grads_bytes=sum(grads.values()),
        is_repeated=False,
    )


def owned_by(
    needs: Needs, call: RegionCall, inputs: Sequence[Any]
) -> tuple[tuple[int, int, int], ...]:
    at = {place: _storage(inputs[place]) for place in call.owned()}
    return tuple(
        (p, needs.held[key], needs.grads.get(key, 0)) for p, key in at.items() if key in needs.held
    )


def storages_of(part: Part, inputs: Sequence[Any]) -> Storages:
    return tuple(_storage(inputs[place]) for place, _, _ in part.owned)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def saved_bytes(trace: Trace) -> int:
    """Activations that are held between forward and backward."""
    at = trace.loss_step
    others = trace.during[at] - trace.during_activation[at]
    return max(0, trace.after[at - 1] - others) if at else 0


def report_of(part: Part) -> RegionReport:
    if part.is_eager or part.used is None:
        status: Status = "no gradient" if part.why == NO_GRADIENT else "eager"
        return RegionReport(part.name, status, why="" if part.why == NO_GRADIENT else part.why)
    used, calls = part.used, part.most_in_flight
    return RegionReport(part.name, "planned", used.peak_bytes, used.saved_bytes, calls)
