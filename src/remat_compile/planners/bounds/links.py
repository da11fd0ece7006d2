"""Lower bounds on the time of plans that copy to the host, from one moment of the step at a time.

Cuts the schedule where cNode k first runs, as `moments` does. What is read after the cut and is
not on the device at it comes back over the link, having left before, or is made again:

    S[a]   a is alive while k runs
    R[c]   c is replayed after the cut
    O[a]   a is on the host while k runs, and comes back later

    S[a] + R[maker of a] + O[a] >= 1     for what a later first execution reads
    S[a] + R[maker of a] + O[a] >= R[c]  for what a replay of c reads
    sum size[a] S[a] + results and workspace of k  <=  budget
    before >= C_k + issues               before >= latencies + sum size[a] O[a] / d2h
    after >= C - C_k + sum R time + issues
    after >= time of k + latencies + sum size[a] O[a] / h2d

and before + after is the least time. Device bytes are given back only behind the `wait` of an
offload, so the copies out have ended when k starts, one after the other; and a copy back that
takes bytes after k was issued after it. `docs/design/bounds.md` has the proof.

`moving` has the bound for plans without replays.
"""

from __future__ import annotations

from math import ceil, isfinite
from time import monotonic

from ...ir.program import Target
from ..instance import Instance
from ..solvers import MilpSolver
from ..solvers.milp import INFINITY, Milp
from .moments import MomentRows, cuts_over

_MOST_CUTS = 4
_MOST_CNODES = 3_000


def joint_ns(
    instance: Instance,
    target: Target,
    limit_bytes: int,
    solver: MilpSolver,
    time_limit_s: float,
    *,
    relaxed: bool = False,
) -> int:
    """Nanoseconds that no plan under the budget takes less than, whether it recomputes, copies or
    both, its first executions being in the order of capture. `relaxed`: by linear programs,
    which are quicker. At least the time with nothing recomputed."""
    deadline = monotonic() + time_limit_s
    best = float(instance.base_time_ns)
    if len(instance.names_C) > _MOST_CNODES:
        return instance.base_time_ns
    for k in cuts_over(instance, limit_bytes)[:_MOST_CUTS]:
        if (left := deadline - monotonic()) <= 0:
            break
        milp = joint_program(instance, target, limit_bytes, k)
        solved = solver.solve(milp.relaxed() if relaxed else milp, left)
        if isfinite(solved.bound):
            best = max(best, solved.bound * scale_ns(instance))
    return max(instance.base_time_ns, ceil(best * (1 - 1e-9) - 1e-3))


def moving(rate: int | None, size: float) -> float:
    """Nanoseconds, rounded down a little: a bound may not be too high."""
    return size * 1e9 / rate * (1 - 1e-12) if rate else 0.0


def scale_ns(instance: Instance) -> float:
    return max(1.0, instance.base_time_ns / max(1, len(instance.time_C)))


def joint_program(instance: Instance, target: Target, limit_bytes: int, k: int) -> Milp:
    """The integer program of the moment when cNode `k` runs first; its objective times the mean
    time of a cNode is nanoseconds."""
    return LinkRows(instance, target, limit_bytes, k).whole()


class LinkRows(MomentRows):
    def __init__(self, instance: Instance, target: Target, limit_bytes: int, k: int):
        super().__init__(instance, limit_bytes, k, set(range(k)))
        self.target = target
        self.unit_ns = scale_ns(instance)
        handed = {instance.index_A[name] for name in instance.program.held_since_loss}
        self.pinned = handed if k >= instance.loss else set()
        self.away: dict[int, int] = {}

    def whole(self) -> Milp:
        inst, k = self.inst, self.k
        before = self.before_ns = self.b.column(1.0, upper=INFINITY, integer=False)
        after = self.after_ns = self.b.column(1.0, upper=INFINITY, integer=False)
        self.rows(set(range(k + 1, len(inst.names_C))))
        done = sum(inst.time_C[:k])
        self.b.row([(before, 1.0), *self.issues()], lower=done / self.unit_ns)
        rest = (inst.base_time_ns - done) / self.unit_ns
        self.b.row([(after, 1.0), *self.replays(), *self.issues()], lower=rest)
        self.b.row([(before, 1.0), *self.copies(self.target.d2h_bytes_per_s)], lower=0.0)
        own = inst.time_C[k] / self.unit_ns
        self.b.row([(after, 1.0), *self.copies(self.target.h2d_bytes_per_s)], lower=own)
        if (host := self.target.host_bytes) is not None:
            unit = max(1, host)
            held = [(column, inst.size_A[a] / unit) for a, column in self.away.items()]
            self.b.row(held, upper=host / unit)
        return self.b.build()

    def replays(self) -> list[tuple[int, float]]:
        """Less the time of what runs again."""
        return [(c, -self.inst.retime_C[k] / self.unit_ns) for k, c in self.runs.items()]

    def issues(self) -> list[tuple[int, float]]:
        """Less the time that issuing one copy of all that is away takes."""
        each = self.target.copy_issue_ns / self.unit_ns
        return [(column, -each) for column in self.away.values()] if each else []

    def copies(self, rate: int | None) -> list[tuple[int, float]]:
        """Less the time of one direction for all that is away."""
        each, sizes = self.target.copy_latency_ns, self.inst.size_A
        return [
            (column, -(each + moving(rate, sizes[a])) / self.unit_ns)
            for a, column in self.away.items()
        ]

    def _must_stay(self) -> set[int]:
        return {a for a in self.pinned if self._is_made(a)}

    def _price(self, c: int) -> float:
        return 0.0

    def _there_or_made(self, a: int) -> list[tuple[int, float]]:
        terms = super()._there_or_made(a)
        if a not in self.away:
            self.away[a] = self.b.column()
        return [*terms, (self.away[a], 1.0)]
