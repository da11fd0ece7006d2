"""Solve a linear program with integers under a hard time limit.

Solvers work in processes of their own: a limit is kept by killing (solvers overrun theirs), and
libraries that cannot share a process never meet. A solver says each point as it is found, so a
killed one leaves its best behind. It is one function that answers requests (`isolation.process`);
`SOLVERS` names them. Another one is one file and one line here.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import fields
from time import monotonic
from typing import Any, Self

import numpy as np

from ..isolation.process import Arrays, Message, ProcessEnded, WorkProcess
from .milp import Answer, Milp, OnPoint, Status, Vector

SOLVERS: dict[str, str] = {"highs": f"{__package__}.highs:solve"}
"""Functions to run, by the name that options use."""

_GRACE_S = 0.5
"""A solver may be late by so much, for what it sends at the end, before it is killed."""
_LOOK_S = 0.25
"""A thread that waits can be ended so often."""
_NAMES = tuple(f.name for f in fields(Milp))


class Worker:
    """One process that runs `target`, started when it is first asked, used again for further
    requests."""

    def __init__(self, target: str):
        self.target = target
        self._process: WorkProcess | None = None
        self._is_asking = self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def start(self) -> WorkProcess:
        """A process for requests."""
        return WorkProcess(self.target)

    def leave(self, process: WorkProcess) -> None:
        """Takes a process that has answered all that it was asked."""
        process.kill()

    def close(self) -> None:
        """Kills the process, if there is one; the next request starts another."""
        process, self._process = self._process, None
        if process is not None and self._is_asking:
            process.kill()
        elif process is not None:
            self.leave(process)

    def end(self) -> None:
        """Closes for good, from whatever thread."""
        self._ended = True
        self.close()

    def ask(
        self,
        head: dict[str, object],
        arrays: Arrays,
        time_limit_s: float,
        on_message: Callable[[Message], bool],
    ) -> bool:
        """Sends a request and hands over what comes back until `on_message` says that it
        was the last. False where the limit passed or the process died: it is killed then.
        RuntimeError once it has been ended."""
        deadline = monotonic() + time_limit_s + min(_GRACE_S, time_limit_s / 4)
        if time_limit_s <= 0:
            return False
        answered = False
        self._is_asking = True
        try:
            process = self._started()
            process.send({**head, "time_limit_s": time_limit_s}, arrays)
            while not answered and not self._ended:
                left_s = deadline - monotonic()
                try:
                    message = process.inbox.get(timeout=min(max(left_s, 0.001), _LOOK_S))
                except queue.Empty:
                    if left_s <= _LOOK_S:
                        break
                    continue
                if isinstance(message, ProcessEnded):
                    break
                answered = on_message(message)
        finally:
            if not answered:
                self.close()
            self._is_asking = False
        if self._ended:
            raise self._refusal()
        return answered

    def _started(self) -> WorkProcess:
        if self._ended:
            raise self._refusal()
        if self._process is None or not self._process.is_running:
            self._process = self.start()
        return self._process

    def _refusal(self) -> RuntimeError:
        return RuntimeError(f"{self.target} has been ended")


class MilpSolver(Worker):
    """A solver with its process, which lives until `close` and serves many programs."""

    def __init__(self, solver: str = "highs"):
        super().__init__(SOLVERS[solver])

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
        self.ask(head, arrays, time_limit_s, listener)
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
