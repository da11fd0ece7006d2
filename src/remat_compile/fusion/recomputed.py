"""Cost of a recomputation inside a kernel: the kernel's time less that of one which is given the
value.

    %db = fused(%x, %dy) { %t.2 = silu(%x); %db = mul(%dy, %t.2) }       500 us
    %db = fused(%dy, %t.2) { %db = mul(%dy, %t.2) }                      450 us
        ->   of the 200 us that silu takes by itself, a quarter
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..ir.graph import CNode, Graph, Ref
from ..ir.program import Program
from .region import Prepare, Price

LEAST_SHARE = 0.01
"""A kernel may be faster the less it reads; no recomputation is priced below this."""


def recomputation_shares(
    fused: Program,
    origin: Mapping[str, str],
    graph: Graph,
    price: Price,
    prepare: Prepare | None = None,
) -> dict[str, float]:
    """The time, by forward cNode of `graph`, that making its results again takes in a program that
    was fused from it, over the cNode's own time; the most, where several do. What has no price is
    left out.

    `origin` says of what in `graph` a new name is another instance. `prepare` is given the cNodes
    of which prices will be asked for.
    """
    share_of: dict[str, float] = {}
    asked = []
    for c in fused.graph.cnodes:
        again = _again(c, origin)
        writers = _writers(again, origin, graph)
        if alone_ns := sum(writers.values()):
            asked.append((c, writers, alone_ns, _given(c, again, origin, graph)))
    if prepare is not None:
        prepare([rest for *_, rest in asked if rest is not None])
    for c, writers, alone_ns, rest in asked:
        share = 1.0
        if rest is not None:
            priced = price(rest)
            if priced is None:
                continue
            share = ((c.time_ns or 0) - priced.time_ns) / alone_ns
        share = min(1.0, max(LEAST_SHARE, share))
        share_of |= {name: max(share, share_of.get(name, 0.0)) for name in writers}
    return share_of


def _again(c: CNode, origin: Mapping[str, str]) -> set[str]:
    """The instances that a cNode, or the region of one, makes again."""
    writes = [inner.writes for inner in c.call.region] or [c.writes]
    known = [{name for name in names if name is not None} for names in writes]
    return {name for names in known if names <= origin.keys() for name in names}


def _writers(names: Iterable[str], origin: Mapping[str, str], graph: Graph) -> dict[str, int]:
    """The cNodes that make what these names are instances of, with their times in nanoseconds."""
    bases = (graph.storage.get(origin.get(name, name), "") for name in names)
    cnodes = (graph.writer[base] for base in bases if base in graph.writer)
    return {c.name: c.time_ns or 0 for c in cnodes}


def _given(c: CNode, again: set[str], origin: Mapping[str, str], graph: Graph) -> CNode | None:
    """A fused cNode that is given what its region makes again, with the time of its calls; None
    where nothing else is left."""
    region = tuple(i for i in c.call.region if again.isdisjoint(filter(None, i.writes)))
    results = tuple(name for name in c.results if name not in again)
    if not region or not results:
        return None
    made = {name for inner in region for name in inner.writes if name is not None}
    given = dict.fromkeys(n for inner in region for n in inner.call.refs() if n not in made)
    call = replace(c.call, args=(*map(Ref, given),), region=region)
    views = {n for n in made if origin.get(n, n) in graph.view}
    times = _writers(made - views, origin, graph)
    return replace(c, writes=results, call=call, time_ns=sum(times.values()))
