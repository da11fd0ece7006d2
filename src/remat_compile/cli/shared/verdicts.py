"""Answers of `remat-compile verify`, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, assert_never

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.units import format_bytes
from ...ir.wording import on_command_line
from .terminal import echo, print_warnings

if TYPE_CHECKING:
    from ...ir.program import Proven
    from ...plans.compare.graph import GraphCheck
    from ...plans.plan import Plan
    from ...verifier import Assumption, Largest, Refuted, Undecided, Verdict


@dataclass(frozen=True)
class Written:
    """The scripts of a proof, and the proofs of the scripts, that lie in a folder now."""

    folder: str
    scripts: int
    proofs: int = 0

    def __str__(self) -> str:
        also = f" and {self.proofs} proofs" if self.proofs else ""
        return f"{self.scripts} scripts{also} in {self.folder}"


@dataclass(frozen=True)
class Answer:
    """The verdict on one plan: `lines` and `warned` for people, `facts` for programs, and the
    reasons of a verdict that is not the one asked for."""

    verdict: str
    lines: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    reasons: tuple[Diagnostic, ...] = ()
    warned: tuple[Diagnostic, ...] = ()
    usage: bool = False

    @property
    def code(self) -> int:
        return 2 if self.usage else 1 if self.reasons else 0

    def print(self) -> None:
        """For people, but for the reasons."""
        if not self.reasons:
            print_warnings(self.warned)
        if self.lines:
            echo(*self.lines)

    def report(self, path: str, plan: Plan | None) -> dict[str, Any]:
        """For programs."""
        return {
            "file": path,
            "schedule": None if plan is None else plan.schedule.name,
            "planner": None if plan is None else plan.planner,
            "verdict": self.verdict,
            **self.facts,
            "diagnostics": list(map(_as_json, self.reasons)),
            "warnings": list(map(_as_json, self.warned)),
        }


def refused(error: FBError) -> Answer:
    return Answer("refused", reasons=error.diagnostics, usage=error.usage)


def of_verdict(
    plan: Plan, verdict: Verdict, graph: GraphCheck, written: Written | None = None
) -> Answer:
    from ...verifier import ProvenPlan, Refuted, Undecided, check_certificate

    # FB0830 where the proof in the file is of something else, FB0831 where it was edited.
    stale = None if plan.proven is None else check_certificate(plan.program, plan.proven)
    warned = () if stale is None else (stale,)
    facts = {"graph": graph.assumption} | ({} if written is None else vars(written))
    match verdict:
        case ProvenPlan(proven, _, beyond, assuming):
            seen = _seen(assuming, graph)
            lines = _proven_lines(plan, proven, "proven")
            lines += [] if written is None else [f"  {written}"]
            facts = {**_facts(proven), "assuming": _keyed(seen), **facts}
            return Answer(
                "proven", (*lines, *assuming_lines(seen)), facts, warned=(*warned, *beyond)
            )
        case Refuted(diagnostics):
            answer, reasons = "refuted", tuple(diagnostics)
        case Undecided():
            answer, reasons = "undecided", verdict.diagnostics or (_undecided(plan, verdict),)
        case _:
            assert_never(verdict)
    return Answer(answer, () if written is None else (str(written),), facts, reasons, warned)


def of_certificate(plan: Plan, graph: GraphCheck) -> Answer:
    """The proof in the file, which is taken."""
    assert plan.proven is not None
    seen = _seen(plan.assuming, graph)
    lines = _proven_lines(plan, plan.proven, "certificate accepted")
    facts = {**_facts(plan.proven), "assuming": _keyed(seen), "graph": graph.assumption}
    return Answer("certified", (*lines, *assuming_lines(seen)), facts)


def of_largest(plan: Plan, outcome: Largest | Refuted | Undecided, graph: GraphCheck) -> Answer:
    """The largest value of a symbol, and what blocks the next."""
    from ...verifier import Largest, Refuted

    facts: dict[str, Any] = {"graph": graph.assumption}
    match outcome:
        case Largest(symbol, value, bound, gap, blocked, assuming):
            seen = _seen(assuming, graph)
            facts |= {
                "symbol": symbol,
                "largest": value,
                "every_smaller": not gap,
                "device_bytes": bound.device_bytes,
                "activation_bytes": bound.activation_bytes,
                "host_bytes": bound.host_bytes,
                "assuming": _keyed(seen),
            }
            less = "not for every smaller one" if gap else "and every smaller one"
            lines = (
                f"{symbol} = {value} is the largest that holds the budget, {less}: proven",
                f"  device <= {format_bytes(bound.device_bytes)} ({bound.device_bytes} bytes)",
                "  the next value is blocked:" if blocked else "  it is the end of its range",
                *assuming_lines(seen),
            )
            return Answer("proven", lines, facts, warned=(*gap, *blocked))
        case Refuted(diagnostics):
            return Answer("refuted", (), facts, tuple(diagnostics))
        case _:
            reasons = outcome.diagnostics or (_undecided(plan, outcome),)
            return Answer("undecided", (), facts, reasons)


def assuming_lines(assuming: Sequence[Assumption]) -> list[str]:
    """The assumptions of a proof, one line each; nothing where there is no proof."""
    return ["assuming:", *(f"  {a.text}" for a in assuming)] if assuming else []


def _seen(assuming: Sequence[Assumption], graph: GraphCheck) -> tuple[Assumption, ...]:
    """Return the assumptions, with what is known of the model."""
    return tuple(replace(a, text=graph.assumption) if a.key == "graph" else a for a in assuming)


def _keyed(assuming: Sequence[Assumption]) -> list[dict[str, str]]:
    return [{"key": a.key, "text": a.text} for a in assuming]


def _undecided(plan: Plan, verdict: Undecided) -> Diagnostic:
    from ...plans.prove import MORE_TIME

    message = f"plan @{plan.schedule.name} is not decided: {verdict.why}"
    return Diagnostic("FB0714", message, hint=MORE_TIME)


def _facts(proven: Proven) -> dict[str, Any]:
    names = ("device_bytes", "activation_bytes", "host_bytes", "obligations", "prover")
    facts = {name: getattr(proven, name) for name in names}
    if (c := proven.certificate) is not None:
        known = ("time_ns", "least_time_ns", "least_bytes", "version")
        facts |= {name: getattr(c, name) for name in known}
    return facts


def _proven_lines(plan: Plan, proven: Proven, what: str) -> list[str]:
    from ...verifier import obligation_of

    by = f" by {plan.planner}" if plan.planner else ""
    lines = [f"{what}: plan @{plan.schedule.name}{by}"]
    bounds = [("device", proven.device_bytes), ("activations", proven.activation_bytes)]
    if proven.host_bytes:
        bounds.append(("host copies", proven.host_bytes))
    for name, count in bounds:
        lines.append(f"  {name:<11} <= {format_bytes(count)} ({count} bytes) at every step")
    if (c := proven.certificate) is not None:
        least = f"no schedule takes less than {c.least_time_ns / 1e9:.4g} s"
        lines.append(
            f"  {'time':<11} =  {c.time_ns / 1e9:.4g} s; {least}, or {c.least_bytes} bytes"
        )
    for entry in proven.obligations:
        obligation = obligation_of(entry)
        lines.append(f"  {entry:<11} {obligation.meaning if obligation else ''}".rstrip())
    return [*lines, f"  by {proven.prover}"]


def _as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    d = on_command_line(diagnostic)
    place = {"line": d.span.line, "column": d.span.column} if d.span else {}
    notes = [
        {"message": n.message, **({"line": n.span.line, "column": n.span.column} if n.span else {})}
        for n in d.notes
    ]
    return {"code": d.code, "message": d.message, **place, "notes": notes, "hint": d.hint}
