"""Gantt charts of the streams, and of lifetimes of tensors."""

from __future__ import annotations

from ...ir.units import format_bytes, format_ns
from ..subject import Subject, place_of, shown
from .drawing import (
    COLORS,
    MOST_STRETCHES,
    ROLE_COLORS,
    ROLE_NAMES,
    TOP,
    Spec,
    at,
    axis,
    colors,
    drawn,
)
from .timeline import Life, Run

MOST_LIVES, MOST_COPIES = 40, 500


def streams(subject: Subject) -> Spec:
    """A Gantt chart: what each stream does."""
    rows = [*_compute_rows(subject), *_copy_rows(subject)]
    height = 130 if subject.trace.copies else 70
    roles = colors(ROLE_COLORS)
    return drawn("streams", height, {"streams": rows}, step=axis(subject), roles=roles)


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
        start = at(subject, runs[i].step)
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


def lives(subject: Subject) -> Spec:
    """The tensors that fill most of memory for longest, and when each is there."""
    graph, sizes = subject.program.graph, subject.trace._sizes.anode

    def area(life: Life) -> float:
        return sizes[life.anode] * (at(subject, life.died) - at(subject, life.born))

    totals: dict[str, float] = {}
    for life in subject.timeline.lives:
        totals[life.anode] = totals.get(life.anode, 0) + area(life)
    names = sorted(totals, key=lambda name: (-totals[name], name))[:MOST_LIVES]
    label = {name: f"{i + 1}. %{shown(name, 24)}" for i, name in enumerate(names)}
    rows = [
        {
            "tensor": label[life.anode],
            "x": at(subject, life.born),
            "x2": at(subject, life.died),
            "held": "recomputed" if life.again else "saved",
            "size": f"{format_bytes(sizes[life.anode])} ({sizes[life.anode]})",
            "kind": graph.anode[life.anode].kind,
            "at": place_of(subject.program, life.anode),
        }
        for life in subject.timeline.lives
        if life.anode in label
    ]
    return drawn(
        "lives",
        max(60, 14 * len(names)),
        {"lives": rows},
        step=axis(subject),
        order={"sort": list(label.values())},
        held=colors({k: COLORS[k] for k in ("saved", "recomputed")}),
    )
