"""Chains of equal steps: one, or several that meet at the loss.

**One.** Shilova 2021, section 1.1.5 (Theorem 1), after Revolve. AdjChain(l, m): from the input
a_0 and the gradient behind step l + 1, with m memory slots of one value each, the gradient in
front of step 1. Every forward takes u_f, every backward u_b. Three forwards, 3 slots (the input,
the current value, the gradient): 3 + 2 + 1 forwards and 4 backwards. With 4 slots (1.3) puts a
checkpoint at i = 1: 1 forward, then Opt_0(2, 3) = 2 + 1 + 3 backwards, then the first backward.

    >>> chain = Adjoint(3, 4)
    >>> chain.time(3, 3), chain.time(2, 3), chain.time(3, 4)
    (10.0, 6.0, 8.0)

**Several.** Section 1.3 (Lemma 2 and Theorem 3). K branches of L_1 .. L_K steps meet at the loss.
Multi-b(L, m, b): b_k says whether the gradient at the start of branch k must be kept. The
thesis's example: branches of 4, 10 and 3 steps and 8 slots. (1.4) checkpoints the 7th value of
the second; 7 slots are left for 4, 3 and 3 steps, the least of Lemma 2: 3 + 3 + 1.

    >>> join = MultiChain((4, 10, 3), (False, False, True), slots=8)
    >>> join.first_choice((4, 10, 3), 8)  # (i, k), k from 0
    (7, 1)
    >>> least_slots((4, 3, 3), (False, True, True))
    7

The remark behind Theorem 3 sorts b to save a factor of 2^K. Equation (1.4) only leaves a
branch shorter together with b_k = 1, so that b follows from L: a branch that has its
full length has its first b_k, any other has 1. That is one table of prod(L_k + 1) states,
without b.

Index legend: `table[l_1, .., l_K, m]` is the least time with l_k steps of branch k left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf, prod
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from .persistent import DeadlinePassed

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
        table = np.full((max(self.slots, 3) + 1, n), np.inf)
        table[2:, 0] = self.u_b
        steps = np.arange(n)
        table[3] = steps * (steps + 1) / 2 * self.u_f + (steps + 1) * self.u_b
        for m in range(4, self.slots + 1):
            for i in range(1, n):
                table[m, i] = self._splits(table, i, m).min()
        return table

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
        moves: list[Move] = []
        todo: list[tuple[int, int, int]] = [(first, length, m)]
        while todo:
            start, rest, slots = todo.pop()
            if rest == 0:
                moves.append(("back", start))
            elif slots <= 3:
                for end in range(start + rest, start - 1, -1):
                    moves += [("forward", step) for step in range(start, end)]
                    moves.append(("back", end))
            else:
                i = 1 + int(self._splits(self.table, rest, min(slots, self.slots)).argmin())
                moves += [("forward", step) for step in range(start, start + i)]
                todo.append((start, i - 1, slots))
                todo.append((start + i, rest - i, slots - 1))
        return moves


MultiMove = tuple[str, int, int]
"""("first", k, i), ("forward", k, i), ("back", k, i) for step i of branch k (from 0), or
("loss", -1, -1)."""


def least_slots(lengths: Sequence[int], kept: Sequence[bool]) -> int:
    """m_min of Lemma 2."""
    base = len(lengths) + sum(length != 0 for length in lengths)
    eased = (
        any(length == 1 for length in lengths)
        or any(length == 0 and not b for length, b in zip(lengths, kept, strict=True))
        or not any(lengths)
    )
    return base if eased else base + 1


def states(lengths: Sequence[int]) -> int:
    """The number of states in the table of these branches, for each number of slots."""
    return prod(length + 1 for length in lengths)


class MultiChain:
    """Opt_b-multi for every number of slots up to `slots` (more are of no use than one per
    value). Raises DeadlinePassed past the deadline. O(slots K L prod(L_k + 1))."""

    def __init__(
        self,
        lengths: Sequence[int],
        kept: Sequence[bool] | None = None,
        slots: int | None = None,
        times: tuple[float, float, float] = (1, 1, 1),
        deadline: float = inf,
    ):
        self.lengths = tuple(lengths)
        self.kept = tuple(kept) if kept is not None else (False,) * len(lengths)
        enough = sum(lengths) + 2 * len(lengths) + 1
        self.slots = enough if slots is None else slots
        self.u_f, self.u_b, self.u_l = times
        self.chain = Adjoint(max(0, max(lengths) - 1), self.slots, self.u_f, self.u_b)
        shape = tuple(length + 1 for length in lengths)
        self.table: NDArray[np.float64] = np.full((*shape, self.slots + 1), np.inf)
        for count, left in enumerate(np.ndindex(shape)):
            if count % 256 == 0 and monotonic() > deadline:
                raise DeadlinePassed
            self._fill(left)

    def _b(self, left: Sequence[int]) -> list[bool]:
        """b as equation (1.4) has made it on the way to these lengths."""
        return [
            b if now == length else True
            for now, length, b in zip(left, self.lengths, self.kept, strict=True)
        ]

    def _fill(self, left: tuple[int, ...]) -> None:
        row = self.table[left]
        b = self._b(left)
        if not any(left):
            row[len(left) :] = self.u_l
            return
        for k, length in enumerate(left):
            if length:
                np.minimum(row, self._choices(left, k, sum(b) - b[k]).min(axis=0), out=row)
        row[: min(least_slots(left, b), self.slots + 1)] = np.inf

    def _choices(self, left: tuple[int, ...], k: int, others: int) -> NDArray[np.float64]:
        """Equation (1.4) for branch k and a first checkpoint at i = 1 .. left[k]."""
        length = left[k]
        shorter: tuple[int | slice, ...] = (*left[:k], slice(0, length), *left[k + 1 :])
        rest = self.table[shorter][::-1]
        before_loss = np.full((length, self.slots + 1), np.inf)
        before_loss[:, 1:] = rest[:, :-1] + self.u_f * np.arange(1, length + 1)[:, None]
        # Behind the loss the other branches' gradients (b_j = 1) take a slot each.
        chain = np.full_like(before_loss, np.inf)
        chain[:, others:] = self.chain.table[: self.slots + 1 - others, :length].T
        result: NDArray[np.float64] = before_loss + chain
        return result

    def time(self, slots: int) -> float:
        return float(self.table[(*self.lengths, min(slots, self.slots))])

    def first_choice(self, left: tuple[int, ...], slots: int) -> tuple[int, int]:
        """(i, k) of equation (1.4), k from 0: the first checkpoint and its branch. Of equals
        the last branch and the latest checkpoint, as in the thesis's example."""
        b = self._b(left)
        choices = [
            (value, -k, -i - 1)
            for k, length in enumerate(left)
            if length
            for i, value in enumerate(self._choices(left, k, sum(b) - b[k])[:, slots].tolist())
        ]
        _, k, i = min(choices)
        return -i, -k

    def moves(self, slots: int) -> Iterator[MultiMove]:
        """A canonical optimal schedule (definition 8) with this many slots."""
        left, m = self.lengths, min(slots, self.slots)
        after: list[tuple[int, int, int, int]] = []
        while any(left):
            i, k = self.first_choice(left, m)
            start = self.lengths[k] - left[k]
            others = sum(b for j, b in enumerate(self._b(left)) if j != k)
            yield from (("first", k, start + step) for step in range(i))
            after.append((k, start, i - 1, m - others))
            left = (*left[:k], left[k] - i, *left[k + 1 :])
            m -= 1
        yield ("loss", -1, -1)
        for k, start, length, inner in reversed(after):
            for kind, step in self.chain.moves(start, length, inner):
                yield kind, k, step
