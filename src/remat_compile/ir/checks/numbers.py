"""Numbers stay where arithmetic can follow: in 64-bit integers and doubles.

A planner or backend that adds up the sizes and times of a well-formed program at its sample
never leaves 64-bit integers, and no value that a range may take leaves the doubles.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..expr import Expr, evaluate
from ..graph import Arg, Call
from ..program import Program
from ..span import Span
from .findings import Findings
from .forms import Points

TOTAL = 1 << 60
"""All sizes together (bytes, rounded up as allocated), and all times together (ns), are below."""
ARGUMENTS = range(-(1 << 63), 1 << 64)
"""Integers that an operator can take."""


def check_numbers(program: Program, points: Points, findings: Findings) -> None:
    for call, owner, span in _calls(program):
        for arg in _flat(call):
            if type(arg) is int and arg not in ARGUMENTS:
                message = f"an argument of {owner} is no 64-bit integer"
                findings.add("FB0222", message, span, word=str(arg))
    _below(_sizes(program, points), "bytes at the sample", findings)
    _below(_times(program), "ns", findings)


def _calls(program: Program) -> Iterator[tuple[Call, str, Span | None]]:
    for v in program.graph.views:
        yield v.call, f"%{v.name}", v.span
    for c in program.graph.cnodes:
        for call in c.call.parts():
            yield call, c.name, c.span
        if c.replay is not None:
            yield c.replay.call, c.name, c.span


def _flat(call: Call) -> Iterator[Arg]:
    waiting: list[Arg] = [*call.args, *(arg for _, arg in call.kwargs)]
    while waiting:
        arg = waiting.pop()
        if isinstance(arg, tuple):
            waiting.extend(arg)
        else:
            yield arg


def _sizes(program: Program, points: Points) -> Iterator[tuple[int, str, Span | None]]:
    """Sizes and workspaces at the sample; those that are refused for themselves count nothing."""
    step = max(1, program.target.granularity_bytes)
    sample = program.sample

    def at_sample(expr: Expr) -> int:
        if not points.knows(expr) or points.too_large(expr):
            return 0
        return -(-evaluate(expr, sample) // step) * step

    for a in program.graph.anodes:
        yield at_sample(a.size), f"%{a.name}", a.span
    for c in program.graph.cnodes:
        yield at_sample(c.workspace), f"the workspace of {c.name}", c.span
        if c.replay is not None:
            yield at_sample(c.replay.workspace), f"the replay workspace of {c.name}", c.span


def _times(program: Program) -> Iterator[tuple[int, str, Span | None]]:
    for c in program.graph.cnodes:
        yield c.time_ns or 0, f"the time of {c.name}", c.span
        if c.replay is not None:
            yield c.replay.time_ns or 0, f"the replay time of {c.name}", c.span


def _below(values: Iterator[tuple[int, str, Span | None]], unit: str, findings: Findings) -> None:
    total = 0
    for value, what, span in values:
        total += max(0, value)
        if total >= TOTAL:
            message = f"with {what}, {value} {unit}, the sum of all reaches 2^60"
            findings.add("FB0224", message, span, hint="sizes and times add up to less than 2^60")
            return
