"""The values that any schedule carries through a cNode's first execution for later ones.

Let v run for the first time. What depends on v runs later, so what that reads is alive now or is
computed later, from what is alive now or computed later. Some things are not computed later: what
the loss gives, random tokens of cNodes that have run (a replay reads the token, and only the first
execution writes it), results that no replay makes. So what is alive separates these from the reads
to come: it holds at least as many bytes as a minimum cut, each aNode costing its size. Which cNodes
have run is known: those that v depends on, and of random ones and the loss all that stand before
one of these (FB0311).

Two dropout layers, x1 = F1(x0), x2 = F2(x1), whose replays read tokens r1, r2; then the loss and
B2 (reads x1, dx2). When B2 runs first, B1 is to come, which reads x1: that is alive (100 bytes), or
r1 is (16).

    >>> Carried(program, sizes).beside("B1", alive=("dx1", "x0"))
    0
    >>> Carried(program, sizes).beside("B2", alive=("dx2",))
    16
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from ..graph import CALLER_KINDS, CNode
from ..program import Program
from .flow import INFINITE, Network


class Carried:
    """`size` is what each aNode counts. Near-linear; O(N^2) bits for what depends on what."""

    def __init__(self, program: Program, size: Mapping[str, int], required: Collection[str]):
        graph = program.graph
        self.size, self.cnodes = size, graph.cnodes
        self.caller = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
        self.number = {a.name: i for i, a in enumerate(graph.anodes)}
        self.first_C = [self._own(graph.reads(c)) for c in graph.cnodes]
        self.again_C = [self._own(graph.reads(c, 2)) - {c.token} for c in graph.cnodes]
        self.place = place = {c.name: k for k, c in enumerate(graph.cnodes)}
        self.required = [place[name] for name in required]
        self.before_C: list[int] = []
        """A bit for each cNode that it depends on."""
        maker = {a: place[c.name] for a, c in graph.writer.items()}
        for k, reads in enumerate(self.first_C):
            makers = {maker[a] for a in reads if a in maker and maker[a] != k}
            bits = 0
            for w in makers:
                bits |= self.before_C[w] | 1 << w
            self.before_C.append(bits)

    def _own(self, names: Collection[str]) -> frozenset[str]:
        return frozenset(names) - self.caller

    @cached_property
    def most(self) -> int:
        """No answer of `beside` is higher: the bytes of all that is made once."""
        once = {a for c in self.cnodes for a in self._once(c)}
        return sum(self.size[a] for a in once)

    def beside(self, name: str, alive: Collection[str]) -> int:
        """Bytes carried through the first execution of a cNode, beside what is `alive`."""
        network, source, sink = self._network(name, alive)
        return network.least_cut(source, sink)

    def named_beside(self, name: str, alive: Collection[str]) -> list[str]:
        """The aNodes of a cut of so many bytes: what is carried is these, or as much else."""
        network, source, sink = self._network(name, alive)
        network.least_cut(source, sink)
        side = network.side(source)
        return [a for a, i in self.number.items() if side[2 * i] and not side[2 * i + 1]]

    def _network(self, name: str, alive: Collection[str]) -> tuple[Network, int, int]:
        """With the source and the sink."""
        v = self.place[name]
        later = [u for u in self.required if self.before_C[u] >> v & 1]
        done = self.done(v)
        source, sink = 2 * len(self.number), 2 * len(self.number) + 1
        network = Network(sink + 1)
        free = {*alive, *self.caller}
        for a, i in self.number.items():
            if a not in free:
                network.edge(2 * i, 2 * i + 1, self.size[a])
        self.join(network, done, later, free)
        return network, source, sink

    def join(
        self, network: Network, done: int, later: Iterable[int], free: Collection[str]
    ) -> None:
        """Edges between the nodes of aNodes, when the cNodes of the bits `done` have run: from what
        is made once over what is made of it to what the cNodes `later` read."""
        source, sink = 2 * len(self.number), 2 * len(self.number) + 1
        for k, c in enumerate(self.cnodes):
            self._makes(network, c, done=bool(done >> k & 1), free=free, source=source)
        for a in {a for u in later for a in self.first_C[u]}.difference(free):
            network.edge(2 * self.number[a] + 1, sink, INFINITE)

    def done(self, v: int) -> int:
        """A bit for each cNode that has run when cNode v does, itself with them."""
        done = self.before_C[v] | 1 << v
        ordered = [k for k, c in enumerate(self.cnodes) if c.is_loss or c.token is not None]
        last = max((k for k in ordered if done >> k & 1), default=-1)
        for k in ordered:
            done |= (1 << k | self.before_C[k]) if k <= last else 0
        return done

    def _makes(
        self, network: Network, c: CNode, *, done: bool, free: Collection[str], source: int
    ) -> None:
        """Edges from what `c` reads to what it makes, and from the source to what it makes no
        more."""
        for a in self._once(c) if done else ():
            if a not in free:
                network.edge(source, 2 * self.number[a], INFINITE)
        for a, reads in self._forms(c, done=done):
            if a in free:
                continue
            for b in reads - frozenset(free):
                network.edge(2 * self.number[b] + 1, 2 * self.number[a], INFINITE)

    def _once(self, c: CNode) -> Iterator[str]:
        """Results that only the first execution makes."""
        again = () if c.is_loss else c.results_at(2)
        yield from (a for a in c.results if a not in again)
        if c.token is not None:
            yield c.token

    def _forms(self, c: CNode, *, done: bool) -> Iterator[tuple[str, frozenset[str]]]:
        """Each result that may still be made, with what that asks for whatever the form."""
        k = self.place[c.name]
        first, again = self.first_C[k], self.again_C[k]
        token = frozenset() if c.token is None else frozenset([c.token])
        replayed = () if c.is_loss else c.results_at(2)
        for a in dict.fromkeys((*c.results, *replayed)):
            if done and a in replayed:
                yield a, again | token
            elif not done and a in c.results:
                yield a, (first & again) if a in replayed else first
            elif not done:
                yield a, again | token


class Separators:
    """At every moment from the loss to the first execution of v, which depends on it: the least
    bytes of what separates that which is made once, by then, from all that v and what depends on v
    read. What is alive does."""

    def __init__(self, carried: Carried, name: str):
        self.carried = carried
        v = carried.place[name]
        later = [u for u in carried.required if carried.before_C[u] >> v & 1]
        loss = next(k for k, c in enumerate(carried.cnodes) if c.is_loss)
        self.network = Network(2 * len(carried.number) + 2)
        self.edge = {
            a: self.network.edge(2 * i, 2 * i + 1, carried.size[a])
            for a, i in carried.number.items()
            if a not in carried.caller
        }
        carried.join(self.network, carried.done(loss), (v, *later), carried.caller)

    def least_with(self, alive: Collection[str]) -> set[str]:
        """One that holds these aNodes, of the least bytes."""
        source, sink = 2 * len(self.carried.number), 2 * len(self.carried.number) + 1
        side = self.network.side_beside(source, sink, [self.edge[a] for a in alive])
        number = self.carried.number
        return {a for a in self.edge if side[2 * number[a]] and not side[2 * number[a] + 1]}.union(
            alive
        )
