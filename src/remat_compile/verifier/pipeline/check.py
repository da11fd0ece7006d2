"""The proof of a pipeline, or everything that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.diagnostics import Diagnostic
from ...ir.pipeline import WAYS_OUT, Pipeline
from .order import EventOrder, matching
from .positions import RowPositions


@dataclass(frozen=True)
class PipelineVerdict:
    """`problems` is empty for a pipeline that is right: each rank's memory is used as it says,
    copies match, no rows wait for each other whether copies are buffered or not, every
    forward and backward runs once and in ascending order, and the claims hold.

    `synchronous`: rows would not wait for each other even if each copy held up both its ranks.
    """

    problems: tuple[Diagnostic, ...]
    peak_bytes_R: tuple[int, ...] = ()
    makespan_ns: int = 0
    period_ns: int = 0
    synchronous: bool = False

    @property
    def holds(self) -> bool:
        return not self.problems


def check_pipeline(pipeline: Pipeline) -> PipelineVerdict:
    """The verdict. Linear in the steps. FB1002 to FB1018."""
    if problems := _declarations(pipeline):
        return PipelineVerdict(tuple(problems))
    rows = [RowPositions(pipeline, rank) for rank in range(len(pipeline.rows))]
    problems = [problem for row in rows for problem in row.check()]
    problems += matching(pipeline)
    if problems:
        return PipelineVerdict(tuple(problems))
    order = EventOrder(pipeline)
    if (deadlock := order.deadlock()) is not None:
        return PipelineVerdict((deadlock,))
    peaks = tuple(row.peak_bytes() for row in rows)
    ends_ns = order.ends_ns()
    makespan = max(ends_ns.values(), default=0)
    at = [rows[pipeline.stages[0].rank].runs["bwd", 0, k][0] for k in range(pipeline.microbatches)]
    ends = [ends_ns[pipeline.stages[0].rank, n] for n in at]  # ascending, as micro-batches are
    period = makespan if len(ends) < 2 else -((ends[0] - ends[-1]) // (len(ends) - 1))
    synchronous = EventOrder(pipeline, synchronous=True).deadlock() is None
    problems = _bounds(pipeline, peaks, makespan, period)
    return PipelineVerdict(tuple(problems), peaks, makespan, period, synchronous)


def _declarations(pipeline: Pipeline) -> list[Diagnostic]:
    stages, ends = pipeline.stages, (0, *(stage.last for stage in pipeline.stages))
    wrong = [
        (f"stage {n} does not fit", stage.span)
        for n, stage in enumerate(stages)
        if stage.first != ends[n] or stage.first >= stage.last or stage.rank >= len(pipeline.rows)
    ]
    behind = stages[-1].activation_bytes or stages[-1].gradient_bytes or stages[-1].reads_output
    if behind or stages[0].reads_input:
        wrong.append(("an outer stage has something behind or before it", None))
    problems = [Diagnostic("FB1002", why, span, hint=WAYS_OUT["FB1002"]) for why, span in wrong]
    if pipeline.microbatches > sum(map(len, pipeline.rows)):  # before anything loops over them
        problems.append(Diagnostic("FB1005", "rows are too short", hint=WAYS_OUT["FB1005"]))
    return problems


def _bounds(
    pipeline: Pipeline, peaks: tuple[int, ...], makespan: int, period: int
) -> list[Diagnostic]:
    """FB1017 for the budget, FB1018 for the claims."""
    budget, claims = pipeline.budget_bytes, pipeline.claims
    problems = [
        Diagnostic("FB1017", f"row {n} takes {peak} bytes of {budget}", hint=WAYS_OUT["FB1017"])
        for n, peak in enumerate(peaks)
        if budget is not None and peak > budget
    ]
    real = (peaks, makespan, period)
    if claims and (claims.peak_bytes_R, claims.makespan_ns, claims.period_ns) != real:
        message = f"other peaks, makespan or period are claimed than {real}"
        problems.append(Diagnostic("FB1018", message, claims.span, hint=WAYS_OUT["FB1018"]))
    return problems
