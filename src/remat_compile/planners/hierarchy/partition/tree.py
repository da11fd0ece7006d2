"""The hierarchy of an instance: classes of parts that are the same problem, each planned once.

A class is a leaf, planned as it stands, or has a level of children, each with a class of its own.
Two parts have one class where all that planning asks of them is equal (`content_key`): so what
is read outside of them, and what others hold for them, counts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...chains.part import content_key
from ...instance import Instance, Order
from .children import Limits, children_of
from .forward import ForwardGraph
from .level import Level, level_of


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
    """`classes` has children before their parents; the root is the last."""

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
