"""`remat-compile verify`: proves the plan in a file again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from .._plan import Plan
    from ..ir.diagnostics import Diagnostic
    from ..ir.program import Budget
    from ..verifier import Verdict

__all__ = ["command"]


def command(
    plan: Annotated[str, typer.Argument(metavar="PLAN.fbir", help="- for standard input.")],
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound on all device bytes.")
    ] = None,
    activation_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound on activation bytes.")
    ] = None,
    host_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound on copies on the host, in bytes.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which schedule of the file (the last).")
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS")] = 60.0,
    format: Annotated[Literal["text", "json"], typer.Option()] = "text",
) -> int:
    """Prove the plan in a file again: every read is alive, the bytes hold.

    Without a budget, the bounds that the file records as proven must hold. Exit code 0:
    proven; 1: refuted or not decided in time.
    """
    from .._options import Errors
    from ..ir.diagnostics import FBError

    errors = Errors()
    found = errors.collect(lambda: _bounds(budget, activation_budget, host_budget))
    if time_limit <= 0:
        errors.add("FB0707", f"a time limit of {time_limit:g} s: it must be more than zero")
    errors.raise_if_any()
    assert found is not None
    try:
        read = _read(plan, schedule)
        verdict = read.verify(*_resolve(found, read), time_limit_s=time_limit)
    except FBError as error:
        if format == "text":
            raise
        _print_json(plan, None, "refused", {}, error.diagnostics, ())
        return 2 if error.usage else 1
    return _report(plan, read, verdict, format)


def _bounds(
    budget: str | None, activation_budget: str | None, host_budget: str | None
) -> list[Any]:
    from .._budget import parse_budget

    found = [] if budget is None else [parse_budget(budget)]
    if activation_budget is not None:
        found.append(parse_budget(activation_budget, "activation"))
    if host_budget is not None:
        found.append(parse_budget(host_budget, "host"))
    return found


def _resolve(found: list[Any], plan: Plan) -> list[Budget]:
    from .._budget import resolve_budget

    return [resolve_budget(budget, plan.baseline) for budget in found]


def _read(path: str, schedule: str | None) -> Plan:
    from ..api import load

    return load(path, schedule)


def _report(path: str, plan: Plan, verdict: Verdict, format: str) -> int:
    from ..ir.diagnostics import Diagnostic, FBError
    from ..verifier import ProvenPlan, Refuted

    warned = _stale(plan)
    match verdict:
        case ProvenPlan(proven):
            facts = {
                "device_bytes": proven.device_bytes,
                "activation_bytes": proven.activation_bytes,
                "host_bytes": proven.host_bytes,
                "obligations": list(proven.obligations),
                "prover": proven.prover,
            }
            if format == "json":
                _print_json(path, plan, "proven", facts, (), warned)
            else:
                _print_proven(plan, facts, warned)
            return 0
        case Refuted(diagnostics):
            answer, found = "refuted", tuple(diagnostics)
        case _:
            message = f"plan @{plan.schedule.name} is not decided: {verdict.why}"
            answer = "undecided"
            found = (Diagnostic("FB0714", message, hint="give more time with --time-limit"),)
    if format == "text":
        raise FBError(found)
    _print_json(path, plan, answer, {}, found, warned)
    return 1


def _stale(plan: Plan) -> tuple[Diagnostic, ...]:
    """FB0830 where the proof in the file is of another graph or of other steps."""
    from ..verifier import check_certificate

    found = None if plan.proven is None else check_certificate(plan.program, plan.proven)
    return () if found is None else (found,)


def _print_proven(plan: Plan, facts: dict[str, Any], warned: tuple[Diagnostic, ...]) -> None:
    from .._budget import format_bytes
    from ._app import print_warnings

    print_warnings(warned)
    print(f"proven: plan @{plan.schedule.name} by {plan.planner}")
    bounds = [("device", "device_bytes"), ("activations", "activation_bytes")]
    if facts["host_bytes"]:
        bounds.append(("host copies", "host_bytes"))
    for name, key in bounds:
        count = facts[key]
        print(f"  {name:<11} <= {format_bytes(count)} ({count} bytes) at every step")
    print(f"  {', '.join(facts['obligations'])}; by {facts['prover']}")


def _print_json(
    path: str,
    plan: Plan | None,
    verdict: str,
    facts: dict[str, Any],
    found: tuple[Diagnostic, ...],
    warned: tuple[Diagnostic, ...],
) -> None:
    import json

    report = {
        "file": path,
        "schedule": None if plan is None else plan.schedule.name,
        "planner": None if plan is None else plan.planner,
        "verdict": verdict,
        **facts,
        "diagnostics": [_as_json(d) for d in found],
        "warnings": [_as_json(d) for d in warned],
    }
    print(json.dumps(report, indent=2))


def _as_json(d: Diagnostic) -> dict[str, Any]:
    place = {"line": d.span.line, "column": d.span.column} if d.span else {}
    notes = [
        {"message": n.message, **({"line": n.span.line, "column": n.span.column} if n.span else {})}
        for n in d.notes
    ]
    return {"code": d.code, "message": d.message, **place, "notes": notes, "hint": d.hint}
