"""Checkmate's program (Jain et al. 2020; Zhao 2024, section 2.1.1), and its rounding.

A node is a cNode with all its results, which are kept and dropped together. Index legend:
t stage, i and k nodes, in the order of capture and from 0; stage t ends with the first
execution of node t.

Differences, so that a plan of ours holds its budget: workspaces count (the paper leaves
them out); so does a result of the caller's, from when it is made (not part of its node's
memory); a token counts from its first draw to the end; an accumulate has no memory of its
own, and who reads its result needs the node whose storage it names anew. Nodes that may
run only once do so.

Four layers F0 to F3 of 10 ns, 100 bytes for each value, budget 500. Stage 7 ends with B7, which
reads what F0 makes: R[7, 7] = 1 <= R[7, 0] + S[7, 0]. B6 leaves no room for x1 (U[6, 6] = 500
without it), so S[7, 0] = 0 and F0 runs again: R[7, 0] = 1.

    >>> model = checkmate_model(step, 500)
    >>> model.milp.columns, len(model.R), len(model.S)
    (198, 41, 36)
    >>> with MilpSolver() as solver:
    ...     model.order(solver.solve(model.milp, 60.0).point)
    [0, 1, 2, 3, 4, 5, 6, 0, 7, 8]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..instance import Instance, Order
from ..solvers.milp import Milp, MilpBuilder, Terms, Vector, merged

Pair = tuple[int, int]


@dataclass(eq=False)
class CheckmateModel:
    """R[t, i], S[t, i]: columns of "node i runs in stage t" and "is kept into it"."""

    instance: Instance
    milp: Milp
    R: dict[Pair, int]
    S: dict[Pair, int]
    again: list[list[int]]
    """For each node those it reads whose results another run makes too."""
    scale_ns: float

    def order(self, point: Vector) -> Order:
        return [i for t, i in sorted(self.R) if point[self.R[t, i]] > 0.5]


def checkmate_model(instance: Instance, limit_bytes: int) -> CheckmateModel:
    """Quadratic in nodes for R and S, nodes times edges for FREE."""
    return _Checkmate(instance, limit_bytes).build()


@dataclass
class _Checkmate:
    inst: Instance
    limit_bytes: int
    b: MilpBuilder = field(default_factory=MilpBuilder)
    R: dict[Pair, int] = field(default_factory=dict)
    S: dict[Pair, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inst = self.inst
        self.n = len(inst.names_C)
        self.room = self.limit_bytes - inst.base_bytes
        self.unit = float(max(1, self.room))
        self.scale_ns = max(1.0, sum(inst.time_C) / max(1, self.n))
        self.again, self.once = _dependencies(inst)
        self.deps = [sorted({*a, *b}) for a, b in zip(self.again, self.once, strict=True)]
        self.users: list[list[int]] = [[] for _ in range(self.n)]
        for k, sources in enumerate(self.deps):
            for i in sources:
                self.users[i].append(k)
        self.memory = [
            0 if inst.ends_C[c] >= 0 else sum(inst.size_A[a] for a in _own(inst, c))
            for c in range(self.n)
        ]
        self.held = _held(inst)

    def build(self) -> CheckmateModel:
        inst, b = self.inst, self.b
        for t in range(self.n):
            for i in range(t + 1):
                if i == t:
                    self.R[t, i] = b.column(inst.time_C[i] / self.scale_ns, lower=1.0)
                elif inst.makable_C[i]:
                    self.R[t, i] = b.column(inst.retime_C[i] / self.scale_ns)
                if i < t:
                    self.S[t, i] = b.column()  # sum over i of S[1, i] = 0
        for t in range(self.n):
            self._dependencies_of(t)
            self._memory_of(t)
        return CheckmateModel(inst, b.build(), self.R, self.S, self.again, self.scale_ns)

    def _dependencies_of(self, t: int) -> None:
        for k in range(t + 1):
            if (t, k) not in self.R:
                continue
            for i in self.again[k]:  # R[t,j] <= R[t,i] + S[t,i] for every i -> j
                self.b.row([(self.R[t, k], 1.0), *self._source(t, i)], upper=0.0)
            for i in self.once[k]:
                if t > i:
                    self.b.row([(self.R[t, k], 1.0), (self.S[t, i], -1.0)], upper=0.0)
        for i in range(t):  # S[t,i] <= R[t-1,i] + S[t-1,i]
            self.b.row([(self.S[t, i], 1.0), *self._source(t - 1, i)], upper=0.0)

    def _source(self, t: int, i: int) -> Terms:
        columns = (self.R.get((t, i)), self.S.get((t, i)))
        return [(c, -1.0) for c in columns if c is not None]

    def _free(self, t: int, i: int, k: int) -> int:
        """FREE[t,i,k] with its two rows."""
        b = self.b
        free = b.column()
        later = [self.R[t, j] for j in self.users[i] if j > k and (t, j) in self.R]
        saved = [self.S[t + 1, i]] if (t + 1, i) in self.S else []
        # num_hazards(t,i,k) = (1 - R[t,k]) + S[t+1,i] + sum of R[t,j] over users j > k
        hazards: Terms = [(self.R[t, k], -1.0), *((c, 1.0) for c in (*saved, *later))]
        most = 2.0 + len(later)  # kappa
        b.row([(free, 1.0), *hazards], lower=0.0)  # 1 - FREE <= num_hazards
        b.row([(free, most), *hazards], upper=most - 1.0)  # kappa (1 - FREE) >= num_hazards
        return free

    def _memory_of(self, t: int) -> None:
        """U[t,k+1] = U[t,k] - mem_freed(t,k) + R[t,k+1] M[k+1] <= budget."""
        b, memory = self.b, self.memory
        before: Terms = [(self.S[t, i], -memory[i] / self.unit) for i in range(t) if memory[i]]
        held = self.held[t]
        for k in range(t + 1):
            if (t, k) not in self.R:
                continue
            inst, run = self.inst, self.R[t, k]
            taken = inst.workspace_C[k] if t == k else inst.reworkspace_C[k]
            if t > k:  # made a second time and dropped
                taken += sum(inst.size_A[a] for a in inst.rewrites_C[k] if inst.kept_A[a])
            used = b.column(upper=float("inf"), integer=False)
            made = (run, -memory[k] / self.unit)
            b.row(merged([(used, 1.0), *before, made]), lower=0.0, upper=0.0)
            left = (self.room - held) / self.unit
            b.row([(used, 1.0), (run, taken / self.unit)], upper=left)
            before = [(used, -1.0)]
            for i in {*self.deps[k], k}:
                if memory[i]:
                    before.append((self._free(t, i, k), memory[i] / self.unit))


def _own(inst: Instance, c: int) -> Iterator[int]:
    """The results that a node keeps and drops together."""
    return (a for a in inst.writes_C[c] if not inst.kept_A[a])


def _dependencies(inst: Instance) -> tuple[list[list[int]], list[list[int]]]:
    """The nodes that each node reads, in its first run or any other: those that make what
    it reads in every run, and those that make it only in the first."""
    storage: dict[int, list[int]] = {}
    again: list[list[int]] = []
    once: list[list[int]] = []
    for c in range(len(inst.names_C)):
        both: tuple[set[int], set[int]] = (set(), set())
        for a in {*inst.reads_C[c], *inst.rereads_C[c]}:
            for source in storage.get(a, ()) if not inst.kept_A[a] else ():
                remade = a in inst.rewrites_C[source] or inst.ends_C[source] >= 0
                both[0 if remade else 1].add(source)
        again.append(sorted(both[0]))
        once.append(sorted(both[1]))
        named = storage.get(inst.ends_C[c], []) if inst.ends_C[c] >= 0 else []
        for a in inst.writes_C[c]:
            storage[a] = [*named, c]
    return again, once


def _held(inst: Instance) -> list[int]:
    """Bytes in each stage of kept results and tokens that were made before or in it."""
    total = 0
    held_bytes = []
    for c in range(len(inst.names_C)):
        total += sum(inst.size_A[a] for a in inst.writes_C[c] if inst.kept_A[a])
        if inst.token_C[c] >= 0 and inst.makable_C[c]:
            total += inst.size_A[inst.token_C[c]]
        held_bytes.append(total)
    return held_bytes


def rounded_orders(model: CheckmateModel, point: Vector) -> Iterator[Order]:
    """Two-phase rounding (Jain et al. 2020, section 5): S from the relaxation against
    several thresholds, then the least R that goes with it."""
    for threshold in (0.5, 0.3, 0.7, 0.1, 0.9, 0.999, 0.001):
        saved = {pair for pair, c in model.S.items() if point[c] > threshold}
        yield _least_runs(model, saved)


def _least_runs(model: CheckmateModel, saved: set[Pair]) -> Order:
    """The cNodes that must run, given the `saved` values; results that are made only once are
    kept as long as somebody asks for them."""
    inst = model.instance
    n = len(inst.names_C)
    runs_of_stage: list[set[int]] = [set() for _ in range(n)]
    for t in range(n - 1, -1, -1):
        wanted = runs_of_stage[t]
        wanted.add(t)
        if t + 1 < n:
            wanted.update(
                i
                for i in range(t)
                if (t + 1, i) in saved and (t, i) not in saved and inst.makable_C[i]
            )
        for k in range(t, -1, -1):
            if k not in wanted:
                continue
            wanted.update(
                i for i in model.again[k] if inst.makable_C[i] and i < t and (t, i) not in saved
            )
    return [i for t in range(n) for i in sorted(runs_of_stage[t])]
