"""Times of each computation of a plan, and allocations meanwhile, as its code runs.

The generated code has a line (or some) per computation, so a trace function of Python that looks
at the clock where lines change measures it. Times and bytes are of separate runs, since the
profiler that counts bytes takes time. On an accelerator each line is waited for: what is shown is
the time of each computation by itself, without what would run beside it.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from ...backends.torch import PlannedModule, bytes_at_entries
from ...backends.torch.build import generated_lines
from ...capture.trace.module import restored
from ...device.devices import synchronize
from ...device.memory import Mark, measure_regions
from ...ir.schedule import Compute
from ...report.trace import MeasuredStep
from .step import StepRunner

if TYPE_CHECKING:
    from ...capture.lowered import Exported
    from ..plan import Plan

Region = Literal["forward", "backward"]
REGIONS: tuple[Region, ...] = ("forward", "backward")


def measured_steps(
    plan: Plan, compiled: nn.Module, exported: Exported, repeats: int = 3
) -> tuple[MeasuredStep, ...]:
    """Every computation of the generated code in order: the median time of `repeats` runs, and
    the most bytes from its begin to that of the next. Parameters and buffers are as before.

    FB0903 inside another profile.
    """
    assert isinstance(compiled, PlannedModule)
    with restored(exported.original):
        runner = StepRunner(compiled, exported, plan.program.binding)
        runner.run()  # what happens once only
        times = [_times(runner, compiled) for _ in range(repeats)]
        peaks = _peaks(runner, compiled, plan)
    steps = [
        index
        for index, step in enumerate(plan.schedule.steps)
        if isinstance(step, Compute) and not plan.graph.cnode[step.cnode].is_loss
    ]
    assert len(steps) == len(peaks) == len(times[0]), "a computation has no line of its own"
    made, now = [], 0
    for place, (step, peak) in enumerate(zip(steps, peaks, strict=True)):
        took, idle = (int(median(run[place][i] for run in times)) for i in (0, 1))
        made.append(MeasuredStep(step, now, took, peak))
        now += took + idle
    return tuple(made)


class _Lines:
    """Calls `begin(number)` and `end(number)` around the lines of each computation, counted
    from 0 over forward and backward; `enter` and `leave` around each of the two."""

    def __init__(self, begin: Callable[[int], None], end: Callable[[int], None]) -> None:
        self._begin, self._end = begin, end
        self._seen = 0
        self._numbers: Mapping[int, int] = {}
        self._now: int | None = None

    @contextmanager
    def watching(self, region: str) -> Iterator[None]:
        """In the thread that runs the region."""
        before = sys.gettrace()

        def on_call(frame: Any, event: str, _: Any) -> Any:
            own = frame.f_code.co_name == region
            lines = generated_lines(frame.f_globals.get("__name__", "")) if own else None
            if lines is None:
                return None
            numbers = _computations("".join(lines), region)
            self._numbers = {line: self._seen + n for line, n in numbers.items()}
            self._seen += len(set(numbers.values()))
            return on_line

        def on_line(frame: Any, event: str, _: Any) -> Any:
            number = None if event == "return" else self._numbers.get(frame.f_lineno)
            if event in ("line", "return") and number != self._now:
                if self._now is not None:
                    self._end(self._now)
                self._now = number
                if number is not None:
                    self._begin(number)
            return on_line

        sys.settrace(on_call)
        try:
            yield
        finally:
            sys.settrace(before)


def _computations(source: str, name: str) -> dict[int, int]:
    """The number of the computation for each line that runs one; the line before says its name."""
    lines = source.split("\n")
    functions = [f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)]
    body = next(f.body for f in functions if f.name == name)
    numbers: dict[int, int] = {}
    count = 0
    for statement in body:
        if re.match(r"    # ", lines[statement.lineno - 2]):
            assert statement.end_lineno is not None
            numbers |= dict.fromkeys(range(statement.lineno, statement.end_lineno + 1), count)
            count += 1
    return numbers


def _times(runner: StepRunner, module: PlannedModule) -> list[tuple[int, int]]:
    """Nanoseconds of each computation, and until the next of the same function."""
    device = runner.exported.device
    begun: list[int] = []
    ended: list[int] = []

    def clock() -> int:
        synchronize(device)
        return time.perf_counter_ns()

    borders: list[int] = []
    lines = _Lines(lambda _: begun.append(clock()), lambda _: ended.append(clock()))

    @contextmanager
    def mark(region: str) -> Iterator[None]:
        with lines.watching(region):
            yield
        borders.append(len(begun))

    _run(runner, module, mark)
    following = [*begun[1:], ended[-1]]
    return [
        (end - start, 0 if place + 1 in borders else after - end)
        for place, (start, end, after) in enumerate(zip(begun, ended, following, strict=True))
    ]


def _peaks(runner: StepRunner, module: PlannedModule, plan: Plan) -> list[int]:
    """Device bytes of each computation, over what the plan says is held when each function
    begins, as for `run`."""
    borders: list[int] = []
    count = 0

    def step(mark: Mark) -> None:
        open_region = ExitStack()

        def begin(name: str) -> None:
            open_region.close()
            open_region.enter_context(mark(name))

        def begin_computation(number: int) -> None:
            nonlocal count
            count = number + 1
            begin(str(number))

        lines = _Lines(begin_computation, lambda _: None)

        @contextmanager
        def around(region: str) -> Iterator[None]:
            begin(region)
            with open_region, lines.watching(region):
                yield
            borders.append(count)

        _run(runner, module, around)

    _, uses = measure_regions(step, runner.exported.device)
    levels = bytes_at_entries(plan.program, plan.schedule)
    peaks: list[int] = []
    for region, level, last in zip(REGIONS, levels, borders, strict=True):
        level += uses[region].end_bytes_over_entry
        for number in range(len(peaks), last):
            use = uses[str(number)]
            peaks.append(level + use.peak_bytes_over_entry)
            level += use.end_bytes_over_entry
    return peaks


def _run(runner: StepRunner, module: PlannedModule, mark: Mark) -> None:
    flight = module.planned_step.flight
    flight.mark = mark
    try:
        runner.run()
    finally:
        flight.mark = None
