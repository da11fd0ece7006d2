"""`remat-compile sweep`: the time that planners need under a range of budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .shared.options import (
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

    from ..ir.program import Program
    from ..planners.contract import Planner
    from ..plans.budget import BudgetText
    from ..plans.request import PlanRequest
    from ..plans.source import ModelOptions
    from ..plans.sweep.cells import Cell
    from ..plans.sweep.sweep import Sweep
    from ..report.charts.frontier import Measured

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
    from pathlib import Path

    from ..plans.files.outputs import (
        FileRead,
        check_output,
        files_of_model,
    )
    from ..plans.request import (
        Errors,
        read_request,
        read_sweep,
    )
    from ..plans.source import check_spec, is_program
    from ..plans.sweep.frontier import read_measured
    from ..report.library import converter

    errors = Errors()
    request = read_request(
        errors, time_limit_s=time_limit, costs=costs.costs, device=costs.device, grads=grads
    )
    # After the options, which have a planner's text of their own.
    asked = read_sweep(errors, budgets, activation_budgets, planners)
    options = onnx.read(errors)
    errors.collect(lambda: check_spec(model, options))
    reads = [*files_of_model(model, options, device=costs.device)]
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
    target = _Target(output, format, measured, knee, quiet)
    return _run(model, request, options, asked, cells, target)


@dataclass(frozen=True)
class _Target:
    """Where a sweep goes, and what is said of it."""

    output: str | None
    format: Literal["csv", "json", "html"] | None
    measured: tuple[Measured, ...]
    knee: bool
    quiet: bool

    @property
    def is_file(self) -> bool:
        return self.output not in (None, "-")

    def save(self, sweep: Sweep) -> None:
        assert self.output is not None
        sweep.save(self.output, self.format, self.measured)

    def say(self, sweep: Sweep) -> None:
        import sys

        from .shared.terminal import echo

        stream = sys.stderr if self.output == "-" else sys.stdout
        if not self.quiet:
            echo(*sweep.table().splitlines(), file=stream)
        if self.knee:
            echo(*sweep.knees(), file=stream)


def _known(output: str | None) -> tuple[Cell, ...]:
    """The cells of the file to go on with; none where there is no file yet."""
    from pathlib import Path

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
    model: str,
    request: PlanRequest,
    options: ModelOptions,
    asked: tuple[tuple[Planner, ...], tuple[BudgetText, ...]],
    known: tuple[Cell, ...],
    target: _Target,
) -> int:
    import sys

    from ..plans.sweep.sweep import run_sweep
    from .shared.terminal import echo, progress

    made: Sweep | None = None

    def keep(so_far: Sweep) -> None:
        nonlocal made
        made = so_far
        if target.is_file:
            target.save(so_far)

    code = 0
    with progress(quiet=target.quiet) as say:
        program = _program(model, request, options, say, target.output)
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
    if made is not None:
        if target.output == "-":
            target.save(made)
        target.say(made)
    if code:
        file = target.output
        kept = f"; {file} holds what was done, --resume goes on" if made and file else ""
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
