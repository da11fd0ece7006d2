"""The text form of a pipeline, a line per declaration and step (`spec/pipelines.md`).

pipeline 1 by "one-f-one-b"
microbatches 2
link 12000000000
budget 4096
stage 0 on 0 layers 0..2 fwd 5ns bwd 10ns held 64 keep 32 extra 0 0 crosses 16 16 reads input
stage 1 on 1 layers 2..4 fwd 5ns bwd 10ns held 64 keep 32 extra 0 0 crosses 0 0 reads input
claims period 17ns makespan 49ns peaks 160 144
row 0
  fwd 0 mb 0
  send act 0 to 1 mb 0
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, NoReturn

from ..diagnostics import Diagnostic, FBError, fail
from ..pipeline import Claims, Move, OnValue, Pipeline, PipelineStage, RowStep, StageRun
from ..span import Span

_MOST = 10**18
_NUMBER = r"(\d{1,19})"
_STEP = re.compile(rf"(\w+)(?: (act|grad))? {_NUMBER}(?: (?:to|from) {_NUMBER})? mb {_NUMBER}")
_WORDS = {StageRun: ("fwd", "bwd", "wgt"), Move: ("send", "recv"), OnValue: ("wait", "free")}
_STAGE = re.compile(
    rf"stage {_NUMBER} on {_NUMBER} layers {_NUMBER}\.\.{_NUMBER} fwd {_NUMBER}ns bwd {_NUMBER}ns "
    rf"held {_NUMBER} keep {_NUMBER} extra {_NUMBER} {_NUMBER} crosses {_NUMBER} {_NUMBER}"
    r"(?: reads ((?:input)?(?: ?output)?))?"
    rf"(?: wgt {_NUMBER}ns keep {_NUMBER} extra {_NUMBER}(?: begins {_NUMBER} first {_NUMBER})?)?"
    rf"(?: sums {_NUMBER} first {_NUMBER})?(?: closing {_NUMBER})?"
    r"(?: remakes ((?: ?\d{1,9}\.\.\d{1,9})+))?"
)
_STAGE_NUMBERS = [f.name for f in fields(PipelineStage) if f.type == "int"]
_HEAD = re.compile(r'pipeline 1 by ("(?:[^"\\]|\\.)*")')
_CLAIMS = re.compile(rf"claims period {_NUMBER}ns makespan {_NUMBER}ns peaks ((?: ?\d{{1,19}})+)")
_ONCE = re.compile(rf"(microbatches|link|budget|messages|draws) {_NUMBER}")
_ROW = re.compile(rf"row {_NUMBER}")
_EXPECTED = "see spec/pipelines.md for what a line may say"


def format_row_step(step: RowStep) -> str:
    """One step as it stands in a row."""
    if isinstance(step, StageRun):
        return f"{step.word} {step.stage} mb {step.microbatch}"
    kind, stage, microbatch = step.value
    if isinstance(step, OnValue):
        return f"{step.word} {kind} {stage} mb {microbatch}"
    way = "to" if step.word == "send" else "from"
    return f"{step.word} {kind} {stage} {way} {step.peer} mb {microbatch}"


def format_pipeline(pipeline: Pipeline) -> str:
    """The text; `parse_pipeline` gives back an equal pipeline."""
    return "\n".join(_lines(pipeline)) + "\n"


def _lines(pipeline: Pipeline) -> Iterator[str]:
    yield f"pipeline 1 by {json.dumps(pipeline.planner)}"
    yield f"microbatches {pipeline.microbatches}"
    if pipeline.link_bytes_per_s is not None:
        yield f"link {pipeline.link_bytes_per_s}"
    if pipeline.budget_bytes is not None:
        yield f"budget {pipeline.budget_bytes}"
    if pipeline.message_bytes:
        yield f"messages {pipeline.message_bytes}"
    if pipeline.draw_bytes:
        yield f"draws {pipeline.draw_bytes}"
    for number, s in enumerate(pipeline.stages):
        reads = [w for w, on in (("input", s.reads_input), ("output", s.reads_output)) if on]
        yield (
            f"stage {number} on {s.rank} layers {s.first}..{s.last} fwd {s.forward_ns}ns "
            f"bwd {s.backward_ns}ns held {s.held_bytes} keep {s.keep_bytes} "
            f"extra {s.forward_extra_bytes} {s.backward_extra_bytes} "
            f"crosses {s.activation_bytes} {s.gradient_bytes}"
            + (f" reads {' '.join(reads)}" if reads else "")
            + (
                f" wgt {s.weight_ns}ns keep {s.weight_keep_bytes} extra {s.weight_extra_bytes}"
                if "wgt" in s.passes
                else ""
            )
            + (
                f" begins {s.weight_sums_bytes} first {s.weight_first_bytes}"
                if s.weight_sums_bytes
                else ""
            )
            + (f" sums {s.sums_bytes} first {s.first_extra_bytes}" if s.sums_bytes else "")
            + (f" closing {s.closing_bytes}" if s.closing_bytes else "")
            + (" remakes" if s.remade else "")
            + "".join(f" {a}..{b}" for a, b in s.remade)
        )
    if (c := pipeline.claims) is not None:
        peaks = " ".join(map(str, c.peak_bytes_R))
        yield f"claims period {c.period_ns}ns makespan {c.makespan_ns}ns peaks {peaks}"
    for rank, row in enumerate(pipeline.rows):
        yield f"row {rank}"
        for step in row:
            yield f"  {format_row_step(step)}"


def parse_pipeline(text: str, file: str = "<text>") -> Pipeline:
    """The pipeline of a text.

    FB1001 for lines that cannot be read, all of them; FB1002 for declarations that are missing,
    out of order or given twice.
    """
    return _Reader(file).read(text)


class _Reader:
    def __init__(self, file: str):
        self.file = file
        self.planner: str | None = None
        self.once: dict[str, int] = {}
        self.stages: list[PipelineStage] = []
        self.claims: Claims | None = None
        self.rows: list[list[RowStep]] = []
        self.problems: list[Diagnostic] = []

    def read(self, text: str) -> Pipeline:
        span = Span(1, 1, 1, self.file)
        for number, line in enumerate(text.split("\n"), 1):
            line = line.removesuffix("\r").rstrip(" ")
            start = len(line) - len(line.lstrip(" "))
            if line[start:] and not line[start:].startswith("#"):
                span = Span(number, start + 1, len(line) + 1, self.file)
                try:
                    self._line(line[start:], span)
                except FBError as error:
                    self.problems += error.diagnostics
        for word in ("pipeline", "microbatches", "stage", "row"):
            if not self._has(word):
                self.problems.append(
                    Diagnostic("FB1002", f"the text has no {word} line", span, hint=_EXPECTED)
                )
        if self.problems:
            raise FBError(self.problems)
        assert self.planner is not None
        return Pipeline(
            self.planner,
            self.once["microbatches"],
            tuple(self.stages),
            tuple(map(tuple, self.rows)),
            self.once.get("link"),
            self.once.get("budget"),
            self.claims,
            self.once.get("messages", 0),
            self.once.get("draws", 0),
        )

    def _has(self, word: str) -> bool:
        if word == "pipeline":
            return self.planner is not None
        if word in ("stage", "row"):
            return bool(self.stages if word == "stage" else self.rows)
        return word in self.once

    def _line(self, line: str, span: Span) -> None:
        word = line.partition(" ")[0]
        reader: dict[str, Callable[[str, Span], None]] = {
            "pipeline": self._head,
            "microbatches": self._number,
            "link": self._number,
            "budget": self._number,
            "messages": self._number,
            "draws": self._number,
            "stage": self._stage,
            "claims": self._claims,
            "row": self._row,
        }
        reader.get(word, self._step)(line, span)

    def _unread(self, line: str, span: Span) -> NoReturn:
        fail("FB1001", f'cannot read "{line}"', span, hint=_EXPECTED)

    def _match(self, form: re.Pattern[str], line: str, span: Span) -> re.Match[str]:
        return form.fullmatch(line) or self._unread(line, span)

    def _twice(self, word: str, span: Span) -> NoReturn:
        fail("FB1002", f"{word} is out of order or given twice", span, hint="leave one, in order")

    def _head(self, line: str, span: Span) -> None:
        match = self._match(_HEAD, line, span)
        if self.planner is not None:
            self._twice("pipeline", span)
        try:
            self.planner = str(json.loads(match[1]))
        except ValueError:
            self._unread(line, span)

    def _number(self, line: str, span: Span) -> None:
        word, number = self._match(_ONCE, line, span).groups()
        if word in self.once:
            self._twice(word, span)
        if not 1 <= int(number) <= _MOST:
            fail("FB1002", f"{word} of {number}", span, hint="give one from 1 to 10^18")
        self.once[word] = int(number)

    def _stage(self, line: str, span: Span) -> None:
        match = self._match(_STAGE, line, span)
        said = match.groups(default="0")
        number, *numbers = map(int, (*said[:12], *said[13:21]))
        reads = (match[13] or "").split()
        if number != len(self.stages):
            self._twice(f"stage {number}", span)
        segments = [part.split("..") for part in (match[22] or "").split()]
        self.stages.append(
            PipelineStage(
                **dict(zip(_STAGE_NUMBERS, numbers, strict=True)),
                reads_input="input" in reads,
                reads_output="output" in reads,
                remade=tuple((int(a), int(b)) for a, b in segments),
                span=span,
            )
        )

    def _claims(self, line: str, span: Span) -> None:
        match = self._match(_CLAIMS, line, span)
        if self.claims is not None:
            self._twice("claims", span)
        peaks = tuple(map(int, match[3].split()))
        self.claims = Claims(int(match[1]), int(match[2]), peaks, span)

    def _row(self, line: str, span: Span) -> None:
        match = self._match(_ROW, line, span)
        if int(match[1]) != len(self.rows):
            self._twice(line, span)
        self.rows.append([])

    def _step(self, line: str, span: Span) -> None:
        match = self._match(_STEP, line, span)
        if not self.rows:
            fail("FB1002", "a step stands before the first row", span, hint="write row 0 before it")
        word, kind, *numbers = match.groups()
        stage, peer, microbatch = (None if n is None else int(n) for n in numbers)
        step: Any
        if kind is None:
            step = StageRun(word, stage, microbatch, span)  # type: ignore[arg-type]
        elif peer is None:
            step = OnValue(word, (kind, stage, microbatch), span)  # type: ignore[arg-type]
        else:
            step = Move(word, (kind, stage, microbatch), peer, span)  # type: ignore[arg-type]
        if word not in _WORDS[type(step)] or format_row_step(step) != line:
            self._unread(line, span)
        self.rows[-1].append(step)
