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
) -> Mapping[str, Absence]:
    """The planned executions that are rightly absent from `seen`, the names in the compiled
    step. `traced` are those that JAX has any primitive of, `needed` those of them that have
    a primitive on which a result depends.
    """
    dead = {scope_name(*execution) for execution in dead_executions(graph, schedule)}
    constant = constants(graph)
    absences: dict[str, Absence] = {}
    for name in planned_scopes(graph, schedule):
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
    return absences
