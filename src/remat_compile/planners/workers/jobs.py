"""Pieces of planning that stand alone: what is given to a worker, here or on another machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..solvers import MilpSolver

Answer_co = TypeVar("Answer_co", covariant=True)


class Job(Protocol[Answer_co]):
    """Data that can be pickled, with all that its answer hangs on: the same on every machine,
    unless the clock ends it, which the answer says."""

    def run(self, solver: MilpSolver, limit_s: float) -> Answer_co:
        """The answer, within so many seconds, with a solver that is lent."""
        ...


class SolverThread(threading.Thread):
    """A thread with a solver for all the jobs that it runs."""

    def __init__(self, solver: MilpSolver, work: Callable[[], None]):
        super().__init__(target=work, daemon=True, name="worker")
        self.solver = solver


def run_job(job: Job[Answer_co], limit_s: float) -> Answer_co:
    """Runs the job with the solver of the worker's thread, or with its own."""
    thread = threading.current_thread()
    if isinstance(thread, SolverThread):
        return job.run(thread.solver, limit_s)
    with MilpSolver() as own:
        return job.run(own, limit_s)
