"""Workers of this machine: threads, each with a solver in a process of its own."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from ..solvers import MilpSolver
from .jobs import SolverThread

_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class LocalWorkers(Executor):
    """As `ThreadPoolExecutor`, but nobody waits for what is left: the solvers are ended with it,
    and its threads keep no program alive."""

    def __init__(self, size: int):
        self.size = size
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._solvers: list[MilpSolver] = []

    @property
    def is_alive(self) -> bool:
        return True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if len(self._solvers) < self.size:
            self._solvers.append(MilpSolver())
            SolverThread(self._solvers[-1], self._work).start()
        self._tasks.put((future, fn, args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends all at once, whatever still runs; `wait` and `cancel_futures` change nothing."""
        for solver in self._solvers:
            solver.end()
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, fn, args = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(fn(*args))
            except BaseException as error:  # whoever asks for the result gets it
                future.set_exception(error)
