"""The default command: a model and a budget to a proven plan, or to code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..plans.messages.asked import Fuse
from .shared.code import Code
from .shared.defaults import was_given
from .shared.options import (
    SIZE_OR_LEAST,
    CostOptions,
    GradsOption,
    ModelArgument,
    OnnxOptions,
    Output,
    Quiet,
    grouped,
    known_planners,
)

if TYPE_CHECKING:
    from ..ir.program import Header
    from ..plans.plan import Plan
    from ..plans.request import PlanRequest
    from ..plans.source import ModelOptions

BOUNDS = ("budget", "activation_budget", "host_budget", "link", "no_offload")
OF_PLANNING = (*BOUNDS, "planner", "fuse", "costs", "device", "grads")
"""Without any of these on the command line, code is written of a plan as it is."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__
        from .shared.terminal import echo

        echo(f"remat-compile {__version__}")
        raise typer.Exit


@grouped
def command(
    ctx: typer.Context,
    model: ModelArgument,
    output: Output = None,
    *,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=f"Bound on all device bytes: {SIZE_OR_LEAST}.",
        ),
    ] = None,
    activation_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Bound on what comes on top of parameters, buffers, inputs and gradients.",
        ),
    ] = None,
    host_budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bound on copies on the host, in bytes: 64GiB."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Bandwidth to and from the host: 25GB/s, or d2h=25GB/s,h2d=11GB/s,both=30GB/s.",
        ),
    ] = None,
    no_offload: Annotated[
        bool, typer.Option("--no-offload", help="Copy nothing to the host.")
    ] = False,
    planner: Annotated[
        str | None,
        typer.Option(
            help='See remat-compile planners; options as "periodic{segments=4}".',
            show_default="auto",
            autocompletion=known_planners,
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Solve programs on a Dask cluster: dask://HOST:PORT. The plan is the same.",
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="For the planner.")] = 60.0,
    fuse: Annotated[
        Fuse,
        typer.Option(
            help="Run parts of the plan as kernels of Inductor: those measured faster (auto), "
            "or all that can. Bits may differ by rounding. With --emit jax, auto is xla: what XLA "
            "computes without keeping what lies between."
        ),
    ] = "none",
    costs: CostOptions,
    onnx: OnnxOptions,
    grads: GradsOption = None,
    code: Code,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of PyTorch.")] = None,
    quiet: Quiet = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Plan one training step of MODEL under a budget in bytes, prove the plan, write it."""
    from ..plans.files.outputs import files_of_model, files_of_plan
    from ..plans.request import (
        Errors,
        check_fuse,
        read_request,
    )
    from ..plans.source import check_spec, is_program

    errors = Errors()
    if code.emit == "jax":
        errors.collect(lambda: check_fuse(fuse, "jax"))
        fuse = "xla" if fuse == "auto" else fuse
    request = read_request(
        errors,
        budget=budget,
        activation_budget=activation_budget,
        host_budget=host_budget,
        planner=planner or "auto",
        time_limit_s=time_limit,
        costs=costs.costs,
        device=costs.device,
        grads=grads,
        link=link,
        offload=not no_offload,
        fuse=fuse,
        workers=workers,
    )
    options = onnx.read(errors)
    errors.collect(lambda: check_spec(model, options))
    reads = (*files_of_model(model, options, device=costs.device), *code.reads())
    if output is not None:
        known = not is_program(model)
        errors.collect(lambda: code.check_output(output, reads, all_known=known))
    elif code.emit is not None:
        errors.add("FB0707", "--emit writes a file and none is named", "give -o FILE")
    errors.collect(lambda: code.check(output, model))
    errors.raise_if_any()
    code.need()
    assert request is not None
    as_it_is = code.emit is not None and not was_given(ctx, *OF_PLANNING)

    def check(header: Header) -> None:
        if output is not None:
            code.check_output(output, files_of_plan(model, header))

    made = _make(model, request, options, threads, quiet, as_it_is, check)
    made = replace(made, _reads=(*made._reads, *reads))
    _write(made, output, code, model, quiet)


def _make(
    model: str,
    request: PlanRequest,
    options: ModelOptions,
    threads: int | None,
    quiet: bool,
    as_it_is: bool,
    check: Callable[[Header], None],
) -> Plan:
    """The plan; with `as_it_is`, the last one of a file that holds any. `check` is given the
    header of a text before any long work starts."""
    from ..plans.files.look import plan_in_text, read_program_text
    from ..plans.files.outputs import files_of_plan
    from ..plans.make import plan_program, plan_source
    from ..plans.run_planner import Phases
    from ..plans.source import is_program, load_source
    from .shared.app import print_warnings
    from .shared.terminal import progress

    with progress(quiet=quiet) as say:
        phases = Phases(say)
        if is_program(model):
            with phases.phase("capture", f"reading {model}"):
                program, text = read_program_text(model)
            check(program.header)
            if as_it_is and program.schedules:
                return plan_in_text(program, text, model)
            reads = files_of_plan(model, program.header)
            made = replace(plan_program(program, request, phases), _reads=reads)
        else:
            with phases.phase("capture", f"capturing {model}"):
                _set_threads(threads)
                source = load_source(model, options)
            made = plan_source(source, request, phases)
    print_warnings(made.warnings)
    return made


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _write(made: Plan, output: str | None, code: Code, model: str, quiet: bool) -> None:
    import sys

    from ..plans.files.files import STREAM
    from .shared.terminal import echo
    from .shared.verdicts import print_assuming

    written: Sequence[str | None] = (output,)
    if output is not None:
        if code.emit is None:
            made.save(output)
        else:
            written = code.write(made, output, model, quiet)
    if quiet:
        return
    table = sys.stderr if output == STREAM else sys.stdout
    echo(*made.summary().splitlines(), file=table)
    print_assuming(made.assuming, table)
    if output not in (None, STREAM):
        echo(f"wrote {' and '.join(map(str, written))}", file=table)
    elif output is None:
        echo("nothing was written; give -o FILE to keep the plan", file=table)
