"""A process of our own that is given work: one module runs in it, and it can be killed.

Solvers and planners run in such processes: solvers overrun their limits, libraries do not
share a process well, and a planner of another package may hang or crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .frames import Arrays, Message, receive, send

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "import runpy; runpy.run_module(sys.argv[1], run_name='__main__')"
)


def processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class ProcessEnded:
    """The process writes no more; `how` it ended, as far as that is known: `exit code 7`."""

    how: str


class WorkProcess:
    """A process that runs `module`, which serves requests (`serve`).

    `post` gets every message, on a thread of this class; the last thing it gets is a
    ProcessEnded. `first` is a request to begin with. With `own_group` the process is killed
    with all that it started, and Ctrl-C in the terminal does not reach it.
    """

    def __init__(
        self,
        module: str,
        post: Callable[[Message | ProcessEnded], None],
        *,
        first: Mapping[str, object] | None = None,
        own_group: bool = False,
    ):
        self._post = post
        self._first = first
        self._own_group = own_group
        self._killing = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, module],  # -P: no module of the working folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=own_group,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(sys.path).encode() + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._talk, daemon=True, name="work process").start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, head: Mapping[str, object], arrays: Arrays | None = None) -> None:
        """Sends a request. Nothing happens where the process has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            send(self._process.stdin, head, arrays)

    def kill(self) -> None:
        """Ends the process. No effect on one that has ended."""
        with self._killing:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    if self._own_group:
                        os.killpg(self._process.pid, signal.SIGKILL)
                    else:
                        self._process.kill()
                self._process.wait()

    def _talk(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if self._first is not None:
            self.send(self._first)
        how = ""
        try:
            while (message := receive(process.stdout)) is not None:
                self._post(message)
        except (ValueError, KeyError, TypeError) as error:
            how = f"it wrote something unreadable: {error}"
        how = how or self._how()
        self.kill()  # nothing that it left running is of use any more
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        self._post(ProcessEnded(how))

    def _how(self) -> str:
        """The ending of a process that has closed its output; the process is not reaped."""
        with contextlib.suppress(OSError):
            flags = os.WEXITED | os.WNOWAIT
            ended = os.waitid(os.P_PID, self._process.pid, flags)
            if ended is not None and ended.si_code == os.CLD_EXITED:
                return f"exit code {ended.si_status}"
            if ended is not None:
                return signal.Signals(ended.si_status).name
        return ""
