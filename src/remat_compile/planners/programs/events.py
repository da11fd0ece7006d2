"""The events that a plan may run, in order: each cNode once as captured, and recomputations.

A plan is a choice among a fixed sequence of events. The compact ILP gives each optional
event a binary variable; the order never changes.

Four layers F0 to F3, of which the backward (cNodes 5 to 8) reads both sides. Stage 7, which ends
with B7, may recompute F0 and F1: it reads x1 and x2. Stage 6 may recompute F2 too.

    >>> pairs = useful_pairs(step)
    >>> pairs[6], pairs[7], pairs[8]
    ([0, 1, 2], [0, 1], [0])
    >>> events = all_events(pairs)
    >>> len(events), sum(event.optional for event in events)
    (27, 18)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from ..instance import Instance, Order

FEW = 500
"""This many pairs are never thinned out."""


@dataclass(frozen=True, slots=True)
class PossibleRun:
    """One possible execution of `cnode`: `first` of all, or a replay; `optional` or not."""

    cnode: int
    first: bool
    optional: bool


def useful_pairs(
    instance: Instance, *, backward: bool = False, every: bool | None = None
) -> list[list[int]]:
    """For each stage (named by the cNode that first runs at its end) what may be
    recomputed in it, rising. With `backward` false, forward cNodes only.

    `every`: each cNode that may run again and whose results somebody may ask for later.
    Otherwise a stage has what its own cNode reads, directly or through others, and stages
    up to the loss only towards storage that the forward reads again after more than a
    third of its length. None: every one in graphs with few pairs.
    """
    pairs = Pairs(instance, backward)
    if every or every is None:
        every_pair = pairs.every()
        if every or sum(map(len, every_pair)) <= FEW:
            return every_pair
    long = max(1, instance.phase_C.count("fwd") // 3)
    touched: dict[int, int] = {}
    useful = []
    for t, reads in enumerate(instance.reads_C):
        if t <= instance.loss:
            again = [a for a in reads if t - touched.get(a, t) > long]
            touched.update(dict.fromkeys((*reads, *instance.writes_C[t]), t))
            useful.append(pairs.of(t, again))
        else:
            useful.append(pairs.of(t, reads))
    return useful


class Pairs:
    """The cNodes that may be recomputed for given reads."""

    def __init__(self, instance: Instance, backward: bool):
        self.instance = instance
        self.maker: dict[int, int] = {}
        for c, ok in enumerate(instance.makable_C):
            if ok and (backward or instance.phase_C[c] == "fwd"):
                for a in instance.rewrites_C[c]:
                    if not instance.kept_A[a]:
                        self.maker[a] = c

    def every(self) -> list[list[int]]:
        """For each stage all that can be run again and is asked for in it or later."""
        inst = self.instance
        until = [-1] * len(inst.names_A)
        for c, reads in enumerate(inst.reads_C):
            for a in reads:
                until[a] = c
        last = [-1] * len(inst.names_C)
        for c in range(len(inst.names_C) - 1, -1, -1):
            made = [a for a in inst.rewrites_C[c] if self.maker.get(a) == c]
            last[c] = max((until[a] for a in made), default=-1)
            for a in inst.rereads_C[c]:
                until[a] = max(until[a], last[c])
        return [[k for k in range(t) if last[k] >= t] for t in range(len(inst.names_C))]

    def of(self, stage: int, reads: Collection[int], depth: int = 1 << 30) -> list[int]:
        """All that can be run again towards `reads`, at most `depth` reads away."""
        cnodes: set[int] = set()
        front = {self.maker[a] for a in reads if a in self.maker}
        while front and depth > 0:
            cnodes |= front
            behind = (self.maker.get(a, -1) for c in front for a in self.instance.rereads_C[c])
            front = {c for c in behind if c >= 0 and c not in cnodes}
            depth -= 1
        return sorted(c for c in cnodes if c < stage)


def all_events(pairs: list[list[int]]) -> list[PossibleRun]:
    """Every stage in order: its recomputations, all optional, then its own cNode."""
    events = []
    for t, again in enumerate(pairs):
        events += [PossibleRun(c, False, True) for c in again]
        events.append(PossibleRun(t, True, False))
    return events


def order_of(events: list[PossibleRun], chosen: Collection[int]) -> Order:
    """The events that run: all that are not optional, and the chosen ones."""
    return [e.cnode for i, e in enumerate(events) if not e.optional or i in chosen]


_FREE = 1500
"""In orders of up to this many more runs than cNodes every one of them may be left out."""


@dataclass(frozen=True)
class Window:
    """Options to add: for each stage, what may be recomputed in it (rising)."""

    options: dict[int, list[int]]

    @property
    def size(self) -> int:
        return sum(len(ks) for ks in self.options.values())


def window_events(
    instance: Instance, order: Order, window: Window
) -> tuple[list[PossibleRun], set[int]]:
    """The events of a plan with the window's options put in, and the indices of those
    optional events that the plan runs.

    Recomputations of the plan are optional too, so that what the window gains can be
    spent elsewhere; in very long plans only those in the window.
    """
    free = len(order) - len(instance.names_C) <= _FREE
    events: list[PossibleRun] = []
    runs: set[int] = set()
    seen: set[int] = set()
    stage: list[int] = []

    def close(extra: list[int], optional: bool) -> None:
        present = set(stage)
        new = [k for k in extra if k not in present and k in seen]
        for k in stage:
            while new and new[0] < k:
                events.append(PossibleRun(new.pop(0), False, True))
            if optional:
                runs.add(len(events))
            events.append(PossibleRun(k, False, optional))
        events.extend(PossibleRun(k, False, True) for k in new)
        stage.clear()

    for c in order:
        if c in seen:
            stage.append(c)
            continue
        close(window.options.get(c, []), free or c in window.options)
        seen.add(c)
        events.append(PossibleRun(c, True, False))
    close([], free)
    return events, runs


@dataclass
class Windows:
    """Draws windows at random: runs of stages, with what may be recomputed in them."""

    instance: Instance
    rng: Random
    forward: Pairs = field(init=False)
    both: Pairs = field(init=False)

    def __post_init__(self) -> None:
        self.forward = Pairs(self.instance, backward=False)
        self.both = Pairs(self.instance, backward=True)

    def draw(self, most: int) -> Window:
        """One run of stages, or two apart, of about `most` options in all.

        Most windows lie after the loss and recompute forward cNodes up to some number of
        reads away; a few lie anywhere and recompute backward ones too.
        """
        rng, inst = self.rng, self.instance
        n = len(inst.names_C)
        anywhere = rng.random() < 0.15
        pairs = self.both if rng.random() < 0.15 else self.forward
        low = 0 if anywhere or inst.loss >= n - 1 else inst.loss + 1
        depth = rng.choice((4, 8, 16, 1 << 30))
        parts = rng.choice((1, 1, 2))
        options: dict[int, list[int]] = {}
        for _ in range(parts):
            self._grow(rng.randrange(low, n), low, most // parts, pairs, depth, options)
        return Window(options)

    def _grow(
        self,
        at: int,
        low: int,
        most: int,
        pairs: Pairs,
        depth: int,
        options: dict[int, list[int]],
    ) -> None:
        """Adds stages to both sides of one until there are `most` options."""
        n = len(self.instance.names_C)
        total = 0
        for step in range(n):
            for t in {at - step, at + step}:
                if low <= t < n and t not in options and total < most:
                    cnodes = pairs.of(t, self.instance.reads_C[t], depth)
                    if len(cnodes) > most:
                        cnodes = cnodes[-most:]
                    options[t] = cnodes
                    total += len(cnodes) + 1
            if total >= most or (at - step < low and at + step >= n):
                return
