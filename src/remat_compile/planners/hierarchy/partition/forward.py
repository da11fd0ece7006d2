"""The forward of an instance as a graph of its cNodes, as the partitions see it.

Places: a forward cNode is named by its place among the forward cNodes. `before_P` are the places
that must run earlier: those that make what it reads, and for a cNode that draws random numbers the
one that draws before it. What the caller holds makes no edge.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ....ir.analysis.order import least_first
from ...instance import Instance

_HUB = 64
"""A value with more forward readers than this joins nothing (a mask, a table)."""
_SEEN = 3
"""The number of steps back that the vote of a cNode looks."""


@dataclass(frozen=True)
class ForwardGraph:
    """`cnode_P` names the cNodes; `before_P` rise."""

    instance: Instance
    cnode_P: tuple[int, ...]
    before_P: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(instance: Instance) -> ForwardGraph:
        cnodes = tuple(c for c, phase in enumerate(instance.phase_C) if phase == "fwd")
        maker: dict[int, int] = {}
        place = {c: p for p, c in enumerate(cnodes)}
        before: list[tuple[int, ...]] = []
        drawn = -1
        for p, c in enumerate(cnodes):
            makers = {maker[a] for a in _read(instance, c) if a in maker}
            makers.update(place[b] for b in instance.after_C[c] if b in place)
            if instance.token_C[c] >= 0:
                makers.update([drawn] if drawn >= 0 else [])
                drawn = p
            before.append(tuple(sorted(makers)))
            maker.update(dict.fromkeys(instance.writes_C[c], p))
        return ForwardGraph(instance, cnodes, tuple(before))

    def __len__(self) -> int:
        return len(self.cnode_P)

    @cached_property
    def made_in(self) -> dict[int, int]:
        """The place that makes each forward aNode."""
        writes = self.instance.writes_C
        return {a: p for p, c in enumerate(self.cnode_P) for a in writes[c]}

    @cached_property
    def readers_A(self) -> dict[int, tuple[int, ...]]:
        """The places that read each forward aNode. What the loss reads has a reader behind all."""
        readers: dict[int, list[int]] = {a: [] for a in self.made_in}
        for p, c in enumerate(self.cnode_P):
            for a in _read(self.instance, c):
                if a in readers:
                    readers[a].append(p)
        for a in self.instance.reads_C[self.instance.loss]:
            if a in readers:
                readers[a].append(len(self))
        return {a: tuple(ps) for a, ps in readers.items()}

    @cached_property
    def joining_P(self) -> tuple[tuple[int, ...], ...]:
        """`before_P` without what comes from hubs."""
        hubs = {a for a, readers in self.readers_A.items() if len(readers) > _HUB}
        if not hubs:
            return self.before_P
        inst, made_in = self.instance, self.made_in
        joining = []
        for c, before in zip(self.cnode_P, self.before_P, strict=True):
            read = _read(inst, c)
            other = {made_in[a] for a in read if a in made_in and a not in hubs}
            through = {made_in[a] for a in read if a in hubs}
            joining.append(tuple(p for p in before if p in other or p not in through))
        return tuple(joining)

    @cached_property
    def setup(self) -> frozenset[int]:
        """Places that make globals out of nothing but globals: masks, tables, positions."""
        inst = self.instance
        setup: set[int] = set()
        for p, c in enumerate(self.cnode_P):
            alone = all(inst.aside_A[a] for a in inst.writes_C[c]) and inst.writes_C[c]
            if alone and inst.token_C[c] < 0 and all(q in setup for q in self.before_P[p]):
                setup.add(p)
        return frozenset(setup)

    @cached_property
    def crossing_bytes_P(self) -> list[int]:
        """Bytes that cross from the first p + 1 places to the rest, globals left out."""
        return self._crossing(self.instance.size_A)

    @cached_property
    def crossing_P(self) -> list[int]:
        """Number of values that cross from the first p + 1 places to the rest, without globals."""
        return self._crossing([1] * len(self.instance.size_A))

    def _crossing(self, weight_A: Sequence[int]) -> list[int]:
        change = [0] * (len(self) + 1)
        for a, p in self.made_in.items():
            last = max(self.readers_A[a], default=p)
            if not self.instance.aside_A[a]:
                change[p] += weight_A[a]
                change[min(last, len(self))] -= weight_A[a]
        return list(accumulate(change))[: len(self)]

    @cached_property
    def kinds_P(self) -> list[Hashable]:
        """The signature of a cNode without its place and names: two of them may be the same
        place of two layers."""
        inst = self.instance
        return [
            (
                tuple(inst.size_A[a] for a in inst.writes_C[c]),
                tuple(inst.aside_A[a] for a in inst.writes_C[c]),
                inst.workspace_C[c],
                inst.time_C[c],
                inst.token_C[c] >= 0,
                inst.makable_C[c],
                len(inst.rewrites_C[c]),
                len(self.joining_P[p]),
            )
            for p, c in enumerate(self.cnode_P)
        ]

    @cached_property
    def votes_P(self) -> list[int]:
        """The kind of a cNode with those of the places before it, a few steps back."""
        seen: dict[Hashable, int] = {}
        votes = [seen.setdefault(kind, len(seen)) for kind in self.kinds_P]
        for _ in range(_SEEN):
            around: list[Hashable] = [
                (votes[p], tuple(sorted(votes[q] for q in before)))
                for p, before in enumerate(self.joining_P)
            ]
            seen = {}
            votes = [seen.setdefault(key, len(seen)) for key in around]
        return votes

    def ordered(self, groups: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """The groups in an order that respects every edge, the least place first among those
        that may come next; None where there is none."""
        group_P = {p: g for g, places in enumerate(groups) for p in places}
        before: dict[int, set[int]] = {g: set() for g in range(len(groups))}
        for p, places in enumerate(self.before_P):
            g = group_P[p]
            before[g].update(h for q in places if (h := group_P[q]) != g)
        ordered = least_first(before, lambda g: min(groups[g]))
        return [sorted(groups[g]) for g in ordered] if len(ordered) == len(groups) else None


def _read(instance: Instance, c: int) -> Iterable[int]:
    return {*instance.reads_C[c], *instance.rereads_C[c]}
