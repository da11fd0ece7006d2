"""RK-Checkmate as Zhao's thesis prints it (2024, section 2.4): the oracle for small graphs.

Index legend: t stage, k cNode, i aNode, all in the order of capture and from 0; stage t
ends with the first execution of cNode t. Differences, all because our graphs say more:

* Every aNode has one writer (a sum of gradients is an accumulate of its own), so the edge
  e = (k, i) is the aNode i, and S and P of the thesis have the same index (t, i).
* A phantom is an aNode that may be freed at once. So R' is R with that deletion, and
  (2.9) and (2.10) are (2.7) and (2.8).
* Equation numbers with "corrected" differ from the print: (2.14) must read P of the next
  stage; the second line of the hazards must add P and R instead of their complements, as
  Checkmate has it; (2.17) leaves out what the caller keeps, which is alive from when it is made.
* (2.6) holds for every cNode that may run only once. An accumulate takes no memory: it ends
  one aNode and names its storage anew. A token is created only if a replay reads it.
* (2.18) counts results that are still alive and made again, as spec/semantics.md does.

Four layers F0 to F3, 100 bytes for each value, budget 500. Stage 6 ends with B6, which takes 500
bytes beside x1, so (2.18) asks that x1 is deleted by then, and (2.14) makes P[7, x1] = 0, (2.12)
S[7, x1] = 0. For B7, which reads x1, (2.8) says R[7, 7] <= R[7, 0] + S[7, x1]: F0 runs again.

    >>> model = thesis_model(step, 500)
    >>> model.milp.columns, len(model.run)
    (317, 41)
    >>> with MilpSolver() as solver:
    ...     model.order(solver.solve(model.milp, 60.0).point)
    [0, 1, 2, 3, 4, 5, 6, 0, 7, 8]
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ..instance import Instance, Order
from ..solvers.milp import Milp, MilpBuilder, Terms, Vector, merged


@dataclass(frozen=True, eq=False)
class ThesisModel:
    milp: Milp
    run: dict[tuple[int, int], int]
    """The column of R[t, k], for every pair that may run."""
    scale_ns: float

    def order(self, point: Vector) -> Order:
        """Algorithm 4, without the deletions: they follow from the order."""
        pairs = sorted(self.run)
        return [k for t, k in pairs if point[self.run[t, k]] > 0.5]


def thesis_model(
    instance: Instance, limit_bytes: int, saved_bytes: int | None = None
) -> ThesisModel:
    """Quadratic in cNodes, cubic where aNodes have many readers; for T <= 35 or so."""
    return _Thesis(instance, limit_bytes, saved_bytes).build()


class _Thesis:
    def __init__(self, instance: Instance, limit_bytes: int, saved_bytes: int | None):
        inst = self.inst = instance
        self.T = len(inst.names_C)
        self.room = limit_bytes - inst.base_bytes
        self.unit = float(max(1, self.room))
        self.saved = None if saved_bytes is None else saved_bytes - inst.base_bytes
        self.b = MilpBuilder()
        self.scale_ns = max(1.0, sum(inst.time_C) / max(1, self.T))
        self.I = [i for i, writer in enumerate(inst.writer_A) if writer >= 0]
        self.tokens = {i for i in inst.token_C if i >= 0}
        self.ended = {i: k for k, i in enumerate(inst.ends_C) if i >= 0}
        self.children: dict[int, list[int]] = {i: [] for i in self.I}
        for k in range(self.T):
            reads = {*inst.reads_C[k], *inst.rereads_C[k]}
            if k in {inst.writer_A[i] for i in self.tokens}:
                reads.add(inst.token_C[k])
            for i in sorted(reads):
                self.children[i].append(k)
        self.R: dict[tuple[int, int], int] = {}
        self.P: dict[tuple[int, int], int] = {}
        self.S: dict[tuple[int, int], int] = {}
        self.create: dict[tuple[int, int], int] = {}
        self.delete: dict[tuple[int, int, int], int] = {}

    def reads(self, t: int, k: int) -> tuple[int, ...]:
        inst = self.inst
        if t == k:
            return inst.reads_C[k]
        token = inst.token_C[k]
        return inst.rereads_C[k] if token < 0 else (*inst.rereads_C[k], token)

    def writes(self, t: int, k: int) -> tuple[int, ...]:
        """The results of an execution; the first one also writes the token."""
        inst = self.inst
        if t != k:
            return inst.rewrites_C[k]
        token = inst.token_C[k]
        return inst.writes_C[k] if token < 0 else (*inst.writes_C[k], token)

    def related(self, i: int) -> list[int]:
        """Parents and children of an aNode, rising; a token's writer is both."""
        return sorted({self.inst.writer_A[i], *self.children[i]})

    def build(self) -> ThesisModel:
        self._columns()
        for t in range(self.T):
            self._feasibility(t)
            for i in self.I:
                self._liveness(t, i)
            self._memory(t)
        return ThesisModel(self.b.build(), self.R, self.scale_ns)

    def _columns(self) -> None:
        inst, b = self.inst, self.b
        for t in range(self.T):
            for k in range(t + 1):  # (2.3): no k > t
                if k == t:
                    self.R[t, k] = b.column(inst.time_C[k] / self.scale_ns, lower=1.0)  # (2.5)
                elif inst.makable_C[k]:  # (2.6)
                    self.R[t, k] = b.column(inst.retime_C[k] / self.scale_ns)
            for i in self.I:
                if t > inst.writer_A[i] and t <= self.ended.get(i, self.T):  # (2.4)
                    self.P[t, i] = b.column(lower=float(inst.kept_A[i]))
                    self.S[t, i] = b.column()
                for k in self.related(i):
                    if (t, k) not in self.R:
                        continue
                    if i in self.writes(t, k):
                        self.create[t, i] = b.column()
                    if i in self.writes(t, k) or i in self.reads(t, k):
                        self.delete[t, i, k] = b.column()

    def _p(self, t: int, i: int) -> tuple[Terms, float]:
        """P[t, i] as terms and a constant; after the last stage, what must be kept."""
        if t == self.T:
            return [], float(self.inst.kept_A[i])
        return ([(self.P[t, i], 1.0)], 0.0) if (t, i) in self.P else ([], 0.0)

    def _feasibility(self, t: int) -> None:
        b, inst = self.b, self.inst
        for i in self.I:
            if (t, i) not in self.S:
                continue
            s, p = self.S[t, i], self.P[t, i]
            b.row([(s, 1.0), (p, -1.0)], upper=0.0)  # (2.12)
            b.row([(p, 1.0), (s, -1.0)], lower=0.0)  # (2.11), one parent
            before: Terms = [(self.S[t - 1, i], -1.0)] if (t - 1, i) in self.S else []
            k = inst.writer_A[i]
            if (t - 1, k) in self.R and i in self.writes(t - 1, k):
                before.append((self.R[t - 1, k], -1.0))
            b.row([(s, 1.0), *before], upper=0.0)  # (2.7)
        for k in range(t + 1):
            if (t, k) not in self.R:
                continue
            for i in self.reads(t, k):
                source = inst.writer_A[i]
                terms: Terms = [(self.R[t, k], 1.0)]
                if (t, source) in self.R and source != k and i in self.writes(t, source):
                    terms.append((self.R[t, source], -1.0))
                if (t, i) in self.S:
                    terms.append((self.S[t, i], -1.0))
                b.row(terms, upper=0.0)  # (2.8)

    def _alive(self, t: int, i: int, k: int) -> tuple[Terms, float]:
        """Expression alive[t, i, k]."""
        terms, constant = self._p(t, i) if t < self.T else ([], 0.0)
        terms = list(terms)
        if (t, i) in self.create and self.inst.writer_A[i] <= k:
            terms.append((self.create[t, i], 1.0))
        terms += [
            (self.delete[t, i, other], -1.0)
            for other in self.related(i)
            if other <= k and (t, i, other) in self.delete
        ]
        return terms, constant

    def _liveness(self, t: int, i: int) -> None:
        b = self.b
        related = [k for k in self.related(i) if (t, i, k) in self.delete]
        for k in related:
            alive, _ = self._alive(t, i, k)
            b.row(alive, lower=0.0, upper=1.0)
            run = self.R[t, k]
            if i in self.writes(t, k):
                made = self.create[t, i]
                b.row([(made, 1.0), (run, -1.0)], upper=0.0)  # (2.15)
                if i not in self.tokens:
                    gone = (self.delete[t, i, k], 1.0)
                    b.row([*merged([*alive, gone]), (run, -1.0)], lower=0.0)  # (2.13)
            self._deletion(t, i, k)
        terms, _ = self._alive(t, i, self.T)
        kept, constant = self._p(t + 1, i)
        if terms or kept or constant:  # (2.14) corrected, (2.17) corrected
            b.row([*terms, *((c, -v) for c, v in kept)], lower=constant, upper=constant)

    def _deletion(self, t: int, i: int, k: int) -> None:
        """(2.16) in its linear form, corrected."""
        column = self.delete[t, i, k]
        later = [j for j in self.children[i] if j > k and (t, j) in self.R]
        later = [j for j in later if i in self.reads(t, j)]
        if i in self.tokens and k == self.inst.writer_A[i] and t == k:
            self.b.row([(column, 1.0), (self.create[t, i], -1.0)], upper=0.0)
            return
        kept, constant = self._p(t + 1, i)
        # num_hazards = (1 - R[t,k]) + P[t+1,i] + sum of R[t,j]
        hazards: Terms = [(self.R[t, k], -1.0), *kept]
        hazards += [(self.R[t, j], 1.0) for j in later]
        most = 2.0 + len(later)
        self.b.row([(column, 1.0), *hazards], lower=-constant)
        self.b.row([(column, most), *hazards], upper=most - 1.0 - constant)

    def _memory(self, t: int) -> None:
        """U[t, k] by difference, (2.18) and (2.19)."""
        b, inst = self.b, self.inst
        before: Terms = []
        for i in self.I:
            before += [(c, v * inst.size_A[i] / self.unit) for c, v in self._p(t, i)[0]]
        touched: dict[int, list[int]] = {k: [] for k in range(t + 1)}
        for i in self.I:
            for k in self.related(i)[: bisect_right(self.related(i), t)]:
                if (t, i, k) in self.delete:
                    touched[k].append(i)
        used = -1
        for k in range(t + 1):
            if (t, k) not in self.R:
                continue
            here = [(used, -1.0)] if used >= 0 else [(c, -v) for c, v in before]
            if k == t == inst.loss and self.saved is not None:
                b.row([(c, -v) for c, v in here], upper=self.saved / self.unit)  # (2.19)
            used = b.column(upper=float("inf"), integer=False)
            step: Terms = []
            peak: Terms = [(used, 1.0)]
            for i in touched[k]:
                size = inst.size_A[i] / self.unit
                gone = self.delete[t, i, k]
                step.append((gone, size))
                if inst.ends_C[k] != i:
                    peak.append((gone, size))
                if i in self.writes(t, k):
                    step.append((self.create[t, i], -size))
                    if inst.ends_C[k] < 0 and i not in self.tokens:
                        peak.append((self.create[t, i], -size))
            b.row([(used, 1.0), *here, *step], lower=0.0, upper=0.0)
            taken = inst.workspace_C[k] if t == k else inst.reworkspace_C[k]
            if inst.ends_C[k] < 0:
                made = inst.writes_C[k] if t == k else inst.rewrites_C[k]
                taken += sum(inst.size_A[i] for i in made)
            peak.append((self.R[t, k], taken / self.unit))
            b.row(merged(peak), upper=self.room / self.unit)  # (2.18)
