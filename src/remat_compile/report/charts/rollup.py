"""Time of a step by operator, and by module of the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...ir.graph import CNode, Graph
from .timeline import Run

MOST_DEPTH = 12
"""Levels of the tree of modules; what lies deeper counts with its ancestor."""


@dataclass(slots=True)
class TimeSpent:
    """Executions and nanoseconds of an operator, or of a module with all that lies in it: first
    executions, and later ones."""

    name: str
    first_runs: int = 0
    first_ns: int = 0
    again_runs: int = 0
    again_ns: int = 0
    parts: dict[str, TimeSpent] = field(default_factory=dict)

    @property
    def total_ns(self) -> int:
        return self.first_ns + self.again_ns

    def ranked(self) -> list[TimeSpent]:
        """Its parts, the slowest first."""
        return slowest_first(self.parts.values())

    def _add(self, run: Run) -> None:
        taken = run.end_ns - run.start_ns
        if run.execution == 1:
            self.first_runs += 1
            self.first_ns += taken
        else:
            self.again_runs += 1
            self.again_ns += taken


def slowest_first(times: Iterable[TimeSpent]) -> list[TimeSpent]:
    return sorted(times, key=lambda t: (-t.total_ns, t.name))


def by_operator(graph: Graph, runs: Iterable[Run]) -> list[TimeSpent]:
    """One entry per operator, the slowest first."""
    by_name: dict[str, TimeSpent] = {}
    for run in runs:
        name = graph.cnode[run.cnode].call.op
        by_name.setdefault(name, TimeSpent(name))._add(run)
    return slowest_first(by_name.values())


def by_module(graph: Graph, runs: Iterable[Run]) -> TimeSpent:
    """The tree of modules; its root holds the whole step."""
    root = TimeSpent("the step")
    paths = {c.name: module_path(graph, c) for c in graph.cnodes}
    for run in runs:
        node = root
        node._add(run)
        for part in paths[run.cnode]:
            node = node.parts.setdefault(part, TimeSpent(part))
            node._add(run)
    return root


def module_path(graph: Graph, c: CNode) -> tuple[str, ...]:
    """The names from the outermost module inwards; a backward computation without a place
    of its own counts with the forward ones it belongs to. Empty where none is known."""
    sources = (c, *(graph.cnode[name] for name in c.of))
    return next((s.loc.modules for s in sources if s.loc and s.loc.module), ())[:MOST_DEPTH]
