"""Solvers in processes of their own: a limit is kept by killing (solvers overrun theirs),
and libraries that cannot share a process never meet.

A solver says each point as it is found, so a killed one leaves its best behind.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from time import monotonic

from ..isolation.frames import Arrays, Message
from ..isolation.process import ProcessEnded, WorkProcess

__all__ = ["Message", "Worker"]

_GRACE_S = 0.5
"""A solver may be late by so much, for what it sends at the end, before it is killed."""


class Worker:
    """One process that runs `module`, started when it is first asked, used again for further
    requests."""

    def __init__(self, module: str):
        self.module = module
        self._process: WorkProcess | None = None
        self._inbox: queue.SimpleQueue[Message | ProcessEnded] = queue.SimpleQueue()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def close(self) -> None:
        """Kills the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def ask(
        self,
        head: dict[str, object],
        arrays: Arrays,
        time_limit_s: float,
        on_message: Callable[[Message], bool],
    ) -> bool:
        """Sends a request and hands over what comes back until `on_message` says that it
        was the last. False where the limit passed or the process died: it is killed then."""
        deadline = monotonic() + time_limit_s + min(_GRACE_S, time_limit_s / 4)
        if time_limit_s <= 0:
            return False
        answered = False
        try:
            self._started().send({**head, "time_limit_s": time_limit_s}, arrays)
            while not answered:
                message = self._inbox.get(timeout=max(deadline - monotonic(), 0.001))
                if isinstance(message, ProcessEnded):
                    break
                answered = on_message(message)
        except queue.Empty:
            pass
        finally:
            if not answered:
                self.close()
        return answered

    def _started(self) -> WorkProcess:
        if not self.is_running:
            self._inbox = queue.SimpleQueue()
            self._process = WorkProcess(self.module, self._inbox.put)
        assert self._process is not None
        return self._process
