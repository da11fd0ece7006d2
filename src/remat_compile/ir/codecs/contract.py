"""The contract of a codec: operators of the language that make a value smaller, and make it again.

A *packed value* is an aNode that is kept for another one, its *source*, between forward and
backward:

    F1p: fwd %p = remat_compile.pack_bits.default(%m)
    B1u: bwd %q = remat_compile.unpack_bits.default(%p, [64, 1024]) of F1p

`%q` *stands for* `%m`: whoever reads it would read `%m` without the codec, and an axiom by the
codec's name says that this gives the same (`spec/semantics.md`, "Packed values").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..expr import CeilDiv, Const, Expr, add, max_of, mul
from ..graph import DTYPE_BYTES, ANode, Arg, Atom, Call, Graph, Ref

NAMESPACE = "remat_compile"

CHUNK = 2**15
"""Elements that the kernels of a codec of the form `bytes` work through at a time, at most."""
"""Library of the operators of codecs, in PyTorch too."""

EXPAND = "aten.expand.default"
SAME_ELEMENTS = frozenset(("aten.detach.default", "aten.alias.default"))
"""Views through which a stand-in may be read: they change nothing."""

FLOATS = frozenset(("f64", "f32", "f16", "bf16"))

Place = tuple[str, int]
"""An operator, and the position of one of its arguments."""

Contract = Literal["identity", "reader-exact", "lossy"]
"""The promise of a codec: every bit, what reads alike where it is read, or what is near."""

SizeRule = Callable[[tuple[Expr, ...], int], Expr | None]
"""The bytes of a packed value by the shape of its source and the bytes of an element; None for a
shape that the codec does not take."""

EXPONENTIATED: frozenset[Place] = frozenset(
    (
        ("aten._log_softmax_backward_data.default", 1),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", 5),
        ("aten._scaled_dot_product_flash_attention_backward.default", 5),
        ("aten._scaled_dot_product_efficient_attention_backward.default", 6),
    )
)
"""Arguments that a backward exponentiates: an error of them grows, and has no mean of 0."""


def read_op(op: str, codec: str) -> str:
    return f"{NAMESPACE}.{op.split('.')[1]}_{codec}.default"


def ceil_div(dividend: Expr, divisor: int) -> Expr:
    if isinstance(dividend, Const):
        return Const(-(-dividend.value // divisor))
    return CeilDiv(dividend, divisor)


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec, its contract, and its axiom in words: of a lossy one, the bound on the error of each
    element.

    `types` are the element types that it packs; `packed_type` is that of the packed value, None for
    the source's, which has a bit for each element, an element for each, or one alone. `gives` are
    the arguments of the unpacking call beside the packed value; that of a single element is the
    view `expand`. Of a codec with a `limit` the source has values from 0 to below it. Where there
    are `places`, the source's bits do not come back: those places alone may read what does, each
    with the values that it names for other arguments. What does is a *stand-in*; or, where the
    codec `is_read`, the packed value, by an operator of its own in place of that one:

        aten.threshold_backward.default(%g, %y, 0)
            is remat_compile.threshold_backward_signs.default(%g, %y_signs)

    A codec of the form `bytes` packs into as many as `size` says. One that `is_random` is told a
    seed, over which what it gives back has the mean of what it packed. A lossy one stands in no
    place of `denied`. `kernels` names a pair of functions, `module:attribute`: the first packs (the
    tensor, and the seed), the second makes it again (the packed tensor, and what `gives` says).
    Beside their results they take no more than `workspace_bytes` for each element (twice as many
    for one of f64), and for all of them no more than for CHUNK elements.
    """

    name: str
    contract: Contract
    axiom: str
    types: frozenset[str]
    packed_type: str | None = "u8"
    form: Literal["bit", "element", "single", "bytes"] = "bytes"
    gives: tuple[Literal["shape", "dtype"], ...] = ()
    limit: int | None = None
    places: tuple[tuple[Place, tuple[tuple[int, int], ...]], ...] = ()
    is_read: bool = False
    size: SizeRule | None = None
    is_random: bool = False
    denied: frozenset[Place] = EXPONENTIATED
    kernels: str = ""
    workspace_bytes: int = 0

    @property
    def is_lossy(self) -> bool:
        return self.contract == "lossy"

    @property
    def pack_op(self) -> str:
        return f"{NAMESPACE}.pack_{self.name}.default"

    @property
    def unpack_op(self) -> str:
        return EXPAND if self.form == "single" else f"{NAMESPACE}.unpack_{self.name}.default"

    def packed_bytes(self, source: ANode) -> Expr | None:
        """Bytes of the form `bytes`; None for a source of a shape that the codec does not take."""
        return self.size(source.shape, DTYPE_BYTES[source.dtype]) if self.size else None

    def workspace(self, source: ANode) -> Expr:
        """Bytes that a kernel takes beside its result, at most."""
        n = mul(Const(1), *source.shape)
        each = Const(self.workspace_bytes * max(1, DTYPE_BYTES[source.dtype] // 4))
        if isinstance(n, Const):
            return mul(each, Const(min(n.value, CHUNK)))
        beyond = max_of(add(n, Const(-CHUNK)), Const(0))
        return mul(each, add(n, mul(Const(-1), beyond)))

    def packed(self, source: ANode, name: str) -> ANode:
        """The packed value of a source that it takes."""
        shapes: dict[str, tuple[Expr, ...]] = {
            "bit": (ceil_div(mul(Const(1), *source.shape), 8),),
            "element": source.shape,
            "bytes": (self.packed_bytes(source) or Const(0),),
        }
        dtype = self.packed_type or source.dtype
        shape = shapes.get(self.form, (Const(1),))
        return ANode(name, "phantom", dtype, shape, mul(Const(DTYPE_BYTES[dtype]), *shape))

    def pack(self, source: str, seed: int = 0) -> Call:
        return Call(self.pack_op, (Ref(source), seed) if self.is_random else (Ref(source),))

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
                return Call(read_op(op, self.name), args)
        return call

    def may_read(self, call: Call, place: int) -> bool:
        """Return whether the contract speaks of what stands at that place of a call."""
        if self.is_lossy and (call.op, place) in self.denied:
            return False
        for reader, given in self.places:
            if reader == (call.op, place) and not call.kwargs:
                return all(repr(call.args[i : i + 1]) == repr((value,)) for i, value in given)
        return not self.places


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


def is_codec(op: str) -> bool:
    """Return whether an operator is of the library of codecs, known or not."""
    return op.startswith(f"{NAMESPACE}.")
