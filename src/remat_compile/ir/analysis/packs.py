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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..codecs import Codec, is_codec, pairs
from ..graph import ANode, CNode, Graph, View
from ..program import Program
from .regions import renamed_call


@dataclass(frozen=True, slots=True)
class Choice:
    """The backward cNodes `readers` are to read `source` as `codec` gives it back."""

    source: str
    codec: Codec
    readers: tuple[str, ...]


def has_packs(graph: Graph) -> bool:
    return any(is_codec(c.call.op) for c in graph.cnodes)


def pack(program: Program, choices: Iterable[Choice]) -> Program:
    """The program with packed values. Its schedules and proofs are left out: they are of another
    graph. The choices are such that FB0233 holds for none of the pairs."""
    graph = program.graph
    for choice in choices:
        graph = _Packing(graph, choice).graph()
    return replace(program, graph=graph, schedules=(), proven=())


def erased(program: Program) -> Program:
    """The program without packed values; its schedules are left out where it has some."""
    graph = program.graph
    names = {pair.unpacked: pair.source for pair in pairs(graph)}
    if not names and not has_packs(graph):
        return program
    made = {name for c in graph.cnodes if is_codec(c.call.op) for name in c.results}
    views: list[View] = []
    known: dict[object, str] = {}
    for view in graph.views:
        call = renamed_call(view.call, names)
        plain = replace(view, base=names.get(view.base, view.base), call=call)
        is_copy = view.base in names or any(name in names for name in view.call.refs())
        key = (plain.base, repr(plain.call), plain.index)
        if is_copy and key in known:
            names[view.name] = known[key]
            continue
        known[key] = view.name
        views.append(plain)
    cnodes = tuple(
        replace(c, call=renamed_call(c.call, names))
        for c in graph.cnodes
        if not is_codec(c.call.op)
    )
    plain = Graph(graph.name, graph.anodes, tuple(views), cnodes)
    sources = {*names.values()}
    anodes = tuple(
        replace(a, kind="phantom") if a.name in sources and _is_phantom(plain, a) else a
        for a in graph.anodes
        if a.name not in made
    )
    plain = replace(plain, anodes=anodes)
    plain.forget()
    return replace(program, graph=plain, schedules=(), proven=())


def _is_phantom(graph: Graph, a: ANode) -> bool:
    """Return whether an activation is read by the backward alone."""
    return {c.phase for c in graph.readers[a.name]} == {"bwd"}


class _Packing:
    """One choice, put into a graph."""

    def __init__(self, graph: Graph, choice: Choice):
        self.before, self.choice = graph, choice
        self.source = graph.anode[choice.source]
        self.taken = {*graph.anode, *graph.view, *graph.cnode}
        self.copies: dict[str, list[View]] = {}

    def graph(self) -> Graph:
        graph, codec, source = self.before, self.choice.codec, self.source
        packed = codec.packed(source, self.fresh(f"{source.name}_{codec.name}"))
        writer = graph.writer[source.name]
        name = self.fresh(f"{writer.name}_{codec.name}")
        reads = [c for c in graph.readers[source.name] if c.phase == "fwd"]
        after = reads[-1] if reads else writer
        pack = CNode(name, "fwd", (packed.name,), codec.pack(source.name), loc=writer.loc)
        cnodes: list[CNode] = []
        instances: list[ANode] = []
        for c in graph.cnodes:
            if c.name in self.choice.readers:
                instance = replace(source, name=self.fresh(f"{source.name}_{c.name}"), kind="grad")
                instances.append(instance)
                call = codec.unpack(packed.name, source)
                own = self.fresh(f"{c.name}_{codec.name}")
                cnodes.append(CNode(own, "bwd", (instance.name,), call, of=(pack.name,), loc=c.loc))
                c = replace(c, call=renamed_call(c.call, self.renamed(c, instance.name)))
            cnodes.append(c)
            if c is after:
                cnodes.append(pack)
        views = [v for own in graph.views for v in (own, *self.copies.get(own.name, ()))]
        own = replace(source, kind="act")
        anodes = [own if a is source else a for a in graph.anodes]
        return Graph(graph.name, (*anodes, packed, *instances), tuple(views), tuple(cnodes))

    def renamed(self, c: CNode, instance: str) -> dict[str, str]:
        """Other names for what `c` reads of the source: views are derived of the instance."""
        names = {self.source.name: instance}
        for name in c.call.refs():
            if self.before.storage[name] == self.source.name:
                for view in self.before.views_below(name, names):
                    names[view.name] = self.fresh(f"{view.name}_{c.name}")
                    call = renamed_call(view.call, names)
                    made = replace(view, name=names[view.name], base=instance, call=call)
                    self.copies.setdefault(view.name, []).append(made)
        return names

    def fresh(self, name: str) -> str:
        """A name that is not taken: this one, or this one with a number."""
        made = next(n for n in self._numbered(name) if n not in self.taken)
        self.taken.add(made)
        return made

    def _numbered(self, name: str) -> Iterator[str]:
        yield name
        number = 1
        while True:
            yield f"{name}_{number}"
            number += 1
