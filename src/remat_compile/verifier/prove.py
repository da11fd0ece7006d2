"""The verifier's front door: read, prove every obligation, sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..ir.diagnostics import Diagnostic
from ..ir.program import Budget, Program, Proven, Symbol
from ..ir.schedule import Schedule
from .certificate import certificate_sha256
from .events import Event, unfold
from .explain import explain_broken
from .explain_memory import explain_excess
from .memory import Bytes, Excess, Limits, prove_memory
from .races import Racing, prove_races
from .sizes import Amounts, measure, read_amounts
from .smt import Deadline, OutOfTime, prover
from .statements import Statements, read_statements
from .symbolic import Everywhere, Somewhere, check_sizes, prove_ranges
from .validity import Broken, prove_validity
from .verdict import Bound, ProvenPlan, Refuted, Undecided, Verdict

__all__ = ["Scope", "verify"]

Scope = Literal["widest", "range", "sample"]
"""For which sizes memory must be proven: for all in the ranges where that can be and else at the
sample; for all; at the sample only."""


def verify(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget] = (),
    *,
    time_limit_s: float = 60.0,
    scope: Scope = "widest",
) -> Verdict:
    """Proves that `schedule` is valid and within `budgets` at every step, or refutes it.

    Memory is proven at the sample and for all values of the symbols in their ranges;
    `Proven.obligations` says which. A schedule that only fails beyond the sample is
    proven at the sample, with what fails in `ProvenPlan.beyond`; with `scope="range"` it is
    refuted. Without budgets, the bounds are the plan's own peaks. Never raises on a bad
    program.
    """
    deadline = Deadline(time_limit_s)
    statements = read_statements(program)
    if isinstance(statements, tuple):
        return Refuted(statements)
    events = unfold(statements, schedule)
    if isinstance(events, tuple):
        return Refuted(events)
    amounts = read_amounts(program, statements)
    if isinstance(amounts, tuple):
        return Refuted(amounts)
    task = _Task(program, schedule, statements, events, amounts, tuple(budgets), deadline)
    valid = prove_validity(statements, events, deadline)
    if isinstance(valid, OutOfTime):
        return Undecided(f"validity: {valid.why}")
    ordered = prove_races(statements, events, deadline)
    if isinstance(ordered, OutOfTime) and not isinstance(valid, Broken):
        return Undecided(f"races: {ordered.why}")
    broken = valid if isinstance(valid, Broken) else None
    racing = ordered if isinstance(ordered, Racing) else None
    if broken is not None or racing is not None:
        return Refuted(explain_broken(statements, schedule, events, broken, racing))
    return task.memory(scope)


@dataclass(frozen=True)
class _Task:
    """A schedule whose statements and steps have been read."""

    program: Program
    schedule: Schedule
    statements: Statements
    events: list[Event]
    amounts: Amounts
    budgets: tuple[Budget, ...]
    deadline: Deadline

    @property
    def limits(self) -> Limits:
        return Limits(_least(self.budgets, "device"), _least(self.budgets, "activation"))

    @property
    def free(self) -> tuple[Symbol, ...]:
        """The symbols that may have more than one value."""
        return tuple(s for s in self.program.symbols if s.low < s.high)

    def memory(self, scope: Scope) -> Verdict:
        env = {s.name: s.sample for s in self.program.symbols}
        at_sample = self.at_sample(env)
        if not isinstance(at_sample, Bytes):
            return at_sample
        free = self.free
        everywhere = not free
        bounds = [Bound(env, at_sample.device, at_sample.activation, everywhere)]
        if everywhere or scope == "sample":
            return self.proven(bounds, ())
        match found := self.over_ranges():
            case Everywhere(bound, where):
                bounds.append(Bound(where, bound.device, bound.activation, True))
                return self.proven(bounds, ())
            case Refuted():
                return found
            case Somewhere():
                beyond = self.explain(found.excess, found.env)
                return Refuted(beyond) if scope == "range" else self.proven(bounds, beyond)
            case OutOfTime(why):
                late = Undecided(f"memory over the ranges of the symbols: {why}")
                return late if scope == "range" else self.proven(bounds, ())

    def at_sample(self, env: Mapping[str, int]) -> Bytes | Refuted | Undecided:
        sizes = measure(self.statements, self.amounts, env)
        if isinstance(sizes, tuple):
            return Refuted(sizes)
        found = prove_memory(
            self.statements, self.events, self.amounts, env, self.limits, self.deadline
        )
        match found:
            case OutOfTime(why):
                return Undecided(f"memory: {why}")
            case Excess():
                return Refuted(self.explain(found, env))
            case Bytes():
                return found

    def over_ranges(self) -> Everywhere | Somewhere | Refuted | OutOfTime:
        box = {s.name: (s.low, s.high) for s in self.program.symbols}
        wrong = check_sizes(self.statements, self.amounts, box, self.deadline)
        if isinstance(wrong, OutOfTime):
            return wrong
        if wrong:
            return Refuted(wrong)
        return prove_ranges(
            self.statements, self.events, self.amounts, box, self.limits, self.deadline
        )

    def explain(self, excess: Excess, env: Mapping[str, int]) -> tuple[Diagnostic, ...]:
        shown = ", ".join(f"{name} = {number}" for name, number in env.items())
        at = f" at {shown}" if shown else ""
        return explain_excess(
            self.statements,
            self.schedule,
            self.events,
            self.amounts.at(env),
            excess,
            _distinct(self.budgets),
            at,
        )

    def proven(self, bounds: list[Bound], beyond: tuple[Diagnostic, ...]) -> ProvenPlan:
        signed = _sign(self.program, self.schedule, bounds[-1], self.free)
        return ProvenPlan(signed, tuple(bounds), beyond)


def _least(budgets: Sequence[Budget], kind: str) -> int | None:
    return min((b.bytes for b in budgets if b.kind == kind), default=None)


def _distinct(budgets: Sequence[Budget]) -> list[Budget]:
    """The tightest budget of each kind: the others say nothing more."""
    found: dict[str, Budget] = {}
    for budget in sorted(budgets, key=lambda b: b.bytes):
        found.setdefault(budget.kind, budget)
    return list(found.values())


def _sign(program: Program, schedule: Schedule, bound: Bound, free: Sequence[Symbol]) -> Proven:
    memory = "memory"
    if free and bound.everywhere:
        ranges = ", ".join(f"{s.name} in [{s.low}, {s.high}]" for s in free)
        memory = f"memory for {ranges}"
    elif free:
        memory = "memory at sample"
    return Proven(
        schedule.name,
        ("validity", memory),
        bound.device_bytes,
        bound.activation_bytes,
        prover(),
        certificate_sha256(program, schedule),
    )
