"""Planners at work in processes of their own, a few at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic

from ...ir.program import Budget, Program
from ..contract import Planner, Progress
from ..isolation.process import START_S, Ending, Message, Ready, Remote, Said

__all__ = ["Crew", "Ended"]

GRACE_S = 2.0
"""Seconds past its limit after which a member is killed."""


@dataclass(frozen=True)
class Ended:
    """How the run of a member ended; None: it was killed after its limit."""

    name: str
    planner: Planner
    ending: Ending | None


@dataclass
class _Run:
    name: str
    planner: Planner
    limit_s: float
    remote: Remote
    kill_at: float


@dataclass
class Crew:
    """At most `size` processes; a context manager that leaves none behind."""

    program: Program
    budget: Budget | None
    tell: Progress
    size: int = 2
    _runs: dict[int, _Run] = field(default_factory=dict)
    _inbox: queue.SimpleQueue[tuple[int, Message]] = field(default_factory=queue.SimpleQueue)
    _started: int = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._runs.values():
            run.remote.kill()
        self._runs.clear()

    @property
    def has_room(self) -> bool:
        return len(self._runs) < self.size

    @property
    def is_idle(self) -> bool:
        return not self._runs

    def start(self, planner: Planner, name: str, limit_s: float) -> None:
        """Lets a planner work for `limit_s`."""
        key = self._started
        self._started += 1
        remote = Remote(
            planner,
            self.program,
            self.budget,
            limit_s,
            lambda message: self._inbox.put((key, message)),
            patience_s=limit_s + GRACE_S,
        )
        self._runs[key] = _Run(name, planner, limit_s, remote, monotonic() + START_S)
        self.tell(f"auto: {name}, for {limit_s:.0f} s")

    def wait(self, until: float) -> Iterator[Ended]:
        """The members that end before `until`, as they do; returns when one has, or none."""
        while self._runs:
            now = monotonic()
            overdue = [key for key, run in self._runs.items() if run.kill_at <= now]
            for key in overdue:
                run = self._runs.pop(key)
                run.remote.kill()
                yield Ended(run.name, run.planner, None)
            if overdue or now >= until:
                return
            wake = min(until, *(run.kill_at for run in self._runs.values()))
            try:
                key, message = self._inbox.get(timeout=max(0.0, wake - now))
            except queue.Empty:
                continue
            if (ended := self._heard(key, message)) is not None:
                yield ended
                return

    def _heard(self, key: int, message: Message) -> Ended | None:
        run = self._runs.get(key)
        if run is None:
            return None  # killed in the meantime
        match message:
            case Ready():
                run.kill_at = monotonic() + run.limit_s + GRACE_S
            case Said(line):
                self.tell(line)
            case _:
                del self._runs[key]
                return Ended(run.name, run.planner, message)
        return None
