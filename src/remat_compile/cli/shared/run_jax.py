"""`remat-compile run --backend jax`: what XLA really does with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ir.diagnostics import FBError

if TYPE_CHECKING:
    from ...capture.lowered import Exported
    from ...plans.jax.run import JaxReport
    from ...plans.plan import Plan
    from ...plans.request import JaxStyle
    from ...plans.source import ModelOptions


def run_jax(
    path: str,
    schedule: str | None,
    model: str | None,
    options: ModelOptions,
    style: JaxStyle,
    quiet: bool,
    trust_source: bool = False,
) -> int:
    """Exit code 1 where XLA does not follow the plan, or the gradients are not PyTorch's."""
    from ...api import load
    from ...backends.jax.check import need_jax

    need_jax()
    from .terminal import progress

    read = load(path, schedule)
    from ...plans.jax.make import jax_step
    from ...plans.jax.run import run_step, set_precision

    set_precision(read.program)

    with progress(quiet=quiet) as say:
        say("proving the plan")
        plan = read.trusted()
        say("generating the step")
        step = jax_step(plan, style=style)
        exported, why = _model(plan, path, model, options, trust_source)
        say("compiling the step and looking at it")
        report = run_step(plan, step, exported)
    return _print(plan, report, why)


def _model(
    plan: Plan, path: str, spec: str | None, options: ModelOptions, trust_source: bool
) -> tuple[Exported | None, str]:
    """The model to compare with: the one named, or the recorded one if it may be loaded;
    else why there is none."""
    from ...plans.files.recorded import (
        NoSourceModel,
        load_as_planned,
        model_of_plan,
    )

    header = plan.program.header
    try:
        spec = model_of_plan(header, path, spec, options, trust_source=trust_source)
    except NoSourceModel as error:
        return None, error.diagnostics[0].message
    return load_as_planned(plan.program, spec, options).exported, ""


def _print(plan: Plan, report: JaxReport, why: str) -> int:
    from ...backends.jax.observe.absences import Absence
    from ...plans.budget import format_bytes
    from ...plans.messages.table import columns
    from .app import print_errors
    from .terminal import echo

    seen = report.observed
    predicted, actual = report.predicted_temp_bytes, seen.temp_bytes
    planned = sum(seen.planned_products.values())
    executed = sum(seen.executed_products.values())
    rows: list[tuple[Any, ...]] = [
        ("", "predicted", "XLA"),
        ("peak memory of the plan", format_bytes(plan.peak_bytes), ""),
        ("temporary memory", format_bytes(predicted), format_bytes(actual)),
        ("products and convolutions", str(planned), str(executed)),
        (
            "named executions",
            str(len(seen.scopes) + len(seen.absent)),
            str(len(seen.scopes) - len(seen.missing)),
        ),
        ("copies, lowered for CUDA", str(seen.planned_placements), str(seen.placements)),
    ]
    echo(*columns(rows))
    if predicted:
        echo(f"XLA takes {actual / predicted:.2f} times the predicted temporary memory")
    if seen.scratch_bytes:
        lent = format_bytes(seen.scratch_bytes)
        echo(f"beside it, up to {lent} of what results will fill hold temporary values")
    for reason in Absence:
        if names := [name for name, why in seen.absent.items() if why is reason]:
            echo(f"no trace, and rightly: {reason.value}: {', '.join(names)}")
    if folded := [name for name in seen.missing if name.endswith("#1")]:
        echo(f"folded into others by XLA: {', '.join(folded)}")
    if report.difference is None:
        echo(f"gradients: not compared, as {why}; give --model")
    else:
        shown = f"largest difference from PyTorch {report.difference:.3g} of the largest value"
        echo(f"gradients: {shown}")
    if defects := seen.defects():
        print_errors(FBError(defects))
    return 0 if report.is_sound else 1
