"""Well-formedness of packed values: each is part of a pair that a codec's axiom speaks of."""

from __future__ import annotations

from collections.abc import Iterator

from ..codecs import CODECS, PACKS, READS, SAME_ELEMENTS, UNPACKS, Codec, index_limit, is_codec
from ..graph import ANode, Arg, Call, CNode, Graph, Ref, View
from .findings import Findings
from .graph import Names

WAY_OUT = "packed values and what may read them: spec/grammar.md, `Packed values`"


def check_packs(graph: Graph, names: Names, findings: Findings) -> None:
    """FB0233 for a codec that is unknown, stands elsewhere than in a cNode of its own, packs or
    makes again what it has no axiom for, and for a packed value or stand-in that others read."""
    if not any(is_codec(call.op) for call in graph.calls()):
        return
    check = _PacksCheck(graph, names, findings)
    for c in graph.cnodes:
        check.cnode(c)
    for v in graph.views:
        check.view(v)
    for c in graph.cnodes:
        check.reads(c)


class _PacksCheck:
    """Facts of the graph so far: the codec and source of each packed value, and of what
    stands for a source."""

    def __init__(self, graph: Graph, names: Names, findings: Findings):
        self.graph, self.names, self.findings = graph, names, findings
        self.packed: dict[str, tuple[Codec, ANode]] = {}
        self.stand_ins: dict[str, Codec] = {}
        self.broken: set[str] = set()  # what comes of a refused half: told once

    def refuse(self, who: str, why: str, node: CNode | View, word: str) -> None:
        self.findings.add("FB0233", f"{who}: {why}", node.span, word=word, hint=WAY_OUT)

    def cnode(self, c: CNode) -> None:
        calls = [inner.call for inner in c.call.region]
        for call in (*calls, *([] if c.replay is None else [c.replay.call])):
            if is_codec(call.op):
                self.refuse(c.name, "a codec stands in a cNode of its own", c, call.op)
        if is_codec(c.call.op) and c.call.op not in READS:
            why = next(self._pack(c) if c.call.op in PACKS else self._unpack(c), None)
            if why is not None:
                self.broken.update(c.results)
            if why and self.broken.isdisjoint(c.call.refs()):
                self.refuse(c.name, why, c, c.call.op)

    def _pack(self, c: CNode) -> Iterator[str]:
        codec, source = PACKS[c.call.op], self._source(c)
        if source is None:
            yield "it packs one aNode that a forward cNode writes, and takes nothing else"
        elif codec.is_random and not _is_seed(c.call.args[1:]):
            yield f"{codec.name} rounds at random, and takes a seed from 0 to 2^63 - 1"
        elif c.phase != "fwd" or source.kind != "act" or c.token is not None or c.replay:
            yield f"it packs an activation of the forward, once, and not %{source.name}"
        elif source.dtype not in codec.types:
            yield f"%{source.name} is {source.dtype}, of which {codec.name} has no axiom"
        elif codec.limit is not None and not self._is_below(source, codec.limit):
            yield f"it is not known that all values of %{source.name} are below {codec.limit}"
        elif codec.size is not None and codec.packed_bytes(source) is None:
            yield f"{codec.name} does not take a value of the shape of %{source.name}"
        elif not (made := self._made(c)) or not _is_like(made, codec.packed(source, made.name)):
            yield f"it makes one {codec.packed(source, '').dtype} value of kind `phantom`"
        else:
            self.packed[made.name] = codec, source

    def _unpack(self, c: CNode) -> Iterator[str]:
        codec = UNPACKS.get(c.call.op)
        if codec is None:
            yield f"there is no such codec; there are {', '.join(CODECS)}"
            return
        own, source = self.packed.get(next(iter(c.call.refs()), ""), (None, None))
        made = self._made(c)
        if own is not codec or source is None:
            yield f"it makes again what {codec.pack_op} has packed"
        elif repr(c.call) != repr(codec.unpack(c.call.refs()[0], source)):
            yield f"it makes %{source.name} again with its shape and type, and nothing else"
        elif c.phase != "bwd" or c.token is not None or c.replay or made is None:
            yield f"it makes %{source.name} again as one value of the backward"
        elif (made.kind, made.dtype, made.shape) != ("grad", source.dtype, source.shape):
            yield f"%{made.name} is not a `grad` of the type and shape of %{source.name}"
        else:
            self.stand_ins[made.name] = codec

    def view(self, v: View) -> None:
        if is_codec(v.call.op):
            self.refuse(f"%{v.name}", "a codec stands in a cNode of its own", v, v.call.op)
        for name in v.call.refs():
            codec, source = self.packed.get(name, (None, None))
            if codec is not None and source is not None:
                if codec.is_read and v.call.op in SAME_ELEMENTS:
                    self.packed[v.name] = codec, source
                    continue
                if codec.form != "single" or repr(v.call) != repr(codec.unpack(name, source)):
                    self.refuse(f"%{v.name}", f"it is a view of the packed %{name}", v, f"%{name}")
                self.stand_ins[v.name] = codec
            if name in self.stand_ins:
                codec = self.stand_ins[v.name] = self.stand_ins[name]
                if codec.places and v.call.op not in SAME_ELEMENTS:
                    self.refuse(f"%{v.name}", f"it is a view of %{name}", v, f"%{name}")

    def _direct(self, c: CNode) -> Iterator[str]:
        """An operator of a codec that reads the packed value."""
        codec, op, place, _ = READS[c.call.op]
        named = [arg.name for arg in c.call.args if isinstance(arg, Ref)]
        plain = len(named) == len(c.call.args) == 2 and not c.call.kwargs
        own, source = self.packed.get(named[place] if plain else "", (None, None))
        made = self._made(c)
        other = named[1 - place] if plain else ""
        if own is not codec or source is None or other in self.packed or other in self.stand_ins:
            yield f"it reads what {codec.pack_op} has packed, as {op} reads its source"
        elif c.phase != "bwd" or c.token is not None or c.replay or made is None:
            yield "it makes one value of the backward"
        elif (made.dtype, made.shape) != (source.dtype, source.shape):
            yield f"%{made.name} is not of the type and shape of %{source.name}"

    def reads(self, c: CNode) -> None:
        if c.call.op in READS:
            why = next(self._direct(c), None)
            if why and self.broken.isdisjoint(map(self._base, c.call.refs())):
                self.refuse(c.name, why, c, c.call.op)
        for call in (c.call, c.call_at(2)) if c.replay else (c.call,):
            if is_codec(call.op):
                continue
            for place, arg in enumerate((*call.args, *(value for _, value in call.kwargs))):
                for name in Call("", (arg,)).refs():
                    codec = self.stand_ins.get(name)
                    if name in self.packed:
                        self.refuse(c.name, f"it reads the packed %{name}", c, f"%{name}")
                    elif codec and not (
                        (isinstance(arg, Ref) or not codec.places)
                        and codec.may_read(call, place)
                        and not c.is_accumulate
                    ):
                        why = f"{codec.name} has no axiom of what reads %{name} there"
                        self.refuse(c.name, why, c, f"%{name}")

    def _base(self, name: str) -> str:
        return self.names.view[name].base if name in self.names.view else name

    def _source(self, c: CNode) -> ANode | None:
        match c.call.args, c.call.kwargs:
            case (((Ref(name),) | (Ref(name), int())), ()) if (
                len(c.call.args) == 1 + PACKS[c.call.op].is_random
            ):
                return self.names.anode.get(name) if name in self.names.writers else None
            case _:
                return None

    def _made(self, c: CNode) -> ANode | None:
        (name,) = c.writes if len(c.writes) == 1 else (None,)
        return None if name is None else self.names.anode.get(name)

    def _is_below(self, source: ANode, limit: int) -> bool:
        known = index_limit(self.graph, source)
        return known is not None and known <= limit


def _is_seed(args: tuple[Arg, ...]) -> bool:
    match args:
        case (int(seed),):
            return 0 <= seed < 2**63 and not isinstance(seed, bool)
        case _:
            return False


def _is_like(a: ANode, b: ANode) -> bool:
    return (a.kind, a.dtype, a.shape) == (b.kind, b.dtype, b.shape)
