"""A schedule as a trace in the JSON format that chrome://tracing and Perfetto read.

One process; a thread per stream; a counter of device bytes by kind and one of host bytes. Times
are in µs after the begin of the step, or count steps where the plan holds none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .moments import moments
from .subject import MARK, Subject, place_of, shown

__all__ = ["trace_events", "trace_json"]

Event = dict[str, Any]

THREADS = {"compute": 1, "to host": 2, "from host": 3}
PROCESS = 1
MOST_COUNTERS = 1000
"""Counter samples; of a longer schedule the largest step of each stretch is sampled."""


def trace_json(subject: Subject) -> str:
    """The trace as the text of a file."""
    other = {"generator": MARK, "graph": shown(subject.program.graph.name)}
    trace = {
        "otherData": {**other, "costs": subject.program.header.costs},
        "displayTimeUnit": "ms",
        "traceEvents": list(trace_events(subject)),
    }
    return json.dumps(trace, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n"


def trace_events(subject: Subject) -> Iterator[Event]:
    """Metadata, complete (`X`) and counter (`C`) events."""
    yield _named("process_name", 0, shown(f"@{subject.schedule.name}"))
    for thread, number in THREADS.items():
        yield _named("thread_name", number, thread)
    yield from _executions(subject)
    yield from _copies(subject)
    yield from _counters(subject)


def _named(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _executions(subject: Subject) -> Iterator[Event]:
    graph = subject.program.graph
    for run in subject.timeline.runs:
        c = graph.cnode[run.cnode]
        args = {
            "step": run.step + 1,
            "computation": shown(c.name),
            "execution": run.execution,
            "device_bytes": subject.trace.during[run.step],
            "at": subject.step_place(run.step),
        }
        start, end = (run.start_ns, run.end_ns)
        took = (end - start) / 1e3 if subject.has_times else 1.0
        yield _complete(shown(c.call.op), run.role, "compute", _at(subject, run.step), took, args)


def _copies(subject: Subject) -> Iterator[Event]:
    sizes = subject.trace._sizes.anode
    for copy in subject.trace.copies:
        lane = "to host" if copy.direction == "d2h" else "from host"
        name, size = shown(copy.anode), sizes[copy.anode]
        args = {"bytes": size, "steps": f"{copy.issued + 1} to {copy.waited + 1}"}
        args["at"] = place_of(subject.program, copy.anode)
        if subject.has_times:
            start, took = copy.start_ns / 1e3, (copy.end_ns - copy.start_ns) / 1e3
        else:
            start, took = float(copy.issued), float(copy.waited - copy.issued)
        yield _complete(f"%{name}", "copy", lane, start, took, args)
        if copy.stall_ns:
            begin = (copy.end_ns - copy.stall_ns) / 1e3
            args = {"waits_for": f"%{name}"}
            yield _complete("wait", "waiting", "compute", begin, copy.stall_ns / 1e3, args)


def _complete(name: str, category: str, lane: str, start: float, took: float, args: Event) -> Event:
    event: Event = {"ph": "X", "name": name, "cat": category, "pid": PROCESS}
    return {**event, "tid": THREADS[lane], "ts": start, "dur": took, "args": args}


def _counters(subject: Subject) -> Iterator[Event]:
    during, count = subject.trace.during, len(subject.schedule.steps)
    size = -(-count // MOST_COUNTERS)
    largest = [
        max(range(i, min(i + size, count)), key=during.__getitem__) for i in range(0, count, size)
    ]
    held = moments(subject.program, subject.schedule, largest)
    for step in largest:
        amounts = {str(kind): amount for kind, amount in held[step].by_kind.items()}
        yield _counter("device bytes", _at(subject, step), amounts)
        if subject.trace.copies:
            yield _counter(
                "host bytes", _at(subject, step), {"copies": subject.trace.during_host[step]}
            )


def _counter(name: str, at: float, amounts: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": PROCESS, "ts": at, "args": amounts}


def _at(subject: Subject, step: int) -> float:
    return subject.timeline.clock_ns[step] / 1e3 if subject.has_times else float(step)
