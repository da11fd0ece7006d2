"""The least time of any schedule that also copies to the host: shortest paths over all states.

A state is how many first executions are done (they keep the order of capture), what is alive, what
the host holds, and of each copy in flight how much longer it takes. It knows the rules of
`spec/semantics.md` for two directions that do not slow each other down, and nothing of the
planners. For graphs without random tokens and with a handful of storages.

To keep the states few: moved is what the forward makes and the backward reads, back after the loss;
bytes are given back with the wait; what nothing reads any more is freed at once; the forward may
run again. None of that can make a schedule slower, but that gradients and sums stay on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from helpers.planners.dijkstra import least_cost
from remat_compile.ir.graph import CALLER_KINDS
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import KEPT_KINDS, Sizes

Way = Literal["d2h", "h2d"]


class State(NamedTuple):
    done: int
    alive: frozenset[str]
    host: frozenset[str]
    flying: frozenset[tuple[str, Way, int]]
    """Copies in flight, and how long from now they end."""

    busy_out: int
    busy_back: int


class CopyingTruth:
    def __init__(self, program: Program, limit_bytes: int, *, recompute: bool):
        graph = program.graph
        sizes = Sizes.of(program)
        assert not any(c.token or c.replay or c.is_accumulate for c in graph.cnodes)
        assert program.target.shared_bytes_per_s is None
        self.limit, self.recompute = limit_bytes, recompute
        self.target = program.target
        self.cnodes = graph.cnodes
        self.caller = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
        self.kept = {a.name for a in graph.anodes if a.kind in KEPT_KINDS}
        self.results = {graph.storage[r.name] for r in program.binding.results}
        self.bytes = sizes.anode
        uncounted = self.caller | {a.name for a in graph.anodes if a.kind == "param_grad"}
        self.size = {name: 0 if name in uncounted else n for name, n in sizes.anode.items()}
        self.workspace = sizes.workspace
        self.reads = [frozenset(graph.reads(c)) - self.caller for c in graph.cnodes]
        self.loss = next(i for i, c in enumerate(graph.cnodes) if c.is_loss)
        self.last = {a: i for i, reads in enumerate(self.reads) for a in reads}
        made = {a for c in self.cnodes[: self.loss] for a in c.results} - self.kept
        self.movable = {a for a in made - self.results if self.last.get(a, -1) > self.loss}
        self.again = made - self.results

    def least_time_ns(self) -> int | None:
        """None where no schedule fits."""
        start = State(0, frozenset(), frozenset(), frozenset(), 0, 0)
        return least_cost(start, 0, self._ended, self._moves)

    def _ended(self, state: State) -> bool:
        done = state.done == len(self.cnodes) and not state.flying and not state.host
        return done and self.kept <= state.alive

    def _later(self, state: State, ns: int) -> State:
        flying = frozenset((a, way, max(0, left - ns)) for a, way, left in state.flying)
        out, back = max(0, state.busy_out - ns), max(0, state.busy_back - ns)
        return state._replace(flying=flying, busy_out=out, busy_back=back)

    def _moves(self, state: State) -> Iterator[tuple[int, State]]:
        in_flight = {a: (way, left) for a, way, left in state.flying}
        for a, way, left in state.flying:
            later = self._later(state, left)
            later = later._replace(flying=later.flying - {(a, way, 0)})
            if way == "d2h":
                yield left, later._replace(alive=later.alive - {a})
            else:
                yield left, later._replace(host=later.host - {a})
        at_rest = state.alive - frozenset(in_flight)
        for a in at_rest & self.again if self.recompute else ():
            yield 0, state._replace(alive=state.alive - {a})
        issue = self.target.copy_issue_ns
        issued = self._later(state, issue)
        for a in (at_rest & self.movable) - state.host:
            takes = issued.busy_out + self._takes(a, self.target.d2h_bytes_per_s)
            flying = issued.flying | {_flight(a, "d2h", takes)}
            yield issue, issued._replace(host=state.host | {a}, flying=flying, busy_out=takes)
        for a in state.host - state.alive:
            if state.done > self.loss and self._bytes(state.alive | {a}) <= self.limit:
                takes = issued.busy_back + self._takes(a, self.target.h2d_bytes_per_s)
                flying = issued.flying | {_flight(a, "h2d", takes)}
                alive = state.alive | {a}
                yield issue, issued._replace(alive=alive, flying=flying, busy_back=takes)
        again = range(min(state.done, self.loss)) if self.recompute else ()
        for i in (*again, state.done):
            if i < len(self.cnodes) and self._may_run(i, state, in_flight):
                ns = self.cnodes[i].time_ns_at(1)
                later = self._later(state, ns)
                done = max(state.done, i + 1)
                alive = later.alive | frozenset(self.cnodes[i].results)
                dead = {a for a in alive - self.kept if self.last.get(a, -1) < done}
                yield ns, later._replace(done=done, alive=alive - dead)

    def _takes(self, a: str, rate: int | None) -> int:
        moving = -(-self.bytes[a] * 10**9 // rate) if rate else 0
        return self.target.copy_latency_ns + moving

    def _bytes(self, alive: frozenset[str]) -> int:
        return sum(self.size[a] for a in alive)

    def _may_run(self, i: int, state: State, in_flight: dict[str, tuple[Way, int]]) -> bool:
        c = self.cnodes[i]
        arriving = {a for a, (way, _) in in_flight.items() if way == "h2d"}
        if not self.reads[i] <= state.alive - arriving or set(c.results) & set(in_flight):
            return False
        made = sum(self.size[a] for a in c.results)
        return self._bytes(state.alive) + made + self.workspace[c.name] <= self.limit


def _flight(a: str, way: Way, left: int) -> tuple[str, Way, int]:
    return a, way, left


def least_time_ns(program: Program, budget: Budget, *, recompute: bool = True) -> int | None:
    """The least time under an activation budget, in nanoseconds."""
    assert budget.kind == "activation"
    return CopyingTruth(program, budget.bytes, recompute=recompute).least_time_ns()
