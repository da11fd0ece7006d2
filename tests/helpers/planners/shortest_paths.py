"""The least time of any schedule that keeps the captured order of first executions.

Shortest paths over all states: how many first executions are done, and what is alive. It
knows the rules of `spec/semantics.md` and nothing of the planners. For graphs without
random tokens and a dozen storages at most.
"""

from __future__ import annotations

from collections.abc import Iterator

from helpers.planners.dijkstra import least_cost
from remat_compile.ir.graph import CALLER_KINDS
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import KEPT_KINDS, Sizes

State = tuple[int, frozenset[str]]


class Exhaustive:
    """Memory is counted as activations."""

    def __init__(self, program: Program, limit_bytes: int, *, backward: bool):
        graph = program.graph
        sizes = Sizes.of(program)
        assert not any(c.token or c.replay for c in graph.cnodes)
        self.limit = limit_bytes
        self.backward = backward
        self.cnodes = graph.cnodes
        self.caller = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
        self.kept = {a.name for a in graph.anodes if a.kind in KEPT_KINDS}
        uncounted = self.caller | {a.name for a in graph.anodes if a.kind == "param_grad"}
        self.size = {name: 0 if name in uncounted else n for name, n in sizes.anode.items()}
        self.workspace = sizes.workspace
        self.reads = [frozenset(graph.reads(c)) - self.caller for c in graph.cnodes]
        self.ends = [graph.reads(c)[0] if c.is_accumulate else "" for c in graph.cnodes]
        ended = set(self.ends)
        self.again = [
            not c.is_loss
            and not c.is_accumulate
            and (backward or c.phase == "fwd")
            and not ended & self.reads[i]
            for i, c in enumerate(graph.cnodes)
        ]

    def least_time_ns(self) -> int | None:
        """None where no schedule fits."""
        start: State = (0, frozenset())
        whole = len(self.cnodes)
        return least_cost(start, 0, lambda state: state[0] == whole, self._moves)

    def _moves(self, state: State) -> Iterator[tuple[int, State]]:
        done, alive = state
        for name in alive - self.kept:
            yield 0, (done, alive - {name})
        for i in (*(j for j in range(done) if self.again[j]), done):
            if i < len(self.cnodes) and self.reads[i] <= alive and self._fits(i, alive):
                cost = self.cnodes[i].time_ns_at(1)
                yield cost, (max(done, i + 1), self._after(i, alive))

    def _fits(self, i: int, alive: frozenset[str]) -> bool:
        c = self.cnodes[i]
        taken = () if c.is_accumulate else c.results
        total = sum(self.size[name] for name in (*alive, *taken)) + self.workspace[c.name]
        return total <= self.limit

    def _after(self, i: int, alive: frozenset[str]) -> frozenset[str]:
        c = self.cnodes[i]
        ended = {self.ends[i]} if c.is_accumulate else set()
        return (alive - ended) | set(c.results)


def least_time_ns(program: Program, budget: Budget, *, backward: bool = True) -> int | None:
    """The least time under an activation budget, in nanoseconds."""
    assert budget.kind == "activation"
    return Exhaustive(program, budget.bytes, backward=backward).least_time_ns()
