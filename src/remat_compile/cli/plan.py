"""The default command: a model and a budget to a proven plan, or to code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ._options import (
    SIZE,
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
    TrustSource,
    read_model_options,
)

if TYPE_CHECKING:
    from ..driver.model_source import ModelOptions
    from ..driver.plan import Plan
    from ..driver.request import PlanOptions
    from ..ir.program import Header
    from ._code import Code

__all__ = ["command"]


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__
        from ._terminal import echo

        echo(f"remat-compile {__version__}")
        raise typer.Exit


def command(
    model: Model,
    output: Output = None,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Bound on all device bytes: {SIZE}.")
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
    planner: Annotated[
        str | None,
        typer.Option(
            help='See remat-compile planners; options as "periodic{segments=4}".',
            show_default="auto",
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="For the planner.")] = 60.0,
    costs: Costs = None,
    device: Device = None,
    dim: Dim = None,
    sample: Sample = None,
    train_bn: TrainBn = False,
    trainable: Trainable = None,
    grads: Grads = None,
    emit: Annotated[
        Literal["torch", "jax"] | None, typer.Option(help="Write the plan as code instead.")
    ] = None,
    jax_style: Annotated[
        Literal["explicit", "annotated", "annotated-nearest"] | None,
        typer.Option(help="How --emit jax writes: every step, or jax.checkpoint by name."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="The model of a .fbir file that is written as code."
        ),
    ] = None,
    trust_source: TrustSource = False,
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
    from ..driver.model_source import check_spec, is_program
    from ..driver.outputs import files_of_model, files_of_plan
    from ..driver.request import Errors, read_options
    from ._code import Code

    errors = Errors()
    options = read_options(
        errors,
        budget=budget,
        activation_budget=activation_budget,
        host_budget=host_budget,
        planner=planner or "auto",
        time_limit_s=time_limit,
        costs=costs,
        device=device,
        grads=grads,
    )
    model_options = read_model_options(errors, dim, sample, train_bn, trainable)
    errors.collect(lambda: check_spec(model, model_options))
    code = Code(emit, jax_style or "explicit", source, trust_source)
    reads = (*files_of_model(model, model_options, device=device), *code.reads())
    if output is not None:
        known = not is_program(model)
        errors.collect(lambda: code.check_output(output, reads, all_known=known))
    elif emit is not None:
        errors.add("FB0707", "--emit writes a file and none is named", "give -o FILE")
    errors.collect(lambda: code.check(output, model, given=jax_style is not None))
    errors.raise_if_any()
    code.need()
    assert options is not None
    planning = (budget, activation_budget, host_budget, costs, device, grads)
    as_it_is = emit is not None and planner is None and not any(planning)

    def check(header: Header) -> None:
        if output is not None:
            code.check_output(output, files_of_plan(model, header))

    made = _make(model, options, model_options, threads, quiet, as_it_is, check)
    made = replace(made, _reads=(*made._reads, *reads))
    _write(made, output, code, model, quiet)


def _make(
    model: str,
    options: PlanOptions,
    model_options: ModelOptions,
    threads: int | None,
    quiet: bool,
    as_it_is: bool,
    check: Callable[[Header], None],
) -> Plan:
    """The plan; with `as_it_is`, the last one of a file that holds any. `check` is given the
    header of a text before any long work starts."""
    from ..api import plan_program, plan_source, read_program_text
    from ..driver.model_source import is_program, load_source
    from ..driver.outputs import files_of_plan
    from ..driver.plan import Plan, PlanText
    from ..driver.run_planner import Phases
    from ._app import print_warnings
    from ._progress import progress

    with progress(quiet=quiet) as say:
        phases = Phases(say)
        if is_program(model):
            with phases.phase("capture", f"reading {model}"):
                program, text = read_program_text(model)
            check(program.header)
            reads = files_of_plan(model, program.header)
            if as_it_is and program.schedules:
                last = program.schedules[-1]
                own = PlanText(program.graph, last, text)
                return Plan(program, last, _reads=reads, _text=own)
            made = replace(plan_program(program, options, phases), _reads=reads)
        else:
            with phases.phase("capture", f"capturing {model}"):
                _set_threads(threads)
                source = load_source(model, model_options)
            made = plan_source(source, options, phases)
    print_warnings(made.warnings)
    return made


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _write(made: Plan, output: str | None, code: Code, model: str, quiet: bool) -> None:
    import sys

    from ..driver.files import STREAM
    from ._terminal import echo
    from ._verdicts import print_assuming

    written: Sequence[str | None] = (output,)
    if output is not None:
        if code.backend is None:
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
