"""Runs planners where they can do no harm, a few at a time: the one way in which any is run.

A planner runs in a process of its own, which is killed when it does not come back, or on a
thread, which ends with the next line of Python that it runs.
"""

from __future__ import annotations

import ctypes
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf
from time import monotonic
from typing import Any

from ...ir.diagnostics import FBError
from ...ir.program import Budget, Program
from ...ir.text.parser import read_syntax
from ...ir.text.printer import format_program
from ..contract import Planner, Progress
from ..registry import PlannerInfo, format_planner, parse_planner
from .endings import Ending, Failed, NoResult, Overdue, Unloadable, decode_ending, encode, run_here
from .process import Message, ProcessEnded, Say, WorkProcess

START_S = 20.0
"""A process that has not loaded its planner after so many seconds counts as hung."""
_OWN = __package__.partition(".")[0]


@dataclass(frozen=True)
class _Ready:
    """The planner is loaded: its time starts."""


_RunMessage = _Ready | str | Ending
"""A message of a planner's run; a text is a line of progress, and an Ending is the last."""
_Post = Callable[[_RunMessage], None]


@dataclass(frozen=True)
class Ended:
    """The ending of a planner's run."""

    name: str
    planner: Planner
    ending: Ending


@dataclass
class _Running:
    name: str
    planner: Planner
    patience_s: float
    in_process: bool
    kill: Callable[[], None]
    kill_at: float


@dataclass
class Crew:
    """At most `size` runs at once; a context manager that leaves none behind.

    `report` gets their progress, on the thread that waits.
    """

    program: Program
    budget: Budget | None
    report: Progress
    size: int = 2
    _runs: dict[int, _Running] = field(default_factory=dict)
    _inbox: queue.SimpleQueue[tuple[int, float, _RunMessage]] = field(
        default_factory=queue.SimpleQueue
    )
    _started: int = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._runs.values():
            run.kill()
        self._runs.clear()

    @property
    def has_room(self) -> bool:
        return len(self._runs) < self.size

    @property
    def is_idle(self) -> bool:
        return not self._runs

    @property
    def names(self) -> list[str]:
        """The planners that are at work."""
        return [run.name for run in self._runs.values()]

    def start(
        self,
        planner: Planner,
        name: str,
        time_limit_s: float,
        patience_s: float,
        *,
        in_process: bool,
    ) -> None:
        """Lets a planner work for `time_limit_s`. It is ended after `patience_s`, which in a
        process count from when it has loaded the planner."""
        key = self._started
        self._started += 1

        def post(message: _RunMessage) -> None:
            self._inbox.put((key, monotonic(), message))

        if in_process:
            kill = self._in_process(planner, time_limit_s, patience_s, post)
        else:
            kill = self._on_thread(planner, time_limit_s, post)
        kill_at = monotonic() + (START_S if in_process else patience_s)
        self._runs[key] = _Running(name, planner, patience_s, in_process, kill, kill_at)

    def _in_process(
        self, planner: Planner, time_limit_s: float, patience_s: float, post: _Post
    ) -> Callable[[], None]:
        """Starts a process for one run; the result kills it."""
        budget = self.budget
        request = {
            "planner": format_planner(planner, where=True),
            "targets": {
                p.name: f"{type(p).__module__}:{type(p).__qualname__}" for p in _nested(planner)
            },
            "program": format_program(replace(self.program, schedules=(), proven=())),
            "budget": None if budget is None else [budget.bytes, budget.kind],
            "time_limit_s": time_limit_s,
            "die_after_s": START_S + patience_s + 5.0,
        }
        target = f"{__name__}:answer_with_planner"
        return WorkProcess(target, lambda m: post(_read(m)), first=request, own_group=True).kill

    def _on_thread(self, planner: Planner, time_limit_s: float, post: _Post) -> Callable[[], None]:
        """Starts a thread for one run. The result ends it with the next line of Python that it
        runs; nothing can end it sooner."""

        def progress(line: str) -> None:
            post(str(line))

        def work() -> None:
            post(run_here(planner, self.program, self.budget, time_limit_s, progress))

        thread = threading.Thread(target=work, daemon=True, name="planner")
        thread.start()

        def kill() -> None:
            ident, stop = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_GivenUp)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, stop)

        return kill

    def wait(self, until: float = inf) -> Iterator[Ended]:
        """The runs that end before `until` (on the monotonic clock), as they do; returns when
        one has, or none."""
        while self._runs:
            wake = min(until, *(run.kill_at for run in self._runs.values()))
            try:
                key, at, message = self._inbox.get(timeout=max(0.0, wake - monotonic()))
            except queue.Empty:
                now = monotonic()
                overdue = [key for key, run in self._runs.items() if run.kill_at <= now]
                yield from map(self._end_overdue, overdue)
                if overdue or now >= until:
                    return
                continue
            ended = self._receive(key, at, message)
            if ended is not None:
                yield ended
            if ended is not None or at > until:
                return

    def _end_overdue(self, key: int) -> Ended:
        run = self._runs.pop(key)
        run.kill()
        return Ended(run.name, run.planner, Overdue())

    def _receive(self, key: int, at: float, message: _RunMessage) -> Ended | None:
        run = self._runs.get(key)
        if run is None:
            return None  # ended in the meantime
        if at > run.kill_at:
            return self._end_overdue(key)
        match message:
            case _Ready():
                run.kill_at = at + run.patience_s
            case str(line):
                self.report(line)
            case ending:
                del self._runs[key]
                if run.in_process:
                    run.kill()  # nothing that it left running is of use any more
                return Ended(run.name, run.planner, ending)
        return None


class _GivenUp(BaseException):
    """Raised inside a planner that is waited for no longer."""


def run_planner_apart(
    planner: Planner,
    program: Program,
    budget: Budget | None,
    *,
    time_limit_s: float,
    patience_s: float,
    progress: Progress | None,
    in_process: bool,
) -> Ending:
    """Runs one planner to its end."""
    with Crew(program, budget, progress or (lambda line: None), size=1) as crew:
        crew.start(planner, "", time_limit_s, patience_s, in_process=in_process)
        (ended,) = crew.wait()
        return ended.ending


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


def answer_with_planner(request: dict[str, Any], _: object, say: Say) -> None:
    """The work of a planner's process: says `ready`, any number of `progress`, and then the ending.
    Its one request names the planner and holds the program as text."""
    # Should the parent be gone and the planner hold the interpreter, nothing else ends it.
    signal.setitimer(signal.ITIMER_REAL, request["die_after_s"])
    targets = {n: PlannerInfo(n, t, "the caller") for n, t in request["targets"].items()}
    try:
        planner = parse_planner(request["planner"], targets)
    except FBError as error:
        why = "; ".join(d.message for d in error.diagnostics)
        say({"ending": encode(Unloadable(why))})
        return
    program = read_syntax(request["program"])
    budget = None if request["budget"] is None else Budget(*request["budget"])
    say({"ready": True})
    ending = run_here(
        planner,
        program,
        budget,
        request["time_limit_s"],
        lambda line: say({"progress": str(line)}),
    )
    say({"ending": encode(ending)})


def _read(message: Message | ProcessEnded) -> _RunMessage:
    if isinstance(message, ProcessEnded):
        how = f" ({message.how})" if message.how else ""
        return Failed(f"its process ended without an answer{how}")
    match message[0]:
        case {"ready": True}:
            return _Ready()
        case {"progress": str(line)}:
            return line
        case {"ending": ending}:
            return decode_ending(ending)
    return NoResult("something unreadable")
