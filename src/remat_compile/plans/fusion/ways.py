"""The fused plans that are tried, and which of them is taken.

* after planning: runs of the plan's own steps, recomputations among them, as it is and with what
  kernels make again for nothing no longer saved;
* planning as if what may be folded into a kernel took a tenth of its time, and then the same; again
  with what the kernels of that plan take for it, until the plan stays as it is;
* before planning: runs of the step that recomputes nothing, or nothing but what its kernels make
  again, so that what every plan wants fused is one computation with the time of its kernel when
  the planner chooses; as it is, and then after planning again.

None has a higher peak than the plan. Of those that take about as long as the fastest, that with
the lowest peak is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING

from ... import fusion
from ...fusion import Fused, Fusing, Priced, gathered, peaks_of, recomputation_shares, unrolled
from ...ir.diagnostics import FBError
from ...ir.expr import Const
from ...ir.program import Budget
from ...ir.schedule import Compute, Schedule
from ...ir.semantics.simulate import simulate
from ...report.subject import store_all
from ..budget import Baseline, BudgetKind
from ..run_planner import Planned, run_planner

if TYPE_CHECKING:
    from ...backends.torch.kernels import InductorPrice
    from ...ir.graph import CNode
    from ...ir.program import Program
    from ...ir.schedule import Step
    from ..plan import Plan
    from ..request import PlanRequest
    from ..run_planner import Phases

FOLDED = 0.1
"""The share of its time that a recomputation is thought to take inside the kernel of its reader,
where none was measured yet."""
MOST_ROUNDS = 4
"""Limit on rounds of planning at the prices of the kernels of the round before."""
GATHERING = 0.1
"""The share of the time limit in which computations may be moved next to each other."""
NEAR = 0.002
"""The share of its time by which a step may be slower than another and count as fast. Two plans of
one search share their prices, so that chance is in no more than where they differ; and a budget is
there to be used."""
Peaks = tuple[int, int]


@dataclass(frozen=True)
class FusedWay:
    """A fused plan, its predicted time, and its peaks (device, activations) in bytes."""

    fused: Fused
    time_ns: int
    peaks: Peaks


def in_order(ways: Iterable[FusedWay]) -> list[FusedWay]:
    """Return the ways that are about as fast as the fastest by their peaks, then the others by
    their times. Of equal ones the first."""
    ordered = sorted(ways, key=lambda way: way.time_ns)
    near = [way for way in ordered if way.time_ns <= (1 + NEAR) * ordered[0].time_ns]
    return sorted(near, key=lambda way: way.peaks) + ordered[len(near) :]


@dataclass(frozen=True)
class Drafted:
    """A plan whose kernels are begun, and for how long others after it may be looked for."""

    steps: tuple[Step, ...]
    fusing: Fusing
    left_s: float


NO_SHARES: Mapping[str, float] = MappingProxyType({})


@dataclass
class FusedWays:
    """Fuses what was planned, and plans what was fused."""

    plan: Plan
    request: PlanRequest
    phases: Phases
    measured: InductorPrice

    def made(self) -> list[FusedWay]:
        """The fused plans that there are, that to be taken first."""
        return in_order(self.within_peaks(self.ways()))

    def within_peaks(self, ways: Iterable[Fused]) -> Iterator[FusedWay]:
        """Return the ways within the peaks of the plan."""
        device, activation = self.peaks
        for fused in ways:
            trace = simulate(fused.program, fused.schedule)
            peaks = trace.peak_bytes, trace.activation_peak_bytes
            if peaks[0] <= device and peaks[1] <= activation:
                yield FusedWay(fused, trace.time_ns, peaks)

    def ways(self) -> Iterator[Fused]:
        """The fused plans that there are. The kernels of all that hang on no prices are begun
        first: they are compiled while the planner works."""
        plan = self.plan
        own = [self.begin(plan.program, s) for s in (plan.schedule, self.folded(plan.schedule))]
        captured = store_all(plan.program)
        wholes = [
            self.begin(plan.program, whole, peaks_of(plan.program, whole))
            for whole in dict.fromkeys((captured, self.folded(captured)))
        ]
        first = self.drafted()
        for after in map(self.done, own):
            if after.cnodes:
                yield after
        yield from self.planned_to_fold(first)
        whole = [before for before in map(self.done, wholes) if before.cnodes]
        again = [self.begin_whole(before) for before in whole]
        for before, planned in zip(whole, again, strict=True):
            yield before
            yield from map(self.done, planned)

    def begin_whole(self, whole: Fused) -> list[Fusing]:
        """A plan of a graph that is fused already, to be fused again; none where there is none."""
        planned = self.planned(whole.program, self.left_s)
        return [] if planned is None else [self.begin(whole.program, planned.schedule)]

    def drafted(
        self,
        shares: Mapping[str, float] = NO_SHARES,
        limit_s: float | None = None,
        known: Set[tuple[Step, ...]] = frozenset(),
    ) -> Drafted | None:
        """A plan at these shares of times, and its kernels begun; None where it is `known`, or
        where there is none within `limit_s` (left out: what is left of the time limit)."""
        limit_s = self.left_s if limit_s is None else limit_s
        if limit_s <= 0:
            return None
        until = monotonic() + limit_s
        made = self.planned(self.at_shares(shares), limit_s)
        if made is None or made.schedule.steps in known:
            return None
        fusing = self.begin(self.plan.program, self.folded(made.schedule))
        return Drafted(made.schedule.steps, fusing, until - monotonic())

    def planned_to_fold(self, drafted: Drafted | None) -> Iterator[Fused]:
        """Planned as if a recomputation that may be folded into its reader took little time, which
        is what was `drafted`, then at what it took in the kernels so made, until a plan comes
        again or the time is over. What is done between the draft and this does not count."""
        shares: dict[str, float] = {}
        known: set[tuple[Step, ...]] = set()
        while drafted is not None:
            until = monotonic() + drafted.left_s
            known.add(drafted.steps)
            fused = self.done(drafted.fusing)
            if not fused.cnodes:
                return
            yield fused
            runs = [step.cnode for step in drafted.steps if isinstance(step, Compute)]
            if len(known) == MOST_ROUNDS or len(runs) == len({*runs}):
                return  # what is not recomputed at a tenth of its time is not at more
            shares |= self.shares(fused)
            drafted = self.drafted(shares, until - monotonic(), known)

    def at_shares(self, shares: Mapping[str, float]) -> Program:
        """The program with these shares of the times of forward cNodes that may be fused."""
        graph = self.plan.program.graph
        cheap = tuple(
            replace(c, time_ns=max(1, int(c.time_ns * shares.get(c.name, FOLDED))))
            if c.phase == "fwd" and c.time_ns and self.measured.may_fuse(c)
            else c
            for c in graph.cnodes
        )
        return replace(self.plan.program, graph=replace(graph, cnodes=cheap))

    def shares(self, fused: Fused) -> dict[str, float]:
        """Return the cost of recomputations in its kernels, in shares of their time by
        themselves."""
        with self.phases.phase("fuse", "pricing recomputations in kernels"):
            origin, graph = self.measured.origin, self.plan.program.graph
            prepare = self.measured.prepare
            return recomputation_shares(fused.program, origin, graph, self.price, prepare)

    def planned(self, program: Program, time_limit_s: float) -> Planned | None:
        with self.phases.phase("fuse", "beginning to compile kernels"):
            self.measured.begin_more()
        try:
            return run_planner(
                program,
                self.request.planner,
                self.bound,
                Baseline.of(program),
                time_limit_s=time_limit_s,
                phases=self.phases,
                is_draft=True,
            )
        except FBError:
            return None  # the way is left: regions, being coarser, may have no plan in the budget

    def folded(self, schedule: Schedule) -> Schedule:
        with self.phases.phase("fuse", "folding recomputations into kernels"):
            until = monotonic() + GATHERING * self.request.time_limit_s
            return fusion.folded(self.plan.program, schedule, self.measured.may_fuse, until)

    @property
    def left_s(self) -> float:
        """Seconds that planning again may take."""
        cnodes = len(self.plan.program.graph.cnodes)
        return self.phases.left_s(self.request.time_limit_s, cnodes)

    @property
    def peaks(self) -> Peaks:
        """Return the peaks of the plan, which no fused one exceeds."""
        return self.plan.trace.peak_bytes, self.plan.trace.activation_peak_bytes

    @property
    def bound(self) -> Budget:
        """The same as a budget of the kind that was asked for."""
        budget = self.plan.budget
        is_activation = budget is not None and budget.kind == "activation"
        kind: BudgetKind = "activation" if is_activation else "device"
        return Budget(self.peaks[is_activation], kind)

    def begin(self, program: Program, schedule: Schedule, peaks: Peaks | None = None) -> Fusing:
        peaks = peaks or self.peaks
        may_fuse, always = self.measured.may_fuse, self.request.fuse == "inductor"
        with self.phases.phase("fuse", "beginning to compile kernels"):
            until = monotonic() + GATHERING * self.request.time_limit_s
            apart = unrolled(program, schedule)
            self.measured.add(apart.origin)
            near = gathered(apart.program, apart.schedule, may_fuse, peaks, until)
            return Fusing(
                apart.program,
                near,
                may_fuse,
                self.price,
                peaks,
                always,
                self.measured.prepare,
                self.measured.calls_ns,
            )

    def done(self, fusing: Fusing) -> Fused:
        with self.phases.phase("fuse", "fusing, and measuring kernels"):
            return fusing.done()

    def price(self, c: CNode) -> Priced | None:
        cost = self.measured.cost(c)
        return None if cost is None else Priced(cost.time_ns, Const(cost.workspace_bytes))
