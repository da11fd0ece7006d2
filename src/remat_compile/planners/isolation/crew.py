"""Runs planners where they can do no harm, a few at a time: the one way in which any is run.

A planner runs in a process of its own, which is killed when it does not come back, or on a
thread, which ends with the next line of Python that it runs.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Protocol

from ...ir.program import Budget, Program
from ..contract import Planner, Progress
from .endings import Ending, Overdue, run_here
from .planner_process import START_S, PlannerProcess, Progressed, Ready, RunMessage


@dataclass(frozen=True)
class Ended:
    """The ending of a planner's run."""

    name: str
    planner: Planner
    ending: Ending


class _Killable(Protocol):
    def kill(self) -> None: ...


@dataclass
class _Running:
    name: str
    planner: Planner
    patience_s: float
    place: _Killable
    kill_at: float


@dataclass(frozen=True)
class _Posted:
    key: int
    at: float
    message: RunMessage


@dataclass
class Crew:
    """At most `size` runs at once; a context manager that leaves none behind.

    `report` gets their progress, on the thread that waits.
    """

    program: Program
    budget: Budget | None
    report: Progress
    size: int = 2
    _runs: dict[int, _Running] = field(default_factory=dict)
    _inbox: queue.SimpleQueue[_Posted] = field(default_factory=queue.SimpleQueue)
    _started: int = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._runs.values():
            run.place.kill()
        self._runs.clear()

    @property
    def has_room(self) -> bool:
        return len(self._runs) < self.size

    @property
    def is_idle(self) -> bool:
        return not self._runs

    def start(
        self,
        planner: Planner,
        name: str,
        time_limit_s: float,
        patience_s: float,
        *,
        in_process: bool,
    ) -> None:
        """Lets a planner work for `time_limit_s`. It is ended after `patience_s`, which in a
        process count from when it has loaded the planner."""
        key = self._started
        self._started += 1

        def post(message: RunMessage) -> None:
            self._inbox.put(_Posted(key, monotonic(), message))

        args = (planner, self.program, self.budget, time_limit_s, post)
        place: _Killable
        if in_process:
            place = PlannerProcess(*args, patience_s=patience_s)
            kill_at = monotonic() + START_S
        else:
            place = _PlannerThread(*args)
            kill_at = monotonic() + patience_s
        self._runs[key] = _Running(name, planner, patience_s, place, kill_at)

    def wait(self, until: float = inf) -> Iterator[Ended]:
        """The runs that end before `until` (on the monotonic clock), as they do; returns when
        one has, or none."""
        while self._runs:
            wake = min(until, *(run.kill_at for run in self._runs.values()))
            try:
                posted = self._inbox.get(timeout=max(0.0, wake - monotonic()))
            except queue.Empty:
                now = monotonic()
                overdue = [key for key, run in self._runs.items() if run.kill_at <= now]
                yield from map(self._end_overdue, overdue)
                if overdue or now >= until:
                    return
                continue
            ended = self._receive(posted)
            if ended is not None:
                yield ended
            if ended is not None or posted.at > until:
                return

    def _end_overdue(self, key: int) -> Ended:
        run = self._runs.pop(key)
        run.place.kill()
        return Ended(run.name, run.planner, Overdue())

    def _receive(self, posted: _Posted) -> Ended | None:
        run = self._runs.get(posted.key)
        if run is None:
            return None  # killed in the meantime
        if posted.at > run.kill_at:
            return self._end_overdue(posted.key)
        match posted.message:
            case Ready():
                run.kill_at = posted.at + run.patience_s
            case Progressed(line):
                self.report(line)
            case ending:
                del self._runs[posted.key]
                return Ended(run.name, run.planner, ending)
        return None


class _GivenUp(BaseException):
    """Raised inside a planner that is waited for no longer."""


class _PlannerThread:
    """One run of a planner on a thread of this process."""

    def __init__(
        self,
        planner: Planner,
        program: Program,
        budget: Budget | None,
        time_limit_s: float,
        post: Callable[[RunMessage], None],
    ):
        def progress(line: str) -> None:
            post(Progressed(line))

        def work() -> None:
            post(run_here(planner, program, budget, time_limit_s, progress))

        self._thread = threading.Thread(target=work, daemon=True, name="planner")
        self._thread.start()

    def kill(self) -> None:
        """Ends the thread with the next line of Python that it runs; nothing can end it sooner."""
        ident, stop = ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_GivenUp)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, stop)


def run_planner_apart(
    planner: Planner,
    program: Program,
    budget: Budget | None,
    *,
    time_limit_s: float,
    patience_s: float,
    progress: Progress | None,
    in_process: bool,
) -> Ending:
    """Runs one planner to its end."""
    with Crew(program, budget, progress or (lambda line: None), size=1) as crew:
        crew.start(planner, "", time_limit_s, patience_s, in_process=in_process)
        (ended,) = crew.wait()
        return ended.ending
