"""Bounds of expressions over a box of symbol values, from the largest values."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from .read import need

RANGE_WORK = 10**7  # words of expressions and steps, some seconds
Box: TypeAlias = Mapping[str, tuple[int, int]]  # lowest and highest value of each symbol
Values: TypeAlias = Mapping[str, int]
Holds: TypeAlias = Callable[[Values], bool]


class Undecided(Exception):
    """Why it is not known whether something holds in all of a box."""


class Span(NamedTuple):
    """Bounds in a box; the slopes hold (b, 1) if it may rise with `b`, (b, -1) if it may fall."""

    low: int
    high: int
    slopes: frozenset[tuple[str, int]] = frozenset()


def rising(of: Callable[[int, int], int]) -> Callable[[Span, Span], Span]:
    return lambda x, y: Span(of(x.low, y.low), of(x.high, y.high), x.slopes | y.slopes)


def times(x: Span, y: Span) -> Span:
    """x' y - x y has the sign of (x' - x) y."""
    slopes = {(b, slope) for one, y in ((x, y), (y, x)) for b, slope in one.slopes if y.high > 0}
    slopes |= {(b, -slope) for one, y in ((x, y), (y, x)) for b, slope in one.slopes if y.low < 0}
    ends = [n * m for n in (x.low, x.high) for m in (y.low, y.high)]
    return Span(min(ends), max(ends), frozenset(slopes))


DIVISIONS = {  # by numbers
    "floordiv(": rising(int.__floordiv__),
    "ceildiv(": rising(lambda x, n: -(-x // n)),
    "roundup(": rising(lambda x, n: -(-x // n) * n),
}
OPERATORS = {"+": rising(int.__add__), "max(": rising(max), "*": times, **DIVISIONS}
OPERATORS["-"] = lambda x, y: OPERATORS["+"](x, times(y, Span(-1, -1)))


def span(expression: str, box: Box) -> Span:
    """The value of an expression in postfix order."""
    stack: list[Span] = []
    for word in expression.split():
        if operator := OPERATORS.get(word):
            y, x = stack.pop(), stack.pop()
            need(word not in DIVISIONS or y.low == y.high > 0, "divides by no number above 0")
            stack.append(operator(x, y))
        elif word in box:
            stack.append(Span(*box[word], frozenset({(word, 1)})))
        else:
            stack.append(Span(int(word), int(word)))
    return stack.pop()


class Search:
    """Ends when as much work was done or at `deadline` (of `time.monotonic`)."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.work = deadline, 0

    def everywhere(self, box: Box, exprs: Collection[str], holds: Holds, cost: int = 0) -> None:
        """A fact that holds for too large values holds in all the box; raises if not, or not known.

        Corner: what rises with sizes that all may only rise with `b` is worst at the highest `b`,
        and if all may only fall, at the lowest. A box not settled is halved, down to points.
        """
        todo, cost = [box], cost + sum(map(len, exprs))
        while todo:
            box = todo.pop()
            slopes = frozenset().union(*(span(e, box).slopes for e in exprs))
            least = {b: low if (b, -1) in slopes else high for b, (low, high) in box.items()}
            box = {b: (n, box[b][1] if (b, 1) in slopes else n) for b, n in least.items()}
            if holds({e: span(e, box).high for e in exprs}):
                continue
            widest = max(box, key=lambda b: box[b][1] - box[b][0], default="")
            low, high = box.get(widest, (0, 0))
            at = ", ".join(f"{b} = {n}" for b, (n, _) in box.items()) or "the sample"
            need(low < high, "a size or a bound on bytes does not hold at", at)
            self.work += cost
            if self.work > RANGE_WORK or time.monotonic() > self.deadline:
                raise Undecided("there are too many boxes, or too little time")
            middle = (low + high) // 2
            todo += [{**box, widest: (low, middle)}, {**box, widest: (middle + 1, high)}]
