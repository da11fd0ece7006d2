"""`remat-compile fit`: whether a training step fits a device."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..plans.messages.table import columns
from ..plans.options import Errors, PlanKeywords
from .shared.options import ModelArgument, OnnxOptions, Planning
from .shared.sizes import SizeOptions, found_lines
from .shared.terminal import FormatOption, echo, print_object, print_warnings, progress

if TYPE_CHECKING:
    from ..plans.fit.largest import SizeFound
    from ..report.fit import Fit
    from .shared.sizes import Wanted


def command(
    model: ModelArgument,
    *,
    asked: Annotated[
        PlanKeywords,
        Planning("device", "costs", "grads", "link", "offload", time_limit_s="For each plan."),
    ],
    planner: Annotated[
        str, typer.Option(help="As for a plan; dtr answers in seconds, auto plans better.")
    ] = "dtr",
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose states are counted where the model comes without one: adamw (the default), "
            "adamw-fused, adamw-fp32, adamw-8bit, sgd, sgd-momentum.",
        ),
    ] = None,
    onnx: OnnxOptions,
    sizes: SizeOptions,
    format: FormatOption = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> int:
    """Tell whether one training step of MODEL fits a device, with nothing recomputed and under a
    plan; what fills it; and with --batch or --dim NAME=LOW..HIGH, the largest size that does.

    Exit code 0 where it fits, at least under the plan; 1 where it does not.
    """
    from ..ir.analysis.optimizer_states import USUAL, assumed_optimizer
    from ..plans.request import read_request
    from ..plans.source import check_spec

    errors = Errors()
    request = read_request(errors, **(asked | {"planner": planner}))
    errors.collect(lambda: assumed_optimizer(optimizer or USUAL))
    options, wanted = sizes.read(errors, onnx.read(errors))
    errors.collect(lambda: check_spec(model, options))
    errors.raise_if_any()
    assert request is not None

    from ..plans.fit.room import room_for_step  # behind the refusals, which load no planner
    from ..plans.fit.to_fit import plan_to_fit, program_of
    from ..plans.run_planner import Phases

    found: SizeFound | None = None
    room = partial(room_for_step, optimizer=optimizer)
    with progress(quiet=quiet) as say:
        phases = Phases(say)
        if wanted is not None:
            found, program = wanted.search(model, request, options, room, phases)
        else:
            program = program_of(model, request, options, phases)
        plan = plan_to_fit(program, request, optimizer, phases)
    print_warnings(plan.warnings)
    fit = plan.fit(optimizer)
    device = asked["device"] or fit.device
    following = next_command(fit, model, device, planner, found, wanted)
    if format == "json":
        print_object("fit", **fit.as_object(), size=found, next_command=following)
    else:
        echo(*fit.verdict(), *table_lines(fit), *found_lines(found), f"next: {following}")
    return 0 if fit.fits else 1


def table_lines(fit: Fit) -> Iterator[str]:
    """The bytes that fill the device, and the optimizer that is assumed."""
    yield from columns(fit.table(), "<>><")
    if fit.optimizer is not None:
        yield f"{fit.optimizer.name}: {fit.optimizer.meaning}"


def next_command(
    fit: Fit,
    model: str,
    device: str,
    planner: str,
    found: SizeFound | None,
    wanted: Wanted | None,
) -> str:
    """The line to type next."""
    from ..costs import device_names, load_device
    from ..ir.analysis.optimizer_states import OPTIMIZERS
    from ..plans.fit.sizes import takes_sizes

    name, device = shlex.quote(model), shlex.quote(device)
    symbols = fit.subject.program.symbols
    sized, budget = "", f" --budget {fit.subject.trace.peak_bytes}B"
    if found is not None and takes_sizes(model):
        sized = f" --dim {shlex.quote(found.name)}={found.size}"
    elif wanted is not None:
        sized, budget = f" {wanted}", ""
    if fit.fits and (found or not fit.fits_now or not (takes_sizes(model) or symbols)):
        plan = f"remat-compile {name} --device {device}{sized}{budget} --planner {planner}"
        return f"{plan} -o plan.fbir"
    if fit.fits:
        over = f"{symbols[0].low}..{symbols[0].high}" if symbols else "1..64"
        return f"remat-compile fit {name} --device {device} --batch {over} --maximize throughput"
    assert fit.memory_bytes is not None
    if fit.optimizer is not None:
        smaller = [o for o in OPTIMIZERS.values() if fit.planned_with(o) <= fit.memory_bytes]
        if smaller:
            return (
                f"remat-compile fit {name} --device {device}{sized} --optimizer {smaller[0].name}"
            )
    known = sorted((load_device(d) for d in device_names()), key=lambda d: d.memory_bytes)
    larger = next((d.name for d in known if d.memory_bytes > fit.planned.bytes), None)
    if larger is not None:
        return f"remat-compile fit {name} --device {larger}{sized}"
    return f"remat-compile {name} --device {device}{sized} --planner offmate -o plan.fbir"
