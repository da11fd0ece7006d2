"""Answers of planners of chains: a table of stages becomes a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from ...ir.diagnostics import Diagnostic, Note
from ..contract import NotApplicable, PlanResult, TimedOut
from ..instance import Instance, Order
from ..results import Task
from .chain import Chain, chain_of_program, shortened
from .choices import ChainStep, operations, reserve_tokens, slot_bytes
from .recurrences.persistent import DeadlinePassed, Least, Persistent
from .stages import Stage, save_all, stages_of

_ABOVE = 0.1
"""Tables reach so much above the budget: sizes were rounded up, so schedules that seem
too large may fit."""


def order_of(steps: Iterable[ChainStep]) -> Order:
    """The cNodes of a chain's schedule; frees are implied (after the last use)."""
    return [c for step in steps for c in step.run]


_MOST_STEPS = 60_000_000_000
_LEAST_SLOTS = 20
"""Long chains (of more than 490 stages for 500 slots) get fewer slots, so that the tables
take seconds and less than a gigabyte."""
_MOST_STAGES = 1000
"""Neighbours are joined in longer chains."""


class _Table(Protocol):
    def time_ns(self, slots: int) -> float: ...


@dataclass(frozen=True)
class Slots:
    """Memory in slots: `fits` of them are within the budget, tables go up to `top`.

    `stages` have no generator states where these are set aside as a whole.
    """

    stages: list[Stage]
    slot: int
    fits: int
    top: int

    @staticmethod
    def of(stages: Sequence[Stage], room_bytes: int, slots: int) -> Slots:
        room = max(1, min(room_bytes, _most_bytes(stages)))
        slots = min(slots, max(_LEAST_SLOTS, _MOST_STEPS // len(stages) ** 3))
        slot = slot_bytes(stages, room, slots)
        plain, reserved = reserve_tokens(stages, slot)
        fits = max(0, room - reserved) // slot
        return Slots(plain, slot, fits, fits + max(1, int(fits * _ABOVE)))


def saving_stages(task: Task) -> list[Stage] | NotApplicable:
    """The chain of a task's program, each stage with one option: all that its backward reads
    is kept. FB0409 for a program that is no chain."""
    chain = chain_for(task.instance)
    if (refusal := no_chain(task, chain)) is not None:
        return refusal
    return stages_of(chain, [[save_all(chain, i)] for i in range(len(chain))])


def chain_for(instance: Instance, most_stages: int = _MOST_STAGES) -> Chain:
    """The chain of a program, short enough for the dynamic programs."""
    return shortened(chain_of_program(instance), most_stages)


def _most_bytes(stages: Sequence[Stage]) -> int:
    """No schedule of the chain can use more."""
    each = [
        max(s.held_again, s.held_first)
        + max(s.skim_first.dropping_bytes, s.skim_again.dropping_bytes)
        + sum(o.backward.peak_bytes + o.first.peak_bytes + o.hold_bytes for o in s.options)
        + s.token_bytes
        for s in stages
    ]
    return sum(each)


def falling_orders(
    table: _Table, slots: Slots, expand: Callable[[int], Sequence[ChainStep]]
) -> Iterator[Order]:
    """The schedules of a table from the largest memory down to what fits, the fastest
    first: whoever asks takes the first that is within the budget in bytes."""
    previous = inf
    for memory in range(slots.top, slots.fits - 1, -1):
        time_ns = table.time_ns(memory)
        if time_ns == inf:
            return
        if time_ns != previous or memory == slots.fits:
            previous = time_ns
            yield order_of(expand(memory))


def persistent_orders(
    task: Task, stages: Sequence[Stage], slots: int, *, saving: bool = True
) -> Iterator[Order]:
    """Optimal persistent schedules, the fastest first. Raises DeadlinePassed."""
    scale = Slots.of(stages, task.limit_bytes - task.instance.base_bytes, slots)
    table = Persistent(scale.stages, scale.slot, scale.top, task.deadline, saving=saving)
    yield from falling_orders(
        table, scale, lambda memory: operations(scale.stages, table.choose, memory)
    )


def least_order(task: Task, stages: Sequence[Stage], *, saving: bool = True) -> Order:
    """The persistent schedule of the least predicted peak. Raises DeadlinePassed."""
    least = Least(stages, task.deadline, saving=saving)
    return order_of(operations(stages, least.choose, 0))


def first_fit(task: Task, orders: Iterable[Order]) -> Order | None:
    """The first of `orders` that is within the budget."""
    peak, limit = task.instance.peak, task.limit_bytes
    return next((order for order in orders if peak(order) <= limit), None)


def answer_or_refuse(task: Task, order: Order) -> PlanResult:
    """The order as a plan if it is within the budget; else a refusal that names its peak."""
    if task.instance.peak(order) <= task.limit_bytes:
        return task.answer(order)
    return task.infeasible(order)


def persistent_answer(
    task: Task, stages: Sequence[Stage], slots: int, *, saving: bool = True
) -> PlanResult:
    """The fastest persistent schedule within the budget; else that of least memory if it
    is; else a refusal."""
    try:
        order = first_fit(task, persistent_orders(task, stages, slots, saving=saving))
        if order is None:
            order = least_order(task, stages, saving=saving)
    except DeadlinePassed:
        return TimedOut(None, 0, task.instance.base_time_ns)
    return answer_or_refuse(task, order)


def refuse(task: Task, shape: str, why: str, notes: Sequence[str] = ()) -> NotApplicable:
    """FB0409: the planner does not apply to this graph. `shape` is what it is for."""
    return NotApplicable(
        Diagnostic(
            "FB0409",
            f"{task.planner} plans {shape}, and this graph is none: {why}",
            notes=tuple(Note(note) for note in notes),
            hint="these plan any graph: auto, dtr, periodic, chen, store-all",
        )
    )


def no_chain(task: Task, chain: Chain) -> NotApplicable | None:
    """The refusal for a forward that no single value cuts in two; None for a chain."""
    if len(chain) > 2:
        return None
    why = "no single value separates the first part of its forward from the rest"
    return refuse(task, "chains of blocks", why)
