"""A sweep as frontiers of time and memory, with what others measured beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, FBError
from ...report.charts.frontier import Frontier, Measured, Point, knee
from ..files.files import read_text

if TYPE_CHECKING:
    from ..budget import Baseline
    from .cells import Cell


def frontiers(
    base: Baseline, cells: Sequence[Cell], measured: Iterable[Measured] = ()
) -> tuple[Frontier, ...]:
    """One for each kind of bytes that the sweep has budgets of. `measured` stand on the first."""
    curves: list[Frontier] = []
    sizes = {"activation": (base.activation_peak_bytes, base.activation_floor_bytes)}
    for kind in dict.fromkeys(cell.kind for cell in cells):
        most, floor = sizes.get(kind, (base.peak_bytes, base.floor_bytes))
        points = tuple(_point(cell, base) for cell in cells if cell.kind == kind)
        one = Frontier(
            "activation" if kind == "activation" else "device", most, base.time_ns, floor, points
        )
        curves.append(one)
    if curves:
        curves[0] = replace(curves[0], measured=tuple(measured))
    return tuple(curves)


def _point(cell: Cell, base: Baseline) -> Point:
    peak = cell.activation_peak_bytes if cell.kind == "activation" else cell.peak_bytes
    least, base_s = cell.lower_bound_s, base.time_ns / 1e9
    return Point(
        cell.planner,
        cell.budget,
        cell.budget_bytes,
        cell.status,
        peak,
        None if cell.overhead is None else 1 + cell.overhead,
        None if least is None or not base_s else least / base_s,
        cell.plan_s,
        cell.message or "",
    )


def knees(base: Baseline, cells: Sequence[Cell]) -> Iterator[str]:
    """Where bytes begin to get expensive, a line for each kind of budget."""
    for frontier in frontiers(base, cells):
        bend = knee(frontier)
        of = "" if frontier.kind == "device" else "activations: "
        yield f"{of}{bend}" if bend else f"{of}no knee: the plans lie on one line, or are too few"


def read_measured(path: str | Path) -> tuple[Measured, ...]:
    """Points of other tools: a CSV file with the columns `name`, `bytes` and `ratio` (time over
    that with nothing recomputed). FB0724 where it is none."""
    made = []
    try:
        for row in csv.DictReader(io.StringIO(read_text(str(path))), strict=True):
            point = Measured(row["name"], int(row["bytes"]), float(row["ratio"]))
            if point.bytes <= 0 or not isfinite(point.ratio) or point.ratio <= 0:
                raise ValueError(f"{point.name} has no bytes or no time")
            made.append(point)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        what = f"no column {error}" if isinstance(error, KeyError) else f"{error}"
        message = f"{path} holds no measured points: {what}"
        hint = "a CSV file with the columns name, bytes and ratio (of times)"
        raise FBError(Diagnostic("FB0724", message, hint=hint), usage=True) from None
    return tuple(made)
