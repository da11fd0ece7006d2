"""Buffers of a plan's values under XLA: of their own, or shared with results.

XLA assigns buffers by decreasing size, results before temporary values of their size
(`AssignBuffersForComputations` in xla/service/buffer_assignment.cc). A temporary value goes into
the smallest buffer of a result that is as large and holds nothing else at that time, and what
finds none goes into the temporary memory, where it is alone for as long as it is read.

    %dw, 64 bytes, made at step 9        a buffer of its own: it is a result
    %h, 64 bytes, read at steps 2 to 5   in the buffer of %dw
    %g, 64 bytes, read at steps 4 to 8   temporary: %h is there at 4 and 5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....ir.graph import CALLER_KINDS, CNode
from ....ir.program import Program
from ....ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Wait
from ....ir.semantics.simulate import Sizes
from ..emit.executions import constants

_HELD = CALLER_KINDS | {"tangent", "rng"}
"""The storages of the caller, and random states, which JAX keeps as keys."""


@dataclass(frozen=True, slots=True)
class XlaFigures:
    """Measurements of single computations, by cNode: the bytes that XLA takes while
    one runs, and the aNode that one gives back as it is (`clone`), for which it takes nothing."""

    workspaces: Mapping[str, int] = field(default_factory=dict)
    passed_on: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ValueBuffer:
    """One materialisation of an aNode: made at step `first`, read at `last` for the last time."""

    anode: str
    size_bytes: int
    first: int
    last: int
    is_result: bool

    @property
    def order(self) -> tuple[int, bool, int]:
        """XLA's: by size, results first, then as they are made."""
        return -self.size_bytes, not self.is_result, self.first


def buffers_of(
    program: Program,
    schedule: Schedule,
    env: Mapping[str, int] | None = None,
    figures: XlaFigures | None = None,
) -> tuple[ValueBuffer, ...]:
    """The buffers of a schedule at `env` (the sample by default), in XLA's order: values that it
    makes, but for constants, which XLA computes beforehand. Without `figures` regions alone have
    a workspace, that of the graph (those of PyTorch's operators are none of XLA's)."""
    walk = _Lifetimes(program, env, figures)
    for index, step in enumerate(schedule.steps):
        match step:
            case Compute(name, nosave):
                walk.compute(index, program.graph.cnode[name], nosave=nosave)
            case Prefetch(name):
                walk.take(index, name)
            case Offload(name):
                walk.read(index, name)
            case Free(name):
                walk.give(name)
            case Wait() | HostFree():
                pass
    walk.end(len(schedule.steps))
    return tuple(sorted(walk.buffers, key=lambda buffer: buffer.order))


def temporary_bytes(buffers: Sequence[ValueBuffer]) -> int:
    """The largest sum, over the steps, of what lies in no result's buffer; in XLA's order."""
    results: list[list[ValueBuffer]] = []
    change: dict[int, int] = {}
    for buffer in buffers:
        if buffer.is_result:
            results.append([buffer])
            continue
        host = next((held for held in reversed(results) if _has_room(held, buffer)), None)
        if host is not None:
            host.append(buffer)
            continue
        change[buffer.first] = change.get(buffer.first, 0) + buffer.size_bytes
        change[buffer.last + 1] = change.get(buffer.last + 1, 0) - buffer.size_bytes
    now = peak = 0
    for index in sorted(change):
        now += change[index]
        peak = max(peak, now)
    return peak


def _has_room(held: Sequence[ValueBuffer], buffer: ValueBuffer) -> bool:
    return all(other.last < buffer.first or buffer.last < other.first for other in held)


@dataclass
class _Alive:
    """A value that is there, and the aNodes that hold it: several where one was passed on."""

    anode: str
    first: int
    last: int
    holders: set[str]


class _Lifetimes:
    """The live buffers along the steps."""

    def __init__(self, program: Program, env: Mapping[str, int] | None, figures: XlaFigures | None):
        graph, binding = program.graph, program.binding
        self.graph = graph
        sizes = Sizes.of(program, env)
        fused = {c.name: sizes.workspace[c.name] for c in graph.cnodes if c.is_fused}
        self.sizes, self.figures = sizes.anode, figures or XlaFigures(fused)
        ends = {p.grad for p in binding.params} | {b.update for b in binding.buffers}
        ends |= {name for _, name in binding.input_grads} | {r.name for r in binding.results}
        self.ends = {graph.storage[name] for name in ends if name is not None}
        fixed = constants(graph)
        self.none = {a.name for a in graph.anodes if a.kind in _HELD} - self.ends
        self.none |= {name for c in graph.cnodes if c.name in fixed for name in c.results}
        self.buffers: list[ValueBuffer] = []
        self.alive: dict[str, _Alive] = {}
        self.runs: dict[str, int] = {}

    def compute(self, index: int, c: CNode, *, nosave: bool) -> None:
        n = self.runs[c.name] = self.runs.get(c.name, 0) + 1
        for name in self.graph.reads(c, n):
            self.read(index, name)
        if c.is_accumulate:
            self.give(self.graph.reads(c)[0])
        given = self.figures.passed_on.get(c.name)
        for name in c.results_at(n):
            if given in self.alive and name not in self.ends and name not in self.alive:
                self.alive[name] = self.alive[given]
                self.alive[given].holders.add(name)
            self.take(index, name)
        workspace = self.figures.workspaces.get(c.name, 0)
        if workspace and given is None:
            self.buffers.append(ValueBuffer(c.name, workspace, index, index, is_result=False))
        for name in c.results_at(n) if nosave else ():
            if self.graph.anode[name].kind == "phantom":
                self.give(name)

    def read(self, index: int, name: str) -> None:
        if name in self.alive:
            self.alive[name].last = index

    def take(self, index: int, name: str) -> None:
        if name not in self.alive and name not in self.none:
            self.alive[name] = _Alive(name, index, index, {name})

    def give(self, name: str) -> None:
        if name not in self.alive:
            return
        value = self.alive.pop(name)
        value.holders.discard(name)
        if not value.holders:
            self._keep(value, value.last, is_result=False)

    def end(self, index: int) -> None:
        for value in {id(value): value for value in self.alive.values()}.values():
            is_result = not self.ends.isdisjoint(value.holders)
            self._keep(value, index if is_result else value.last, is_result=is_result)

    def _keep(self, value: _Alive, last: int, *, is_result: bool) -> None:
        if size := self.sizes[value.anode]:
            self.buffers.append(ValueBuffer(value.anode, size, value.first, last, is_result))
