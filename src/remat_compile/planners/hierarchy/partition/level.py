"""One level of the hierarchy: an instance cut into children that form a DAG.

As a chain of stages (`chains/chain.py`), but any later child may read what a child makes. Zhao
2024, section 3.4.1, on our graph:

* *interface* values are written in a child and read outside of it, forward or backward; the level
  says when they are alive;
* *inside* values are its own: an option of the child says which of them its backward finds kept;
* *permanent* values and *globals* are made once and held as long as anybody needs them.

Index legend: `x_N` has one entry per child in the order of the forward, and a last one for the
loss. Their backward runs in the opposite order, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...chains.chain import Chain, backward_stages
from ...chains.part import part_of
from ...instance import Instance


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
    return _Assembly(instance, children).level()


class _Assembly:
    def __init__(self, instance: Instance, children: Sequence[Sequence[int]]):
        self.instance = inst = instance
        self.children = children
        self.loss_child = len(children)
        self.child_C = {c: j for j, cs in enumerate(children) for c in cs}
        self.child_C[inst.loss] = self.loss_child
        self.made_in = {a: j for j, cs in enumerate(children) for c in cs for a in inst.writes_C[c]}
        self.readers: dict[int, set[int]] = {a: set() for a in self.made_in}
        for c, j in self.child_C.items():
            for a in (*inst.reads_C[c], *inst.rereads_C[c]):
                if a in self.readers:
                    self.readers[a].add(j)
        self.permanent = self._permanent()
        home_A = {
            a: max(self.readers[a] | {j})
            for a, j in self.made_in.items()
            if a not in self.permanent
        }
        self.backward_child = backward_stages(inst, self.child_C, home_A)
        self.needed: dict[int, set[int]] = {a: set(some) for a, some in self.readers.items()}
        for c, j in self.backward_child.items():
            for a in inst.reads_C[c]:
                if a in self.needed:
                    self.needed[a].add(j)

    def _permanent(self) -> set[int]:
        """Values that the graph keeps, that no cNode remakes, and globals with other readers."""
        inst = self.instance
        permanent = set()
        for j, cs in enumerate(self.children):
            for c in cs:
                again = set(inst.rewrites_C[c]) if inst.makable_C[c] else set()
                for a in inst.writes_C[c]:
                    shared = inst.aside_A[a] and self.readers[a] - {j}
                    if inst.kept_A[a] or a not in again or shared:
                        permanent.add(a)
        return permanent

    def level(self) -> Level:
        inst = self.instance
        n = self.loss_child + 1
        backward: list[list[int]] = [[] for _ in range(n)]
        for c in inst.capture:
            if c in self.backward_child:
                backward[self.backward_child[c]].append(c)
        cross: list[set[int]] = [set() for _ in range(n)]
        until_A: dict[int, int] = {}
        for a, j in self.made_in.items():
            if a in self.permanent:
                least = min(self.needed[a], default=self.loss_child)
                until_A[a] = -1 if inst.kept_A[a] else least
            elif self.needed[a] - {j}:
                cross[j].add(a)
        return Level(
            inst,
            (*(tuple(cs) for cs in self.children), (inst.loss,)),
            tuple(tuple(cs) for cs in backward),
            tuple(frozenset(some) for some in cross),
            until_A,
        )
