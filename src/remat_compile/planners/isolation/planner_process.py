"""A planner in a process of its own: it can be killed, and what it answers is only data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ...ir.program import Budget, Program
from ...ir.text.printer import format_program
from ..contract import Planner
from ..registry import format_planner
from .endings import Ending, Failed, NoResult
from .frames import Message
from .process import ProcessEnded, WorkProcess
from .results import decode_ending

_MODULE = f"{__package__}.worker"
_OWN = __package__.partition(".")[0]

START_S = 20.0
"""A process that has not loaded its planner after so many seconds counts as hung."""


@dataclass(frozen=True)
class Ready:
    """The planner is loaded: its time starts."""


@dataclass(frozen=True)
class Progressed:
    """A line of progress."""

    line: str


RunMessage = Ready | Progressed | Ending
"""The messages of a planner's run; an Ending is the last."""


def _nested(planner: Any) -> Iterator[Any]:
    """The planner and those among its options."""
    yield planner
    for f in fields(planner) if is_dataclass(planner) else ():
        value = getattr(planner, f.name)
        for item in value if isinstance(value, tuple) else (value,):
            if callable(getattr(item, "plan", None)):
                yield from _nested(item)


def is_foreign(planner: Planner) -> bool:
    """True if the planner, or one among its options, comes from another package."""
    return any(type(p).__module__.partition(".")[0] != _OWN for p in _nested(planner))


def is_portable(planner: Planner) -> bool:
    """True if another process can make the planner from its text form."""
    return all(
        is_dataclass(p)
        and type(p).__module__ != "__main__"
        and "<locals>" not in type(p).__qualname__
        for p in _nested(planner)
    )


class PlannerProcess:
    """One run of a planner. `post` gets every message, on a thread; the last is an Ending."""

    def __init__(
        self,
        planner: Planner,
        program: Program,
        budget: Budget | None,
        time_limit_s: float,
        post: Callable[[RunMessage], None],
        *,
        patience_s: float,
    ):
        request = {
            "planner": format_planner(planner, where=True),
            "targets": {p.name: _target(p) for p in _nested(planner)},
            "program": format_program(replace(program, schedules=(), proven=())),
            "budget": None if budget is None else [budget.bytes, budget.kind],
            "time_limit_s": time_limit_s,
            "die_after_s": START_S + patience_s + 5.0,
        }
        self._post = post
        self._ended = False
        self._process = WorkProcess(_MODULE, self._pass_on, first=request, own_group=True)

    def kill(self) -> None:
        """Ends the process and all that it started. No effect on one that has ended."""
        self._process.kill()

    def _pass_on(self, message: Message | ProcessEnded) -> None:
        if self._ended:
            return
        read = _read(message)
        self._ended = not isinstance(read, Ready | Progressed)
        if self._ended:
            self._process.kill()  # nothing that it left running is of use any more
        self._post(read)


def _target(planner: Any) -> str:
    return f"{type(planner).__module__}:{type(planner).__qualname__}"


def _read(message: Message | ProcessEnded) -> RunMessage:
    if isinstance(message, ProcessEnded):
        how = f" ({message.how})" if message.how else ""
        return Failed(f"its process ended without an answer{how}")
    match message[0]:
        case {"ready": True}:
            return Ready()
        case {"progress": str(line)}:
            return Progressed(line)
        case {"ending": ending}:
            return decode_ending(ending)
    return NoResult("something unreadable")
