"""Codecs: operators of the language that make a value smaller, and make it again.

A *packed value* is an aNode that is kept for another one, its *source*, between forward and
backward:

    F1p: fwd %p = remat_compile.pack_bits.default(%m)
    B1u: bwd %q = remat_compile.unpack_bits.default(%p, [64, 1024]) of F1p

`%q` *stands for* `%m`: whoever reads it would read `%m` without the codec, and an axiom by the
codec's name says that this gives the same (`spec/semantics.md`, "Packed values").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .expr import CeilDiv, Const, Expr, mul
from .graph import DTYPE_BYTES, ANode, Arg, Atom, Call, Graph, Ref

NAMESPACE = "remat_compile"
"""Library of the operators of codecs, in PyTorch too."""

EXPAND = "aten.expand.default"
SAME_ELEMENTS = frozenset(("aten.detach.default", "aten.alias.default"))
"""Views through which a stand-in may be read: they change nothing."""

FLOATS = frozenset(("f64", "f32", "f16", "bf16"))

Place = tuple[str, int]
"""An operator, and the position of one of its arguments."""


def _read_op(op: str, codec: str) -> str:
    return f"{NAMESPACE}.{op.split('.')[1]}_{codec}.default"


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec and its axiom, in words.

    `types` are the element types that it packs; `packed_type` is that of the packed value, None for
    the source's, which has a bit for each element, an element for each, or one alone. `gives` are
    the arguments of the unpacking call beside the packed value; that of a single element is the
    view `expand`. Of a codec with a `limit` the source has values from 0 to below it. Where there
    are `places`, the source's bits do not come back: those places alone may read what does, each
    with the values that it names for other arguments. What does is a *stand-in*; or, where the
    codec `is_read`, the packed value, by an operator of its own in place of that one:

        aten.threshold_backward.default(%g, %y, 0)
            is remat_compile.threshold_backward_signs.default(%g, %y_signs)
    """

    name: str
    axiom: str
    types: frozenset[str]
    packed_type: str | None
    form: Literal["bit", "element", "single"]
    gives: tuple[Literal["shape", "dtype"], ...] = ()
    limit: int | None = None
    places: tuple[tuple[Place, tuple[tuple[int, int], ...]], ...] = ()
    is_read: bool = False

    @property
    def pack_op(self) -> str:
        return f"{NAMESPACE}.pack_{self.name}.default"

    @property
    def unpack_op(self) -> str:
        return EXPAND if self.form == "single" else f"{NAMESPACE}.unpack_{self.name}.default"

    def packed(self, source: ANode, name: str) -> ANode:
        """The packed value of a source."""
        n = mul(Const(1), *source.shape)
        bits = Const(-(-n.value // 8)) if isinstance(n, Const) else CeilDiv(n, 8)
        shapes: dict[str, tuple[Expr, ...]] = {"bit": (bits,), "element": source.shape}
        dtype = self.packed_type or source.dtype
        shape = shapes.get(self.form, (Const(1),))
        return ANode(name, "phantom", dtype, shape, mul(Const(DTYPE_BYTES[dtype]), *shape))

    def pack(self, source: str) -> Call:
        return Call(self.pack_op, (Ref(source),))

    def unpack(self, packed: str, source: ANode) -> Call:
        """The call that makes it again, or the view of it."""
        arguments: dict[str, Arg] = {
            "shape": tuple(n.value if isinstance(n, Const) else n for n in source.shape),
            "dtype": Atom("dtype", source.dtype),
        }
        return Call(self.unpack_op, (Ref(packed), *(arguments[what] for what in self.gives)))

    def read(self, call: Call) -> Call:
        """The call of the codec's own operator in place of one that reads the source."""
        for (op, _), given in self.places:
            if op == call.op:
                left = {place for place, _ in given}
                args = tuple(arg for i, arg in enumerate(call.args) if i not in left)
                return Call(_read_op(op, self.name), args)
        return call

    def may_read(self, call: Call, place: int) -> bool:
        """Return whether the axiom speaks of what stands at that place of a call."""
        for reader, given in self.places:
            if reader == (call.op, place) and not call.kwargs:
                return all(repr(call.args[i : i + 1]) == repr((value,)) for i, value in given)
        return not self.places


_SHAPE_READERS = tuple(
    f"aten.{name}_backward.default"
    for name in (
        *("max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    )
)

BITS = Codec(
    "bits",
    "unpack_bits(pack_bits(x)) = x for bool x",
    frozenset(("bool",)),
    "u8",
    "bit",
    ("shape",),
)
SHAPE = Codec(
    "shape",
    "pooling and padding backward read no more than the shape of their input",
    FLOATS,
    None,
    "single",
    ("shape",),
    places=tuple(((op, 1), ()) for op in _SHAPE_READERS),
)
SIGNS = Codec(
    "signs",
    "threshold_backward_signs(g, pack_signs(y)) = threshold_backward(g, y, 0)",
    FLOATS,
    "u8",
    "bit",
    places=((("aten.threshold_backward.default", 1), ((2, 0),)),),
    is_read=True,
)
NARROW = tuple(
    Codec(
        f"narrow_{dtype}",
        f"unpack_narrow_{dtype}(pack_narrow_{dtype}(i)) = i for indices below {limit}",
        frozenset(("i64",)),
        dtype,
        "element",
        limit=limit,
    )
    for dtype, limit in (("u8", 2**8), ("i16", 2**15), ("i32", 2**31))
)

CODECS = {codec.name: codec for codec in (BITS, SHAPE, SIGNS, *NARROW)}
PACKS = {codec.pack_op: codec for codec in CODECS.values()}
UNPACKS = {
    codec.unpack_op: codec
    for codec in CODECS.values()
    if codec.form != "single" and not codec.is_read
}
READS = {
    _read_op(op, codec.name): (codec, op, place, given)
    for codec in CODECS.values()
    if codec.is_read
    for (op, place), given in codec.places
}
"""By operator: its codec, and the operator that it is read in place of, with the place there of the
source and other arguments, which the call of a codec leaves out."""

INDEX_AXES = {
    ("aten.max_pool2d_with_indices.default", 1): 2,
    ("aten.max_pool3d_with_indices.default", 1): 3,
    ("aten.adaptive_max_pool2d.default", 1): 2,
}
"""Results that are indices into the last so many axes of the operator's first argument."""


def index_limit(graph: Graph, source: ANode) -> int | None:
    """The number of values that an index may have, by the operator that writes it and the extents
    of what that reads; None where it is not known of all sizes."""
    c = graph.writer.get(source.name)
    first = c.call.args[0] if c is not None and c.call.args else None
    if c is None or not isinstance(first, Ref) or first.name not in graph.anode:
        return None
    axes = INDEX_AXES.get((c.call.op, c.writes.index(source.name)))
    extents = () if axes is None else graph.anode[first.name].shape[-axes:]
    product = mul(Const(1), *extents)
    return product.value if extents and isinstance(product, Const) else None


@dataclass(frozen=True, slots=True)
class Pair:
    """A packed value, and what stands for the source: a cNode's result, a view of the packed value,
    or that itself."""

    codec: Codec
    source: str
    packed: str
    stand_in: str


def pairs(graph: Graph) -> Iterator[Pair]:
    """The pairs of a well-formed graph."""
    packs = {c.results[0]: c.call for c in graph.cnodes if c.call.op in PACKS}
    for c in graph.cnodes:
        if c.call.op in UNPACKS:
            yield _pair(packs, c.call.refs()[0], c.results[0])
        elif c.call.op in READS:
            packed = graph.storage[c.call.refs()[READS[c.call.op][2]]]
            yield _pair(packs, packed, packed)
    for v in graph.views:
        if v.base in packs and v.call.op == EXPAND and v.call.refs() == (v.base,):
            yield _pair(packs, v.base, v.name)


def _pair(packs: dict[str, Call], packed: str, stand_in: str) -> Pair:
    pack = packs[packed]
    return Pair(PACKS[pack.op], pack.refs()[0], packed, stand_in)


def without_codec(call: Call) -> Call:
    """The call in place of which an operator of a codec reads a packed value."""
    _, op, _, given = READS[call.op]
    args = [*call.args]
    for place, value in given:
        args.insert(place, value)
    return Call(op, tuple(args))


def is_codec(op: str) -> bool:
    """Return whether an operator is of the library of codecs, known or not."""
    return op.startswith(f"{NAMESPACE}.")
