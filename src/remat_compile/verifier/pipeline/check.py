"""What is proven of a pipeline, or everything that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.diagnostics import Diagnostic
from ...ir.pipeline import Pipeline
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
    makespan = max(order.ends_ns().values(), default=0)
    ends = sorted(order.last_backwards_ns())
    period = makespan if len(ends) < 2 else -((ends[0] - ends[-1]) // (len(ends) - 1))
    synchronous = EventOrder(pipeline, synchronous=True).deadlock() is None
    problems = [*_budget(pipeline, peaks), *_claims(pipeline, peaks, makespan, period)]
    return PipelineVerdict(tuple(problems), peaks, makespan, period, synchronous)


def _declarations(pipeline: Pipeline) -> list[Diagnostic]:
    stages, ranks = pipeline.stages, len(pipeline.rows)
    ends = (0, *(stage.last for stage in stages))
    problems = [
        Diagnostic("FB1002", f"stage {s} does not fit", stage.span, hint="stages cut the layers")
        for s, stage in enumerate(stages)
        if stage.first != ends[s] or stage.first >= stage.last or stage.rank >= ranks
    ]
    outer = stages[-1].activation_bytes or stages[-1].gradient_bytes or stages[-1].reads_output
    if outer or stages[0].reads_input:
        hint = "nothing crosses before the first stage or behind the last"
        problems.append(Diagnostic("FB1002", "an outer stage does not fit", None, hint=hint))
    return problems


def _budget(pipeline: Pipeline, peaks: tuple[int, ...]) -> list[Diagnostic]:
    budget = pipeline.budget_bytes
    return [
        Diagnostic(
            "FB1017",
            f"row {rank} takes {peak} bytes, the budget is {budget}",
            hint="plan for the budget",
        )
        for rank, peak in enumerate(peaks)
        if budget is not None and peak > budget
    ]


def _claims(
    pipeline: Pipeline, peaks: tuple[int, ...], makespan: int, period: int
) -> list[Diagnostic]:
    claims = pipeline.claims
    if claims is None:
        return []
    claimed = (claims.peak_bytes_R, claims.makespan_ns, claims.period_ns)
    real = (peaks, makespan, period)
    if claimed == real:
        return []
    message = f"peaks, makespan and period {claimed} are claimed; they are {real}"
    return [Diagnostic("FB1018", message, claims.span, hint="write what the rows take")]
