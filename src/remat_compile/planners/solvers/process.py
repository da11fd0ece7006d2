"""Solvers in processes of their own: a limit is kept by killing (solvers overrun theirs),
and libraries that cannot share a process never meet.

A solver says each point as it is found, so a killed one leaves its best behind.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from ..isolation.frames import Arrays, Message
from ..isolation.process import ProcessEnded, WorkProcess

__all__ = ["Message", "Processes", "Running", "Worker"]

_GRACE_S = 0.5
"""A solver may be late by so much, for what it sends at the end, before it is killed."""
_LOOK_S = 0.25
"""A thread that waits can be ended so often."""


@dataclass(frozen=True)
class Running:
    """A process that waits for a request, and where its messages arrive."""

    process: WorkProcess
    inbox: queue.SimpleQueue[Message | ProcessEnded]


class Processes:
    """Where workers have their processes from: a new one each, which ends with its worker."""

    def take(self, module: str) -> Running:
        """One that runs `module`."""
        inbox: queue.SimpleQueue[Message | ProcessEnded] = queue.SimpleQueue()
        return Running(WorkProcess(module, inbox.put), inbox)

    def leave(self, module: str, running: Running) -> None:
        """It has answered all that it was asked."""
        running.process.kill()


class Worker:
    """One process that runs `module`, started when it is first asked, used again for further
    requests."""

    def __init__(self, module: str, processes: Processes | None = None):
        self.module = module
        self._processes = processes or Processes()
        self._running: Running | None = None
        self._is_asking = self._ended = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_running(self) -> bool:
        return self._running is not None and self._running.process.is_running

    def close(self) -> None:
        """Gives the process back, if there is one; kills it while it works."""
        running, self._running = self._running, None
        if running is not None and self._is_asking:
            running.process.kill()
        elif running is not None:
            self._processes.leave(self.module, running)

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
            running = self._started()
            running.process.send({**head, "time_limit_s": time_limit_s}, arrays)
            while not answered and not self._ended:
                left_s = deadline - monotonic()
                try:
                    message = running.inbox.get(timeout=min(max(left_s, 0.001), _LOOK_S))
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

    def _started(self) -> Running:
        if self._ended:
            raise self._refusal()
        if self._running is None or not self._running.process.is_running:
            self._running = self._processes.take(self.module)
        return self._running

    def _refusal(self) -> RuntimeError:
        return RuntimeError(f"{self.module} has been ended")
