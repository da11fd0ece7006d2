"""Nothing leaves unproven: every schedule is simulated and verified, and refused by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.program import Budget, Program
from ..ir.semantics.simulate import simulate
from .files import keep_text

if TYPE_CHECKING:
    from ..ir.schedule import Schedule
    from ..ir.semantics.simulate import Trace
    from ..verifier import Verdict

__all__ = ["Prover"]


@dataclass
class Prover:
    """Proves schedules of one program, each once."""

    program: Program
    budget: Budget | None
    time_limit_s: float
    verdicts: dict[Schedule, Verdict] = field(default_factory=dict)

    def simulate(self, schedule: Schedule, name: str) -> Trace:
        """FB0462 where the schedule is not valid, FB0463 where it is over the budget, FB0826
        where it is over the memory of the target."""
        try:
            trace = simulate(self.program, schedule)
        except FBError as error:
            raise _invalid(self.program, schedule, name, error.diagnostics) from None
        target = self.program.target
        if target.memory_bytes is not None and trace.peak_bytes > target.memory_bytes:
            message = (
                f'the plan of {name} takes {trace.peak_bytes} bytes; the target "{target.name}" '
                f"has {target.memory_bytes}"
            )
            hint = f"give --budget {target.memory_bytes}B or less, or another --device"
            raise FBError(Diagnostic("FB0826", message, hint=hint))
        if self.budget is None:
            return trace
        limit = self.budget.bytes
        peak = trace.peak_bytes if self.budget.kind == "device" else trace.activation_peak_bytes
        if peak > limit:
            message = f"planner {name} returned a plan of {peak} bytes for a budget of {limit}"
            raise FBError(Diagnostic("FB0463", message, hint="use another planner"))
        return trace

    def verdict(self, schedule: Schedule) -> Verdict:
        from ..verifier import verify

        if schedule not in self.verdicts:
            budgets = () if self.budget is None else (self.budget,)
            self.verdicts[schedule] = verify(
                self.program, schedule, budgets, time_limit_s=self.time_limit_s
            )
        return self.verdicts[schedule]

    def holds(self, schedule: Schedule) -> bool:
        from ..verifier import ProvenPlan

        return isinstance(self.verdict(schedule), ProvenPlan)

    def prove(self, schedule: Schedule, name: str) -> Program:
        """The program with the schedule in it and what was proven of it recorded.

        FB0462 where the proof is refused, FB0467 where it was not finished.
        """
        from ..verifier import ProvenPlan, Refuted, Undecided

        verdict = self.verdict(schedule)
        match verdict:
            case ProvenPlan(proven):
                held = self.program.with_schedule(schedule)
                return replace(held, proven=(*held.proven, proven))
            case Refuted(diagnostics):
                raise _invalid(self.program, schedule, name, diagnostics)
            case Undecided(why):
                message = (
                    f"the plan of {name} could not be proven in {self.time_limit_s:g} s: {why}"
                )
                raise FBError(
                    Diagnostic("FB0467", message, hint="give more time with --time-limit")
                )
            case _:
                assert_never(verdict)


def _invalid(
    program: Program, schedule: Schedule, name: str, found: tuple[Diagnostic, ...]
) -> FBError:
    """The planner's mistake, shown on the text of its plan."""
    from ..ir.text.parser import parse_program
    from ..ir.text.printer import format_program

    file = f"<plan of {name}>"
    text = format_program(program.with_schedule(schedule))
    keep_text(file, text)
    try:
        parsed = parse_program(text, file)
        simulate(parsed, next(s for s in parsed.schedules if s.name == schedule.name))
    except FBError as error:
        found = error.diagnostics
    head = Diagnostic(
        "FB0462", f"planner {name} returned an invalid plan", hint="use another planner"
    )
    return FBError((head, *found))
