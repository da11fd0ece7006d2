"""`remat-compile run --backend jax`: what XLA really does with a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..ir.diagnostics import FBError

if TYPE_CHECKING:
    from .._jax.run import JaxReport
    from .._plan import JaxStyle, Plan
    from .._sources import ModelOptions
    from .._torch.lowered import Exported

__all__ = ["run_jax"]


def run_jax(
    path: str,
    schedule: str | None,
    model: str | None,
    options: ModelOptions,
    style: JaxStyle,
    quiet: bool,
) -> int:
    """Exit code 1 where XLA does not follow the plan, or the gradients are not PyTorch's."""
    from ..api import load
    from ..backends.jax.check import need_jax

    need_jax()
    from ._progress import progress

    read = load(path, schedule)
    from .._jax.make import jax_step
    from .._jax.run import run_step, set_precision

    set_precision(read.program)

    with progress(quiet=quiet) as say:
        say("proving the plan")
        plan = read.trusted()
        say("generating the step")
        step = jax_step(plan, style=style)
        exported = _model(plan, path, model, options)
        say("compiling the step and looking at it")
        report = run_step(plan, step, exported)
    return _print(plan, report)


def _model(plan: Plan, path: str, spec: str | None, options: ModelOptions) -> Exported | None:
    """The model to compare with: the one named, or the recorded one if it is there."""
    from .._sources import check_spec, load_source
    from ._code import check_same_file, recorded_model

    if spec is None:
        try:
            spec = recorded_model(plan, path)
        except FBError:
            return None
    check_spec(spec, options)
    check_same_file(plan, spec)
    import torch

    torch.set_num_threads(plan.program.header.threads)
    return load_source(spec, options).exported


def _print(plan: Plan, report: JaxReport) -> int:
    from .._budget import format_bytes
    from .._table import columns
    from ..backends.jax.absences import Absence
    from ._app import print_errors

    seen = report.observed
    predicted, found = report.predicted_temp_bytes, seen.temp_bytes
    planned = sum(seen.planned_products.values())
    executed = sum(seen.executed_products.values())
    rows: list[tuple[Any, ...]] = [
        ("", "predicted", "XLA"),
        ("peak memory of the plan", format_bytes(plan.peak_bytes), ""),
        ("temporary memory", format_bytes(predicted), format_bytes(found)),
        ("products and convolutions", str(planned), str(executed)),
        (
            "named executions",
            str(len(seen.scopes) + len(seen.absent)),
            str(len(seen.scopes) - len(seen.missing)),
        ),
        ("copies, lowered for CUDA", str(seen.planned_placements), str(seen.placements)),
    ]
    print("\n".join(columns(rows)))
    if predicted:
        print(f"XLA takes {found / predicted:.2f} times the predicted temporary memory")
    if seen.scratch_bytes:
        lent = format_bytes(seen.scratch_bytes)
        print(f"beside it, up to {lent} of what results will fill hold temporary values")
    for reason in Absence:
        if names := [name for name, why in seen.absent.items() if why is reason]:
            print(f"no trace, and rightly: {reason.value}: {', '.join(names)}")
    if folded := [name for name in seen.missing if name.endswith("#1")]:
        print(f"folded into others by XLA: {', '.join(folded)}")
    if report.difference is None:
        print("gradients: not compared, as the model is not beside the plan; give --model")
    else:
        shown = f"largest difference from PyTorch {report.difference:.3g} of the largest value"
        print(f"gradients: {shown}")
    if defects := seen.defects():
        print_errors(FBError(defects))
    return 0 if report.is_sound else 1
