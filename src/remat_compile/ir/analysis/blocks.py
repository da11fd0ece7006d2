"""Blocks of a graph, and which of them are identical up to names.

Two blocks are identical when their cNodes agree one by one in phase, operator,
arguments, sizes and workspace, with the names of one renamed to those of the other. They
can be planned once. Times are not compared: a cost source gives equal ones to equal
cNodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from ..expr import Expr
from ..graph import Arg, Call, CNode, Graph, Ref
from ..program import Program
from .separators import chain_of

__all__ = ["Block", "BlockClass", "blocks_of", "fingerprint", "identical_blocks"]

Key = tuple[object, ...]


@dataclass(frozen=True)
class Block:
    """Forward cNodes that stand together, and the backward cNodes that belong to them."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]

    @property
    def cnodes(self) -> tuple[str, ...]:
        return (*self.forward, *self.backward)


@dataclass(frozen=True)
class BlockClass:
    """Identical blocks. `renamings[i]` maps every name that the first block mentions
    (cNodes, aNodes and views, outer ones too) to the name in `blocks[i]`."""

    blocks: tuple[Block, ...]
    renamings: tuple[dict[str, str], ...]


def blocks_of(program: Program, chain: Sequence[Sequence[str]] | None = None) -> tuple[Block, ...]:
    """The chain of forward blocks (`chain_of` by default) with their backward cNodes.

    A backward cNode belongs to the last block of those in its `of`; a sum of gradients,
    which has none, to the block of the cNode that wrote what it adds last.
    """
    graph = program.graph
    chain = chain_of(program) if chain is None else chain
    place = {name: i for i, names in enumerate(chain) for name in names}
    backward: list[list[str]] = [[] for _ in chain]
    for c in graph.in_phase("bwd"):
        known = [place[name] for name in c.of if name in place]
        if not known:
            writers = [graph.writer[n].name for n in graph.reads(c) if n in graph.writer]
            behind = [place[name] for name in writers if name in place]
            known = [min(behind)] if behind else []
        if known:
            place[c.name] = max(known)
            backward[place[c.name]].append(c.name)
    return tuple(
        Block(tuple(names), tuple(back)) for names, back in zip(chain, backward, strict=True)
    )


def identical_blocks(program: Program, blocks: Iterable[Block]) -> tuple[BlockClass, ...]:
    """Blocks grouped by structure, classes and members in order. Linear time."""
    groups: dict[tuple[Key, ...], list[tuple[Block, dict[str, str]]]] = {}
    for block in blocks:
        shape = _Shape(program.graph)
        key = tuple(shape.of_cnode(program.graph.cnode[name]) for name in block.cnodes)
        names = {canonical: name for name, canonical in shape.names.items()}
        groups.setdefault((len(block.forward), *key), []).append((block, names))  # type: ignore[arg-type]
    found = []
    for members in groups.values():
        first = members[0][1]
        found.append(
            BlockClass(
                tuple(block for block, _ in members),
                tuple({first[k]: names[k] for k in first} for _, names in members),
            )
        )
    return tuple(found)


def fingerprint(program: Program, block: Block) -> str:
    """A hash of the structure: equal for identical blocks, names left out."""
    shape = _Shape(program.graph)
    key = tuple(shape.of_cnode(program.graph.cnode[name]) for name in block.cnodes)
    return sha256(repr((len(block.forward), key)).encode()).hexdigest()


class _Shape:
    """Replaces names by numbers in order of first mention."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.names: dict[str, str] = {}

    def of_cnode(self, c: CNode) -> Key:
        call = self._call(c.call)
        writes = tuple(self._storage(name) for name in c.writes)
        replay: Key | None = None
        if c.replay is not None:
            again = tuple(self._storage(name) for name in c.replay.writes)
            replay = (self._call(c.replay.call), again, c.replay.workspace)
        token = self._storage(c.token)
        number, _ = self._number(f"cnode {c.name}", c.name)
        return (number, c.phase, call, writes, replay, token, c.workspace)

    def _number(self, key: str, name: str) -> tuple[str, bool]:
        """The number of a name, and whether this is its first mention."""
        if name in self.names:
            return self.names[name], False
        kind = key.split(" ")[0]
        self.names[name] = f"{kind}{len(self.names)}"
        return self.names[name], True

    def _call(self, call: Call) -> Key:
        args = tuple(self._arg(arg) for arg in call.args)
        kwargs = tuple((name, self._arg(arg)) for name, arg in call.kwargs)
        return (call.op, args, kwargs)

    def _arg(self, arg: Arg) -> object:
        if isinstance(arg, Ref):
            return self._ref(arg.name)
        if isinstance(arg, tuple):
            return tuple(self._arg(part) for part in arg)
        if isinstance(arg, bool | int | float | str | None):
            return (type(arg).__name__, repr(arg))
        return arg

    def _ref(self, name: str) -> Key:
        view = self.graph.view.get(name)
        if view is None:
            return self._storage(name)
        number, new = self._number(f"view {name}", name)
        if not new:
            return (number,)
        return (number, view.index, self._storage(view.base), self._call(view.call))

    def _storage(self, name: str | None) -> Key:
        if name is None:
            return ("_",)
        number, new = self._number(f"anode {name}", name)
        if not new:
            return (number,)
        a = self.graph.anode[name]
        shape: tuple[Expr, ...] = a.shape
        return (number, a.kind, a.dtype, shape, a.size)
