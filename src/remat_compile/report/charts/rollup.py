"""Where the time of a step goes: by operator, and by module of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...ir.graph import CNode, Graph
from .timeline import Run

MOST_DEPTH = 12
"""Levels of the tree of modules; what lies deeper counts with its ancestor."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Executions and nanoseconds of an operator: first executions, and later ones."""

    operator: str
    first_runs: int
    first_ns: int
    again_runs: int
    again_ns: int


@dataclass(slots=True)
class ModuleTime:
    """A module with all that lies in it."""

    name: str
    runs: int = 0
    first_ns: int = 0
    again_runs: int = 0
    again_ns: int = 0
    parts: dict[str, ModuleTime] = field(default_factory=dict)

    @property
    def total_ns(self) -> int:
        return self.first_ns + self.again_ns

    def ranked(self) -> list[ModuleTime]:
        """Its parts, the slowest first."""
        return sorted(self.parts.values(), key=lambda part: (-part.total_ns, part.name))

    def _add(self, run: Run) -> None:
        self.runs += 1
        taken = run.end_ns - run.start_ns
        if run.execution == 1:
            self.first_ns += taken
        else:
            self.again_runs += 1
            self.again_ns += taken


def by_operator(graph: Graph, runs: Iterable[Run]) -> list[OperatorTime]:
    """One entry per operator, the slowest first."""
    by_name: dict[str, ModuleTime] = {}
    for run in runs:
        name = graph.cnode[run.cnode].call.op
        by_name.setdefault(name, ModuleTime(name))._add(run)
    times = [
        OperatorTime(t.name, t.runs - t.again_runs, t.first_ns, t.again_runs, t.again_ns)
        for t in by_name.values()
    ]
    return sorted(times, key=lambda t: (-t.first_ns - t.again_ns, t.operator))


def by_module(graph: Graph, runs: Iterable[Run]) -> ModuleTime:
    """The tree of modules; its root holds the whole step."""
    root = ModuleTime("the step")
    path_of = _paths(graph)
    for run in runs:
        node = root
        node._add(run)
        for part in path_of(graph.cnode[run.cnode]):
            node = node.parts.setdefault(part, ModuleTime(part))
            node._add(run)
    return root


def module_path(graph: Graph, c: CNode) -> tuple[str, ...]:
    """The names from the outermost module inwards; a backward computation without a place
    of its own counts with the forward ones it belongs to. Empty where none is known."""
    sources = (c, *(graph.cnode[name] for name in c.of))
    return next((s.loc.modules for s in sources if s.loc and s.loc.module), ())[:MOST_DEPTH]


def _paths(graph: Graph) -> Callable[[CNode], tuple[str, ...]]:
    known: dict[str, tuple[str, ...]] = {}

    def path_of(c: CNode) -> tuple[str, ...]:
        if c.name not in known:
            known[c.name] = module_path(graph, c)
        return known[c.name]

    return path_of
