"""A process of our own that is given work: a function in it answers requests, and it can be killed.

Solvers and planners run in such processes: solvers overrun their limits, libraries do not share a
process well, and a planner of another package may hang or crash. A message is JSON, then the bytes
of arrays. No pickle: what a process sends is only data.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]
Message = tuple[dict[str, Any], Arrays]

Say = Callable[..., None]
"""Sends a message: `say(head, arrays)`, or without arrays."""

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    f"from {__name__} import serve; serve(int(sys.argv[1]), sys.argv[2])"
)


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ProcessEnded:
    """The process writes no more; `how` it ended, as far as that is known: `exit code 7`."""

    how: str


class WorkProcess:
    """A process in which the function `target` (`module:name`) answers requests (`serve`).

    `post` gets every message, on a thread of this class, and at last a ProcessEnded; left out,
    they go to `inbox`. `first` is a request to begin with. With `own_group` the process is killed
    with all that it started, and Ctrl-C in the terminal does not reach it.
    """

    def __init__(
        self,
        target: str,
        post: Callable[[Message | ProcessEnded], None] | None = None,
        *,
        first: Mapping[str, object] | None = None,
        own_group: bool = False,
    ):
        self.inbox: queue.SimpleQueue[Message | ProcessEnded] = queue.SimpleQueue()
        self._post = post or self.inbox.put
        self._first = first
        self._own_group = own_group
        self._killing = threading.Lock()
        self._connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            # -P: no module of the working folder
            command = [sys.executable, "-P", "-c", _START, str(number), target]
            self._process = subprocess.Popen(
                [*command, json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # solvers have banners
                pass_fds=[number],
                start_new_session=own_group,
            )
        threading.Thread(target=self._talk, daemon=True, name="work process").start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, head: Mapping[str, object], arrays: Arrays | None = None) -> None:
        """Sends a request. Nothing happens where the process has ended."""
        with suppress(OSError):
            send(self._connection, head, arrays)

    def kill(self) -> None:
        """Ends the process. No effect on one that has ended."""
        with self._killing:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    if self._own_group:
                        os.killpg(self._process.pid, signal.SIGKILL)
                    else:
                        self._process.kill()
                self._process.wait()

    def _talk(self) -> None:
        if self._first is not None:
            self.send(self._first)
        try:
            while True:
                self._post(receive(self._connection))
        except (EOFError, OSError):
            how = self._how()
        except (ValueError, KeyError, TypeError) as error:
            how = f"it wrote something unreadable: {error}"
        self.kill()  # nothing that it left running is of use any more
        self._connection.close()
        self._post(ProcessEnded(how))

    def _how(self) -> str:
        """The ending of a process that has closed its connection; the process is not reaped."""
        with suppress(OSError):
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            if ended is not None and ended.si_code == os.CLD_EXITED:
                return f"exit code {ended.si_status}"
            if ended is not None:
                return signal.Signals(ended.si_status).name
        return ""


def send(
    connection: Connection[Any, Any], head: Mapping[str, object], arrays: Arrays | None = None
) -> None:
    """Writes one message. OSError where the other side has ended."""
    arrays = arrays or {}
    kinds = [[name, a.dtype.str] for name, a in arrays.items()]
    connection.send_bytes(json.dumps({**head, "arrays": kinds}).encode())
    for a in arrays.values():
        connection.send_bytes(a.tobytes())


def receive(connection: Connection[Any, Any]) -> Message:
    """Reads one message. EOFError or OSError where the other side has ended; ValueError, KeyError
    or TypeError where it is none."""
    head = json.loads(connection.recv_bytes())
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype in head.pop("arrays"):
        import numpy as np  # here, since most messages have no arrays

        arrays[name] = np.frombuffer(connection.recv_bytes(), dtype=dtype)
    return head, arrays


def serve(number: int, target: str) -> None:
    """The main loop of the process: calls `target(head, arrays, say)` for every request, for ever.

    The process ends as soon as its connection (a file descriptor) closes, also while it works, and
    takes along what it started if it leads a group: nobody waits for the answer. Ctrl-C is left to
    the process that asked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(number, False)
    connection = Connection(number)
    lock = threading.Lock()
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def say(head: dict[str, object], arrays: Arrays | None = None) -> None:
        with lock:
            try:
                send(connection, head, arrays)
            except OSError:
                end()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                requests.put(receive(connection))
        end()

    def end() -> None:
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    module, _, name = target.partition(":")
    answer = getattr(import_module(module), name)
    while True:
        answer(*requests.get(), say)
