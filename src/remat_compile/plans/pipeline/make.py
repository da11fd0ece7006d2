"""From the step of one micro-batch to a pipeline that is simulated and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from time import monotonic

from ...ir.diagnostics import FBError, Note, fail
from ...ir.pipeline import Claims, Pipeline
from ...ir.program import Program
from ...ir.semantics.pipeline import PipelineTrace, simulate_pipeline
from ...ir.text.pipeline import format_pipeline
from ...ir.units import format_bytes, format_ns
from ...planners.contract import Infeasible, Progress
from ...planners.pipeline.contract import PipelinePlan, PipelinePlanner, parse_pipeline_planner
from ...planners.pipeline.from_program import StepLayers
from ...planners.pipeline.madpipe import least_period_bound
from ...planners.pipeline.parts import StageParts
from ...planners.pipeline.pattern import first_true
from ...planners.pipeline.rows import pipeline_of
from ...verifier.pipeline import PipelineVerdict, check_pipeline
from ..budget import parse_budget
from ..link.link import parse_link
from ..messages.table import columns
from ..options import Errors
from ..request import check_time_limit

_TRIES = 8
_BUBBLE = 0.1
_MOST_MICROBATCHES = 512
_BOUND_S = 5.0
_BOUND_LAYERS = 40
"""Labels without a grid are sought for the bound of chains up to this long."""


@dataclass(frozen=True)
class PipelineRequest:
    """A request, understood: `budget_bytes` is per rank, the link that of each pair of ranks.
    Without `microbatches`, the fewest of which the bubble is at most a tenth."""

    planner: PipelinePlanner
    ranks: int
    microbatches: int | None
    budget_bytes: int | None = None
    link_bytes_per_s: int | None = None
    time_limit_s: float = 60.0

    def on(self, ranks: int) -> PipelineRequest:
        return replace(self, ranks=ranks)


def read_pipeline_request(
    errors: Errors,
    planner: str,
    microbatches: int | str,
    budget: str | int | None = None,
    link: str | None = None,
    time_limit_s: float = 60.0,
    ranks: int = 1,
) -> PipelineRequest | None:
    """The request, or None after adding to `errors`: FB0450 and FB0451 for the budget, FB0472 for
    the link, FB1021 for the planner and those of its text, FB1023 for no micro-batch."""
    before = len(errors.diagnostics)
    found = errors.collect(lambda: parse_pipeline_planner(planner))
    number = None if microbatches == "auto" else _number(microbatches)
    if number is not None and number < 1:
        errors.add("FB1023", f"{microbatches!r} micro-batches", "give at least one, or auto")
    size = rate = None
    if budget is not None and (bound := errors.collect(lambda: parse_budget(budget))) is not None:
        if bound.form != "bytes":
            hint = "the budget of a rank is a number of bytes; write for example 8GiB"
            errors.add("FB0450", f'cannot read the budget "{budget}"', hint)
        size = int(bound.amount)
    if link is not None and (read := errors.collect(lambda: parse_link(link))) is not None:
        rate = read.d2h_bytes_per_s
    check_time_limit(errors, time_limit_s)
    if found is None or len(errors.diagnostics) > before:
        return None
    return PipelineRequest(found, ranks, number, size, rate, time_limit_s)


def _number(microbatches: int | str) -> int:
    """The number that is written, 0 for what is none."""
    text = str(microbatches)
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else 0


@dataclass(frozen=True)
class MadePipeline:
    """A pipeline with its claims, where it came from, and what was found of it twice.

    `bound_ns` is a lower bound on the period of periodic pipelines with at most one rank of several
    stages; if the plan makes nothing again, of those that do not either. `step` has the cNodes of
    `parts`.
    """

    pipeline: Pipeline
    plan: PipelinePlan
    step: StepLayers
    parts: tuple[StageParts, ...]
    trace: PipelineTrace
    verdict: PipelineVerdict
    bound_ns: int

    @property
    def text(self) -> str:
        return format_pipeline(self.pipeline)

    def summary(self) -> str:
        """A table of ranks, and the times of the step."""
        p, trace = self.pipeline, self.trace
        rows = [("rank", "stages", "modules", "busy", "peak")]
        for rank in range(p.ranks):
            mine = [s for s in p.stages if s.rank == rank]
            rows.append(
                (
                    str(rank),
                    ", ".join(f"{s.first}..{s.last}" for s in mine),
                    ", ".join(filter(None, (self.step.name(s.first) for s in mine))),
                    format_ns(trace.busy_ns_R[rank]),
                    format_bytes(trace.peak_bytes_R[rank]),
                )
            )
        held = "" if self.verdict.synchronous else " not"
        return "\n".join(
            [
                *columns(rows),
                f"planned period {format_ns(self.plan.period_ns)} per micro-batch, at least "
                f"{format_ns(self.bound_ns)}; the step of {p.microbatches} micro-batches takes "
                f"{format_ns(trace.makespan_ns)}, {trace.bubble:.0%} of it idle",
                "checked twice: bytes of each rank, copies matched, no deadlock whether copies are "
                f"buffered or not; it would{held} hold if each copy held up both its ranks",
            ]
        )


def make_pipeline(
    program: Program | StepLayers, request: PipelineRequest, progress: Progress | None = None
) -> MadePipeline:
    """The pipeline of a step whose program is that of one micro-batch, with its costs.

    Where rows take more than the planner counted (it counts one buffer each way at a cut), it plans
    again for less. FB1020 where nothing fits, FB1022 for too many ranks.
    """
    step = StepLayers(program) if isinstance(program, Program) else program
    step.check(request.ranks)
    m = request.microbatches or _enough(step, request)
    return _make(step, request, m, progress)


def _enough(step: StepLayers, request: PipelineRequest) -> int:
    """The fewest micro-batches of which the bubble is at most a tenth. FB0736 for too many."""

    def bubble(m: int) -> float:
        return _make(step, request, m, None, bounded=False).trace.bubble

    few, many, idle = 0, 1, bubble(1)
    while idle > _BUBBLE:
        few, many = many, 2 * many
        if many > _MOST_MICROBATCHES:
            message = f"{idle:.0%} of a step of {few} micro-batches is idle"
            fail("FB0736", message, hint="give a number of micro-batches, or a larger budget")
        idle = bubble(many)
    return few + 1 + first_true(many - few, lambda k: bubble(few + 1 + k) <= _BUBBLE)


def _make(
    step: StepLayers,
    request: PipelineRequest,
    m: int,
    progress: Progress | None,
    *,
    bounded: bool = True,
) -> MadePipeline:
    layers = step.layers(request.ranks, request.budget_bytes, request.link_bytes_per_s, m)
    memory, over = request.budget_bytes, 0
    for _ in range(_TRIES):
        asked = layers.with_memory(memory)
        result = request.planner.plan(asked, time_limit_s=request.time_limit_s, progress=progress)
        if isinstance(result, Infeasible):
            short = Note(f"rows of a plan for more memory took {over} bytes above the budget")
            raise FBError(replace(result.why, notes=(short,) if over else ()))
        plan = result.plan
        parts = tuple(
            step.parts(i, j, m, remade=way.remade, defers=plan.pattern.defers(s))
            for s, ((i, j), way) in enumerate(zip(plan.stages, plan.ways, strict=True))
        )
        pipeline = pipeline_of(plan, m, None, parts, step.message_bytes, step.draw_bytes)
        trace = simulate_pipeline(pipeline)
        if request.budget_bytes is None or memory is None:
            break
        over = max(trace.peak_bytes_R) - request.budget_bytes
        if over <= 0:
            break
        memory -= over
    claims = Claims(trace.period_ns, trace.makespan_ns, trace.peak_bytes_R)
    pipeline = replace(pipeline, claims=claims, budget_bytes=request.budget_bytes)
    trace = simulate_pipeline(pipeline)
    verdict = check_pipeline(pipeline)
    if not verdict.holds:
        raise FBError(verdict.problems)
    bound = layers.least_period_ns
    shared = sum(plan.ranks.count(rank) > 1 for rank in set(plan.ranks))
    if bounded and len(layers.cuts) <= _BOUND_LAYERS and shared < 2:
        remakes = any(way.remade for way in plan.ways)
        shape = step.bound_layers(layers, remakes=remakes)
        bound = least_period_bound(shape, monotonic() + _BOUND_S)
    return MadePipeline(pipeline, plan, step, parts, trace, verdict, bound)
