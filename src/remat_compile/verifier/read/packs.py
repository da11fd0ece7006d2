"""Packed values in the proof: stand-ins for aNodes, by the axiom of a codec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from ...ir.codecs import EXPAND, INDEX_AXES, NAMESPACE, PACKS, READS, SAME_ELEMENTS, UNPACKS, Codec
from ...ir.diagnostics import Diagnostic
from ...ir.expr import CeilDiv, Const, Expr, Mul
from ...ir.graph import ACCUMULATE_OP, DTYPE_BYTES, ANode, Arg, Atom, Call, CNode, Graph, Ref, View
from .calls import names_in


@dataclass(slots=True)
class Packs:
    """`sources` has, for each packed value and each instance made of one, the aNode that it is
    read for. `exact` are those that have its value: of the others an axiom says that their readers
    give the same."""

    sources: dict[str, str] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)


def read_packs(
    graph: Graph, anodes: Mapping[str, ANode], writer: Mapping[str, CNode], packs: Packs
) -> Iterator[Diagnostic]:
    """Fills `packs`; FB0802 for what is no premise of an axiom."""
    reader = _PacksReader(graph, anodes, writer, packs)
    for c in graph.cnodes:
        yield from reader.cnode(c)
    for v in graph.views:
        yield from reader.view(v)
    for c in graph.cnodes:
        yield from reader.uses(c)


class _PacksReader:
    def __init__(
        self,
        graph: Graph,
        anodes: Mapping[str, ANode],
        writer: Mapping[str, CNode],
        packs: Packs,
    ):
        self.graph, self.anodes, self.writer, self.packs = graph, anodes, writer, packs
        self.packed: dict[str, Codec] = {}
        self.origin: dict[str, str] = {}
        self.stands: dict[str, Codec] = {}

    def refuse(self, node: CNode | View, why: str) -> Diagnostic:
        name = node.name if isinstance(node, CNode) else f"%{node.name}"
        return Diagnostic("FB0802", f"{name} {why}", node.span)

    def cnode(self, c: CNode) -> Iterator[Diagnostic]:
        inner = [i.call.op for i in c.call.region]
        again = [] if c.replay is None else [c.replay.call.op]
        if any(map(_is_codec, (*inner, *again))):
            yield self.refuse(c, "calls a codec inside, or when it runs again")
        if not _is_codec(c.call.op) or c.call.op in READS:
            return
        match c.call, c.writes, c.replay, c.token:
            case Call(op, (Ref(source), *seed), ()), (str(made),), None, None if (
                op in PACKS and _is_seed(PACKS[op], seed)
            ):
                if not self.is_packed(PACKS[op], c, source, made):
                    yield self.refuse(c, f"packs %{source}, and no axiom speaks of that")
                    return
                self.packed[made], self.origin[made] = PACKS[op], source
                if not PACKS[op].is_lossy:
                    self.packs.sources[made] = source
            case Call(op, (Ref(packed), *given), ()), (str(made),), None, None if (
                op in UNPACKS and self.packed.get(packed) is UNPACKS[op]
            ):
                source = self.origin[packed]
                if c.phase != "bwd" or not self.is_again(UNPACKS[op], given, made, source):
                    yield self.refuse(c, f"makes %{made}, which is not like %{source}")
                    return
                self.stands[made] = UNPACKS[op]
                if UNPACKS[op].is_lossy:
                    return  # a value of its own: it stands for nothing
                self.packs.sources[made] = source
                if not UNPACKS[op].places:
                    self.packs.exact.add(made)
            case _:
                yield self.refuse(c, f"calls {c.call.op}, and is no half of a codec")

    def is_packed(self, codec: Codec, c: CNode, source: str, made: str) -> bool:
        """A forward cNode has made the source, of a type and with values that the codec takes."""
        if source not in self.anodes or source not in self.writer:
            return False
        a, p = self.anodes[source], self.anodes[made]
        own = None if codec.size is None else codec.size(a.shape, DTYPE_BYTES[a.dtype])
        shapes = {"element": a.shape, "single": (Const(1),), "bytes": (own,)}
        return (
            c.phase == self.writer[source].phase == "fwd"
            and (a.kind, p.kind) == ("act", "phantom")
            and a.dtype in codec.types
            and p.dtype == (codec.packed_type or a.dtype)
            and (
                _is_of_bits(p.shape, a.shape)
                if codec.form == "bit"
                else p.shape == shapes[codec.form]
            )
            and (codec.limit is None or self.values_of(source) <= codec.limit)
        )

    def values_of(self, name: str) -> float:
        """The number of values that an index may have; infinite where that is not known."""
        c = self.writer[name]
        axes = INDEX_AXES.get((c.call.op, c.writes.index(name)), 0)
        match c.call.args[:1]:
            case (Ref(first),) if axes and first in self.anodes:
                extents = self.anodes[first].shape[-axes:]
                values = [n.value for n in extents if isinstance(n, Const)]
                if len(values) == axes:
                    return prod(values)
        return float("inf")

    def is_again(self, codec: Codec, given: list[Arg], made: str, source: str) -> bool:
        a, q = self.anodes[source], self.anodes[made]
        expected = {"shape": tuple(map(_extent, a.shape)), "dtype": Atom("dtype", a.dtype)}
        return (
            repr(given) == repr([expected[what] for what in codec.gives])
            and (q.kind, q.dtype, q.shape) == ("grad", a.dtype, a.shape)
        )  # fmt: skip

    def is_reader(self, c: CNode) -> bool:
        """A packed value is read in place of the source, and the result is like that."""
        codec, _, place, _ = READS[c.call.op]
        match c.call.args, c.call.kwargs, c.writes, c.replay, c.token:
            case (Ref(first), Ref(second)), (), (str(made),), None, None:
                read, other = (second, first) if place else (first, second)
                known = self.packed.get(read) is codec and other not in self.packed
                if not known or other in self.stands or c.phase != "bwd":
                    return False
                a, of = self.anodes[made], self.anodes[self.packs.sources[read]]
                return (a.dtype, a.shape) == (of.dtype, of.shape)
            case _:
                return False

    def is_denied(self, codec: Codec, call: Call, name: str) -> bool:
        places = enumerate((*call.args, *(value for _, value in call.kwargs)))
        return codec.is_lossy and any(
            (call.op, place) in codec.denied and name in names_in(Call("", (arg,)))
            for place, arg in places
        )

    def view(self, v: View) -> Iterator[Diagnostic]:
        """A single element, expanded to the shape; or a view of what stands for a source."""
        if _is_codec(v.call.op):
            yield self.refuse(v, "calls a codec")
        for name in names_in(v.call):
            codec = self.packed.get(name) or self.stands.get(name)
            if codec is None:
                continue
            if name in self.packed and codec.is_read and v.call.op in SAME_ELEMENTS:
                self.packed[v.name] = codec
                self.packs.sources[v.name] = self.packs.sources[name]
                continue
            self.stands[v.name] = codec
            if name in self.packed:
                shape = tuple(map(_extent, self.anodes[self.packs.sources[name]].shape))
                call = Call(EXPAND, (Ref(name), shape))
                if codec.form != "single" or repr(v.call) != repr(call):
                    yield self.refuse(v, f"is a view of the packed %{name}")
            elif codec.places and v.call.op not in SAME_ELEMENTS:
                yield self.refuse(v, f"is a view of %{name}, of which no axiom speaks")

    def uses(self, c: CNode) -> Iterator[Diagnostic]:
        """Packed values are made again and not read; stand-ins are, where an axiom says so."""
        if c.call.op in READS:
            if not self.is_reader(c):
                yield self.refuse(c, f"calls {c.call.op}, and no axiom speaks of that")
            return
        forms = [c.call] + ([] if c.replay is None else [c.replay.call])
        for call in forms:
            plain = {arg.name: place for place, arg in enumerate(call.args) if isinstance(arg, Ref)}
            count = repr((call.args, call.kwargs)).count
            for name in dict.fromkeys(names_in(call)):
                if name in self.packed and call.op not in UNPACKS:
                    yield self.refuse(c, f"reads the packed %{name}")
                codec = self.stands.get(name)
                if codec is not None and call.op == ACCUMULATE_OP:
                    yield self.refuse(c, f"ends %{name}, which a codec makes")
                if codec is not None and self.is_denied(codec, call, name):
                    yield self.refuse(c, f"exponentiates %{name}, and {codec.name} is lossy")
                if codec is None or not codec.places:
                    continue
                once = name in plain and count(repr(Ref(name))) == 1
                if not once or not _speaks_of(codec, call, plain[name]):
                    yield self.refuse(c, f"reads %{name}, and no axiom speaks of that place")


def _speaks_of(codec: Codec, call: Call, place: int) -> bool:
    """Return whether the axiom names this operator, place and other arguments."""
    for known, given in codec.places:
        if known == (call.op, place):
            return not call.kwargs and all(repr(call.args[i]) == repr(n) for i, n in given)
    return False


def _is_seed(codec: Codec, given: list[Arg]) -> bool:
    """A seed, of a codec that rounds at random alone."""
    if not codec.is_random:
        return not given
    return len(given) == 1 and type(given[0]) is int and 0 <= given[0] < 2**63


def _is_codec(op: str) -> bool:
    return op.startswith(f"{NAMESPACE}.")


def _is_of_bits(packed: tuple[Expr, ...], shape: tuple[Expr, ...]) -> bool:
    """Return whether there is a byte for each eight elements of a shape."""
    number, symbols = _factors(shape)
    match packed:
        case (Const(n),):
            return not symbols and n == -(-number // 8)
        case (CeilDiv(n, 8),):
            return (number, symbols) == _factors((n,))
        case _:
            return False


def _factors(product: tuple[Expr, ...]) -> tuple[int, list[str]]:
    """The number in a product, and its other factors as text."""
    number, others, stack = 1, [], [*product]
    while stack:
        match stack.pop():
            case Const(n):
                number *= n
            case Mul(factors):
                stack += factors
            case other:
                others.append(repr(other))
    return number, sorted(others)


def _extent(size: Expr) -> Arg:
    return size.value if isinstance(size, Const) else size
