"""Jobs that stand alone, done by an engine in the shape of `concurrent.futures.Executor`.

The engine is a cluster, or threads of this machine, each with a solver in a process of its own.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from time import monotonic
from typing import Any, Protocol, TypeVar

from ..contract import Progress
from ..isolation.process import processors
from ..solvers import MilpSolver
from .addresses import ENGINES, check_address

_LOOK_S = 0.2
"""Interval between looks at whether somebody has ended the planner, or the engine is gone."""
_GONE_S = 10.0
"""An engine without any worker for so long is given up."""
_GRACE_S = 5.0
"""Patience for an answer past the deadline."""

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class Job(Protocol[Answer_co]):
    """Data that can be pickled, with all that its answer hangs on: the same on every machine,
    unless the clock ends it, which the answer says."""

    def run(self, solver: MilpSolver, limit_s: float) -> Answer_co:
        """The answer, within so many seconds, with a solver that is lent."""
        ...


class Engine(Protocol):
    """The part of an `Executor` that is used, and its number of parallel jobs."""

    @property
    def size(self) -> int: ...

    @property
    def is_alive(self) -> bool:
        """True if a worker is available."""
        ...

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]: ...

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


class LocalWorkers(Executor):
    """As `ThreadPoolExecutor`, but nobody waits for what is left: the solvers are ended with it,
    and its threads keep no program alive."""

    is_alive = True

    def __init__(self, size: int):
        self.size = size
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._solvers: list[MilpSolver] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if len(self._solvers) < self.size:
            self._solvers.append(MilpSolver())
            work = partial(self._work, self._solvers[-1])
            threading.Thread(target=work, daemon=True, name="worker").start()
        self._tasks.put((future, partial(fn, *args)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends all at once, whatever still runs; `wait` and `cancel_futures` change nothing."""
        for solver in self._solvers:
            solver.end()
            self._tasks.put(None)

    def _work(self, solver: MilpSolver) -> None:
        _LENT.solver = solver
        while (task := self._tasks.get()) is not None:
            future, run = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(run())
            except BaseException as error:  # whoever asks for the result gets it
                future.set_exception(error)


_LENT = threading.local()
"""The solver of a thread of `LocalWorkers`."""


def run_job(job: Job[Answer], limit_s: float) -> Answer:
    """Runs the job with the solver of the worker's thread, or with its own."""
    if (lent := getattr(_LENT, "solver", None)) is not None:
        return job.run(lent, limit_s)
    with MilpSolver() as own:
        return job.run(own, limit_s)


def engine_at(address: str) -> Engine:
    """The workers there, within 10 s. FB0404, FB0410, FB0727 or FB0728."""
    check_address(address)
    scheme, _, place = address.partition("://")
    module, _, name = ENGINES[scheme].partition(":")
    engine: Engine = getattr(import_module(module), name)(address, place)
    return engine


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
    """The place where jobs are done. When an engine elsewhere fails, this machine does what is
    left: the answers are the same."""

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
