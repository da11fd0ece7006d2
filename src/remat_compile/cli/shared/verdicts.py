"""Output of `remat-compile verify`, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TextIO, assert_never

from .terminal import echo

if TYPE_CHECKING:
    from ...ir.diagnostics import Diagnostic
    from ...ir.program import Proven
    from ...plans.compare.graph import GraphCheck
    from ...plans.plan import Plan
    from ...verifier import (
        Assumption,
        Largest,
        Refuted,
        Undecided,
        Verdict,
    )

ReportFormat = Literal["text", "json"]


@dataclass(frozen=True)
class Written:
    """The scripts of a proof, and the proofs of the scripts, that lie in a folder now."""

    folder: str
    scripts: int
    proofs: int = 0

    def __str__(self) -> str:
        also = f" and {self.proofs} proofs" if self.proofs else ""
        return f"{self.scripts} scripts{also} in {self.folder}"


def report(
    path: str,
    plan: Plan,
    verdict: Verdict,
    format: ReportFormat,
    graph: GraphCheck,
    written: Written | None = None,
) -> int:
    """Prints a verdict; the exit code."""
    from ...ir.diagnostics import FBError
    from ...verifier import (
        ProvenPlan,
        Refuted,
        Undecided,
    )

    warned = _stale(plan)
    match verdict:
        case ProvenPlan(proven, _, beyond, assuming):
            if format == "json":
                facts = {**_facts(proven), "assuming": _keyed(_seen(assuming, graph))}
                facts |= _graph(graph) | _as_facts(written)
                print_json(path, plan, "proven", facts, (), (*warned, *beyond))
            else:
                _print_proven(plan, proven, "proven", (*warned, *beyond))
                if written is not None:
                    echo(f"  {written}")
                print_assuming(_seen(assuming, graph))
            return 0
        case Refuted(diagnostics):
            answer, reasons = "refuted", tuple(diagnostics)
        case Undecided():
            answer, reasons = "undecided", verdict.diagnostics or (_undecided(plan, verdict),)
        case _:
            assert_never(verdict)
    if format == "text":
        if written is not None:
            echo(str(written))
        raise FBError(reasons)
    print_json(path, plan, answer, _graph(graph) | _as_facts(written), reasons, warned)
    return 1


def _as_facts(written: Written | None) -> dict[str, Any]:
    if written is None:
        return {}
    return {"folder": written.folder, "scripts": written.scripts, "proofs": written.proofs}


def report_certificate(path: str, plan: Plan, format: ReportFormat, graph: GraphCheck) -> int:
    """Prints that the proof in the file is taken; the exit code."""
    assert plan.proven is not None
    if format == "json":
        facts = {**_facts(plan.proven), "assuming": _keyed(_seen(plan.assuming, graph))}
        print_json(path, plan, "certified", facts | _graph(graph), (), ())
    else:
        _print_proven(plan, plan.proven, "certificate accepted", ())
        print_assuming(_seen(plan.assuming, graph))
    return 0


def print_assuming(assuming: Sequence[Assumption], file: TextIO | None = None) -> None:
    """Prints what a proof rests on, one line each; nothing where there is no proof."""
    if assuming:
        echo("assuming:", *(f"  {a.text}" for a in assuming), file=file)


def _seen(assuming: Sequence[Assumption], graph: GraphCheck) -> tuple[Assumption, ...]:
    """Return the assumptions, with what is known of the model."""
    return tuple(replace(a, text=graph.assumption) if a.key == "graph" else a for a in assuming)


def _keyed(assuming: Sequence[Assumption]) -> list[dict[str, str]]:
    return [{"key": a.key, "text": a.text} for a in assuming]


def report_largest(
    path: str,
    plan: Plan,
    outcome: Largest | Refuted | Undecided,
    format: ReportFormat,
    graph: GraphCheck,
) -> int:
    """Prints the largest value of a symbol, and what blocks the next; the exit code."""
    from ...ir.diagnostics import FBError
    from ...plans.budget import format_bytes
    from ...verifier import Largest, Refuted
    from .app import print_warnings

    match outcome:
        case Largest(symbol, value, bound, gap, blocked, assuming):
            facts = {
                "symbol": symbol,
                "largest": value,
                "every_smaller": not gap,
                "device_bytes": bound.device_bytes,
                "activation_bytes": bound.activation_bytes,
                "host_bytes": bound.host_bytes,
                "assuming": _keyed(_seen(assuming, graph)),
            }
            if format == "json":
                print_json(path, plan, "proven", facts | _graph(graph), (), (*gap, *blocked))
                return 0
            less = "not for every smaller one" if gap else "and every smaller one"
            echo(f"{symbol} = {value} is the largest that holds the budget, {less}: proven")
            echo(f"  device <= {format_bytes(bound.device_bytes)} ({bound.device_bytes} bytes)")
            echo("  the next value is blocked:" if blocked else "  it is the end of its range")
            print_warnings((*blocked, *gap))
            print_assuming(_seen(assuming, graph))
            return 0
        case Refuted(diagnostics):
            answer, wrong = "refuted", tuple(diagnostics)
        case _:
            answer, wrong = "undecided", outcome.diagnostics or (_undecided(plan, outcome),)
    if format == "text":
        raise FBError(wrong)
    print_json(path, plan, answer, _graph(graph), wrong, ())
    return 1


def _graph(graph: GraphCheck) -> dict[str, Any]:
    return {"graph": graph.assumption}


def _undecided(plan: Plan, verdict: Undecided) -> Diagnostic:
    from ...ir.diagnostics import Diagnostic
    from ...plans.prove import MORE_TIME

    message = f"plan @{plan.schedule.name} is not decided: {verdict.why}"
    return Diagnostic("FB0714", message, hint=MORE_TIME)


def _stale(plan: Plan) -> tuple[Diagnostic, ...]:
    """FB0830 where the proof in the file is of something else, FB0831 where it was edited."""
    from ...verifier import check_certificate

    diagnostic = None if plan.proven is None else check_certificate(plan.program, plan.proven)
    return () if diagnostic is None else (diagnostic,)


def _facts(proven: Proven) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "device_bytes": proven.device_bytes,
        "activation_bytes": proven.activation_bytes,
        "host_bytes": proven.host_bytes,
        "obligations": list(proven.obligations),
        "prover": proven.prover,
    }
    if (c := proven.certificate) is not None:
        facts |= {
            "time_ns": c.time_ns,
            "least_time_ns": c.least_time_ns,
            "least_bytes": c.least_bytes,
            "version": c.version,
        }
    return facts


def _print_proven(plan: Plan, proven: Proven, what: str, warned: tuple[Diagnostic, ...]) -> None:
    from ...plans.budget import format_bytes
    from ...verifier import obligation_of
    from .app import print_warnings

    print_warnings(warned)
    by = f" by {plan.planner}" if plan.planner else ""
    echo(f"{what}: plan @{plan.schedule.name}{by}")
    bounds = [("device", proven.device_bytes), ("activations", proven.activation_bytes)]
    if proven.host_bytes:
        bounds.append(("host copies", proven.host_bytes))
    for name, count in bounds:
        echo(f"  {name:<11} <= {format_bytes(count)} ({count} bytes) at every step")
    if (c := proven.certificate) is not None:
        least = f"no schedule takes less than {c.least_time_ns / 1e9:.4g} s"
        echo(f"  {'time':<11} =  {c.time_ns / 1e9:.4g} s; {least}, or {c.least_bytes} bytes")
    for entry in proven.obligations:
        obligation = obligation_of(entry)
        echo(f"  {entry:<11} {obligation.meaning if obligation else ''}".rstrip())
    echo(f"  by {proven.prover}")


def print_json(
    path: str,
    plan: Plan | None,
    verdict: str,
    facts: dict[str, Any],
    diagnostics: tuple[Diagnostic, ...],
    warned: tuple[Diagnostic, ...],
) -> None:
    """Prints a report for programs."""
    report = {
        "file": path,
        "schedule": None if plan is None else plan.schedule.name,
        "planner": None if plan is None else plan.planner,
        "verdict": verdict,
        **facts,
        "diagnostics": [_as_json(d) for d in diagnostics],
        "warnings": [_as_json(d) for d in warned],
    }
    echo(*json.dumps(report, indent=2).split("\n"))


def _as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    from ...ir.wording import on_command_line

    d = on_command_line(diagnostic)
    place = {"line": d.span.line, "column": d.span.column} if d.span else {}
    notes = [
        {"message": n.message, **({"line": n.span.line, "column": n.span.column} if n.span else {})}
        for n in d.notes
    ]
    return {"code": d.code, "message": d.message, **place, "notes": notes, "hint": d.hint}
