"""The process that runs one planner; `isolation/process.py` starts it and reads what it writes.

It reads one line of JSON, the request, and writes lines of JSON: `{"ready": null}`, any number
of `{"say": ...}`, then one of `answer`, `refused`, `failed`, `strange` and `unloadable`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from ...ir.diagnostics import FBError
from ...ir.program import Budget
from ...ir.text.parser import read_syntax
from .. import registry
from .wire import encode, encode_diagnostic

__all__ = ["main"]


def main() -> None:
    """Serves one request on the standard streams."""
    request = json.loads(sys.stdin.readline())
    # Should the parent be gone, nobody else ends a planner that hangs.
    signal.setitimer(signal.ITIMER_REAL, request["die_after_s"])
    wire = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a planner prints is no message

    def tell(kind: str, what: Any) -> None:
        _write(wire, json.dumps({kind: what}))

    try:
        planner = _load(request)
    except FBError as error:
        tell("unloadable", "; ".join(d.message for d in error.diagnostics))
        return
    tell("ready", None)
    tell(*_outcome(planner, request, lambda line: tell("say", str(line))))


def _write(wire: TextIO, line: str) -> None:
    try:
        wire.write(line + "\n")
        wire.flush()
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more


def _load(request: dict[str, Any]) -> Any:
    for name, target in request["targets"].items():
        registry.add(name, target)
    return registry.parse_planner(request["planner"])


def _outcome(planner: Any, request: dict[str, Any], say: Callable[[str], None]) -> tuple[str, Any]:
    program = read_syntax(request["program"])
    budget = None if request["budget"] is None else Budget(*request["budget"])
    try:
        result = planner.plan(program, budget, time_limit_s=request["time_limit_s"], progress=say)
    except FBError as error:
        found = [encode_diagnostic(d) for d in error.diagnostics]
        return "refused", {"diagnostics": found, "usage": error.usage}
    except BaseException as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        return "failed", {"what": what, "where": where}
    try:
        return "answer", encode(result)
    except ValueError as error:
        return "strange", str(error)
