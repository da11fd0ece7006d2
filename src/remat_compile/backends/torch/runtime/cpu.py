"""Copies where device and host are the same memory: by a thread per direction.

As asynchronous as on an accelerator, so that a plan can be tried, tested and timed without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from ....ir.schedule import Direction
from .engine import CopyEngine, moves

Delay = Callable[[Direction, str], float]
"""Seconds that the copy of an aNode takes longer."""


class ThreadEngine(CopyEngine):
    """One thread per direction; all bytes are allocated and given back by the caller's."""

    def __init__(self, delay: Delay | None = None) -> None:
        self.device = torch.device("cpu")
        self.delay = delay
        self._threads = {
            direction: ThreadPoolExecutor(1, f"remat-compile {direction}")
            for direction in ("d2h", "h2d")
        }

    def host_memory(self, size_bytes: int) -> tuple[Tensor, ...]:
        return (torch.empty(size_bytes, dtype=torch.uint8),)

    def issue(
        self, direction: Direction, name: str, tensor: Tensor, host: Sequence[Tensor]
    ) -> Future[None]:
        parts = [*moves(direction, tensor, host)]
        return self._threads[direction].submit(self._move, direction, name, parts)

    def late(self, direction: Direction, name: str) -> None:
        """Waits as long as was asked."""
        if self.delay is not None:
            time.sleep(self.delay(direction, name))

    def _move(self, direction: Direction, name: str, parts: list[tuple[Tensor, Tensor]]) -> None:
        # The last reference to a tensor must not end here: its bytes are given back where the
        # step says, in its own thread. So the list is empty before the copy counts as done.
        try:
            self.late(direction, name)
            for destination, source in parts:
                destination.copy_(source)
        finally:
            destination = source = None  # type: ignore[assignment]
            parts.clear()

    def wait(self, flight: Future[None]) -> None:
        flight.result()

    def mark(self) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def settle(self, flight: Future[None]) -> None:
        wait((flight,))
