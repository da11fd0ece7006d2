"""What fills the device during chosen steps, by kind and by tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ..ir.graph import CALLER_KINDS, Graph
from ..ir.program import Program
from ..ir.schedule import Compute, Schedule, Step
from ..ir.semantics.machine import Machine
from .timeline import replay

__all__ = ["KINDS", "Holding", "Kind", "Moment", "moments"]

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
    """Everything on the device during a step, largest first; the sum is the trace's `during`."""

    step: int
    holdings: tuple[Holding, ...]

    @property
    def by_kind(self) -> dict[Kind, int]:
        """Bytes of every kind, 0 included."""
        found: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        for holding in self.holdings:
            found[holding.kind] += holding.bytes
        return found


def moments(program: Program, schedule: Schedule, steps: Collection[int]) -> Mapping[int, Moment]:
    """The moments of `steps` (indices) of a valid schedule."""
    wanted = frozenset(steps)
    again: set[str] = set()
    in_flight: set[str] = set()
    moments: dict[int, Moment] = {}
    for index, step, state in replay(program, schedule):
        if isinstance(step, Compute):
            _note_writer(state, step, again)
        elif step.copies is not None:
            in_flight.add(step.anode)
        if index in wanted:
            moments[index] = Moment(index, _holdings(state, step, again, in_flight))
        state.apply(index, step)
        if not isinstance(step, Compute) and step.waits:
            in_flight.discard(step.anode)
    return moments


def _note_writer(state: Machine, step: Compute, again: set[str]) -> None:
    """Which instances come from a first execution: decides `saved` or `recomputed`."""
    c = state.graph.cnode[step.cnode]
    n = state.executions.get(c.name, 0) + 1
    for name in state.allocated(c, n):
        if name not in state.live:
            (again.add if n > 1 else again.discard)(name)


def _holdings(
    state: Machine, step: Step, again: set[str], in_flight: set[str]
) -> tuple[Holding, ...]:
    held = dict(state.bytes_of_live())
    extra: list[Holding] = []
    if isinstance(step, Compute):
        c = state.graph.cnode[step.cnode]
        n = state.executions.get(c.name, 0) + 1
        for name in state.allocated(c, n):
            if name in held:
                extra.append(Holding(f"(dropped %{name})", "workspace", state.sizes.anode[name]))
            else:
                held[name] = state.sizes.anode[name]
        if size := state.sizes.workspace_at(c, n):
            extra.append(Holding("(workspace)", "workspace", size))
    elif step.copies == "h2d":
        held[step.anode] = state.sizes.anode[step.anode]
    found = [
        Holding(
            f"%{name}" if name in state.graph.anode else name,
            _kind(state.graph, name, again, in_flight),
            size,
        )
        for name, size in held.items()
    ]
    return tuple(sorted([*found, *extra], key=lambda h: (-h.bytes, h.name)))


def _kind(graph: Graph, name: str, again: set[str], in_flight: set[str]) -> Kind:
    node = graph.anode.get(name)
    if node is None or node.kind == "param_grad":
        return "parameter gradients"
    if node.kind in CALLER_KINDS:
        return "parameters"
    if name in in_flight:
        return "in transfer"
    if node.kind == "phantom":
        return "phantoms"
    if name in again:
        return "recomputed"
    return "gradients" if node.kind in ("grad", "tangent") else "saved"
