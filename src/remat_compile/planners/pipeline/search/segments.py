"""Which layers of a stage to make again: segments of neighbours, of which the input alone is kept.

A segment [a, b) keeps what enters it. Right before its backward its forward runs once more, and
what its layers keep is there until that backward ends: its *dropped* bytes. For a bound D on these
and a price of bytes in time, a shortest path over boundaries takes each layer as it is or a segment
up to D, for the least time + price * kept bytes. Several D and prices give the options of each
stage; they depend on the chain alone, so more memory never loses one.

Two layers of 2 ns keep 10 bytes each, 4 of them their input. As one segment they keep 4:

    >>> segments = Segments((2, 2), (10, 10), (6, 6), (4, 4, 0))
    >>> sorted(segments.options(0, 2))
    [(), ((0, 1), (1, 2)), ((0, 2),)]
    >>> segments.dropped(0, 2), segments.input_bytes_L
    (16, (4, 4))
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Option = tuple[tuple[int, int], ...]

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Bounds on dropped bytes: so many parts of all that the chain keeps."""
_PRICES = tuple(2.0**k for k in (-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6, 14))
"""The price of a byte, in forward time of the chain per byte that it keeps."""


class Segments:
    """`inner_bytes_L` is the part of `kept_bytes_L` that is not a layer's input."""

    def __init__(
        self,
        forward_ns_L: Sequence[int],
        kept_bytes_L: Sequence[int],
        inner_bytes_L: Sequence[int],
        activation_bytes_B: Sequence[int],
    ):
        self.kept_bytes_L = kept_bytes_L
        self.forward_B = [0, *accumulate(forward_ns_L)]
        self.kept_B = [0, *accumulate(kept_bytes_L)]
        each = zip(kept_bytes_L, inner_bytes_L, strict=True)
        self.counted_L = tuple(kept - inner for kept, inner in each)
        inputs = zip(self.counted_L, activation_bytes_B, strict=False)
        # What no backward reads of an input is kept for the segment alone.
        self.input_bytes_L = tuple(max(pair) for pair in inputs)
        self._from: dict[int, dict[int, set[Option]]] = {}

    def dropped(self, a: int, b: int) -> int:
        """Bytes that are not kept, and are there again during the backward of [a, b)."""
        return self.kept_B[b] - self.kept_B[a] - self.counted_L[a]

    def options(self, i: int, j: int) -> set[Option]:
        """Segments of a stage [i, j), in order."""
        if i not in self._from:
            found: dict[int, set[Option]] = {}
            for parts in _PARTS:
                for price in _PRICES:
                    self._paths(i, self.kept_B[-1] // parts, price, found)
            self._from[i] = found
        return self._from[i][j]

    def _paths(self, i: int, most: int, price: float, found: dict[int, set[Option]]) -> None:
        """Enters the shortest path from i to each boundary behind it."""
        n = len(self.kept_bytes_L)
        per_byte = price * self.forward_B[n] / max(1, self.kept_B[n])
        best = {i: 0.0}
        paths: dict[int, Option] = {i: ()}
        for a in range(i, n):
            whole = best[a] + per_byte * self.kept_bytes_L[a]
            if whole < best.get(a + 1, float("inf")):
                best[a + 1], paths[a + 1] = whole, paths[a]
            kept = best[a] + per_byte * self.input_bytes_L[a] - self.forward_B[a]
            for b in range(a + 1, n + 1):
                if self.dropped(a, b) > most:
                    break
                cost = kept + self.forward_B[b]
                if cost < best.get(b, float("inf")):
                    best[b], paths[b] = cost, (*paths[a], (a, b))
            found.setdefault(a + 1, set()).add(paths[a + 1])
