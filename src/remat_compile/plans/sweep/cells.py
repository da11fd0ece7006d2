"""The cells of a sweep, and how they are read again from what was written."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, fields
from typing import Any

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """One planner under one budget.

    `status` is `optimal` or `feasible` for a plan that is proven valid; `infeasible`,
    `out of time`, `refused` (the planner does not apply), `failed`, `hung`, `invalid`,
    `over budget`, `no result` or `not proven` else, with `message` saying why. Of what does
    not exist, the value is None. `overhead` is time over that with nothing recomputed,
    less 1; `least_bytes` the least budget that the planner knows a plan for, and
    `floor_bytes` a proven lower bound of it, both of the kind of the budget.
    """

    planner: str
    budget: str
    kind: str
    budget_bytes: int
    status: str
    plan_s: float
    time_s: float | None = None
    overhead: float | None = None
    lower_bound_s: float | None = None
    gap: float | None = None
    peak_bytes: int | None = None
    activation_peak_bytes: int | None = None
    least_bytes: int | None = None
    floor_bytes: int | None = None
    winner: str | None = None
    message: str | None = None
    graph: str = ""
    time_limit_s: float = 0.0

    @property
    def key(self) -> tuple[object, ...]:
        """Return the key by which a later sweep can reuse this cell."""
        return (self.graph, self.planner, self.kind, self.budget_bytes, self.time_limit_s)


CELL_FIELDS = tuple(one.name for one in fields(Cell))

_KINDS: dict[str, type[int] | type[float]] = {"int": int, "float": float}
_TYPES = {
    one.name: _KINDS[kind]
    for one in fields(Cell)
    if (kind := str(one.type).removesuffix(" | None")) in _KINDS
}


def read_cells(text: str) -> tuple[Cell, ...]:
    """The cells of a file that `Sweep.save` wrote. ValueError where it is none."""
    try:
        if text.startswith("<!doctype html>"):
            text = _sweep_in_page(text)
        if text.lstrip().startswith("{"):
            return tuple(_checked(Cell(**cell)) for cell in json.loads(text)["cells"])
        rows = csv.DictReader(io.StringIO(text), strict=True)
        if rows.fieldnames is not None and "planner" not in rows.fieldnames:
            raise ValueError("it has no column planner")
        return tuple(_checked(Cell(**{k: _read(k, v) for k, v in row.items()})) for row in rows)
    except (TypeError, KeyError, ValueError, RecursionError, csv.Error) as error:
        raise ValueError(f"this is no sweep: {error}") from None


def _checked(cell: Cell) -> Cell:
    """The cell. TypeError where a value is not of the type of its field."""
    for one in fields(Cell):
        value, kind = getattr(cell, one.name), _TYPES.get(one.name, str)
        if value is None and one.default is None:
            continue
        accepted = (int, float) if kind is float else kind
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise TypeError(f"{one.name} is {value!r}")
    return cell


def quoted(value: object) -> object:
    """A cell of a table: what a spreadsheet would take for a formula stands behind a quote, and a
    carriage return, which ends a row there, is a blank."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = value.replace("\r", " ")
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "'")) else text


def _read(name: str, text: str) -> Any:
    if name not in _TYPES:
        text = text.removeprefix("'")
    if text == "":
        return "" if name == "graph" else None
    return _TYPES.get(name, str)(text)


def _sweep_in_page(text: str) -> str:
    """The JSON of the sweep in a page. ValueError where there is none."""
    if (data := _DATA.search(text)) is None or "sweep" not in (held := json.loads(data[1])):
        raise ValueError("a page without a sweep")
    return str(held["sweep"])
