"""Solvers in processes that serve one test after the other: starting one takes half a second,
more than most programs, and every plan within a budget asks one for its bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from remat_compile.planners.solvers.process import Processes, Running, Worker


class _Kept(Processes):
    def __init__(self) -> None:
        self.idle: dict[str, list[Running]] = defaultdict(list)

    def take(self, module: str) -> Running:
        while self.idle[module]:
            running = self.idle[module].pop()
            if running.process.is_running:
                return running
        return super().take(module)

    def leave(self, module: str, running: Running) -> None:
        self.idle[module].append(running)


@contextmanager
def kept_processes() -> Iterator[None]:
    """Inside, workers leave their processes to those that come after them."""
    kept = _Kept()
    with pytest.MonkeyPatch.context() as patch:
        for user in ("solvers.solve", "programs.moccasin"):
            patch.setattr(f"remat_compile.planners.{user}.Worker", partial(Worker, processes=kept))
        yield
    for running in (r for idle in kept.idle.values() for r in idle):
        running.process.kill()
