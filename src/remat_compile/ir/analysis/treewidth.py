"""Tree decompositions of an undirected graph, and the tree of balanced separators in one.

A *tree decomposition* is a tree of *bags* of vertices: every vertex is in a bag, every edge within
one, and the bags of a vertex are connected. Its *width* is the size of the largest bag less one;
the least width of all is the *treewidth*, which is hard to find. Eliminating one vertex after the
other, each time making its neighbours a clique, gives a decomposition whose bags are the
eliminated vertices with their neighbours then; which vertex goes next is a heuristic: the one that
needs the fewest new edges (*min-fill*), or the one with the fewest neighbours (*min-degree*).

Removing any bag cuts the graph apart, and every decomposition has a bag that leaves no part of more
than half of the vertices (its *centroid*). That bag, and the same in each part, is the tree of
separators: of depth at most log2(n) + 1 for n vertices.

A path 0 - 1 - 2 - 3 - 4 is of width 1. Its bag in the middle leaves parts of one and two vertices:

    >>> path = [{1}, {0, 2}, {1, 3}, {2, 4}, {3}]
    >>> sorted(map(sorted, tree_decomposition(path).bags))
    [[0, 1], [1, 2], [2, 3], [3, 4]]
    >>> middle = separator_tree(tree_decomposition(path), [1] * 5)
    >>> middle.separator, sorted(part.separator for part in middle.parts)
    ((2, 3), [(1,), (4,)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

Elimination = Literal["fill", "degree"]
"""The criterion for the next vertex: fewest new edges, or fewest neighbours."""


@dataclass(frozen=True)
class TreeDecomposition:
    """`bags` of vertices, and `links_B`: per bag the bags next to it in the tree."""

    bags: list[frozenset[int]]
    links_B: list[set[int]]

    @property
    def width(self) -> int:
        return max((len(bag) for bag in self.bags), default=0) - 1


@dataclass(frozen=True)
class Separated:
    """Vertices that a bag, less what was removed above it, separates into parts."""

    separator: tuple[int, ...]
    """Rising."""
    parts: tuple[Separated, ...]
    part_of: dict[int, int]
    """The part in which each vertex lies that is not in the separator."""

    @property
    def size(self) -> int:
        return len(self.separator) + len(self.part_of)


def tree_decomposition(
    neighbours: Sequence[AbstractSet[int]],
    elimination: Elimination = "fill",
    check: Callable[[], None] = lambda: None,
) -> TreeDecomposition:
    """A decomposition of the graph in which vertex v has the `neighbours[v]`, which is symmetric
    and without loops. `check` is called before each vertex, and may raise.

    About n · w² for n vertices and bags of w by min-degree, n · w³ by min-fill.
    """
    bag_V, parent_V, order = _eliminated(neighbours, elimination, check)
    bags: list[frozenset[int]] = []
    links: list[set[int]] = []
    home = [-1] * len(neighbours)
    root = -1
    for v in reversed(order):
        bag, parent = bag_V[v], parent_V[v]
        if parent >= 0 and bags[home[parent]] < bag:
            home[v] = home[parent]
            bags[home[v]] = bag
            continue
        home[v] = len(bags)
        bags.append(bag)
        links.append(set())
        # Parts of the graph that do not hang together share no vertex: any link will do.
        if (beside := home[parent] if parent >= 0 else root) >= 0:
            links[home[v]].add(beside)
            links[beside].add(home[v])
        root = max(root, 0)
    return TreeDecomposition(bags, links)


def _eliminated(
    neighbours: Sequence[AbstractSet[int]], elimination: Elimination, check: Callable[[], None]
) -> tuple[list[frozenset[int]], list[int], list[int]]:
    """Per vertex its bag and the one of its neighbours that goes next after it; the order."""
    around = [set(near) for near in neighbours]
    fill = elimination == "fill"

    def key(v: int) -> tuple[int, int, int]:
        near = around[v]
        missing = sum(len(near) - 1 - len(near & around[u]) for u in near) if fill else 0
        return missing, len(near), v

    now = [key(v) for v in range(len(around))]
    heap = list(now)
    heapify(heap)
    bag_V = [frozenset[int]()] * len(around)
    place = [-1] * len(around)
    order: list[int] = []
    while heap:
        top = heappop(heap)
        v = top[2]
        if place[v] >= 0 or top != now[v]:
            continue
        check()
        near = around[v]
        bag_V[v] = frozenset((v, *near))
        place[v] = len(order)
        order.append(v)
        changed = set(near)
        for u in near:
            around[u] |= near
            around[u] -= {u, v}
        if fill:
            changed.update(*(around[u] for u in near))
        for u in changed:
            if now[u] != (fresh := key(u)):
                now[u] = fresh
                heappush(heap, fresh)
    parents = [min(bag - {v}, key=place.__getitem__, default=-1) for v, bag in enumerate(bag_V)]
    return bag_V, parents, order


def separator_tree(
    decomposition: TreeDecomposition,
    weight_V: Sequence[int],
    check: Callable[[], None] = lambda: None,
) -> Separated:
    """The bag that leaves no part of more than half of the vertices, of several the lightest; and
    the same for each part, with the vertices of the bag removed. About the sum of all bags for
    each level. `check` as above."""
    bags = dict(enumerate(decomposition.bags))
    return _separated(decomposition, bags, weight_V, check) if bags else Separated((), (), {})


_Bags = Mapping[int, frozenset[int]]
"""Some connected bags of a decomposition, less what was removed, by their numbers."""


def _separated(
    whole: TreeDecomposition, bags: _Bags, weight_V: Sequence[int], check: Callable[[], None]
) -> Separated:
    check()
    centre = _centroid(whole, bags, weight_V)
    separator = bags[centre]
    parts: list[Separated] = []
    part_of: dict[int, int] = {}
    for piece in _pieces(whole, bags, centre):
        rest = {b: bags[b] - separator for b in piece}
        inside = frozenset[int]().union(*rest.values())
        if inside:
            part_of.update(dict.fromkeys(inside, len(parts)))
            parts.append(_separated(whole, rest, weight_V, check))
    return Separated(tuple(sorted(separator)), tuple(parts), part_of)


def _centroid(whole: TreeDecomposition, bags: _Bags, weight_V: Sequence[int]) -> int:
    """A bag that leaves at most half: with the tree rooted anywhere, a part below a bag has the
    vertices whose highest bag is in it, and what is above has the rest."""
    walk, above = _rooted(whole, bags)
    seen: set[int] = set()
    highest = dict.fromkeys(bags, 0)
    for b in walk:
        highest[b] = len(bags[b] - seen)
        seen |= bags[b]
    inner, largest = dict.fromkeys(bags, 0), dict.fromkeys(bags, 0)
    for b in reversed(walk):
        below = highest[b] + inner[b]
        if (up := above[b]) >= 0:
            inner[up] += below
            largest[up] = max(largest[up], below)

    def left(b: int) -> int:
        return max(largest[b], len(seen) - inner[b] - len(bags[b]))

    def price(b: int) -> tuple[int, int, int, int]:
        return sum(weight_V[v] for v in bags[b]), len(bags[b]), left(b), b

    return min((b for b in walk if 2 * left(b) <= len(seen)), key=price)


def _rooted(whole: TreeDecomposition, bags: _Bags) -> tuple[list[int], dict[int, int]]:
    """The bags, each after the one above it, and which that is (-1 above the first)."""
    above = {min(bags): -1}
    walk = [min(bags)]
    for b in walk:
        for other in sorted(whole.links_B[b]):
            if other in bags and other not in above:
                above[other] = b
                walk.append(other)
    return walk, above


def _pieces(whole: TreeDecomposition, bags: _Bags, centre: int) -> Iterator[list[int]]:
    """The bags of each part of the tree without the one in the centre."""
    seen = {centre}
    for start in sorted(whole.links_B[centre]):
        if start not in bags or start in seen:
            continue
        seen.add(start)
        piece = [start]
        for b in piece:
            fresh = [o for o in whole.links_B[b] if o in bags and o not in seen]
            seen.update(fresh)
            piece += fresh
        yield piece
