"""From a chain with options to the answer of `pofo` and `rk-pofo`."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from ..chains.answer import order_of
from ..chains.chain import Chain
from ..chains.choices import reserve_tokens
from ..chains.persistent import DeadlinePassed
from ..chains.stages import BlockOption, stages_of
from .joint_table import JointTable, Link
from .task import CopyTask

__all__ = ["try_joint"]

_SHARES = (1.0, 1.1, 0.93, 1.25, 0.85, 0.7)
_MOST = max(_SHARES)
"""Memory that the tables are given, as shares of the room: sizes are rounded up there, and `place`
gives bytes back later than the tables think."""


def try_joint(
    task: CopyTask, chain: Chain, options_N: Sequence[Sequence[BlockOption]], slots: int
) -> None:
    """Lets `task` try the schedules of the joint tables."""
    inst = task.instance
    room = min(task.task.limit_bytes, inst.peak(inst.capture)) - inst.base_bytes
    target = inst.program.target
    stages = stages_of(chain, options_N)
    slot = max(1, -(-int(_MOST * room) // slots))
    plain, reserved = reserve_tokens(stages, slot)
    rates = [(r or 0) / 1e9 / slot for r in (target.d2h_bytes_per_s, target.h2d_bytes_per_s)]
    try:
        table = JointTable(plain, slot, slots, Link(*rates), task.task.deadline)
    except DeadlinePassed:
        return
    tops = (min(slots, (int(share * room) - reserved) // slot) for share in _SHARES)
    for top in dict.fromkeys(tops):
        if top < 1 or not isfinite(table.time_ns(top)):
            continue
        operations, moved = table.schedule(top)
        order = order_of(operations)
        sent: set[int] = set()
        for s, x in moved:
            sent |= chain.cross_N[s - 1]
            if x:
                sent |= options_N[s - 1][x - 1].kept
        gaps = task.gaps(order)
        chosen = [gap for gap in gaps if gap.anode in sent]
        task.try_gaps(order, [*chosen, *(gap for gap in gaps if gap.anode not in sent)])
        task.try_gaps(order, gaps)
        if task.is_best_possible:
            return
