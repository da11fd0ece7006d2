"""Well-formedness of packed values: each is one half of a pair that a codec's axiom speaks of."""

from __future__ import annotations

from collections.abc import Iterator

from ..codecs import CODECS, PACKS, UNPACKS, Codec, is_codec
from ..graph import ANode, Call, CNode, Graph, Ref
from .findings import Findings
from .graph import Names

WAY_OUT = "write the pair as `%p = remat_compile.pack_C.default(%m)` in the forward and `%q = "
WAY_OUT += "remat_compile.unpack_C.default(%p, …)` in the backward, %q of the type and shape of %m"


def check_packs(graph: Graph, names: Names, findings: Findings) -> None:
    """FB0233 for a codec that is unknown, stands elsewhere than in a cNode of its own, packs what
    it has no axiom for, makes again what is of another kind, or whose packed value others read."""
    for c in graph.cnodes:
        calls = [*c.call.parts()][1:] if c.call.region else [c.call]
        calls += [] if c.replay is None else [c.replay.call]
        for call in calls:
            if is_codec(call.op):
                why = _wrong(c, call, names)
                if why is not None:
                    findings.add("FB0233", f"{c.name}: {why}", c.span, word=call.op, hint=WAY_OUT)
    for v in graph.views:
        if is_codec(v.call.op):
            message = f"%{v.name}: a codec gives no view"
            findings.add("FB0233", message, v.span, word=v.call.op, hint=WAY_OUT)
    packed = {name: c for c in graph.cnodes if c.call.op in PACKS for name in c.results}
    for v in graph.views:
        for name in packed.keys() & {v.base, *v.call.refs()}:
            message = f"%{v.name} is a view of the packed value %{name}"
            findings.add("FB0233", message, v.span, word=f"%{name}", hint=WAY_OUT)
    for c in graph.cnodes:
        for name in packed.keys() & {*c.call.refs()}:
            codec = PACKS[packed[name].call.op]
            if UNPACKS.get(c.call.op) is not codec:
                message = f"{c.name} reads the packed value %{name}"
                findings.add("FB0233", message, c.span, word=f"%{name}", hint=WAY_OUT)


def _wrong(c: CNode, call: Call, names: Names) -> str | None:
    """Why a call of a codec has no meaning; None where it is half of a pair."""
    codec = PACKS.get(call.op) or UNPACKS.get(call.op)
    if codec is None:
        return f"there is no codec of that name; there are {', '.join(CODECS)}"
    if call is not c.call or c.replay is not None or c.token is not None:
        return f"{call.op} stands in a cNode of its own, without token and replay form"
    return next(
        _of_pack(c, codec, names) if call.op in PACKS else _of_unpack(c, codec, names), None
    )


def _source(c: CNode, names: Names) -> ANode | None:
    """The aNode that a pack reads, where it reads one that a cNode writes."""
    match c.call.args:
        case (Ref(name),):
            return names.anode.get(name) if name in names.writers else None
        case _:
            return None


def _of_pack(c: CNode, codec: Codec, names: Names) -> Iterator[str]:
    source = _source(c, names)
    if source is None or c.call.kwargs:
        yield "it packs one aNode that a cNode writes, and takes nothing else"
    elif c.phase != "fwd" or source.kind != "act" or len(c.writes) != 1 or None in c.writes:
        yield f"it packs an activation of the forward into one value, not %{source.name}"
    elif source.dtype not in codec.types:
        yield f"%{source.name} is {source.dtype}; {codec.name} packs {', '.join(codec.types)}"
    elif (made := names.anode.get(c.results[0])) and not _as_declared(made, codec, source):
        yield f"%{made.name} is no {codec.name} of %{source.name}"


def _as_declared(made: ANode, codec: Codec, source: ANode) -> bool:
    packed = codec.packed(source, made.name)
    return (made.kind, made.dtype, made.shape) == (packed.kind, packed.dtype, packed.shape)


def _of_unpack(c: CNode, codec: Codec, names: Names) -> Iterator[str]:
    first = c.call.args[0] if c.call.args else None
    packs = names.writers.get(first.name, []) if isinstance(first, Ref) else []
    source = _source(packs[0], names) if packs and packs[0].call.op == codec.pack_op else None
    if not isinstance(first, Ref) or source is None:
        yield f"it makes again what {codec.pack_op} has packed"
        return
    made = names.anode.get(c.results[0]) if len(c.results) == len(c.writes) == 1 else None
    if repr(c.call) != repr(codec.unpack(first.name, source)):
        yield f"it makes %{source.name} again, with other arguments than its type and shape"
    elif c.phase != "bwd" or made is None or made.kind != "grad":
        yield f"it makes %{source.name} again as one `grad` of the backward"
    elif (made.dtype, made.shape) != (source.dtype, source.shape):
        yield f"%{made.name} has not the type and shape of %{source.name}"
