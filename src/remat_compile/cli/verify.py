"""`remat-compile verify`: proves the plan in a file again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..ir.diagnostics import Diagnostic, FBError
from ..plans.options import Errors, PlanKeywords, Solver
from .shared.options import OnnxOptions, PlanFile, Planning, ScheduleOption
from .shared.terminal import Format, print_json

if TYPE_CHECKING:
    from ..ir.program import Budget
    from ..plans.budget import BudgetText
    from ..plans.compare.graph import GraphCheck
    from ..plans.plan import Plan
    from ..plans.source import ModelOptions
    from .shared.verdicts import Answer


def command(
    plan: PlanFile,
    *,
    asked: Annotated[
        PlanKeywords,
        Planning(
            budget="Bound on all device bytes.",
            activation_budget="Bound on activation bytes.",
            host_budget="Bound on copies on the host, in bytes.",
            time_limit_s="",
        ),
    ],
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
        Solver,
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
    format: Annotated[Format, typer.Option()] = "text",
) -> int:
    """Prove the plans in a file again: reads, bytes, values, copies, claims.

    Every schedule of the file, or the one of --schedule. Without a budget, the bounds that the file
    records as proven must hold. With --model, the graph must be that of the model; else the proof
    is for the graph as written. Exit code 0: proven; 1: refuted, not decided in time, or another
    graph.
    """
    from ..plans.budget import resolve_budget
    from ..plans.files.look import plan_in_text, read_program_text
    from ..plans.files.scripts import check_folder, write_proofs, write_scripts
    from .shared.verdicts import Written, of_certificate, of_largest, of_verdict, refused

    errors = Errors()
    bounds = _bounds(errors, asked)
    time_limit = asked["time_limit_s"]
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

    def answer(read: Plan) -> Answer:
        budgets = [resolve_budget(bound, read.baseline) for bound in bounds]
        if require_certificate:
            if reasons := _refused_certificate(read, budgets, at, solver):
                raise FBError(reasons)
            if not recheck and largest is None:
                return of_certificate(read, _held_against(read, model, options))
        if largest is not None:
            most = read.largest(largest, *budgets, time_limit_s=time_limit, solver=solver)
            return of_largest(read, most, _held_against(read, model, options))
        scope = at or ("range" if budgets else "widest")
        if not folders:
            verdict = read.verify(*budgets, time_limit_s=time_limit, scope=scope, solver=solver)
            return of_verdict(read, verdict, _held_against(read, model, options))
        verdict, scripts = read.verify_with_scripts(
            *budgets, time_limit_s=time_limit, scope=scope, solver=solver
        )
        if proofs is not None:
            made = write_proofs(proofs, scripts, time_limit)
            written = Written(proofs, len(scripts), len(made))
        else:
            write_scripts(folders[0], scripts)
            written = Written(folders[0], len(scripts))
        return of_verdict(read, verdict, _held_against(read, model, options), written)

    def plans() -> list[Plan]:
        program, text = read_program_text(plan)
        if schedule is not None or not program.schedules:
            return [plan_in_text(program, text, plan, schedule)]
        if len(program.schedules) > 1 and folders:
            count = len(program.schedules)
            message = f"{plan} holds {count} schedules, and scripts are written of one"
            hint = "name it with --schedule"
            raise FBError(Diagnostic("FB0707", message, hint=hint), usage=True)
        return [plan_in_text(program, text, plan, s.name) for s in program.schedules]

    answers: list[Answer] = []
    reports = []
    try:
        for read in plans():
            try:
                answers.append(answer(read))
                reports.append(answers[-1].report(plan, read))
            except FBError as error:
                answers.append(refused(error))
                reports.append(answers[-1].report(plan, None))
            if format == "text":
                answers[-1].print()
            if answers[-1].usage:
                break
    except FBError as error:
        answers.append(refused(error))
        reports.append(answers[-1].report(plan, None))
    if format == "json":
        *others, last = reports
        print_json(last | {"others": others} if others else last)
    elif reasons := [d for answer in answers for d in answer.reasons]:
        raise FBError(reasons, usage=answers[-1].usage)
    return max(answer.code for answer in answers)


def _check_model(model: str, options: ModelOptions) -> None:
    """FB0702 for what is no model to compare with, before any work is done."""
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
    return check_graph(plan.program, source.exported, model, source.optimizer)


def _refused_certificate(
    plan: Plan, budgets: list[Budget], at: str | None, solver: str
) -> tuple[Diagnostic, ...]:
    """Why the proof in the file is not taken."""
    from ..verifier import accept_certificate, is_at_sample_only

    provers = {"z3": (), "cvc5": ("cvc5",), "both": ("z3", "cvc5")}[solver]
    reasons = accept_certificate(plan.program, plan.schedule, plan.proven, budgets, provers)
    sample_only = plan.proven is not None and is_at_sample_only(plan.proven)
    if not reasons and sample_only and at != "sample" and (at == "range" or budgets):
        message = f"the certificate of @{plan.schedule.name} is for the sample only"
        span = None if plan.proven is None else plan.proven.span
        return (Diagnostic("FB0834", message, span, hint="give --at sample, or verify again"),)
    return reasons


def _bounds(errors: Errors, asked: PlanKeywords) -> list[BudgetText]:
    """The bounds to be held; adds to `errors`, for the time limit too."""
    from ..plans.budget import parse_budget
    from ..plans.request import check_time_limit

    if (limit := asked["time_limit_s"]) <= 0:
        errors.add("FB0707", f"a time limit of {limit:g} s: it must be more than zero")
    else:
        check_time_limit(errors, limit)

    def read() -> list[BudgetText]:
        texts = (
            (asked["budget"], "device"),
            (asked["activation_budget"], "activation"),
            (asked["host_budget"], "host"),
        )
        return [parse_budget(text, kind) for text, kind in texts if text is not None]  # type: ignore[arg-type]

    return errors.collect(read) or []
