"""`remat-compile sweep`: the time that planners need under a range of budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ._options import (
    Costs,
    Device,
    Dim,
    Grads,
    Model,
    Output,
    Quiet,
    Sample,
    Trainable,
    TrainBn,
    read_model_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..driver.budget import BudgetText
    from ..driver.model_source import ModelOptions
    from ..driver.request import PlanOptions
    from ..driver.sweep import Cell, Sweep
    from ..ir.program import Program
    from ..planners.contract import Planner

__all__ = ["command"]

BUDGETS = "as in 8GiB,12GiB or 20%..100%:9"


def command(
    model: Model,
    output: Output = None,
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
    costs: Costs = None,
    device: Device = None,
    dim: Dim = None,
    sample: Sample = None,
    train_bn: TrainBn = False,
    trainable: Trainable = None,
    grads: Grads = None,
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
    from ..driver.request import Errors, read_options
    from ..driver.sweep_options import read_sweep

    errors = Errors()
    options = read_options(
        errors,
        budget=None,
        activation_budget=None,
        planner="auto",
        time_limit_s=time_limit,
        costs=costs,
        device=device,
        grads=grads,
    )
    # After the options, which have a planner's text of their own.
    asked = read_sweep(errors, budgets, activation_budgets, planners)
    model_options = read_model_options(errors, dim, sample, train_bn, trainable)
    errors.collect(lambda: check_spec(model, model_options))
    reads = files_of_model(model, model_options, device=device)
    if output is not None:
        known = not is_program(model)
        errors.collect(lambda: check_output(output, "sweep", reads, all_known=known))
    if resume and output in (None, "-"):
        errors.add("FB0707", "--resume needs a file to go on with", "give -o FILE")
    cells = errors.collect(lambda: _known(output)) if resume else ()
    errors.raise_if_any()
    assert options is not None
    assert cells is not None
    return _run(model, options, model_options, asked, cells, output, format, quiet)


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
    options: PlanOptions,
    model_options: ModelOptions,
    asked: tuple[tuple[Planner, ...], tuple[BudgetText, ...]],
    known: tuple[Cell, ...],
    output: str | None,
    format: Literal["csv", "json"] | None,
    quiet: bool,
) -> int:
    import sys

    from ..driver.sweep import run_sweep
    from ._progress import progress
    from ._terminal import echo

    made: Sweep | None = None

    def keep(so_far: Sweep) -> None:
        nonlocal made
        made = so_far
        if output not in (None, "-"):
            so_far.save(output, format)

    code = 0
    with progress(quiet=quiet) as say:
        program = _program(model, options, model_options, say, output)
        try:
            run_sweep(
                program,
                *asked,
                time_limit_s=options.time_limit_s,
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
    options: PlanOptions,
    model_options: ModelOptions,
    say: Callable[[str], None],
    output: str | None,
) -> Program:
    """The program with its costs, made once for all cells."""
    from ..api import as_asked, costed, costed_text, read_program
    from ..driver.model_source import is_program, load_source
    from ..driver.outputs import check_output, files_of_plan
    from ..driver.run_planner import Phases

    phases = Phases(say)
    if is_program(model):
        with phases.phase("capture", f"reading {model}"):
            program = read_program(model)
        if output is not None:
            check_output(output, "sweep", files_of_plan(model, program.header))
        return costed_text(program, options, phases)
    with phases.phase("capture", f"capturing {model}"):
        source = load_source(model, model_options)
    with costed(source, options.device, phases) as (program, _):
        return as_asked(program, options)
