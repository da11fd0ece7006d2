"""The process that runs one planner; `planner_process` starts it and reads what it says.

Its one request names the planner and holds the program as text. It says `ready`, any number
of `progress`, and then how the run ended.
"""

from __future__ import annotations

import signal
from typing import Any

from ...ir.diagnostics import FBError
from ...ir.program import Budget
from ...ir.text.parser import read_syntax
from ..registry import PlannerInfo, parse_planner
from .endings import Unloadable, run_here
from .results import encode
from .serve import Say, serve

__all__: list[str] = []


def _answer(request: dict[str, Any], _: object, say: Say) -> None:
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


if __name__ == "__main__":
    serve(_answer)
