"""The charts of a report as Vega-Lite, with their data: few marks, however long the schedule.

Vega draws them, in a browser or as SVG. A chart of many steps shows stretches of them: each
stretch has the bytes of its largest step, so the peak is always on the chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.units import format_bytes, format_ns
from ..moments import KINDS, Moment, moments
from ..subject import Subject, place_of, shown
from .drawing import (
    COLORS,
    TENSORS_PER_MOMENT,
    TOP,
    Spec,
    Stretch,
    at,
    axis,
    byte_axis,
    colors,
    drawn,
    part,
    stretches,
)
from .gantt import lives, streams
from .rollup import TimeSpent, by_operator

MOST_OPERATORS = 20


def stretch_moments(subject: Subject) -> list[tuple[Stretch, Moment]]:
    """Every stretch with what is held during its largest step."""
    parts = stretches(subject)
    largest = [p.largest for p in parts]
    held = moments(subject.program, subject.schedule, largest, most=TENSORS_PER_MOMENT)
    return [(p, held[p.largest]) for p in parts]


def charts(subject: Subject, held: Sequence[tuple[Stretch, Moment]]) -> dict[str, Spec]:
    """Vega-Lite specifications by name: `memory`, `streams`, `lives`, `operators`. `held` are the
    `stretch_moments`."""
    graph = subject.program.graph
    specs = {
        "memory": _memory(subject, held),
        "streams": streams(subject),
        "lives": lives(subject),
    }
    if subject.has_times:
        specs["operators"] = _operators(by_operator(graph, subject.timeline.runs))
    return specs


def _memory(subject: Subject, held: Sequence[tuple[Stretch, Moment]]) -> Spec:
    rows = [row for stretch, moment in held for row in _stack(subject, stretch, moment)]
    lines = list(_lines(subject))
    before = subject.without
    curve = [{"x": p.start, "bytes": before.trace.during[p.largest]} for p in stretches(before)]
    curve.append({"x": at(before, len(before.schedule.steps)), "bytes": before.trace.after[-1]})
    levels = (line["bytes"] for line in lines)
    most = max(subject.trace.peak_bytes, before.trace.peak_bytes, *levels)
    y: Spec = {
        "type": "quantitative",
        "title": None,
        "axis": {**byte_axis(0, most, 6), "minExtent": 70, "maxExtent": 70},
    }
    loss = [{"x": at(subject, subject.trace.loss_step), "line": "loss"}]
    spec = drawn(
        "memory",
        320,
        {"stack": rows, "without": curve, "lines": lines, "loss": loss},
        step=axis(subject),
        bytes=y,
        kinds=colors(COLORS),
    )
    labels = (
        _labels(side, x_at, dy, y)
        for side, x_at, dy in (("left", 4, 10), ("right", "width", -5))
        if any(line["side"] == side for line in lines)
    )
    spec["layer"][2]["layer"] += labels
    return spec


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


def _labels(side: str, x_at: int | str, dy: int, y: Spec) -> Spec:
    """The names of the levels that are labelled on one side of the chart."""
    spec = part("labels", bytes=y)
    spec["mark"] |= {"align": side, "dy": dy}
    spec["encoding"]["x"] = {"value": x_at}
    return {"transform": [{"filter": f"datum.side == '{side}'"}], **spec}


def _stack(subject: Subject, stretch: Stretch, moment: Moment) -> list[Spec]:
    """One rectangle for each kind that holds bytes in a stretch."""
    rows, below = [], 0
    amounts = moment.by_kind
    total = sum(amounts.values())
    steps = f"{moment.step + 1} {subject.step_text(moment.step)}"
    if stretch.last > stretch.first:
        steps += f" (of steps {stretch.first + 1} to {stretch.last + 1})"
    for kind in KINDS:
        if not (size := amounts[kind]):
            continue
        holders = [h for h in moment.holdings if h.kind == kind]
        named = [
            f"{shown(h.name, 48)} {format_bytes(h.bytes)}"
            + (f" at {place}" if (place := shown(place_of(subject.program, h.name), 60)) else "")
            for h in holders[:TOP]
        ]
        rest = moment.count[kind] - len(named)
        more = [f"and {rest} more"] if rest else []
        rows.append(
            {
                "x": stretch.start,
                "x2": stretch.end,
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


def _operators(times: Sequence[TimeSpent]) -> Spec:
    shown_times = times[:MOST_OPERATORS]
    rows = [
        {
            "operator": shown(t.name, 48),
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
    return drawn(
        "operators",
        18 * len(shown_times) + 10,
        {"operators": rows},
        order={"sort": list(dict.fromkeys(row["operator"] for row in rows))},
        runs=colors({"first": COLORS["saved"], "recomputed": COLORS["recomputed"]}),
    )
