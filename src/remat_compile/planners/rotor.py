"""`rotor`: the optimal persistent schedule of a chain of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from ..ir.program import Budget, Program
from .chains.answer import answer, chain_for, least_order, no_chain, persistent_orders
from .chains.stages import save_all, stages_of
from .contract import PlanResult, Progress
from .registry import format_planner
from .results import Task
from .spelling.options import checked

__all__ = ["Rotor"]


@dataclass(frozen=True)
class Rotor:
    """Shilova 2021, Theorem 6: each block of the chain keeps all that its backward reads, or
    nothing but its input.

    Sizes are counted in `slots` memory slots, rounded up. O(N^3 slots) for N blocks.
    """

    name: ClassVar[str] = "rotor"
    applicability: ClassVar[str] = "chain"
    source: ClassVar[str] = "Shilova 2021, Theorem 6"
    slots: int = 500

    def __post_init__(self) -> None:
        checked(self)

    @classmethod
    def check_options(cls, slots: int) -> Iterator[tuple[str, str]]:
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
        room = task.limit_bytes - task.instance.base_bytes
        orders = persistent_orders(stages, room, self.slots, deadline)
        return answer(task, orders, lambda: least_order(stages, deadline))
