"""Recomputes in the backward, next to its readers, what a kernel there makes for nothing.

A forward value that is read in the backward by computations alone that may be fused need not be
held until then: made again right before the first of them, it is folded into their kernel.

    F1 makes %t; …; L; …; B1 reads %t; free %t
        ->   F1 makes %t; …; free %t; L; …; F1; B1 reads %t; free %t

What is small beside what it is made of is held: the mean of a row takes a loop of its own in a
kernel, and holding it takes a hundredth of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from time import monotonic

from ..ir.graph import CALLER_KINDS, CNode, Graph
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Schedule, Step
from ..ir.semantics.simulate import Sizes
from .gather import freed_early
from .walk import Liveness, is_plain, is_within, peaks_of

MOST_AGAIN = 12
"""Computations that are made again for one value, what it is made of included."""
SMALL = 16
"""A value that takes so many times fewer bytes than what it is made of is not worth a loop."""


def folded(
    program: Program,
    schedule: Schedule,
    may_fuse: Callable[[CNode], bool],
    until: float = inf,
) -> Schedule:
    """A schedule of the same graph that saves less; its peaks are not above those of `schedule`,
    which must be valid. Nothing is tried after `until` (of `time.monotonic`)."""
    graph = program.graph
    fusible = {c.name for c in graph.cnodes if is_plain(c, graph) and may_fuse(c)}
    peaks = peaks_of(program, schedule)
    touching = _touching(graph)
    steps = freed_early(graph, schedule.steps)
    sizes = Sizes.of(program).anode
    for c in reversed([c for c in graph.in_phase("fwd") if c.name in fusible]):
        for name in c.results:
            shorter: list[Step] | None = steps  # lives of `name`, as long as one can be cut
            while shorter is not None and monotonic() <= until:
                steps = shorter
                cuts = _Fold(graph, steps, fusible, sizes, touching).cuts(c, name)
                shorter = next((s for s in cuts if is_within(peaks, program, s)), None)
    return replace(schedule, steps=tuple(steps))


def _touching(graph: Graph) -> dict[str, set[str]]:
    """The cNodes that make or read each aNode."""
    touching: dict[str, set[str]] = {a.name: set() for a in graph.anodes}
    for c in graph.cnodes:
        for name in (*c.results, *graph.reads(c)):
            touching[name].add(c.name)
    return touching


@dataclass(frozen=True)
class _Fold:
    graph: Graph
    steps: Sequence[Step]
    fusible: set[str]
    sizes: Mapping[str, int]
    touching: Mapping[str, Set[str]]

    def cuts(self, c: CNode, name: str) -> Iterator[list[Step]]:
        """The steps with `name` freed before a gap in its use and made again after it: one that
        ends in the backward, and after which it is read by what may be fused alone."""
        if self.graph.anode[name].kind not in ("act", "phantom"):
            return
        runs = [s.cnode if isinstance(s, Compute) else None for s in self.steps]
        loss = runs.index(self.graph.loss.name)
        uses = [*self._uses(name)]
        for last, first in reversed([*pairwise(uses)]):
            if first < loss or isinstance(self.steps[last], Free):
                continue
            if not self._is_gap(last, first) or not self._is_fusible_from(first, uses, c):
                continue
            again: list[Step] = []
            temporary: list[str] = []
            if not self._make(c, self._live_before(first) - {name}, again, temporary):
                continue
            if self._is_small(name, again):
                continue
            again += [Free(made) for made in temporary if made != name]
            between = self.steps[last + 1 : first]
            yield [*self.steps[: last + 1], Free(name), *between, *again, *self.steps[first:]]

    def _is_small(self, name: str, again: Sequence[Step]) -> bool:
        """Return whether what is run `again` for a value reads or makes what is much larger."""
        cnodes = (self.graph.cnode[step.cnode] for step in again if isinstance(step, Compute))
        touched = (n for c in cnodes for n in (*self.graph.reads(c), *c.results))
        return max(self.sizes[n] for n in touched) >= SMALL * self.sizes[name]

    def _is_gap(self, last: int, first: int) -> bool:
        """Return whether anything runs between that may not be fused."""
        between = (step for step in self.steps[last + 1 : first] if isinstance(step, Compute))
        return any(step.cnode not in self.fusible for step in between)

    def _is_fusible_from(self, first: int, uses: Sequence[int], c: CNode) -> bool:
        """Return whether the steps that read this instance from `first` on may be fused."""
        for index in uses[uses.index(first) :]:
            step = self.steps[index]
            if isinstance(step, Free):
                return index != first
            if not isinstance(step, Compute) or step.cnode not in self.fusible - {c.name}:
                return False
        return True

    def _uses(self, name: str) -> Iterator[int]:
        """The steps that make, read, free or move it."""
        own = self.touching[name]
        for index, step in enumerate(self.steps):
            if isinstance(step, Compute):
                if step.cnode in own:
                    yield index
            elif step.anode == name:
                yield index

    def _live_before(self, end: int) -> set[str]:
        caller = (a.name for a in self.graph.anodes if a.kind in CALLER_KINDS)
        now = Liveness(self.graph, caller)
        for step in self.steps[:end]:
            now.step(step)
        return now.live

    def _make(self, c: CNode, live: set[str], again: list[Step], temporary: list[str]) -> bool:
        """Return whether `c` can be run with what is `live`, after what else is run `again` for
        it."""
        for read in self.graph.reads(c):
            if read in live or read in temporary:
                continue
            writer = self.graph.writer.get(read)
            if writer is None or writer.name not in self.fusible or writer.phase != "fwd":
                return False
            if not self._make(writer, live, again, temporary):
                return False
        again.append(Compute(c.name))
        temporary += [r for r in c.results if r not in live and r not in temporary]
        return len(again) <= MOST_AGAIN
