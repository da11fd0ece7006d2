"""A picture in text of who does what when, for the rows of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.pipeline import Pipeline, StageRun
from ...ir.semantics.pipeline import PipelineTrace
from ...ir.units import format_ns

WIDTH = 96


def gantt(pipeline: Pipeline, trace: PipelineTrace, width: int = WIDTH) -> Iterator[str]:
    """A line per rank, then one per pair of ranks. A column has the last digit of the micro-batch
    whose pass or copy takes most of it; passes alternate with lines that say which."""
    makespan = max(1, trace.makespan_ns)
    yield f"0 {'micro-batches over the step':^{width}} {format_ns(trace.makespan_ns)}"
    for rank, (row, spans) in enumerate(zip(pipeline.rows, trace.spans_R, strict=True)):
        digits, words = ([" "] * width for _ in range(2))
        for step, span in zip(row, spans, strict=True):
            if isinstance(step, StageRun):
                for column in _columns(span, makespan, width):
                    digits[column] = str(step.microbatch % 10)
                    words[column] = step.word[0].upper()
        yield f"rank {rank:<4}{''.join(words)}"
        yield f"{'':9}{''.join(digits)}"
    copies: dict[tuple[int, int], list[str]] = {}
    for (kind, stage, microbatch), span in trace.copies.items():
        low, high = sorted(pipeline.ends_of(kind, stage))
        line = copies.setdefault((low, high), [" "] * width)
        for column in _columns(span, makespan, width):
            line[column] = str(microbatch % 10)
    for (low, high), line in sorted(copies.items()):
        yield f"{f'{low} - {high}':<9}{''.join(line)}"


def _columns(span: tuple[int, int], makespan: int, width: int) -> range:
    """The columns whose middle lies in the span."""
    first, last = ((2 * width * ns + makespan) // (2 * makespan) for ns in span)
    return range(min(first, width), min(last, width))
