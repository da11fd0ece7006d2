"""Immediate dominators of a graph whose nodes stand in topological order.

A node d dominates x when every path from the source to x goes through d. In a topological order
the immediate dominator of x is the nearest common ancestor, in the tree of those found so far, of
the predecessors of x. Jump pointers whose lengths are those of skew binary numbers (Myers 1983)
find it in the logarithm of the depth.

A diamond 0 -> 1, 2 -> 3 and a tail 4: both sides meet in 3, which only 0 dominates.

    >>> immediate_dominators([[], [0], [0], [1, 2], [3]])
    [-1, 0, 0, 0, 3]
"""

from __future__ import annotations

from collections.abc import Sequence


def immediate_dominators(before: Sequence[Sequence[int]]) -> list[int]:
    """For each node the nearest node that all paths to it go through; -1 is the source, which
    stands before every node without predecessors. `before[x]` are smaller than x. O(E log N)."""
    tree = _Tree(len(before))
    for x, nodes in enumerate(before):
        parent = tree.root if not nodes else nodes[0] + 1
        for y in nodes[1:]:
            parent = tree.common_ancestor(parent, y + 1)
        tree.add(x + 1, parent)
    return [parent - 1 for parent in tree.parent[1:]]


class _Tree:
    """A tree that grows by leaves; node 0 is its root."""

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
