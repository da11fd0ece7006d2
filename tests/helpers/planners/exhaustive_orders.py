"""The fastest schedule of a tiny graph, by Dijkstra over everything that can be alive.

The oracle of the exact planners. It knows nothing of stages: any cNode that may run again
does so at any time and any number of times; only first executions keep the order of capture.
"""

from __future__ import annotations

from collections.abc import Iterator

from helpers.planners.dijkstra import least_cost
from remat_compile.planners.instance import Instance

State = tuple[int, frozenset[int]]
"""How many cNodes have run a first time, and which aNodes are alive."""


def fastest_ns(instance: Instance, limit_bytes: int, saved_bytes: int | None = None) -> int | None:
    """The least time of a schedule under the budget; None where there is none."""
    search = _Search(instance, limit_bytes, saved_bytes)
    start: State = (0, frozenset())
    whole = len(instance.names_C)
    return least_cost(start, 0, lambda state: state[0] == whole, search.moves)


class _Search:
    def __init__(self, inst: Instance, limit_bytes: int, saved_bytes: int | None):
        self.inst = inst
        self.room = limit_bytes - inst.base_bytes
        self.saved = None if saved_bytes is None else saved_bytes - inst.base_bytes

    def moves(self, state: State) -> Iterator[tuple[int, State]]:
        inst = self.inst
        done, alive = state
        yield from ((0, (done, alive - {a})) for a in alive if not inst.kept_A[a])
        yield from self._first(done, alive)
        for c in range(done):
            token = inst.token_C[c]
            reads = (*inst.rereads_C[c], *((token,) if token >= 0 else ()))
            if not inst.makable_C[c] or not alive.issuperset(reads):
                continue
            writes = inst.rewrites_C[c]
            if self._fits(alive, writes, inst.reworkspace_C[c]):
                yield inst.retime_C[c], (done, alive.union(writes))

    def _first(self, c: int, alive: frozenset[int]) -> Iterator[tuple[int, State]]:
        inst = self.inst
        if not alive.issuperset(inst.reads_C[c]):
            return
        if c == inst.loss and self.saved is not None and self._bytes(alive) > self.saved:
            return
        writes, token = inst.writes_C[c], inst.token_C[c]
        if inst.ends_C[c] >= 0:
            if self._fits(alive, (), inst.workspace_C[c]):
                yield inst.time_C[c], (c + 1, (alive - {inst.ends_C[c]}).union(writes))
            return
        for made in [writes, (*writes, token)] if token >= 0 else [writes]:
            if self._fits(alive, made, inst.workspace_C[c]):
                yield inst.time_C[c], (c + 1, alive.union(made))

    def _bytes(self, names: frozenset[int] | tuple[int, ...]) -> int:
        return sum(self.inst.size_A[a] for a in names)

    def _fits(self, alive: frozenset[int], writes: tuple[int, ...], workspace: int) -> bool:
        return self._bytes(alive) + self._bytes(writes) + workspace <= self.room
