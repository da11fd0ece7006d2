"""Recompute and offload together on a chain: Shilova 2021, chapter 4 (POFO), Theorem 12.

Assumptions of the thesis: schedules are persistent; only what was saved before the loss is
moved; copies out end before the loss and copies back start after it; a tensor comes back once;
bytes are given back while the copy runs (`place` knows better). With several options for each
stage, ours: F^all is any of them, and what can be moved in front of a stage is the saved set of
the stage before it, whichever option that took. Rates are d2h for the way out, h2d for the way
back.

Two tables, in memory slots, times in ns:

    C[s][t][A, D]      least time for the backward of stages t..s with recompute, A held, while D
                       still has to come back when it ends (D shrinks as time passes)
    OC[s][x][A, F, B]  least time from the forward of stage s to the end of its backward, with A
                       held by stages before, F still to leave, B still to come; x is what stands in
                       front of s: the output of stage s - 1 (0), or its saved set with option x - 1

`e_F`, `e_B` are the times that a computation waits for room. Where M slots are not enough for what
a computation needs beside A, F (or B) and the input I, the excess over M has to move first.

Two stages and the loss, all saved sets 3 slots, all times 10 ns, 1 slot in 10 ns each way: with 5
slots the set of the first stage leaves while the second runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...chains.choices import ChainStep, Choice, Save, Split, Thresholds
from ...chains.recurrences.persistent import DeadlinePassed
from ...chains.stages import Stage

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Slots per nanosecond, out and back."""

    out: float
    back: float


@dataclass(frozen=True, slots=True)
class _Case:
    """A first choice with its total time; `then` are the indices of the table that follows."""

    choice: Choice
    moved: bool
    time_ns: Floats
    held: Ints
    out: Ints
    back: Ints


class JointTable:
    """The two tables of a chain for M = `top` slots of `slot` bytes. O(L^3 top^2 + L^2 top^3)
    for L stages. Raises DeadlinePassed past the deadline.

    Tables have one index more than M, which is infinite. A smaller M is the same with so much more
    held from the start. Indices are broadcast: what depends on two of three is worked out once.
    """

    def __init__(
        self, stages: Sequence[Stage], slot: int, top: int, link: LinkRates, deadline: float
    ) -> None:
        self.stages = stages
        self.thresholds = Thresholds(stages)
        self.slot, self.top, self.link = slot, top, link
        self.last = len(stages) - 1
        self.deadline = deadline
        self.inner: list[list[Floats]] = [[] for _ in stages]
        self._fill_inner()
        self.outer: list[list[Floats]] = []
        self._fill_outer()

    def time_ns(self, top: int) -> float:
        """The least time with `top` slots; infinite where there is no schedule."""
        return float(self.outer[0][0][self.top - top, 0, 0])

    def slots(self, size: int) -> int:
        return -(-size // self.slot)

    # -- the backward table

    def _fill_inner(self) -> None:
        held, moving = np.ogrid[: self.top + 1, : self.top + 1]
        for t in range(self.last):
            for s in range(t, -1, -1):
                if monotonic() > self.deadline:
                    raise DeadlinePassed
                best: Floats = np.full((self.top + 2,) * 2, np.inf)
                own = best[:-1, :-1]
                for case in self._inner_cases(s, t, held, moving):
                    np.minimum(own, case.time_ns, out=own)
                self.inner[s].insert(t - s, best)

    def _wait(self, need: int, held: Ints, moving: Any, rate: float) -> Floats:
        """Time until the excess over M has moved; infinite where the rest alone is too much."""
        waiting: Floats = np.maximum(0.0, (self.slots(need) - self.top + held + moving) / rate)
        return np.where(self.slots(need) + held > self.top, np.inf, waiting)

    def _less(self, moving: Ints, time_ns: Floats, rate: float) -> Ints:
        """Slots that are left to move after so long, rounded up."""
        left: Floats = np.maximum(0.0, moving - np.minimum(time_ns, 1e18) * rate)
        slots: Ints = np.ceil(left - 1e-9).astype(np.intp)
        return slots

    def _at(self, table: Floats, *index: Ints) -> Floats:
        """The entries, infinite where an index is above the top."""
        entries: Floats = table[tuple(np.minimum(part, self.top + 1) for part in index)]
        return entries

    def _inner_cases(self, s: int, t: int, held: Ints, moving: Ints) -> Iterator[_Case]:
        stage, rate = self.stages[s], self.link.back
        other = (
            self.stages[t].held_again + self.thresholds.tokens[t + 1] - self.thresholds.tokens[s]
        )
        none: Ints = np.zeros(1, dtype=np.intp)
        for o, option in enumerate(stage.options):
            back = option.backward
            if s == t:
                need = other + option.last.peak_bytes
                first = self._wait(need, held, moving - back.time_ns * rate, rate)
                waiting = np.maximum(first, self._wait(back.peak_bytes, held, moving, rate))
                total = option.last.time_ns + back.time_ns + waiting
                yield _Case(Save(o), False, total, held, none, moving)
                continue
            late = self._wait(back.peak_bytes, held, moving, rate)
            after = self._less(moving, back.time_ns + late, rate)
            inner_held = held + self.slots(option.hold_bytes)
            inner = self._at(self.inner[s + 1][t - s - 1], inner_held, after)
            rest = self._less(after, inner, rate)
            early = self._wait(other + option.again.peak_bytes, held, rest, rate)
            total = option.again.time_ns + back.time_ns + inner + late + early
            yield _Case(Save(o), False, total, inner_held, none, after)
        times = self.thresholds.skim_times(t)
        if s == t:
            return
        skim = self.thresholds.skim_needs(t)[s]
        for k in range(s + 1, t + 1):
            left = self._at(self.inner[s][k - 1 - s], held, moving)
            after = self._less(moving, left, rate)
            right_held = held + self.slots(self.thresholds.split_bytes(s, k))
            right = self._at(self.inner[k][t - k], right_held, after)
            rest = self._less(after, right, rate)
            early = self._wait(skim, held, rest, rate)
            total = times[k] - times[s] + left + right + early
            yield _Case(Split(k), False, total, right_held, none, after)

    # -- the forward table

    def input_bytes(self, s: int, x: int) -> int:
        """The states in front of stage s."""
        if s == 0:
            return 0
        before = self.stages[s - 1]
        return before.options[x - 1].hold_bytes if x else before.cross_bytes

    def _fill_outer(self) -> None:
        held, out, back = np.ogrid[: self.top + 1, : self.top + 1, : self.top + 1]
        self.outer = [[] for _ in self.stages]
        for s in range(self.last, -1, -1):
            for x in range(1 + (len(self.stages[s - 1].options) if s else 0)):
                if monotonic() > self.deadline:
                    raise DeadlinePassed
                best: Floats = np.full((self.top + 2,) * 3, np.inf)
                own = best[:-1, :-1, :-1]
                for case in self._outer_cases(s, x, held, out, back):
                    np.minimum(own, case.time_ns, out=own)
                self.outer[s].append(best)

    def _outer_cases(self, s: int, x: int, held: Ints, out: Ints, back: Ints) -> Iterator[_Case]:
        stage = self.stages[s]
        own = self.slots(self.input_bytes(s, x))
        beside = held + own
        for o, option in enumerate(stage.options):
            need = stage.held_first + option.first.peak_bytes
            wait_out = self._wait(need, beside, out, self.link.out)
            wait_back = self._wait(option.backward.peak_bytes, beside, back, self.link.back)
            forward = option.first.time_ns + wait_out
            backward = option.backward.time_ns + wait_back
            for moved in (False, True) if own else (False,):
                turn = self._turn(own, moved, held, out, back, forward, backward)
                if s == self.last:
                    total = forward + backward + turn[1] / self.link.out + turn[2] / self.link.back
                else:
                    total = forward + backward + self._at(self.outer[s + 1][1 + o], *turn)
                yield _Case(Save(o), moved, total, *turn)
        times, needs = self.thresholds.skim_times(self.last), self.thresholds.skim_needs(self.last)
        need = needs[s]
        for k in range(s + 1, self.last + 1):
            tokens = self.slots(self.thresholds.tokens[k] - self.thresholds.tokens[s])
            wait_out = self._wait(need, beside, out, self.link.out)
            forward = times[k] - times[s] + wait_out
            inner = self._at(self.inner[s][k - 1 - s], beside + tokens, back)
            for moved in (False, True) if own else (False,):
                turn = self._turn(own, moved, held, out, back, forward, inner)
                turn = (turn[0] + tokens, *turn[1:])
                total = forward + inner + self._at(self.outer[k][0], *turn)
                yield _Case(Split(k), moved, total, *turn)

    def _turn(
        self,
        own: int,
        moved: bool,
        held: Ints,
        out: Ints,
        back: Ints,
        forward: Floats,
        backward: Floats,
    ) -> tuple[Ints, Ints, Ints]:
        """The state behind a choice (table 4.1 of the thesis): the input leaves, or is held."""
        extra = own if moved else 0
        held = held if moved else held + own
        left = self._less(out + extra, forward, self.link.out)
        return held, left, self._less(back, backward, self.link.back) + extra

    # -- from the tables to a schedule

    def schedule(self, top: int) -> tuple[list[ChainStep], set[tuple[int, int]]]:
        """The operations of the best schedule with `top` slots, and (s, x) for every input of a
        stage that is moved. The table has a finite time for them."""
        operations: list[ChainStep] = []
        moved: set[tuple[int, int]] = set()
        behind: list[list[ChainStep]] = []
        s, x, state = 0, 0, (self.top - top, 0, 0)
        while True:
            case = self._best(self._outer_cases(s, x, *(np.array([n]) for n in state)))
            if case.moved:
                moved.add((s, x))
            own = self.slots(self.input_bytes(s, x))
            choice = case.choice
            if isinstance(choice, Save):
                option = self.stages[s].options[choice.option]
                operations.append(ChainStep("save", s, option.first.run))
                behind.append([ChainStep("back", s, option.backward.run)])
                following, x = s + 1, 1 + choice.option
            else:
                k = choice.stage
                operations += [
                    ChainStep("skim", h, self.stages[h].skim_first.run) for h in range(s, k)
                ]
                tokens = self.slots(self.thresholds.tokens[k] - self.thresholds.tokens[s])
                behind.append(self._inner_schedule(s, k - 1, state[0] + own + tokens, state[2]))
                following, x = k, 0
            if s == self.last:
                break
            s, state = following, (case.held.item(), case.out.item(), case.back.item())
        return [*operations, *(step for part in reversed(behind) for step in part)], moved

    def _best(self, cases: Iterator[_Case]) -> _Case:
        return min(cases, key=lambda case: float(case.time_ns.flat[0]))

    def _inner_schedule(self, s: int, t: int, held: int, moving: int) -> list[ChainStep]:
        steps: list[ChainStep] = []
        todo: list[ChainStep | tuple[int, int, int, int]] = [(s, t, held, moving)]
        while todo:
            item = todo.pop()
            if isinstance(item, ChainStep):
                steps.append(item)
                continue
            s, t, held, moving = item
            case = self._best(self._inner_cases(s, t, np.array([held]), np.array([moving])))
            after = case.held.item(), case.back.item()
            choice = case.choice
            if isinstance(choice, Save):
                option = self.stages[s].options[choice.option]
                way = option.last if s == t else option.again
                steps.append(ChainStep("save", s, way.run))
                todo.append(ChainStep("back", s, option.backward.run))
                if s < t:
                    todo.append((s + 1, t, *after))
                continue
            k = choice.stage
            steps += [ChainStep("skim", h, self.stages[h].skim_again.run) for h in range(s, k)]
            todo.append((s, k - 1, held, moving))
            todo.append((k, t, *after))
        return steps
