"""`revolve`: the schedule of automatic differentiation, made valid for networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar, Literal

from ..ir.program import Budget, Program
from .chains.answer import answer, chain_for, least_order, no_chain, order_of, persistent_orders
from .chains.choices import Operation
from .chains.homogeneous import Adjoint
from .chains.stages import Stage, save_all, stages_of
from .contract import PlanResult, Progress
from .instance import Order
from .periodic import best_of
from .registry import format_planner
from .results import Task
from .spelling.options import checked

__all__ = ["Revolve"]


@dataclass(frozen=True)
class Revolve:
    """Griewank and Walther 2000: only inputs of blocks are kept, and each block runs again
    just before its backward.

    `costs=measured` is the adaptation to heterogeneous chains of Shilova 2021, section
    2.4.4. `costs=equal` is Theorem 1, for blocks that are all taken to be alike, with
    every number of checkpoints tried. O(N^3 slots) for N blocks.
    """

    name: ClassVar[str] = "revolve"
    applicability: ClassVar[str] = "chain"
    source: ClassVar[str] = "Shilova 2021, sections 1.1.5 and 2.4.4"
    costs: Literal["measured", "equal"] = "measured"
    slots: int = 500

    def __post_init__(self) -> None:
        checked(self)

    @classmethod
    def check_options(cls, costs: str, slots: int) -> Iterator[tuple[str, str]]:
        if slots < 1:
            yield "slots", f"must be at least 1, not {slots}"

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        deadline = monotonic() + time_limit_s
        task = Task.of(program, budget, format_planner(self), deadline)
        chain = chain_for(task.instance)
        if (refusal := no_chain(task, chain)) is not None:
            return refusal
        stages = stages_of(chain, [[save_all(chain, i)] for i in range(len(chain))])
        if self.costs == "equal":
            return best_of(task, _equal_orders(stages), deadline)
        room = task.limit_bytes - task.instance.base_bytes
        orders = persistent_orders(stages, room, self.slots, deadline, saving=False)
        return answer(task, orders, lambda: least_order(stages, deadline, saving=False))


def _equal_orders(stages: Sequence[Stage]) -> Iterator[Order]:
    """Theorem 1 for every number of memory slots that makes a difference."""
    length = len(stages) - 1
    table = Adjoint(length, length + 2)
    for slots in range(3, length + 3):
        yield order_of(_operations(stages, table, slots))


def _operations(stages: Sequence[Stage], table: Adjoint, slots: int) -> Iterator[Operation]:
    last = len(stages) - 1
    lost = False
    for move, i in table.moves(0, last, slots):
        stage = stages[i]
        if move == "forward":
            yield Operation("skim", i, (stage.skim_again if lost else stage.skim_first).run)
            continue
        option = stage.options[0]
        yield Operation("save", i, (option.last if lost else option.first).run)
        yield Operation("back", i, option.backward.run)
        lost = True
