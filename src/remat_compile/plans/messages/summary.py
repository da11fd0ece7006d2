"""A plan in a few lines, beside the step with nothing recomputed."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.analysis.liveness import floor_bytes
from ...ir.analysis.states import searched_bound_bytes
from ...ir.program import Budget, Program
from ...ir.schedule import Compute, Schedule
from ...ir.semantics.simulate import Sizes, Trace
from ...ir.terminal import printable_lines
from ..budget import Baseline, format_bytes
from .table import columns

MOST_ABOVE = 10.0
"""A bound that the plan is further above than so many times says nothing of how good it is."""


def summary(
    program: Program,
    schedule: Schedule,
    trace: Trace,
    base: Baseline,
    *,
    budget: Budget | None,
    lower_bound_s: float | None,
    is_proven: bool,
) -> str:
    """Return the bytes and the time of the plan, and of the step without it; `lower_bound_s` of its
    order."""
    floors = _floors(program, schedule, trace, base, budget)
    lines = [_head(schedule, budget), *columns([*_rows(trace, base, floors, is_proven)])]
    lines += _homes(program, schedule)
    lines += _bound(trace.time_ns / 1e9, lower_bound_s)
    again = sum(trace.executions.values()) - len(trace.executions)
    lines.append(
        f"{len(trace.executions)} computations, {again} run again; "
        f"costs {program.header.costs}, target {program.target.name}"
    )
    return printable_lines(lines) + "\n"


def _head(schedule: Schedule, budget: Budget | None) -> str:
    by = f" by {schedule.planner}" if schedule.planner else ""
    if budget is None:
        return f"plan @{schedule.name}{by}"
    kind = "of activations" if budget.kind == "activation" else "on the device"
    return f"plan @{schedule.name}{by} for {format_bytes(budget.bytes)} {kind}"


def _floors(
    program: Program, schedule: Schedule, trace: Trace, base: Baseline, budget: Budget | None
) -> tuple[int, int]:
    """Return the floors of device and activation bytes. A plan that takes all of its budget, as one
    for `least` does, has the highest that is known beside it."""
    device, activation = base.floor_bytes, base.activation_floor_bytes
    if schedule.homes:
        device = floor_bytes(program, homes=schedule.homes)[0]
        return device, activation
    if budget is None:
        return device, activation
    copies = schedule.has_copies
    if budget.kind == "device" and budget.bytes == trace.peak_bytes:
        device = searched_bound_bytes(program, "device", copies=copies)[0]
    if budget.kind == "activation" and budget.bytes == trace.activation_peak_bytes:
        activation = searched_bound_bytes(program, "activation", copies=copies)[0]
    return device, activation


def _rows(
    trace: Trace, base: Baseline, floors: tuple[int, int], proven: bool
) -> Iterator[tuple[str, ...]]:
    yield ("", "proven" if proven else "predicted", "nothing recomputed", "floor")
    peaks = (trace.peak_bytes, base.peak_bytes, floors[0])
    yield ("device memory", *map(format_bytes, peaks))
    activations = (
        trace.activation_peak_bytes,
        base.activation_peak_bytes,
        floors[1],
    )
    yield ("activations", *map(format_bytes, activations))
    if trace.copies:
        yield ("host copies", format_bytes(trace.host_peak_bytes), "", "")
    slower = f"{trace.time_ns / base.time_ns:.2f} ×" if base.time_ns else ""
    times = (f"{ns / 1e9:.4g} s" for ns in (trace.time_ns, base.time_ns))
    yield ("time, predicted", *times, slower)


def _homes(program: Program, schedule: Schedule) -> Iterator[str]:
    """The bytes on the host between two steps, by kind, and where parameters are updated."""
    graph, size = program.graph, Sizes.of(program).anode
    names = {"param": "parameters", "opt_state": "states of the optimizer", "buffer": "buffers"}
    names["param_grad"] = "gradients at the end"
    count: dict[str, int] = {}
    for name in schedule.homes:
        kind = graph.anode[name].kind
        count[kind] = count.get(kind, 0) + size[name]
    parts = [f"{names[kind]} {format_bytes(count[kind])}" for kind in names if kind in count]
    if parts:
        yield f"at home on the host: {', '.join(parts)}"
    if updates := [c for c in graph.cnodes if c.is_update]:
        away = {s.cnode for s in schedule.steps if isinstance(s, Compute) and s.on_host}
        here = sum(c.name not in away for c in updates)
        yield f"{len(updates)} updates: {here} on the device, {len(away)} on the host"


def _bound(time_s: float, lower_bound_s: float | None) -> Iterator[str]:
    if not lower_bound_s:
        return
    least = f"no plan in this order takes less than {lower_bound_s:.4g} s"
    if time_s <= MOST_ABOVE * lower_bound_s:
        above = 100 * (time_s / lower_bound_s - 1)
        least += f"; this one is at most {above:.2f} % above the best"
    yield least
