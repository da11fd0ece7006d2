"""Brings computations that may be fused next to each other, where that costs no byte.

B1 (pointwise); B2 (product of matrices); B3 (sum of what B1 made)   ->   B1; B3; B2
F1 (pointwise); F2 (product of matrices); F3 (sum of both results)   ->   F2; F1; F3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from time import monotonic

from ..ir.graph import CNode, Graph
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Schedule, Step
from .walk import Peaks, is_within, peaks_of

MOST_TRIES = 500
"""Limit on the moves that are simulated."""


def gathered(
    program: Program,
    schedule: Schedule,
    may_fuse: Callable[[CNode], bool],
    peaks: Peaks | None = None,
    until: float = inf,
) -> Schedule:
    """A schedule of the same steps in which computations stand right after earlier ones that read
    or make what they read, or right before what reads their results, as far as `peaks` hold (of
    the device and of the activations, bytes; left out: those of `schedule`). `schedule` must be
    valid. Each move is simulated; none is tried after `until` (of `time.monotonic`)."""
    fusible = {c.name for c in program.graph.cnodes if c.token is None and may_fuse(c)}
    peaks = peaks or peaks_of(program, schedule)
    steps, tries = list(schedule.steps), 0
    places = range(len(steps))
    for move, index in (*product([_earlier], places), *product([_later], reversed(places))):
        moved = move(program.graph, steps, index, fusible)
        if moved is None or tries == MOST_TRIES or monotonic() > until:
            continue
        tries += 1
        if is_within(peaks, program, moved):
            steps = moved
    return replace(schedule, steps=tuple(freed_early(program.graph, steps)))


def _later(graph: Graph, steps: list[Step], index: int, fusible: set[str]) -> list[Step] | None:
    """The steps with that at `index` right before the first that reads what it makes, and frees
    of what it reads behind it; None where that reader may not be fused, or is next already."""
    step = steps[index]
    if not isinstance(step, Compute) or step.cnode not in fusible:
        return None
    own = graph.cnode[step.cnode]
    reads, results = {*graph.reads(own)}, {*own.results}
    behind: list[Step] = []
    crossed: list[Step] = []
    for place in range(index + 1, len(steps)):
        match steps[place]:
            case Compute(name) as other:
                c = graph.cnode[name]
                if not results.isdisjoint(graph.reads(c)):
                    moves = name in fusible and any(
                        isinstance(s, Compute) and s.cnode not in fusible for s in crossed
                    )
                    after = [*crossed, step, *behind, *steps[place:]]
                    return [*steps[:index], *after] if moves else None
                if c.is_loss or c.is_accumulate or not (reads | results).isdisjoint(c.results):
                    return None
                crossed.append(other)
            case Free(name) as other:
                if name in results:
                    return None
                (behind if name in reads else crossed).append(other)
            case _:
                return None
    return None


def _earlier(graph: Graph, steps: list[Step], index: int, fusible: set[str]) -> list[Step] | None:
    """The steps with that at `index` earlier, after a run of what may be fused too; None where it
    stands there already, or where what lies between is needed before it."""
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
                made = _after_maker(graph, steps, place, reads)
                later = (i for i in range(made, index) if not isinstance(steps[i], Free))
                at = next(later)  # after what is freed there
                return [*steps[:at], step, *steps[at:index], *steps[index + 1 :]]
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


def _after_maker(graph: Graph, steps: list[Step], end: int, reads: set[str]) -> int:
    """The place in the run before `end` after the last that makes any of `reads`, else `end`."""
    for index in range(end, 0, -1):
        match steps[index - 1]:
            case Compute(name):
                if not reads.isdisjoint(graph.cnode[name].results):
                    return index
            case Free():
                pass
            case _:
                break
    return end


def _is_related(
    graph: Graph, steps: list[Step], last: int, reads: set[str], fusible: set[str]
) -> bool:
    """Return whether the run that ends at `last` reads or makes any of `reads`."""
    for step in reversed(steps[: last + 1]):
        if isinstance(step, Free):
            continue
        if not isinstance(step, Compute) or step.cnode not in fusible:
            return False
        c = graph.cnode[step.cnode]
        if not reads.isdisjoint({*graph.reads(c), *c.results}):
            return True
    return False


def freed_early(graph: Graph, steps: Sequence[Step]) -> list[Step]:
    """The steps with each `free` right after the last that touches its aNode."""
    ordered: list[Step] = []
    touched: dict[str, int] = {}
    behind: dict[int, list[Step]] = {}
    for step in steps:
        if isinstance(step, Free):
            behind.setdefault(touched.get(step.anode, len(ordered)), []).append(step)
            continue
        ordered.append(step)
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            names = {*graph.reads(c), *graph.reads(c, 2), *c.results, c.token}
        else:
            names = {step.anode}
        touched |= {name: len(ordered) for name in names if name is not None}
    return [
        step
        for place in range(len(ordered) + 1)
        for step in (*behind.get(place, ()), *ordered[place : place + 1])
    ]
