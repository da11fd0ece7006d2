"""The report of a plan: one HTML file that needs nothing else.

All text of the plan is foreign: made printable and cut (`shown`), then escaped once, here or in
`document`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from ..ir.units import format_bytes, format_ns
from .charts.charts import charts, stretch_moments
from .charts.drawing import TENSORS_PER_MOMENT, Stretch
from .charts.rollup import TimeSpent, by_module, by_operator
from .document import Cell, chart, document, table
from .fit import Fit
from .moments import KINDS, Moment
from .subject import Subject, place_of, shown

OWNERS, RECOMPUTED, OPERATORS = 25, 40, 40
MOST_MODULES, MOST_PARTS = 1500, 60
SECTIONS = {
    "memory": "Memory over the step",
    "streams": "Streams",
    "peak": "The peak",
    "lives": "Lifetimes",
    "operators": "Time by operator",
    "modules": "Time by module",
    "again": "Recomputed",
    "trust": "Proven, predicted, measured, assumed",
}


def page(subject: Subject) -> str:
    """The page as text. FB0712 where the library that draws is missing."""
    held = stretch_moments(subject)
    specs = charts(subject, held)
    data = {
        "charts": specs,
        "kinds": list(KINDS),
        "steps": len(subject.schedule.steps),
        "peak_bytes": subject.trace.peak_bytes,
        "time_ns": subject.trace.time_ns,
        "moments": list(_moments(subject, held)),
    }
    name = shown(f"@{subject.schedule.name} of @{subject.program.graph.name}")
    body = "\n".join(_body(subject, [part for part, _ in held], specs))
    return document(name, body, data, "page.js")


def _moments(subject: Subject, held: Sequence[tuple[Stretch, Moment]]) -> Iterator[list[Any]]:
    """The data of the slider: step, bytes, what runs, where, bytes by kind, largest tensors."""
    for _, moment in held:
        step, kinds = moment.step, moment.by_kind
        tensors = [
            [shown(h.name, 40), KINDS.index(h.kind), h.bytes]
            for h in moment.holdings[:TENSORS_PER_MOMENT]
        ]
        what, place = subject.step_text(step), subject.step_place(step)
        amounts = [kinds[kind] for kind in KINDS]
        yield [step + 1, subject.trace.during[step], what, place, amounts, tensors]


def _body(subject: Subject, parts: Sequence[Stretch], specs: dict[str, Any]) -> Iterator[str]:
    peak_at = next(
        (i for i, p in enumerate(parts) if p.first <= subject.trace.peak_step <= p.last), 0
    )
    yield from _head(subject)
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title in SECTIONS.items())
    yield f'<nav aria-label="Sections">{links}</nav>\n<main>'
    yield _section("memory")
    yield "<p class=dim>Grey, dashed: the step with nothing recomputed. Hover for tensors.</p>"
    yield chart("memory", "Device memory over the step, stacked by kind")
    yield (
        f'<label for="slider">What is held at a step (arrow keys move)</label>'
        f'<input id="slider" type="range" min="0" max="{len(parts) - 1}" value="{peak_at}">'
        f'<div id="moment" role="status"></div></section>'
    )
    yield _section("streams")
    if not subject.has_times:
        yield "<p>The plan holds no times: every step is drawn as long as the others.</p>"
    yield chart("streams", "What each stream does over the step") + "</section>"
    yield from _peak(subject)
    yield _section("lives")
    yield "<p class=dim>The tensors that fill most memory for longest.</p>"
    yield chart("lives", "When the largest tensors are held") + "</section>"
    yield from _operators(subject, "operators" in specs)
    yield from _modules(subject)
    yield from _again(subject)
    yield from _trust(subject)
    yield "</main>"


def _head(subject: Subject) -> Iterator[str]:
    trace, before = subject.trace, subject.without.trace
    by = f" by {shown(subject.schedule.planner)}" if subject.schedule.planner else ""
    name = shown(f"@{subject.schedule.name} of @{subject.program.graph.name}")
    yield f"<h1>{escape(name)}</h1><p class=dim>{escape(f'A plan{by}')}</p>"
    if not subject.planned:
        yield (
            "<p><strong>The file holds no schedule</strong>: "
            "shown is the step with nothing recomputed.</p>"
        )
    again = sum(n - 1 for n in trace.executions.values())
    floor, floor_at = subject.floor
    slower = f"{trace.time_ns / before.time_ns:.3f} ×" if before.time_ns else ""
    rows: list[tuple[Cell, ...]] = [
        _compared("device memory", trace.peak_bytes, before.peak_bytes),
        _compared("activations", trace.activation_peak_bytes, before.activation_peak_bytes),
        *([_compared("host copies", trace.host_peak_bytes, 0)] if trace.copies else []),
        ("time of a step", _time(trace.time_ns, subject), _time(before.time_ns, subject), slower),
        ("computations run again", str(again), "0", ""),
    ]
    for kind, size in subject.budgets.items():
        rows.append((f"budget ({kind})", f"{format_bytes(size)} ({size})", "", ""))
    rows.append(
        (
            "no plan takes less than",
            f"{format_bytes(floor)} ({floor})",
            "",
            f"for {shown(floor_at, 40)}",
        )
    )
    fit = Fit.of(subject)
    yield from (f"<p>{escape(shown(line, 200))}</p>" for line in fit.verdict())
    head, *filled = fit.table()
    yield table("What fills the device", head, [tuple(shown(c, 80) for c in r) for r in filled])
    yield table("Before and after; predicted", ("", "this plan", "nothing recomputed", ""), rows)


def _compared(name: str, after: int, before: int) -> tuple[Cell, ...]:
    share = f"{100 * after / before:.1f} %" if before else ""
    return (name, f"{format_bytes(after)} ({after})", f"{format_bytes(before)} ({before})", share)


def _time(ns: int, subject: Subject) -> str:
    return format_ns(ns) if subject.has_times else "not known"


def _peak(subject: Subject) -> Iterator[str]:
    moment, trace = subject.peak, subject.trace
    step = trace.peak_step
    place = subject.step_place(step)
    at = f"step {step + 1} of {len(subject.schedule.steps)}: {subject.step_text(step)}"
    yield _section("peak")
    where = f" at {place}" if place else ""
    size = f"{format_bytes(trace.peak_bytes)} ({trace.peak_bytes} bytes)"
    yield f"<p>{escape(f'{size} at {at}{where}')}</p>"
    kinds = [(k, n, _share(n, trace.peak_bytes)) for k, n in moment.by_kind.items() if n]
    yield table("By kind", ("kind", "bytes", "share"), kinds)
    owners: list[tuple[Cell, ...]] = [
        (shown(h.name), h.bytes, h.kind, place_of(subject.program, h.name))
        for h in moment.holdings[:OWNERS]
    ]
    rest = moment.holdings[OWNERS:]
    if rest:
        owners.append((f"{len(rest)} more", sum(h.bytes for h in rest), "", ""))
    yield table("Owners", ("tensor", "bytes", "kind", "made at"), owners) + "</section>"


def _operators(subject: Subject, drawn: bool) -> Iterator[str]:
    times = by_operator(subject.program.graph, subject.timeline.runs)
    yield _section("operators")
    if drawn:
        yield chart("operators", "Time by operator, recomputation highlighted")
    rows = [
        (
            shown(t.name),
            t.first_runs,
            _time(t.first_ns, subject),
            t.again_runs,
            _time(t.again_ns, subject) if t.again_runs else "",
        )
        for t in times[:OPERATORS]
    ]
    head = ("operator", "runs", "time", "run again", "time again")
    more = f", the slowest {OPERATORS} of {len(times)}" if len(times) > OPERATORS else ""
    yield table(f"Predicted time{more}", head, rows) + "</section>"


def _modules(subject: Subject) -> Iterator[str]:
    root = by_module(subject.program.graph, subject.timeline.runs)
    yield _section("modules")
    yield (
        "<p class=dim>Open a module with Enter. Backward counts with its forward; "
        "<span class=again>recomputation</span> is highlighted.</p>"
    )
    if not root.parts:
        yield "<p>The plan names no modules.</p>"
    left = [MOST_MODULES]
    yield f'<div class="tree">{_branch(root, root, left, is_open=True)}</div></section>'


def _branch(node: TimeSpent, root: TimeSpent, left: list[int], *, is_open: bool = False) -> str:
    left[0] -= 1
    head = f"{escape(shown(node.name, 60))}{_node_figures(node, root)}"
    parts = node.ranked()[:MOST_PARTS] if left[0] > 0 else []
    if not parts:
        return f'<div class="leaf">{head}</div>'
    inside = "".join(_branch(part, root, left) for part in parts)
    if len(node.parts) > len(parts):
        inside += f'<div class="leaf dim">{len(node.parts) - len(parts)} more</div>'
    return f"<details{' open' if is_open else ''}><summary>{head}</summary>{inside}</details>"


def _node_figures(node: TimeSpent, root: TimeSpent) -> str:
    """Time and share, as text and as a bar; counts where there are no times."""
    if not root.total_ns:
        count = node.first_runs + node.again_runs
        return f'<span class="took">{count} runs, {node.again_runs} again</span>'
    first, again = (200 * ns / root.total_ns for ns in (node.first_ns, node.again_ns))
    more = f' <span class="again">+{format_ns(node.again_ns)} again</span>' if node.again_ns else ""
    bars = (
        f'<span class="bar" style="width:{first:.1f}px"></span>'
        f'<span class="bar again" style="width:{again:.1f}px"></span>'
    )
    took = f'<span class="took">{format_ns(node.first_ns)}{more}</span>'
    return f'<span class="share" aria-hidden="true">{bars}</span>{took}'


def _again(subject: Subject) -> Iterator[str]:
    graph, counts = subject.program.graph, subject.trace.executions
    recomputed = [c for c in graph.cnodes if counts.get(c.name, 0) > 1]
    cost = {c.name: c.time_ns_at(2) * (counts[c.name] - 1) for c in recomputed}
    recomputed.sort(key=lambda c: (-cost[c.name], c.name))
    yield _section("again")
    if not recomputed:
        yield "<p>Nothing is recomputed.</p></section>"
        return
    rows = [
        (
            shown(c.name),
            shown(c.call.op),
            counts[c.name] - 1,
            _time(cost[c.name], subject),
            shown(str(c.loc or "")),
        )
        for c in recomputed[:RECOMPUTED]
    ]
    total = format_ns(sum(cost.values()))
    caption = f"{len(recomputed)} computations run again, which adds {total}"
    yield (
        table(caption, ("computation", "operator", "times", "adds", "made at"), rows) + "</section>"
    )


def _trust(subject: Subject) -> Iterator[str]:
    header, proven = subject.program.header, subject.proven
    yield _section("trust")
    rows: list[tuple[Cell, ...]] = []
    if proven is None:
        rows.append(
            ("proven", "nothing is recorded as proven; remat-compile verify proves the plan")
        )
    else:
        text = (
            f"recorded by {proven.prover}: device <= {proven.device_bytes} bytes, "
            f"activations <= {proven.activation_bytes}, host <= {proven.host_bytes}; "
            f"{', '.join(proven.obligations)}"
        )
        rows.append(("proven", shown(text, 400)))
        rows.append(("", "this page does not prove it again; remat-compile verify does"))
    rows.append(
        ("predicted", "bytes of every step, by simulation; times, from those of the operators")
    )
    match header.costs:
        case "measured":
            where = f"on {header.device}, torch {header.torch_version}"
            rows.append(("measured", shown(f"times and workspaces of the operators, {where}")))
        case "roofline":
            rows.append(("measured", "nothing: times are estimated from the figures of the device"))
        case "none":
            rows.append(("measured", "nothing: the plan does not say where its costs come from"))
    rows += [("assumed", shown(line, 400)) for line in subject.assuming]
    rows.append(("", "not known: what a real run takes; remat-compile run measures one"))
    yield table("What the figures of this page are", ("", ""), rows) + "</section>"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _section(key: str) -> str:
    return f'<section aria-labelledby="{key}"><h2 id="{key}">{SECTIONS[key]}</h2>'
