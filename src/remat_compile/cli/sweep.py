"""`remat-compile sweep`: the time that planners need under a range of budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ._options import (
    CostOptions,
    GradsOption,
    ModelArgument,
    OnnxOptions,
    Output,
    Quiet,
    grouped,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..driver.budget import BudgetText
    from ..driver.model_source import ModelOptions
    from ..driver.request import PlanRequest
    from ..driver.sweep import Cell, Sweep
    from ..ir.program import Program
    from ..planners.contract import Planner

__all__ = ["command"]

BUDGETS = "as in 8GiB,12GiB or 20%..100%:9"


@grouped
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
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="For each planner under each budget.")
    ] = 60.0,
    costs: CostOptions,
    onnx: OnnxOptions,
    grads: GradsOption = None,
    format: Annotated[
        Literal["csv", "json"] | None, typer.Option(help="By the name of the file, else CSV.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take over the cells that FILE holds already.")
    ] = False,
    quiet: Quiet = False,
) -> int:
    """The time that planners need under a range of budgets; every plan is proven.

    FILE is written after each cell. A planner that fails under a budget leaves a cell that
    says why.
    """
    from ..driver.model_source import check_spec, is_program
    from ..driver.outputs import check_output, files_of_model
    from ..driver.request import Errors, read_request, read_sweep

    errors = Errors()
    request = read_request(
        errors, time_limit_s=time_limit, costs=costs.costs, device=costs.device, grads=grads
    )
    # After the options, which have a planner's text of their own.
    asked = read_sweep(errors, budgets, activation_budgets, planners)
    options = onnx.read(errors)
    errors.collect(lambda: check_spec(model, options))
    reads = files_of_model(model, options, device=costs.device)
    if output is not None:
        known = not is_program(model)
        errors.collect(lambda: check_output(output, "sweep", reads, all_known=known))
    if resume and output in (None, "-"):
        errors.add("FB0707", "--resume needs a file to go on with", "give -o FILE")
    cells = errors.collect(lambda: _known(output)) if resume else ()
    errors.raise_if_any()
    assert request is not None
    assert cells is not None
    return _run(model, request, options, asked, cells, output, format, quiet)


def _known(output: str | None) -> tuple[Cell, ...]:
    """The cells of the file to go on with; none where there is no file yet."""
    from pathlib import Path

    from ..driver.files import read_text
    from ..driver.sweep import read_cells
    from ..ir.diagnostics import Diagnostic, FBError

    if output in (None, "-") or not Path(output).exists():
        return ()
    try:
        return read_cells(read_text(output))
    except ValueError as error:
        message = f"cannot go on with {output}: {error}"
        raise FBError(Diagnostic("FB0716", message), usage=True) from None


def _run(
    model: str,
    request: PlanRequest,
    options: ModelOptions,
    asked: tuple[tuple[Planner, ...], tuple[BudgetText, ...]],
    known: tuple[Cell, ...],
    output: str | None,
    format: Literal["csv", "json"] | None,
    quiet: bool,
) -> int:
    import sys

    from ..driver.sweep import run_sweep
    from ._terminal import echo, progress

    made: Sweep | None = None

    def keep(so_far: Sweep) -> None:
        nonlocal made
        made = so_far
        if output not in (None, "-"):
            so_far.save(output, format)

    code = 0
    with progress(quiet=quiet) as say:
        program = _program(model, request, options, say, output)
        try:
            run_sweep(
                program,
                *asked,
                time_limit_s=request.time_limit_s,
                progress=say,
                known=known,
                done=keep,
            )
        except KeyboardInterrupt:
            code = 130
    if made is not None and output == "-":
        made.save(output, format)
    if made is not None and not quiet:
        echo(*made.table().splitlines(), file=sys.stderr if output == "-" else sys.stdout)
    if code:
        kept = f"; {output} holds what was done, --resume goes on" if made and output else ""
        echo(f"interrupted{kept}", file=sys.stderr)
    return code


def _program(
    model: str,
    request: PlanRequest,
    options: ModelOptions,
    say: Callable[[str], None],
    output: str | None,
) -> Program:
    """The program with its costs, made once for all cells."""
    from ..driver.make_plan import costed_program, read_program
    from ..driver.model_source import is_program, load_source
    from ..driver.outputs import check_output, files_of_plan
    from ..driver.run_planner import Phases

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
