"""H-Partition: groups of forward cNodes that few values enter and leave.

Zhao 2024, section 3.3, with two corrections. A candidate is what lies on the paths from a(x) to x,
with or without these ends, where a(x) must be the immediate dominator of x: with the nearest
common ancestor of the predecessors of x, property 3 fails. And (3.2) holds for u other than the
head h(C) only:

    u in C, u != h(C), v -> u  implies  v in C or v = h(C)             (3.2, corrected)

Convexity (lemma 3.3.1) and that unions of candidates that meet are candidates (theorem 3.3.2)
follow as printed. A candidate S less any of its ends has the property too: let v -> u with u on a
path a(x) ~> x; the path source ~> v -> u ~> x goes through a(x), and behind u that were a circle,
so a(x) is at or before v.

The score (3.1) is the bytes that enter and leave, times the square root of the number of cNodes;
the smallest goes first. Rounds of grouping nodes of at most `size` nodes of the round before end
when few enough are left. O(N size log N) a round.

A chain of twelve layers: three candidates of at most four nodes cover it.

    >>> h_partition(forward, 3, 4, 4)
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import sqrt

from .forward import ForwardGraph


def h_partition(
    forward: ForwardGraph, most_groups: int, size: int, most_cnodes: int
) -> list[list[int]] | None:
    """At most `most_groups` convex groups of places, of at most `most_cnodes` each, in an order
    that respects every edge; None where the candidates do not lead so far."""
    groups: list[list[int]] = [[p] for p in range(len(forward))]
    while len(groups) > most_groups:
        ordered = forward.ordered(groups)
        if ordered is None:
            return None
        merged = _Round(forward, ordered, size, most_cnodes).run(most_groups)
        if len(merged) == len(ordered):
            return None
        groups = merged
    return forward.ordered(groups)


@dataclass
class _Round:
    """One round on a graph whose nodes are groups, in topological order."""

    forward: ForwardGraph
    groups: Sequence[Sequence[int]]
    size: int
    most_cnodes: int
    before: list[list[int]] = field(init=False)
    root: list[int] = field(init=False)
    """Union-find over the nodes of this round; `members` of each root."""
    members: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        forward, n = self.forward, len(self.groups)
        self.node_P = {p: g for g, places in enumerate(self.groups) for p in places}
        before: list[set[int]] = [set() for _ in range(n)]
        for p, places in enumerate(forward.joining_P):
            before[self.node_P[p]].update(self.node_P[q] for q in places)
        self.before = [sorted(some - {g}) for g, some in enumerate(before)]
        self.root = list(range(n))
        self.members = {g: [g] for g in range(n)}

    def run(self, most_groups: int) -> list[list[int]]:
        """Merges candidates, the least score first, down to `most_groups`."""
        candidates = list(dict.fromkeys(self._candidates()))
        heap = [(self._score(nodes), nodes[0], k) for k, nodes in enumerate(candidates)]
        now: list[tuple[int, ...]] = list(candidates)
        heapify(heap)
        left = len(self.groups)
        while heap and left > most_groups:
            _, _, k = heappop(heap)
            roots = sorted({self._find(g) for g in candidates[k]})
            nodes = tuple(sorted(g for r in roots for g in self.members[r]))
            if len(roots) < 2 or not self._is_small(nodes):
                continue
            if nodes != now[k]:
                now[k] = nodes
                heappush(heap, (self._score(nodes), nodes[0], k))
                continue
            left -= len(roots) - 1
            for r in roots[1:]:
                self.root[r] = roots[0]
                self.members[roots[0]] += self.members.pop(r)
        return [sorted(p for g in gs for p in self.groups[g]) for gs in self.members.values()]

    def _find(self, g: int) -> int:
        while self.root[g] != g:
            self.root[g] = self.root[self.root[g]]
            g = self.root[g]
        return g

    def _is_small(self, nodes: Sequence[int]) -> bool:
        cnodes = sum(len(self.groups[g]) for g in nodes)
        return len(nodes) <= self.size and cnodes <= self.most_cnodes

    def _candidates(self) -> Iterator[tuple[int, ...]]:
        """Four for each node and its dominator, and unbranched sequences, all of two nodes or
        more and small enough."""
        for x, head in enumerate(immediate_dominators(self.before)):
            between = self._between(head, x)
            if between is None:
                continue
            ends = ((), (x,)) if head < 0 else ((), (x,), (head,), (x, head))
            for left_out in ends:
                nodes = tuple(g for g in between if g not in left_out)
                if len(nodes) >= 2 and self._is_small(nodes):
                    yield nodes
        yield from self._sequences()

    def _between(self, head: int, x: int) -> list[int] | None:
        """The nodes on paths from `head` to x, both ends included; None for too many."""
        seen = {x}
        stack = [x]
        while stack:
            g = stack.pop()
            for h in self.before[g] if g != head else ():
                if h not in seen:
                    seen.add(h)
                    stack.append(h)
            if len(seen) > self.size + 2:
                return None
        return sorted(seen)

    def _sequences(self) -> Iterator[tuple[int, ...]]:
        after = [0] * len(self.groups)
        for some in self.before:
            for g in some:
                after[g] += 1
        run: dict[int, list[int]] = {}
        for x, some in enumerate(self.before):
            follows = len(some) == 1 and after[some[0]] == 1
            line = run[some[0]] if follows else []
            if len(line) >= self.size:
                line = []
            line.append(x)
            run[x] = line
        for line in {id(line): line for line in run.values()}.values():
            nodes = tuple(line)
            if len(nodes) >= 2 and self._is_small(nodes):
                yield nodes

    def _score(self, nodes: Iterable[int]) -> float:
        """(3.1): bytes that enter and leave, times the root of the number of cNodes."""
        forward = self.forward
        inst = forward.instance
        places = {p for g in nodes for p in self.groups[g]}
        crossing: set[int] = set()
        for p in places:
            c = forward.cnode_P[p]
            for a in inst.reads_C[c]:
                if forward.made_in.get(a, p) not in places:
                    crossing.add(a)
            for a in inst.writes_C[c]:
                if any(q not in places for q in forward.readers_A[a]):
                    crossing.add(a)
        return sum(inst.size_A[a] for a in crossing) * sqrt(len(places))


def immediate_dominators(before: Sequence[Sequence[int]]) -> list[int]:
    """For each node the nearest node that all paths to it go through; -1 is the source, which
    stands before every node without predecessors. `before[x]` are smaller than x. O(E log N).

    In a topological order the immediate dominator of x is the nearest common ancestor, in the tree
    of those found so far, of the predecessors of x. A diamond 0 -> 1, 2 -> 3 and a tail 4: both
    sides meet in 3, which only 0 dominates.

    >>> immediate_dominators([[], [0], [0], [1, 2], [3]])
    [-1, 0, 0, 0, 3]
    """
    tree = _Tree(len(before))
    for x, nodes in enumerate(before):
        parent = tree.root if not nodes else nodes[0] + 1
        for y in nodes[1:]:
            parent = tree.common_ancestor(parent, y + 1)
        tree.add(x + 1, parent)
    return [parent - 1 for parent in tree.parent[1:]]


class _Tree:
    """A tree that grows by leaves; node 0 is its root. Jump pointers with lengths of skew binary
    numbers (Myers 1983) find an ancestor in the logarithm of the depth."""

    root = 0

    def __init__(self, size: int):
        self.parent = [0] * (size + 1)
        self.jump = [0] * (size + 1)
        self.depth = [0] * (size + 1)

    def add(self, x: int, parent: int) -> None:
        over = self.jump[parent]
        long = (
            self.depth[parent] - self.depth[over] == self.depth[over] - self.depth[self.jump[over]]
        )
        self.parent[x] = parent
        self.depth[x] = self.depth[parent] + 1
        self.jump[x] = self.jump[over] if long else parent

    def common_ancestor(self, x: int, y: int) -> int:
        x, y = self._raised(x, self.depth[y]), self._raised(y, self.depth[x])
        while x != y:
            if self.jump[x] != self.jump[y]:
                x, y = self.jump[x], self.jump[y]
            else:
                x, y = self.parent[x], self.parent[y]
        return x

    def _raised(self, x: int, depth: int) -> int:
        """The ancestor of x at this depth; x itself where it is no deeper."""
        while self.depth[x] > depth:
            x = self.jump[x] if self.depth[self.jump[x]] >= depth else self.parent[x]
        return x
