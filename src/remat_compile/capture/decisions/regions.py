"""Checkpointed regions: what each saves beside its inputs, the rest computed again.

This is what `torch.utils.checkpoint` with a selective policy and `jax.checkpoint` with a list
of names have in common. Outside of the regions everything is saved, as without them.
What crosses the border of a region is saved as an input of what reads it. When the
backward first needs a value of a region that is not saved, the region is computed again,
as far as the backward asks for it, in the order of the forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir.expr import evaluate
from ...ir.graph import CALLER_KINDS, CNode, Graph
from ...ir.program import Program
from .decision import Decision


@dataclass(frozen=True)
class Region:
    """Forward cNodes that are checkpointed together, and the aNodes saved inside."""

    name: str
    cnodes: frozenset[str]
    saved: frozenset[str] = frozenset()


def decide_regions(program: Program, regions: Sequence[Region], by: str) -> Decision:
    """The decision that these regions stand for. Regions do not overlap."""
    graph = program.graph
    region_of = {c: region for region in regions for c in region.cnodes}
    kept = _kept(graph, region_of)
    forward = [c.name for c in graph.in_phase("fwd")]
    backward: list[str] = []
    wanted = {r.name: _wanted(graph, r, region_of, kept) for r in regions}
    done: set[str] = set()
    for c in graph.cnodes:
        if c.phase in ("fwd", "loss"):
            continue
        for name in graph.reads(c):
            region = _inside(graph, name, region_of, kept)
            if region is not None and region.name not in done:
                done.add(region.name)
                backward += [f for f in forward if f in wanted[region.name]]
        backward.append(c.name)
    saved = frozenset(_saved(graph, backward, kept))
    claimed = sum(_bytes(program, name) for name in saved)
    return Decision(by, saved, tuple(forward), tuple(backward), claimed_bytes=claimed)


def _kept(graph: Graph, region_of: Mapping[str, Region]) -> set[str]:
    """The forward values that no region computes again."""
    kept = {a.name for a in graph.anodes if a.kind in ("output", "pending")}
    for c in graph.in_phase("fwd"):
        region = region_of.get(c.name)
        again = set(c.results_at(2))
        for name in c.results:
            if region is None or name in region.saved or name not in again:
                kept.add(name)
        for name in graph.reads(c):
            writer = graph.writer.get(name)
            if writer is not None and region_of.get(writer.name) is not region:
                kept.add(name)
    return kept


def _inside(
    graph: Graph, name: str, region_of: Mapping[str, Region], kept: set[str]
) -> Region | None:
    """The region that has to be computed again for `name`, if any."""
    writer = graph.writer.get(name)
    if writer is None or writer.phase != "fwd" or name in kept:
        return None
    return region_of.get(writer.name)


def _wanted(
    graph: Graph, region: Region, region_of: Mapping[str, Region], kept: set[str]
) -> set[str]:
    """The cNodes of a region that run again: those that the backward asks for, directly or
    through others."""

    def makers(c: CNode, execution: int) -> list[CNode]:
        reads = (n for n in graph.reads(c, execution))
        return [graph.writer[n] for n in reads if _inside(graph, n, region_of, kept) is region]

    stack = [m for c in graph.cnodes if c.phase not in ("fwd", "loss") for m in makers(c, 1)]
    recomputed: set[str] = set()
    while stack:
        c = stack.pop()
        if c.name not in recomputed:
            recomputed.add(c.name)
            stack += makers(c, 2)
    return recomputed


def _saved(graph: Graph, backward: Sequence[str], kept: set[str]) -> set[str]:
    """The kept values that something after the loss reads."""
    forward = {c.name for c in graph.in_phase("fwd")}
    reads: set[str] = set()
    for name in backward:
        c = graph.cnode[name]
        reads.update(graph.reads(c, 2 if name in forward else 1))
    held = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
    return {n for n in reads - held if n in kept and graph.writer[n].phase == "fwd"}


def _bytes(program: Program, name: str) -> int:
    return evaluate(program.graph.anode[name].size, program.sample)
