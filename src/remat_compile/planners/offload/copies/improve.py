"""Improves a plan with copies: recomputations that the link makes needless, and the other way
round.

Moves, each tried by placing all copies anew, and kept where the step gets faster:

* a recomputation is left out, with those that only it read: what it made waits, on the host if the
  budget asks for it;
* a tensor that was moved is made again instead, just before it is read: the link is free for
  others;
* a tensor that was moved stays, so that others go in its place (whole tensors free more than is
asked
  for, which a set of the oldest ones does not look at).

Tried are those first that promise most: recomputations by their time, tensors by bytes per
nanosecond of recomputation. The number of tries is bounded, so the answer does not depend on the
machine, unless the deadline passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ...instance import Instance, Order
from .gaps import Gap
from .task import CopyTask, Placed

_MOST_WORK = 300_000
"""Tries times entries of the order."""
_MOST_MAKERS = 6
"""Limit on the cNodes that recompute one tensor."""
_MOST_IDLE = 40
"""The search ends after this many tries in a row without a gain."""


def improve(task: CopyTask, *, recompute: bool = True) -> None:
    """Makes the best plan of `task` faster where it can; without `recompute` what is computed stays
    as it is."""
    tries = _MOST_WORK // max(1, len(task.instance.names_C))
    for known in dict.fromkeys((*_order_of_best(task), tuple(task.instance.capture))):
        for gaps in islice(_other_turns(task, list(known)), tries // 4):
            if task.late or task.is_best_possible:
                return
            tries -= 1
            task.try_gaps(list(known), gaps)
    while task.best is not None and not task.is_best_possible and tries > 0:
        before = task.best
        neighbours = _neighbours(task, before, recompute=recompute)
        for order, gaps in islice(neighbours, min(tries, _MOST_IDLE)):
            if task.late:
                break
            tries -= 1
            task.try_gaps(order, gaps)
            if task.best is not before:
                break
        if task.best is before:
            return


def _order_of_best(task: CopyTask) -> list[tuple[int, ...]]:
    return [] if task.best is None else [task.best.order]


def _other_turns(task: CopyTask, order: Order) -> Iterator[list[Gap]]:
    """The largest tensors first, those that are read last, and only those behind computations that
    take long for their bytes, in place of the oldest."""
    gaps = task.gaps(order)
    yield sorted(gaps, key=lambda gap: (-gap.size_bytes, gap.made))
    yield sorted(gaps, key=lambda gap: (-gap.back, gap.made))
    yield from task.thresholds(order)


def _neighbours(
    task: CopyTask, placed: Placed, *, recompute: bool
) -> Iterator[tuple[Order, list[Gap]]]:
    """The neighbours by one move, of all kinds in turn."""
    kinds = [_staying(task, placed)]
    if recompute:
        order = list(placed.order)
        both = (_without(task.instance, order), _with(task, order))
        kinds += [((other, task.gaps(other)) for other in orders) for orders in both]
    while kinds:
        for kind in list(kinds):
            if (other := next(kind, None)) is None:
                kinds.remove(kind)
            else:
                yield other


def _staying(task: CopyTask, placed: Placed) -> Iterator[tuple[Order, list[Gap]]]:
    moved = _moved(task, placed.gaps)
    for gap in sorted(moved, key=lambda gap: (gap.size_bytes, gap.made)):
        yield list(placed.order), [other for other in placed.gaps if other != gap]


def _moved(task: CopyTask, gaps: Iterable[Gap]) -> list[Gap]:
    """The gaps during which the best plan keeps a tensor on the host."""
    assert task.best is not None
    moved = {move.gap.anode for move in task.best.moves}
    return [gap for gap in gaps if gap.anode in moved]


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
        yield inst.without_idle([*order[:i], *order[i + 1 :]])


def _with(task: CopyTask, order: Order) -> Iterator[Order]:
    """Tensors that were moved, made again just before their first reader behind the gap, with what
    that takes and nothing would read so late."""
    inst = task.instance
    last = {a: i for i, c in enumerate(order) for a in (*inst.reads_C[c], *inst.rereads_C[c])}
    candidates: list[tuple[float, Gap, list[int]]] = []
    for gap in _moved(task, task.gaps(order)):
        if gap.back >= len(order):
            continue
        makers = _makers(inst, gap.anode, {a for a, i in last.items() if i >= gap.back})
        if makers is not None:
            price = sum(inst.retime_C[c] for c in makers) / gap.size_bytes
            candidates.append((price, gap, makers))
    for _, gap, makers in sorted(candidates, key=lambda item: (item[0], item[1].made)):
        yield [*order[: gap.back], *makers, *order[gap.back :]]


def _makers(inst: Instance, anode: int, there: set[int]) -> list[int] | None:
    """The cNodes that make it again from what is `there`, as captured; None where they cannot, or
    are many."""
    todo, makers = [anode], set[int]()
    while todo:
        a = todo.pop()
        c = inst.writer_A[a]
        if c < 0 or not inst.makable_C[c] or a not in inst.rewrites_C[c]:
            return None
        if c not in makers:
            makers.add(c)
            todo += [b for b in inst.rereads_C[c] if b not in there]
        if len(makers) > _MOST_MAKERS:
            return None
    return sorted(makers)
