"""Lower bounds on the time of every plan under a budget.

The relaxation, a linear program, holds for every valid schedule whose first executions keep
the order of capture: any number of replays, in any order, of forward and backward cNodes.
Stage t is the time between the first executions of cNode t - 1 and cNode t. Columns, all from
0 to 1:

    Q[t, k]   k is replayed in stage t, once or more
    A[t, a]   a is alive when cNode t starts its first execution
    H[t, a]   a is alive in all of stage t (what is alive at its end and not made in it)

Rows: what cNode t reads is alive; A[t,a] <= A[t-1,a] + Q[t,k] for the k that makes a;
Q[t,k] <= A[t-1,a] + Q[t,j] for what k reads and the j that makes it; H[t,a] >= A[t,a] -
Q[t,k]; and the bytes at each first execution, and at each replay with H for what else is
alive, are within the budget. Not taken from a paper; the compact ILP orders the replays
of a stage, this leaves them free.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd, isfinite
from time import monotonic

from ..instance import Instance
from ..solvers import MilpSolver
from ..solvers.milp import INFINITY, Milp, MilpBuilder
from .moments import replays_ns

MOST_CNODES = 150
"""Larger graphs get the bound of single moments: the program grows with the square."""
_MOST_FOR_CUTS = 3_000
"""Still larger ones get the trivial bound."""

Terms = list[tuple[int, float]]


def lower_bound_ns(
    instance: Instance,
    limit_bytes: int,
    solver: MilpSolver,
    time_limit_s: float = 10.0,
    most_cnodes: int = MOST_CNODES,
    *,
    any_order: bool = False,
) -> int:
    """Nanoseconds that no plan under the budget can beat, the first executions being in
    the order of capture: by single moments (`moments`), which take replays whole, or up to
    `most_cnodes` by the relaxation, which adds up moments, where that is more. At least the time
    with nothing recomputed, which is the answer too where the graph is larger than 3000 cNodes
    or the limit (wall clock) passes. With `any_order` it holds for every plan, and is of
    single moments.
    """
    base = instance.base_time_ns
    unplanned = instance.peak(instance.capture) <= limit_bytes
    size = len(instance.names_C)
    if unplanned or size > _MOST_FOR_CUTS or time_limit_s <= 0:
        return base
    if any_order or size > most_cnodes:
        return moments_ns(instance, limit_bytes, solver, time_limit_s, any_order=any_order)
    until = monotonic() + time_limit_s
    by_moments_ns = moments_ns(instance, limit_bytes, solver, time_limit_s)
    milp, scale_ns = relaxation(instance, limit_bytes)
    answer = solver.solve(milp, until - monotonic())
    if answer.status != "optimal" or not isfinite(answer.bound):
        return by_moments_ns
    return max(by_moments_ns, _rounded(instance, answer.bound * scale_ns))


def moments_ns(
    instance: Instance,
    limit_bytes: int,
    solver: MilpSolver,
    time_limit_s: float,
    *,
    any_order: bool = False,
) -> int:
    """The bound of single moments (`moments`), in nanoseconds."""
    extra_ns = replays_ns(instance, limit_bytes, solver, time_limit_s, any_order=any_order)
    return _rounded(instance, extra_ns)


def _rounded(instance: Instance, extra_ns: float) -> int:
    """The time with nothing recomputed and that of the replays, less what a solver may err."""
    extra = max(0.0, extra_ns - 1e-6 * abs(extra_ns) - 1e-3)
    # All replays take a multiple of this, so a bound in between can be rounded up.
    replays = zip(instance.retime_C, instance.makable_C, strict=True)
    unit = gcd(*(time for time, ok in replays if ok)) or 1
    return instance.base_time_ns + ceil(extra / unit) * unit


def relaxation(instance: Instance, limit_bytes: int) -> tuple[Milp, float]:
    """The program, and the ns of one unit of its objective: the time of the replays."""
    built = _Relaxation(instance, limit_bytes)
    return built.build(), built.scale_ns


@dataclass(frozen=True, slots=True)
class _State:
    """Alive before the event at hand: constant + column."""

    constant: float = 0.0
    column: int = -1

    @property
    def terms(self) -> Terms:
        return [(self.column, 1.0)] if self.column >= 0 else []


class _Relaxation:
    def __init__(self, instance: Instance, limit_bytes: int):
        self.inst = instance
        self.n = len(instance.names_C)
        self.room = limit_bytes - instance.base_bytes
        self.unit = float(max(1, self.room))
        self.scale_ns = max(1.0, sum(instance.retime_C) / max(1, self.n))
        self.b = MilpBuilder()
        self.maker = {
            a: c
            for c, ok in enumerate(instance.makable_C)
            if ok
            for a in instance.rewrites_C[c]
            if not instance.kept_A[a]
        }
        self.until = self._last_wanted()
        self.state: dict[int, _State] = {}

    def _last_wanted(self) -> list[int]:
        """For each aNode the last cNode that may ask for it, through replays of any depth."""
        inst = self.inst
        until = [-1] * len(inst.names_A)
        for c in range(self.n):
            for a in inst.reads_C[c]:
                until[a] = c
        for c in range(self.n - 1, -1, -1):
            if inst.makable_C[c]:
                latest = max((until[a] for a in inst.rewrites_C[c]), default=-1)
                for a in (*inst.rereads_C[c], inst.token_C[c]):
                    if a >= 0:
                        until[a] = max(until[a], latest)
        return until

    def build(self) -> Milp:
        for t in range(self.n):
            self._stage(t)
        return self.b.build()

    def _column(self, cost: float = 0.0, upper: float = 1.0) -> int:
        return self.b.column(cost, upper=upper, integer=False)

    def _get(self, a: int) -> _State:
        return self.state.get(a, _State())

    def _stage(self, t: int) -> None:
        """The replays before cNode t, then its first execution."""
        inst = self.inst
        runs = self._replays(t)
        after: dict[int, _State] = {}
        whole: Terms = []
        held: dict[int, int] = {}
        constant = 0.0
        for a in {*self.state, *(a for k in runs for a in inst.rewrites_C[k])}:
            size = inst.size_A[a]
            if inst.kept_A[a]:
                if a in self.state:
                    after[a] = _State(1.0)
                    constant += size
                continue
            if self.until[a] < t:
                continue
            now = after[a] = self._at_the_end(t, a, runs, held)
            if a in held:
                whole.append((held[a], float(size)))
            else:
                whole += [(c, v * size) for c, v in now.terms]
                constant += now.constant * size
        if runs:
            total = self._column(upper=INFINITY)
            entries = [(c, -v / self.unit) for c, v in whole]
            self.b.row([(total, 1.0), *entries], lower=constant / self.unit)
            for k, run in runs.items():
                self._replay(k, run, total, held, after)
        self._first(t, after)

    def _at_the_end(self, t: int, a: int, runs: dict[int, int], held: dict[int, int]) -> _State:
        """A[t, a], and in `held` the column H[t, a] where it is not the same."""
        made = runs.get(self.maker.get(a, -1), -1)
        before = self._get(a)
        now = _State(1.0) if a in self.inst.reads_C[t] else _State(0.0, self._column())
        terms = [*now.terms, *((c, -v) for c, v in before.terms)]
        if made >= 0:
            terms.append((made, -1.0))
        self.b.row(terms, upper=before.constant - now.constant)
        if self.inst.size_A[a] and made >= 0:
            held[a] = self._column()
            row = [(held[a], 1.0), *((c, -v) for c, v in now.terms), (made, 1.0)]
            self.b.row(row, lower=now.constant)
        return now

    def _replays(self, t: int) -> dict[int, int]:
        """The columns Q[t, k], with what each replay needs."""
        inst = self.inst
        runs: dict[int, int] = {}
        for k in range(t):
            wanted = any(self.until[a] >= t for a in inst.rewrites_C[k] if not inst.kept_A[a])
            if not (inst.makable_C[k] and wanted):
                continue
            runs[k] = self._column(inst.retime_C[k] / self.scale_ns)
            token = inst.token_C[k]
            for a in (*inst.rereads_C[k], *((token,) if token >= 0 else ())):
                before = self._get(a)
                made = runs.get(self.maker.get(a, -1), -1)
                terms = [(runs[k], 1.0), *((c, -v) for c, v in before.terms)]
                if made >= 0:
                    terms.append((made, -1.0))
                self.b.row(terms, upper=before.constant)
        return runs

    def _replay(
        self, k: int, run: int, total: int, held: dict[int, int], after: dict[int, _State]
    ) -> None:
        """The bytes while k is replayed."""
        inst = self.inst
        own = inst.reworkspace_C[k] + sum(inst.size_A[a] for a in inst.rewrites_C[k])
        terms: Terms = [(total, 1.0), (run, own / self.unit)]
        for a in inst.rereads_C[k]:
            size = inst.size_A[a]
            if not size or (a not in held and after.get(a, _State()).constant):
                continue
            there = [(held[a], 1.0)] if a in held else after.get(a, _State()).terms
            beside = self._column()  # read, and not counted in `total`
            self.b.row([(beside, 1.0), (run, -1.0), *there], lower=0.0)
            terms.append((beside, size / self.unit))
        self.b.row(terms, upper=self.room / self.unit)

    def _first(self, t: int, alive: dict[int, _State]) -> None:
        """The bytes while cNode t runs first, and what is alive after it."""
        inst = self.inst
        ends, token = inst.ends_C[t], inst.token_C[t]
        own = inst.workspace_C[t]
        if ends < 0:
            own += sum(inst.size_A[a] for a in inst.writes_C[t])
        terms: Terms = []
        for a, state in alive.items():
            own += int(state.constant) * inst.size_A[a]
            terms += [(c, v * inst.size_A[a] / self.unit) for c, v in state.terms]
        made = dict.fromkeys(inst.writes_C[t], _State(1.0))
        if token >= 0 and self.until[token] > t:
            made[token] = _State(0.0, self._column())
            terms.append((made[token].column, inst.size_A[token] / self.unit))
        self.b.row(terms, upper=(self.room - own) / self.unit)
        self.state = {**alive, **made}
        self.state.pop(ends, None)
