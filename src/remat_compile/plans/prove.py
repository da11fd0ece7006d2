"""The one way to a proof: nothing is saved, emitted or run that has not come through here.

A plan comes from a planner, from another tool or from a file. What is asked of the verifier
is the same; what is said where the proof fails depends on its `Maker`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

from ..ir.collector import collector_paused
from ..ir.diagnostics import Diagnostic, FBError
from ..ir.program import Budget, Program
from ..ir.semantics.simulate import simulate
from ..ir.wording import worded
from .files.files import keep_text

if TYPE_CHECKING:
    from ..ir.schedule import Schedule
    from ..ir.semantics.simulate import Trace
    from ..verifier import Choice, Scope, Script, Verdict

MORE_TIME = worded("give more time with {time_limit_s}")


@dataclass(frozen=True)
class ProofRequest:
    """The request of a proof of a schedule, in the words of the verifier. Without `budgets`, the
    bounds are its own peaks; `text` is the file that it was read from, which the independent
    checker reads itself; `allow_lossy` allows approximate gradients."""

    budgets: tuple[Budget, ...] = ()
    time_limit_s: float = 60.0
    scope: Scope = "widest"
    solver: Choice = "z3"
    text: str | None = None
    allow_lossy: bool = False


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made a plan, for what is said where it is not proven: `refuted` stands before what
    is wrong, `undecided` before why. What was made here, and lies in no file, is shown under
    the name `text`."""

    refuted: Diagnostic
    undecided: Diagnostic
    text: str | None = None


def by_planner(name: str, time_limit_s: float) -> Maker:
    message = f"planner {name} returned an invalid plan"
    late = f"the plan of {name} could not be proven in {time_limit_s:g} s"
    return Maker(
        Diagnostic("FB0462", message, hint="use another planner"),
        Diagnostic("FB0467", late, hint=MORE_TIME),
        f"<plan of {name}>",
    )


def by_tool(name: str) -> Maker:
    hint = "what is wrong is shown on the steps that the tool runs"
    return Maker(
        Diagnostic("FB0485", f"the plan of {name} is refuted", hint=hint),
        Diagnostic("FB0485", f"the plan of {name} is not decided", hint=MORE_TIME),
        f"<plan of {name}>",
    )


def in_file(schedule: Schedule) -> Maker:
    return Maker(
        Diagnostic("FB0714", f"plan @{schedule.name} is not valid"),
        Diagnostic("FB0714", f"plan @{schedule.name} could not be proven"),
    )


def prove(program: Program, schedule: Schedule, request: ProofRequest) -> Verdict:
    """Return the verdict of the verifier on one schedule."""
    from ..verifier import verify

    with collector_paused():
        return verify(program, schedule, **vars(request))


def prove_with_scripts(
    program: Program, schedule: Schedule, request: ProofRequest
) -> tuple[Verdict, tuple[Script, ...]]:
    """`prove`, with the SMT-LIB 2.6 scripts that were asked on the way."""
    from ..verifier import verify_with_scripts

    return verify_with_scripts(program, schedule, **vars(request))


def proven_program(
    program: Program, schedule: Schedule, verdict: Verdict, request: ProofRequest, maker: Maker
) -> Program:
    """The program with the schedule in it and what was proven of it recorded.

    As `maker` says, FB0462, FB0485 or FB0714 where it is refuted, and FB0467, FB0485 or FB0714
    where that was not decided; FB0817 where solver and checker do not agree.
    """
    from ..verifier import Disagreement, ProvenPlan, Refuted, Undecided

    match verdict:
        case ProvenPlan(proven):
            others = tuple(p for p in program.proven if p.schedule != schedule.name)
            if schedule not in program.schedules:
                program = program.with_schedule(schedule)
            return replace(program, proven=(*others, proven))
        case Disagreement(diagnostics):
            raise FBError(diagnostics)
        case Refuted(diagnostics):
            raise _refuted(program, schedule, maker, diagnostics, request)
        case Undecided(why):
            message = f"{maker.undecided.message}: {why}"
            raise FBError(replace(maker.undecided, message=message))
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
        budgets = () if self.budget is None else (self.budget,)
        # Nobody plans a program with lossy codecs who was not asked to.
        return ProofRequest(budgets, self.time_limit_s, allow_lossy=True)

    def simulate(self, schedule: Schedule, name: str) -> Trace:
        """FB0462 where the schedule is not valid, FB0463 where it is over the budget, FB0826
        where it is over the memory of the target."""
        try:
            trace = simulate(self.program, schedule)
        except FBError as error:
            wrong, maker = error.diagnostics, by_planner(name, self.time_limit_s)
            raise _refuted(self.program, schedule, maker, wrong) from None
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
        verdict, maker = self.verdict(schedule), by_planner(name, self.time_limit_s)
        return proven_program(self.program, schedule, verdict, self.request, maker)


def _refuted(
    program: Program,
    schedule: Schedule,
    maker: Maker,
    diagnostics: tuple[Diagnostic, ...],
    request: ProofRequest | None = None,
) -> FBError:
    """Raise the faults that were found; with its places, where the plan is shown on a text that is
    written for it: as the reader, or the verifier (the simulator where nothing was asked of it),
    finds it there."""
    from ..ir.text.parser import parse_program
    from ..ir.text.printer import format_program
    from ..verifier import Refuted

    if maker.text is not None:
        text = format_program(program.with_schedule(schedule))
        keep_text(maker.text, text)
        try:
            parsed = parse_program(text, maker.text)
            same = next(s for s in parsed.schedules if s.name == schedule.name)
            if request is None:
                simulate(parsed, same)
            elif isinstance(verdict := prove(parsed, same, request), Refuted):
                diagnostics = verdict.diagnostics
        except FBError as error:
            diagnostics = error.diagnostics
    return FBError((maker.refuted, *diagnostics))
