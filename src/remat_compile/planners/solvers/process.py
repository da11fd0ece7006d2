"""Solvers in processes of their own: a limit is kept by killing (solvers overrun theirs),
and libraries that cannot share a process never meet.

A worker is `python -m MODULE`: it reads requests on its standard input until that
closes and answers on its standard output (`serve`). It says each point as it is found,
so a killed worker leaves its best behind.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Any

from .wire import Arrays, receive, send

__all__ = ["Message", "Worker", "serve"]

Message = tuple[dict[str, Any], Arrays]
_GRACE_S = 0.5
"""A worker may be late by so much, for what it sends at the end, before it is killed."""


class Worker:
    """One process, started when it is first asked, used again for further requests."""

    def __init__(self, module: str):
        self.module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox: queue.Queue[Message | None] = queue.Queue()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
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
        process = self._start()
        assert process.stdin is not None
        try:
            send(process.stdin, {**head, "time_limit_s": time_limit_s}, arrays)
            while True:
                left = deadline - monotonic()
                message = self._inbox.get(timeout=max(left, 0.001))
                if message is None:
                    break
                if on_message(message):
                    return True
        except (queue.Empty, BrokenPipeError):
            pass
        except BaseException:
            self.close()
            raise
        self.close()
        return False

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._inbox = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        threading.Thread(target=_listen, args=(self._process, self._inbox), daemon=True).start()
        return self._process


def _listen(process: subprocess.Popen[bytes], inbox: queue.Queue[Message | None]) -> None:
    assert process.stdout is not None
    try:
        while (message := receive(process.stdout)) is not None:
            inbox.put(message)
    except (OSError, ValueError):
        pass  # closed under our hands
    inbox.put(None)


def serve(solve: Callable[[dict[str, Any], Arrays, Callable[..., None]], None]) -> None:
    """The main loop of a worker: `solve(head, arrays, say)` answers one request.

    The process ends as soon as its standard input closes, also while it solves: nobody
    waits for the answer. Ctrl-C is left to the process that asked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints goes aside
    lock = threading.Lock()
    requests: queue.Queue[Message] = queue.Queue()

    def say(head: dict[str, object], arrays: Arrays | None = None) -> None:
        with lock:
            try:
                send(out, head, arrays)
            except BrokenPipeError:
                os._exit(0)

    def listen() -> None:
        while (message := receive(sys.stdin.buffer)) is not None:
            requests.put(message)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        solve(*requests.get(), say)
