"""Optimal schedules of a chain with floating checkpoints: Shilova 2021, Theorem 5.

A saved value may be given up for a later one before its own backward; what an option
saved may not (lemma 4). The recurrence is the thesis's, evaluated in parts: with memory
counted with the input of stage s, the inner minima no longer depend on s, and

    U(h, t, t', m)  run on from stage h, or save its input and do the backward of t..t'
    W(r, t, l, m)   keep the input of r, do t..t' from a checkpoint behind it, then t' - 1..l
    C(s, t, l, m)   move to some r >= s and do W there, or save with an option (s = l)

take O(N^4 slots) in place of O(N^6 slots). Where the input moves to r, what stays in memory
while stages r + 1... run is the input of r; the thresholds of equation (2.6) leave it out.

Figure 2.3 of the thesis for n = 6, memory 15: F_1 takes 4, F_2 takes 2, all else nothing. A
persistent schedule keeps a_1 and runs F_2 six times, or keeps the input only and runs F_1 three
times and F_2 twice: 4 + 6 * 2 = 3 * 4 + 2 * 2 = 16. Theorem 5 gives a_1 up for a_2 on the way
back. (The thesis says 2 n = 12; but F^all cannot give up its input, so F_2 runs once more.)

    >>> Persistent(figure_2_3, 1, 15).time_ns(15), Floating(figure_2_3, 1, 15).time_ns(15)
    (16.0, 14.0)

Index legend: `table[s][l - s, t - s, m]`, for s <= l <= t; infinite where l > t.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..choices import ChainStep, Thresholds
from ..stages import Stage
from .persistent import DeadlinePassed

Floats = NDArray[np.floating[Any]]


def entries(stages: int, top: int) -> int:
    """The number of entries in the table of a chain."""
    return sum((stages - s) ** 2 for s in range(stages)) * (top + 1)


class Floating:
    """The table of one chain, for every number of slots up to `top`, without generator
    states (see `reserve_tokens`). Raises DeadlinePassed past the deadline."""

    def __init__(self, stages: Sequence[Stage], slot: int, top: int, deadline: float = inf):
        self.thresholds, self.stages = Thresholds(stages), stages
        self.slot, self.top = slot, top
        n = len(stages)
        self.kind = np.float32 if entries(n, top) > 10_000_000 else np.float64
        self.table: list[Floats] = [
            np.full((n - s, n - s, top + 1), np.inf, self.kind) for s in range(n)
        ]
        self.input = [0, *(self.slots(s.cross_bytes) for s in stages)]
        for t in range(n):
            self._fill(t, deadline)

    def slots(self, size: int) -> int:
        return -(-size // self.slot)

    def time_ns(self, slots: int) -> float:
        return float(self.table[0][0, -1, slots]) if slots >= 0 else inf

    def _needs(self, h: int, t: int) -> tuple[int, int]:
        """Slots to run stage h without saving on the way to the backward of t: with its
        input staying (counted by others), and with its input given up."""
        stage = self.stages[h]
        if t == self.thresholds.last:
            held, skim = stage.held_first, stage.skim_first
        else:
            held, skim = self.stages[t].held_again, stage.skim_again
        return self.slots(held + skim.peak_bytes), self.slots(held + skim.dropping_bytes)

    def _fill(self, t: int, deadline: float) -> None:
        n, width = len(self.table), self.top + 1
        prefix = self.thresholds.skim_times(t)
        # on[t'] is U(s + 1, t, t', .), to_t[l] the best from s on for C(s, t, l, .).
        on = np.full((n + 1, width), np.inf, self.kind)
        moved = np.full((n + 1, width), np.inf, self.kind)
        for s in range(t, -1, -1):
            if monotonic() > deadline:
                raise DeadlinePassed
            keeping, dropping = self._needs(s, t)
            if s < t:
                moved[:, : min(dropping, width)] = np.inf
                here = self._from(s, t, on, keeping)
                np.minimum(moved[s:t], here, out=moved[s:t])
                self.table[s][: t - s, t - s] = moved[s:t] - self.kind(prefix[s])
            self._save_into(s, t)
            # U(s, ...): save the input of s now, or run on where its input may go.
            on[:, : min(dropping, width)] = np.inf
            saved = self.table[s][: t - s + 1, t - s] + self.kind(prefix[s])
            np.minimum(on[s : t + 1], saved, out=on[s : t + 1])

    def _from(self, r: int, t: int, on: Floats, keeping: int) -> Floats:
        """W(r, t, l, .) for l = r .. t - 1."""
        width = self.top + 1
        behind = np.full((t - r, width), np.inf, self.kind)  # rows t' = r + 1 .. t
        low = keeping + self.input[r]
        if low < width:
            behind[:, low:] = on[r + 1 : t + 1, keeping : width - self.input[r]]
        times = np.empty((t - r, width), self.kind)
        for end in range(r, t):
            rest = self.table[r][end - r, end - r : t - r]  # C(r, t' - 1, l, .)
            times[end - r] = (behind[end - r :] + rest).min(axis=0)
        return times

    def _save_into(self, s: int, t: int) -> None:
        """Equation (2.8): stage s = l saves, with each of its options."""
        best = self.table[s][0, t - s]
        for _, low, inner, time_ns in self._saves(s, t):
            if low <= self.top:
                rest: Any = 0.0
                if s < t:
                    rest = self.table[s + 1][0, t - s - 1, low - inner : self.top + 1 - inner]
                np.minimum(best[low:], rest + self.kind(time_ns), out=best[low:])

    def _saves(self, s: int, t: int) -> list[tuple[int, int, int, int]]:
        """For each option: its number, the slots it needs, what is taken from the memory of
        the stages behind it, and its time."""
        saves = []
        for o, (need, hold_bytes, time_ns) in enumerate(self.thresholds.saves(s, t)):
            low = self.slots(need) + self.input[s]
            inner = 0
            if s < t:
                held = max(self.slots(hold_bytes), self.input[s + 1])
                inner = self.input[s] + held - self.input[s + 1]
                low = max(low, self.input[s] + held)
            saves.append((o, low, inner, time_ns))
        return saves

    def operations(self, memory: int) -> list[ChainStep]:
        """The schedule of a memory: algorithm 2 of the thesis."""
        n = len(self.stages)
        steps: list[ChainStep] = []
        todo: list[ChainStep | tuple[int, int, int, int]] = [(0, n - 1, 0, memory)]
        while todo:
            item = todo.pop()
            if isinstance(item, ChainStep):
                steps.append(item)
            else:
                todo += reversed(self._expand(*item))
        return steps

    def _expand(
        self, s: int, t: int, end: int, m: int
    ) -> list[ChainStep | tuple[int, int, int, int]]:
        """The first steps of C(s, t, end, m), and the problems that are left."""
        target = float(self.table[s][end - s, t - s, m])
        first = t == self.thresholds.last
        if s == end:
            for o, low, inner, time_ns in self._saves(s, t):
                rest = float(self.table[s + 1][0, t - s - 1, m - inner]) if s < t else 0.0
                if low <= m and self._same(time_ns + rest, target):
                    option = self.stages[s].options[o]
                    way = option.first if first else option.last if s == t else option.again
                    inside = [(s + 1, t, s + 1, m - inner)] if s < t else []
                    return [
                        ChainStep("save", s, way.run),
                        *inside,
                        ChainStep("back", s, option.backward.run),
                    ]
        r, k, low_end = self._moves(s, t, end, m, target)
        skims = [self.stages[h] for h in range(s, k)]
        runs = [x.skim_first.run if first else x.skim_again.run for x in skims]
        return [
            *(ChainStep("skim", s + i, run) for i, run in enumerate(runs)),
            (k, t, low_end, m - self.input[r]),
            (r, low_end - 1, end, m),
        ]

    def _moves(self, s: int, t: int, end: int, m: int, target: float) -> tuple[int, int, int]:
        """(r, s' + 1, t') of equation (2.7)."""
        prefix = self.thresholds.skim_times(t)
        best = (inf, s, s, s)
        for r in range(s, end + 1):
            if r > s and self._needs(r - 1, t)[1] > m:
                break
            inside = m - self.input[r]
            if inside < self._needs(r, t)[0]:
                continue
            for k in range(r + 1, t + 1):
                if k > r + 1 and self._needs(k - 1, t)[1] > inside:
                    break
                for low_end in range(max(k, end + 1), t + 1):
                    value = (
                        prefix[k]
                        - prefix[s]
                        + float(self.table[k][low_end - k, t - k, inside])
                        + float(self.table[r][end - r, low_end - 1 - r, m])
                    )
                    best = min(best, (value, r, k, low_end))
            if self._same(best[0], target):
                break
        return best[1:]

    def _same(self, value: float, target: float) -> bool:
        return value <= target * (1 + (1e-6 if self.kind is np.float32 else 1e-12))
