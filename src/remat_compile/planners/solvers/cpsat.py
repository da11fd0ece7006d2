"""CP-SAT of OR-Tools, for retention intervals: a function that `solve.Worker` runs.

A request describes the problem in JSON (`planners/programs/moccasin.py` writes it); `ortools` is
loaded in this process only, and needs the extra `cpsat`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..isolation.process import Say

STATUS = {"OPTIMAL": "optimal", "FEASIBLE": "feasible", "INFEASIBLE": "infeasible"}
"""CP-SAT's status to ours; any other is `unknown`."""


class _Model:
    """Index legend: `*_J` has one entry per job (a possible run), `*_V` per store (what a
    job makes and keeps for a while)."""

    def __init__(self, head: dict[str, Any]):
        from ortools.sat.python import cp_model

        self.m = cp_model.CpModel()
        self.domain = cp_model.Domain.FromValues
        self.horizon = head["horizon"]
        self.starts: list[Any] = []
        self.active: list[Any] = []
        self.intervals: list[Any] = []
        self.demands: list[int] = []
        for job in head["jobs"]:
            self._job(**job)
        self.ends = [self._store(**store) for store in head["stores"]]
        self.made_by = [store["job"] for store in head["stores"]]
        for consumer, stores in head["reads"]:
            self._read(consumer, stores)
        for first, second in head["copies"]:
            self.m.AddImplication(self.active[second], self.active[first])
            after = self.starts[second] > self.starts[first]
            self.m.Add(after).OnlyEnforceIf(self.active[second])
        self.m.AddCumulative(self.intervals, self.demands, head["capacity"])
        self.m.Minimize(
            sum(job["cost"] * a for job, a in zip(head["jobs"], self.active, strict=True))
        )

    def _job(self, at: list[int], cost: int, optional: bool, workspace: int) -> None:
        m = self.m
        start = m.NewIntVarFromDomain(self.domain(at), "") if optional else at[0]
        active = m.NewBoolVar("") if optional else m.NewConstant(1)
        self.starts.append(start)
        self.active.append(active)
        if workspace:
            self._occupy(start, 1, start + 1, active, workspace)

    def _occupy(self, start: Any, size: Any, end: Any, active: Any, demand: int) -> None:
        self.intervals.append(self.m.NewOptionalIntervalVar(start, size, end, active, ""))
        self.demands.append(demand)

    def _store(self, job: int, size: int, shift: int, least: int, lazy: bool) -> tuple[Any, Any]:
        """A retention interval from the start of its job (`shift` later) to a variable end.
        `lazy`: there only if read at all."""
        m = self.m
        end = m.NewIntVar(least, self.horizon, "")
        active = m.NewBoolVar("") if lazy else self.active[job]
        if size:
            length = m.NewIntVar(0, self.horizon + 1, "")
            self._occupy(self.starts[job] + shift, length, end + 1, active, size)
        if not lazy:
            m.Add(end >= self.starts[job]).OnlyEnforceIf(self.active[job])
        return end, active

    def _read(self, consumer: int, stores: list[int]) -> None:
        """One of the copies holds what the consumer reads when it starts."""
        m = self.m
        choices = []
        for v in stores:
            end, active = self.ends[v]
            use = m.NewBoolVar("")
            m.AddImplication(use, active)
            m.Add(self.starts[self.made_by[v]] < self.starts[consumer]).OnlyEnforceIf(use)
            m.Add(end >= self.starts[consumer]).OnlyEnforceIf(use)
            choices.append(use)
        m.AddBoolOr([*choices, self.active[consumer].Not()])

    def runs(self, value: Callable[[Any], int]) -> list[int]:
        """The start of each job that runs, -1 for the others."""
        return [
            (start if isinstance(start, int) else value(start)) if value(active) else -1
            for start, active in zip(self.starts, self.active, strict=True)
        ]


def solve(head: dict[str, Any], _: object, say: Say) -> None:
    """Answers one request of `programs.moccasin`."""
    from ortools.sat.python import cp_model

    model = _Model(head)

    class Report(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            say({"runs": model.runs(self.Value)})

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_time_in_seconds = float(head["time_limit_s"])
    status = solver.StatusName(solver.Solve(model.m, Report()))
    say({"last": True, "status": STATUS.get(status, "unknown")})
