"""Answers of `pofo` and `rk-pofo`, from a chain with options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite

from ...chains.answer import Slots, chain_for, no_chain, order_of
from ...chains.chain import Chain
from ...chains.choices import operations, reserve_tokens
from ...chains.recurrences.persistent import DeadlinePassed, Persistent
from ...chains.stages import BlockOption, Stage, stages_of
from ...contract import PlanResult
from ..copies.improve import improve
from ..copies.task import CopyTask
from .joint_table import JointTable, LinkRates

_SHARES = (1.0, 1.1, 0.93, 1.25, 0.85, 0.7)
_MOST = max(_SHARES)
"""Memory that the tables are given, as shares of the room: sizes are rounded up there, and `place`
gives bytes back later than the tables think."""
_LEVELS, _FINE_SLOTS, _FINE_STAGES = 12, 300, 250
"""The number of stages in the faster tables without copies."""


def answer_jointly(
    task: CopyTask,
    options_of: Callable[[Chain, int], Sequence[BlockOption]],
    *,
    slots: int,
    most_stages: int,
) -> PlanResult:
    """Answer for the graph as a chain of at most `most_stages` blocks, each with the options that
    `options_of` gives it; memory counts in `slots`. Tried too is what is found without copies for
    finer blocks, and improved by itself: what starts faster does not end so. NotApplicable for what
    is no chain."""
    capture = task.instance.capture
    chain = chain_for(task.instance, most_stages)
    if (refusal := no_chain(task.task, chain)) is not None:
        return refusal
    task.try_gaps(capture, task.gaps(capture))
    if not task.is_best_possible:
        options_N = [options_of(chain, i) for i in range(len(chain))]
        stages = stages_of(chain, options_N)
        with suppress(DeadlinePassed):
            _try_tables(task, chain, stages, options_N, slots)
            _try_persistent(task, stages)
        improve(task)
        if len(fine := chain_for(task.instance, _FINE_STAGES)) > len(chain):
            finer = [options_of(fine, i) for i in range(len(fine))]
            apart = CopyTask(task.task)
            with suppress(DeadlinePassed):
                _try_persistent(apart, stages_of(fine, finer))
            improve(apart)
            task.take_in(apart)
    return task.answer()


def _try_persistent(task: CopyTask, stages: Sequence[Stage]) -> None:
    """Lets `task` try persistent schedules for more memory than there is, whose rest is moved."""
    inst = task.instance
    low, high = task.task.limit_bytes - inst.base_bytes, inst.peak(inst.capture) - inst.base_bytes
    if low >= high:
        return
    scale = Slots.of(stages, high, _FINE_SLOTS)
    table = Persistent(scale.stages, scale.slot, scale.top, task.task.deadline)
    seen: set[float] = set()
    for k in range(_LEVELS):
        memory = int((low + (high - low) * k / (_LEVELS - 1)) // scale.slot)
        time_ns = table.time_ns(min(memory, scale.top))
        if not isfinite(time_ns) or time_ns in seen or task.is_best_possible:
            continue
        seen.add(time_ns)
        order = order_of(operations(scale.stages, table.choose, min(memory, scale.top)))
        task.try_gaps(order, task.gaps(order))


def _try_tables(
    task: CopyTask,
    chain: Chain,
    stages: Sequence[Stage],
    options_N: Sequence[Sequence[BlockOption]],
    slots: int,
) -> None:
    inst = task.instance
    room = min(task.task.limit_bytes, inst.peak(inst.capture)) - inst.base_bytes
    target = inst.program.target
    slot = max(1, -(-int(_MOST * room) // slots))
    plain, reserved = reserve_tokens(stages, slot)
    rates = [(r or 0) / 1e9 / slot for r in (target.d2h_bytes_per_s, target.h2d_bytes_per_s)]
    table = JointTable(plain, slot, slots, LinkRates(*rates), task.task.deadline)
    tops = (min(slots, (int(share * room) - reserved) // slot) for share in _SHARES)
    for top in dict.fromkeys(tops):
        if top < 1 or not isfinite(table.time_ns(top)):
            continue
        steps, moved = table.schedule(top)
        order = order_of(steps)
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
