"""Lossless packing: which activations are kept in fewer bytes between forward and backward.

What is packed is every activation of which the backward reads no more than codecs give back, and of
which enough is saved. Whether a plan with packed values is better is decided by planning both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...ir.analysis.packs import Choice
from ...ir.codecs import CODECS, SAME_ELEMENTS, Codec, index_limit
from ...ir.expr import evaluate
from ...ir.graph import ANode, Arg, Call, CNode, Graph, Ref
from ...ir.program import Program

LEAST_SAVED = 4096
"""Bytes that packing one value must save, at the sample."""

Contiguous = Callable[[str], bool]
"""Whether the tensor of an aNode lies in memory in the order of its elements."""


def lossless_choices(program: Program, is_contiguous: Contiguous) -> list[Choice]:
    """The values to be packed, in the order of the graph."""
    made: list[Choice] = []
    for a in program.graph.anodes:
        choices = list(_choices(program.graph, a))
        if choices and is_contiguous(a.name):
            sizes = [a.size, *(choice.codec.packed(a, "").size for choice in choices)]
            source_bytes, *packed_bytes = (evaluate(size, program.sample) for size in sizes)
            made += choices if source_bytes - sum(packed_bytes) >= LEAST_SAVED else ()
    return made


def _choices(graph: Graph, a: ANode) -> Iterator[Choice]:
    """A codec for each of the backward cNodes that read an activation; none, where one of them
    reads more than a codec gives back."""
    readers = [c for c in graph.readers[a.name] if c.phase == "bwd"]
    is_phantom = len(readers) == len(graph.readers[a.name])
    # What is kept for other reasons stays as it is.
    if not readers or a.kind != ("phantom" if is_phantom else "act"):
        return
    chosen: dict[Codec, list[str]] = {}
    for c in readers:
        codec = next((codec for codec in CODECS.values() if _takes(codec, graph, a, c)), None)
        if codec is None or c.replay is not None:
            return
        chosen.setdefault(codec, []).append(c.name)
    for codec, names in chosen.items():
        yield Choice(a.name, codec, tuple(names))


def _takes(codec: Codec, graph: Graph, a: ANode, c: CNode) -> bool:
    """Return whether `c` may read `a` as the codec gives it back, in all places where it does."""
    if a.dtype not in codec.types:
        return False
    if codec.limit is not None and (index_limit(graph, a) or codec.limit + 1) > codec.limit:
        return False
    return all(
        codec.may_read(c.call, place) and (not codec.places or _is_plain(graph, arg))
        for place, arg in enumerate((*c.call.args, *(value for _, value in c.call.kwargs)))
        for name in Call("", (arg,)).refs()
        if graph.storage[name] == a.name
    )


def _is_plain(graph: Graph, arg: Arg) -> bool:
    """Return whether an argument is an aNode, or a view of it that changes nothing."""
    return isinstance(arg, Ref) and all(
        view.call.op in SAME_ELEMENTS for view in graph.views_below(arg.name)
    )
