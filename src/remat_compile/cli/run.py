"""`remat-compile run`: one step of a plan, beside ordinary autograd."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ir.diagnostics import FBError
from ..ir.rewrites.updates import has_updates
from ..ir.units import format_bytes, format_ns
from ..plans.messages.table import columns
from ..plans.options import Backend, Errors, JaxStyle
from .shared.options import OnnxOptions, PlanFile, ScheduleOption, TrustSource
from .shared.terminal import (
    FormatOption,
    echo,
    print_errors,
    print_object,
    print_warnings,
    progress,
)

if TYPE_CHECKING:
    from ..capture.lowered import Exported
    from ..plans.compare.step import StepReport
    from ..plans.jax.run import JaxReport
    from ..plans.plan import Plan
    from ..plans.source import ModelOptions


def command(
    plan: PlanFile,
    *,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model; by default the ONNX file beside the plan."),
    ] = None,
    trust_source: TrustSource = False,
    schedule: ScheduleOption = None,
    onnx: OnnxOptions,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs; the median counts.")] = 3,
    backend: Annotated[
        Backend, typer.Option(help="What runs the step. JAX needs no model.")
    ] = "torch",
    jax_style: Annotated[
        JaxStyle,
        typer.Option(help="As with --emit jax."),
    ] = "explicit",
    values: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write what the step takes and gives in eager: for code of --emit torch.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.json",
            help="Write what each computation takes as it runs, beside what is predicted, as a "
            "trace (Perfetto).",
        ),
    ] = None,
    allow_lossy: Annotated[
        bool, typer.Option(help="Allow approximate gradients, and compare the others.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a plan with an optimizer.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of PyTorch (those of the plan).")
    ] = None,
    format: FormatOption = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> int:
    """Run one step of a plan and compare it with ordinary autograd.

    The model is read again and must be the one that was planned. Exit code 1 where the
    gradients differ from ordinary autograd, or the measured peak exceeds the proven one;
    with --backend jax, where XLA does not follow the plan.
    """
    from ..plans.files.look import plan_in_text, read_program_text
    from ..plans.files.outputs import check_output, files_of_model
    from ..plans.files.recorded import model_of_plan
    from ..plans.source import check_spec

    errors = Errors()
    options = onnx.read(errors)
    if model is not None:
        errors.collect(lambda: check_spec(model, options))
    if format == "json" and backend == "jax":
        errors.add("FB0707", "--format json only applies to PyTorch", "leave one of them away")
    if profile is not None and backend == "jax":
        hint = "jax.profiler.trace measures what XLA runs"
        errors.add("FB0707", "--profile only applies to PyTorch", hint)
    if values is not None and backend == "jax":
        hint = "--emit jax writes them beside the module"
        errors.add("FB0707", "--values only applies to PyTorch", hint)
    errors.raise_if_any()
    if backend == "jax":
        return _run_jax(plan, schedule, model, options, jax_style, quiet, trust_source)
    read = plan_in_text(*read_program_text(plan), plan, schedule)
    read = replace(read, _allow_lossy=allow_lossy)
    header = read.program.header
    spec = model_of_plan(header, plan, model, options, trust_source=trust_source)
    reads = (*read._reads, *files_of_model(spec, options))
    if values is not None:
        check_output(values, "tensors", reads)
    if profile is not None:
        check_output(profile, "picture", reads)
    if has_updates(read.program):
        return _train(read, spec, options, steps, format, quiet, threads)
    proven, exported, report = _run(read, spec, options, repeats, profile, quiet, threads)
    assert proven.proven is not None
    bound = proven.proven.device_bytes
    status = 0 if _is_equal(proven, report) and report.measured_bytes <= bound else 1
    if format == "json":
        print_object(
            "run",
            proven_bytes=bound,
            predicted_bytes=proven.peak_bytes,
            predicted_time_s=proven.time_s,
            report=report,
            assuming=[a.text for a in proven.assuming],
        )
    else:
        _print(proven, report, bound)
    if values is not None:
        from ..plans.compare.step_values import write_step_values

        write_step_values(proven.program, proven.schedule, exported, values, reads)
    for written in filter(None, (profile, values)):
        echo(f"wrote {written}", file=sys.stderr if format == "json" else sys.stdout)
    return status


def _run(
    plan: Plan,
    spec: str,
    options: ModelOptions,
    repeats: int,
    profile: str | None,
    quiet: bool,
    threads: int | None,
) -> tuple[Plan, Exported, StepReport]:
    """The proven plan, its model, and one step beside ordinary autograd; writes the profile."""
    from ..plans.bind import bind
    from ..plans.files.recorded import load_as_planned
    from ..plans.link.other_link import link_of_device

    with progress(quiet=quiet) as say:
        say("proving the plan")
        proven = plan.trusted()
        say(f"capturing {spec}")
        source = load_as_planned(plan.program, spec, options, threads)
        say("generating the step")
        compiled = bind(proven.program, proven.schedule, source.exported)
        say("running the step, and ordinary autograd beside it")
        from ..plans.compare.step import compare_step

        report = compare_step(proven, compiled, source.exported, repeats)
        if profile is not None:
            from ..plans.compare.profile import measured_steps
            from ..plans.files.files import write_text
            from ..report.trace import trace_json

            say("measuring each computation")
            steps = measured_steps(proven, compiled, source.exported, repeats)
            write_text(profile, trace_json(proven._subject, steps))
    other = link_of_device(proven, source.exported.device)
    here = () if other is None else (other,)
    print_warnings((*source.warnings, *source.exported.warnings, *here))
    return proven, source.exported, report


def _train(
    plan: Plan,
    spec: str,
    options: ModelOptions,
    steps: int,
    format: str,
    quiet: bool,
    threads: int | None,
) -> int:
    """Exit code 1 where losses, parameters or states differ from ordinary training, or the measured
    peak exceeds the proven one."""
    from ..backends.torch import TrainingStep
    from ..plans.bind import bind
    from ..plans.compare.train import compare_training
    from ..plans.files.recorded import load_as_planned

    with progress(quiet=quiet) as say:
        say("proving the plan")
        proven = plan.trusted()
        say(f"capturing {spec}")
        source = load_as_planned(plan.program, spec, options, threads)
        say("generating the step")
        step = bind(proven.program, proven.schedule, source.exported, optimizer=source.optimizer)
        say(f"training {steps} steps, and in the ordinary way beside it")
        assert isinstance(step, TrainingStep)
        report = compare_training(proven, step, source.exported, steps)
    print_warnings((*source.warnings, *source.exported.warnings))
    assert proven.proven is not None
    bound, host = proven.proven.device_bytes, proven.proven.host_bytes
    within = report.measured_bytes <= bound and report.host_measured_bytes <= host
    if format == "json":
        print_object("run", proven_bytes=bound, proven_host_bytes=host, report=report)
    else:
        rows: list[tuple[Any, ...]] = [
            ("", "proven", "measured", "ordinary training"),
            (
                "peak memory",
                f"<= {format_bytes(bound)}",
                format_bytes(report.measured_bytes),
                format_bytes(report.eager_bytes),
            ),
            (
                "on the host",
                f"<= {format_bytes(host)}",
                format_bytes(report.host_measured_bytes),
                "",
            ),
            (
                "step time",
                f"{proven.time_s * 1e3:.3f} ms predicted",
                f"{report.time_s * 1e3:.3f} ms",
                f"{report.eager_time_s * 1e3:.3f} ms",
            ),
        ]
        echo(*columns(rows))
        if report.differing:
            echo(f"not bit-equal after {report.steps} steps: {', '.join(report.differing[:5])}")
        else:
            echo(
                f"losses, parameters and states: bit-equal to ordinary training after "
                f"{report.steps} steps ({report.tensors} tensors compared)"
            )
        if not within:
            echo("the measured peak exceeds the proven bound")
    return 0 if within and not report.differing else 1


def _is_equal(plan: Plan, report: StepReport) -> bool:
    """In every bit; where cNodes are fused, up to rounding."""
    from ..plans.fusion.kernels import has_regions, rounding

    if report.bit_equal or not has_regions(plan.program):
        return report.bit_equal
    return report.max_difference <= rounding(plan.program)


def _gap(plan: Plan, report: StepReport) -> list[str]:
    """Why the measured time is not the predicted one, where they differ by more than a tenth."""
    predicted_ns, measured_ns = plan.trace.time_ns, round(report.time_s * 1e9)
    if not predicted_ns:
        return ["no time is predicted: the plan holds none of its computations"]
    if abs(measured_ns - predicted_ns) <= predicted_ns / 10:
        return []
    device = plan.program.target.name
    if plan.program.header.costs == "roofline":
        return [f"predicted for {device} from its figures, measured on this machine"]
    if measured_ns < predicted_ns:
        return ["faster than predicted: the computations were measured one by one, or under load"]
    runs = sum(plan.trace.executions.values())
    each = format_ns((measured_ns - predicted_ns) // runs)
    return [
        "predicted is the sum of the computations, each measured by itself; a run adds calling "
        f"them, {each} for each of {runs}, the loss and autograd around them, and what else the "
        "machine does (--profile shows each)"
    ]


def _print(plan: Plan, report: StepReport, bound: int) -> None:
    from .shared.verdicts import assuming_lines
    from .show import traffic

    rows: list[tuple[Any, ...]] = [
        ("", "proven", "predicted", "measured", "ordinary autograd"),
        (
            "peak memory",
            f"<= {format_bytes(bound)}",
            format_bytes(plan.peak_bytes),
            format_bytes(report.measured_bytes),
            format_bytes(report.eager_bytes),
        ),
        (
            "step time",
            "",
            f"{plan.time_s * 1e3:.3f} ms",
            f"{report.time_s * 1e3:.3f} ms",
            f"{report.eager_time_s * 1e3:.3f} ms",
        ),
    ]
    echo(*columns(rows))
    echo(*_gap(plan, report))
    if report.bit_equal:
        compared = report.tensors - report.irreproducible
        echo(f"gradients: bit-equal to ordinary autograd ({compared} tensors compared)")
        if report.irreproducible:
            most = f"{report.max_difference:.3g} of the largest value"
            whose = "in ordinary autograd or in the same kernels"
            echo(f"{report.irreproducible} more change from step to step, {whose}; here by {most}")
    else:
        text = f"gradients: largest difference {report.max_difference:.3g} of the largest value"
        fused = "; fused cNodes may differ by rounding" if _is_equal(plan, report) else ""
        echo(f"{text}{fused}")
    if report.approximate:
        most = f"{report.approximate_difference:.3g} of the largest value"
        echo(f"{report.approximate} gradients are approximate, by lossy codecs: here by {most}")
    echo(*report.above(bound, plan.program.header.device))
    if plan.trace.copies:
        echo(*traffic(plan))
    echo(*assuming_lines(plan.assuming))


def _run_jax(
    path: str,
    schedule: str | None,
    model: str | None,
    options: ModelOptions,
    style: JaxStyle,
    quiet: bool,
    trust_source: bool = False,
) -> int:
    """Exit code 1 where XLA does not follow the plan, or the gradients are not PyTorch's."""
    from ..api import load
    from ..backends.jax.check import need_jax

    need_jax()
    read = load(path, schedule)
    from ..plans.jax.make import jax_step
    from ..plans.jax.run import run_step, set_precision

    set_precision(read.program)

    with progress(quiet=quiet) as say:
        say("proving the plan")
        plan = read.trusted()
        say("generating the step")
        step = jax_step(plan, style=style)
        exported, why = _model(plan, path, model, options, trust_source)
        say("compiling the step and looking at it")
        report = run_step(plan, step, exported)
    return print_jax(plan, report, why)


def _model(
    plan: Plan, path: str, spec: str | None, options: ModelOptions, trust_source: bool
) -> tuple[Exported | None, str]:
    """The model to compare with: the one named, or the recorded one if it may be loaded;
    else why there is none."""
    from ..plans.files.recorded import NoSourceModel, load_as_planned, model_of_plan

    header = plan.program.header
    try:
        spec = model_of_plan(header, path, spec, options, trust_source=trust_source)
    except NoSourceModel as error:
        return None, error.diagnostics[0].message
    return load_as_planned(plan.program, spec, options).exported, ""


def print_jax(plan: Plan, report: JaxReport, why: str) -> int:
    from ..backends.jax.observe.absences import Absence

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
