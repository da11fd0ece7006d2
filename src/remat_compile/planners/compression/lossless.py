"""Packing: which activations are kept in fewer bytes between forward and backward.

What is packed is every activation of which the backward reads no more than codecs give back, and of
which enough is saved. Whether a plan with packed values is better is decided by planning both.
Each reader has the lossless codec of the fewest bytes, or else a lossy one that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...ir.codecs import CODECS, FLOATS, SAME_ELEMENTS, Codec, index_limit
from ...ir.expr import evaluate
from ...ir.graph import ANode, Arg, Call, CNode, Graph, Ref
from ...ir.program import Program
from ...ir.rewrites.packs import Choice

LEAST_SAVED = 4096
"""Bytes that packing one value must save, at the sample."""

Contiguous = Callable[[str], bool]
"""True where the tensor of an aNode lies in memory in the order of its elements."""
Admits = Callable[[Choice], bool]
"""True where a choice, which a codec can make good, is wanted."""


def lossless() -> list[Codec]:
    """All codecs that give back what is read, to the bit."""
    return [codec for codec in CODECS.values() if not codec.is_lossy]


def choices_of(
    program: Program, is_contiguous: Contiguous, codecs: Sequence[Codec], admits: Admits
) -> list[Choice]:
    """The values to be packed, in the order of the graph."""
    made: list[Choice] = []
    for a in program.graph.anodes:
        choices = list(_choices(program, a, codecs))
        if choices and is_contiguous(a.name) and all(map(admits, choices)):
            sizes = [a.size, *(choice.codec.packed(a, "").size for choice in choices)]
            source_bytes, *packed_bytes = (evaluate(size, program.sample) for size in sizes)
            made += choices if source_bytes - sum(packed_bytes) >= LEAST_SAVED else ()
    return made


def _choices(program: Program, a: ANode, codecs: Sequence[Codec]) -> Iterator[Choice]:
    """A codec for each of the backward cNodes that read an activation; none, where one of them
    reads more than a codec gives back."""
    graph = program.graph
    readers = [c for c in graph.readers[a.name] if c.phase == "bwd"]
    is_phantom = len(readers) == len(graph.readers[a.name])
    # What is kept for other reasons stays as it is.
    if not readers or a.kind != ("phantom" if is_phantom else "act"):
        return
    chosen: dict[Codec, list[str]] = {}
    for c in readers:
        able = [codec for codec in codecs if _takes(codec, graph, a, c)]
        if not able or c.replay is not None:
            return
        best = min(able, key=lambda codec: (codec.is_lossy, *_packed_bytes(codec, program, a)))
        chosen.setdefault(best, []).append(c.name)
    for codec, names in chosen.items():
        yield Choice(a.name, codec, tuple(names))


def _packed_bytes(codec: Codec, program: Program, a: ANode) -> tuple[int, str]:
    return evaluate(codec.packed(a, "").size, program.sample), codec.name


def _takes(codec: Codec, graph: Graph, a: ANode, c: CNode) -> bool:
    """Return whether `c` may read `a` as the codec gives it back, in all places where it does."""
    if a.dtype not in codec.types or (codec.size and codec.packed_bytes(a) is None):
        return False
    if codec.is_lossy and not _gives_floats(graph, c):
        return False
    if codec.limit is not None and (index_limit(graph, a) or codec.limit + 1) > codec.limit:
        return False
    return all(
        codec.may_read(c.call, place) and (not codec.places or _is_plain(graph, arg))
        for place, arg in enumerate((*c.call.args, *(value for _, value in c.call.kwargs)))
        for name in Call("", (arg,)).refs()
        if graph.storage[name] == a.name
    )


def _gives_floats(graph: Graph, c: CNode) -> bool:
    """Not a comparison, by which an error would change which element is chosen."""
    return all(graph.anode[name].dtype in FLOATS for name in c.writes if name is not None)


def _is_plain(graph: Graph, arg: Arg) -> bool:
    """Return whether an argument is an aNode, or a view of it that changes nothing."""
    return isinstance(arg, Ref) and all(
        view.call.op in SAME_ELEMENTS for view in graph.views_below(arg.name)
    )
