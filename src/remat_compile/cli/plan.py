"""The default command: a model and a budget to a proven plan, or to code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..plans.options import OPTIONS, Errors, PlanKeywords
from .shared.code import Code
from .shared.defaults import was_given
from .shared.options import ModelArgument, OnnxOptions, Output, Planning, Quiet
from .shared.sizes import SizeOptions, found_lines
from .shared.terminal import echo, print_warnings, progress

if TYPE_CHECKING:
    from ..ir.program import Header
    from ..plans.fit.largest import SizeFound
    from ..plans.plan import Plan
    from ..plans.request import PlanRequest
    from ..plans.source import ModelOptions

ASKED = (
    "budget",
    "activation_budget",
    "host_budget",
    "link",
    "offload",
    "planner",
    "workers",
    "time_limit_s",
    "horizon",
    "keep",
    "never_recompute",
    "fuse",
    "codecs",
    "lossy",
    "costs",
    "device",
    "grads",
)
OF_PLANNING = tuple(
    OPTIONS[name].parameter or name
    for name in ASKED
    if name not in ("workers", "time_limit_s", "lossy")
)
"""Without any of these on the command line, code is written of a plan as it is."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

        echo(f"remat-compile {__version__}")
        raise typer.Exit


def command(
    ctx: typer.Context,
    model: ModelArgument,
    output: Output = None,
    *,
    asked: Annotated[PlanKeywords, Planning(*ASKED)],
    onnx: OnnxOptions,
    code: Code,
    sizes: SizeOptions,
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
    from ..plans.request import check_fuse, read_request
    from ..plans.source import check_spec, is_program

    errors = Errors()
    if code.emit == "jax":
        errors.collect(lambda: check_fuse(asked["fuse"], "jax"))
        asked["fuse"] = "xla" if asked["fuse"] == "auto" else asked["fuse"]
    request = read_request(errors, **asked)
    options, wanted = sizes.read(errors, onnx.read(errors))
    errors.collect(lambda: check_spec(model, options))
    reads = (*files_of_model(model, options, device=asked["device"]), *code.reads())
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

    found = None
    if wanted is not None:
        _set_threads(threads)
        request, options, found = wanted.chosen(model, request, options, quiet)
    made = _make(model, request, options, threads, quiet, as_it_is, check, found)
    made = replace(made, _reads=(*made._reads, *reads))
    _write(made, output, code, model, quiet, found)


def _make(
    model: str,
    request: PlanRequest,
    options: ModelOptions,
    threads: int | None,
    quiet: bool,
    as_it_is: bool,
    check: Callable[[Header], None],
    found: SizeFound | None,
) -> Plan:
    """The plan; with `as_it_is`, the last one of a file that holds any. `check` is given the
    header of a text before any long work starts; a text is planned for the size `found`."""
    from ..plans.files.look import plan_in_text, read_program_text
    from ..plans.files.outputs import files_of_plan
    from ..plans.run_planner import Phases
    from ..plans.source import is_program, load_source

    with progress(quiet=quiet) as say:
        phases = Phases(say)
        if is_program(model):
            with phases.phase("capture", f"reading {model}"):
                program, text = read_program_text(model)
            check(program.header)
            if as_it_is and program.schedules:
                read = plan_in_text(program, text, model)
                return replace(read, _allow_lossy=request.lossy is not None)
            from ..plans.fit.sizes import at_size
            from ..plans.make import plan_program

            reads = files_of_plan(model, program.header)
            if found is not None:
                program = at_size(program, found.name, found.size)
            made = replace(plan_program(program, request, phases), _reads=reads)
        else:
            with phases.phase("capture", f"capturing {model}"):
                _set_threads(threads)
                source = load_source(model, options)
            from ..plans.make import plan_source  # behind what a file is refused for

            made = plan_source(source, request, phases)
    print_warnings(made.warnings)
    return made


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _write(
    made: Plan, output: str | None, code: Code, model: str, quiet: bool, found: SizeFound | None
) -> None:
    from .fit import table_lines
    from .shared.verdicts import assuming_lines

    written: list[str] = []
    if output is not None and code.emit is None:
        made.save(output)
    elif output is not None:
        written = code.write(made, output, model, quiet)
    if not quiet:
        fit = made.fit()
        lines = (
            *found_lines(found),
            *fit.verdict(),
            *made.summary().splitlines(),
            *table_lines(fit),
        )
        print_result((*lines, *assuming_lines(made.assuming)), output, written)


def print_result(
    lines: tuple[str, ...], output: str | None, written: list[str] | None = None
) -> None:
    """Prints the table of a plan and where it was written, beside the text on standard output."""
    from ..plans.files.files import STREAM

    wrote = f"wrote {' and '.join(written or [str(output)])}"
    if output is None:
        wrote = "nothing was written; give -o FILE to keep the plan"
    is_stream = output == STREAM
    echo(*lines, *([] if is_stream else [wrote]), file=sys.stderr if is_stream else sys.stdout)
