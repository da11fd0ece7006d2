"""The reduced H-ILP: which option each child of a level uses, and which children run again when.

Zhao 2024, section 3.4.2, under one restriction: each backward runs once, the last child's first.
Then an optimal solution of the thesis's program makes what child j saves exactly once: (3.18)
keeps it until B_j, (3.16) allows one at a time, so a second one is impossible before B_j and
useless after it; (3.19) asks for one. All other executions of F_j save nothing (*skim*, which the
thesis leaves out and needs). So the variables Sp, C, D, A, S, P and U of section 3.4 are gone.

Events: F_0 .. F_J-1, L, then for t = J-1 .. 0 the replays R_t,k for k in K_t, and B_t. K_t: t, and
the children that what B_t reads is made from.

    x[j, m]      first execution of F_j in mode m (skim, or saving for option o); sum_m x = 1
    y[t, k, m]   replay of F_k before B_t in mode m; sum_m y <= 1
    z[j, o]      B_j uses option o: x[j, o] + sum_t y[t, j, o]; sum_o z = 1 (no column)
    A            an interface value is alive between two events that touch it

Bytes at an event: what is held in any case, interface values alive before it, what options keep for
backwards to come, and the peak of the mode that runs. At the loss also at most what may be saved.
With corrections (3.34), of which a mode has one for each moment that matters, an input that is dead
at a moment and not needed after the event is taken back there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ...chains.stages import cost_of, needed_at_start
from ...instance import Order
from ...programs.liveness_rows import NO, YES, AliveSum, Definition, LivenessRows
from ...solvers.milp import Milp, Vector, merged
from ..partition.levels import Level
from .prices import ChildPrices, Way

SKIM = -1
"""The mode that saves nothing; others are the numbers of options."""


@dataclass(frozen=True)
class ReplayColumns:
    """R_t,k: the columns of its modes. `last`: k = t, just before its own backward."""

    target: int
    child: int
    last: bool
    column: dict[int, int]


@dataclass(frozen=True, eq=False)
class ReducedModel:
    """Objective times `scale_ns`, plus `fixed_ns`, is the time of the step in ns."""

    milp: Milp
    scale_ns: float
    fixed_ns: int
    fits: bool
    level: Level
    prices: Sequence[ChildPrices]
    first: Sequence[dict[int, int]]
    replays: Sequence[Sequence[ReplayColumns]]
    """For each child t, in the order they run."""
    definitions: Sequence[Definition]

    def order(self, point: Vector) -> Order:
        """The cNodes of the level that a point runs."""
        order: Order = []
        option: dict[int, int] = {}

        def run(ways: ChildPrices, modes: Iterable[tuple[int, int]], j: int, form: str) -> None:
            for mode, column in modes:
                if point[column] > 0.5:
                    if mode == SKIM:
                        skim = ways.skim_first if form == "first" else ways.skim_again
                        order.extend(skim.run)
                    else:
                        option[j] = mode
                        order.extend(getattr(ways.options[mode], form).run)

        prices, last = self.prices, len(self.level) - 1
        for j in range(last):
            if self.first[j]:
                run(prices[j], self.first[j].items(), j, "first")
            else:
                order.extend(prices[j].skim_first.run)
        order += [*self.level.forward_N[last], *self.level.backward_N[last]]
        for t in reversed(range(last)):
            for replay in self.replays[t]:
                form = "last" if replay.last else "again"
                run(prices[replay.child], replay.column.items(), replay.child, form)
            if prices[t].options:
                order.extend(prices[t].options[option.get(t, 0)].back.run)
        return order

    def point(self, options: Sequence[int]) -> Vector:
        """The point at which each child with a backward saves for one option at once, and
        nothing runs again."""
        point = np.zeros(self.milp.columns)
        for j, columns in enumerate(self.first):
            if columns:
                point[columns[options[j]]] = 1.0
        for column, states in self.definitions:
            point[column] = max(
                s.constant + sum(factor * point[other] for other, factor in s.terms) for s in states
            )
        return np.maximum(point, 0.0)


class ReducedProgram(LivenessRows):
    """The program for a peak of at most `limit_bytes`, as the level's instance counts them, with
    at most `saved_bytes` alive when the loss starts. Walks the events backwards."""

    def __init__(
        self,
        level: Level,
        prices: Sequence[ChildPrices],
        limit_bytes: int,
        saved_bytes: int | None = None,
        *,
        correct: bool = False,
    ):
        inst = level.instance
        self.level, self.prices, self.correct = level, prices, correct
        self.saved = None if saved_bytes is None else saved_bytes - inst.base_bytes
        self.last = len(level) - 1
        # What an option keeps stands behind the aNodes.
        kept = [(j, o) for j in range(self.last) for o in range(len(prices[j].options))]
        self.phantom = {key: len(inst.size_A) + i for i, key in enumerate(kept)}
        sizes = [*inst.size_A, *(prices[j].options[o].kept_bytes for j, o in kept)]
        super().__init__(sizes, limit_bytes - inst.base_bytes)
        self.tokens = list(accumulate(p.token_bytes for p in prices))
        self.scale_ns = max(1.0, sum(p.skim_first.time_ns for p in prices) / max(1, self.last))
        self.first: list[dict[int, int]] = [{} for _ in range(self.last)]
        self.replays: list[list[ReplayColumns]] = [[] for _ in range(self.last)]
        self.saves: dict[tuple[int, int], list[int]] = {key: [] for key in kept}
        """The columns whose sum is z[j, o]."""

    def model(self) -> ReducedModel:
        self._columns()
        for t in range(self.last):
            if self.prices[t].options:
                self._backward(t)
                for replay in reversed(self.replays[t]):
                    self._replay(replay)
        self._loss()
        for j in reversed(range(self.last)):
            self._first(j)
        fixed = sum(p.skim_first.time_ns for p in self.prices)
        last = self.level.backward_N[self.last]
        fixed += sum(self.level.instance.time_C[c] for c in last)
        return ReducedModel(
            self.builder.build(),
            self.scale_ns,
            fixed,
            self.fits,
            self.level,
            self.prices,
            self.first,
            self.replays,
            self.definitions,
        )

    def _columns(self) -> None:
        """The modes of every execution, and which exclude each other."""
        column = self.builder.column
        for j in range(self.last):
            ways = self.prices[j]
            if not ways.options:
                continue
            self.first[j][SKIM] = column()
            for o, option in enumerate(ways.options):
                extra = option.time_ns - ways.skim_first.time_ns
                self.first[j][o] = column(extra / self.scale_ns)
                self.saves[j, o].append(self.first[j][o])
            self.builder.row([(c, 1.0) for c in self.first[j].values()], 1.0, 1.0)
        for t in reversed(range(self.last)):
            if self.prices[t].options:
                self.replays[t] = list(self._replays_before(t))
        for j in range(self.last):
            if self.prices[j].options:
                some = [c for o in range(len(self.prices[j].options)) for c in self.saves[j, o]]
                self.builder.row([(c, 1.0) for c in some], 1.0, 1.0)

    def _replays_before(self, t: int) -> Iterator[ReplayColumns]:
        for k in self._needed_for(t):
            modes: dict[int, int] = {}
            ways = self.prices[k]
            if ways.skim_again.run:
                modes[SKIM] = self.builder.column(ways.skim_again.time_ns / self.scale_ns)
            for o, option in enumerate(ways.options if k < t else ()):
                modes[o] = self._saving(k, o, option.again.time_ns + option.back.time_ns)
            yield from self._exclusive(ReplayColumns(t, k, False, modes))
        own = {
            o: self._saving(t, o, option.last.time_ns + option.back.time_ns)
            for o, option in enumerate(self.prices[t].options)
        }
        yield from self._exclusive(ReplayColumns(t, t, True, own))

    def _saving(self, k: int, o: int, time_ns: int) -> int:
        column = self.builder.column(time_ns / self.scale_ns)
        self.saves[k, o].append(column)
        return column

    def _exclusive(self, replay: ReplayColumns) -> Iterator[ReplayColumns]:
        if len(replay.column) > 1:
            self.builder.row([(c, 1.0) for c in replay.column.values()], upper=1.0)
        if replay.column:
            yield replay

    def _needed_for(self, t: int) -> list[int]:
        """The children whose skim may be asked for before B_t, rising: those that what B_t and a
        replay of F_t read is made in, directly or through others."""
        level, ways = self.level, self.prices[t]
        reads = {a for option in ways.options for a in (*option.back.reads, *option.last.reads)}
        stack = [level.maker_A[a] for a in reads if level.maker_A[a] != t]
        needed = set(stack)
        while stack:
            for k in level.before_N[stack.pop()]:
                if k not in needed:
                    needed.add(k)
                    stack.append(k)
        return sorted(needed)

    def _backward(self, t: int) -> None:
        ways = self.prices[t]
        columns = {o: self.saves[t, o] for o in range(len(ways.options))}
        modes = [(option.back, columns[o]) for o, option in enumerate(ways.options)]
        after = self._read(modes, always=True)
        self._bound(ways.held_back + self.tokens[t], modes, after, always=True)
        for o, some in columns.items():
            self.set(self.phantom[t, o], AliveSum.any_of(some))

    def _replay(self, replay: ReplayColumns) -> None:
        t, k = replay.target, replay.child
        ways = self.prices[k]
        modes: list[tuple[Way, list[int]]] = []
        written: dict[int, list[int]] = {}
        for mode, column in replay.column.items():
            if mode == SKIM:
                modes.append((ways.skim_again, [column]))
            else:
                option = ways.options[mode]
                modes.append((option.last if replay.last else option.again, [column]))
                phantom = self.phantom[k, mode]
                left = [term for term in self.get(phantom).terms if term[0] != column]
                self.set(phantom, AliveSum(0, tuple(left)) if left else NO)
            makes = ways.options[mode].wants if replay.last else self.level.cross_N[k]
            for a in makes:
                written.setdefault(a, []).append(column)
        for a, columns in sorted(written.items()):
            self.set(a, self.unless(self.get(a), AliveSum.any_of(columns), alone=False))
        after = self._read(modes, always=False)
        self._bound(self.prices[t].held_again + self.tokens[t], modes, after, always=False)

    def _loss(self) -> None:
        """The loss, and the backward that comes right behind it."""
        level, inst = self.level, self.level.instance
        run = (inst.loss, *level.backward_N[self.last])
        alive = level.grads_N[self.last - 1] if self.last else frozenset[int]()
        kept = alive | {a for a in inst.writes_C[inst.loss] if inst.kept_A[a]}
        cost = cost_of(inst, run, (), kept, again=False)
        for a in sorted(needed_at_start(inst, run, again=False) & level.interface):
            self.set(a, YES)
        held = self.prices[self.last].held_first + self.tokens[self.last]
        self.bound(held + cost.peak_bytes, {}, self.room)
        if self.saved is not None:
            self.bound(held, {}, self.saved)

    def _first(self, j: int) -> None:
        ways = self.prices[j]
        for a in self.level.cross_N[j]:
            self.set(a, NO)
        modes = [(ways.skim_first, [self.first[j][SKIM]])] if self.first[j] else []
        for o, option in enumerate(ways.options):
            self.set(self.phantom[j, o], NO)
            modes.append((option.first, [self.first[j][o]]))
        if not modes:
            modes = [(ways.skim_first, [])]
        reads = frozenset(a for way, _ in modes for a in way.reads)
        modes = [(_reading(way, reads), columns) for way, columns in modes]
        after = self._read(modes, always=True)
        self._bound(ways.held_first + self.tokens[j], modes, after, always=True)

    def _read(
        self, modes: Sequence[tuple[Way, list[int]]], *, always: bool
    ) -> dict[int, tuple[AliveSum, AliveSum]]:
        """Enters what the modes read; for each value its state after and before."""
        reads: dict[int, list[int]] = {}
        number: dict[int, int] = {}
        for way, columns in modes:
            for a in way.reads:
                reads.setdefault(a, []).extend(columns)
                number[a] = number.get(a, 0) + 1
        states: dict[int, tuple[AliveSum, AliveSum]] = {}
        for a in sorted(reads):
            after = self.get(a)
            if always and number[a] == len(modes):
                self.set(a, YES)
            else:
                self.set(a, self.also(after, AliveSum.any_of(reads[a])))
            states[a] = (after, self.get(a))
        return states

    def _bound(
        self,
        held: int,
        modes: Sequence[tuple[Way, list[int]]],
        states: dict[int, tuple[AliveSum, AliveSum]],
        *,
        always: bool,
    ) -> None:
        """A row for each moment that matters; one where there are no corrections."""
        moments = max(1, *(len(way.slack) for way, _ in modes)) if self.correct else 1
        for i in range(moments):
            own, beside = held, dict[int, int]()
            dead: dict[int, list[int]] = {}
            number: dict[int, int] = {}
            for way, columns in modes:
                need = way.peak_bytes
                if self.correct and way.slack:
                    need, gone = way.slack[min(i, len(way.slack) - 1)]
                    for a in gone:
                        dead.setdefault(a, []).extend(columns)
                        number[a] = number.get(a, 0) + 1
                if columns:
                    beside.update((c, beside.get(c, 0) + need) for c in columns)
                else:
                    own += need
            for a, columns in sorted(dead.items()):
                after, before = states[a]
                every = always and number[a] == len(modes)
                own -= self._taken_back(a, after, before, columns, beside, every=every)
            self.bound(own, beside, self.room)

    def _taken_back(
        self,
        a: int,
        after: AliveSum,
        before: AliveSum,
        columns: list[int],
        beside: dict[int, int],
        *,
        every: bool,
    ) -> int:
        """Bytes of `a` where it is dead and nobody needs it after the event: what is certain,
        and in `beside` what columns decide."""
        size = self.size_A[a]
        if not size or after == YES:
            return 0
        if every and before == YES:
            for column, factor in after.terms:
                beside[column] = beside.get(column, 0) + size * factor
            return size * (1 - after.constant)
        credit = self.builder.column(integer=False)
        gap = [(c, float(f)) for c, f in after.terms] + [(c, -float(f)) for c, f in before.terms]
        room = float(before.constant - after.constant)
        self.builder.row(merged([(credit, 1.0), *gap]), upper=room)
        self.builder.row([(credit, 1.0), *((c, -1.0) for c in columns)], upper=0.0)
        beside[credit] = beside.get(credit, 0) - size
        return 0


def _reading(way: Way, reads: frozenset[int]) -> Way:
    """The same, with more values that must be there; they count as needed to the end."""
    if way.reads == reads:
        return way
    more = way.reads
    slack = tuple((need, gone & more) for need, gone in way.slack) or ()
    return Way(way.run, way.time_ns, way.peak_bytes, reads, slack)
