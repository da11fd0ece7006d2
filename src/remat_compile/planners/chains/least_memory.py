"""The least memory of a persistent schedule of a chain, exactly, in bytes.

The recurrence of Shilova 2021, Theorem 6, with the largest need in place of the sum of
times: no memory slots, so nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from .choices import Choice, Limits, Save, Split
from .persistent import Late
from .stages import Stage

__all__ = ["Least"]

_NEVER = 1 << 62


class Least:
    """`bytes_ss[s, t]`: the least memory for the backward of stages t down to s, the input
    of s not counted. Raises Late past the deadline. O(N^2 (N + options))."""

    def __init__(self, stages: Sequence[Stage], deadline: float = inf, *, saving: bool = True):
        self.limits, self.saving = Limits(stages), saving
        n = len(stages)
        self.bytes_ss: NDArray[np.int64] = np.full((n, n), _NEVER, np.int64)
        cross = [s.cross_bytes for s in stages]
        tokens = np.array(self.limits.tokens, np.int64)
        # What a split in front of stage k holds, generator states of stages before s aside.
        self._held = np.array([0, *cross[:-1]], np.int64) + tokens[:n]
        self._tokens = tokens
        for t in range(n):
            if monotonic() > deadline:
                raise Late
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
            for o, (need, hold, _) in enumerate(self.limits.saves(s, t))
        )

    def _split(self, s: int, t: int) -> tuple[int, int]:
        if s == t:
            return _NEVER, -1
        right = self.bytes_ss[s + 1 : t + 1, t] + (self._held[s + 1 : t + 1] - self._tokens[s])
        both = np.maximum(right, self.bytes_ss[s, s:t])
        k = int(both.argmin())
        return max(int(both[k]), self.limits.skim_needs(t)[s]), s + 1 + k

    def choose(self, s: int, t: int, memory: int) -> tuple[Choice, int]:
        """The first choice of the schedule of least memory; `memory` is passed through."""
        save, o = self._save(s, t)
        split, k = self._split(s, t)
        return (Save(o) if save <= split else Split(k)), memory
