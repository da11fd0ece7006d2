"""Optimal persistent schedules of a chain: Shilova 2021, Theorem 6, and Zhao 2024, section 2.5.

A value that was saved stays until the backward of the stage that reads it. Both theses
are one program: with one option per stage it is Theorem 6, with several it is Rk-Rotor,
whose equation (2.20) must read Opt(s + 1, t, ...).

Two things go beyond the theses, so that what is predicted is what runs. The target
t = N - 1 (the loss) is the first execution of every stage, with the permanent values and
generator states of that pass; any other t is a replay. And a stage that is replayed just
before its own backward leaves out what only its output needs.

Equations (2.9) and (2.10) of Shilova, (2.20) to (2.22) of Zhao. With one value of every stage
1 slot, saved for its backward 3 slots, forward 10 ns, backward 20 ns, two stages and the loss:

* 8 slots: both save. 3 + 3 held, and the backward of the second stage needs 2 gradients more.
  10 + 10 + 20 + 20 = 60 ns.
* 6 slots: the first only passes its output on (1 slot), the second saves and comes back (5
  slots), then the first runs again: 10 ns more.
* 5 slots: the checkpoint and the 5 slots of the second stage do not fit.

    >>> table = Persistent(stages, slot=1, top=8)
    >>> [table.time_ns(slots) for slots in (8, 6, 5)]
    [60.0, 70.0, inf]
    >>> table.choose(0, 2, 6)  # the first choice, and the slots left to its inner part
    (Split(stage=1), 5)
    >>> Least(stages).peak_bytes
    6

Index legend: `table[s][t - s, m]` is the least time to run the backward of stages t down
to s, starting from the input of s (counted outside), with m slots of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..choices import Choice, Save, Split, Thresholds
from ..stages import Stage

Floats = NDArray[np.floating[Any]]

_SINGLE_FROM = 20_000_000
"""Tables with more entries hold single precision: 24 bits of a time are enough to choose."""


class DeadlinePassed(Exception):
    """The time limit ended the dynamic program."""


class Persistent:
    """The table of one chain, for every number of slots up to `top`.

    `saving` says whether a stage may save ahead of the backward of later ones (no: the
    restriction of `revolve`). Raises DeadlinePassed past the deadline. O(N^2 (N + options) top).
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        slot: int,
        top: int,
        deadline: float = inf,
        *,
        saving: bool = True,
    ):
        self.thresholds = Thresholds(stages)
        self.slot, self.top, self.saving = slot, top, saving
        n = len(stages)
        entries = n * (n + 1) // 2 * (top + 1)
        self.kind = np.float32 if entries > _SINGLE_FROM else np.float64
        self.table: list[Floats] = [np.full((n - s, top + 1), np.inf, self.kind) for s in range(n)]
        self.cross = [0, *(self.slots(s.cross_bytes) for s in stages)]
        self._fill(deadline)

    def slots(self, size: int) -> int:
        return -(-size // self.slot)

    def time_ns(self, slots: int) -> float:
        """The least time with so many slots, infinite where there is no schedule."""
        return float(self.table[0][-1, slots]) if slots >= 0 else inf

    def _fill(self, deadline: float) -> None:
        n, width = len(self.table), self.top + 1
        # Row k: the right part of a split in front of stage k, shifted by what it holds.
        right = np.full((n + 1, width), np.inf, self.kind)
        # The left parts, with the time to run up to their ends added.
        left = [np.full((n - s, width), np.inf, self.kind) for s in range(n)]
        sums = np.empty((n, width), self.kind)
        for t in range(n):
            if monotonic() > deadline:
                raise DeadlinePassed
            needs = self.thresholds.skim_needs(t)
            prefix: Floats = np.array(self.thresholds.skim_times(t), self.kind)
            for s in range(t, -1, -1):
                best = self.table[s][t - s]
                low = self.slots(needs[s])
                if s < t and low < width:
                    rows, parts = sums[: t - s], left[s][: t - s]
                    if t == n - 1:
                        parts = self.table[s][: t - s] + prefix[s + 1 : t + 1, None]
                    # (2.21): C(s, k - 1, m) + C(k, t, m - a_k) and the forwards s .. k - 1, for
                    # every k at once. Whole rows, too low columns included: one contiguous
                    # pass is faster.
                    np.add(parts, self._right(right, s, t), out=rows)
                    np.subtract(rows.min(axis=0)[low:], prefix[s], out=best[low:])
                self._save_into(best, s, t)
                left[s][t - s] = best + prefix[t + 1]
                shift = min(self.cross[s], width)
                right[s, :shift] = np.inf
                right[s, shift:] = best[: width - shift]

    def _right(self, right: Floats, s: int, t: int) -> Floats:
        """Right parts behind stage s; generator states of what was skimmed are held too."""
        if not self.thresholds.tokens[-1]:
            return right[s + 1 : t + 1]
        width = self.top + 1
        rows = np.full((t - s, width), np.inf, self.kind)
        for k in range(s + 1, t + 1):
            shift = self.slots(self.thresholds.split_bytes(s, k))
            if shift < width:
                rows[k - s - 1, shift:] = self.table[k][t - k, : width - shift]
        return rows

    def _save_into(self, best: Floats, s: int, t: int) -> None:
        """Case 1 of the theses: stage s saves, with each of its options."""
        width = self.top + 1
        if s < t and not self.saving:
            return
        for need, hold_bytes, time_ns in self.thresholds.saves(s, t):
            # (2.20): the stages behind have what the option does not hold; with s = t (2.9).
            hold = self.slots(hold_bytes) if s < t else 0
            low = max(self.slots(need), hold)
            if low < width:
                rest: Any = 0.0
                if s < t:
                    rest = self.table[s + 1][t - s - 1, low - hold : width - hold]
                np.minimum(best[low:], rest + self.kind(time_ns), out=best[low:])

    def choose(self, s: int, t: int, slots: int) -> tuple[Choice, int]:
        """The first choice of the best schedule, and the slots left to its inner part."""
        choices: list[tuple[float, Choice, int]] = []
        if s == t or self.saving:
            for o, (need, hold_bytes, time_ns) in enumerate(self.thresholds.saves(s, t)):
                hold = self.slots(hold_bytes) if s < t else 0
                if slots >= max(self.slots(need), hold):
                    rest = self.table[s + 1][t - s - 1, slots - hold] if s < t else 0.0
                    choices.append((time_ns + float(rest), Save(o), slots - hold))
        if s < t and slots >= self.slots(self.thresholds.skim_needs(t)[s]):
            prefix = self.thresholds.skim_times(t)
            for k in range(s + 1, t + 1):
                inner = slots - self.slots(self.thresholds.split_bytes(s, k))
                if inner >= 0:
                    both = self.table[k][t - k, inner] + self.table[s][k - 1 - s, slots]
                    choices.append((prefix[k] - prefix[s] + float(both), Split(k), inner))
        _, choice, inner = min(choices, key=lambda entry: entry[0])
        return choice, inner


_NEVER = 1 << 62


class Least:
    """`bytes_ss[s, t]`: the least memory for the backward of stages t down to s, the input
    of s not counted. Raises DeadlinePassed past the deadline. O(N^2 (N + options))."""

    def __init__(self, stages: Sequence[Stage], deadline: float = inf, *, saving: bool = True):
        self.thresholds, self.saving = Thresholds(stages), saving
        n = len(stages)
        self.bytes_ss: NDArray[np.int64] = np.full((n, n), _NEVER, np.int64)
        cross = [s.cross_bytes for s in stages]
        tokens = np.array(self.thresholds.tokens, np.int64)
        # What a split in front of stage k holds, generator states of stages before s aside.
        self._held = np.array([0, *cross[:-1]], np.int64) + tokens[:n]
        self._tokens = tokens
        for t in range(n):
            if monotonic() > deadline:
                raise DeadlinePassed
            for s in range(t, -1, -1):
                self.bytes_ss[s, t] = min(self._save(s, t)[0], self._split(s, t)[0])

    @property
    def peak_bytes(self) -> int:
        return int(self.bytes_ss[0, -1])

    def _save(self, s: int, t: int) -> tuple[int, int]:
        if s < t and not self.saving:
            return _NEVER, -1
        rest = int(self.bytes_ss[s + 1, t]) if s < t else 0
        return min(
            (max(need, rest + hold if s < t else 0), o)
            for o, (need, hold, _) in enumerate(self.thresholds.saves(s, t))
        )

    def _split(self, s: int, t: int) -> tuple[int, int]:
        if s == t:
            return _NEVER, -1
        right = self.bytes_ss[s + 1 : t + 1, t] + (self._held[s + 1 : t + 1] - self._tokens[s])
        # The right part runs beside the checkpoint, the left part after it: the larger counts.
        both = np.maximum(right, self.bytes_ss[s, s:t])
        k = int(both.argmin())
        return max(int(both[k]), self.thresholds.skim_needs(t)[s]), s + 1 + k

    def choose(self, s: int, t: int, memory: int) -> tuple[Choice, int]:
        """The first choice of the schedule of least memory; `memory` is passed through."""
        save, o = self._save(s, t)
        split, k = self._split(s, t)
        return (Save(o) if save <= split else Split(k)), memory
