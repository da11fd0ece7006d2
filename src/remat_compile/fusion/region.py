"""A run of executions as one cNode, its price as one kernel, and the graph around fused cNodes.

A region is the calls one after the other, views among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from ..ir.analysis.order import least_first
from ..ir.analysis.regions import region_function, renamed_call
from ..ir.expr import Expr, RoundUp, add, max_of
from ..ir.graph import (
    CALLER_KINDS,
    FUSED_OP,
    PHASES,
    Call,
    CNode,
    Graph,
    InnerCall,
    Phase,
    Ref,
    View,
)
from ..ir.program import Program
from ..ir.schedule import Compute, Schedule

SUM = "aten.add.Tensor"
"""A sum in place inside a region, by (P3) of `spec/semantics.md`."""


@dataclass(frozen=True, slots=True)
class RunMember:
    """An execution in a run: which of the cNode's it is, and its step."""

    cnode: CNode
    execution: int
    index: int


CallsTime = Callable[[CNode], int | None]
"""Time of the calls of a fused cNode, one after the other, in nanoseconds."""


def fused_cnode(
    name: str,
    members: Sequence[RunMember],
    exported: Set[str],
    program: Program,
    calls_ns: CallsTime = lambda c: c.time_ns,
) -> CNode:
    """The fused cNode that runs the members and writes `exported`.

    Its time is that of its calls one after the other (`calls_ns` tells that of members that are
    fused already, whose own time is that of a kernel), and its workspace what they take then.
    """
    graph = program.graph
    region = tuple(_calls(members, graph))
    read = {n for inner in region for n in inner.call.refs()} | exported
    region = tuple(
        InnerCall(tuple(n if n in read else None for n in i.writes), i.call, i.index)
        for i in region
    )
    made = {n for inner in region for n in inner.writes}
    given = dict.fromkeys(n for i in region for n in i.call.refs() if n not in made)
    results = [n for m in members for n in m.cnode.results if n in exported]
    phase: Phase = "bwd" if any(m.cnode.phase == "bwd" for m in members) else "fwd"
    of = [f for m in members for f in m.cnode.of] if phase == "bwd" else []
    times = [
        calls_ns(m.cnode) or 0 if m.cnode.is_fused else m.cnode.time_ns_at(m.execution)
        for m in members
    ]
    return CNode(
        name,
        phase,
        tuple(results),
        Call(FUSED_OP, tuple(map(Ref, given)), region=region),
        of=tuple(dict.fromkeys(of)),
        workspace=_workspace(members, exported, program),
        time_ns=sum(times) if any(m.cnode.time_ns is not None for m in members) else None,
        loc=members[-1].cnode.loc,
    )


def _calls(members: Sequence[RunMember], graph: Graph) -> Iterator[InnerCall]:
    """The calls, with views where they are read first; a region that was there before is taken up
    with its calls.

    A view of an argument costs nothing in a kernel, and a line of Python outside. One of complex
    numbers stays outside: no kernel is generated for what gives them. So does one by `as_strided`:
    its offset counts from where the storage begins, and a kernel's from where its argument does.
    """
    made: set[str] = set()
    names: set[str] = set()
    for m in members:
        for name in m.cnode.call.refs():
            base = graph.anode[graph.storage[name]]
            if base.name in made or not (base.dtype.startswith("c") or _is_placed(name, graph)):
                yield from _derived(name, names, graph)
        if m.cnode.is_accumulate:
            yield InnerCall(m.cnode.writes, Call(SUM, m.cnode.call.args))
        elif m.cnode.is_fused:
            yield from _opened(m.cnode)
        else:
            yield InnerCall(m.cnode.writes, m.cnode.call)
        made.update(m.cnode.results)


def _is_placed(name: str, graph: Graph) -> bool:
    """Return whether a view is derived by `as_strided`, which places it in the storage."""
    return any(view.call.op.startswith("aten.as_strided.") for view in views_to(name, graph))


def _derived(name: str, names: set[str], graph: Graph) -> Iterator[InnerCall]:
    for view in views_to(name, graph):
        if view.name not in names:
            names.add(view.name)
            yield InnerCall((view.name,), view.call, view.index)


def views_to(name: str, graph: Graph) -> Iterator[View]:
    """The views that `name` is derived through, itself last, each after what it reads; none for
    an aNode."""
    todo = [name] if name in graph.view else []
    visited: set[str] = set()
    while todo:
        view = graph.view[todo[-1]]
        before = (n for n in view.call.refs() if n in graph.view and n not in visited)
        if (source := next(before, None)) is not None:
            todo.append(source)
            continue
        visited.add(todo.pop())
        yield view


def _opened(c: CNode) -> Iterator[InnerCall]:
    """The calls of a region with names that no other call has."""
    keep = {*c.results, *c.call.refs()}
    names: dict[str, str] = {}
    for inner in c.call.region:
        call = renamed_call(inner.call, names)
        for name in inner.writes:
            if name is not None and name not in keep:
                names[name] = f"{c.name}.{name}"
        writes = tuple(None if n is None else names.get(n, n) for n in inner.writes)
        yield InnerCall(writes, call, inner.index)


def _workspace(members: Sequence[RunMember], exported: Set[str], program: Program) -> Expr:
    """The most that is there beside arguments and results while the calls run one by one."""
    graph, unit = program.graph, program.target.granularity_bytes
    last: dict[str, int] = {}
    for place, m in enumerate(members):
        for name in (*m.cnode.results, *graph.reads(m.cnode)):
            last[name] = place
    own = {name for m in members for name in m.cnode.results} - exported
    there: dict[str, Expr] = {}
    most: list[Expr] = []
    for place, m in enumerate(members):
        for name in m.cnode.results:
            if name in own:
                size = graph.anode[name].size
                there[name] = size if unit == 1 else RoundUp(size, unit)
        most.append(add(*there.values(), m.cnode.workspace_at(m.execution)))
        for name in [n for n in there if last[n] == place]:
            del there[name]
    return max_of(*most)


@dataclass(frozen=True, slots=True)
class Priced:
    """Price of a region as one kernel: nanoseconds, and bytes beside its results."""

    time_ns: int
    workspace: Expr


Price = Callable[[CNode], Priced | None]
"""The cost of a fused cNode (which comes with that of its calls, one after the other); None
where it is not to be fused. It is asked for once for a region with the same arguments."""


Prepare = Callable[[Sequence[CNode]], None]
"""Is given the cNodes of which prices will be asked for next."""


def price_key(c: CNode) -> str:
    """Return the key of a price."""
    return repr((region_function(c), c.call.args, c.workspace, c.time_ns))


def with_fused(
    graph: Graph, fused: Sequence[CNode], schedule: Schedule
) -> tuple[Graph, frozenset[str]]:
    """The graph of what `schedule` runs: the fused cNodes, and those of which an execution stands
    by itself.

    With the names of fused ones that keep it from having an order: such as read a term of a sum
    that was made again, and the sum.
    """
    runs = {step.cnode for step in schedule.steps if isinstance(step, Compute)}
    kept = [c for c in graph.cnodes if c.name in runs]
    forward = {c.name for c in (*kept, *fused) if c.phase == "fwd"}
    holder = {name: c.name for c in fused for name in _members(c, graph)}
    cnodes = [_belonging(c, forward, holder) for c in (*kept, *fused)]
    written = {name for c in cnodes for name in (*c.results, *([c.token] if c.token else []))}
    anodes = tuple(a for a in graph.anodes if a.kind in CALLER_KINDS or a.name in written)
    names = {a.name for a in anodes}
    views = tuple(v for v in graph.views if v.base in names)
    place = {c.name: i for i, c in enumerate(graph.cnodes)}
    for c in fused:
        place[c.name] = max(place[graph.writer[name].name] for name in c.results)
    half = replace(graph, anodes=anodes, views=views, cnodes=tuple(cnodes))
    order = _sorted(half, place)
    left = {c.name for c in fused} - {c.name for c in order}
    ended = {half.reads(c)[0] for c in half.cnodes if c.is_accumulate}
    at_fault = {name for name in left if not ended.isdisjoint(half.reads(half.cnode[name]))}
    return replace(half, cnodes=order), frozenset(at_fault or left)


def _members(c: CNode, graph: Graph) -> Set[str]:
    """The cNodes whose results a forward region makes."""
    made = {name for inner in c.call.region for name in inner.writes if name is not None}
    writers = {graph.writer[name].name for name in made if name in graph.writer}
    return writers if c.phase == "fwd" else set()


def _belonging(c: CNode, forward: Set[str], holder: dict[str, str]) -> CNode:
    of = dict.fromkeys(holder.get(name, name) for name in c.of)
    return replace(c, of=tuple(name for name in of if name in forward))


def _sorted(graph: Graph, place: dict[str, int]) -> tuple[CNode, ...]:
    """As captured where that can be: by phase, each after what it reads, and a reader of a sum
    before what goes on with its storage."""
    writer = graph.writer
    after: dict[str, set[str]] = {c.name: set() for c in graph.cnodes}
    for c in graph.cnodes:
        reads = {*graph.reads(c), *graph.reads(c, 2)}
        after[c.name] |= {writer[name].name for name in reads if name in writer}
        if c.is_accumulate:
            ended = graph.reads(c)[0]
            after[c.name] |= {r.name for r in graph.readers[ended]} - {c.name}
    stream = [c.name for c in graph.cnodes if c.token is not None or c.is_loss]
    for before, now in pairwise(stream):
        after[now].add(before)
    order = least_first(after, lambda n: (PHASES.index(graph.cnode[n].phase), place[n]))
    return tuple(graph.cnode[name] for name in order)
