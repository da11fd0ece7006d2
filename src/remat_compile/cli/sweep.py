"""`remat-compile sweep`: the time that planners need under a range of budgets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..plans.options import Errors, PlanKeywords
from .shared.options import ModelArgument, OnnxOptions, Output, Planning, Quiet
from .shared.terminal import echo, progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ir.program import Program
    from ..planners.contract import Planner
    from ..plans.budget import BudgetText
    from ..plans.request import PlanRequest
    from ..plans.source import ModelOptions
    from ..plans.sweep.cells import Cell
    from ..plans.sweep.sweep import Sweep

BUDGETS = "as in 8GiB,12GiB or 20%..100%:9"


def command(
    model: ModelArgument,
    output: Output = None,
    *,
    budgets: Annotated[
        str | None, typer.Option(metavar="SIZES", help=f"Bounds on all device bytes, {BUDGETS}.")
    ] = None,
    activation_budgets: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Bounds on what comes on top of parameters, buffers, inputs and gradients "
            "(20%..100%:9 where neither is given).",
        ),
    ] = None,
    planners: Annotated[
        str, typer.Option(help='With commas between, as in "auto,rotor,periodic{segments=4}".')
    ] = "auto",
    asked: Annotated[
        PlanKeywords,
        Planning("costs", "device", "grads", time_limit_s="For each planner under each budget."),
    ],
    onnx: OnnxOptions,
    format: Annotated[
        Literal["csv", "json", "html"] | None,
        typer.Option(help="By the name of the file, else CSV."),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv",
            help="What was measured of other tools, to draw beside: columns name, bytes, ratio.",
        ),
    ] = None,
    knee: Annotated[
        bool, typer.Option("--knee", help="Say from which budget on bytes get expensive.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take over the cells that FILE holds already.")
    ] = False,
    quiet: Quiet = False,
) -> int:
    """The time that planners need under a range of budgets; every plan is proven.

    FILE is written after each cell: a table, or a page with the frontier where it ends in .html.
    A planner that fails under a budget leaves a cell that says why.
    """
    from ..plans.files.outputs import FileRead, check_output, files_of_model
    from ..plans.request import read_request, read_sweep
    from ..plans.source import check_spec, is_program
    from ..plans.sweep.frontier import read_measured
    from ..report.library import converter

    errors = Errors()
    request = read_request(errors, **asked)
    # After the options, which have a planner's text of their own.
    cases = read_sweep(errors, budgets, activation_budgets, planners)
    options = onnx.read(errors)
    errors.collect(lambda: check_spec(model, options))
    reads = [*files_of_model(model, options, device=asked["device"])]
    if points is not None:
        reads.append(FileRead(Path(points), "the measured points"))
    if format == "html" or (format is None and str(output).endswith((".html", ".htm"))):
        errors.collect(converter)
    if output is not None:
        known = not is_program(model)
        errors.collect(lambda: check_output(output, "sweep", reads, all_known=known))
    if resume and output in (None, "-"):
        errors.add("FB0707", "--resume needs a file to go on with", "give -o FILE")
    cells = errors.collect(lambda: _known(output)) if resume else ()
    measured = errors.collect(lambda: read_measured(points)) if points is not None else ()
    errors.raise_if_any()
    assert request is not None
    assert cells is not None
    assert measured is not None

    def save(sweep: Sweep) -> None:
        assert output is not None
        sweep.save(output, format, measured)

    with progress(quiet=quiet) as say:
        program = _program(model, request, options, say, output)
        is_file = output not in (None, "-")
        made, code = _run(program, request, cases, cells, say, save if is_file else None)
    stream = sys.stderr if output == "-" else sys.stdout
    if made is not None:
        if output == "-":
            save(made)
        if not quiet:
            echo(*made.table().splitlines(), file=stream)
        if knee:
            echo(*made.knees(), file=stream)
    if code:
        kept = f"; {output} holds what was done, --resume goes on" if made and output else ""
        echo(f"interrupted{kept}", file=sys.stderr)
    return code


def _known(output: str | None) -> tuple[Cell, ...]:
    """The cells of the file to go on with; none where there is no file yet."""
    from ..ir.diagnostics import Diagnostic, FBError
    from ..plans.files.files import read_text
    from ..plans.sweep.cells import read_cells

    if output in (None, "-") or not Path(output).exists():
        return ()
    try:
        return read_cells(read_text(output))
    except ValueError as error:
        message = f"cannot go on with {output}: {error}"
        raise FBError(Diagnostic("FB0716", message), usage=True) from None


def _run(
    program: Program,
    request: PlanRequest,
    cases: tuple[tuple[Planner, ...], tuple[BudgetText, ...]],
    known: tuple[Cell, ...],
    say: Callable[[str], None],
    save: Callable[[Sweep], None] | None,
) -> tuple[Sweep | None, int]:
    """The sweep, saved after each cell, and the exit code: Ctrl-C takes what was done."""
    from ..plans.sweep.sweep import run_sweep

    made: Sweep | None = None

    def keep(so_far: Sweep) -> None:
        nonlocal made
        made = so_far
        if save is not None:
            save(so_far)

    limit_s = request.time_limit_s
    try:
        run_sweep(program, *cases, time_limit_s=limit_s, progress=say, known=known, done=keep)
    except KeyboardInterrupt:
        return made, 130
    return made, 0


def _program(
    model: str,
    request: PlanRequest,
    options: ModelOptions,
    say: Callable[[str], None],
    output: str | None,
) -> Program:
    """The program with its costs, made once for all cells."""
    from ..plans.files.look import read_program
    from ..plans.files.outputs import check_output, files_of_plan
    from ..plans.make import costed_program
    from ..plans.run_planner import Phases
    from ..plans.source import is_program, load_source

    phases = Phases(say)
    if not is_program(model):
        with phases.phase("capture", f"capturing {model}"):
            source = load_source(model, options)
        return costed_program(source, request, phases)
    with phases.phase("capture", f"reading {model}"):
        program = read_program(model)
    if output is not None:
        check_output(output, "sweep", files_of_plan(model, program.header))
    return costed_program(program, request, phases)
