"""Results of planners: an order of cNodes becomes a PlanResult."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from time import monotonic

from ..ir.analysis.liveness import BudgetKind, held_beside, lower_bound_bytes, working_set
from ..ir.diagnostics import Diagnostic, Note, fail
from ..ir.program import Budget, Program
from ..ir.schedule import Compute, Schedule
from ..ir.semantics.simulate import Trace, simulate
from ..ir.text.printer import format_step
from .contract import Feasible, Infeasible, Optimal, PlanResult, Progress, TimedOut
from .instance import Instance, Order

_SHOWN = 8
"""A refusal names at most this many tensors."""


def check_budget(budget: Budget | None) -> None:
    """FB0408 for a budget that is not positive, or one of the host, which the target has."""
    if budget is not None and budget.kind == "host":
        message = "a planner takes the bound on host bytes from the target of the program"
        fail("FB0408", message, hint="set target.host_bytes", usage=True)
    if budget is not None and budget.bytes <= 0:
        message = f"a budget of {budget.bytes} bytes: it must be positive"
        fail("FB0408", message, hint="leave the budget out for no bound", usage=True)


def peak_of(trace: Trace, kind: str) -> int:
    """The peak in bytes as a budget of this kind counts it."""
    return trace.peak_bytes if kind == "device" else trace.activation_peak_bytes


def kind_of(budget: Budget | None) -> BudgetKind:
    """The bytes that a budget bounds: of the device if there is no budget."""
    return "activation" if budget is not None and budget.kind == "activation" else "device"


def silent(line: str) -> None:
    """Progress that nobody is told of."""


@dataclass(frozen=True)
class Task:
    """A program and a budget, with what every answer about them needs.

    `planner` is the text form that is written on schedules.
    """

    program: Program
    budget: Budget | None
    planner: str
    instance: Instance
    deadline: float = inf
    """On the monotonic clock."""
    progress: Progress = silent

    @staticmethod
    def of(
        program: Program,
        budget: Budget | None,
        planner: str,
        deadline: float = inf,
        progress: Progress | None = None,
    ) -> Task:
        check_budget(budget)
        instance = Instance.of(program, kind_of(budget))
        return Task(program, budget, planner, instance, deadline, progress or silent)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - monotonic())

    @property
    def limit_bytes(self) -> int:
        """The budget; more than any plan needs where there is none."""
        return self.budget.bytes if self.budget is not None else 1 << 62

    def schedule(self, order: Order) -> Schedule:
        return self.instance.schedule(order, self.planner)

    def answer(self, order: Order, bound_ns: int = 0) -> Optimal | Feasible:
        """The order as a result; it is under the budget.

        Optimal where it meets the lower bound: `bound_ns`, or the time with nothing
        recomputed. Who runs the planner may know a higher one.
        """
        time_ns = self.instance.time_ns(order)
        bound = max(bound_ns, self.instance.base_time_ns)
        schedule = self.schedule(order)
        if time_ns <= bound:
            return Optimal(schedule, time_ns, time_ns)
        return Feasible(schedule, time_ns, bound)

    def best_of(self, orders: Iterable[Order]) -> PlanResult:
        """The fastest of `orders` under the budget; the least peak where none is."""
        instance = self.instance
        best: Order | None = None
        least: Order | None = None
        best_ns = least_bytes = 0
        late = False
        for order in orders:
            peak, time_ns = instance.peak(order), instance.time_ns(order)
            if peak <= self.limit_bytes and (best is None or time_ns < best_ns):
                best, best_ns = order, time_ns
            if least is None or peak < least_bytes:
                least, least_bytes = order, peak
            late = monotonic() > self.deadline
            if late:
                break
        if best is not None:
            return self.answer(best)
        return TimedOut(None, 0, instance.base_time_ns) if late else self.infeasible(least)

    def infeasible(self, least: Order | None) -> Infeasible:
        """Refuses the budget; `least` is the order of least peak that is known."""
        kind = self.instance.kind
        floor, where = lower_bound_bytes(self.program, kind, copies=self.program.target.has_link)
        budget = self.budget.bytes if self.budget is not None else 0
        notes = [self._floor_note(floor, where)]
        reached: Budget | None = None
        if least is not None:
            schedule = self.schedule(least)
            trace = simulate(self.program, schedule)
            reached = Budget(peak_of(trace, kind), kind)
            notes = [*self._peak_notes(trace, schedule), *notes]
        name = "budget" if kind == "device" else "activation budget"
        best = f"; the least it found is {reached.bytes} bytes" if reached else ""
        hint = (
            f"give at least {reached.bytes} bytes"
            if reached
            else "try another planner, for example dtr"
        )
        if budget < floor:
            hint += "; a smaller batch lowers the floor"
        message = f"{self.planner} found no plan under the {name} of {budget} bytes{best}"
        why = Diagnostic("FB0407", message, notes=tuple(notes), hint=hint)
        return Infeasible(reached, floor, why, names_both=True)

    def _floor_note(self, floor: int, where: str) -> Note:
        """The bytes of the floor by holder: the cNode itself, values carried past its first
        execution, the caller."""
        graph, inst = self.program.graph, self.instance
        c = graph.cnode[where]
        working = working_set(graph, c)
        own = inst.workspace_C[inst.names_C.index(where)]
        own += sum(inst.size_A[inst.index_A[name]] for name in working)
        place = f" at {c.loc}" if c.loc else ""
        names = self._named(working) or "what the caller holds"
        said = f"{where} ({c.call.op}){place} works on {names} ({own} bytes with its workspace)"
        if (carried := floor - inst.base_bytes - own) > 0:
            held = held_beside(self.program, inst.kind, where)
            names = f": {self._named(held)}" if sum(held.values()) == carried else ""
            said += f"; {carried} bytes are carried through it for what runs later{names}"
        if inst.base_bytes:
            said += f"; the caller holds {inst.base_bytes} bytes"
        return Note(f"no plan of any planner needs less than {floor} bytes: {said}")

    def _named(self, anodes: Iterable[str]) -> str:
        """The largest of them."""
        names = sorted(anodes, key=lambda name: -self._counted(name))
        more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        return ", ".join([*(f"%{name}" for name in names[:_SHOWN]), *more])

    def _counted(self, name: str) -> int:
        """Bytes as the budget counts them; `(workspace)` and the like as infinite."""
        inst = self.instance
        return inst.size_A[inst.index_A[name]] if name in inst.index_A else 1 << 62

    def _peak_notes(self, trace: Trace, schedule: Schedule) -> list[Note]:
        """The step of the least peak, and the largest tensors alive there with their
        places in the model."""
        graph = self.program.graph
        device = self.instance.kind == "device"
        step = trace.peak_step if device else trace.activation_peak_step
        now = schedule.steps[step]
        label = now.cnode if isinstance(now, Compute) else format_step(now)
        c = graph.cnode.get(label)
        place = f" at {c.loc}" if c is not None and c.loc else ""
        notes = [Note(f"the memory is held at step {step + 1}, {label}{place}, by")]
        counted = [
            (name, size)
            for name, size in trace.live_at(step)
            if size and (device or self._counted(name))
        ]
        for name, size in counted[:_SHOWN]:
            notes.append(Note(f"{size:>14} bytes  {self._described(name)}"))
        if len(counted) > _SHOWN:
            rest = sum(size for _, size in counted[_SHOWN:])
            notes.append(Note(f"{rest:>14} bytes  in {len(counted) - _SHOWN} more"))
        return notes

    def _described(self, name: str) -> str:
        a = self.program.graph.anode.get(name)
        if a is None:
            return name
        writer = self.program.graph.writer.get(name)
        place = f", made at {writer.loc}" if writer is not None and writer.loc else ""
        return f"%{name} ({a.kind}){place}"
