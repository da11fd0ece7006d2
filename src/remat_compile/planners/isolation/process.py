"""A planner in a process of its own: it can be killed, and what it answers is only data.

Used for planners that this package does not ship, which may hang or crash, and by `auto`
for the slow members of its portfolio.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ...ir.diagnostics import Diagnostic
from ...ir.program import Budget, Program
from ...ir.text.printer import format_program
from ..contract import Planner, PlanResult, Progress
from ..registry import format_planner
from .wire import decode, decode_diagnostic

__all__ = [
    "Answered",
    "Ending",
    "Failed",
    "Message",
    "Ready",
    "Refused",
    "Remote",
    "Said",
    "Strange",
    "Unloadable",
    "ask_remote",
    "is_foreign",
    "is_portable",
]

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from remat_compile.planners.isolation.worker import main; main()"
)
_OWN = __package__.partition(".")[0]


@dataclass(frozen=True)
class Ready:
    """The process is up and has loaded the planner: its time starts."""


@dataclass(frozen=True)
class Said:
    """A line of progress."""

    line: str


@dataclass(frozen=True)
class Answered:
    result: PlanResult


@dataclass(frozen=True)
class Refused:
    """The planner raised an FBError: it does not apply, or its options do not fit."""

    diagnostics: tuple[Diagnostic, ...]
    usage: bool = False


@dataclass(frozen=True)
class Failed:
    """The planner raised something else, or its process died; `where` may be empty."""

    what: str
    where: str = ""


@dataclass(frozen=True)
class Strange:
    """What the planner returned is no result."""

    what: str


@dataclass(frozen=True)
class Unloadable:
    """The worker cannot make this planner again."""

    why: str


Ending = Answered | Refused | Failed | Strange | Unloadable
Message = Ready | Said | Ending

START_S = 20.0
"""A process that has not loaded its planner after so many seconds counts as hung."""


def _nested(planner: Any) -> Iterator[Any]:
    """The planner and those among its options."""
    yield planner
    for f in fields(planner) if is_dataclass(planner) else ():
        value = getattr(planner, f.name)
        for item in value if isinstance(value, tuple) else (value,):
            if callable(getattr(item, "plan", None)):
                yield from _nested(item)


def is_foreign(planner: Planner) -> bool:
    """Whether it, or a planner among its options, does not come from this package."""
    return any(type(p).__module__.partition(".")[0] != _OWN for p in _nested(planner))


def is_portable(planner: Planner) -> bool:
    """Whether another process may be able to make it again from its text form."""
    return all(
        is_dataclass(p)
        and type(p).__module__ != "__main__"
        and "<locals>" not in type(p).__qualname__
        for p in _nested(planner)
    )


class Remote:
    """One run of a planner in a process of its own.

    `post` gets every message, on a thread of this class; the last one is an Ending.
    """

    def __init__(
        self,
        planner: Planner,
        program: Program,
        budget: Budget | None,
        time_limit_s: float,
        post: Callable[[Message], None],
        *,
        patience_s: float,
    ):
        request = {
            "planner": format_planner(planner),
            "targets": {p.name: _target(p) for p in _nested(planner)},
            "program": format_program(replace(program, schedules=(), proven=())),
            "budget": None if budget is None else [budget.bytes, budget.kind],
            "time_limit_s": time_limit_s,
            "die_after_s": START_S + patience_s + 5.0,
        }
        self._post = post
        self._lines = f"{json.dumps(sys.path)}\n{json.dumps(request)}\n"
        # A group of its own: killed with its children, and not by Ctrl-C in the terminal.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self._killing = threading.Lock()
        self._thread = threading.Thread(target=self._talk, daemon=True, name="planner worker")
        self._thread.start()

    def kill(self) -> None:
        """Ends the process and all that it started. No effect on one that has ended."""
        with self._killing:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _talk(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self._lines)
            process.stdin.flush()
        ending: Ending | None = None
        with contextlib.suppress(ValueError):  # the pipe holds no text any more
            for line in process.stdout:
                message = _read(line)
                if isinstance(message, Ready | Said):
                    self._post(message)
                else:
                    ending = message
                    break
        if ending is None:
            ending = Failed(f"its process ended without an answer{self._how()}")
        self.kill()  # nothing that it left running is of use any more
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        self._post(ending)

    def _how(self) -> str:
        """How a process ended that has closed its output; it is not reaped by this."""
        with contextlib.suppress(OSError):
            flags = os.WEXITED | os.WNOWAIT
            ended = os.waitid(os.P_PID, self._process.pid, flags)
            if ended is not None and ended.si_code == os.CLD_EXITED:
                return f" (exit code {ended.si_status})"
            if ended is not None:
                return f" ({signal.Signals(ended.si_status).name})"
        return ""


def _target(planner: Any) -> str:
    return f"{type(planner).__module__}:{type(planner).__qualname__}"


def _read(line: str) -> Message:
    try:
        ((kind, what),) = json.loads(line).items()
        match kind:
            case "ready":
                return Ready()
            case "say":
                return Said(what)
            case "answer":
                return Answered(decode(what))
            case "refused":
                found = tuple(decode_diagnostic(d) for d in what["diagnostics"])
                return Refused(found, bool(what["usage"]))
            case "failed":
                return Failed(what["what"], what["where"])
            case "strange":
                return Strange(what)
            case "unloadable":
                return Unloadable(what)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Strange(f"something unreadable ({error})")
    return Strange(f"a message {kind!r}")


def ask_remote(
    planner: Planner,
    program: Program,
    budget: Budget | None,
    *,
    time_limit_s: float,
    patience_s: float,
    progress: Progress | None,
) -> Ending | None:
    """Runs a planner in a process; None where it was killed after `patience_s`."""
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    deadline = time.monotonic() + START_S
    remote = Remote(planner, program, budget, time_limit_s, inbox.put, patience_s=patience_s)
    try:
        while (left := deadline - time.monotonic()) > 0:
            message = inbox.get(timeout=left)
            match message:
                case Ready():
                    deadline = time.monotonic() + patience_s
                case Said(line):
                    if progress is not None:
                        progress(line)
                case _:
                    return message
        return None
    except queue.Empty:
        return None
    finally:
        remote.kill()
