"""The H-ILP of Zhao 2024, section 3.4, as printed but for its errors: an oracle for small levels.

It shares nothing with `planners/hierarchy/reduced/rows.py` but costs of runs (`ChildPrices`).
Nodes are F_0 .. F_J-1, the loss, B_J-1 .. B_0; stage t computes node t for the first time.

What differs from print, besides indices (3.19, 3.25, 3.26, 3.28, 3.29):

* a forward has a mode that saves nothing (SKIM), or it could not run while its phantom lives;
* what a mode reads and makes is its own: (3.13) to (3.14) and (3.22) to (3.26) sum over the modes
  that read or make a value, for any node;
* the loss, and children without backward, have rows of bytes too;
* costs of a mode hang on the stage: first, again, or last before its own backward, whose peak
  counts what it makes (so in (3.33) a value made anew is not in U);
* a backward runs once. Gradients are then constants, and each value left has one maker: S is P.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_compile.planners.chains.stages import cost_of, needed_at_start
from remat_compile.planners.hierarchy.partition.levels import Level
from remat_compile.planners.hierarchy.reduced.prices import ChildPrices, Way
from remat_compile.planners.solvers.milp import Milp, MilpBuilder, Terms, merged

SKIM = -1
MOST_NODES = 25

Allowed = Collection[tuple[int, int, int]]
"""(child t, child k, mode): runs of F_k before B_t."""


@dataclass(frozen=True)
class Mode:
    way: Way
    makes: frozenset[int]
    column: int


class ThesisProgram:
    """`milp` for a peak of at most `limit_bytes`; its objective is the time of the step in ns, less
    `fixed_ns`. `allowed` (None: all) are the runs that there may be besides first ones; forwards
    run again before the loss only where all may."""

    def __init__(
        self,
        level: Level,
        prices: Sequence[ChildPrices],
        limit_bytes: int,
        saved_bytes: int | None = None,
        allowed: Allowed | None = None,
    ):
        self.level, self.prices, self.allowed = level, prices, allowed
        inst = level.instance
        self.room = limit_bytes - inst.base_bytes
        self.saved = None if saved_bytes is None else saved_bytes - inst.base_bytes
        self.loss = len(level) - 1
        back = [j for j in reversed(range(self.loss)) if prices[j].options]
        self.nodes = [*range(self.loss + 1), *back]
        """The child of each node; those behind the loss are backwards."""
        assert len(self.nodes) <= MOST_NODES
        self.stages = range(len(self.nodes))
        self.tokens: list[int] = list(accumulate(p.token_bytes for p in prices))
        self.values = sorted(level.interface)
        self.build = MilpBuilder()
        self.modes: dict[tuple[int, int], dict[int, Mode]] = {}
        for t in self.stages:
            for k in range(t + 1):
                self.modes[t, k] = dict(self._modes(t, k))
        self._columns()
        for t in self.stages:
            self._choices(t)
            self._dependencies(t)
            self._phantoms(t)
            self._liveness(t)
            self._bytes(t)
        last = level.backward_N[self.loss]
        self.fixed_ns = prices[self.loss].skim_first.time_ns + sum(inst.time_C[c] for c in last)
        self.milp: Milp = self.build.build()

    def _modes(self, t: int, k: int) -> Iterator[tuple[int, Mode]]:
        """How node k may run in stage t."""
        j, ways = self.nodes[k], self.prices[self.nodes[k]]
        if k > self.loss:
            if k == t:
                for o, option in enumerate(ways.options):
                    yield o, self._mode(option.back, frozenset())
            return
        if k == self.loss:
            if k == t:
                yield SKIM, self._mode(self._loss_way(), frozenset())
            return
        makes = self.level.cross_N[j]
        if k == t:
            first = [ways.skim_first, *(option.first for option in ways.options)]
            reads = frozenset(a for way in first for a in way.reads)
            for o, way in enumerate(first, SKIM):
                yield o, self._mode(Way(way.run, way.time_ns, way.peak_bytes, reads), makes)
            return
        target = self.nodes[t] if t > self.loss else None
        if self._may(target, j, SKIM) and ways.skim_again.run:
            yield SKIM, self._mode(ways.skim_again, makes)
        if target is None or j <= target:
            for o, option in enumerate(ways.options):
                if self._may(target, j, o):
                    last = j == target
                    way = option.last if last else option.again
                    yield o, self._mode(way, option.wants if last else makes)

    def _mode(self, way: Way, makes: frozenset[int]) -> Mode:
        return Mode(way, makes, self.build.column(float(way.time_ns)))

    def _may(self, target: int | None, j: int, mode: int) -> bool:
        if self.allowed is None:
            return True
        return target is not None and (target, j, mode) in self.allowed

    def _loss_way(self) -> Way:
        level, inst = self.level, self.level.instance
        run = (inst.loss, *level.backward_N[self.loss])
        alive = level.grads_N[self.loss - 1] if self.loss else frozenset[int]()
        kept = alive | {a for a in inst.writes_C[inst.loss] if inst.kept_A[a]}
        reads = frozenset(needed_at_start(inst, run, again=False) & level.interface)
        return Way(run, 0, cost_of(inst, run, (), kept, again=False).peak_bytes, reads)

    def _columns(self) -> None:
        """P and Sp of each stage, with (3.5), (3.7), and nothing left in the end; C and D."""
        column, end = self.build.column, len(self.nodes)
        maker = self.level.maker_A
        self.P = {
            (t, d): column(upper=float(maker[d] < t < end))
            for t in range(end + 1)
            for d in self.values
        }
        self.Sp = {
            (t, j, o): column(upper=float(j < t < end))
            for t in range(end + 1)
            for j in range(self.loss)
            for o in range(len(self.prices[j].options))
        }
        self.C: dict[tuple[int, int, int], int] = {}
        self.D: dict[tuple[int, int, int], int] = {}
        for (t, k), modes in self.modes.items():
            for d in sorted({d for m in modes.values() for d in (*m.makes, *m.way.reads)}):
                self.D[t, k, d] = column()
                if maker[d] == k:
                    self.C[t, k, d] = column()

    def _comp(self, t: int, k: int, o: int) -> Terms:
        mode = self.modes[t, k].get(o) if k <= t else None
        return [(mode.column, 1.0)] if mode is not None else []

    def _makes(self, t: int, k: int, d: int) -> Terms:
        return [(m.column, 1.0) for m in self.modes[t, k].values() if d in m.makes]

    def _reads(self, t: int, k: int, d: int) -> Terms:
        return [(m.column, 1.0) for m in self.modes[t, k].values() if d in m.way.reads]

    def _row(self, terms: Terms, lower: float = -float("inf"), upper: float = float("inf")) -> None:
        self.build.row(merged(terms), lower, upper)

    def _choices(self, t: int) -> None:
        """(3.9), (3.15), (3.16); (3.4) and (3.10) by leaving columns out."""
        for k in range(t + 1):
            some = [(m.column, 1.0) for m in self.modes[t, k].values()]
            if some:
                self._row(some, 1.0 if k == t else 0.0, 1.0)
        for j in range(self.loss):
            some = [(self.Sp[t, j, o], 1.0) for o in range(len(self.prices[j].options))]
            self._row(some, upper=1.0)

    def _dependencies(self, t: int) -> None:
        """(3.13), (3.14)."""
        for k in range(t + 1):
            for mode in self.modes[t, k].values():
                for d in mode.way.reads:
                    maker = self.level.maker_A[d]
                    made = minus(self._makes(t, maker, d)) if maker < k else []
                    self._row([(mode.column, 1.0), *made, (self.P[t, d], -1.0)], upper=0.0)

    def _phantoms(self, t: int) -> None:
        """(3.17) to (3.19)."""
        for j in range(self.loss):
            for o in range(len(self.prices[j].options)):
                made = self._comp(t, j, o)
                used = self._comp(t, t, o) if t > self.loss and self.nodes[t] == j else []
                now, then = [(self.Sp[t, j, o], 1.0)], [(self.Sp[t + 1, j, o], 1.0)]
                self._row([*then, *minus(now), *minus(made)], upper=0.0)
                self._row([*then, *minus(now), *minus(made), *used], lower=0.0)
                if used:
                    self._row([*used, *minus(now), *minus(made)], upper=0.0)

    def _related(self, t: int, d: int) -> list[int]:
        return [k for k in range(t + 1) if (t, k, d) in self.D]

    def _alive(self, t: int, d: int, before: int) -> Terms:
        """(3.20): A of the last node below `before`."""
        terms = [(self.P[t, d], 1.0)]
        for k in self._related(t, d):
            if k < before:
                terms += [(self.C[t, k, d], 1.0)] if (t, k, d) in self.C else []
                terms.append((self.D[t, k, d], -1.0))
        return terms

    def _liveness(self, t: int) -> None:
        """(3.21) to (3.26)."""
        for d in self.values:
            if self.level.maker_A[d] > t:
                continue
            related = self._related(t, d)
            then = self.P[t + 1, d]
            for i, k in enumerate(related):
                made, gone = self._makes(t, k, d), self.D[t, k, d]
                alive = self._alive(t, d, k + 1)
                self._row(alive, 0.0, 1.0)
                if made:
                    self._row([*alive, *minus(made), (gone, 1.0)], lower=0.0)
                    self._row([(self.C[t, k, d], 1.0), *minus(made)], upper=0.0)
                run = [*made, *self._reads(t, k, d)]
                readers = [r for r in related[i + 1 :] if self._reads(t, r, d)]
                later = [term for r in readers for term in self._reads(t, r, d)]
                self._row([(gone, 1.0), *minus(run), (then, 1.0), *later], lower=0.0)
                h = 2.0 + len(readers)
                self._row([(gone, -h), *run, (then, -1.0), *minus(later)], lower=1.0 - h)
            self._row([(then, 1.0), *minus(self._alive(t, d, t + 1))], 0.0, 0.0)

    def _held(self, t: int, k: int) -> int:
        """Bytes in any case, at node k of stage t."""
        child = self.nodes[t]
        prices = self.prices[child]
        held: int = prices.held_back if k == t else prices.held_again
        if t <= self.loss:
            held = prices.held_first
        held += self.tokens[child]
        return held

    def _bytes(self, t: int) -> None:
        """(3.27) to (3.33): what is alive before node k, and its peak."""
        size = self.level.instance.size_A
        for k in range(t + 1):
            modes = self.modes[t, k]
            if not modes:
                continue
            terms: Terms = []
            for d in self.values:
                terms += [(c, f * size[d]) for c, f in self._alive(t, d, k)]
            for j in range(self.loss):
                if k > self.loss and self.nodes[k] == j:
                    continue  # its own phantom is in its peak
                for o, option in enumerate(self.prices[j].options):
                    kept = float(option.kept_bytes)
                    terms.append((self.Sp[t, j, o], kept))
                    terms += [(c, f * kept) for c, f in self._comp(t, j, o) if j < k]
            held = self._held(t, k)
            peaks = [(m.column, float(m.way.peak_bytes)) for m in modes.values()]
            self._row([*terms, *peaks], upper=float(self.room - held))
            if k == t == self.loss and self.saved is not None:
                self._row(terms, upper=float(self.saved - held))


def minus(terms: Terms) -> Terms:
    return [(column, -factor) for column, factor in terms]
