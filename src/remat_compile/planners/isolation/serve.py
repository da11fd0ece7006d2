"""The other side of `process`: the main loop of a process that is given work."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from .frames import Arrays, Message, receive, send

Say = Callable[..., None]
"""Sends a message: `say(head, arrays)`, or without arrays."""


def serve(answer: Callable[[dict[str, Any], Any, Say], None]) -> None:
    """Calls `answer(head, arrays, say)` for every request, for ever.

    The process ends as soon as its standard input closes, also while it works, and takes
    along what it started if it leads a group: nobody waits for the answer. Ctrl-C is left to
    the process that asked. What a library prints is dropped: solvers have banners.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    lock = threading.Lock()
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def say(head: dict[str, object], arrays: Arrays | None = None) -> None:
        with lock:
            try:
                send(out, head, arrays)
            except BrokenPipeError:
                _end()

    def listen() -> None:
        while (message := receive(sys.stdin.buffer)) is not None:
            requests.put(message)
        _end()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        answer(*requests.get(), say)


def _end() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
