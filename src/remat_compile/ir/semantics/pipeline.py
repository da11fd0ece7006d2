"""Runs a pipeline from event to event: rows of all ranks, and the links between them.

A copy begins when both sides have issued it, the copy before it between the two ranks has ended
(one at a time, in both directions together), and takes its bytes at the link's rate. `wait` holds
the row until its copy has ended; nothing else waits. So times are longest paths, and rows that
never end are rows of which each waits for another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..diagnostics import Diagnostic, FBError, Note, fail
from ..pipeline import WAYS_OUT, Move, Pipeline, RowStep, StageRun, Value
from ..text.pipeline import format_row_step
from .rank import RankMachine

Pair = tuple[int, int]
Span_ns = tuple[int, int]


@dataclass(frozen=True)
class PipelineTrace:
    """Begin and end of each step by rank, of each copy, and the bytes of each rank.

    `period_ns` is the mean time from one micro-batch's last backward to the next one's, rounded up;
    of a single micro-batch the time of the step.
    """

    makespan_ns: int
    period_ns: int
    peak_bytes_R: tuple[int, ...]
    peak_step_R: tuple[int, ...]
    busy_ns_R: tuple[int, ...]
    spans_R: tuple[tuple[Span_ns, ...], ...]
    copies: dict[Value, Span_ns]

    @property
    def bubble(self) -> float:
        """Idle time of the busiest rank, as a share of the step."""
        return 1 - max(self.busy_ns_R) / self.makespan_ns if self.makespan_ns else 0.0


def simulate_pipeline(pipeline: Pipeline) -> PipelineTrace:
    """Raises the first broken rule: FB1002 to FB1018 (`spec/diagnostics.d/pipelines.md`)."""
    check_declarations(pipeline)
    machines = [RankMachine(pipeline, rank) for rank in range(pipeline.ranks)]
    for machine in machines:
        machine.run()
    trace = _Clock(pipeline, _channels(pipeline)).trace(machines)
    _check_budget(pipeline, trace)
    _check_claims(pipeline, trace)
    return trace


def check_declarations(pipeline: Pipeline) -> None:
    """FB1002 for stages that are no partition of the layers, or ranks without a row; FB1005 where
    rows are too short for all micro-batches."""
    end = 0
    for number, s in enumerate(pipeline.stages):
        if s.first != end or s.last <= s.first or s.rank >= pipeline.ranks:
            message = f"stage {number} has layers {s.first}..{s.last} on rank {s.rank}"
            fail("FB1002", message, s.span, hint=WAYS_OUT["FB1002"])
        end = s.last
    runs = sum(isinstance(step, StageRun) for row in pipeline.rows for step in row)
    if pipeline.microbatches > runs:
        message = f"{pipeline.microbatches} micro-batches in {runs} forwards and backwards"
        fail("FB1005", message, hint=WAYS_OUT["FB1005"])
    first, last = pipeline.stages[0], pipeline.stages[-1]
    if first.reads_input or last.activation_bytes or last.gradient_bytes or last.reads_output:
        message = "something crosses before the first stage or behind the last"
        fail("FB1002", message, last.span, hint="write crosses 0 0 and no such reads")


def _channels(pipeline: Pipeline) -> dict[Pair, list[Value]]:
    """The copies of each pair of ranks in their order. FB1014 for a copy that only one side
    issues, FB1015 where the two sides order them differently."""
    by_rank: dict[tuple[int, int], list[Move]] = {}
    for rank, row in enumerate(pipeline.rows):
        for step in row:
            if isinstance(step, Move):
                by_rank.setdefault((rank, step.peer), []).append(step)
    channels: dict[Pair, list[Value]] = {}
    for rank, peer in sorted({(min(pair), max(pair)) for pair in by_rank}):
        here, there = by_rank.get((rank, peer), []), by_rank.get((peer, rank), [])
        for some, others, other in ((here, there, peer), (there, here, rank)):
            known = {move.value for move in others}
            for move in some:
                if move.value not in known:
                    message = f"{format_row_step(move)}: rank {other} does not issue the other side"
                    fail("FB1014", message, move.span, hint=WAYS_OUT["FB1014"])
        for ours, theirs in zip(here, there, strict=True):
            if ours.value != theirs.value:
                message = f"ranks {rank} and {peer} order their copies differently: here is "
                message += f"{format_row_step(ours)}, there {format_row_step(theirs)}"
                note = Note("the other side", theirs.span)
                fail("FB1015", message, ours.span, note, hint=WAYS_OUT["FB1015"])
        channels[rank, peer] = [move.value for move in here]
    return channels


class _Clock:
    def __init__(self, pipeline: Pipeline, channels: dict[Pair, list[Value]]):
        self.pipeline = pipeline
        self.queues = {pair: deque(values) for pair, values in channels.items()}
        self.free_ns = dict.fromkeys(channels, 0)
        self.issued: dict[Value, list[int]] = {}
        self.copies: dict[Value, Span_ns] = {}
        self.spans: list[list[Span_ns]] = [[] for _ in pipeline.rows]
        self.now = [0] * pipeline.ranks
        self.busy = [0] * pipeline.ranks

    def trace(self, machines: list[RankMachine]) -> PipelineTrace:
        progress = True
        while progress:
            progress = any(self._advance(rank) for rank in range(self.pipeline.ranks))
        self._check_all_ended()
        makespan = max(self.now)
        return PipelineTrace(
            makespan,
            self._period(makespan),
            tuple(m.peak_bytes for m in machines),
            tuple(m.peak_step for m in machines),
            tuple(self.busy),
            tuple(map(tuple, self.spans)),
            self.copies,
        )

    def _advance(self, rank: int) -> bool:
        """Runs a row until it waits for a copy that has no end yet; False if it did nothing."""
        row, spans = self.pipeline.rows[rank], self.spans[rank]
        began = len(spans)
        while len(spans) < len(row):
            step, now = row[len(spans)], self.now[rank]
            end = now
            if isinstance(step, StageRun):
                ns = self.pipeline.stages[step.stage].pass_ns(step.word)
                self.busy[rank] += ns
                end = now + ns
            elif isinstance(step, Move):
                self.issued.setdefault(step.value, []).append(now)
                self._start_copies((min(rank, step.peer), max(rank, step.peer)))
            elif step.word == "wait":
                if step.value not in self.copies:
                    break
                end = max(now, self.copies[step.value][1])
            spans.append((now, end))
            self.now[rank] = end
        return len(spans) > began

    def _start_copies(self, pair: Pair) -> None:
        """Return the operations at the head of the queue that both sides have issued."""
        queue = self.queues[pair]
        while queue and len(self.issued.get(queue[0], ())) == 2:
            value = queue.popleft()
            start = max(*self.issued[value], self.free_ns[pair])
            end = start + self.pipeline.copy_ns(value[0], value[1])
            self.copies[value] = (start, end)
            self.free_ns[pair] = end

    def _check_all_ended(self) -> None:
        """FB1016 with the step at which each rank stands still."""
        stuck: list[tuple[int, RowStep]] = [
            (rank, row[len(spans)])
            for rank, (row, spans) in enumerate(zip(self.pipeline.rows, self.spans, strict=True))
            if len(spans) < len(row)
        ]
        if not stuck:
            return
        notes = tuple(
            Note(f"rank {rank} stands at {format_row_step(step)}", step.span)
            for rank, step in stuck
        )
        message = "deadlock: every rank that has not ended waits for a copy that never begins"
        raise FBError(Diagnostic("FB1016", message, stuck[0][1].span, notes, WAYS_OUT["FB1016"]))

    def _period(self, makespan: int) -> int:
        ends = sorted(
            span[1]
            for row, spans in zip(self.pipeline.rows, self.spans, strict=True)
            for step, span in zip(row, spans, strict=True)
            if isinstance(step, StageRun) and step.word == "bwd" and step.stage == 0
        )
        if len(ends) < 2:
            return makespan
        return -(-(ends[-1] - ends[0]) // (len(ends) - 1))


def _check_budget(pipeline: Pipeline, trace: PipelineTrace) -> None:
    """FB1017 for the first rank above the budget."""
    budget = pipeline.budget_bytes
    if budget is None:
        return
    for rank, peak in enumerate(trace.peak_bytes_R):
        if peak > budget:
            row, number = pipeline.rows[rank], trace.peak_step_R[rank]
            step = row[number] if 0 <= number < len(row) else None
            outside = " before the first step" if number < 0 else " after the last step"
            place = f" at {format_row_step(step)}" if step else outside
            message = f"rank {rank} takes {peak} bytes{place}; the budget is {budget}"
            fail("FB1017", message, step.span if step else None, hint=WAYS_OUT["FB1017"])


def _check_claims(pipeline: Pipeline, trace: PipelineTrace) -> None:
    """FB1018 for claims that are not what the rows take."""
    claims = pipeline.claims
    if claims is None:
        return
    pairs = (
        ("a period", claims.period_ns, trace.period_ns),
        ("a makespan", claims.makespan_ns, trace.makespan_ns),
        ("peaks", claims.peak_bytes_R, trace.peak_bytes_R),
    )
    for what, claimed, real in pairs:
        if claimed != real:
            message = f"{what} of {claimed} is claimed, and the rows take {real}"
            fail("FB1018", message, claims.span, hint=WAYS_OUT["FB1018"])
