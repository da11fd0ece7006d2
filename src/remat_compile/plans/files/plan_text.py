"""The text of a plan file, and which of its schedules is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...ir.diagnostics import (
    Diagnostic,
    FBError,
    nearest,
)
from ...ir.wording import Worded

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...ir.program import Program
    from ...ir.schedule import Schedule


@dataclass(frozen=True, eq=False)
class PlanText:
    """The text that a graph and a schedule were read from: the checker reads it itself."""

    graph: Graph
    schedule: Schedule
    text: str

    def is_of(self, program: Program, schedule: Schedule) -> bool:
        """Return whether they are still what was read."""
        return self.graph is program.graph and self.schedule is schedule


def pick_schedule(program: Program, name: str | None = None) -> Schedule:
    """The schedule of that name, or the last. FB0708 where there is none."""
    if not program.schedules:
        message = "this file holds a graph and no schedule"
        hint = Worded(
            'plan it first: plan("FILE", budget="8GiB")',
            "plan it first: remat-compile FILE -o PLAN.fbir --budget 8GiB",
        )
        raise FBError(Diagnostic("FB0708", message, hint=hint))
    if name is None:
        return program.schedules[-1]
    known = {s.name: s for s in program.schedules}
    if name not in known:
        message = f"no schedule @{name} in this file.{nearest(name, known)}"
        raise FBError(Diagnostic("FB0708", message), usage=True)
    return known[name]
