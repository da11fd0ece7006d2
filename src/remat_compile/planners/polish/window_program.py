"""The integer program of a window of a plan with copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ...ir.program import Target
from ..instance import Instance
from ..programs.events import PossibleRun
from ..solvers.milp import Milp, Vector
from .window_clock import WindowClock
from .window_rows import Detour, WindowRows

Taken = tuple[Detour, int, int]
"""A detour, and the boundaries of its `free` and of the issue of its way back."""


@dataclass(frozen=True, eq=False)
class WindowProgram:
    """The objective times `unit_ns` is the time of the step."""

    milp: Milp
    unit_ns: float
    event_column: list[int]
    choices: list[tuple[Detour, dict[int, int], dict[int, int]]]
    """For each detour, the columns of its `frees` and of its `issues`; none for a fixed one."""
    fits: bool
    """False where what is alive in any case does not fit."""

    def runs(self, point: Vector) -> set[int]:
        """The optional events that a point runs."""
        return {e for e, c in enumerate(self.event_column) if c >= 0 and point[c] > 0.5}

    def taken(self, point: Vector) -> list[Taken]:
        """The detours that a point takes; not those that come back before they are gone, which
        change nothing."""
        taken: list[Taken] = []
        for detour, frees, issues in self.choices:
            if detour.fixed:
                taken.append((detour, detour.frees[0], detour.issues[0]))
                continue
            free = next((f for f, c in frees.items() if point[c] > 0.5), None)
            issue = next((i for i, c in issues.items() if point[c] > 0.5), None)
            if free is not None and issue is not None and free < issue:
                taken.append((detour, free, issue))
        return taken


def window_program(
    instance: Instance,
    target: Target,
    events: Sequence[PossibleRun],
    detours: Sequence[Detour],
    limit_bytes: int,
    cutoff_ns: int,
    deadline: float = inf,
) -> WindowProgram:
    """The program for a peak of at most `limit_bytes`, as the instance counts, the target's host
    bytes, and a step of less than `cutoff_ns`. NotStated as of `compact_model`."""
    rows = WindowRows(instance, events, detours, limit_bytes)
    rows.walk(deadline)
    if target.host_bytes is not None:
        rows.bound_host(target.host_bytes)
    clock = WindowClock(rows, target, cutoff_ns)
    clock.state()
    choices = list(zip(detours, rows.frees, rows.issues, strict=True))
    milp = rows.builder.build()
    return WindowProgram(milp, clock.unit_ns, rows.event_column, choices, rows.fits)
