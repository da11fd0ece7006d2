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
_LOOK_S = 0.25
"""A thread that waits can be ended so often."""


class Worker:
    """One process that runs `module`, started when it is first asked, used again for further
    requests."""

    def __init__(self, module: str):
        self.module = module
        self._process: WorkProcess | None = None
        self._inbox: queue.SimpleQueue[Message | ProcessEnded] = queue.SimpleQueue()
        self._ended = False

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def close(self) -> None:
        """Kills the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def end(self) -> None:
        """Kills the process for good, from whatever thread."""
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
        try:
            self._started().send({**head, "time_limit_s": time_limit_s}, arrays)
            while not answered and not self._ended:
                left_s = deadline - monotonic()
                try:
                    message = self._inbox.get(timeout=min(max(left_s, 0.001), _LOOK_S))
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
        if self._ended:
            raise self._refusal()
        return answered

    def _started(self) -> WorkProcess:
        if self._ended:
            raise self._refusal()
        process = self._process
        if process is None or not process.is_running:
            self._inbox = queue.SimpleQueue()
            process = self._process = WorkProcess(self.module, self._inbox.put)
        return process

    def _refusal(self) -> RuntimeError:
        return RuntimeError(f"{self.module} has been ended")
