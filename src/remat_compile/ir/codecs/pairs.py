"""Pairs of a packed value and the unpacked value that stands for its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..graph import Call, Graph
from .contract import EXPAND, Codec
from .registry import PACKS, READS, UNPACKS


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
