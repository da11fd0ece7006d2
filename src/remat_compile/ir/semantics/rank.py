"""Replays the row of one rank on its memory: the rules of `spec/pipelines.md`, step by step.

Bytes are taken when a step of the row is reached and given back by one, so they depend on the row
alone and on no timing of other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import fail
from ..pipeline import WAYS_OUT, Move, OnValue, Pipeline, RowStep, StageRun, Value
from ..text.pipeline import format_row_step


@dataclass
class RankMachine:
    """The state of a rank. `peak_step` is the step of the peak: -1 before the first, the number of
    steps after the last."""

    pipeline: Pipeline
    rank: int
    live: set[Value] = field(default_factory=set)
    in_flight: dict[Value, str] = field(default_factory=dict)
    kept: set[tuple[int, int]] = field(default_factory=set)
    deferred: set[tuple[int, int]] = field(default_factory=set)
    ran: set[tuple[str, int, int]] = field(default_factory=set)
    moved: set[Value] = field(default_factory=set)
    peak_step: int = -1

    def __post_init__(self) -> None:
        stages = self.pipeline.stages
        self.now_bytes = sum(s.held_bytes for s in stages if s.rank == self.rank)
        self.peak_bytes = self.now_bytes + self.pipeline.draw_bytes

    def run(self) -> None:
        """All steps of the row, then the rules about its end. Raises the first broken rule."""
        for number, step in enumerate(self.pipeline.rows[self.rank]):
            self._check_names(step)
            if isinstance(step, StageRun):
                during = self._compute(step)
            elif isinstance(step, Move):
                during = self._move(step)
            else:
                during = self._on_value(step)
            self._reach(during, number)
        self._at_end()

    def _reach(self, during: int, number: int) -> None:
        if during > self.peak_bytes:
            self.peak_bytes, self.peak_step = during, number

    def _require(self, holds: bool, code: str, step: RowStep | None, why: str) -> None:
        if not holds:
            said = "" if step is None else f", {format_row_step(step)}"
            span = None if step is None else step.span
            fail(code, f"rank {self.rank}{said}: {why}", span, hint=WAYS_OUT[code])

    def _check_names(self, step: RowStep) -> None:
        p = self.pipeline
        if isinstance(step, StageRun):
            known = step.stage <= p.last_stage and step.microbatch < p.microbatches
            known = known and step.word in p.stages[step.stage].passes
            self._require(known, "FB1003", step, "there is no such stage, pass or micro-batch")
            rank = p.stages[step.stage].rank
            self._require(rank == self.rank, "FB1004", step, f"the stage is on rank {rank}")
            return
        kind, s, k = step.value
        known = s < p.last_stage and k < p.microbatches and (kind == "act" or p.has_gradient(s))
        self._require(known, "FB1003", step, "no such value crosses")
        made, read = p.ends_of(kind, s)
        here = self.rank in (made, read)
        if isinstance(step, Move):
            here = made != read and (self.rank, step.peer) == (
                (made, read) if step.word == "send" else (read, made)
            )
        why = f"rank {made} makes it and rank {read} reads it"
        self._require(here, "FB1004", step, why)

    def _need(self, value: Value, step: RowStep) -> None:
        name = f"{value[0]} {value[1]} mb {value[2]}"
        self._require(value in self.live, "FB1006", step, f"{name} is not there")
        arrived = self.in_flight.get(value) != "recv"
        self._require(arrived, "FB1007", step, f"nobody has waited for {name}")

    def _take(self, value: Value, step: RowStep) -> None:
        new = value not in self.live and value not in self.moved
        self._require(new, "FB1010", step, "the value was there before")
        self.live.add(value)
        self.now_bytes += self.pipeline.bytes_of(value[0], value[1])

    def _compute(self, step: StageRun) -> int:
        p, s, k = self.pipeline, step.stage, step.microbatch
        stage, key = p.stages[s], (step.word, s, k)
        self._require(key not in self.ran, "FB1005", step, "it ran before")
        in_order = not k or (step.word, s, k - 1) in self.ran
        self._require(in_order, "FB1013", step, f"micro-batch {k - 1} has not run")
        if step.word == "bwd":
            begins = not k and stage.sums_bytes > 0
            own = stage.first_extra_bytes if begins else stage.backward_extra_bytes
            during = self._backward(step) + own
            self.now_bytes += begins * stage.sums_bytes
        elif step.word == "wgt":
            self._require((s, k) in self.deferred, "FB1006", step, "its backward has not run")
            self._need_outer(step)
            begins = not k and stage.weight_sums_bytes > 0
            own = stage.weight_first_bytes if begins else stage.weight_extra_bytes
            during = self.now_bytes + own
            self.deferred.discard((s, k))
            self.now_bytes += begins * stage.weight_sums_bytes - stage.weight_keep_bytes
        else:
            if s:
                self._need(("act", s - 1, k), step)
            if s < p.last_stage:
                self._take(("act", s, k), step)
            self.kept.add((s, k))
            self.now_bytes += stage.keep_bytes
            during = self.now_bytes + stage.forward_extra_bytes
        self.ran.add(key)
        return during

    def _need_outer(self, step: StageRun) -> None:
        """Requires what a backward and the pass behind it read from other stages."""
        p, s, k = self.pipeline, step.stage, step.microbatch
        if p.stages[s].reads_input:
            self._need(("act", s - 1, k), step)
        if s < p.last_stage and p.has_gradient(s):
            self._need(("grad", s, k), step)

    def _backward(self, step: StageRun) -> int:
        p, s, k = self.pipeline, step.stage, step.microbatch
        stage = p.stages[s]
        self._require((s, k) in self.kept, "FB1006", step, "its forward has not run")
        self._need_outer(step)
        if stage.reads_output:
            self._need(("act", s, k), step)
        if s and p.has_gradient(s - 1):
            self._take(("grad", s - 1, k), step)
        during = self.now_bytes
        self.kept.discard((s, k))
        self.now_bytes -= stage.keep_bytes
        if "wgt" in stage.passes:
            self.deferred.add((s, k))
            self.now_bytes += stage.weight_keep_bytes
        return during

    def _move(self, step: Move) -> int:
        if step.word == "send":
            self._need(step.value, step)
            self._require(step.value not in self.moved, "FB1010", step, "it was sent before")
        else:
            self._take(step.value, step)
        self.moved.add(step.value)
        self.in_flight[step.value] = step.word
        return self.now_bytes

    def _on_value(self, step: OnValue) -> int:
        value, during = step.value, self.now_bytes
        if step.word == "wait":
            is_moving = self.in_flight.pop(value, None) is not None
            self._require(is_moving, "FB1009", step, "no copy of it is in flight")
            return during
        self._require(value in self.live, "FB1011", step, "it is not there")
        self._require(value not in self.in_flight, "FB1008", step, "a copy of it is in flight")
        self.live.discard(value)
        self.now_bytes -= self.pipeline.bytes_of(value[0], value[1])
        return during

    def _at_end(self) -> None:
        p = self.pipeline
        for s, stage in enumerate(p.stages):
            for k in range(p.microbatches if stage.rank == self.rank else 0):
                for word in stage.passes:
                    ran = (word, s, k) in self.ran
                    self._require(ran, "FB1005", None, f"{word} {s} mb {k} never runs")
        for left, how in ((self.in_flight, "in flight"), (self.live, "left")):
            names = sorted(f"{kind} {s} mb {k}" for kind, s, k in left)
            self._require(not left, "FB1012", None, f"{', '.join(names[:3])} {how} at the end")
        closing = sum(s.closing_bytes for s in p.stages if s.rank == self.rank)
        self._reach(self.now_bytes + max(closing, p.message_bytes), len(p.rows[self.rank]))
