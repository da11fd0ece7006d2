"""The one way to a proof: nothing is saved, emitted or run that has not come through here.

A plan comes from a planner, from another tool or from a file. What is asked of the verifier
is the same; what is said where the proof fails depends on the `Maker`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypedDict, assert_never

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.program import Budget, Program
from ..ir.semantics.simulate import simulate
from ..ir.wording import worded
from .files import keep_text

if TYPE_CHECKING:
    from ..ir.schedule import Schedule
    from ..ir.semantics.simulate import Trace
    from ..verifier import Choice, Scope, Script, Verdict

__all__ = [
    "MORE_TIME",
    "Maker",
    "ProofKeywords",
    "ProofRequest",
    "Prover",
    "prove",
    "prove_with_scripts",
    "proven_program",
]

MORE_TIME = worded("give more time with {time_limit_s}")


class ProofKeywords(TypedDict, total=False):
    """What a proof can be asked; see `MEANING` of driver/request.py."""

    time_limit_s: float
    scope: Scope
    solver: Choice


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """What is to be proven of a schedule. Without `budgets`, the bounds are its own peaks;
    `text` is the file that it was read from, which the independent checker reads itself."""

    budgets: tuple[Budget, ...] = ()
    time_limit_s: float = 60.0
    scope: Scope = "widest"
    solver: Choice = "z3"
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made a plan, for what is said where it is not proven."""

    kind: Literal["planner", "tool", "file"]
    name: str
    """Of the planner or the tool; of the schedule in a file."""

    def refuted(self) -> Diagnostic:
        """Stands before what is wrong with the plan."""
        match self.kind:
            case "planner":
                message = f"planner {self.name} returned an invalid plan"
                return Diagnostic("FB0462", message, hint="use another planner")
            case "tool":
                message = f"the plan of {self.name} is refuted"
                hint = "what is wrong is shown on the steps that the tool runs"
                return Diagnostic("FB0485", message, hint=hint)
            case "file":
                return Diagnostic("FB0714", f"plan @{self.name} is not valid")
            case _:
                assert_never(self.kind)

    def undecided(self, why: str, time_limit_s: float) -> Diagnostic:
        match self.kind:
            case "planner":
                message = f"the plan of {self.name} could not be proven in {time_limit_s:g} s"
                return Diagnostic("FB0467", f"{message}: {why}", hint=MORE_TIME)
            case "tool":
                message = f"the plan of {self.name} is not decided: {why}"
                return Diagnostic("FB0485", message, hint=MORE_TIME)
            case "file":
                return Diagnostic("FB0714", f"plan @{self.name} could not be proven: {why}")
            case _:
                assert_never(self.kind)


def prove(program: Program, schedule: Schedule, request: ProofRequest) -> Verdict:
    """What the verifier says of one schedule."""
    from ..verifier import verify

    return verify(
        program,
        schedule,
        request.budgets,
        time_limit_s=request.time_limit_s,
        scope=request.scope,
        solver=request.solver,
        text=request.text,
    )


def prove_with_scripts(
    program: Program, schedule: Schedule, request: ProofRequest
) -> tuple[Verdict, tuple[Script, ...]]:
    """`prove`, with the SMT-LIB 2.6 scripts that were asked on the way."""
    from ..verifier import verify_with_scripts

    return verify_with_scripts(
        program,
        schedule,
        request.budgets,
        time_limit_s=request.time_limit_s,
        scope=request.scope,
        solver=request.solver,
        text=request.text,
    )


def proven_program(
    program: Program, schedule: Schedule, verdict: Verdict, request: ProofRequest, maker: Maker
) -> Program:
    """The program with the schedule in it and what was proven of it recorded.

    FB0462, FB0485 or FB0714 where it is refuted, FB0467, FB0485 or FB0714 where that was not
    decided, as `maker` says. What was made here is shown on its own text.
    """
    from ..verifier import ProvenPlan, Refuted, Undecided

    match verdict:
        case ProvenPlan(proven):
            others = tuple(p for p in program.proven if p.schedule != schedule.name)
            if schedule not in program.schedules:
                program = program.with_schedule(schedule)
            return replace(program, proven=(*others, proven))
        case Refuted(diagnostics):
            if maker.kind == "file":
                raise FBError((maker.refuted(), *diagnostics))

            def again(parsed: Program, same: Schedule) -> tuple[Diagnostic, ...]:
                once_more = prove(parsed, same, request)
                return once_more.diagnostics if isinstance(once_more, Refuted) else diagnostics

            raise _refuted(program, schedule, maker, again)
        case Undecided(why):
            raise FBError(maker.undecided(why, request.time_limit_s))
        case _:
            assert_never(verdict)


@dataclass
class Prover:
    """Proves what planners make of one program under one budget, each schedule once."""

    program: Program
    budget: Budget | None
    time_limit_s: float
    verdicts: dict[Schedule, Verdict] = field(default_factory=dict)

    @property
    def request(self) -> ProofRequest:
        return ProofRequest(() if self.budget is None else (self.budget,), self.time_limit_s)

    def simulate(self, schedule: Schedule, name: str) -> Trace:
        """FB0462 where the schedule is not valid, FB0463 where it is over the budget, FB0826
        where it is over the memory of the target."""
        try:
            trace = simulate(self.program, schedule)
        except FBError as error:
            wrong = error.diagnostics

            def again(parsed: Program, same: Schedule) -> tuple[Diagnostic, ...]:
                simulate(parsed, same)
                return wrong

            raise _refuted(self.program, schedule, Maker("planner", name), again) from None
        target = self.program.target
        if target.memory_bytes is not None and trace.peak_bytes > target.memory_bytes:
            message = (
                f'the plan of {name} takes {trace.peak_bytes} bytes; the target "{target.name}" '
                f"has {target.memory_bytes}"
            )
            hint = worded(
                "give {budget} or less, or another {device}", budget=f"{target.memory_bytes}B"
            )
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
        if schedule not in self.verdicts:
            self.verdicts[schedule] = prove(self.program, schedule, self.request)
        return self.verdicts[schedule]

    def holds(self, schedule: Schedule) -> bool:
        from ..verifier import ProvenPlan

        return isinstance(self.verdict(schedule), ProvenPlan)

    def prove(self, schedule: Schedule, name: str) -> Program:
        """As `proven_program`."""
        verdict, maker = self.verdict(schedule), Maker("planner", name)
        return proven_program(self.program, schedule, verdict, self.request, maker)


def _refuted(
    program: Program,
    schedule: Schedule,
    maker: Maker,
    check: Callable[[Program, Schedule], tuple[Diagnostic, ...]],
) -> FBError:
    """The mistake, with its places in the text of the plan: what `check`, or the reader
    before it, finds there."""
    from ..ir.text.parser import parse_program
    from ..ir.text.printer import format_program

    file = f"<plan of {maker.name}>"
    text = format_program(program.with_schedule(schedule))
    keep_text(file, text)
    try:
        parsed = parse_program(text, file)
        shown = check(parsed, next(s for s in parsed.schedules if s.name == schedule.name))
    except FBError as error:
        shown = error.diagnostics
    return FBError((maker.refuted(), *shown))
