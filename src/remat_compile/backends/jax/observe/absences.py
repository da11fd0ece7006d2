"""Executions of a plan that leave no trace in the compiled step, and why that is right."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from ....ir.graph import Graph
from ....ir.schedule import Schedule
from ..emit.body import scope_name
from ..emit.executions import constants, dead_executions
from ..emit.order import numbered


class Absence(Enum):
    """Why there is nothing of an execution to be found, in words that follow its name."""

    DEAD = "nothing depends on its results"
    CONSTANT = "it reads nothing that the caller gives, and is computed beforehand"
    PASSED_ON = "it gives back what it reads"
    UNREAD = "only the shape of its result is read"
    SIMPLIFIED = "XLA has no need of it in any of its runs (as of one that another undoes)"


def planned_scopes(graph: Graph, schedule: Schedule) -> tuple[str, ...]:
    """The name of every execution of a schedule; the loss left out."""
    return tuple(
        scope_name(now.cnode.name, now.execution)
        for now in numbered(graph, schedule.steps)
        if now.cnode is not None and not now.cnode.is_loss
    )


def absences(
    graph: Graph,
    schedule: Schedule,
    seen: Collection[str],
    traced: Collection[str],
    needed: Collection[str],
    renamed: Collection[str] = (),
) -> Mapping[str, Absence]:
    """The planned executions that are rightly absent from `seen`, the names in the compiled
    step. `traced` are those that JAX has any primitive of, `needed` those of them that have
    a primitive on which a result depends; of `renamed` ones XLA may have dropped the names alone.

    What was merged with another run of it leaves the name of one. A computation that has no name
    left of any run is none to XLA, which finds the result without it: `-(-x)`.
    """
    dead = {scope_name(*execution) for execution in dead_executions(graph, schedule)}
    constant = constants(graph)
    absences: dict[str, Absence] = {}
    planned = planned_scopes(graph, schedule)
    there = {name.split("#")[0] for name in (*seen, *renamed)}
    for name in planned:
        if name in seen:
            continue
        if name in dead:
            absences[name] = Absence.DEAD
        elif name.split("#")[0] in constant:
            absences[name] = Absence.CONSTANT
        elif name not in traced:
            absences[name] = Absence.PASSED_ON
        elif name not in needed:
            absences[name] = Absence.UNREAD
        elif name.split("#")[0] not in there:
            absences[name] = Absence.SIMPLIFIED
    return absences
