"""`remat-compile import-plan`: proves what another tool saves and computes again."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..plans.options import SIZE, Errors, PlanKeywords
from .plan import print_result
from .shared.options import ModelArgument, OnnxOptions, Output, Planning, Quiet
from .shared.terminal import print_warnings, progress


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
    asked: Annotated[
        PlanKeywords,
        Planning(
            "costs",
            "device",
            budget=f"To be proven for all bytes: {SIZE}.",
            activation_budget="To be proven for activations.",
            time_limit_s="For the proof.",
        ),
    ],
    onnx: OnnxOptions,
    quiet: Quiet = False,
) -> None:
    """Read what another tool decides for MODEL as a plan, prove it, write it.

    Exit code 1 where the decision makes no plan, or one that is refuted.
    """
    from ..plans.decisions import ToolOptions, import_source
    from ..plans.files.outputs import check_output, files_of_model
    from ..plans.request import read_request
    from ..plans.run_planner import Phases
    from ..plans.source import check_spec, is_program

    errors = Errors()
    chosen = ToolOptions(tool, memory_budget, solver, tuple(save or ()), tuple(segments or ()))
    chosen.check(errors)
    request = read_request(errors, **(asked | {"planner": "store-all"}))
    options = onnx.read(errors)
    errors.collect(lambda: check_spec(model, options))
    if output is not None:
        reads = files_of_model(model, options, device=asked["device"])
        known = not is_program(model)
        errors.collect(lambda: check_output(output, "plan", reads, all_known=known))
    errors.raise_if_any()
    assert request is not None
    with progress(quiet=quiet) as say:
        made = import_source(model, options, chosen, request, Phases(say))
    print_warnings(made.plan.warnings)
    if output is not None:
        made.plan.save(output)
    if not quiet:
        print_result(tuple(made.summary().splitlines()), output)
