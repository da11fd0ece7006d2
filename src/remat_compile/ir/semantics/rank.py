"""What the row of one rank does to its memory: the rules of `spec/pipelines.md`, step by step.

Bytes are taken when a step of the row is reached and given back by one, so they depend on the row
alone and on no timing of other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from ..diagnostics import fail
from ..pipeline import Move, OnValue, Pipeline, RowStep, StageRun, Value
from ..text.pipeline import format_row_step


@dataclass
class RankMachine:
    """The state of a rank. `peak_step` is the step of the peak, or -1 before the first."""

    pipeline: Pipeline
    rank: int
    live: set[Value] = field(default_factory=set)
    in_flight: dict[Value, str] = field(default_factory=dict)
    kept: set[tuple[int, int]] = field(default_factory=set)
    ran: set[tuple[str, int, int]] = field(default_factory=set)
    moved: set[Value] = field(default_factory=set)
    peak_step: int = -1

    def __post_init__(self) -> None:
        stages = self.pipeline.stages
        self.now_bytes = sum(s.held_bytes for s in stages if s.rank == self.rank)
        self.peak_bytes = self.now_bytes

    def run(self) -> None:
        """All steps of the row, then the rules about its end. Raises the first violation."""
        for number, step in enumerate(self.pipeline.rows[self.rank]):
            self._check_names(step)
            if isinstance(step, StageRun):
                during = self._compute(step)
            elif isinstance(step, Move):
                during = self._move(step)
            else:
                during = self._on_value(step)
            if during > self.peak_bytes:
                self.peak_bytes, self.peak_step = during, number
        self._at_end()

    def _fail(self, code: str, why: str, step: RowStep | None, hint: str) -> NoReturn:
        said = "" if step is None else f", {format_row_step(step)}"
        fail(code, f"rank {self.rank}{said}: {why}", step.span if step else None, hint=hint)

    def _check_names(self, step: RowStep) -> None:
        p = self.pipeline
        stage, microbatch = (
            (step.stage, step.microbatch) if isinstance(step, StageRun) else step.value[1:]
        )
        last = p.last_stage if isinstance(step, StageRun) else p.last_stage - 1
        if stage > last or microbatch >= p.microbatches:
            hint = f"stages 0 to {p.last_stage}, micro-batches 0 to {p.microbatches - 1}"
            self._fail("FB1003", "there is no such stage, value or micro-batch", step, hint)
        if isinstance(step, StageRun):
            if p.stages[stage].rank != self.rank:
                self._fail(
                    "FB1004", f"the stage is on rank {p.stages[stage].rank}", step, "move the step"
                )
            return
        kind = step.value[0]
        if kind == "grad" and not p.has_gradient(stage):
            self._fail("FB1003", "no gradient crosses there", step, "remove the step")
        ends = p.ends_of(kind, stage)
        if isinstance(step, OnValue):
            if self.rank not in ends:
                self._fail("FB1004", "this rank never has it", step, "move the step")
            return
        wanted = ends if step.word == "send" else ends[::-1]
        if wanted != (self.rank, step.peer) or ends[0] == ends[1]:
            made, read = ends
            self._fail(
                "FB1004",
                f"rank {made} makes it and rank {read} reads it",
                step,
                "send from the first to the second, and nothing between stages of one rank",
            )

    def _need(self, value: Value, step: RowStep) -> None:
        if value not in self.live:
            kind, stage, microbatch = value
            hint = "make or receive it before, and free it later"
            self._fail("FB1006", f"{kind} {stage} mb {microbatch} is not there", step, hint)
        if self.in_flight.get(value) == "recv":
            kind, stage, microbatch = value
            why = f"nobody has waited for {kind} {stage} mb {microbatch}"
            self._fail("FB1007", why, step, "put a wait before it")

    def _take(self, value: Value, step: RowStep) -> int:
        if value in self.live or value in self.moved:
            self._fail("FB1010", "the value was there before", step, "make or move it once")
        self.live.add(value)
        size = self.pipeline.bytes_of(value[0], value[1])
        self.now_bytes += size
        return size

    def _compute(self, step: StageRun) -> int:
        p, s, k = self.pipeline, step.stage, step.microbatch
        stage = p.stages[s]
        key = (step.word, s, k)
        if key in self.ran:
            self._fail("FB1005", "it ran before", step, "run it once")
        if k and (step.word, s, k - 1) not in self.ran:
            why = f"micro-batch {k - 1} has not run"
            hint = "order micro-batches: sums of gradients and buffers depend on it"
            self._fail("FB1013", why, step, hint)
        if step.word == "fwd":
            if s:
                self._need(("act", s - 1, k), step)
            if s < p.last_stage:
                self._take(("act", s, k), step)
            self.kept.add((s, k))
            self.now_bytes += stage.keep_bytes
            during = self.now_bytes + stage.forward_extra_bytes
        else:
            during = self._backward(step) + stage.backward_extra_bytes
        self.ran.add(key)
        return during

    def _backward(self, step: StageRun) -> int:
        p, s, k = self.pipeline, step.stage, step.microbatch
        stage = p.stages[s]
        if (s, k) not in self.kept:
            self._fail("FB1006", "its forward has not run", step, "run the forward before")
        if stage.reads_input and s:
            self._need(("act", s - 1, k), step)
        if stage.reads_output and s < p.last_stage:
            self._need(("act", s, k), step)
        if s < p.last_stage and p.has_gradient(s):
            self._need(("grad", s, k), step)
        if s and p.has_gradient(s - 1):
            self._take(("grad", s - 1, k), step)
        during = self.now_bytes
        self.kept.discard((s, k))
        self.now_bytes -= stage.keep_bytes
        return during

    def _move(self, step: Move) -> int:
        if step.word == "send":
            self._need(step.value, step)
            if step.value in self.moved:
                self._fail("FB1010", "it was sent before", step, "send it once")
        else:
            self._take(step.value, step)
        self.moved.add(step.value)
        self.in_flight[step.value] = step.word
        return self.now_bytes

    def _on_value(self, step: OnValue) -> int:
        value = step.value
        if step.word == "wait":
            if self.in_flight.pop(value, None) is None:
                self._fail("FB1009", "no copy of it is in flight", step, "remove the step")
            return self.now_bytes
        if value not in self.live:
            self._fail("FB1011", "it is not there", step, "free it once, after it is made")
        if value in self.in_flight:
            self._fail("FB1008", "a copy of it is in flight", step, "put a wait before it")
        during = self.now_bytes
        self.live.discard(value)
        self.now_bytes -= self.pipeline.bytes_of(value[0], value[1])
        return during

    def _at_end(self) -> None:
        p = self.pipeline
        for s, stage in enumerate(p.stages):
            for k in range(p.microbatches if stage.rank == self.rank else 0):
                for word in ("fwd", "bwd"):
                    if (word, s, k) not in self.ran:
                        why = f"{word} {s} mb {k} never runs"
                        self._fail("FB1005", why, None, "run it once")
        if self.in_flight:
            kind, stage_, k = next(iter(self.in_flight))
            self._fail(
                "FB1012", f"{kind} {stage_} mb {k} is in flight at the end", None, "wait for it"
            )
        if self.live:
            kind, stage_, k = min(self.live)
            self._fail("FB1012", f"{kind} {stage_} mb {k} is left at the end", None, "free it")
