"""Orders with moves, read back from a schedule with copies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from ....ir.schedule import Compute, Free, Offload, Prefetch, Schedule
from ...instance import Instance, Order
from .gaps import Gap
from .place import Move


def moves_of(instance: Instance, schedule: Schedule) -> tuple[Order, list[Move]]:
    """The computations of a schedule, in order, and the tensors on the host between two uses.

    A schedule of this package's planners is `steps_of` of these. Another one may copy in other
    places than behind where a tensor is made and before where it is read: a move then says when
    its bytes are given back and taken. O(n log n).
    """
    index = {name: c for c, name in enumerate(instance.names_C)}
    order = [index[step.cnode] for step in schedule.steps if isinstance(step, Compute)]
    uses, makings = _uses(instance, order)
    sent: set[int] = set()
    gone: dict[int, int] = {}
    moves = []
    entry = 0
    for step in schedule.steps:
        match step:
            case Compute():
                entry += 1
            case Offload(anode=name):
                sent.add(instance.index_A[name])
            case Free(anode=name) if (a := instance.index_A[name]) in sent:
                gone[a] = entry
                sent.discard(a)
            case Prefetch(anode=name) if (a := instance.index_A[name]) in gone:
                free = gone.pop(a)
                before = bisect_left(uses[a], free)
                made = makings[a][bisect_right(makings[a], free - 1) - 1]
                back = uses[a][before] if before < len(uses[a]) else len(order)
                gap = Gap(a, instance.size_A[a], made, uses[a][before - 1], back)
                if entry <= back:
                    moves.append(Move(gap, free, entry))
            case _:
                pass
    return order, sorted(moves, key=lambda move: (move.gap.made, move.gap.anode))


def _uses(inst: Instance, order: Order) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The entries that use each tensor, those that make it among them, and those that make it."""
    uses: dict[int, list[int]] = defaultdict(list)
    makings: dict[int, list[int]] = defaultdict(list)
    seen: set[int] = set()
    for i, c in enumerate(order):
        first = c not in seen
        seen.add(c)
        token = (inst.token_C[c],) if inst.token_C[c] >= 0 else ()
        made = (*(inst.writes_C[c] if first else inst.rewrites_C[c]), *(token if first else ()))
        for a in dict.fromkeys((*(inst.reads_C[c] if first else inst.rereads_C[c]), *made, *token)):
            uses[a].append(i)
        for a in made:
            if first or not inst.kept_A[a]:
                makings[a].append(i)
    return uses, makings
