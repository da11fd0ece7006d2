"""`remat-compile show` and `report`: what a plan does, for people."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..ir.diagnostics import fail
from ..ir.units import format_bytes, format_rate
from .shared.options import PlanFile, Quiet, ScheduleOption
from .shared.terminal import FormatOption, echo, listed, print_object, print_warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ir.program import Header
    from ..plans.plan import Plan

OWNERS, RECOMPUTED, COPIED = 12, 20, 20
DIRECTIONS: tuple[tuple[Literal["d2h", "h2d"], str], ...] = (
    ("d2h", "to the host"),
    ("h2d", "from the host"),
)
SLOWER = (("half", Fraction(1, 2)), ("a quarter", Fraction(1, 4)))
WIDTH, HEIGHT = 64, 10


def command(
    plan: PlanFile,
    schedule: ScheduleOption = None,
    all: Annotated[bool, typer.Option("--all", help="Do not shorten the lists.")] = False,
    link: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="The bandwidth of the machine at hand, as for a plan."),
    ] = None,
    format: FormatOption = "text",
) -> None:
    """Show what a plan does: its peak and what fills it, memory over the step, what runs again.

    The figures are predicted by simulation; `remat-compile verify` proves them.
    """
    from ..plans.files.look import plan_in_text, read_program_text
    from ..plans.link.link import parse_link
    from ..plans.link.other_link import other_link
    from .fit import table_lines
    from .pipeline import SUFFIX, check_file

    if str(plan).endswith(SUFFIX):
        if schedule or all or link or format != "text":
            fail("FB0738", f"{plan} holds rows", hint="show them without options", usage=True)
        check_file(str(plan))
        return

    here = None if link is None else parse_link(link)
    read = plan_in_text(*read_program_text(plan), plan, schedule)
    if here is not None and (warning := other_link(read, here)) is not None:
        print_warnings((warning,))
    if format == "json":
        _print_object(read)
        return
    fit = read.fit()
    summary = [*fit.verdict(), *read.summary().splitlines()]
    parts = (_header(read), summary, [*table_lines(fit)], _owners(read, all), _memory(read))
    more = (_recomputed(read, all), *([_copied(read, all)] if read.trace.copies else []))
    lines = [line for part in (*parts, *more) for line in (*part, "")]
    echo(*lines[:-1])


def _print_object(plan: Plan) -> None:
    from ..verifier import cost_assumptions

    trace, proven = plan.trace, plan.proven
    alive = [{"name": name, "bytes": size} for name, size in trace.live_at(trace.peak_step)]
    runs = trace.executions
    print_object(
        "show",
        graph={"name": plan.graph.name, "cnodes": len(plan.graph.cnodes)},
        schedule={"name": plan.schedule.name, "steps": len(plan.schedule.steps)},
        planner=plan.planner,
        peak_bytes=plan.peak_bytes,
        activation_peak_bytes=plan.activation_peak_bytes,
        host_peak_bytes=plan.host_peak_bytes,
        time_ns=trace.time_ns,
        stall_ns=trace.stall_ns,
        issuing_ns=trace.issuing_ns,
        nothing_recomputed=plan.baseline,
        fit=plan.fit().as_object(),
        peak_step=trace.peak_step,
        held_at_peak=alive,
        bytes_of_steps=trace.during,
        recomputed=[{"cnode": name, "times": n - 1} for name, n in runs.items() if n > 1],
        copies=trace.copies,
        recorded_as_proven=None if proven is None else proven.obligations,
        assuming=[a.text for a in cost_assumptions(plan.program)],
    )


def _header(plan: Plan) -> list[str]:
    from ..verifier import cost_assumptions

    header, graph = plan.program.header, plan.graph
    source = f"{header.source} " if header.source else ""
    digest = f"(sha256 {header.sha256[:12]}…)" if header.sha256 else ""
    lines = [
        f"model        {f'{source}{digest}'.rstrip() or 'not recorded'}",
        f"captured     {_captured(header)}",
        f"graph        @{graph.name}: {len(graph.cnodes)} computations, "
        f"{len(graph.anodes)} storages, {len(graph.views)} views",
    ]
    lines += [f"rests on     {a.text}" for a in cost_assumptions(plan.program)]
    for s in plan.program.symbols:
        lines.append(f"symbol       {s.name} in [{s.low}, {s.high}], shown at {s.sample}")
    if plan.proven is not None:
        what = ", ".join(plan.proven.obligations)
        lines.append(f"recorded     proven by {plan.proven.prover}: {what}")
    others = [f"@{s.name}" for s in plan.program.schedules if s is not plan.schedule]
    if others:
        lines.append(f"other plans  {' '.join(others)}")
    return lines


def _captured(header: Header) -> str:
    """Where; a text without the line holds no version of PyTorch, which each capture has."""
    if not header.torch_version:
        return "not recorded"
    threads = f"{header.threads} thread{'s' * (header.threads != 1)}"
    return f"on {header.device}, {threads}, torch {header.torch_version}"


def _owners(plan: Plan, all: bool) -> list[str]:

    trace = plan.trace
    alive = trace.live_at(trace.peak_step)
    shown = alive if all else alive[:OWNERS]
    rows = []
    for name, size in shown:
        node = plan.graph.anode.get(name)
        writer = plan.graph.writer.get(name)
        place = f"{writer.name} {writer.loc or ''}".rstrip() if writer else ""
        label = f"%{name}" if node else name
        rows.append((label, format_bytes(size), node.kind if node else "", place))
    if rest := alive[len(shown) :]:
        rows.append((f"{len(rest)} more", format_bytes(sum(s for _, s in rest)), "", ""))
    head = f"peak: {format_bytes(trace.peak_bytes)} at {_step(plan, trace.peak_step)}"
    table = listed(("", "bytes", "kind", "made at"), rows, "<><<", None)
    return [head, _by_kind(plan, alive), *table]


def _by_kind(plan: Plan, alive: Sequence[tuple[str, int]]) -> str:

    bytes_of: dict[str, int] = {}
    for name, size in alive:
        kind = plan.graph.anode[name].kind if name in plan.graph.anode else name.strip("()")
        bytes_of[kind] = bytes_of.get(kind, 0) + size
    ranked = sorted(bytes_of.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {format_bytes(size)}" for kind, size in ranked)


def _step(plan: Plan, index: int) -> str:
    from ..ir.schedule import Compute
    from ..ir.text.printer import format_step

    step = plan.schedule.steps[index]
    of = f"step {index + 1} of {len(plan.schedule.steps)}"
    if not isinstance(step, Compute):
        return f"{of}: {format_step(step)}"
    c = plan.graph.cnode[step.cnode]
    place = f" at {c.loc}" if c.loc else ""
    return f"{of}: {c.name} {c.call.op}{place}"


def _memory(plan: Plan) -> list[str]:
    trace = plan.trace
    at = trace.loss_step / max(1, len(trace.during) - 1)
    width = min(WIDTH, len(trace.during))
    loss = round(at * (width - 1))
    chart = curve(trace.during)
    below = " " * 11 + " " * loss + "^ loss"
    return ["device memory over the steps of the schedule", *chart, below]


def curve(values: Sequence[int], width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """A chart of bytes in text: the largest value of each stretch, from 0 to the peak."""

    width = min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    heights = [max(values[a:b]) for a, b in pairwise(edges)]
    peak = max(max(heights), 1)
    lines = []
    for row in range(height, 0, -1):
        label = format_bytes(peak * row // height) if row in (height, height // 2) else ""
        full = (row - 0.5) * peak / height
        bars = "".join("█" if h >= full else " " for h in heights)
        lines.append(f"{label:>9} |{bars}".rstrip())
    return [*lines, f"{'0':>9} +{'-' * width}"]


def _recomputed(plan: Plan, all: bool) -> list[str]:

    counts = plan.trace.executions
    again = [c for c in plan.graph.cnodes if counts.get(c.name, 0) > 1]
    if not again:
        return ["nothing is recomputed"]
    cost = {c.name: c.time_ns_at(2) * (counts[c.name] - 1) for c in again}
    again.sort(key=lambda c: (-cost[c.name], c.name))
    rows = []
    for c in again:
        times, place = str(counts[c.name] - 1), str(c.loc or "")
        rows.append((c.name, times, f"{cost[c.name] / 1e6:.3f} ms", c.call.op, place))
    head = ("recomputed", "times", "adds", "operator", "made at")
    return listed(head, rows, "<>><<", None if all else RECOMPUTED)


def _copied(plan: Plan, all: bool) -> list[str]:
    """The copies to the host and back: when they run, and for how long the step waits."""

    trace = plan.trace
    sizes = dict(trace.host_at(trace.host_peak_step))
    copies = sorted(trace.copies, key=lambda copy: (copy.start_ns, copy.issued))
    rows = []
    for copy in copies:
        times = [f"{t / 1e6:.3f} ms" for t in (copy.start_ns, copy.end_ns, copy.stall_ns)]
        steps = f"{copy.issued + 1} to {copy.waited + 1}"
        where = "host" if copy.direction == "d2h" else "device"
        rows.append((f"%{copy.anode}", where, *times, steps))
    peak = f"host: {format_bytes(trace.host_peak_bytes)} at {_step(plan, trace.host_peak_step)}"
    names = {name: name if name[0] == "(" else f"%{name}" for name in list(sizes)[:OWNERS]}
    held = ", ".join(f"{shown} {format_bytes(sizes[name])}" for name, shown in names.items())
    head = ("copied", "to the", "from", "until", "waited", "steps")
    table = listed(head, rows, "<<>>><", None if all else COPIED)
    return [peak, f"{held}{', …' if len(sizes) > OWNERS else ''}", *table, *traffic(plan)]


def traffic(plan: Plan) -> list[str]:
    """Print the demands of copies on the link, and the step on slower ones."""
    from ..report.charts.traffic import Traffic

    trace = plan.trace
    of = Traffic(plan.program, plan.schedule, trace)
    whole = max(1, trace.time_ns)
    moved = ", ".join(
        f"{format_bytes(of.moved_bytes(way))} {where}, "
        f"its link busy {100 * of.busy_ns(way) / whole:.0f} % of the step"
        for way, where in DIRECTIONS
    )
    lines = [
        f"moved: {moved}; host peak {format_bytes(trace.host_peak_bytes)}",
        f"the step waits {trace.stall_ns / 1e6:.3f} ms for copies",
    ]
    if trace.issuing_ns:
        lines[-1] += f", and takes {trace.issuing_ns / 1e6:.3f} ms to issue them"
    target = plan.program.target
    rates = [r for r in (target.d2h_bytes_per_s, target.h2d_bytes_per_s) if r is not None]
    if (least := of.least_share) is None:
        return lines
    halves = [f"{of.time_at(share) / 1e6:.3f} ms at {name}" for name, share in SLOWER]
    need = format_rate(round(max(rates) * least))
    lines.append(f"with less bandwidth: {', '.join(halves)} of it; within 1.05 x from {need} on")
    return lines


def report(
    plan: PlanFile,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE.html", help="Where to write; - is standard output."
        ),
    ],
    schedule: ScheduleOption = None,
    quiet: Quiet = False,
) -> None:
    """A plan as one HTML page that opens offline in any browser.

    Memory over the step by kind, the streams, what fills the peak, lifetimes, time by operator
    and module. All is simulated; `remat-compile verify` proves it.
    """
    from ..plans.files.files import STREAM, write_text
    from ..plans.files.look import read_subject
    from ..plans.files.outputs import check_output, files_of_model
    from ..report.page import page

    check_output(output, "picture", files_of_model(plan), all_known=False)
    subject, reads = read_subject(plan, schedule)
    check_output(output, "picture", reads)
    write_text(output, page(subject))
    if not quiet and output != STREAM:
        echo(f"wrote {output}")
