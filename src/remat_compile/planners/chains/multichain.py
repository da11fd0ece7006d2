"""`multichain`: towers that meet at the loss, each a chain of equal steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..kit import Instance, Order, PlanResult, SearchPlanner, Task, TimedOut
from .answer import refuse
from .chain import Chain
from .recurrences.homogeneous import MultiChain, least_slots, states
from .recurrences.persistent import DeadlinePassed
from .stages import Stage, save_all, stages_of
from .towers import Towers, towers_of

_MOST_ENTRIES = 50_000_000
"""Larger tables are refused (400 MB)."""


@dataclass(frozen=True)
class Multichain(SearchPlanner):
    """Shilova 2021, Theorem 3: optimal for join graphs of homogeneous chains.

    Every block of a tower counts as one step of equal time and size, and each number of
    memory slots gives a schedule; the fastest that is within the budget in bytes is
    taken. O(slots K L prod(L_k + 1)) for K towers of L_k blocks.
    """

    name: ClassVar[str] = "multichain"
    applicability: ClassVar[str] = "join"
    source: ClassVar[str] = "Shilova 2021, chapter 1, Theorem 3"

    def search(self, task: Task) -> PlanResult:
        if task.instance.peak(task.instance.capture) <= task.limit_bytes:
            return task.answer(task.instance.capture)
        towers = towers_of(task.instance)
        if isinstance(towers, str):
            return refuse(task, "towers that meet at the loss", towers)
        lengths = towers.lengths
        if states(lengths) * (sum(lengths) + 2 * len(lengths) + 2) > _MOST_ENTRIES:
            why = f"{len(lengths)} towers of {lengths} blocks need too large a table"
            return refuse(task, "a few short towers", why)
        task.progress(f"{self.name}: towers of {lengths} blocks")
        try:
            table = MultiChain(lengths, deadline=task.deadline)
        except DeadlinePassed:
            return TimedOut(None, 0, task.instance.base_time_ns)
        return task.best_of(_orders(towers, table))


def _orders(towers: Towers, table: MultiChain) -> Iterator[Order]:
    chain = towers.chain
    stages = stages_of(chain, [[save_all(chain, i)] for i in range(len(chain))])
    lengths = towers.lengths
    for slots in range(least_slots(lengths, table.kept), table.slots + 1):
        yield _Expansion(towers, stages, table, slots).order


class _Expansion:
    """A schedule of towers as an order of cNodes."""

    def __init__(self, towers: Towers, stages: list[Stage], table: MultiChain, slots: int):
        self.chain: Chain = towers.chain
        self.ran: set[int] = set()
        self.waiting: list[int] = []
        self.order: Order = []
        inst = self.chain.instance
        self.needs = _needs(inst)
        before: list[int] = []
        behind = range(towers.spans[-1][1], len(stages))
        for kind, k, step in table.moves(slots):
            if kind == "loss":
                for i in behind:
                    before += stages[i].options[0].first.run
                # Segments of towers may run in any order ahead of the loss (C.2), so that
                # of capture, in which random numbers are drawn, is taken.
                self.order += sorted(before)
                for i in reversed(behind):
                    self._back(stages[i].options[0].backward.run)
                continue
            stage = stages[towers.spans[k][0] + step]
            if kind == "first":
                before += stage.skim_first.run
            elif kind == "forward":
                self.order += stage.skim_again.run
            else:
                self.order += stage.options[0].last.run
                self._back(stage.options[0].backward.run)

    def _back(self, run: tuple[int, ...]) -> None:
        """Runs backward cNodes; one that waits for another tower runs as soon as it can."""
        self.waiting += run
        going = True
        while going:
            going = False
            for c in list(self.waiting):
                if self.needs[c] <= self.ran:
                    self.waiting.remove(c)
                    self.ran.add(c)
                    self.order.append(c)
                    going = True


def _needs(instance: Instance) -> dict[int, set[int]]:
    """For each backward cNode, the backward cNodes that must have run before it."""
    maker: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    needs: dict[int, set[int]] = {}
    drawn: set[int] = set()
    for c in instance.capture:
        if c == instance.loss or instance.phase_C[c] == "fwd":
            continue
        needs[c] = {maker[a] for a in instance.reads_C[c] if a in maker}
        if instance.ends_C[c] >= 0:
            needs[c] |= readers.get(instance.ends_C[c], set())
        if instance.token_C[c] >= 0:
            needs[c] |= drawn
            drawn = {c}
        for a in instance.reads_C[c]:
            readers.setdefault(a, set()).add(c)
        maker.update(dict.fromkeys(instance.writes_C[c], c))
    return needs
