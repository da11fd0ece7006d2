"""Improves a plan with copies: recomputations that the link makes needless, and the other way round.

Two moves, each tried by placing all copies anew, and kept where the step gets faster:

* a recomputation is left out, with those that only it read: what it made waits, on the host if the
  budget asks for it;
* a tensor that was moved is made again instead, just before it is read: the link is free for
  others.

Tried are those first that promise most: recomputations by their time, tensors by bytes per
nanosecond of recomputation. The number of tries is bounded, so the answer does not depend on the
machine, unless the deadline passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...ir.schedule import Offload
from ..instance import Instance, Order
from .gaps import Gap
from .task import CopyTask

__all__ = ["improve"]

_MOST_WORK = 120_000
"""Tries times entries of the order."""
_MOST_IDLE = 40
"""So many tries in a row that gain nothing end the search."""


def improve(task: CopyTask) -> None:
    """Makes the best plan of `task` faster where it can."""
    tries = _MOST_WORK // max(1, len(task.instance.names_C))
    while task.best is not None and not task.is_best_possible and tries > 0:
        before = task.best
        idle = 0
        for order in _neighbours(task, list(before.order)):
            if task.late or tries <= 0 or idle >= _MOST_IDLE:
                break
            tries -= 1
            idle += 1
            task.try_gaps(order, task.gaps(order))
            if task.best is not before:
                break
        if task.best is before:
            return


def _neighbours(task: CopyTask, order: Order) -> Iterator[Order]:
    """Orders that differ by one move, in turns of both kinds."""
    kinds = [_without(task.instance, order), _with(task, order)]
    while kinds:
        for kind in list(kinds):
            if (other := next(kind, None)) is None:
                kinds.remove(kind)
            else:
                yield other


def replays(order: Order) -> list[int]:
    """The entries that are not the first execution of their cNode."""
    seen: set[int] = set()
    again = []
    for i, c in enumerate(order):
        if c in seen:
            again.append(i)
        seen.add(c)
    return again


def _without(inst: Instance, order: Order) -> Iterator[Order]:
    for i in sorted(replays(order), key=lambda i: (-inst.retime_C[order[i]], i)):
        yield without_idle(inst, [*order[:i], *order[i + 1 :]])


def without_idle(inst: Instance, order: Order) -> Order:
    """The order without recomputations of which nothing is read before it is made again."""
    again = set(replays(order))
    wanted: set[int] = set()
    kept = []
    for i in range(len(order) - 1, -1, -1):
        c = order[i]
        if i in again:
            made = inst.rewrites_C[c]
            if not wanted.intersection(made):
                continue
            wanted.difference_update(a for a in made if not inst.kept_A[a])
            wanted.update(inst.rereads_C[c])
        else:
            wanted.difference_update(inst.writes_C[c])
            wanted.update(inst.reads_C[c])
        kept.append(c)
    return kept[::-1]


def _with(task: CopyTask, order: Order) -> Iterator[Order]:
    inst = task.instance
    assert task.best is not None
    steps = task.best.schedule.steps
    names = Counter(step.anode for step in steps if isinstance(step, Offload))
    gaps = [gap for gap in task.gaps(order) if names[inst.names_A[gap.anode]]]
    makers = {gap: inst.writer_A[gap.anode] for gap in gaps}
    fit = [gap for gap in gaps if _can_make(inst, gap, makers[gap], order)]
    for gap in sorted(fit, key=lambda gap: (inst.retime_C[makers[gap]] / gap.size_bytes, gap.made)):
        yield [*order[: gap.back], makers[gap], *order[gap.back :]]


def _can_make(inst: Instance, gap: Gap, maker: int, order: Order) -> bool:
    if maker < 0 or gap.back >= len(order) or not inst.makable_C[maker]:
        return False
    # What draws random numbers would begin to store its state: another order of tries.
    return gap.anode in inst.rewrites_C[maker]
