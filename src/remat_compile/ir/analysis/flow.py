"""Minimum cuts: what separates sources from sinks at the least cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

INFINITE = 1 << 62


class Network:
    """Edges with capacities; Dinic's algorithm, O(V^2 E) and far from it on sparse graphs."""

    def __init__(self, nodes: int):
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        self._to: list[int] = []
        self._room: list[int] = []

    def edge(self, start: int, end: int, capacity: int) -> int:
        """The edge's number: even, the next one goes back."""
        for node, other, room in ((start, end, capacity), (end, start, 0)):
            self._out[node].append(len(self._to))
            self._to.append(other)
            self._room.append(room)
        return len(self._to) - 2

    def side_beside(self, source: int, sink: int, edges: Iterable[int]) -> list[bool]:
        """`side` after `least_cut` if these edges cost nothing; the network stays as it is."""
        room, self._room = self._room, self._room.copy()
        for e in edges:
            self._room[e] = 0
        self.least_cut(source, sink)
        side = self.side(source)
        self._room = room
        return side

    def least_cut(self, source: int, sink: int) -> int:
        """The least total capacity that separates sink from source; uses the network up."""
        total = 0
        while (level := self._levels(source))[sink] >= 0:
            at = [0] * len(self._out)
            while pushed := self._push(source, sink, level, at):
                total += pushed
        return total

    def side(self, source: int) -> list[bool]:
        """For each node, after `least_cut`: True if it lies on the side of the source."""
        return [level >= 0 for level in self._levels(source)]

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self._out)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for e in self._out[node]:
                if self._room[e] and level[self._to[e]] < 0:
                    level[self._to[e]] = level[node] + 1
                    queue.append(self._to[e])
        return level

    def _push(self, source: int, sink: int, level: list[int], at: list[int]) -> int:
        """Along one path of the level graph; 0 where there is none left."""
        path: list[int] = []
        node = source
        while node != sink:
            if at[node] == len(self._out[node]):
                if not path:
                    return 0
                node = self._to[path.pop() ^ 1]
                at[node] += 1
                continue
            e = self._out[node][at[node]]
            if self._room[e] and level[self._to[e]] == level[node] + 1:
                path.append(e)
                node = self._to[e]
            else:
                at[node] += 1
        pushed = min(self._room[e] for e in path)
        for e in path:
            self._room[e] -= pushed
            self._room[e ^ 1] += pushed
        return pushed
