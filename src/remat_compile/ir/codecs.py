"""Codecs: operators of the language that make a value smaller, and make it again.

A *packed value* is an aNode that stands for another one, its *source*, between forward and backward:

    F1p: fwd %p = remat_compile.pack_bits.default(%m)
    B1u: bwd %q = remat_compile.unpack_bits.default(%p, [64, 1024]) of F1p

Whoever reads `%q` would read `%m` without it, and an axiom by the codec's name says that this gives
the same (`spec/semantics.md`, "Packed values").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .expr import CeilDiv, Const, Expr, mul
from .graph import ANode, Arg, Call, CNode, Graph, Ref

NAMESPACE = "remat_compile"
"""Library of the operators of codecs, in PyTorch too."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec: `types` are those of the element types that it packs, `axiom` is for people."""

    name: str
    types: frozenset[str]
    axiom: str

    @property
    def pack_op(self) -> str:
        return f"{NAMESPACE}.pack_{self.name}.default"

    @property
    def unpack_op(self) -> str:
        return f"{NAMESPACE}.unpack_{self.name}.default"

    def packed(self, source: ANode, name: str) -> ANode:
        """The packed value: a bit for each element, in bytes."""
        size = _ceil_div(mul(*source.shape, Const(1)), 8)
        return ANode(name, "phantom", "u8", (size,), size)

    def pack(self, source: str) -> Call:
        return Call(self.pack_op, (Ref(source),))

    def unpack(self, packed: str, source: ANode) -> Call:
        return Call(self.unpack_op, (Ref(packed), tuple(map(as_argument, source.shape))))


BITS = Codec("bits", frozenset(("bool",)), "unpack_bits(pack_bits(x)) = x for bool x")

CODECS = {codec.name: codec for codec in (BITS,)}
PACKS = {codec.pack_op: codec for codec in CODECS.values()}
UNPACKS = {codec.unpack_op: codec for codec in CODECS.values()}


@dataclass(frozen=True, slots=True)
class Pair:
    """A packed value with one place where it is made again: `unpacked` stands for `source`."""

    codec: Codec
    source: str
    packed: str
    unpacked: str
    pack: CNode
    unpack: CNode


def pairs(graph: Graph) -> Iterator[Pair]:
    """The pairs of a well-formed graph, in its order."""
    for c in graph.cnodes:
        if codec := UNPACKS.get(c.call.op):
            (packed,), (unpacked,) = c.call.refs(), c.results
            pack = graph.writer[packed]
            yield Pair(codec, *pack.call.refs(), packed, unpacked, pack, c)


def is_codec(op: str) -> bool:
    """Return whether an operator is of the library of codecs, known or not."""
    return op.startswith(f"{NAMESPACE}.")


def as_argument(size: Expr) -> Arg:
    """An extent as an argument of a call: plain integers stay `int` there."""
    return size.value if isinstance(size, Const) else size


def _ceil_div(size: Expr, by: int) -> Expr:
    return Const(-(-size.value // by)) if isinstance(size, Const) else CeilDiv(size, by)
