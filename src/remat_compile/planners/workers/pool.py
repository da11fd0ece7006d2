"""One way to have jobs done: by an engine of the shape of `concurrent.futures.Executor`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from ..contract import Progress
from ..isolation.process import processors
from .addresses import engine_at
from .engine import Engine
from .jobs import Job, run_job
from .local import LocalWorkers

_LOOK_S = 0.2
"""So often it is looked whether somebody has ended the planner, or the engine is gone."""
_GONE_S = 10.0
"""An engine without any worker for so long is given up."""
_GRACE_S = 5.0
"""So long past the deadline an answer is waited for."""

Answer = TypeVar("Answer")


@contextmanager
def workers_of(address: str | None, processes: int | None, progress: Progress) -> Iterator[Workers]:
    """The workers at an address, or so many of this machine (None: one per core). They are
    given back in the end. FB0410, FB0727 and FB0728 where those at the address cannot work."""
    here = processes or processors()
    engine: Engine = LocalWorkers(here) if address is None else engine_at(address)
    workers = Workers(engine, address, here, progress)
    try:
        yield workers
    finally:
        workers.engine.shutdown(wait=False, cancel_futures=True)


class Workers:
    """Where jobs are done. When an engine elsewhere fails, this machine does what is left: the
    answers are the same."""

    def __init__(self, engine: Engine, address: str | None, here: int, progress: Progress):
        self.engine, self.address, self.here, self.progress = engine, address, here, progress

    def map(self, jobs: Sequence[Job[Answer]], deadline: float) -> Iterator[Answer | None]:
        """The answers in the order of the jobs, each begun as soon as a worker is free; None
        where `deadline` (on the monotonic clock) came first. What nobody waits for any more is
        cancelled."""
        run = _MapCall(self, jobs, deadline)
        try:
            for i in range(len(jobs)):
                while i not in run.answers:
                    run.step()
                yield run.answers.pop(i)
        finally:
            for future in run.running:
                future.cancel()

    def take_over(self, why: str) -> None:
        """Goes on with workers of this machine."""
        self.engine.shutdown(wait=False, cancel_futures=True)
        self.progress(f"the workers at {self.address} are left: {why}; planning goes on here")
        self.engine, self.address = LocalWorkers(self.here), None


class _MapCall:
    """One `map`: as many jobs are with the engine as it does at a time, so that the seconds which
    a job is told are those that it has."""

    def __init__(self, workers: Workers, jobs: Sequence[Job[Any]], deadline: float):
        self.workers, self.jobs, self.deadline = workers, jobs, deadline
        self.waiting = deque(range(len(jobs)))
        self.running: dict[Future[Any], int] = {}
        self.answers: dict[int, Any] = {}
        self.seen_alive = monotonic()

    def step(self) -> None:
        self._submit()
        done, _ = wait(self.running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            self._take(future)
        now = monotonic()
        if now > self.deadline + _GRACE_S:
            self.answers |= dict.fromkeys(self.running.values())
            self.running.clear()
        elif self.workers.engine.is_alive:
            self.seen_alive = now
        elif now > self.seen_alive + _GONE_S:
            self._take_over(f"there has been none for {_GONE_S:g} s")

    def _submit(self) -> None:
        while self.waiting and len(self.running) < self.workers.engine.size:
            i, left_s = self.waiting.popleft(), self.deadline - monotonic()
            if left_s <= 0:
                self.answers[i] = None
                continue
            try:
                self.running[self.workers.engine.submit(run_job, self.jobs[i], left_s)] = i
            except Exception as error:  # an engine may raise anything at all
                self.waiting.appendleft(i)
                self._take_over(_words(error))

    def _take(self, future: Future[Any]) -> None:
        i = self.running.pop(future, None)
        if i is None:
            return  # of an engine that has been left
        try:
            self.answers[i] = future.result()
        except (Exception, CancelledError) as error:
            if self.workers.address is None:
                raise
            self.waiting.appendleft(i)
            self._take_over(_words(error))

    def _take_over(self, why: str) -> None:
        if self.workers.address is None:
            raise RuntimeError(why)
        self.waiting = deque(sorted((*self.waiting, *self.running.values())))
        self.running.clear()
        self.workers.take_over(why)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
