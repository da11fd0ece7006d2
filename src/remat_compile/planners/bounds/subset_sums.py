"""The least bytes of whole tensors that reach a number of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

_MOST_BITS = 1 << 14
"""Sums of sizes are told apart if they take no more multiples of the sizes' common divisor."""
_PARTS = (512, 128, 32)
"""Tensors of less than the first of these parts of the bytes in question count as if they could be
split; where there are too many sums, of less than the second, and so on."""


@dataclass(slots=True)
class SubsetSums:
    """The sums of the sizes of some of the tensors added so far: bit i stands for i times `unit`
    bytes. `split` is the bytes of those no larger than `small`, any part of which may be taken."""

    unit: int
    small: int
    bits: int = 1
    split: int = 0

    @staticmethod
    def of(over: int, sizes: Sequence[int]) -> SubsetSums:
        """None yet; for tensors of these sizes, of which about `over` bytes will be asked for."""
        for part in _PARTS:
            small = over // part
            large = [size for size in sizes if size > small]
            unit = gcd(*large) or 1
            if sum(large) // unit <= _MOST_BITS:
                return SubsetSums(unit, small)
        return SubsetSums(1, sum(sizes))

    def add(self, size: int) -> None:
        if size <= self.small:
            self.split += size
        else:
            self.bits |= self.bits << size // self.unit

    def least(self, need: int) -> int:
        """No more than the least sum of `need` bytes or more; `need` where there is none.

        >>> sums = SubsetSums(unit=10, small=0)
        >>> sums.add(60), sums.add(40), sums.least(41), sums.least(61)
        (None, None, 60, 100)
        """
        whole = max(0, -(-(need - self.split) // self.unit))
        above = self.bits >> whole
        if not above:
            return need
        return max(need, (whole + (above & -above).bit_length() - 1) * self.unit)
