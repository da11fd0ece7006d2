"""Packed graphs: `pack` puts pairs of a codec into a graph, `erased` takes them out again.

    erased(pack(g, choices)) == g

A packed value is read in place of its source by the backward cNodes that a choice names, each of
which has an instance made for it right before it:

    F1: fwd _, %m = dropout(%x)          F1: fwd _, %m = dropout(%x)
    B1: bwd %g = mask(%dy, %m)           F1_bits: fwd %m_bits = pack_bits(%m)
                                         B1_bits: bwd %m_B1 = unpack_bits(%m_bits, [8]) of F1_bits
                                         B1: bwd %g = mask(%dy, %m_B1)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count

from ..analysis.regions import renamed_call
from ..codecs import PACKS, READS, Codec, is_codec, pairs, without_codec
from ..graph import ANode, CNode, Graph, View
from ..program import Program


@dataclass(frozen=True, slots=True)
class Choice:
    """The backward cNodes `readers` are to read `source` as `codec` gives it back, which rounds by
    `seed` where it does so at random."""

    source: str
    codec: Codec
    readers: tuple[str, ...]
    seed: int = 0


def has_packs(graph: Graph) -> bool:
    return any(is_codec(c.call.op) for c in graph.cnodes)


def has_lossy(graph: Graph) -> bool:
    """Return whether gradients are made of values that a codec gives back with an error."""
    return any(PACKS[c.call.op].is_lossy for c in packing(graph))


def packing(graph: Graph) -> Iterator[CNode]:
    """The cNodes that pack."""
    return (c for c in graph.cnodes if c.call.op in PACKS)


def pack(program: Program, choices: Iterable[Choice]) -> Program:
    """The program with packed values. Its schedules and proofs are left out: they are of another
    graph. The choices are such that FB0233 holds for none of the pairs."""
    graph = program.graph
    for choice in choices:
        graph = _Packing(graph, choice).graph()
    return replace(program, graph=graph, schedules=(), proven=())


def with_costs_of(program: Program, whole: Graph) -> Program:
    """The program in which each cNode that `whole` has as well has the costs that it has there; of
    one that reads a value as a codec gives it back, the time."""
    cnodes = tuple(_known(c, whole) for c in program.graph.cnodes)
    return replace(program, graph=replace(program.graph, cnodes=cnodes))


def _known(c: CNode, whole: Graph) -> CNode:
    known = whole.cnode.get(c.name, c)
    if repr(known.call) == repr(c.call):
        return known
    return replace(c, time_ns=known.time_ns) if known.call.op == c.call.op else c


def erased(
    program: Program, sources: Collection[str] | None = None, whole: Graph | None = None
) -> Program:
    """The program without packed values, or those of the `sources` alone; its schedules are left
    out where it has some. What read them has the costs that it has in `whole`; without that, those
    of the codec's own operator where one read them in its place."""
    graph = program.graph
    if not has_packs(graph):
        return program
    taken = [p for p in pairs(graph) if sources is None or p.source in sources]
    names = {pair.stand_in: pair.source for pair in taken}
    roots, made = dict(names), {name for p in taken for name in (p.stand_in, p.packed)}
    views: list[View] = []
    known: dict[object, str] = {}
    for view in graph.views:
        if view.name in made:
            continue
        root = next((roots[name] for name in view.call.refs() if name in roots), None)
        plain = replace(view, base=root or view.base, call=renamed_call(view.call, names))
        key = (plain.base, repr(plain.call), plain.index)
        if root is not None:
            roots[view.name] = root
        if root is not None and key in known:
            names[view.name] = known[key]
            continue
        known[key] = view.name
        views.append(plain)
    cnodes: list[CNode] = []
    for c in graph.cnodes:
        if made.isdisjoint(c.results):
            call = renamed_call(c.call, names)
            if c.call.op in READS and made & {*graph.reads(c)}:
                call = without_codec(call)
            again = replace(c, call=call)
            cnodes.append(again if whole is None else _known(again, whole))
    anodes = tuple(a for a in graph.anodes if a.name not in made)
    without = Graph(graph.name, anodes, tuple(views), tuple(cnodes))
    readers = {name: {c.phase for c in without.readers[name]} for name in roots.values()}
    anodes = tuple(
        replace(a, kind="phantom") if readers.get(a.name) == {"bwd"} else a for a in anodes
    )
    return replace(program, graph=replace(without, anodes=anodes), schedules=(), proven=())


class _Packing:
    """One choice, put into a graph."""

    def __init__(self, graph: Graph, choice: Choice):
        self.before, self.codec, self.readers = graph, choice.codec, choice.readers
        self.seed = choice.seed
        self.source = graph.anode[choice.source]
        self.taken = {*graph.anode, *graph.view, *graph.cnode}
        self.copies: dict[str | None, list[View]] = {}

    def graph(self) -> Graph:
        graph, codec, source = self.before, self.codec, self.source
        packed = codec.packed(source, self.fresh(f"{source.name}_{codec.name}"))
        writer = graph.writer[source.name]
        after = [writer, *(c for c in graph.readers[source.name] if c.phase == "fwd")][-1]
        name = self.fresh(f"{writer.name}_{codec.name}")
        call = codec.pack(source.name, self.seed)
        work = codec.workspace(source)
        pack = CNode(name, "fwd", (packed.name,), call, workspace=work, loc=writer.loc)
        cnodes: list[CNode] = []
        instances: list[ANode] = []
        last: str | None = None
        for c in graph.cnodes:
            if c.name in self.readers:
                stand_in = self.fresh(f"{source.name}_{c.name}")
                call = codec.unpack(packed.name, source)
                base = stand_in
                if codec.is_read:
                    stand_in = base = packed.name
                elif codec.form == "single":
                    base = packed.name
                    viewed = [r for r in c.call.refs() if r in graph.view]
                    before = [
                        v.name
                        for r in viewed
                        for v in graph.views_below(r)
                        if v.base == source.name
                    ]
                    self.copies.setdefault(before[0] if before else last, []).append(
                        View(stand_in, base, call)
                    )
                else:
                    instances.append(replace(source, name=stand_in, kind="grad"))
                    own = self.fresh(f"{c.name}_{codec.name}")
                    cnodes.append(
                        CNode(own, "bwd", (stand_in,), call, of=(name,), workspace=work, loc=c.loc)
                    )
                names = self.renamed(c, stand_in, base)
                call = renamed_call(c.call, names)
                cnodes.append(replace(c, call=codec.read(call) if codec.is_read else call))
            else:
                cnodes.append(c)
            if c is after:
                cnodes.append(pack)
            last = next((r for r in reversed(c.call.refs()) if r in graph.view), last)
        kept = replace(source, kind="act")
        anodes = (kept if a is source else a for a in graph.anodes)
        views = [*self.copies.get(None, ())]
        for view in graph.views:
            views += (view, *self.copies.get(view.name, ()))
        return Graph(graph.name, (*anodes, packed, *instances), tuple(views), tuple(cnodes))

    def renamed(self, c: CNode, stand_in: str, base: str) -> dict[str, str]:
        """Other names for what `c` reads of the source: its views are derived of the stand-in."""
        names = {self.source.name: stand_in}
        for name in c.call.refs():
            if self.before.storage[name] == self.source.name:
                for view in self.before.views_below(name, names):
                    names[view.name] = self.fresh(f"{view.name}_{c.name}")
                    call = renamed_call(view.call, names)
                    made = replace(view, name=names[view.name], base=base, call=call)
                    self.copies.setdefault(view.name, []).append(made)
        return names

    def fresh(self, name: str) -> str:
        """A name that is not taken: this one, or this one with a number."""
        names = (f"{name}_{number}" if number else name for number in count())
        made = next(n for n in names if n not in self.taken)
        self.taken.add(made)
        return made
