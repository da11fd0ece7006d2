"""Peaks and liveness of a schedule, and which computations may be fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..ir.diagnostics import FBError
from ..ir.graph import Atom, CNode, Graph, View
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Schedule, Step
from ..ir.semantics.simulate import simulate
from ..operators import effects
from .region import views_to

Peaks = tuple[int, int]
"""Bytes: of the device, and of the activations."""


def peaks_of(program: Program, schedule: Schedule) -> Peaks:
    """Return the peaks of a valid schedule."""
    trace = simulate(program, schedule)
    return trace.peak_bytes, trace.activation_peak_bytes


def is_within(peaks: Peaks, program: Program, steps: Sequence[Step]) -> bool:
    """Return whether the steps are a valid schedule of the program that takes no more."""
    try:
        device, activation = peaks_of(program, Schedule("tried", "", tuple(steps)))
    except FBError:
        return False
    return device <= peaks[0] and activation <= peaks[1]


class Liveness:
    """The aNodes in memory as the steps go by, and how often each cNode has run."""

    def __init__(self, graph: Graph, live: Iterable[str] = ()):
        self.graph = graph
        self.live = set(live)
        self.executions: Counter[str] = Counter()

    def step(self, step: Step) -> None:
        match step:
            case Free(name):
                self.live.discard(name)
            case Compute(name, nosave):
                c = self.graph.cnode[name]
                self.executions[name] += 1
                results = c.results_at(self.executions[name])
                if c.is_accumulate:
                    self.live.discard(self.graph.reads(c)[0])
                self.live.difference_update(results)
                anode = self.graph.anode
                self.live.update(r for r in results if not nosave or anode[r].kind != "phantom")
            case _ if step.copies == "h2d":
                self.live.add(step.anode)


def is_plain(c: CNode, graph: Graph) -> bool:
    """Return whether an execution is nothing but a call of pure operators."""
    known = effects(c.call.op)
    if c.phase not in ("fwd", "bwd") or c.token is not None or c.replay is not None:
        return False
    if known is not None and known.flags:
        return False
    if c.is_accumulate:
        # Inside it is a sum that takes storage of its own. It has the shape of its first term, to
        # which the other could be added in place, and its type where that is the other's.
        a, b = (graph.anode[graph.storage[name]] for name in c.call.refs())
        return a.dtype == b.dtype and not any(map(_casts, views_to(c.call.refs()[1], graph)))
    return bool(c.results) and not any(graph.anode[n].kind == "pending" for n in c.results)


def _casts(view: View) -> bool:
    """Return whether it reads the bytes of its base as another type."""
    values = (*view.call.args, *(value for _, value in view.call.kwargs))
    return any(isinstance(value, Atom) and value.kind == "dtype" for value in values)
