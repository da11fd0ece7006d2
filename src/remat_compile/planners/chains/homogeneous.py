"""Homogeneous chains: Shilova 2021, section 1.1.5 (Theorem 1), after Revolve.

AdjChain(l, m): from the input a_0 and the gradient behind step l + 1, with m memory slots
of one value each, the gradient in front of step 1. Every forward takes u_f, every
backward u_b.
"""

from __future__ import annotations

from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adjoint", "Move"]

Move = tuple[str, int]
"""("forward", i): run step i, its input is kept by whoever needs it; ("back", i): the
backward of step i."""


class Adjoint:
    """Opt_0(l, m) for all l <= `length` and m <= `slots`: equations (1.1) to (1.3)."""

    def __init__(self, length: int, slots: int, u_f: float = 1, u_b: float = 1):
        self.length, self.slots, self.u_f, self.u_b = length, slots, u_f, u_b

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """`table[m, l]`; infinite where m is too small."""
        n = self.length + 1
        found = np.full((max(self.slots, 3) + 1, n), np.inf)
        found[2:, 0] = self.u_b
        steps = np.arange(n)
        found[3] = steps * (steps + 1) / 2 * self.u_f + (steps + 1) * self.u_b
        for m in range(4, self.slots + 1):
            for i in range(1, n):
                found[m, i] = self._splits(found, i, m).min()
        return found

    def _splits(self, table: NDArray[np.float64], length: int, m: int) -> NDArray[np.float64]:
        """Equation (1.3) for the first checkpoint at i = 1 .. length."""
        i = np.arange(1, length + 1)
        result: NDArray[np.float64] = i * self.u_f + table[m - 1, length - i] + table[m, i - 1]
        return result

    def time(self, length: int, m: int) -> float:
        """Opt_0(length, m)."""
        if m < 2:
            return inf
        return float(self.table[min(m, self.slots), length])

    def moves(self, first: int, length: int, m: int) -> list[Move]:
        """An optimal schedule of the steps first .. first + length; the last of them is
        reached by `length` forwards from the input of the first."""
        found: list[Move] = []
        todo: list[tuple[int, int, int]] = [(first, length, m)]
        while todo:
            start, rest, slots = todo.pop()
            if rest == 0:
                found.append(("back", start))
            elif slots <= 3:
                for end in range(start + rest, start - 1, -1):
                    found += [("forward", step) for step in range(start, end)]
                    found.append(("back", end))
            else:
                i = 1 + int(self._splits(self.table, rest, min(slots, self.slots)).argmin())
                found += [("forward", step) for step in range(start, start + i)]
                todo.append((start, i - 1, slots))
                todo.append((start + i, rest - i, slots - 1))
        return found
