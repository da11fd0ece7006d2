"""The time that each planner needs under each of several budgets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from ...ir.diagnostics import FBError
from ...ir.terminal import printable_lines
from ...ir.text.printer import graph_sha256
from ...planners.bounds.time_bounds import TimeBounds
from ...planners.contract import Infeasible, NotApplicable, Optimal, TimedOut
from ...planners.registry import format_planner
from ...report.charts.frontier import frontier_page
from ...report.charts.picture import Picture, picture_of_frontier
from ..budget import Baseline, BudgetText, format_bytes, resolve_budget
from ..files.files import write_text
from ..files.outputs import check_output
from ..files.pictures import kept_picture
from ..messages.table import columns
from ..run_planner import Attempt, Phases, schedule_of
from .cells import CELL_FIELDS, Cell, quoted
from .frontier import frontiers, knees

if TYPE_CHECKING:
    from ...ir.program import Budget, Program
    from ...planners.contract import Planner
    from ...report.charts.frontier import Measured
    from ..files.files import FileRead

FileFormat = Literal["csv", "json", "html"]

_STATUS = {
    "FB0460": "failed",
    "FB0461": "hung",
    "FB0462": "invalid",
    "FB0463": "over budget",
    "FB0464": "no result",
    "FB0465": "out of time",
    "FB0467": "not proven",
    "FB0817": "not proven",
}


@dataclass(frozen=True)
class Sweep:
    """Cells in the order of planners, then of budgets. Times are predicted seconds."""

    baseline: Baseline
    cells: tuple[Cell, ...]
    graph: str = ""
    _reads: tuple[FileRead, ...] = field(default=(), compare=False, repr=False)

    def __repr__(self) -> str:
        planned = sum(cell.overhead is not None for cell in self.cells)
        return f"Sweep({len(self.cells)} cells, {planned} planned)"

    def to_csv(self) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, CELL_FIELDS, lineterminator="\n")
        writer.writeheader()
        for cell in self.cells:
            writer.writerow({k: quoted(v) for k, v in asdict(cell).items()})
        return out.getvalue()

    def to_json(self) -> str:
        data = {"baseline": asdict(self.baseline), "cells": [asdict(c) for c in self.cells]}
        return json.dumps(data, indent=1) + "\n"

    def to_html(self, measured: Iterable[Measured] = ()) -> str:
        """A page with the frontiers, and what was measured of other tools. FB0712 where the
        library that draws is missing."""
        drawn = frontiers(self.baseline, self.cells, measured)
        return frontier_page(self.graph or "a model", drawn, self.to_json())

    def plot(self, path: str | Path | None = None) -> Picture:
        """The frontier that stands still, of the first kind of budget; written to `path` if that
        is given, `.svg` or `.png`. FB0725, FB0712, FB0703 and FB0719 as `Plan.plot`."""
        frontier = frontiers(self.baseline, self.cells)[0]
        return kept_picture(lambda: picture_of_frontier(frontier), path, self._reads)

    def _repr_svg_(self) -> str | None:
        """For notebooks; nothing without the extra `[report]`."""
        try:
            return self.plot().svg() if self.cells else None
        except FBError:
            return None

    def knees(self) -> tuple[str, ...]:
        """Where bytes begin to get expensive, a line for each kind of budget."""
        return tuple(knees(self.baseline, self.cells))

    def save(
        self,
        path: str | Path,
        format: FileFormat | None = None,
        measured: Iterable[Measured] = (),
    ) -> None:
        """Writes the whole file or none of it; without `format`, the name decides.

        FB0703 where it cannot be written or is what was read, FB0719 where it is another file.
        """
        check_output(path, "sweep", self._reads)
        match format or Path(path).suffix:
            case "json" | ".json":
                text = self.to_json()
            case "html" | ".html" | ".htm":
                text = self.to_html(measured)
            case _:
                text = self.to_csv()
        write_text(path, text)

    def table(self) -> str:
        """Time over that with nothing recomputed, a planner in each row."""
        planners = list(dict.fromkeys(cell.planner for cell in self.cells))
        budgets = list(dict.fromkeys((c.budget, c.kind, c.budget_bytes) for c in self.cells))
        cell_of = {(c.planner, c.budget, c.kind, c.budget_bytes): c for c in self.cells}
        rows = [("", *(budget for budget, _, _ in budgets))]
        rows.append(("budget", *(format_bytes(size) for _, _, size in budgets)))
        for planner in planners:
            cells = (cell_of.get((planner, *budget)) for budget in budgets)
            rows.append((planner, *("" if cell is None else _shown(cell) for cell in cells)))
        lines = columns(rows)
        if any(cell.status == "optimal" for cell in self.cells):
            lines.append("* no plan under this budget takes less time")
        return printable_lines([*lines, *_remarks(self.cells)]) + "\n"


def _shown(cell: Cell) -> str:
    if cell.overhead is None:
        return cell.status
    return f"{1 + cell.overhead:.3f}{'*' if cell.status == 'optimal' else ''}"


def _remarks(cells: Sequence[Cell]) -> Iterator[str]:
    """Why cells are empty, once for each planner and reason."""
    seen: set[tuple[str, str]] = set()
    for cell in cells:
        if cell.overhead is None and (cell.planner, cell.status) not in seen:
            seen.add((cell.planner, cell.status))
            yield f"{cell.planner}, {cell.budget}: {cell.message}"


def run_sweep(
    program: Program,
    planners: Iterable[Planner],
    budgets: Iterable[BudgetText],
    *,
    time_limit_s: float,
    progress: Callable[[str], None] | None = None,
    known: Iterable[Cell] = (),
    done: Callable[[Sweep], None] | None = None,
) -> Sweep:
    """Plans and proves every cell; what fails becomes the value of its cell.

    Cells of `known` that belong to the same graph, planner, budget and time limit are taken
    over. `done` gets the sweep so far after each cell.
    """
    baseline = Baseline.of(program)
    graph = graph_sha256(program)[:12]
    say = progress or (lambda line: None)
    kept = {cell.key: cell for cell in known}
    bounds = TimeBounds(program)
    asked = [(p, b, resolve_budget(b, baseline)) for p in planners for b in budgets]
    cells: list[Cell] = []
    for turn, (planner, text, budget) in enumerate(asked, 1):
        name = format_planner(planner)
        head = f"[{turn}/{len(asked)}] {name} at {text.text}"
        key = (graph, name, budget.kind, budget.bytes, time_limit_s)
        if (cell := kept.get(key)) is None:
            phases = Phases(lambda line, head=head: say(f"{head}: {line}"))  # type: ignore[misc]
            attempt = Attempt(program, planner, budget, time_limit_s, phases, bounds)
            cell = _cell(attempt, text, budget, baseline, graph)
        say(f"{head}: {_shown(cell)}")
        cells.append(cell)
        if done is not None:
            done(Sweep(baseline, tuple(cells), program.graph.name))
    return Sweep(baseline, tuple(cells), program.graph.name)


def _cell(
    attempt: Attempt, text: BudgetText, budget: Budget, baseline: Baseline, graph: str
) -> Cell:
    start = perf_counter()
    values: dict[str, Any] = {}
    try:
        result = attempt.ask(keep_on_interrupt=False)
        values["plan_s"] = round(perf_counter() - start, 3)
        if isinstance(result, NotApplicable):
            values |= {"status": "refused", "message": result.why.message}
        elif isinstance(result, Infeasible):
            least = result.min_budget
            values["least_bytes"] = None if least is None else least.bytes
            values |= {"floor_bytes": result.floor_bytes, "message": result.why.message}
            values["status"] = "infeasible"
        elif isinstance(result, TimedOut) and result.schedule is None:
            values["status"] = "out of time"
            values["message"] = f"no plan within {attempt.time_limit_s:g} s"
        else:
            schedule, bound = schedule_of(result, attempt, baseline)
            planned = attempt.prove(schedule, bound, attempt.name)
            values |= _figures(planned.time_ns, planned.lower_bound_ns, baseline)
            best = isinstance(result, Optimal) or planned.lower_bound_ns == planned.time_ns
            values["status"] = "optimal" if best else "feasible"
            values |= {"winner": schedule.planner, "peak_bytes": planned.peak_bytes}
            values["activation_peak_bytes"] = planned.activation_peak_bytes
    except FBError as error:
        first = error.diagnostics[0]
        values["status"] = _STATUS.get(first.code, "refused")
        values["message"] = f"{first.message} [{first.code}]"
    values.setdefault("plan_s", round(perf_counter() - start, 3))
    values |= {"graph": graph, "time_limit_s": attempt.time_limit_s}
    return Cell(attempt.name, text.text, budget.kind, budget.bytes, **values)


def _figures(time_ns: int, bound_ns: int | None, baseline: Baseline) -> dict[str, float | None]:
    base = baseline.time_ns
    return {
        "time_s": time_ns / 1e9,
        "overhead": time_ns / base - 1 if base else 0.0,
        "lower_bound_s": None if bound_ns is None else bound_ns / 1e9,
        "gap": time_ns / bound_ns - 1 if bound_ns else None,
    }
