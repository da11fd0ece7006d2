"""`remat-compile explain`: why the peak is where it is, or what a tensor or a module costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from .shared.explain_budget import Fit, bounds_of, fit_lines, price_lines, signed
from .shared.options import PlanFile, ScheduleOption
from .shared.terminal import FormatOption

if TYPE_CHECKING:
    from ..plans.sweep.prices import Prices
    from ..report.charts.variants import Effect
    from ..report.reasons import TensorReasons
    from ..report.subject import Subject

HELD, REMEDIES, TENSORS = 10, 3, 25
GIB = 1 << 30


def command(
    plan: PlanFile,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[%TENSOR|MODULE]", help="A tensor, as %x, or a module, as blocks.0; the peak."
        ),
    ] = None,
    schedule: ScheduleOption = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Why no plan fits in so many device bytes, or what does."
        ),
    ] = None,
    activation_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The same of activations.")
    ] = None,
    price: Annotated[
        bool,
        typer.Option("--price", help="What a GiB more or less costs, by plans of a cheap planner."),
    ] = False,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="For the plans of --price and --budget.")
    ] = 10.0,
    all: Annotated[bool, typer.Option("--all", help="Do not shorten the lists.")] = False,
    format: FormatOption = "text",
) -> None:
    """Why the peak is where it is and which one change would lower it most; or why a tensor is
    kept, recomputed or moved, and what else would cost.

    Effects of a change are those of the changed plan, simulated. --budget and --price are about
    the whole step.
    """
    from ..plans.files.look import read_subject
    from ..plans.options import Errors
    from ..plans.request import check_time_limit
    from .shared.terminal import echo

    errors = Errors()
    bounds = errors.collect(lambda: bounds_of(budget, activation_budget))
    check_time_limit(errors, time_limit)
    if what is not None and (price or bounds):
        errors.add("FB0707", "--budget and --price are about the whole step", f"leave {what} away")
    errors.raise_if_any()
    subject = read_subject(plan, schedule)[0]
    fits = [Fit.of(subject, bound, time_limit) for bound in bounds or ()]
    prices = None
    if price:
        from ..plans.sweep.prices import prices_around

        prices = prices_around(subject, time_limit)
    if format == "json":
        _print_object(subject, what, fits, prices)
        return
    if not subject.planned:
        echo("the file holds no schedule: this is about the step with nothing recomputed")
    if not subject.has_times:
        echo("the plan holds no times, so what a change costs in time is not known")
    if fits or prices is not None:
        lines = [line for fit in fits for line in fit_lines(subject, fit, all)]
        echo(*lines, *(() if prices is None else price_lines(subject, prices)))
    elif what is None:
        echo(*_peak(subject, all))
    elif what.startswith("%"):
        echo(*_tensor(subject, what[1:]))
    else:
        echo(*_module(subject, what, all))


def _print_object(
    subject: Subject, what: str | None, fits: Sequence[Fit], prices: Prices | None
) -> None:
    from ..report.reasons import of_module, of_peak, of_tensor
    from .shared.terminal import print_object

    if what is None:
        floor, at = subject.floor
        known: dict[str, object] = {"peak": of_peak(subject), "floor_bytes": floor, "floor_at": at}
        known |= {"budgets": fits} if fits else {}
        known |= {"prices": prices} if prices is not None else {}
        print_object("explain", peak_bytes=subject.trace.peak_bytes, **known)
    elif what.startswith("%"):
        reasons = of_tensor(subject, what[1:])
        print_object("explain", tensor={**vars(reasons), "node": f"%{reasons.node.name}"})
    else:
        print_object("explain", module=of_module(subject, what))


def _peak(subject: Subject, all: bool) -> list[str]:
    from ..ir.units import format_bytes
    from ..plans.messages.table import columns
    from ..report.reasons import of_peak
    from ..report.subject import shown

    peak, trace = of_peak(subject), subject.trace
    count = len(subject.schedule.steps)
    place = subject.step_place(peak.step)
    held = trace.peak_bytes - peak.own_bytes
    lines = [
        f"peak: {format_bytes(trace.peak_bytes)} at step {peak.step + 1} of {count}: "
        f"{subject.step_text(peak.step)}{' at ' + place if place else ''}",
        ", ".join(f"{kind} {format_bytes(n)}" for kind, n in subject.peak.by_kind.items() if n),
        f"the step itself needs {format_bytes(peak.own_bytes)}, with what the caller holds; "
        f"{format_bytes(held)} are held for later",
    ]
    floor, at = subject.floor
    lines.append(f"no plan takes less than {format_bytes(floor)}, which {at} needs")
    waiting = [h for h in peak.held if h.next_use != peak.step and h.holding.kind != "parameters"]
    listed = waiting if all else waiting[:HELD]
    rows = [("waits", "bytes", "kind", "next used", "made at")]
    for h in listed:
        name = h.holding.name
        use = "kept for the caller" if h.next_use is None else _step(subject, h.next_use)
        place = _place(subject, name)
        rows.append((shown(name), format_bytes(h.holding.bytes), h.holding.kind, use, place))
    if listed:
        lines += ["", *columns(rows, "<><<<")]
    if len(waiting) > len(listed):
        lines.append(f"and {len(waiting) - len(listed)} more (--all)")
    lines.append("")
    if not peak.remedies:
        second = format_bytes(peak.next_peak_bytes)
        lines.append(
            f"no one change of {peak.tried} tried lowers the peak; "
            f"the largest of the other steps takes {second}"
        )
    for i, remedy in enumerate(peak.remedies[: None if all else REMEDIES]):
        how = "making %{} again" if remedy.how == "recompute" else "copying %{} to the host"
        start = "the one change that lowers it most: " if i == 0 else "or "
        lines.append(f"{start}{how.format(shown(remedy.anode))}: {_effect(remedy.effect)}")
    return lines


def _step(subject: Subject, index: int) -> str:
    return f"step {index + 1}: {subject.step_text(index)}"


def _place(subject: Subject, name: str) -> str:
    from ..report.subject import place_of

    return place_of(subject.program, name)


def _effect(effect: Effect) -> str:
    from ..ir.units import format_bytes, format_ns

    peak = signed(effect.more_bytes, format_bytes)
    time = signed(effect.more_ns, format_ns)
    text = f"peak {format_bytes(effect.peak_bytes)} ({peak}), time {time}"
    if effect.more_bytes * effect.more_ns < 0:  # one is paid for with the other
        text += f", {format_ns(round(abs(effect.more_ns / effect.more_bytes) * GIB))} for each GiB"
    return text


def _tensor(subject: Subject, name: str) -> list[str]:
    from ..ir.expr import format_expr
    from ..ir.units import format_bytes
    from ..report.reasons import of_tensor

    tensor = of_tensor(subject, name)
    node = tensor.node
    view = f" (%{name} is a view of it)" if name != node.name else ""
    shape = ", ".join(map(format_expr, node.shape))
    made = _place(subject, node.name)
    lines = [
        f"%{node.name}{view}: {node.kind} {node.dtype}[{shape}], {format_bytes(tensor.size_bytes)}"
        + (f", made by {made}" if made else ""),
        _treatment(tensor),
    ]
    for life in tensor.lives:
        until = "the end" if life.died == len(subject.schedule.steps) else f"step {life.died + 1}"
        lines.append(f"  held from step {life.born + 1} to {until}{' (made again)' * life.again}")
    if tensor.at_peak:
        share = 100 * tensor.size_bytes / subject.trace.peak_bytes
        lines.append(f"it is there at the peak, {share:.1f} % of it")
    else:
        lines.append("it is not there at the peak")
    budget = subject.budgets.get("device")
    if tensor.kept_effect is not None:
        over = " (more than the budget)" * (
            budget is not None and tensor.kept_effect.peak_bytes > budget
        )
        lines.append(f"keeping it throughout: {_effect(tensor.kept_effect)}{over}")
    elif tensor.treatment in ("recomputed", "moved"):
        lines.append("keeping it throughout alone makes no valid plan")
    if tensor.dropped is not None:
        lines.append(f"making it again over the peak: {_effect(tensor.dropped)}")
    if tensor.moved is not None:
        lines.append(f"copying it to the host over the peak: {_effect(tensor.moved)}")
    return lines


def _treatment(reasons: TensorReasons) -> str:
    from ..ir.units import format_ns

    match reasons.treatment:
        case "caller's":
            return "the caller holds it: no plan can free it"
        case "kept":
            return "kept on the device from forward to backward"
        case "recomputed":
            again = f"{reasons.runs - 1} time{'s' * (reasons.runs != 2)}"
            took = format_ns(reasons.again_ns)
            return f"recomputed {again}, which takes {took}, and not held meanwhile"
        case "moved":
            return f"moved to the host and back, in {reasons.copies} copies"
        case "passing":
            return "made, used and freed on one side of the loss"
        case "never made":
            return "never made: nothing needs it"
        case _:
            assert_never(reasons.treatment)


def _module(subject: Subject, path: str, all: bool) -> list[str]:
    from ..ir.units import format_bytes, format_ns
    from ..plans.messages.table import columns
    from ..report.reasons import of_module
    from ..report.subject import shown

    module = of_module(subject, path)
    lines = [
        f"{path}: {format_ns(module.first_ns)}, and {format_ns(module.again_ns)} of recomputation",
        f"at the peak it holds {format_bytes(module.peak_bytes)} of "
        f"{format_bytes(subject.trace.peak_bytes)}",
    ]
    totals: dict[str, int] = {}
    for _, size, treatment in module.tensors:
        totals[treatment] = totals.get(treatment, 0) + size
    lines.append(", ".join(f"{what} {format_bytes(n)}" for what, n in totals.items()))
    if module.kept_effect is not None:
        lines.append(f"keeping all of it throughout: {_effect(module.kept_effect)}")
    listed = module.tensors if all else module.tensors[:TENSORS]
    rows = [("tensor", "bytes", "what is done", "made at")]
    rows += [(shown(f"%{n}"), format_bytes(b), what, _place(subject, n)) for n, b, what in listed]
    lines += ["", *columns(rows, "<><<")]
    if len(module.tensors) > len(listed):
        lines.append(f"and {len(module.tensors) - len(listed)} more (--all)")
    return lines
