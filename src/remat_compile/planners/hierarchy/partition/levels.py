"""The hierarchy of an instance: each part is a leaf, or is cut into children that form a DAG.

A level is as a chain of stages (`chains/chain.py`), but any later child may read what a child
makes. Zhao 2024, section 3.4.1, on our graph:

* *interface* values are written in a child and read outside of it, forward or backward; the level
  says when they are alive;
* *inside* values are its own: an option of the child says which of them its backward finds kept;
* *permanent* values and *globals* are made once and held as long as anybody needs them.

Index legend: `x_N` has one entry per child in the order of the forward, and a last one for the
loss. Their backward runs in the opposite order, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...chains.chain import Chain, ForwardCut
from ...chains.part import content_key, part_of
from ...instance import Instance, Order
from .children import Limits, children_of
from .forward import ForwardGraph


@dataclass(frozen=True)
class Level(Chain):
    """`cross_N[j]` are the interface values that child j makes."""

    @cached_property
    def interface(self) -> frozenset[int]:
        return frozenset(a for cross in self.cross_N for a in cross)

    @cached_property
    def maker_A(self) -> dict[int, int]:
        """The child that makes each interface value."""
        return {a: j for j, cross in enumerate(self.cross_N) for a in cross}

    @cached_property
    def last_read_A(self) -> dict[int, int]:
        """For each value that the loss and the backward make: the last child whose backward reads
        it."""
        last: dict[int, int] = {}
        for j in reversed(range(len(self))):
            for c in self.backward_N[j]:
                last.update(dict.fromkeys(self.instance.reads_C[c], j))
        return last

    def given(self, j: int) -> frozenset[int]:
        """Values that the backward of child j reads and an earlier backward or the loss made."""
        return frozenset(
            a for c in self.backward_N[j] for a in self.instance.reads_C[c] if a in self.grads_N[j]
        )

    def passed(self, j: int) -> frozenset[int]:
        """Values that the backward of child j reads or makes and that are alive when it ends."""
        inst = self.instance
        made = {a for c in self.backward_N[j] for a in inst.writes_C[c]}
        ended = {inst.ends_C[c] for c in self.backward_N[j]}
        return frozenset(
            a
            for a in (made | self.given(j)) - ended
            if inst.kept_A[a] or self.last_read_A.get(a, j) < j
        )

    def part(self, j: int) -> Instance:
        """Child j as an instance of its own."""
        return part_of(
            self.instance,
            self.forward_N[j],
            self.backward_N[j],
            held=self.permanent,
            given=self.given(j),
            passed=self.passed(j),
            output=self.cross_N[j],
        )

    def nodes(self, j: int) -> tuple[int, ...]:
        """The cNode of the level for each cNode of `part(j)`."""
        return (*self.forward_N[j], self.instance.loss, *self.backward_N[j])

    @cached_property
    def before_N(self) -> list[frozenset[int]]:
        """The children whose interface values the forward of each reads."""
        inst = self.instance
        return [
            frozenset(
                self.maker_A[a]
                for c in cs
                for a in (*inst.reads_C[c], *inst.rereads_C[c])
                if self.maker_A.get(a, j) != j
            )
            for j, cs in enumerate(self.forward_N)
        ]


def level_of(instance: Instance, children: Sequence[Sequence[int]]) -> Level:
    """The level with these children (forward cNodes, in an order that respects every edge).

    A value that the backward of two children needs is an interface value, whoever reads it
    forward, so no children need be joined. Linear time.
    """
    return Level(*_LevelCut(instance, children).fields())


class _LevelCut(ForwardCut):
    def __init__(self, instance: Instance, children: Sequence[Sequence[int]]):
        super().__init__(instance, children)
        self.needed = {a: set(some) for a, some in self.readers.items()}
        for c, j in self.backward_stage.items():
            for a in instance.reads_C[c]:
                if a in self.needed:
                    self.needed[a].add(j)

    def home(self, a: int) -> int:
        return max(self.readers[a] | {self.made_in[a]})

    def crosses(self, a: int, i: int) -> bool:
        return bool(self.needed[a] - {i})


@dataclass(eq=False)
class PartClass:
    """`orders` are the options found so far, in the numbers of `instance`; the first is that
    which saves all. `members` parts of the whole have this class."""

    instance: Instance
    level: Level | None
    children: tuple[PartClass, ...]
    members: int = 0
    orders: list[Order] = field(default_factory=list)

    @property
    def is_leaf(self) -> bool:
        return self.level is None

    @property
    def depth(self) -> int:
        """Levels below and with this one."""
        return 1 + max((child.depth for child in self.children), default=0)


@dataclass(frozen=True)
class Member:
    """A leaf of the whole: its class, and its cNodes in the numbers of the whole."""

    part: PartClass
    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """`classes` has children before their parents; the root is the last. Two parts have one class
    where all that planning asks of them is equal (`content_key`): so what is read outside of them,
    and what others hold for them, counts too."""

    classes: tuple[PartClass, ...]

    @property
    def root(self) -> PartClass:
        return self.classes[-1]

    def members(self) -> Iterator[Member]:
        """The leaves of the whole, in the order of the tree."""
        yield from _members(self.root, tuple(range(len(self.root.instance.names_C))))


def _members(part: PartClass, number_C: tuple[int, ...]) -> Iterator[Member]:
    if part.level is None:
        loss = part.instance.loss
        yield Member(part, number_C[:loss], number_C[loss + 1 :])
        return
    for j, child in enumerate(part.children):
        yield from _members(child, tuple(number_C[c] for c in part.level.nodes(j)))


def tree_of(instance: Instance, limits: Limits, levels: int | None = None) -> Tree:
    """The hierarchy with at most so many levels (None: as many as it takes). Each class is cut
    once, so what repeats costs nothing."""
    classes: dict[tuple[object, ...], PartClass] = {}

    def class_of(part: Instance, left: int) -> PartClass:
        key = (content_key(part), left)
        if key not in classes:
            made = _cut(part, limits, left)
            inner = [class_of(made.part(j), left - 1) for j in range(len(made) - 1)] if made else []
            classes[key] = PartClass(part, made, tuple(inner), orders=[part.capture])
        return classes[key]

    root = class_of(instance, levels if levels is not None else 1 << 30)
    _count(root)
    return Tree(tuple(classes.values()))


def _cut(part: Instance, limits: Limits, left: int) -> Level | None:
    if left <= 1:
        return None
    forward = ForwardGraph.of(part)
    children = children_of(forward, limits)
    if len(children) < 2:
        return None
    return level_of(part, [[forward.cnode_P[p] for p in places] for places in children])


def _count(part: PartClass) -> None:
    part.members += 1
    for child in part.children:
        _count(child)
