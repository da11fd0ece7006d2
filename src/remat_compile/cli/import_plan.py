"""`remat-compile import-plan`: proves what another tool saves and computes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .shared.options import (
    SIZE,
    CostOptions,
    ModelArgument,
    OnnxOptions,
    Output,
    Quiet,
    grouped,
)

if TYPE_CHECKING:
    from ..plans.decisions import Imported, ToolOptions
    from ..plans.request import PlanRequest
    from ..plans.source import ModelOptions


@grouped
def command(
    model: ModelArgument,
    tool: Annotated[
        Literal["sac", "partitioner", "jax-names"],
        typer.Option("--from", help="Whose decision: see docs/guide/imports.md."),
    ],
    output: Output = None,
    *,
    memory_budget: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="partitioner: its own budget, 0 to 1 (0.5)."),
    ] = None,
    solver: Annotated[
        str | None, typer.Option(metavar="NAME", help="partitioner: its own solver (dp).")
    ] = None,
    save: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=PATTERN]", help="jax-names: what is saved. May be repeated."),
    ] = None,
    segments: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="jax-names: the modules under jax.checkpoint, as blocks.* (all). May be repeated.",
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"To be proven for all bytes: {SIZE}.")
    ] = None,
    activation_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="To be proven for activations.")
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="For the proof.")] = 60.0,
    costs: CostOptions,
    onnx: OnnxOptions,
    quiet: Quiet = False,
) -> None:
    """Read what another tool decides for MODEL as a plan, prove it, write it.

    Exit code 1 where the decision makes no plan, or one that is refuted.
    """
    from ..plans.decisions import ToolOptions
    from ..plans.files.outputs import check_output, files_of_model
    from ..plans.request import Errors, read_request
    from ..plans.source import check_spec, is_program

    errors = Errors()
    chosen = ToolOptions(tool, memory_budget, solver, tuple(save or ()), tuple(segments or ()))
    chosen.check(errors)
    request = read_request(
        errors,
        budget=budget,
        activation_budget=activation_budget,
        planner="store-all",
        time_limit_s=time_limit,
        costs=costs.costs,
        device=costs.device,
    )
    options = onnx.read(errors)
    errors.collect(lambda: check_spec(model, options))
    if output is not None:
        reads = files_of_model(model, options, device=costs.device)
        known = not is_program(model)
        errors.collect(lambda: check_output(output, "plan", reads, all_known=known))
    errors.raise_if_any()
    assert request is not None
    made = _make(model, options, chosen, request, quiet)
    _write(made, output, quiet)


def _make(
    model: str, options: ModelOptions, tool: ToolOptions, request: PlanRequest, quiet: bool
) -> Imported:
    from ..plans.decisions import import_source
    from ..plans.run_planner import Phases
    from .shared.app import print_warnings
    from .shared.terminal import progress

    with progress(quiet=quiet) as say:
        made = import_source(model, options, tool, request, Phases(say))
    print_warnings(made.plan.warnings)
    return made


def _write(made: Imported, output: str | None, quiet: bool) -> None:
    import sys

    from ..plans.files.files import STREAM
    from .shared.terminal import echo

    if output is not None:
        made.plan.save(output)
    if quiet:
        return
    table = sys.stderr if output == STREAM else sys.stdout
    echo(*made.summary().splitlines(), file=table)
    if output not in (None, STREAM):
        echo(f"wrote {output}", file=table)
    elif output is None:
        echo("nothing was written; give -o FILE to keep the plan", file=table)
