"""`remat-compile pipeline`: plans and checks a step on several ranks, or checks a file of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..plans.options import Errors, PlanKeywords
from .shared.options import OnnxOptions, Output, Planning, Quiet
from .shared.terminal import echo, progress

if TYPE_CHECKING:
    from ..plans.pipeline.make import MadePipeline, PipelineRequest
    from ..plans.request import PlanRequest
    from ..plans.source import ModelOptions

SUFFIX = ".fbpl"


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="As for planning, with the inputs of one micro-batch; or a .fbpl file to check.",
        ),
    ],
    output: Output = None,
    *,
    ranks: Annotated[int, typer.Option(help="Ranks; each has the budget.")] = 2,
    microbatches: Annotated[
        str, typer.Option(help="Micro-batches of a step, or auto: the fewest that leave 10 % idle.")
    ] = "8",
    asked: Annotated[
        PlanKeywords,
        Planning(
            "time_limit_s",
            "costs",
            "device",
            budget="Bound on all bytes of each rank: 8GiB.",
            link="Bandwidth between each pair of ranks: 12GB/s.",
            planner="one-f-one-b, gpipe, pipedream, interleaved, zb-h1, madpipe or pipeline-ilp.",
        ),
    ],
    onnx: OnnxOptions,
    quiet: Quiet = False,
) -> None:
    """Plan one training step of MODEL on several ranks, check it, write its rows."""
    from ..plans.files.files import write_text
    from ..plans.files.outputs import check_output, files_of_model
    from ..plans.pipeline.make import read_pipeline_request
    from ..plans.request import read_request
    from ..plans.source import check_spec, is_program

    if model.endswith(SUFFIX):
        check_file(model, output)
        return
    errors = Errors()
    options = onnx.read(errors)
    planner = str(asked["planner"])
    request = read_pipeline_request(
        errors,
        "one-f-one-b" if planner == "auto" else planner,
        microbatches,
        asked["budget"],
        asked["link"],
        asked["time_limit_s"],
        ranks,
    )
    costs = asked["costs"]
    if costs is None and asked["device"] is None and not is_program(model):
        costs = "measured"
    planning = read_request(errors, costs=costs, device=asked["device"])
    errors.collect(lambda: check_spec(model, options))
    if output is not None:
        reads = files_of_model(model, options, device=asked["device"])
        errors.collect(lambda: check_output(output, "pipeline", reads))
    errors.raise_if_any()
    assert request is not None
    assert planning is not None
    made = _make(model, request, planning, options, quiet)
    if output is not None:
        write_text(output, made.text)
    if not quiet:
        wrote = f"wrote {output}" if output else f"nothing was written; -o FILE{SUFFIX} keeps it"
        echo(*made.summary().splitlines(), wrote)


def _make(
    model: str, request: PipelineRequest, planning: PlanRequest, options: ModelOptions, quiet: bool
) -> MadePipeline:
    from ..plans.files.look import read_program
    from ..plans.make import costed_program
    from ..plans.pipeline.make import make_pipeline
    from ..plans.run_planner import Phases
    from ..plans.source import is_program, load_source

    with progress(quiet=quiet) as say:
        phases = Phases(say)
        with phases.phase("capture", f"reading {model}"):
            source = read_program(model) if is_program(model) else load_source(model, options)
        program = costed_program(source, planning, phases)
        with phases.phase("plan", f"planning {request.ranks} ranks"):
            return make_pipeline(program, request, say)


def check_file(path: str, output: str | None = None) -> None:
    """Both opinions on a file, and who does what when. What is wrong is raised, the verifier's word
    first. `output` is for the schedule of PyTorch's runtime."""
    from ..backends.torch.pipeline import schedule_csv
    from ..ir.diagnostics import FBError, fail
    from ..ir.semantics.pipeline import simulate_pipeline
    from ..ir.text.pipeline import parse_pipeline
    from ..ir.units import format_bytes, format_ns
    from ..plans.files.files import FileRead, read_text, write_text
    from ..plans.files.outputs import check_output
    from ..plans.pipeline.gantt import gantt
    from ..verifier.pipeline import check_pipeline

    pipeline = parse_pipeline(read_text(path), path)
    verdict = check_pipeline(pipeline)
    if not verdict.holds:
        raise FBError(verdict.problems)
    trace = simulate_pipeline(pipeline)
    assert trace.peak_bytes_R == verdict.peak_bytes_R
    assert trace.makespan_ns == verdict.makespan_ns
    peaks = ", ".join(map(format_bytes, trace.peak_bytes_R))
    held = "" if verdict.synchronous else " not"
    lines = [
        f"{pipeline.ranks} ranks, {pipeline.microbatches} micro-batches by {pipeline.planner}: "
        f"step {format_ns(trace.makespan_ns)}, peaks {peaks}",
        "checked: bytes of each rank, copies matched, no deadlock whether copies are buffered or "
        f"not; it would{held} hold if each copy held up both its ranks",
        *gantt(pipeline, trace),
    ]
    if output is not None:
        if not output.endswith(".csv"):
            message = f"{output}: from rows only the schedule of PyTorch's runtime is written"
            fail("FB0737", message, hint="give -o FILE.csv, or a model to plan", usage=True)
        check_output(output, "schedule", [FileRead(Path(path), "the rows")])
        write_text(output, schedule_csv(pipeline))
        lines.append(f"wrote {output}; bytes are not proven in that runtime: it holds a receive")
        lines[-1] += " buffer for each micro-batch"
    echo(*lines)
