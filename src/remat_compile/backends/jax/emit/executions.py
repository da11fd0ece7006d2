"""Live executions of a schedule: those that a result depends on."""

from __future__ import annotations

from ....ir.graph import Graph
from ....ir.schedule import Compute, Free, Offload, Prefetch, Schedule
from ....ir.semantics.simulate import KEPT_KINDS
from .order import numbered


def constants(graph: Graph) -> frozenset[str]:
    """cNodes that depend on nothing that the caller gives: XLA computes them beforehand."""
    known: set[str] = set()
    independent = set()
    for c in graph.cnodes:
        if not c.is_loss and c.token is None and known.issuperset(graph.reads(c)):
            known.update(c.results)
            independent.add(c.name)
    return frozenset(independent)


def dead_executions(graph: Graph, schedule: Schedule) -> frozenset[tuple[str, int]]:
    """(cNode, execution) pairs whose results are read by nothing that matters.

    A plan may hold them: made, freed, and made again where they are needed. PyTorch runs
    them; XLA leaves out what no result of the step depends on.
    """
    wanted = {a.name for a in graph.anodes if a.kind in KEPT_KINDS}
    host: set[str] = set()
    dead = set()
    for now in reversed(list(numbered(graph, schedule.steps))):
        match now.step:
            case Free(name):
                wanted.discard(name)
            case Offload(name):
                if name in host:
                    wanted.add(name)
                    host.discard(name)
            case Prefetch(name):
                if name in wanted:
                    wanted.discard(name)
                    host.add(name)
            case Compute() if now.cnode is not None:
                c = now.cnode
                if c.is_loss:
                    wanted.update(graph.reads(c))
                    continue
                if wanted.isdisjoint(now.made):
                    dead.add((c.name, now.execution))
                    continue
                wanted.difference_update(now.made)
                wanted.update(graph.reads(c, now.execution))
    return frozenset(dead)
