"""A schedule that was read, and what is proven of it, obligation by obligation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ..ir.diagnostics import Diagnostic
from ..ir.program import Budget, Certificate, Program, Proven, Symbol
from ..ir.schedule import Schedule
from .arithmetic.walk import StepBytes
from .assumptions import assumptions
from .certificate import certificate_sha256, own_version, seal
from .explain.memory import explain_excess
from .explain.validity import explain_broken
from .explain.values import explain_claims, explain_wrong
from .inquiry import Inquiry
from .obligation import Obligation, written_obligations
from .obligations.claims import Claims, compute_claims, prove_time
from .obligations.memory import ByteLimits, Excess, prove_memory
from .obligations.memory_ranges import Everywhere, Somewhere, check_sizes, prove_ranges
from .obligations.races import Racing, prove_races
from .obligations.validity import Broken, prove_validity
from .obligations.values import WrongValues, prove_values
from .read.events import Event, read_homes, unfold
from .read.lossy import read_lossy, refused, unasked
from .read.sizes import Amounts, Sizes, measure, read_amounts
from .read.statements import Statements, read_statements
from .smt import NoModel, OutOfTime
from .verdict import Bound, ProvenPlan, Refuted, Undecided, Verdict

Scope = Literal["widest", "range", "sample"]
"""For which sizes memory must be proven: for all in the ranges where that can be and else at the
sample; for all; at the sample only."""


@dataclass(frozen=True)
class PlanProof:
    """Statements, steps and sizes as the proof sees them."""

    program: Program
    schedule: Schedule
    statements: Statements
    events: list[Event]
    budgets: tuple[Budget, ...]
    inquiry: Inquiry

    @cached_property
    def _amounts(self) -> Amounts | tuple[Diagnostic, ...]:
        return read_amounts(self.program, self.statements)

    @property
    def amounts(self) -> Amounts:
        """The values held and their lifetimes; `unreadable` says whether any cannot be read."""
        assert isinstance(self._amounts, Amounts)
        return self._amounts

    @property
    def unreadable(self) -> Refuted | None:
        """Why sizes cannot be read. They are not looked at before, as no step needs them."""
        return None if isinstance(self._amounts, Amounts) else Refuted(self._amounts)

    @cached_property
    def bounds(self) -> list[Budget]:
        """The budgets, the tightest of each kind: the others say nothing more."""
        memory, host = self.program.target.memory_bytes, self.program.target.host_bytes
        target = (
            *(() if memory is None else (Budget(memory, "device"),)),
            *(() if host is None else (Budget(host, "host"),)),
        )
        tightest: dict[str, Budget] = {}
        for budget in sorted((*self.budgets, *target), key=lambda b: b.bytes):
            tightest.setdefault(budget.kind, budget)
        return list(tightest.values())

    @property
    def limits(self) -> ByteLimits:
        """The tightest of the budgets; the target's memory and its host memory are some."""
        least = {budget.kind: budget.bytes for budget in self.bounds}
        return ByteLimits(least.get("device"), least.get("activation"), least.get("host"))

    @property
    def is_lossy(self) -> bool:
        return bool(read_lossy(self.program).codecs)

    @property
    def free(self) -> tuple[Symbol, ...]:
        """The symbols that may have more than one value."""
        return tuple(s for s in self.program.symbols if s.low < s.high)

    def steps(self) -> Refuted | Undecided | None:
        """Obligations 1, 4 and 3, which no size matters to; None: proven."""
        valid = prove_validity(
            self.statements, self.events, self.inquiry.about(Obligation.VALIDITY)
        )
        ordered = prove_races(self.statements, self.events, self.inquiry.about(Obligation.RACES))
        right = prove_values(self.statements, self.events, self.inquiry.about(Obligation.VALUES))
        diagnostics: tuple[Diagnostic, ...] = ()
        broken = valid if isinstance(valid, Broken) else None
        racing = ordered if isinstance(ordered, Racing) else None
        if broken is not None or racing is not None:
            diagnostics = explain_broken(
                self.statements, self.schedule, self.events, broken, racing
            )
        if isinstance(right, WrongValues):
            wrong = explain_wrong(self.statements, self.schedule, self.events, right)
            # A value that is wrong where a read, a token or a copy is refused follows from that.
            diagnostics = diagnostics or wrong
        if diagnostics:
            return Refuted(diagnostics)
        parts = {Obligation.VALIDITY: valid, Obligation.RACES: ordered, Obligation.VALUES: right}
        for name, answer in parts.items():
            if not isinstance(answer, NoModel):
                why = answer.why if isinstance(answer, OutOfTime) else "z3 has another model"
                return Undecided(f"{name}: {why}")
        return None

    def sizes(self, scope: Scope) -> Verdict:
        """Obligations 2 and 5 of a schedule whose steps are proven."""
        if (wrong := self.unreadable) is not None:
            return wrong
        env = {s.name: s.sample for s in self.program.symbols}
        sizes = measure(self.statements, self.amounts, env)
        if not isinstance(sizes, Sizes):
            return Refuted(sizes)
        claims = self.claims(sizes)
        del sizes  # of a long plan hundreds of MB, and the bytes are read anew
        if isinstance(claims, Undecided):
            return claims
        verdict = self.memory(env, claims, scope)
        refuted = self.refuted_claims(claims)
        match verdict:
            case Refuted(diagnostics):
                return Refuted((*diagnostics, *refuted))
            case _:
                return Refuted(refuted) if refuted else verdict

    def claims(self, sizes: Sizes) -> Claims | Undecided:
        """The facts about time and lower bounds, the time by z3."""
        target = self.program.target
        claims = compute_claims(self.statements, self.events, sizes, target)
        asked = self.inquiry.about(Obligation.CLAIMS)
        answer = prove_time(self.events, sizes, target, claims.time_ns, asked)
        if isinstance(answer, NoModel):
            return claims
        why = answer.why if isinstance(answer, OutOfTime) else "z3 and the plain sum do not agree"
        return Undecided(f"claims: {why}")

    def refuted_claims(self, true: Claims) -> tuple[Diagnostic, ...]:
        """The file's claims about these steps that are false."""
        diagnostics: list[Diagnostic] = []
        for proven in self.program.proven:
            c = proven.certificate
            if proven.schedule != self.schedule.name or c is None:
                continue
            if proven.graph_sha256 == certificate_sha256(self.program, self.schedule):
                claimed = Claims(c.time_ns, c.least_time_ns, c.least_bytes)
                diagnostics += explain_claims(self.schedule, proven, claimed, true)
        return tuple(diagnostics)

    def memory(self, env: Mapping[str, int], claims: Claims, scope: Scope) -> Verdict:
        """Obligation 2 at the sample, and over the ranges of the symbols."""
        at_sample = self.at_sample(env)
        if not isinstance(at_sample, StepBytes):
            return at_sample
        bounds = [_bound(env, at_sample, everywhere=not self.free)]
        beyond: tuple[Diagnostic, ...] = ()
        if self.free and scope != "sample":
            match outcome := self.over_ranges():
                case Everywhere(bound, where):
                    bounds.append(_bound(where, bound, everywhere=True))
                case Refuted():
                    return outcome
                case Somewhere():
                    beyond = self.explain(outcome.excess, outcome.env)
                    if scope == "range":
                        return Refuted(beyond)
                case OutOfTime(why):
                    if scope == "range":
                        return Undecided(f"memory over the ranges of the symbols: {why}")
        proven = self.sign(bounds[-1], claims)
        ranges = () if proven.certificate is None else proven.certificate.ranges
        assuming = assumptions(self.program, self.schedule, (name for name, _, _ in ranges))
        return ProvenPlan(proven, tuple(bounds), beyond, assuming)

    def at_sample(self, env: Mapping[str, int]) -> StepBytes | Refuted | Undecided:
        asked = self.inquiry.about(Obligation.MEMORY)
        outcome = prove_memory(self.statements, self.events, self.amounts, env, self.limits, asked)
        match outcome:
            case OutOfTime(why):
                return Undecided(f"memory: {why}")
            case Excess():
                return Refuted(self.explain(outcome, env))
            case StepBytes():
                return outcome

    def over_ranges(self) -> Everywhere | Somewhere | Refuted | OutOfTime:
        box = {s.name: (s.low, s.high) for s in self.program.symbols}
        wrong = check_sizes(
            self.statements, self.amounts, box, self.inquiry.about(Obligation.SIZES)
        )
        if isinstance(wrong, OutOfTime):
            return wrong
        if wrong:
            return Refuted(wrong)
        asked = self.inquiry.about(Obligation.MEMORY_RANGES)
        return prove_ranges(self.statements, self.events, self.amounts, box, self.limits, asked)

    def explain(self, excess: Excess, env: Mapping[str, int]) -> tuple[Diagnostic, ...]:
        """The steps above a budget at `env`."""
        shown = ", ".join(f"{name} = {number}" for name, number in env.items())
        at = f" at {shown}" if shown else ""
        sizes = self.amounts.at(env)
        return explain_excess(
            self.statements,
            self.schedule,
            self.events,
            sizes,
            excess,
            self.bounds,
            at,
            self.program.target,
        )

    def sign(self, bound: Bound, claims: Claims) -> Proven:
        """The proof, with its certificate."""
        ranges = tuple((s.name, s.low, s.high) for s in self.free) if bound.everywhere else ()
        certificate = Certificate(
            claims.time_ns,
            claims.least_time_ns,
            claims.least_bytes,
            tuple(self.bounds),
            ranges,
            own_version(),
            "",
            tuple(
                a.key
                for a in assumptions(self.program, self.schedule, (name for name, _, _ in ranges))
            ),
        )
        proven = Proven(
            self.schedule.name,
            written_obligations(ranges, any_free=bool(self.free), is_lossy=self.is_lossy),
            bound.device_bytes,
            bound.activation_bytes,
            self.inquiry.prover,
            certificate_sha256(self.program, self.schedule),
            bound.host_bytes,
            certificate,
        )
        sealed = replace(certificate, seal_sha256=seal(proven, certificate))
        return replace(proven, certificate=sealed)


def read_proof(
    program: Program, schedule: Schedule, budgets: Sequence[Budget], inquiry: Inquiry
) -> PlanProof | Refuted:
    """The plan as the proof sees it; refuted where its steps cannot be read from scratch, and where
    lossy codecs change what they must not (FB0879), or anything unasked (FB0878)."""
    statements = read_statements(program)
    if isinstance(statements, Statements):
        lossy = read_lossy(program)
        wrong = tuple(refused(program, lossy))
        if lossy.codecs and not inquiry.allow_lossy:
            wrong = (unasked(lossy), *wrong)
        if wrong:
            return Refuted(wrong)
    if isinstance(statements, Statements):
        statements = read_homes(statements, schedule)
    if not isinstance(statements, Statements):
        return Refuted(statements)
    events = unfold(statements, schedule)
    if isinstance(events, tuple):
        return Refuted(events)
    return PlanProof(program, schedule, statements, events, tuple(budgets), inquiry)


def _bound(env: Mapping[str, int], bytes_: StepBytes, *, everywhere: bool) -> Bound:
    return Bound(env, bytes_.device, bytes_.activation, everywhere, bytes_.host)
