"""1F1B*: the 1-periodic schedule of a contiguous allocation that holds the fewest copies.

Shilova 2021, section 5.3. Stages and the transfers between them are *pseudo-stages* 0..n-1, each
with a forward and a backward part. For a period T they fall into groups, greedily from the last:
as many as fit into T. A pseudo-stage of the g-th group from the end has g micro-batches in flight,
and no 1-periodic schedule has fewer anywhere (Theorem 15).

Three stages of 1 + 2 and a period of 6: the last two form a group, the first has one of its own.

    >>> groups((3, 3, 3), 6)
    [2, 1, 1]
    >>> pattern = one_f_one_b_star((1, 1, 1), (2, 2, 2), 6)
    >>> pattern.forward_ns_S, pattern.backward_ns_S
    ((0, 1, 2), (7, 5, 3))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.pipeline import Pass
from .layers import Layers, Range, StageWay, ceil_div


def joined(lifetime_ns: int, load_ns: int, period_ns: int) -> int:
    """The lifetime of the boundary before a pseudo-stage of this load, where that behind it lives
    `lifetime_ns`: their sum, if that needs no further micro-batch in flight, else from the next
    multiple of the period. Monotone in both for loads up to the period."""
    copies = ceil_div(lifetime_ns, period_ns)
    total = lifetime_ns + load_ns
    return total if total <= copies * period_ns else copies * period_ns + load_ns


def groups(loads_S: Sequence[int], period_ns: int) -> list[int] | None:
    """The group of each pseudo-stage, 1 for the last; None where one does not fit the period."""
    if max(loads_S) > period_ns:
        return None
    groups_S, group, filled = [0] * len(loads_S), 1, 0
    for s in reversed(range(len(loads_S))):
        if filled + loads_S[s] > period_ns:
            group, filled = group + 1, 0
        filled += loads_S[s]
        groups_S[s] = group
    return groups_S


class Times:
    """When each pass of each pseudo-stage begins."""

    period_ns: int

    def defers(self, s: int) -> bool:
        """True if stage s has a third pass."""
        return False

    def start_ns(self, word: Pass, s: int, microbatch: int) -> int:
        """The planned start, in nanoseconds."""
        raise NotImplementedError


@dataclass(frozen=True)
class Pattern(Times):
    """When forward and backward of each pseudo-stage begin for micro-batch 0; those of
    micro-batch k begin k periods later."""

    period_ns: int
    forward_ns_S: tuple[int, ...]
    backward_ns_S: tuple[int, ...]

    def start_ns(self, word: Pass, s: int, microbatch: int) -> int:
        first = self.forward_ns_S if word == "fwd" else self.backward_ns_S
        return first[s] + microbatch * self.period_ns


def one_f_one_b_star(
    forward_ns_S: Sequence[int], backward_ns_S: Sequence[int], period_ns: int
) -> Pattern:
    """Algorithm 6. The period is at least the largest load."""
    loads_S = [f + b for f, b in zip(forward_ns_S, backward_ns_S, strict=True)]
    groups_S = groups(loads_S, period_ns)
    assert groups_S is not None
    n = len(loads_S)
    starts_S = [0] * n
    for s in range(1, n):
        starts_S[s] = starts_S[s - 1] + forward_ns_S[s - 1]
    backs_S = [0] * n
    for s in reversed(range(n)):
        if s == n - 1 or groups_S[s + 1] != groups_S[s]:
            backs_S[s] = starts_S[s] + forward_ns_S[s] + (groups_S[s] - 1) * period_ns
        else:
            backs_S[s] = backs_S[s + 1] + backward_ns_S[s + 1]
    return Pattern(period_ns, tuple(starts_S), tuple(backs_S))


def pseudo_durations(
    layers: Layers, stages: Sequence[Range], ways: Sequence[StageWay]
) -> tuple[list[int], list[int]]:
    """Forward and backward parts of stages and the transfers between them. What is made again runs
    right before the backward."""
    forward: list[int] = []
    backward: list[int] = []
    for (i, j), way in zip(stages, ways, strict=True):
        forward_ns = sum(layers.forward_ns_L[i:j])
        act, grad = layers.transfers_ns_B[j]
        forward += [forward_ns, act]
        backward += [way.load_ns - forward_ns, grad]
    return forward[:-1], backward[:-1]


def pseudo_loads(layers: Layers, stages: Sequence[Range]) -> list[int]:
    """Loads of the stages with those of the transfers between them: 2 n - 1."""
    loads: list[int] = []
    for i, j in stages:
        loads += [layers.load_ns(i, j), layers.transfer_ns(j)]
    return loads[:-1]


def least_period(layers: Layers, stages: Sequence[Range]) -> int | None:
    """The least period of any 1-periodic schedule of these contiguous stages that fits the memory;
    None if none does.

    Groups change only where the period passes the load of neighbouring pseudo-stages, so only these
    sums are tried: exact, in O(n^2 log n).
    """
    loads_S = pseudo_loads(layers, stages)
    n = len(loads_S)
    sums = {sum(loads_S[a:b]) for a in range(n) for b in range(a + 1, n + 1)}
    periods = sorted(x for x in sums if x >= max(loads_S) and x > 0) or [1]

    def fits(period_ns: int) -> bool:
        groups_S = groups(loads_S, period_ns)
        assert groups_S is not None
        return all(
            layers.stage_bytes(i, j, g) <= layers.limit_bytes
            for (i, j), g in zip(stages, groups_S[::2], strict=True)
        )

    if not fits(periods[-1]):
        return None
    return periods[first_true(len(periods), lambda k: fits(periods[k]))]


def first_true(n: int, holds: Callable[[int], bool]) -> int:
    """The least k below n for which a monotone predicate holds; it holds for n - 1."""
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
