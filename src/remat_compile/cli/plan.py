"""The default command: a model and a budget to a proven plan, or to code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ._model import Dim, Sample, Trainable, TrainBn, read_model_options

if TYPE_CHECKING:
    from .._options import PlanOptions
    from .._plan import Plan
    from .._sources import ModelOptions

__all__ = ["command"]

MODEL = typer.Argument(
    metavar="MODEL",
    help="A .onnx or .pt2 file, file.py:factory (returns the model and its sample arguments), "
    "a .fbir file to plan again, or - for one on standard input.",
)
SIZE = "8GiB, 500MB, 50% of the peak with nothing recomputed, or range:0.5"


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        print(f"remat-compile {__version__}")
        raise typer.Exit


def command(
    model: Annotated[str, MODEL],
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where to write; - is standard output."
        ),
    ] = None,
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
        str, typer.Option(help='See remat-compile planners; options as "periodic{segments=4}".')
    ] = "auto",
    time_limit: Annotated[float, typer.Option(metavar="SECONDS", help="For the planner.")] = 60.0,
    costs: Annotated[
        Literal["measured", "roofline"] | None,
        typer.Option(help="Measured on this machine (default), or estimated for --device."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="See remat-compile devices.")
    ] = None,
    dim: Dim = None,
    sample: Sample = None,
    train_bn: TrainBn = False,
    trainable: Trainable = None,
    grads: Annotated[
        Literal["fresh", "accumulate"] | None,
        typer.Option(help="Whether the caller already holds gradients (accumulate)."),
    ] = None,
    emit: Annotated[
        Literal["torch"] | None, typer.Option(help="Write the plan as code instead.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of PyTorch.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Plan one training step of MODEL under a budget in bytes, prove the plan, write it."""
    from .._files import check_writable
    from .._options import Errors, read_options
    from .._sources import check_spec

    errors = Errors()
    options = read_options(
        errors,
        budget=budget,
        activation_budget=activation_budget,
        host_budget=host_budget,
        planner=planner,
        time_limit_s=time_limit,
        costs=costs,
        device=device,
        grads=grads,
    )
    model_options = read_model_options(errors, dim, sample, train_bn, trainable)
    errors.collect(lambda: check_spec(model, model_options))
    if output is not None:
        errors.collect(lambda: check_writable(output))
    elif emit is not None:
        errors.add("FB0707", "--emit writes a file and none is named", "give -o FILE")
    errors.raise_if_any()
    assert options is not None
    made = _make(model, options, model_options, threads, quiet)
    _write(made, output, emit, quiet)


def _make(
    model: str, options: PlanOptions, model_options: ModelOptions, threads: int | None, quiet: bool
) -> Plan:
    from .._pipeline import Phases
    from .._sources import is_program, load_source
    from ..api import plan_program, plan_source, read_program
    from ._app import print_warnings
    from ._progress import progress

    with progress(quiet=quiet) as say:
        phases = Phases(say)
        if is_program(model):
            with phases.phase("capture", f"reading {model}"):
                program = read_program(model)
            made = plan_program(program, options, phases)
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


def _write(made: Plan, output: str | None, emit: Literal["torch"] | None, quiet: bool) -> None:
    import sys

    from .._files import STREAM, write_text

    if output is not None:
        if emit is None:
            made.save(output)
        else:
            write_text(output, made.emit(emit))
    if quiet:
        return
    table = sys.stderr if output == STREAM else sys.stdout
    print(made.summary(), end="", file=table)
    if output not in (None, STREAM):
        print(f"wrote {output}", file=table)
    elif output is None:
        print("nothing was written; give -o FILE to keep the plan", file=table)
