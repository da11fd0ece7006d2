"""Expressions over a box of symbol values: what holds of the largest values, holds everywhere."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .read import need

RANGE_WORK = 10**7  # words of expressions and steps, some seconds
NONE = frozenset[str]()
Box: TypeAlias = Mapping[str, tuple[int, int]]  # lowest and highest value of each symbol
Sizes: TypeAlias = Mapping[str, int]


class Undecided(Exception):
    """Why it is not known whether something holds in all of a box."""


class Span(NamedTuple):
    """Bounds of an expression in a box, and the symbols with which it may rise, and may fall."""

    low: int
    high: int
    up: frozenset[str] = NONE
    down: frozenset[str] = NONE


def minus(x: Span, y: Span) -> Span:
    return Span(x.low - y.high, x.high - y.low, x.up | y.down, x.down | y.up)


def times(x: Span, y: Span) -> Span:
    """x' y - x y has the sign of (x' - x) y."""
    up, down = NONE, NONE
    for one, other in ((x, y), (y, x)):
        up |= (one.up if other.high > 0 else NONE) | (one.down if other.low < 0 else NONE)
        down |= (one.down if other.high > 0 else NONE) | (one.up if other.low < 0 else NONE)
    ends = [n * m for n in (x.low, x.high) for m in (y.low, y.high)]
    return Span(min(ends), max(ends), up, down)


def rising(of: Callable[[int, int], int]) -> Callable[[Span, Span], Span]:
    return lambda x, y: Span(of(x.low, y.low), of(x.high, y.high), x.up | y.up, x.down | y.down)


def roundup(value: int, n: int) -> int:
    return -(-value // n) * n


OPERATORS = {"-": minus, "*": times, "+": rising(int.__add__), "max(": rising(max)}
DIVISIONS = {"floordiv(": rising(int.__floordiv__), "roundup(": rising(roundup)}
DIVISIONS |= {"ceildiv(": rising(lambda x, n: -(-x // n))}
OPERATORS |= DIVISIONS


def span(expression: str, box: Box) -> Span:
    """Of an expression in postfix order."""
    stack: list[Span] = []
    for word in expression.split():
        if operator := OPERATORS.get(word):
            y, x = stack.pop(), stack.pop()
            need(word not in DIVISIONS or y.low == y.high > 0, "divides by no number above 0")
            stack.append(operator(x, y))
        elif word in box:
            stack.append(Span(*box[word], up=frozenset({word})))
        else:
            stack.append(Span(int(word), int(word)))
    return stack.pop()


@dataclass
class Search:
    """Ends when as much work was done or at `deadline` (of `time.monotonic`)."""

    deadline: float
    work: int = 0

    def everywhere(
        self, box: Box, exprs: Collection[str], holds: Callable[[Sizes], bool], cost: int = 0
    ) -> None:
        """What holds of too large values too, holds in all the box; raises if not, or not known.

        Corner: what rises with sizes that all may only rise with `b` is worst at the highest `b`,
        and if all may only fall, at the lowest. A box not settled is halved, down to points.
        """
        todo, cost = [box], cost + sum(len(e) for e in exprs)
        while todo:
            box = todo.pop()
            spans = [span(e, box) for e in exprs]
            ups, downs = NONE.union(*(s.up for s in spans)), NONE.union(*(s.down for s in spans))
            tops = {b: (high, high) for b, (_, high) in box.items() if b not in downs}
            box = {b: (low, low if b not in ups else high) for b, (low, high) in box.items()} | tops
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
