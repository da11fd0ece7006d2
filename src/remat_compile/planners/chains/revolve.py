"""`revolve`: the schedule of automatic differentiation, made valid for networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..kit import NotApplicable, Order, PlanResult, SearchPlanner, Task
from ..spelling.options import at_least
from .answer import order_of, persistent_answer, saving_stages
from .choices import ChainStep
from .recurrences.homogeneous import Adjoint
from .stages import Stage


@dataclass(frozen=True)
class Revolve(SearchPlanner):
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
    slots: int = at_least(1, 500)

    def search(self, task: Task) -> PlanResult:
        stages = saving_stages(task)
        if isinstance(stages, NotApplicable):
            return stages
        if self.costs == "equal":
            return task.best_of(_equal_orders(stages))
        return persistent_answer(task, stages, self.slots, saving=False)


def _equal_orders(stages: Sequence[Stage]) -> Iterator[Order]:
    """Theorem 1 for every number of memory slots that makes a difference."""
    length = len(stages) - 1
    table = Adjoint(length, length + 2)
    for slots in range(3, length + 3):
        yield order_of(_operations(stages, table, slots))


def _operations(stages: Sequence[Stage], table: Adjoint, slots: int) -> Iterator[ChainStep]:
    last = len(stages) - 1
    lost = False
    for move, i in table.moves(0, last, slots):
        stage = stages[i]
        if move == "forward":
            yield ChainStep("skim", i, (stage.skim_again if lost else stage.skim_first).run)
            continue
        option = stage.options[0]
        yield ChainStep("save", i, (option.last if lost else option.first).run)
        yield ChainStep("back", i, option.backward.run)
        lost = True
