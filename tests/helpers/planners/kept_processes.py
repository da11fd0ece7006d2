"""Solvers in processes that serve one test after the other: starting one takes half a second,
more than most programs, and every plan within a budget asks one for its bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from remat_compile.planners.isolation.process import WorkProcess
from remat_compile.planners.solvers.solve import Worker


@contextmanager
def kept_processes() -> Iterator[None]:
    """Inside, workers leave their processes to those that come after them."""
    idle: dict[str, list[WorkProcess]] = defaultdict(list)
    start = Worker.start

    def kept(self: Worker) -> WorkProcess:
        while idle[self.target]:
            process = idle[self.target].pop()
            if process.is_running:
                return process
        return start(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "start", kept)
        patch.setattr(Worker, "leave", lambda self, process: idle[self.target].append(process))
        yield
    for process in (process for some in idle.values() for process in some):
        process.kill()
