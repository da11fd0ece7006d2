"""Differing tensors of two steps, without those whose kernels do not repeat their bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from torch import Tensor

REPEATS = 3
"""Repetitions of both steps, where they differ."""

FAR = 0.1
"""Limit on differences, relative to the largest value: what half precision, summed in another
order, does not differ by."""

Tensors = Mapping[str, Tensor | None]
"""Results of a step, by name; names of gradients begin with `gradient`."""


@dataclass(frozen=True)
class StepDifferences:
    """Names. `changing` differ between two runs of one of the steps too, and are near each other:
    sums in any order. `real` are all others that differ."""

    real: tuple[str, ...]
    changing: tuple[str, ...]


def differences(
    ours: Tensors,
    theirs: Tensors,
    run_ours: Callable[[], Tensors],
    run_theirs: Callable[[], Tensors],
) -> StepDifferences:
    """Return the differences of two steps, which are run again, a few times, only if something
    differs."""
    names = dict.fromkeys((*theirs, *ours))
    different = [n for n in names if not same_bits(ours.get(n), theirs.get(n))]
    if not different:
        return StepDifferences((), ())
    repeating, spread = set(different), dict.fromkeys(different, 0.0)
    for _ in range(REPEATS):
        again, mine = run_theirs(), run_ours()
        for n in different:
            if not same_bits(theirs.get(n), again.get(n)) or not same_bits(
                ours.get(n), mine.get(n)
            ):
                repeating.discard(n)
            spread[n] = max(spread[n], _distance(again.get(n), theirs.get(n)))
        del again, mine
    steepest = max((_largest(t) for n, t in theirs.items() if n.startswith("gradient")), default=0)
    real = []
    for n in different:
        scale = FAR * _largest(theirs.get(n))
        if n.startswith("gradient"):  # one that is zero but for rounding has no size of its own
            scale = max(scale, FAR**2 * steepest)
        near = _distance(ours.get(n), theirs.get(n)) <= max(scale, spread[n] / FAR)
        if n in repeating or not near:  # a graph that reads what nothing wrote is neither
            real.append(n)
    return StepDifferences(tuple(real), tuple(n for n in different if n not in real))


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors hold the same values, where one that is no number equals
    another."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(_equal(one, other).all())


def largest_difference(ours: Tensors, theirs: Tensors) -> float:
    """Return the largest difference of all tensors, each relative to its largest value in `theirs`;
    infinite where one is missing, is of another shape or type, or is not finite in one of them
    only."""
    worst = 0.0
    for n in dict.fromkeys((*theirs, *ours)):
        one, other = ours.get(n), theirs.get(n)
        if not same_bits(one, other):
            worst = max(worst, _distance(one, other, counts=True) / (_largest(other) or 1.0))
    return worst


def _equal(one: Tensor, other: Tensor) -> Tensor:
    return (one == other) | ((one != one) & (other != other))


def _largest(tensor: Tensor | None) -> float:
    if tensor is None or not tensor.numel():
        return 0.0
    return float(tensor.detach().abs().double().nan_to_num(0.0, 0.0, 0.0).max())


def _distance(one: Tensor | None, other: Tensor | None, *, counts: bool = False) -> float:
    """The largest difference; infinite where one is not finite and the other is. Numbers that only
    count, such as the place of a maximum, are at any distance alike, but with `counts`."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return inf
    if not other.numel():
        return 0.0
    if not (other.is_floating_point() or other.is_complex()):
        if not counts:
            return 0.0
        one, other = one.double(), other.double()
    apart = (one - other).detach().abs().double()
    distance = float(apart.masked_fill(_equal(one, other), 0.0).max())
    return distance if distance == distance else inf
