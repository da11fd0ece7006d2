"""Solve a linear program with integers under a hard time limit.

A solver is one module of this package that runs as a program and answers requests
(`process.serve`); `SOLVERS` names them. Another one is one file and one line here.
"""

from __future__ import annotations

from dataclasses import fields
from time import monotonic
from typing import Any

import numpy as np

from .milp import Answer, Milp, OnPoint, Status, Vector
from .process import Message, Worker

SOLVERS: dict[str, str] = {"highs": f"{__package__}.highs"}
"""Modules to run, by the name that options use."""

_NAMES = tuple(f.name for f in fields(Milp))


class MilpSolver:
    """A solver with its process, which lives until `close` and serves many programs."""

    def __init__(self, solver: str = "highs"):
        self._worker = Worker(SOLVERS[solver])

    def __enter__(self) -> MilpSolver:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def close(self) -> None:
        """Kills the process; the next program starts another."""
        self._worker.close()

    def end(self) -> None:
        """Kills the process for good: RuntimeError for a program in work and for the next."""
        self._worker.end()

    @property
    def is_running(self) -> bool:
        """True if it has a process now."""
        return self._worker.is_running

    def solve(
        self,
        milp: Milp,
        time_limit_s: float,
        *,
        start: Vector | None = None,
        on_point: OnPoint | None = None,
        options: dict[str, object] | None = None,
        most_checks: int | None = None,
    ) -> Answer:
        """The best point within the limit (wall clock, sending and start-up included).

        Past the limit the process is killed, and the answer is the last point and bound
        that it sent. `start` is a point to begin from; `options` are the solver's own.
        `most_checks` bounds the work whatever the clock says: so often does the solver look at
        its limits, always at the same places of the same search.
        """
        began = monotonic()
        listener = _Listener(on_point)
        arrays: dict[str, Any] = {name: getattr(milp, name) for name in _NAMES}
        if start is not None:
            arrays["start"] = start
        head: dict[str, object] = {"options": options or {}, "most_checks": most_checks}
        self._worker.ask(head, arrays, time_limit_s, listener)
        return listener.answer(monotonic() - began)


class _Listener:
    def __init__(self, on_point: OnPoint | None):
        self.on_point = on_point
        self.status: Status = "unknown"
        self.point: Vector | None = None
        self.objective = np.inf
        self.bound = -np.inf

    def __call__(self, message: Message) -> bool:
        head, arrays = message
        self.bound = max(self.bound, float(head["bound"]))
        if "point" in arrays and head["objective"] <= self.objective:
            self.point, self.objective = arrays["point"], float(head["objective"])
            self.status = "feasible"
            if self.on_point is not None and not head.get("last"):
                self.on_point(self.point, self.objective)
        if not head.get("last"):
            return False
        if head["status"] in ("optimal", "infeasible"):
            self.status = head["status"]
        return True

    def answer(self, seconds: float) -> Answer:
        return Answer(self.status, self.point, self.objective, self.bound, seconds)
