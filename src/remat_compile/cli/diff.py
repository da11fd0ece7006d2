"""`remat-compile diff`: what two plans do differently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.units import format_bytes, format_ns
from ..plans.messages.table import columns
from .shared.options import Quiet
from .shared.terminal import FormatOption, echo, listed, print_object

if TYPE_CHECKING:
    from ..report.changes import Differences, What
    from ..report.subject import Subject

SHOWN = 20


def command(
    first: Annotated[str, typer.Argument(metavar="A.fbir", help="- for standard input.")],
    second: Annotated[str, typer.Argument(metavar="B.fbir", help="- for standard input.")],
    all: Annotated[bool, typer.Option("--all", help="Do not shorten the lists.")] = False,
    schedules: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Which schedules of A and B (the last of each)."),
    ] = None,
    format: FormatOption = "text",
    quiet: Quiet = False,
) -> int:
    """Compare what a plan of A and one of B keep, recompute and move.

    Exit code 0 where graph and steps are the same, 1 where they differ, 2 for trouble.
    """
    from ..plans.files.look import read_plan
    from ..report.changes import differences

    if first == second == "-":
        message = "both plans are to come from standard input"
        raise FBError(Diagnostic("FB0731", message, hint="name a file for one"), usage=True)
    names: Sequence[str | None] = (None, None) if schedules is None else schedules.split(",")
    if len(names) != 2:
        message = f'cannot read --schedules "{schedules}"'
        raise FBError(
            Diagnostic("FB0707", message, hint="write for example fast,small"), usage=True
        )
    try:
        files = zip((first, second), names, strict=True)
        plans = [read_plan(path, name)._subject for path, name in files]
        comparison = differences(*plans)
    except FBError as error:  # as of diff: 1 says that they differ
        raise FBError(error.diagnostics, usage=True) from None
    if format == "json":
        _print_object(comparison)
    elif not quiet:
        echo(*_lines(comparison, _names(first, second, comparison), all))
    return 0 if comparison.same else 1


def _print_object(changes: Differences) -> None:
    print_object(
        "diff",
        same=changes.same,
        same_graph=changes.same_graph,
        same_costs=changes.same_costs,
        plans=[_plan_object(s) for s in (changes.before, changes.after)],
        only=[changes.only_before, changes.only_after],
        changes=changes.changes,
    )


def _plan_object(subject: Subject) -> dict[str, object]:
    return {
        "schedule": subject.schedule.name,
        "planner": subject.schedule.planner,
        "peak_bytes": subject.trace.peak_bytes,
        "activation_peak_bytes": subject.trace.activation_peak_bytes,
        "host_peak_bytes": subject.trace.host_peak_bytes,
        "time_ns": subject.trace.time_ns,
    }


def _names(first: str, second: str, changes: Differences) -> tuple[str, str]:
    """The heads of the columns: the files, the schedules where both are of one file."""
    if first == second:
        return f"@{changes.before.schedule.name}", f"@{changes.after.schedule.name}"
    a, b = Path(first).name, Path(second).name
    return (a, b) if a != b else (first, second)


def _lines(changes: Differences, names: tuple[str, str], all: bool) -> list[str]:
    if changes.same:
        return ["the plans are the same"]
    lines = _figures(changes.before, changes.after, names)
    if not changes.same_graph:
        lines.append("the plans are of different graphs; what follows is about names in both")
        for what, only in zip(names, (changes.only_before, changes.only_after), strict=True):
            if only:
                more = f" and {len(only) - SHOWN} more" * (len(only) > SHOWN)
                lines.append(f"only in {what}: {', '.join(only[:SHOWN])}{more}")
    elif not changes.same_costs:
        lines.append("the graph is the same; times, workspaces or targets differ")
    elif not changes.changes:
        lines.append("the same is kept, recomputed and moved; only the order of steps differs")
    kinds: tuple[What, ...] = ("kept", "recomputed", "moved")
    for what in kinds:
        lines += _table(changes, what, names, all)
    return lines


def _figures(before: Subject, after: Subject, names: tuple[str, str]) -> list[str]:
    rows = [("", *names, "change")]
    for name, field, shown in (
        ("peak", "peak_bytes", format_bytes),
        ("activations", "activation_peak_bytes", format_bytes),
        ("host copies", "host_peak_bytes", format_bytes),
        ("time", "time_ns", format_ns),
    ):
        was, now = getattr(before.trace, field), getattr(after.trace, field)
        sign = "+" if now > was else "-" if now < was else ""
        rows.append((name, shown(was), shown(now), sign + shown(abs(now - was))))
    return columns(rows)


def _table(changes: Differences, what: What, names: tuple[str, str], all: bool) -> list[str]:
    """The changes of one kind, the largest first; nothing where there are none."""

    what_of = {
        "kept": "kept on the device over the loss",
        "recomputed": "runs again",
        "moved": "copies to the host",
    }
    rows = [
        (
            c.name,
            _as_words(what, c.before),
            _as_words(what, c.after),
            format_bytes(c.bytes),
            format_ns(c.ns),
            c.place,
        )
        for c in changes.changes
        if c.what == what
    ]
    head = (what_of[what], *names, "bytes", "one run", "made at")
    return ["", *listed(head, rows, "<>>>><", None if all else SHOWN)] if rows else []


def _as_words(what: What, count: int) -> str:
    if what == "kept":
        return "yes" if count else "no"
    return f"{count}x"
