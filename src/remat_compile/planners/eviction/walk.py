"""One walk of offline dynamic tensor rematerialization over the order of capture.

After Kirisame et al., "Dynamic Tensor Rematerialization", 2021 (section 3): run the
captured order; when memory is short, evict the storage with the least
cost / (size * staleness); when a read is not alive, compute it again, recursively.
Offline the future is known, so staleness is looked up forward: the time until the
next use, where a use is a read in the captured order or a read by the remake of an
evicted storage that has a next use itself. Storages without one are garbage and go
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate
from math import inf
from time import monotonic

from ..instance import Instance, Order

NEVER = 1 << 60
_ANCESTORS = 48
"""Limit on the evicted ancestors that are summed for the cost of a remake."""
_SPREAD = 48
"""Limit on the next uses that are brought up to date per change; the rest stay as hints."""
_FANOUT = 32
"""Limit on the possible remakes that are asked for the next use of a storage."""


class WalkFailed(Exception):
    """The walk got stuck: nothing left to evict at a step, far too much
    recomputed, or the deadline passed."""


@dataclass(frozen=True)
class Heuristic:
    """`cost**cost_power / (size * distance**distance_power)`, least evicted first.

    `shared` is the share of the cost of evicted ancestors that is charged although they
    have a next use of their own, and are thus likely to be made again anyway. `factor_A`
    scales the score of each aNode (empty: 1); with `inf` it stays until nobody reads it.
    """

    distance_power: float = 1.0
    cost_power: float = 1.0
    shared: float = 0.5
    backward: bool = False
    factor_A: Sequence[float] = ()


class Scope:
    """The evictable storages and their possible reads, fixed for all walks.

    `makable_A`: written by a cNode that may run again, and not an output or gradient.
    `remakers_A`: the cNodes that read it when they run again. `uses_A`: positions of the
    captured order that read it. `expiring[c]`: what nobody may ask for after c, directly or
    through remakes of any depth.
    """

    def __init__(self, instance: Instance, backward: bool):
        inst = self.instance = instance
        n_A = len(inst.names_A)
        again = [
            ok and (backward or inst.phase_C[c] == "fwd") for c, ok in enumerate(inst.makable_C)
        ]
        self.makable_A = [False] * n_A
        self.remakers_A: list[list[int]] = [[] for _ in range(n_A)]
        self.uses_A: list[list[int]] = [[] for _ in range(n_A)]
        for c, reads in enumerate(inst.reads_C):
            for a in reads:
                self.uses_A[a].append(c)
            if again[c]:
                for a in inst.rewrites_C[c]:
                    self.makable_A[a] = not inst.kept_A[a]
                for a in inst.rereads_C[c]:
                    self.remakers_A[a].append(c)
                if inst.token_C[c] >= 0:
                    self.remakers_A[inst.token_C[c]].append(c)
        until = [uses[-1] if uses else -1 for uses in self.uses_A]
        for c in range(len(inst.names_C) - 1, -1, -1):
            if not again[c]:
                continue
            latest = max((until[a] for a in inst.rewrites_C[c]), default=-1)
            for a in (*inst.rereads_C[c], inst.token_C[c]):
                if a >= 0:
                    until[a] = max(until[a], latest)
        self.expiring: dict[int, list[int]] = {}
        for a, position in enumerate(until):
            if not self.makable_A[a] and not inst.kept_A[a] and inst.writer_A[a] >= 0:
                self.expiring.setdefault(max(position, inst.writer_A[a]), []).append(a)

    @cached_property
    def clock(self) -> list[float]:
        """Time at each position of the captured order, strictly rising."""
        times = self.instance.time_C
        tick = max(1.0, sum(times) / max(1, len(times)) / 10)
        return list(accumulate((t + tick for t in times), initial=0.0))


class Walk:
    """The state of one walk; `run` returns the order it took. One that `goes_over` its limit does
    so where nothing is left to evict; others fail there."""

    def __init__(
        self,
        scope: Scope,
        limit_bytes: int,
        heuristic: Heuristic,
        most_steps: int,
        deadline: float = inf,
        *,
        goes_over: bool = False,
    ):
        inst = scope.instance
        n_A = len(inst.names_A)
        self.scope, self.inst, self.heuristic = scope, inst, heuristic
        self.room_bytes = limit_bytes - inst.base_bytes
        self.most_steps = most_steps
        self.deadline = deadline
        self.goes_over = goes_over
        self.alive = bytearray(n_A)
        self.pins = [0] * n_A
        self.next_use = [u[0] if u else NEVER for u in scope.uses_A]
        self.cursor = [0] * n_A
        self.stamp = [0] * n_A
        self.heap: list[tuple[float, int, int]] = []
        self.live = 0
        self.now = 0
        self.order: Order = []

    def run(self) -> Order:
        """Raises WalkFailed where the budget is out of reach of this heuristic."""
        for c in self.inst.capture:
            self.now = c
            self._execute_with_inputs(c)
            for a in self.inst.reads_C[c]:
                self.cursor[a] += 1
                self._refresh(a)
            for a in self.scope.expiring.get(c, ()):
                self._drop(a)
        return self.order

    def _execute_with_inputs(self, base: int) -> None:
        """Runs a cNode of the captured order, after remaking what it needs, depth first."""
        inst, alive = self.inst, self.alive
        stack: list[tuple[int, list[int]]] = [(base, [])]
        while stack:
            c, made = stack[-1]
            reads = inst.reads_C[c] if c == base else inst.rereads_C[c]
            missing = next((a for a in reads if not alive[a]), -1)
            if missing >= 0:
                # Pinned from now on, so that making the next input cannot evict it again.
                made.append(missing)
                self.pins[missing] += 1
                stack.append((inst.writer_A[missing], []))
                continue
            self._execute(c, reads, c == base)
            for a in made:
                self.pins[a] -= 1
            stack.pop()

    def _execute(self, c: int, reads: tuple[int, ...], first: bool) -> None:
        inst = self.inst
        ends = inst.ends_C[c]
        writes = inst.writes_C[c] if first else inst.rewrites_C[c]
        token = inst.token_C[c]
        if token >= 0 and first and self.scope.remakers_A[token]:
            writes = (*writes, token)
        taken = inst.workspace_C[c] if first else inst.reworkspace_C[c]
        if ends < 0:
            taken += sum(inst.size_A[a] for a in writes)
        for a in reads:
            self.pins[a] += 1
        self._make_room(taken)
        for a in reads:
            self.pins[a] -= 1
        self.order.append(c)
        ran = len(self.order)
        if ran > self.most_steps or (ran % 1024 == 0 and monotonic() > self.deadline):
            raise WalkFailed
        if ends >= 0:
            self._drop(ends)
        for a in writes:
            if not self.alive[a]:
                self.alive[a] = 1
                self.live += inst.size_A[a]
                self._offer(a)
        if not first:
            for a in reads:
                self._refresh(a)

    def _drop(self, a: int) -> None:
        if self.alive[a]:
            self.alive[a] = 0
            self.live -= self.inst.size_A[a]

    def _make_room(self, wanted: int) -> None:
        """Evicts until `wanted` more bytes fit."""
        if self.live + wanted <= self.room_bytes:
            return
        heap = self.heap
        aside = []
        while self.live + wanted > self.room_bytes:
            if not heap:
                if self.goes_over:
                    break
                raise WalkFailed
            score, stamp, a = heappop(heap)
            if stamp != self.stamp[a] or not self.alive[a]:
                continue
            if self.pins[a]:
                aside.append((score, stamp, a))
                continue
            current = self._score(a)
            if current > score * 1.0001 and heap and current > heap[0][0]:
                heappush(heap, (current, stamp, a))
                continue
            self._evict(a)
        for entry in aside:
            heappush(heap, entry)

    def _evict(self, a: int) -> None:
        self._drop(a)
        use = self.next_use[a]
        if use < NEVER:
            self._wanted_by(a, use)

    def _wanted_by(self, evicted: int, use: int) -> None:
        """The inputs for recomputing `evicted` are wanted as early as `evicted` itself."""
        next_use, alive, inst = self.next_use, self.alive, self.inst
        queue = [evicted]
        for _ in range(_SPREAD):
            if not queue:
                return
            for x in inst.rereads_C[inst.writer_A[queue.pop()]]:
                if next_use[x] > use:
                    next_use[x] = use
                    if alive[x]:
                        self._offer(x)
                    elif self.scope.makable_A[x]:
                        queue.append(x)

    def _refresh(self, a: int) -> None:
        """Looks up the next use of `a` again, after one has passed."""
        scope = self.scope
        uses = scope.uses_A[a]
        at = self.cursor[a]
        use = uses[at] if at < len(uses) else NEVER
        for c in scope.remakers_A[a][-_FANOUT:]:
            for r in self.inst.rewrites_C[c]:
                if self.next_use[r] < use and not self.alive[r]:
                    use = self.next_use[r]
        if use != self.next_use[a]:
            self.next_use[a] = use
            if self.alive[a]:
                self._offer(a)

    def _offer(self, a: int) -> None:
        """Enters `a` among what may be evicted, with its score as of now."""
        factors = self.heuristic.factor_A
        if factors and factors[a] == inf and self.next_use[a] < NEVER:
            return
        if self.alive[a] and self.scope.makable_A[a] and self.inst.size_A[a]:
            self.stamp[a] += 1
            heappush(self.heap, (self._score(a), self.stamp[a], a))

    def _score(self, a: int) -> float:
        use = self.next_use[a]
        if use >= NEVER:
            return -1.0
        h = self.heuristic
        clock = self.scope.clock
        distance = max(clock[use] - clock[self.now], 0.0) + clock[1]
        score: float = self._remake_cost(a) ** h.cost_power / (
            self.inst.size_A[a] * distance**h.distance_power
        )
        return score * h.factor_A[a] if h.factor_A else score

    def _remake_cost(self, a: int) -> float:
        """Time to make `a` again, its evicted ancestors included (up to a depth)."""
        inst, alive, shared = self.inst, self.alive, self.heuristic.shared
        writer = inst.writer_A[a]
        cost = float(inst.retime_C[writer] + 1)
        seen = {writer}
        stack = [writer]
        while stack and len(seen) < _ANCESTORS:
            for x in inst.rereads_C[stack.pop()]:
                w = inst.writer_A[x]
                if not alive[x] and w not in seen:
                    seen.add(w)
                    stack.append(w)
                    weight = 1.0 if self.next_use[x] >= NEVER else shared
                    cost += weight * (inst.retime_C[w] + 1)
        return cost
