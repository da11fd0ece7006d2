"""The frontier of time and memory: planners, bounds and measured points on one page.

The knee is the vertex of the frontier's lower convex hull that lies farthest below the chord
between its ends, both axes scaled to 1 (Satopää et al. 2011, "Finding a Kneedle in a Haystack").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from ...ir.units import format_bytes
from .. import SWEEP_MARK
from ..document import Cell, chart, document, table
from ..subject import shown
from .drawing import Spec, byte_axis, drawn

GIB = 1 << 30
LEAST_DEPTH = 0.02
"""The share of the chord within which a point is no knee."""


@dataclass(frozen=True)
class Point:
    """One planner under one budget. Without a plan, `bytes` and `ratio` are None and `status` and
    `message` say why. `ratio` is time over that with nothing recomputed, `least_ratio` what no
    plan under the budget beats."""

    planner: str
    budget: str
    budget_bytes: int
    status: str
    bytes: int | None
    ratio: float | None
    least_ratio: float | None = None
    plan_s: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class Measured:
    """A measurement of another tool: `ratio` is its time over that without recomputation."""

    name: str
    bytes: int
    ratio: float


@dataclass(frozen=True)
class Frontier:
    """Points of one kind of bytes. `base_bytes` and `base_ns` are of the step with nothing
    recomputed; no plan takes less than `floor_bytes`."""

    kind: Literal["device", "activation"]
    base_bytes: int
    base_ns: int
    floor_bytes: int
    points: tuple[Point, ...]
    measured: tuple[Measured, ...] = ()

    @property
    def plans(self) -> tuple[tuple[int, float], ...]:
        """(bytes, time ratio) of every plan, the step with nothing recomputed among them."""
        made = ((p.bytes, p.ratio) for p in self.points)
        known = [(n, ratio) for n, ratio in made if n is not None and ratio is not None]
        return ((self.base_bytes, 1.0), *known)


@dataclass(frozen=True)
class Knee:
    """The plan at which bytes begin to get expensive, and what a GiB less costs on both sides, on
    the average between it and that end of the frontier."""

    bytes: int
    ratio: float
    below_s_per_gib: float
    above_s_per_gib: float

    def __str__(self) -> str:
        return (
            f"bytes get expensive below {format_bytes(self.bytes)} ({self.bytes}), at "
            f"{self.ratio:.3f} times the step with nothing recomputed: a GiB less costs "
            f"{self.below_s_per_gib:.3g} s a step below, {self.above_s_per_gib:.3g} s above"
        )


def knee(frontier: Frontier) -> Knee | None:
    """None where the frontier has no bend: fewer than three vertices, or all near one line."""
    hull = _hull(frontier.plans)
    if len(hull) < 3:
        return None
    (left, high), (right, low) = hull[0], hull[-1]
    gib_s = frontier.base_ns / 1e9 * GIB

    def depth(vertex: tuple[int, float]) -> float:
        n, ratio = vertex
        return 1 - (n - left) / (right - left) - (ratio - low) / (high - low)

    n, ratio = max(hull[1:-1], key=depth)
    if depth((n, ratio)) < LEAST_DEPTH:
        return None
    below, above = (high - ratio) / (n - left) * gib_s, (ratio - low) / (right - n) * gib_s
    return Knee(n, ratio, below, above)


def _hull(plans: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The lower left part of the convex hull: more bytes, less time, less and less so."""
    hull: list[tuple[int, float]] = []
    for n, ratio in sorted(plans):
        if hull and ratio >= hull[-1][1]:
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], (n, ratio)):
            hull.pop()
        hull.append((n, ratio))
    return hull


def _above(a: tuple[int, float], b: tuple[int, float], c: tuple[int, float]) -> bool:
    """True if `b` lies on or above the line from `a` to `c`."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def frontier_page(name: str, frontiers: Sequence[Frontier], stored: str) -> str:
    """The page as text; `stored` is the sweep itself, kept in it. FB0712 where the library that
    draws is missing."""
    charts = {f.kind: frontier_spec(f) for f in frontiers}
    title = f"Time and memory of @{shown(name)}"
    body = "\n".join(_body(title, frontiers))
    return document(title, body, {"charts": charts, "sweep": stored}, generator=SWEEP_MARK)


def _body(title: str, frontiers: Sequence[Frontier]) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1><main>"
    yield (
        "<p class=dim>Predicted times; every plan is proven. Hover a point for its plan. Grey, "
        "dashed: what no plan that computes in the same order and copies nothing beats.</p>"
    )
    for f in frontiers:
        of = "all device bytes" if f.kind == "device" else "activations"
        yield f"<section><h2>Time over {escape(of)}</h2>"
        yield chart(f.kind, f"Time of a step over {of}, a line for each planner")
        if (bend := knee(f)) is not None:
            yield f"<p>{escape(str(bend))}.</p>"
        yield _table(f) + "</section>"
    yield "</main>"


def _table(f: Frontier) -> str:
    rows: list[tuple[Cell, ...]] = [
        ("nothing recomputed", "", f.base_bytes, "1.000", "", "", ""),
        ("no plan takes less", "", f.floor_bytes, "", "", "", ""),
    ]
    rows += [
        (
            shown(p.planner, 60),
            shown(p.budget, 40),
            p.bytes if p.bytes is not None else "",
            f"{p.ratio:.3f}" if p.ratio is not None else "",
            f"{p.least_ratio:.3f}" if p.least_ratio is not None else "",
            f"{p.plan_s:.1f} s",
            p.status if not p.message else f"{p.status}: {shown(p.message, 200)}",
        )
        for p in f.points
    ]
    rows += [
        (f"{shown(m.name, 60)} (measured)", "", m.bytes, f"{m.ratio:.3f}", "", "", "")
        for m in f.measured
    ]
    head = ("planner", "budget", "bytes", "time, times", "no less than", "planned in", "")
    return table("Every cell of the sweep", head, rows)


def _bounds(f: Frontier) -> Iterator[tuple[int, float]]:
    """The Pareto frontier of the order: a plan for a budget also serves larger ones."""
    known = [(p.budget_bytes, p.least_ratio) for p in f.points if p.least_ratio is not None]
    least = 1.0
    for n, ratio in sorted(known, reverse=True):
        least = max(least, ratio)
        yield n, least


def frontier_spec(f: Frontier) -> Spec:
    """As Vega-Lite: a line for each planner, the bounds, and what was measured."""
    rows = [
        {
            "planner": shown(p.planner, 60),
            "bytes": p.bytes,
            "ratio": p.ratio,
            "budget": f"{shown(p.budget, 40)} ({p.budget_bytes} bytes)",
            "size": f"{format_bytes(p.bytes)} ({p.bytes})",
            "status": p.status,
        }
        for p in f.points
        if p.bytes is not None and p.ratio is not None
    ]
    bounds = list(_bounds(f))
    seen = [f.base_bytes, f.floor_bytes, *(n for n, _ in bounds), *(m.bytes for m in f.measured)]
    seen += [p.bytes for p in f.points if p.bytes is not None]
    x: Spec = {
        "field": "bytes",
        "type": "quantitative",
        "title": "bytes",
        "axis": byte_axis(min(seen), max(seen), 8),
        "scale": {"zero": False},
    }
    fixed = [
        {"bytes": f.base_bytes, "line": "nothing recomputed"},
        {"bytes": f.floor_bytes, "line": "no plan takes less"},
    ]
    peers = [
        {"planner": f"{shown(m.name, 60)} (measured)", "bytes": m.bytes, "ratio": m.ratio}
        for m in f.measured
    ]
    held = {
        "plans": rows,
        "bounds": [{"bytes": n, "ratio": r} for n, r in bounds],
        "measured": peers,
        "fixed": fixed,
    }
    return drawn("frontier", 380, held, bytes=x)
