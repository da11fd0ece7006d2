"""What a plan may run, in order: each cNode once as captured, and recomputations.

A plan is a choice among a fixed sequence of events. The compact ILP gives each optional
event a binary variable; the order never changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..instance import Instance, Order

__all__ = ["FEW", "Event", "Pairs", "all_events", "order_of", "useful_pairs"]


FEW = 500
"""So many pairs are never thinned out."""


@dataclass(frozen=True, slots=True)
class Event:
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
        found = pairs.every()
        if every or sum(map(len, found)) <= FEW:
            return found
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
    """What may be recomputed towards given reads."""

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
        found: set[int] = set()
        front = {self.maker[a] for a in reads if a in self.maker}
        while front and depth > 0:
            found |= front
            behind = (self.maker.get(a, -1) for c in front for a in self.instance.rereads_C[c])
            front = {c for c in behind if c >= 0 and c not in found}
            depth -= 1
        return sorted(c for c in found if c < stage)


def all_events(pairs: list[list[int]]) -> list[Event]:
    """Every stage in order: its recomputations, all optional, then its own cNode."""
    events = []
    for t, again in enumerate(pairs):
        events += [Event(c, False, True) for c in again]
        events.append(Event(t, True, False))
    return events


def order_of(events: list[Event], chosen: Collection[int]) -> Order:
    """What runs: every event that is not optional, and those whose index is chosen."""
    return [e.cnode for i, e in enumerate(events) if not e.optional or i in chosen]
