"""Asks a planner for a plan, whoever wrote it and whatever it does.

One from another package runs in a process of its own, which is killed when it does not
come back. One that a process cannot make again (a class of a notebook, say) and those of
this package run on a thread; `auto` runs here, and shields itself.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from ..ir.diagnostics import Diagnostic, FBError, Note
from ..planners.auto import Auto
from ..planners.isolation.process import (
    Answered,
    Ending,
    Failed,
    Refused,
    Strange,
    Unloadable,
    ask_remote,
    is_foreign,
    is_portable,
)

if TYPE_CHECKING:
    from ..ir.program import Budget, Program
    from ..ir.schedule import Schedule
    from ..planners.contract import Planner, PlanResult

__all__ = ["ask"]

GRACE_S = 5.0
"""Seconds past its time limit (and a quarter of it) after which a planner counts as hung."""

Say = Callable[[str], None]


def ask(
    planner: Planner,
    name: str,
    program: Program,
    budget: Budget | None,
    *,
    time_limit_s: float,
    progress: Say | None,
    accept: Callable[[Schedule], bool],
    keep_on_interrupt: bool = True,
) -> PlanResult:
    """What the planner answers. FB0460 where it fails, FB0461 where it does not come
    back, FB0464 for what is no result; and what it refuses itself.

    `auto` hands out only a schedule that `accept` holds for, and on Ctrl-C the best that it
    has, unless `keep_on_interrupt` is off.
    """
    if isinstance(planner, Auto):
        return planner.plan(
            program,
            budget,
            time_limit_s=time_limit_s,
            progress=progress,
            accept=accept,
            keep_on_interrupt=keep_on_interrupt,
        )
    patience_s = time_limit_s * 1.25 + GRACE_S
    ending: Ending | None = Unloadable("not tried")
    if is_foreign(planner) and is_portable(planner):
        ending = ask_remote(
            planner,
            program,
            budget,
            time_limit_s=time_limit_s,
            patience_s=patience_s,
            progress=progress,
        )
    if isinstance(ending, Unloadable):
        ending = _ask_here(planner, program, budget, time_limit_s, patience_s, progress)
    return _result_of(ending, name, time_limit_s, patience_s)


def _result_of(
    ending: Ending | None, name: str, time_limit_s: float, patience_s: float
) -> PlanResult:
    match ending:
        case None:
            message = f"planner {name} has not come back {patience_s:.0f} s after it was started"
            hint = f"its time limit was {time_limit_s:g} s; use another planner"
            raise FBError(Diagnostic("FB0461", message, hint=hint))
        case Answered(result):
            return result
        case Refused(diagnostics, usage):
            raise FBError(diagnostics, usage=usage)
        case Failed(what, where):
            notes = (Note(f"raised in {where}"),) if where else ()
            message = f"planner {name} failed: {what}"
            raise FBError(Diagnostic("FB0460", message, notes=notes, hint="use another planner"))
        case Strange(what):
            raise FBError(Diagnostic("FB0464", f"planner {name} returned {what}"))
        case Unloadable(why):
            raise FBError(Diagnostic("FB0460", f"planner {name} failed: {why}"))
        case _:
            assert_never(ending)


class _GivenUp(BaseException):
    """Raised inside a planner that is waited for no longer."""


def _ask_here(
    planner: Planner,
    program: Program,
    budget: Budget | None,
    time_limit_s: float,
    patience_s: float,
    progress: Say | None,
) -> Ending | None:
    """Runs the planner on a thread of its own; None where it does not come back."""
    outcome: queue.SimpleQueue[Ending] = queue.SimpleQueue()

    def work() -> None:
        try:
            result = planner.plan(program, budget, time_limit_s=time_limit_s, progress=progress)
            outcome.put(Answered(result))
        except FBError as error:
            outcome.put(Refused(error.diagnostics, error.usage))
        except BaseException as error:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            outcome.put(Failed(what, _place(error)))

    thread = threading.Thread(target=work, daemon=True, name="planner")
    thread.start()
    try:
        return outcome.get(timeout=patience_s)
    except queue.Empty:
        _give_up(thread)
        return None
    except KeyboardInterrupt:
        _give_up(thread)
        raise


def _give_up(thread: threading.Thread) -> None:
    """Ends a thread with the next line of Python that it runs; nothing can end it sooner."""
    ident, stop = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_GivenUp)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, stop)


def _place(error: BaseException) -> str:
    """The innermost place of the planner's own failure."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return "" if last is None else f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
