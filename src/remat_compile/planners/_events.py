"""What a plan may run, in order: each cNode once as captured, and recomputations.

A plan is a choice among a fixed sequence of events. The compact ILP gives each optional
event a binary variable; the order never changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ._instance import Instance, Order

__all__ = ["Event", "all_events", "events_around", "order_of", "useful_pairs"]


_FEW = 500
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
    recomputed in it, rising.

    A cNode qualifies where it may run again, is captured before the stage, and what it
    makes is read by the stage's own cNode, directly or through others that qualify. With
    `backward` false, only forward cNodes qualify.

    Stages up to the loss have pairs only for the sake of storage that the forward reads
    again after more than a third of its length, unless `every` (none: in graphs with few
    pairs).
    """
    found = _Pairs(instance, backward)
    all_pairs = [found.of(t, instance.reads_C[t]) for t in range(len(instance.names_C))]
    if every or (every is None and sum(map(len, all_pairs)) <= _FEW):
        return all_pairs
    long = max(1, instance.phase_C.count("fwd") // 3)
    touched: dict[int, int] = {}
    for t in range(instance.loss + 1):
        again = [a for a in instance.reads_C[t] if t - touched.get(a, t) > long]
        all_pairs[t] = found.of(t, again)
        for a in (*instance.reads_C[t], *instance.writes_C[t]):
            touched[a] = t
    return all_pairs


class _Pairs:
    def __init__(self, instance: Instance, backward: bool):
        self.instance = instance
        self.maker: dict[int, int] = {}
        for c, ok in enumerate(instance.makable_C):
            if ok and (backward or instance.phase_C[c] == "fwd"):
                for a in instance.rewrites_C[c]:
                    if not instance.kept_A[a]:
                        self.maker[a] = c

    def of(self, stage: int, reads: Collection[int]) -> list[int]:
        """All that can be run again towards `reads`."""
        found = {self.maker[a] for a in reads if a in self.maker}
        stack = list(found)
        while stack:
            for a in self.instance.rereads_C[stack.pop()]:
                source = self.maker.get(a)
                if source is not None and source not in found:
                    found.add(source)
                    stack.append(source)
        return sorted(c for c in found if c < stage)


def all_events(instance: Instance, pairs: list[list[int]]) -> list[Event]:
    """Every stage in order: its recomputations, all optional, then its own cNode."""
    events = []
    for t, again in enumerate(pairs):
        events += [Event(c, False, True) for c in again]
        events.append(Event(t, True, False))
    return events


def events_around(
    order: Order, pairs: list[list[int]], stages: Collection[int], free: bool = True
) -> list[Event]:
    """The events of a plan, with every useful pair as an option in `stages`.

    Elsewhere the recomputations of the plan stay where they are, and with `free` may be
    left out.
    """
    events = []
    seen: set[int] = set()
    stage: list[int] = []
    for c in order:
        if c in seen:
            stage.append(c)
            continue
        seen.add(c)
        if c in stages:
            stage = _merged(stage, pairs[c])
        events += [Event(k, False, free or c in stages) for k in stage]
        events.append(Event(c, True, False))
        stage = []
    events += [Event(k, False, free) for k in stage]
    return events


def _merged(plan: list[int], options: list[int]) -> list[int]:
    """`plan` in its order, with the options it lacks put in before the next larger one."""
    present = set(plan)
    extra = [c for c in options if c not in present]
    found: list[int] = []
    for c in plan:
        while extra and extra[0] < c:
            found.append(extra.pop(0))
        found.append(c)
    return found + extra


def order_of(events: list[Event], chosen: Collection[int]) -> Order:
    """What runs: every event that is not optional, and those whose index is chosen."""
    return [e.cnode for i, e in enumerate(events) if not e.optional or i in chosen]
