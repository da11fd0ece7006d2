"""Lower bounds on the time of plans that copy to the host and recompute nothing.

While cNode k runs, q_k bytes of what waits through it are on the host, as whole tensors: they left
before k, one after the other, each behind the cNode that made it, and come back behind k, each
before the cNode that reads it next. With S_k a bound on when k starts, Z_k on how long the step
takes from there, t_k its own time:

    S_k >= S_{k-1} + t_{k-1}
    S_k >= S_i + t_i + w(made at i or later) / d2h        for each i < k
    Z_k >= t_k + Z_{k+1}
    Z_k >= t_k + w(read at m or before) / h2d + Z_m       for each m > k
    step >= S_k + Z_k

where w(some of the tensors) is the least sum of sizes of some of them that together with all the
other ones reaches q_k. `docs/design/bounds.md` has the proof.

Three tensors of 2, made by cNodes 0 to 2 of 1 ns and read in turn by 6 to 4, room for 4, and 1 a ns
both ways: 2 bytes have to be away while 3 runs, so at least one of the tensors: S_3 >= 3, Z_3 >= 4.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import ceil

from ...ir.program import Target
from ..instance import Instance
from .subset_sums import SubsetSums


def moving_ns(instance: Instance, target: Target, limit_bytes: int) -> int:
    """Nanoseconds that no plan under the budget takes less than which recomputes nothing and runs
    in the order of capture. O(n^2) for n cNodes."""
    inst = instance
    room = limit_bytes - inst.base_bytes
    over = [here - room for here in inst.profile(inst.capture)]
    waiting = _waiting(inst, _moments(over))
    start = _starts(inst, target, over, waiting)
    rest = _rests(inst, target, over, waiting)
    best = max(before + after for before, after in zip(start, rest, strict=True))
    return max(inst.base_time_ns, ceil(best * (1 - 1e-12)))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A tensor that waits through a moment: the entries that made it and read it next."""

    made: int
    back: int
    size_bytes: int


def _moments(over: Sequence[int]) -> list[int]:
    """Where more is over the budget than just before and behind: of neighbours that differ by
    their own work only, the fullest says most."""
    near = [max(over[max(0, k - 2) : k + 3]) for k in range(len(over))]
    return [k for k, n in enumerate(over) if 0 < n == near[k]]


def _waiting(inst: Instance, moments: Sequence[int]) -> dict[int, list[_Waiting]]:
    """For each moment what was made before it, waits through it, and is read again or kept."""
    count = len(inst.names_C)
    uses: list[list[int]] = [[] for _ in inst.names_A]
    for k in range(count):
        for a in inst.reads_C[k]:
            uses[a].append(k)
    ended = set(inst.ends_C)
    waiting: dict[int, list[_Waiting]] = {k: [] for k in moments}
    for a, made in enumerate(inst.writer_A):
        if made < 0 or not inst.size_A[a]:
            continue
        stays = [count] if inst.kept_A[a] and a not in ended else []
        for before, back in pairwise([made, *uses[a], *stays]):
            for k in moments[bisect_right(moments, before) : bisect_left(moments, back)]:
                waiting[k].append(_Waiting(made, back, inst.size_A[a]))
    return waiting


def _starts(
    inst: Instance, target: Target, over: Sequence[int], waiting: Mapping[int, list[_Waiting]]
) -> list[float]:
    """For each entry, and the end: nanoseconds before which it cannot start."""
    start = [0.0]
    for k, time_ns in enumerate(inst.time_C):
        if k in waiting:
            for made, size in _parts(over[k], waiting[k], lambda tensor: -tensor.made):
                begins = start[-made] + inst.time_C[-made]
                start[k] = max(start[k], begins + _moving(target.d2h_bytes_per_s, size))
        start.append(start[k] + time_ns)
    return start


def _rests(
    inst: Instance, target: Target, over: Sequence[int], waiting: Mapping[int, list[_Waiting]]
) -> list[float]:
    """For each entry, and the end: nanoseconds that the step takes at least from its start on."""
    rest = [0.0] * (len(inst.time_C) + 1)
    for k in reversed(range(len(inst.time_C))):
        rest[k] = inst.time_C[k] + rest[k + 1]
        for back, size in _parts(over[k], waiting.get(k, ()), lambda tensor: tensor.back):
            moving = _moving(target.h2d_bytes_per_s, size)
            rest[k] = max(rest[k], inst.time_C[k] + moving + rest[back])
    return rest


def _parts(
    over: int, waiting: Sequence[_Waiting], turn: Callable[[_Waiting], int]
) -> Iterator[tuple[int, int]]:
    """Tensors are taken in turn: for each turn, the bytes of those up to it that have to move
    even if all others do."""
    others = sum(tensor.size_bytes for tensor in waiting)
    sums = SubsetSums.of(over, [tensor.size_bytes for tensor in waiting])
    for key, group in groupby(sorted(waiting, key=turn), key=turn):
        for tensor in group:
            sums.add(tensor.size_bytes)
            others -= tensor.size_bytes
        if over > others:
            yield key, sums.least(over - others)


def _moving(rate: int | None, size: float) -> float:
    return size * 1e9 / rate if rate else 0.0
