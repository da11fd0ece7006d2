"""1-separators of the forward graph, and the chain of blocks between them.

An aNode is a 1-separator when every forward cNode after its writer depends on the
forward before it through that aNode alone. Storage of the caller, and *globals* (forward
values that no gradient flows through, such as masks and rotary tables), do not count:
they may be read by any number of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..graph import CALLER_KINDS, CNode, Graph
from ..program import Binding, Program

FLOATING = frozenset(("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "c64", "c128"))


@dataclass(frozen=True, slots=True)
class Separator:
    """`anode` alone crosses from the first `position` forward cNodes to the rest."""

    anode: str
    position: int


def globals_of(program: Program) -> frozenset[str]:
    """Forward aNodes that no gradient flows through.

    Those without a path from a parameter or input that gets a gradient, and those whose
    values are not of a floating type. Where the binding names no gradient at all, every
    parameter and input counts as differentiable.
    """
    graph = program.graph
    flowing = _differentiable(graph, program.binding)
    typed = _has_floats(graph)
    globals_ = set()
    for c in graph.in_phase("fwd"):
        flows = any(name in flowing for name in graph.reads(c))
        for name in c.results:
            floating = graph.anode[name].dtype in FLOATING
            if flows and (floating or not typed):
                flowing.add(name)
            else:
                globals_.add(name)
    return frozenset(globals_)


def _has_floats(graph: Graph) -> bool:
    """True if the graph has types: hand-made graphs may hold plain bytes only."""
    return any(a.dtype in FLOATING for a in graph.anodes)


def _differentiable(graph: Graph, binding: Binding) -> set[str]:
    names = {p.name for p in binding.params if p.grad is not None}
    names |= {binding.arguments[index].name for index, _ in binding.input_grads}
    if not names:
        names = {a.name for a in graph.anodes if a.kind in ("param", "input")}
    return {graph.storage[name] for name in names}


def separators(program: Program) -> tuple[Separator, ...]:
    """All 1-separators in order. Linear in the number of reads.

    On the captured (topological) order of the forward: right after its last cNode that
    is no descendant of it, a separator is all that crosses. Every place of the order
    with one crossing aNode is found, the first place for each aNode. Phantoms and
    results that only the backward reads do not cross.
    """
    graph = program.graph
    forward = tuple(graph.in_phase("fwd"))
    globals_ = globals_of(program)
    last = _last_reads(graph, forward)
    crossing: set[str] = set()
    ending: dict[int, list[str]] = {}
    first_place: dict[str, int] = {}
    for place, c in enumerate(forward):
        for name in c.results:
            if name not in globals_ and last.get(name, -1) > place:
                crossing.add(name)
                ending.setdefault(last[name], []).append(name)
        crossing.difference_update(ending.get(place, ()))
        if len(crossing) == 1:
            first_place.setdefault(next(iter(crossing)), place + 1)
    return tuple(Separator(name, position) for name, position in first_place.items())


def _last_reads(graph: Graph, forward: tuple[CNode, ...]) -> dict[str, int]:
    last_read: dict[str, int] = {}
    for place, c in enumerate(forward):
        for name in graph.reads(c):
            if graph.anode[name].kind not in CALLER_KINDS:
                last_read[name] = place
    return last_read


def chain_of(program: Program) -> tuple[tuple[str, ...], ...]:
    """The forward cNodes cut at every 1-separator: blocks that form a chain.

    cNodes that write only globals belong to the block where they stand.
    """
    forward = [c.name for c in program.graph.in_phase("fwd")]
    cuts = [0, *(s.position for s in separators(program)), len(forward)]
    return tuple(tuple(forward[a:b]) for a, b in pairwise(cuts) if a < b)
