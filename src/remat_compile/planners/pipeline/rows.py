"""From a planned pattern to rows: what each rank does, in order, and the copies between.

Computations of a rank stand by their planned starts. A copy stands, on both sides, before the
computation that is planned to run or to begin when the copy begins: so rows of a pair order their
copies alike, and a receiver has posted in time. A `wait` stands before the first reader, or for a
sender where the copy is planned to have ended; the `free` of what a backward still reads after it.
Each edge between steps goes forward in planned time, so no rows wait for each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from ...ir.pipeline import Move, OnValue, Pipeline, PipelineStage, RowStep, StageRun, Value
from .contract import PipelinePlan
from .parts import StageParts


def pipeline_of(
    plan: PipelinePlan,
    microbatches: int,
    budget_bytes: int | None,
    parts: Sequence[StageParts] | None = None,
    message_bytes: int = 0,
    draw_bytes: int = 0,
) -> Pipeline:
    """The rows of a plan for one step of so many micro-batches; bytes of stages by their `parts`
    where these are known."""
    layers = plan.layers
    bare = Pipeline(
        plan.planner,
        microbatches,
        tuple(_stage(plan, s, parts[s] if parts else None) for s in range(len(plan.stages))),
        ((),) * max(layers.ranks, max(plan.ranks) + 1),
        layers.link_bytes_per_s,
        budget_bytes,
        message_bytes=message_bytes,
        draw_bytes=draw_bytes,
    )
    return replace(bare, rows=tuple(_Row(plan, bare, rank).steps() for rank in range(bare.ranks)))


def _stage(plan: PipelinePlan, s: int, parts: StageParts | None) -> PipelineStage:
    layers, (i, j), way = plan.layers, plan.stages[s], plan.ways[s]
    forward_ns = sum(layers.forward_ns_L[i:j])
    weight_ns = sum(layers.weight_ns_L[i:j]) if plan.pattern.defers(s) else 0
    is_last = j == len(layers)
    keep = way.keep_bytes
    keep -= layers.activation_bytes_B[i] if layers.reads_input(i) else 0
    keep -= layers.activation_bytes_B[j] if layers.reads_output(j) else 0
    reads_input = layers.reads_input(i) or any(a == i for a, _ in way.remade)
    reads_output = layers.reads_output(j)
    if parts:
        reads_input, reads_output = parts.reads_input, parts.reads_output
    return PipelineStage(
        rank=plan.ranks[s],
        first=i,
        last=j,
        forward_ns=forward_ns,
        backward_ns=way.load_ns - forward_ns - weight_ns,
        held_bytes=parts.held_bytes if parts else layers.weight_bytes(i, j),
        keep_bytes=parts.keep_bytes if parts else keep,
        forward_extra_bytes=parts.forward_extra_bytes if parts else layers.extra_bytes(i, j),
        backward_extra_bytes=parts.backward_extra_bytes if parts else way.extra_bytes,
        activation_bytes=0 if is_last else layers.activation_bytes_B[j],
        gradient_bytes=0 if is_last else layers.gradient_bytes_B[j],
        weight_ns=weight_ns,
        weight_keep_bytes=parts.weight_keep_bytes if parts else keep if weight_ns else 0,
        weight_extra_bytes=parts.weight_extra_bytes if parts else 0,
        weight_sums_bytes=parts.weight_sums_bytes if parts else 0,
        weight_first_bytes=parts.weight_first_bytes if parts else 0,
        sums_bytes=parts.sums_bytes if parts else 0,
        first_extra_bytes=parts.first_extra_bytes if parts else 0,
        closing_bytes=parts.closing_bytes if parts else 0,
        reads_input=bool(i) and reads_input,
        reads_output=not is_last and reads_output,
        remade=way.remade,
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    start_ns: int
    end_ns: int
    run: StageRun

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Planned order; where starts are equal, what ends first, then forwards."""
        return (self.start_ns, self.end_ns, self.run.word != "fwd", self.run.stage)


class _Row:
    """The row of one rank: `before[k]` are the steps before its k-th computation."""

    def __init__(self, plan: PipelinePlan, pipeline: Pipeline, rank: int):
        self.plan, self.pipeline, self.rank = plan, pipeline, rank
        timed: list[_Timed] = []
        for s, stage in enumerate(pipeline.stages):
            if stage.rank != rank:
                continue
            for k, word in product(range(pipeline.microbatches), stage.passes):
                start = plan.pattern.start_ns(word, 2 * s, k)
                timed.append(_Timed(start, start + stage.pass_ns(word), StageRun(word, s, k)))
        timed.sort(key=lambda t: t.key)
        self.runs = [t.run for t in timed]
        self.place = {run: n for n, run in enumerate(self.runs)}
        self.starts = [t.start_ns for t in timed]
        self.ends = [t.end_ns for t in timed]
        # Issues and waits for what was sent by planned time; waits for what is read next; frees.
        slots = range(len(timed) + 1)
        self.copies: list[list[tuple[int, int, Move | OnValue]]] = [[] for _ in slots]
        self.waits: list[list[OnValue]] = [[] for _ in slots]
        self.frees: list[list[OnValue]] = [[] for _ in slots]

    def steps(self) -> tuple[RowStep, ...]:
        for s in range(self.pipeline.last_stage):
            for k in range(self.pipeline.microbatches):
                self._value(("act", s, k))
                if self.pipeline.has_gradient(s):
                    self._value(("grad", s, k))
        row: list[RowStep] = []
        for n in range(len(self.runs) + 1):
            row += self.frees[n]
            for _, _, step in sorted(self.copies[n], key=lambda copy: copy[:2]):
                row.append(step)
                if isinstance(step, OnValue):
                    row += self._late_free(step.value, n)
            row += self.waits[n]
            row += self.runs[n : n + 1]
        return tuple(row)

    def _late_free(self, value: Value, n: int) -> list[OnValue]:
        """The free of a sent value, unless the backward reads it later."""
        last = self._last_use(value)
        return [OnValue("free", value)] if last is None or last < n else []

    def _last_use(self, value: Value) -> int | None:
        """The place of the last computation of this rank that reads it."""
        kind, s, k = value
        stages, readers = self.pipeline.stages, []
        if kind == "grad":
            readers += [StageRun("bwd", s, k), StageRun("wgt", s, k)]
        else:
            readers.append(StageRun("fwd", s + 1, k))
            if stages[s + 1].reads_input:
                readers += [StageRun("bwd", s + 1, k), StageRun("wgt", s + 1, k)]
            if stages[s].reads_output:
                readers.append(StageRun("bwd", s, k))
        places = [self.place[run] for run in readers if run in self.place]
        return max(places, default=None)

    def _value(self, value: Value) -> None:
        """Enters the steps of this rank about one value."""
        kind, s, k = value
        made_by, read_by = self.pipeline.ends_of(kind, s)
        if self.rank not in (made_by, read_by):
            return
        last = self._last_use(value)
        if made_by == read_by:
            assert last is not None
            self.frees[last + 1].append(OnValue("free", value))
            return
        pattern, copy_ns = self.plan.pattern, self.pipeline.copy_ns(kind, s)
        forward = kind == "act"
        begin = pattern.start_ns("fwd" if forward else "bwd", 2 * s + 1, k)
        issue = bisect_right(self.ends, begin) if self.ends else 0
        if self.rank == made_by:
            maker = StageRun("fwd", s, k) if forward else StageRun("bwd", s + 1, k)
            issue = max(issue, self.place[maker] + 1)
            self.copies[issue].append((begin, 1, Move("send", value, read_by)))
            wait = max(issue + 1, bisect_left(self.starts, begin + copy_ns))
            wait = min(wait, len(self.runs))
            if last is not None and last >= wait:
                self.frees[last + 1].append(OnValue("free", value))
            ends = begin + copy_ns
            # At one moment waits go first: they make room. Not before their own issue.
            order = 2 if wait == issue and not copy_ns else 0
            self.copies[wait].append((ends, order, OnValue("wait", value)))
            return
        reader = StageRun("fwd", s + 1, k) if forward else StageRun("bwd", s, k)
        issue = min(issue, self.place[reader])
        self.copies[issue].append((begin, 1, Move("recv", value, made_by)))
        self.waits[self.place[reader]].append(OnValue("wait", value))
        assert last is not None
        self.frees[last + 1].append(OnValue("free", value))
