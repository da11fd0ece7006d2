"""A schedule as a trace in the JSON format that chrome://tracing and Perfetto read.

One process; a thread per stream; a counter of device bytes by kind and one of host bytes. Times
are in µs after the begin of the step, or count steps where the plan holds none. What was measured
of the same step is a second process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import MARK
from .moments import moments
from .subject import Subject, place_of, shown

Event = dict[str, Any]

THREADS = {"compute": 1, "to host": 2, "from host": 3}
PREDICTED, MEASURED = 1, 2
"""The processes."""
MOST_COUNTERS = 1000
"""Counter samples; of a longer schedule the largest step of each stretch is sampled."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The measured time of a computation: `step` is its index in the schedule, `bytes` the most on
    the device from its begin to that of the next."""

    step: int
    start_ns: int
    took_ns: int
    bytes: int


def trace_json(subject: Subject, measured: Sequence[MeasuredStep] = ()) -> str:
    """The trace as the text of a file; what was `measured` stands beside."""
    other = {"generator": MARK, "graph": shown(subject.program.graph.name)}
    trace = {
        "otherData": {**other, "costs": subject.program.header.costs},
        "displayTimeUnit": "ms",
        "traceEvents": [*trace_events(subject), *measured_events(subject, measured)],
    }
    return json.dumps(trace, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n"


def trace_events(subject: Subject) -> Iterator[Event]:
    """Metadata, complete (`X`) and counter (`C`) events of what is predicted."""
    yield _named("process_name", 0, shown(f"@{subject.schedule.name}") + ", predicted")
    for thread, number in THREADS.items():
        yield _named("thread_name", number, thread)
    yield from _executions(subject)
    yield from _copies(subject)
    yield from _counters(subject)


def measured_events(subject: Subject, measured: Sequence[MeasuredStep]) -> Iterator[Event]:
    """The same of what was measured; nothing for nothing."""
    if not measured:
        return
    name = shown(f"@{subject.schedule.name}") + ", measured"
    yield {**_named("process_name", 0, name), "pid": MEASURED}
    yield {**_named("thread_name", THREADS["compute"], "compute"), "pid": MEASURED}
    runs = {run.step: run for run in subject.timeline.runs}
    for measurement in measured:
        run = runs[measurement.step]
        c = subject.program.graph.cnode[run.cnode]
        args = {
            "step": run.step + 1,
            "computation": shown(c.name),
            "execution": run.execution,
            "device_bytes": measurement.bytes,
            "predicted_bytes": subject.trace.during[run.step],
            "predicted_us": (run.end_ns - run.start_ns) / 1e3,
            "at": subject.step_place(run.step),
        }
        start, took = measurement.start_ns / 1e3, measurement.took_ns / 1e3
        made = _complete(shown(c.call.op), run.role, "compute", start, took, args)
        yield {**made, "pid": MEASURED}
        yield {**_counter("device bytes", start, {"bytes": measurement.bytes}), "pid": MEASURED}


def _named(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": PREDICTED, "tid": thread, "args": {"name": name}}


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
    issue_ns = subject.program.target.copy_issue_ns
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
        if issue_ns:
            begin = subject.timeline.clock_ns[copy.issued] / 1e3
            args = {"copies": f"%{name}"}
            yield _complete("issue", "issuing", "compute", begin, issue_ns / 1e3, args)
        if copy.stall_ns:
            begin = (copy.end_ns - copy.stall_ns) / 1e3
            args = {"waits_for": f"%{name}"}
            yield _complete("wait", "waiting", "compute", begin, copy.stall_ns / 1e3, args)


def _complete(name: str, category: str, lane: str, start: float, took: float, args: Event) -> Event:
    event: Event = {"ph": "X", "name": name, "cat": category, "pid": PREDICTED}
    return {**event, "tid": THREADS[lane], "ts": start, "dur": took, "args": args}


def _counters(subject: Subject) -> Iterator[Event]:
    during, count = subject.trace.during, len(subject.schedule.steps)
    size = -(-count // MOST_COUNTERS)
    largest = [
        max(range(i, min(i + size, count)), key=during.__getitem__) for i in range(0, count, size)
    ]
    held = moments(subject.program, subject.schedule, largest, most=0)
    for step in largest:
        amounts = {str(kind): amount for kind, amount in held[step].by_kind.items()}
        yield _counter("device bytes", _at(subject, step), amounts)
        if subject.trace.copies:
            yield _counter(
                "host bytes", _at(subject, step), {"copies": subject.trace.during_host[step]}
            )


def _counter(name: str, at: float, amounts: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": PREDICTED, "ts": at, "args": amounts}


def _at(subject: Subject, step: int) -> float:
    return subject.timeline.clock_ns[step] / 1e3 if subject.has_times else float(step)
