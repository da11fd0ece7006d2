"""Shared parts of the charts: stretches of steps, the axis of the step, and colours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from ..moments import Kind
from ..subject import Subject

Spec = dict[str, Any]
"""Vega-Lite, or a part of it."""
MOST_STRETCHES = 700
TOP = 4
"""Tensors that a tooltip names."""
TENSORS_PER_MOMENT = 12
"""Tensors that the slider's table names."""

COLORS: dict[Kind, str] = {
    "parameters": "#7f8c9b",
    "parameter gradients": "#a9886f",
    "saved": "#4e86c6",
    "gradients": "#59a66b",
    "phantoms": "#9c79b8",
    "recomputed": "#e0662f",
    "in transfer": "#c9a227",
    "workspace": "#c8698f",
}
ROLE_COLORS = {
    "forward": "#4e86c6",
    "loss": "#9c79b8",
    "backward": "#59a66b",
    "optimizer": "#a9886f",
    "recomputed": "#e0662f",
    "copy": "#c9a227",
    "waiting": "#b04a4a",
}
ROLE_NAMES = {
    "fwd": "forward",
    "loss": "loss",
    "bwd": "backward",
    "opt": "optimizer",
    "again": "recomputed",
}
BYTES_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + ' KiB' : "
    "format(datum.value, '.4~g') + ' B'"
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps drawn as one: `first` to `last`, and the one with the most bytes.

    `start` and `end` are in ms on the compute stream, or count steps where no times are known.
    """

    first: int
    last: int
    largest: int
    start: float
    end: float


def stretches(subject: Subject, most: int = MOST_STRETCHES) -> list[Stretch]:
    """The steps in at most about `most` stretches; a step that takes no time joins the next."""
    during, count = subject.trace.during, len(subject.schedule.steps)
    least = -(-count // most)
    parts: list[Stretch] = []
    first = 0
    for last in range(count):
        start, end = at(subject, first), at(subject, last + 1)
        full = end > start and last + 1 - first >= least
        if full or last == count - 1:
            if end == start and parts:  # steps at the end that take no time join the one before
                first, start = parts[-1].first, parts.pop().start
            largest = max(range(first, last + 1), key=during.__getitem__)
            parts.append(Stretch(first, last, largest, start, end))
            first = last + 1
    return parts


def at(subject: Subject, step: int) -> float:
    """Where a step begins on the axis."""
    return subject.timeline.clock_ns[step] / 1e6 if subject.has_times else float(step)


def axis(subject: Subject) -> Spec:
    """Where all charts over the step have their steps: one below the other, with room for the
    step with nothing recomputed."""
    end = max(at(s, len(s.schedule.steps)) for s in (subject, subject.without))
    title = "ms after the begin of the step" if subject.has_times else "steps (no times known)"
    return {
        "type": "quantitative",
        "title": title,
        "axis": {"grid": False},
        "scale": {"domain": [0, end], "nice": False},
    }


def byte_axis(least: int, most: int, count: int) -> Spec:
    """Between these bytes, with at most about `count` marks, a power of two apart."""
    step = 1 << ((most - least) // count).bit_length()
    marks = range(-(-least // step) * step, most + step, step)
    return {"labelExpr": BYTES_LABEL, "values": list(marks)}


def colors(by_name: Mapping[Any, str]) -> Spec:
    scale = {"domain": list(by_name), "range": list(by_name.values())}
    legend = {"orient": "top", "title": None, "columns": 8, "columnPadding": 16}
    return {"type": "nominal", "scale": scale, "legend": legend}


@cache
def _templates() -> dict[str, Spec]:
    text = files(__package__).joinpath("charts.json").read_text(encoding="utf-8")
    held: dict[str, Spec] = json.loads(text)
    return held


def part(name: str, rows: Mapping[str, object] = MappingProxyType({}), **used: Spec) -> Spec:
    """The specification `name` of `charts.json`: data sets filled with their `rows`, and each
    `"use"` replaced by what is used there, a definition of the file or one of `used`."""

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(item) for item in value]
        if not isinstance(value, dict):
            return value
        made = {key: filled(item) for key, item in value.items()}
        if (name := made.pop("use", None)) is not None:
            made |= used[name] if name in used else _templates()[name]
        if isinstance(data := made.get("data"), dict):
            made["data"] = {**data, "values": rows[data["name"]]}
        return made

    spec: Spec = filled(_templates()[name])
    return spec


def drawn(name: str, height: int, rows: Mapping[str, object], **used: Spec) -> Spec:
    """A whole chart: `part`, with its size in pixels."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **part(name, rows, **used),
    }
