"""Liveness along a schedule, and the aNodes that a run has touched, step by step; and which
computations may be in one."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.diagnostics import FBError
from ..ir.graph import Atom, CNode, Graph, View
from ..ir.program import Program
from ..ir.schedule import Compute, Schedule, Step
from ..ir.semantics.simulate import simulate
from ..operators import effects
from .region import RunMember, views_to

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


class RunWalk:
    """Liveness, and what the run at hand has ended, as the steps go by."""

    def __init__(self, graph: Graph, steps: Sequence[Step]):
        self.graph = graph
        self.executions: dict[str, int] = {}
        self.live: set[str] = set()
        self.touched: set[str] = set()

    def begin(self) -> None:
        self.touched.clear()

    def free(self, name: str) -> None:
        self.live.discard(name)
        self.touched.add(name)

    def member(self, index: int, step: Compute) -> RunMember:
        c = self.graph.cnode[step.cnode]
        return RunMember(c, self.executions.get(c.name, 0) + 1, index)

    def meets(self, member: RunMember | None) -> bool:
        """Return whether it makes what is alive, or what the run has made or freed before."""
        made = () if member is None else member.cnode.results
        return any(name in self.live or name in self.touched for name in made)

    def step(self, step: Step, member: RunMember | None) -> None:
        if member is None or not isinstance(step, Compute):
            if not isinstance(step, Compute) and step.copies == "h2d":
                self.live.add(step.anode)
            return
        c, n = member.cnode, member.execution
        self.executions[c.name] = n
        results = c.results_at(n)
        self.touched.update(results)
        if c.is_accumulate:
            self.live.discard(self.graph.reads(c)[0])
            self.touched.add(self.graph.reads(c)[0])
        kept = [r for r in results if not step.nosave or self.graph.anode[r].kind != "phantom"]
        self.live.difference_update(results)
        self.live.update(kept)


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


def in_common(members: Sequence[RunMember], graph: Graph) -> list[int]:
    """Return for each place how many aNodes both sides read or make."""
    touched = [{*m.cnode.results, *graph.reads(m.cnode)} for m in members]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, names in enumerate(touched):
        for name in names:
            first.setdefault(name, place)
            last[name] = place
    return [sum(first[n] < at <= last[n] for n in first) for at in range(len(members))]
