"""`remat-compile verify`: proves the plan in a file again."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .shared.options import (
    OnnxOptions,
    PlanFile,
    ScheduleOption,
    grouped,
)

if TYPE_CHECKING:
    from ..ir.diagnostics import Diagnostic
    from ..ir.program import Budget
    from ..plans.budget import BudgetText
    from ..plans.compare.graph import GraphCheck
    from ..plans.plan import Plan
    from ..plans.source import ModelOptions


@grouped
def command(
    plan: PlanFile,
    *,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound on all device bytes.")
    ] = None,
    activation_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound on activation bytes.")
    ] = None,
    host_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bound on copies on the host, in bytes.")
    ] = None,
    schedule: ScheduleOption = None,
    at: Annotated[
        Literal["range", "sample"] | None,
        typer.Option(help="For which sizes the bytes must hold (all in the ranges, if bounded)."),
    ] = None,
    largest: Annotated[
        str | None,
        typer.Option(metavar="SYMBOL", help="Find its largest value that holds the budget."),
    ] = None,
    require_certificate: Annotated[
        bool, typer.Option(help="Take the proof in the file if it matches; prove nothing.")
    ] = False,
    recheck: Annotated[
        bool, typer.Option(help="Prove in full, whatever certificate there is (the default).")
    ] = False,
    solver: Annotated[
        Literal["z3", "cvc5", "both"],
        typer.Option(help="Who must find the proof; cvc5 comes with remat-compile[cvc5]."),
    ] = "z3",
    smt_lib: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write what the solver was asked, as SMT-LIB 2.6."),
    ] = None,
    proofs: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The same, with proofs by cvc5 of values and ranges."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Compare the graph with this model, captured again."),
    ] = None,
    onnx: OnnxOptions,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS")] = 60.0,
    format: Annotated[Literal["text", "json"], typer.Option()] = "text",
) -> int:
    """Prove the plans in a file again: reads, bytes, values, copies, claims.

    Every schedule of the file, or the one of --schedule. Without a budget, the bounds that the file
    records as proven must hold. With --model, the graph must be that of the model; else the proof
    is for the graph as written. Exit code 0: proven; 1: refuted, not decided in time, or another
    graph.
    """
    from ..ir.diagnostics import Diagnostic, FBError
    from ..plans.budget import resolve_budget
    from ..plans.files.look import plan_in_text, read_program_text
    from ..plans.files.scripts import (
        check_folder,
        write_proofs,
        write_scripts,
    )
    from ..plans.request import Errors, check_time_limit
    from .shared.terminal import echo
    from .shared.verdicts import (
        Written,
        print_json,
        report,
        report_certificate,
        report_largest,
    )

    errors = Errors()
    bounds = errors.collect(lambda: _bounds(budget, activation_budget, host_budget))
    if time_limit <= 0:
        errors.add("FB0707", f"a time limit of {time_limit:g} s: it must be more than zero")
    else:
        check_time_limit(errors, time_limit)
    if largest is not None and at is not None:
        errors.add("FB0707", "--at does not go with --largest, which tries every value")
    folders = [folder for folder in (smt_lib, proofs) if folder is not None]
    if len(folders) > 1:
        errors.add("FB0707", "--proofs writes the scripts too", "give --smt-lib or --proofs")
    if folders and (largest is not None or (require_certificate and not recheck)):
        errors.add("FB0707", "scripts are written of one full proof", "leave the other option away")
    for folder in folders:
        errors.collect(lambda folder=folder: check_folder(folder))  # type: ignore[misc]
    options = onnx.read(errors)
    if model is None and options.given:
        errors.add("FB0707", f"{' and '.join(options.given)} only with --model", "add --model")
    elif model is not None:
        errors.collect(lambda: _check_model(model, options))
    errors.raise_if_any()
    assert bounds is not None

    def answer(read: Plan) -> int:
        try:
            budgets = [resolve_budget(bound, read.baseline) for bound in bounds]
            if require_certificate:
                if refused := _refused_certificate(read, budgets, at, solver):
                    raise FBError(refused)
                if not recheck and largest is None:
                    return report_certificate(
                        plan, read, format, _held_against(read, model, options)
                    )
            if largest is not None:
                most = read.largest(largest, *budgets, time_limit_s=time_limit, solver=solver)
                return report_largest(plan, read, most, format, _held_against(read, model, options))
            scope = at or ("range" if budgets else "widest")
            written = None
            if not folders:
                verdict = read.verify(*budgets, time_limit_s=time_limit, scope=scope, solver=solver)
            else:
                verdict, scripts = read.verify_with_scripts(
                    *budgets, time_limit_s=time_limit, scope=scope, solver=solver
                )
                if smt_lib is not None:
                    write_scripts(smt_lib, scripts)
                    written = Written(smt_lib, len(scripts))
                else:
                    assert proofs is not None
                    made = write_proofs(proofs, scripts, time_limit)
                    written = Written(proofs, len(scripts), len(made))
            graph = _held_against(read, model, options)
        except FBError as error:
            if format == "text":
                raise
            print_json(plan, None, "refused", {}, error.diagnostics, ())
            return 2 if error.usage else 1
        return report(plan, read, verdict, format, graph, written)

    try:
        program, text = read_program_text(plan)
        plans = [plan_in_text(program, text, plan, schedule)]
        if schedule is None:
            plans = [plan_in_text(program, text, plan, s.name) for s in program.schedules]
        if len(plans) > 1 and folders:
            message = f"{plan} holds {len(plans)} schedules, and scripts are written of one"
            hint = "name it with --schedule"
            raise FBError(Diagnostic("FB0707", message, hint=hint), usage=True)
    except FBError as error:
        if format == "text":
            raise
        print_json(plan, None, "refused", {}, error.diagnostics, ())
        return 2 if error.usage else 1
    if len(plans) == 1:
        return answer(plans[0])
    code, refused, reports = 0, list[Diagnostic](), list[dict[str, object]]()
    for read in plans:
        try:
            printed = StringIO()
            with redirect_stdout(printed if format == "json" else sys.stdout):
                code = max(code, answer(read))
        except FBError as error:
            if error.usage:
                raise
            refused += error.diagnostics
        if format == "json":
            reports.append(json.loads(printed.getvalue()))
    if reports:
        *others, last = reports
        echo(*json.dumps(last | {"others": others}, indent=2).split("\n"))
    if refused:
        raise FBError(refused)
    return code


def _check_model(model: str, options: ModelOptions) -> None:
    """FB0702 for what is no model to compare with, before any work is done."""
    from ..ir.diagnostics import Diagnostic, FBError
    from ..plans.source import check_spec, is_program

    if is_program(model):
        message = f"--model {model} is a program in text form, not a model"
        raise FBError(Diagnostic("FB0702", message), usage=True)
    check_spec(model, options)


def _held_against(plan: Plan, model: str | None, options: ModelOptions) -> GraphCheck:
    """Return words on how the graph of the plan was compared with the model. FB0720 where it is
    another."""
    from ..plans.compare.graph import GraphCheck, check_graph

    if model is None:
        return GraphCheck()
    from ..plans.files.recorded import load_as_planned

    source = load_as_planned(plan.program, model, options)
    return check_graph(plan.program, source.exported, model)


def _refused_certificate(
    plan: Plan, budgets: list[Budget], at: str | None, solver: str
) -> tuple[Diagnostic, ...]:
    """Why the proof in the file is not taken."""
    from ..ir.diagnostics import Diagnostic
    from ..verifier import accept_certificate, is_at_sample_only

    provers = {"z3": (), "cvc5": ("cvc5",), "both": ("z3", "cvc5")}[solver]
    reasons = accept_certificate(plan.program, plan.schedule, plan.proven, budgets, provers)
    sample_only = plan.proven is not None and is_at_sample_only(plan.proven)
    if not reasons and sample_only and at != "sample" and (at == "range" or budgets):
        message = f"the certificate of @{plan.schedule.name} is for the sample only"
        span = None if plan.proven is None else plan.proven.span
        return (Diagnostic("FB0834", message, span, hint="give --at sample, or verify again"),)
    return reasons


def _bounds(
    budget: str | None, activation_budget: str | None, host_budget: str | None
) -> list[BudgetText]:
    from ..plans.budget import parse_budget

    bounds = [] if budget is None else [parse_budget(budget)]
    if activation_budget is not None:
        bounds.append(parse_budget(activation_budget, "activation"))
    if host_budget is not None:
        bounds.append(parse_budget(host_budget, "host"))
    return bounds
