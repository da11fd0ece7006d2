"""Answers of planners that copy to the host, from orders and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import ClassVar

from ....ir.diagnostics import Diagnostic, fail
from ....ir.schedule import Schedule
from ....ir.semantics.simulate import Trace, simulate
from ....ir.wording import worded
from ...contract import Feasible, Infeasible, Optimal, PlanResult, TimedOut
from ...instance import Instance, Order
from ...results import Task, peak_of
from ...search import SearchPlanner
from .clock import time_ns
from .gaps import Gap, gaps_of
from .place import Frame, Move, bring_back, send, steps_of, within

_MOST_THRESHOLDS = 24
_LEAST_BYTES = 1 << 20
_LEAST_NS = 20_000
"""Smaller tensors, which take less than this on the link too, are moved only if need be; so are
those that take longer to issue than to copy."""


@dataclass(frozen=True, order=True)
class Placed:
    """An order with moves, within all limits as far as `within` and `clock` see."""

    time_ns: int
    order: tuple[int, ...] = field(compare=False)
    moves: tuple[Move, ...] = field(compare=False)
    gaps: tuple[Gap, ...] = field(compare=False)
    """The tensors that could be moved, in the order of the tries."""


@dataclass
class CopyTask:
    """A task on a target with a link, and the best plan so far. Only the answer is simulated."""

    task: Task
    improvements: list[Placed] = field(default_factory=list)
    """Each faster than the one before."""
    least: Order | None = None
    """The order of least bytes without copies that was tried."""
    _frame: Frame | None = None
    """The result for the order that was tried last."""

    @property
    def instance(self) -> Instance:
        return self.task.instance

    @property
    def best(self) -> Placed | None:
        return self.improvements[-1] if self.improvements else None

    @property
    def late(self) -> bool:
        return monotonic() > self.task.deadline

    @property
    def is_best_possible(self) -> bool:
        """True if no plan can be faster: no recomputation and no stall."""
        return self.best is not None and self.best.time_ns <= self.instance.base_time_ns

    @property
    def least_bytes(self) -> int:
        """The least bytes of a tensor that is worth a copy."""
        target = self.instance.program.target
        rate = target.d2h_bytes_per_s or 0
        least = min(_LEAST_BYTES, _LEAST_NS * rate // 10**9)
        return max(1, least, target.copy_issue_ns * rate // 10**9)

    def gaps(self, order: Order) -> list[Gap]:
        """All gaps of an order, in the order in which the tensors are made; those too small to be
        worth a copy stand behind the others."""
        least, gaps = self.least_bytes, gaps_of(self.instance, order)
        return [g for g in gaps if g.size_bytes >= least] + [
            g for g in gaps if g.size_bytes < least
        ]

    def try_gaps(self, order: Order, gaps: Iterable[Gap]) -> int | None:
        """Takes in the fastest plan that has some of these gaps on the host, if it is faster than
        the best; its nanoseconds, None where there is none."""
        gaps = list(gaps)
        inst, limit_bytes = self.instance, self.task.limit_bytes
        frame = self._frame_of(order)
        sent = send(inst, frame, gaps, limit_bytes)
        if sent is None:
            return None
        ways = [bring_back(inst, frame, sent, limit_bytes, early=True)]
        if ways[0]:
            ways.append(bring_back(inst, frame, sent, limit_bytes, early=False))
        return self._try_fastest(frame, ways, gaps)

    def try_moves(self, order: Order, moves: Sequence[Move]) -> int | None:
        """The same for given moves."""
        return self._try_fastest(self._frame_of(order), [moves], ())

    def take_in(self, other: CopyTask) -> None:
        """Takes the result of another search for the same task if it is faster."""
        for placed in other.improvements:
            if self.best is None or placed.time_ns < self.best.time_ns:
                self.improvements.append(placed)

    def _try_fastest(
        self, frame: Frame, ways: Iterable[Sequence[Move]], gaps: Sequence[Gap]
    ) -> int | None:
        """The time of the fastest way that is within all limits, taken in if it leads."""
        inst = self.instance
        fitting = [
            (time_ns(frame.times, moves, inst.program.target), moves)
            for moves in ways
            if within(inst, frame, moves, self.task.limit_bytes)
        ]
        if not fitting:
            return None
        takes, moves = min(fitting, key=lambda way: way[0])
        if self.best is None or takes < self.best.time_ns:
            self.improvements.append(Placed(takes, tuple(frame.order), tuple(moves), tuple(gaps)))
        return takes

    def _frame_of(self, order: Order) -> Frame:
        """Kept, since tries of one order follow each other."""
        if self._frame is None or self._frame.order != order:
            self._frame = Frame.of(self.instance, list(order))
        return self._frame

    def thresholds(self, order: Order) -> Iterator[list[Gap]]:
        """For each threshold of the time of a tensor's last reader for a byte: all tensors above
        it, and every other one of them."""
        gaps = self.gaps(order)
        ratio = {gap: self.instance.time_C[order[gap.last]] / gap.size_bytes for gap in gaps}
        ranked = sorted(set(ratio.values()))
        for threshold in ranked[:: max(1, len(ranked) // _MOST_THRESHOLDS)]:
            above = [gap for gap in gaps if ratio[gap] >= threshold]
            yield above
            yield above[::2]

    def _simulated(self) -> Iterator[tuple[Schedule, Trace]]:
        """The orders found, fastest first."""
        for placed in reversed(self.improvements):
            schedule = steps_of(self.instance, list(placed.order), placed.moves, self.task.planner)
            yield schedule, simulate(self.instance.program, schedule)

    def fits(self, trace: Trace) -> bool:
        host = self.instance.program.target.host_bytes
        within = peak_of(trace, self.instance.kind) <= self.task.limit_bytes
        return within and (host is None or trace.host_peak_bytes <= host)

    def answer(self, refused: PlanResult | None = None) -> PlanResult:
        """The best schedule that the simulator finds within all limits; else the least that would
        do. `refused` is what a planner answered whose orders were tried."""
        base_ns = self.instance.base_time_ns
        for schedule, trace in self._simulated():
            if self.fits(trace):
                if trace.time_ns <= base_ns:
                    return Optimal(schedule, trace.time_ns, trace.time_ns)
                return Feasible(schedule, trace.time_ns, base_ns)
        if self.late:
            return TimedOut(None, 0, base_ns)
        if (host := self._for_want_of_host()) is not None:
            return host
        if isinstance(refused, Infeasible):
            return refused
        return self.task.infeasible(self.least or self.instance.capture)

    def _for_want_of_host(self) -> Infeasible | None:
        """The refusal where the host is what is too small: FB0475 with the bytes that would do."""
        program = self.instance.program
        if program.target.host_bytes is None:
            return None
        free = replace(program, target=replace(program.target, host_bytes=None))
        inner = CopyTask(
            replace(self.task, program=free, instance=Instance.of(free, self.instance.kind))
        )
        order = self.least or self.instance.capture
        inner.try_gaps(order, inner.gaps(order))
        trace = next((trace for _, trace in inner._simulated() if inner.fits(trace)), None)
        if trace is None:
            return None
        plain = self.task.infeasible(order)
        host = program.target.host_bytes
        message = (
            f"{self.task.planner} found no plan with {host} bytes on the host; it would "
            f"with {trace.host_peak_bytes}"
        )
        hint = worded("give {host_budget} or more", host_budget=f"{trace.host_peak_bytes}B")
        why = Diagnostic("FB0475", message, notes=plain.why.notes, hint=hint)
        return Infeasible(plain.min_budget, plain.floor_bytes, why, short_of="host")


class CopyPlanner(SearchPlanner):
    """A planner that copies to the host."""

    copies: ClassVar[bool] = True

    def search(self, task: Task) -> PlanResult:
        """FB0473 for a target without a link."""
        target = task.program.target
        if not target.has_link:
            message = f'{task.planner} copies to the host, and target "{target.name}" has no link'
            hint = worded("name a {device} that has one, or give {link}", link="25GB/s")
            fail("FB0473", message, hint=hint, usage=True)
        return self.search_copies(CopyTask(task))

    def search_copies(self, task: CopyTask) -> PlanResult:
        """The answer to a task with copies, by its deadline."""
        raise NotImplementedError
