"""The charts of a report as Vega-Lite, with their data: few marks, however long the schedule.

Vega draws them, in a browser or as SVG. A chart of many steps shows stretches of them: each
stretch has the bytes of its largest step, so the peak is always on the chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.units import format_bytes, format_ns
from .moments import KINDS, Kind, Moment, moments
from .rollup import OperatorTime, by_operator
from .subject import Subject, place_of, shown
from .timeline import Life, Run

__all__ = ["COLORS", "Stretch", "charts", "stretch_moments", "stretches"]

Spec = dict[str, Any]

MOST_STRETCHES = 700
MOST_LIVES, MOST_COPIES, MOST_OPERATORS = 40, 500, 20
TOP = 4
"""Tensors that a tooltip names."""

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
LINE_COLOR = "#d04545"
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
    found: list[Stretch] = []
    first = 0
    for last in range(count):
        start, end = _at(subject, first), _at(subject, last + 1)
        full = end > start and last + 1 - first >= least
        if full or last == count - 1:
            if end == start and found:  # steps at the end that take no time join the one before
                first, start = found[-1].first, found.pop().start
            largest = max(range(first, last + 1), key=during.__getitem__)
            found.append(Stretch(first, last, largest, start, end))
            first = last + 1
    return found


def _at(subject: Subject, step: int) -> float:
    """Where a step begins on the axis."""
    return subject.timeline.clock_ns[step] / 1e6 if subject.has_times else float(step)


def stretch_moments(subject: Subject) -> list[tuple[Stretch, Moment]]:
    """Every stretch with what is held during its largest step."""
    parts = stretches(subject)
    held = moments(subject.program, subject.schedule, [p.largest for p in parts])
    return [(part, held[part.largest]) for part in parts]


def charts(subject: Subject, held: Sequence[tuple[Stretch, Moment]]) -> dict[str, Spec]:
    """Vega-Lite specifications by name: `memory`, `streams`, `lives`, `operators`. `held` are the
    `stretch_moments`."""
    graph = subject.program.graph
    found = {
        "memory": _memory(subject, held),
        "streams": _streams(subject),
        "lives": _lives(subject),
    }
    if subject.has_times:
        found["operators"] = _operators(by_operator(graph, subject.timeline.runs))
    return found


def _memory(subject: Subject, held: Sequence[tuple[Stretch, Moment]]) -> Spec:
    rows = [row for part, moment in held for row in _stack(subject, part, moment)]
    lines = list(_lines(subject))
    before = subject.without
    curve = [
        {"x": part.start, "bytes": before.trace.during[part.largest]} for part in stretches(before)
    ]
    curve.append({"x": _at(before, len(before.schedule.steps)), "bytes": before.trace.after[-1]})
    x = _axis(subject)
    y: Spec = {
        "type": "quantitative",
        "title": None,
        "axis": {"labelExpr": BYTES_LABEL, "minExtent": 70, "maxExtent": 70, "tickCount": 6},
    }
    stack = {
        "data": {"name": "stack", "values": rows},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "x", **x},
            "x2": {"field": "x2"},
            "y": {"field": "y", **y},
            "y2": {"field": "y2"},
            "color": _colors("kind", COLORS),
            "tooltip": [
                {"field": name, "type": "nominal", "title": title}
                for name, title in (
                    ("kind", "kind"),
                    ("size", "bytes"),
                    ("all", "in all"),
                    ("when", "step"),
                    ("at", "model line"),
                    ("top", "largest"),
                )
            ],
        },
    }
    without = {
        "data": {"name": "without", "values": curve},
        "mark": {
            "type": "line",
            "interpolate": "step-after",
            "strokeDash": [4, 3],
            "color": "#888",
        },
        "encoding": {"x": {"field": "x", **x}, "y": {"field": "bytes", **y}},
    }
    level: Spec = {"y": {"field": "bytes", **y}, "color": {"value": LINE_COLOR}}
    marks: Spec = {
        "data": {"name": "lines", "values": lines},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": level},
            *(
                _labels(level, side, x_at, dy)
                for side, x_at, dy in (("left", 4, 10), ("right", "width", -5))
                if any(line["side"] == side for line in lines)
            ),
        ],
    }
    loss = {
        "data": {
            "name": "loss",
            "values": [{"x": _at(subject, subject.trace.loss_step), "line": "loss"}],
        },
        "mark": {"type": "rule", "strokeDash": [2, 2], "color": "#9c79b8", "tooltip": True},
        "encoding": {"x": {"field": "x", **x}, "tooltip": {"field": "line"}},
    }
    return {**_frame(320), "layer": [stack, without, marks, loss]}


def _lines(subject: Subject) -> Iterator[Spec]:
    """Levels across the chart: the budget, the proven bound, and the peak where it is less."""
    peak, proven = subject.trace.peak_bytes, subject.proven
    if proven is None or proven.device_bytes != peak:
        yield {"bytes": peak, "line": f"peak {format_bytes(peak)}", "side": "left"}
    if proven is not None:
        what = f"proven peak {format_bytes(proven.device_bytes)}"
        yield {"bytes": proven.device_bytes, "line": what, "side": "left"}
    if (budget := subject.budgets.get("device")) is not None:
        yield {"bytes": budget, "line": f"budget {format_bytes(budget)}", "side": "right"}


def _labels(level: Spec, side: str, x_at: int | str, dy: int) -> Spec:
    """The names of the levels that are labelled on one side of the chart."""
    encoding: Spec = {**level, "x": {"value": x_at}, "text": {"field": "line"}}
    mark = {"type": "text", "align": side, "dy": dy, "fontSize": 11}
    wanted = {"filter": f"datum.side == '{side}'"}
    return {"transform": [wanted], "mark": mark, "encoding": encoding}


def _stack(subject: Subject, part: Stretch, moment: Moment) -> list[Spec]:
    """One rectangle for each kind that holds bytes in a stretch."""
    rows, below = [], 0
    amounts = moment.by_kind
    total = sum(amounts.values())
    steps = f"{moment.step + 1} {subject.step_text(moment.step)}"
    if part.last > part.first:
        steps += f" (of steps {part.first + 1} to {part.last + 1})"
    for kind in KINDS:
        if not (size := amounts[kind]):
            continue
        holders = [h for h in moment.holdings if h.kind == kind]
        named = [
            f"{shown(h.name, 48)} {format_bytes(h.bytes)}"
            + (f" at {place}" if (place := shown(place_of(subject.program, h.name), 60)) else "")
            for h in holders[:TOP]
        ]
        more = [f"and {len(holders) - TOP} more"] if len(holders) > TOP else []
        rows.append(
            {
                "x": part.start,
                "x2": part.end,
                "y": below,
                "y2": below + size,
                "kind": kind,
                "size": f"{format_bytes(size)} ({size})",
                "all": f"{format_bytes(total)} ({total})",
                "when": steps,
                "at": subject.step_place(moment.step),
                "top": "; ".join([*named, *more]),
            }
        )
        below += size
    return rows


def _streams(subject: Subject) -> Spec:
    """A Gantt chart: what each stream does."""
    rows = [*_compute_rows(subject), *_copy_rows(subject)]
    return {
        **_frame(130 if subject.trace.copies else 70),
        "data": {"name": "streams", "values": rows},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "x", **_axis(subject)},
            "x2": {"field": "x2"},
            "y": {
                "field": "lane",
                "type": "nominal",
                "title": None,
                "sort": ["compute", "to host", "from host"],
                "axis": {"minExtent": 70, "maxExtent": 70},
            },
            "color": _colors("role", ROLE_COLORS),
            "tooltip": [
                {"field": name, "type": "nominal", "title": title}
                for name, title in (
                    ("what", "runs"),
                    ("role", "for"),
                    ("took", "time"),
                    ("at", "model line"),
                )
            ],
        },
    }


def _compute_rows(subject: Subject) -> list[Spec]:
    """Executions; beyond a number, neighbours of one role in a stretch are one rectangle."""
    runs = subject.timeline.runs
    size = -(-len(runs) // MOST_STRETCHES)
    rows: list[Spec] = []
    for i in range(0, len(runs), size):
        groups: dict[str, list[Run]] = {}
        for run in runs[i : i + size]:
            groups.setdefault(run.role, []).append(run)
        # Those of one role stand side by side: in a stretch this short, order is no news.
        start = _at(subject, runs[i].step)
        for role, group in groups.items():
            taken = sum(r.end_ns - r.start_ns for r in group)
            end = start + (taken / 1e6 if subject.has_times else float(len(group)))
            what = subject.step_text(group[0].step)
            if len(group) > 1:
                what = f"{len(group)} computations from {what}"
            rows.append(
                {
                    "lane": "compute",
                    "x": start,
                    "x2": end,
                    "role": ROLE_NAMES[role],
                    "what": what,
                    "took": format_ns(taken) if subject.has_times else "not known",
                    "at": subject.step_place(group[0].step),
                }
            )
            start = end
    return rows


def _copy_rows(subject: Subject) -> list[Spec]:
    rows: list[Spec] = []
    copies = sorted(subject.trace.copies, key=lambda c: (c.start_ns, c.issued))
    size = max(1, -(-len(copies) // MOST_COPIES))
    for direction, lane in (("d2h", "to host"), ("h2d", "from host")):
        those = [c for c in copies if c.direction == direction]
        for i in range(0, len(those), size):
            group = those[i : i + size]
            named = ", ".join(f"%{shown(c.anode, 40)}" for c in group[:TOP])
            more = f" and {len(group) - TOP} more" if len(group) > TOP else ""
            if subject.has_times:
                start, end = group[0].start_ns / 1e6, group[-1].end_ns / 1e6
            else:
                start, end = float(group[0].issued), float(max(c.waited for c in group) + 1)
            took = format_ns(sum(c.end_ns - c.start_ns for c in group))
            place = place_of(subject.program, group[0].anode)
            shared = {"what": named + more, "at": place}
            rows.append(
                {"lane": lane, "x": start, "x2": end, "role": "copy", "took": took, **shared}
            )
            stall = sum(c.stall_ns for c in group)
            if stall:
                last = group[-1].end_ns / 1e6
                rows.append(
                    {
                        "lane": "compute",
                        "x": last - group[-1].stall_ns / 1e6,
                        "x2": last,
                        "role": "waiting",
                        "took": format_ns(stall),
                        **shared,
                    }
                )
    return rows


def _lives(subject: Subject) -> Spec:
    """The tensors that fill most of memory for longest, and when each is there."""
    graph, sizes = subject.program.graph, subject.trace._sizes.anode

    def area(life: Life) -> float:
        return sizes[life.anode] * (_at(subject, life.died) - _at(subject, life.born))

    totals: dict[str, float] = {}
    for life in subject.timeline.lives:
        totals[life.anode] = totals.get(life.anode, 0) + area(life)
    names = sorted(totals, key=lambda name: (-totals[name], name))[:MOST_LIVES]
    label = {name: f"{i + 1}. %{shown(name, 24)}" for i, name in enumerate(names)}
    rows = [
        {
            "tensor": label[life.anode],
            "x": _at(subject, life.born),
            "x2": _at(subject, life.died),
            "held": "recomputed" if life.again else "saved",
            "size": f"{format_bytes(sizes[life.anode])} ({sizes[life.anode]})",
            "kind": graph.anode[life.anode].kind,
            "at": place_of(subject.program, life.anode),
        }
        for life in subject.timeline.lives
        if life.anode in label
    ]
    return {
        **_frame(max(60, 14 * len(names))),
        "data": {"name": "lives", "values": rows},
        "mark": {"type": "rect", "tooltip": True, "height": {"band": 0.75}},
        "encoding": {
            "x": {"field": "x", **_axis(subject)},
            "x2": {"field": "x2"},
            "y": {
                "field": "tensor",
                "type": "nominal",
                "title": None,
                "sort": list(label.values()),
                "axis": {"labelLimit": 180},
            },
            "color": _colors("held", {k: COLORS[k] for k in ("saved", "recomputed")}),
            "tooltip": [
                {"field": name, "type": "nominal"}
                for name in ("tensor", "size", "kind", "held", "at")
            ],
        },
    }


def _operators(times: Sequence[OperatorTime]) -> Spec:
    shown_times = times[:MOST_OPERATORS]
    rows = [
        {
            "operator": shown(t.operator, 48),
            "ms": taken / 1e6,
            "run": run,
            "took": f"{format_ns(taken)} in {count} executions",
        }
        for t in shown_times
        for run, taken, count in (
            ("first", t.first_ns, t.first_runs),
            ("recomputed", t.again_ns, t.again_runs),
        )
        if count
    ]
    return {
        **_frame(18 * len(shown_times) + 10),
        "data": {"name": "operators", "values": rows},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": {"field": "ms", "type": "quantitative", "title": "ms"},
            "y": {
                "field": "operator",
                "type": "nominal",
                "title": None,
                "sort": list(dict.fromkeys(row["operator"] for row in rows)),
                "axis": {"labelLimit": 220},
            },
            "color": _colors("run", {"first": COLORS["saved"], "recomputed": COLORS["recomputed"]}),
            "tooltip": [{"field": f, "type": "nominal"} for f in ("operator", "run", "took")],
        },
    }


def _axis(subject: Subject) -> Spec:
    """Where all charts over the step have their steps: one below the other, with room for the
    step with nothing recomputed."""
    end = max(_at(s, len(s.schedule.steps)) for s in (subject, subject.without))
    title = "ms after the begin of the step" if subject.has_times else "steps (no times known)"
    return {
        "type": "quantitative",
        "title": title,
        "axis": {"grid": False},
        "scale": {"domain": [0, end], "nice": False},
    }


def _colors(field: str, colors: Spec | dict[Kind, str]) -> Spec:
    scale = {"domain": list(colors), "range": list(colors.values())}
    legend = {"orient": "top", "title": None, "columns": 8}
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def _frame(height: int) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
    }
