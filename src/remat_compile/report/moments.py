"""The contents of the device during chosen steps, by kind and by tensor."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ..ir.graph import CALLER_KINDS, Graph
from ..ir.program import Program
from ..ir.schedule import Compute, Schedule, Step
from ..ir.semantics.machine import Machine
from .charts.timeline import replay

Kind = Literal[
    "parameters",
    "parameter gradients",
    "saved",
    "gradients",
    "phantoms",
    "recomputed",
    "in transfer",
    "workspace",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which a chart stacks them: what the caller holds (inputs and buffers with the
parameters) at the bottom, what passes at the top. `saved` is what first executions made."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A tensor with its bytes: `%x`, `(workspace)`, `(dropped %x)` or `(existing gradients)`."""

    name: str
    kind: Kind
    bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The contents of the device during a step; `by_kind` adds up to the trace's `during`.

    `holdings`, the largest first, are all that is there, or the largest of each kind where few
    were asked for; `count` is how many there are of each kind.
    """

    step: int
    holdings: tuple[Holding, ...]
    by_kind: Mapping[Kind, int]
    count: Mapping[Kind, int]


def moments(
    program: Program, schedule: Schedule, steps: Collection[int], most: int | None = None
) -> Mapping[int, Moment]:
    """The moments of `steps` (indices) of a valid schedule, with at most `most` holdings of each
    kind. Takes time in the steps, not in steps times tensors."""
    wanted = frozenset(steps)
    again: set[str] = set()
    in_flight: set[str] = set()
    moments: dict[int, Moment] = {}
    ledger: _Ledger | None = None
    for index, step, state in replay(program, schedule):
        if ledger is None:
            ledger = _Ledger(state.bytes_of_live(), program.graph)
        if isinstance(step, Compute):
            _note_writer(state, step, again)
        elif step.copies is not None:
            in_flight.add(step.anode)
            ledger.enter((step.anode,), state, again, in_flight)
        if index in wanted:
            passing = _passing(state, step, again, in_flight)
            for holding in passing:
                ledger.put(holding)
            moments[index] = ledger.moment(index, most)
            for holding in passing:
                ledger.take(holding.name)
        state.apply(index, step)
        if not isinstance(step, Compute) and step.waits:
            in_flight.discard(step.anode)
        ledger.enter(_touched(program.graph, step), state, again, in_flight)
    return moments


class _Ledger:
    """The held storages of each kind in order of bytes, updated from step to step."""

    def __init__(self, live: Mapping[str, int], graph: Graph) -> None:
        self.kind_of: dict[str, tuple[Kind, int]] = {}
        self.order: dict[Kind, list[tuple[int, str]]] = {kind: [] for kind in KINDS}
        self.bytes: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        for name, size in live.items():
            self.put(_holding(graph, name, size, (), ()))

    def put(self, holding: Holding) -> None:
        self.kind_of[holding.name] = holding.kind, holding.bytes
        insort(self.order[holding.kind], (-holding.bytes, holding.name))
        self.bytes[holding.kind] += holding.bytes

    def take(self, name: str) -> None:
        """Drops `name`; no effect if it is not held."""
        if name in self.kind_of:
            kind, size = self.kind_of.pop(name)
            order = self.order[kind]
            del order[bisect_left(order, (-size, name))]
            self.bytes[kind] -= size

    def enter(
        self, names: Iterable[str], state: Machine, again: Collection[str], flying: Collection[str]
    ) -> None:
        """Takes over what the machine says of `names`."""
        for name in names:
            self.take(f"%{name}")
            if name in state.live:
                size = state.sizes.anode[name]
                self.put(_holding(state.graph, name, size, again, flying))

    def moment(self, step: int, most: int | None) -> Moment:
        largest = sorted(
            (size, name, kind) for kind, order in self.order.items() for size, name in order[:most]
        )
        return Moment(
            step,
            tuple(Holding(name, kind, -size) for size, name, kind in largest),
            dict(self.bytes),
            {kind: len(order) for kind, order in self.order.items()},
        )


def _touched(graph: Graph, step: Step) -> tuple[str, ...]:
    """The aNodes that may be there after a step and not before it, or the other way round."""
    if not isinstance(step, Compute):
        return (step.anode,)
    c = graph.cnode[step.cnode]
    ended = graph.reads(c)[:1] if c.is_accumulate else ()
    return (*c.results, *((c.token,) if c.token else ()), *ended)


def _note_writer(state: Machine, step: Compute, again: set[str]) -> None:
    """Which instances come from a first execution: decides `saved` or `recomputed`."""
    c = state.graph.cnode[step.cnode]
    n = state.executions.get(c.name, 0) + 1
    for name in state.allocated(c, n):
        if name not in state.live:
            (again.add if n > 1 else again.discard)(name)


def _passing(
    state: Machine, step: Step, again: Collection[str], flying: Collection[str]
) -> tuple[Holding, ...]:
    """The bytes that a step takes while it runs, beside those there before it."""
    if not isinstance(step, Compute):
        arrives = step.copies == "h2d" and step.anode not in state.live
        size = state.sizes.anode[step.anode]
        return (_holding(state.graph, step.anode, size, again, flying),) if arrives else ()
    c = state.graph.cnode[step.cnode]
    n = state.executions.get(c.name, 0) + 1
    holdings = [
        Holding(f"(dropped %{name})", "workspace", state.sizes.anode[name])
        if name in state.live
        else _holding(state.graph, name, state.sizes.anode[name], again, flying)
        for name in state.allocated(c, n)
    ]
    if size := state.sizes.workspace_at(c, n):
        holdings.append(Holding("(workspace)", "workspace", size))
    return tuple(holdings)


def _holding(
    graph: Graph, name: str, size: int, again: Collection[str], flying: Collection[str]
) -> Holding:
    said = f"%{name}" if name in graph.anode else name
    return Holding(said, _kind(graph, name, again, flying), size)


def _kind(graph: Graph, name: str, again: Collection[str], flying: Collection[str]) -> Kind:
    node = graph.anode.get(name)
    if node is None or node.kind == "param_grad":
        return "parameter gradients"
    if node.kind in CALLER_KINDS:
        return "parameters"
    if name in flying:
        return "in transfer"
    if node.kind == "phantom":
        return "phantoms"
    if name in again:
        return "recomputed"
    return "gradients" if node.kind in ("grad", "tangent") else "saved"
