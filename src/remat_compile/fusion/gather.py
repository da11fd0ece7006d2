"""Brings computations that may be fused next to each other, where that costs no byte.

B1 (pointwise); B2 (product of matrices); B3 (sum of what B1 made)   ->   B1; B3; B2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import monotonic

from ..ir.diagnostics import FBError
from ..ir.graph import CNode, Graph
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Schedule, Step
from ..ir.semantics.simulate import simulate

__all__ = ["gathered"]

MOST_TRIES = 500
"""Of moves that are simulated."""


def gathered(
    program: Program,
    schedule: Schedule,
    may_fuse: Callable[[CNode], bool],
    until: float = inf,
) -> Schedule:
    """A schedule of the same steps in which computations stand right after earlier ones that read
    or make what they read, as far as the peaks do not rise. `schedule` must be valid. Each move
    is simulated; none is tried after `until` (of `time.monotonic`)."""
    graph = program.graph
    fusible = {c.name for c in graph.cnodes if c.token is None and may_fuse(c)}
    before = simulate(program, schedule)
    steps = list(schedule.steps)
    tries = 0
    for index in range(len(steps)):
        place = _place(graph, steps, index, fusible)
        if place is None or tries == MOST_TRIES or monotonic() > until:
            continue
        tries += 1
        moved = [*steps[:place], steps[index], *steps[place:index], *steps[index + 1 :]]
        try:
            trace = simulate(program, replace(schedule, steps=tuple(moved)))
        except FBError:
            continue
        device = trace.peak_bytes <= before.peak_bytes
        if device and trace.activation_peak_bytes <= before.activation_peak_bytes:
            steps = moved
    return replace(schedule, steps=tuple(steps))


def _place(graph: Graph, steps: list[Step], index: int, fusible: set[str]) -> int | None:
    """Where the step at `index` may stand earlier, after a run of what may be fused too; None
    where it stands there already, or where what lies between is needed before it."""
    step = steps[index]
    if not isinstance(step, Compute) or step.cnode not in fusible:
        return None
    own = graph.cnode[step.cnode]
    reads, results = {*graph.reads(own)}, {*own.results}
    crossed = False
    for place in range(index, 0, -1):
        match steps[place - 1]:
            case Compute(name) if name in fusible:
                if not crossed or not _is_related(graph, steps, place - 1, reads, fusible):
                    return None
                later = (i for i in range(place, index) if not isinstance(steps[i], Free))
                return next(later)  # after what the run frees
            case Compute(name):
                other = graph.cnode[name]
                if other.is_loss or not (reads | results).isdisjoint(other.results):
                    return None
                if other.is_accumulate or not results.isdisjoint(graph.reads(other)):
                    return None
                crossed = True
            case Free(name):
                if name in results:
                    return None
            case _:
                return None
    return None


def _is_related(
    graph: Graph, steps: list[Step], last: int, reads: set[str], fusible: set[str]
) -> bool:
    """Whether the run that ends at `last` reads or makes any of `reads`."""
    for step in reversed(steps[: last + 1]):
        if isinstance(step, Free):
            continue
        if not isinstance(step, Compute) or step.cnode not in fusible:
            return False
        c = graph.cnode[step.cnode]
        if not reads.isdisjoint({*graph.reads(c), *c.results}):
            return True
    return False
