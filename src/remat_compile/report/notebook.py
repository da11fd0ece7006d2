"""A plan in a notebook: a few figures, and memory over the step."""

from __future__ import annotations

from html import escape

from ..ir.diagnostics import FBError
from ..ir.units import format_bytes, format_ns
from .charts.picture import picture_of_plan
from .subject import Subject


def summary_html(subject: Subject, title: str) -> str:
    """A heading, a table, and a picture where the extra `[report]` is installed."""
    trace, before = subject.trace, subject.without.trace
    rows = (
        ("device memory", format_bytes(trace.peak_bytes), format_bytes(before.peak_bytes)),
        (
            "activations",
            format_bytes(trace.activation_peak_bytes),
            format_bytes(before.activation_peak_bytes),
        ),
        ("time, predicted", _time(trace.time_ns), _time(before.time_ns)),
    )
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    table = f"<table><tr><th></th><th>this plan</th><th>nothing recomputed</th></tr>{body}</table>"
    try:
        picture = picture_of_plan(subject, "memory").svg()
    except FBError:
        picture = ""
    return f"<div><p><code>{escape(title)}</code></p>{table}{picture}</div>"


def _time(ns: int) -> str:
    return format_ns(ns) if ns else "not known"
