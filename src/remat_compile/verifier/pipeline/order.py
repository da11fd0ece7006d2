"""Copies between rows: both sides, in one order, and no rows that wait for each other.

Events are the steps of all rows and the copies. A step comes after the one before it in its row; a
copy after both its issues and the copy before it between the same ranks; a `wait` after its copy.
If this relation has no cycle, every event happens, whether copies are buffered or wait for the
other side (by induction along it), and the time of the step is the longest path. `synchronous` adds
that a step behind an issue comes after the copy, as with sends that block.
"""

from __future__ import annotations

from itertools import pairwise

from ...ir.diagnostics import Diagnostic, Note
from ...ir.pipeline import WAYS_OUT, Move, OnValue, Pipeline, RowStep, StageRun, Value

Event = tuple[int, int] | Value
"""(rank, position), or the copy of a value."""


def matching(pipeline: Pipeline) -> list[Diagnostic]:
    """FB1014 for one-sided copies, FB1015 for pairs of ranks with two orders."""
    sides: dict[Value, set[str]] = {}
    spoken: dict[Value, Move] = {}
    orders: dict[tuple[int, int], list[Value]] = {}
    for rank, row in enumerate(pipeline.rows):
        for step in row:
            if isinstance(step, Move):
                sides.setdefault(step.value, set()).add(step.word)
                spoken[step.value] = step
                orders.setdefault((rank, step.peer), []).append(step.value)
    problems = []
    for value, words in sides.items():
        if words != {"send", "recv"}:
            span, word = spoken[value].span, spoken[value].word
            message = f"{word} {_named(value)}: no rank issues the other side"
            problems.append(Diagnostic("FB1014", message, span, hint=WAYS_OUT["FB1014"]))
    for (rank, peer), ours in orders.items():
        theirs = orders.get((peer, rank), [])
        if rank < peer and sorted(ours) == sorted(theirs) and ours != theirs:
            differs = next(v for v, w in zip(ours, theirs, strict=True) if v != w)
            message = f"ranks {rank} and {peer} order {_named(differs)} differently"
            span = spoken[differs].span
            problems.append(Diagnostic("FB1015", message, span, hint=WAYS_OUT["FB1015"]))
    return problems


def _named(value: Value) -> str:
    return f"{value[0]} {value[1]} mb {value[2]}"


class EventOrder:
    """The relation between events of a pipeline whose copies match."""

    def __init__(self, pipeline: Pipeline, *, synchronous: bool = False):
        self.pipeline = pipeline
        self.before: dict[Event, list[Event]] = {}
        queues: dict[tuple[int, int], list[Value]] = {}
        for rank, row in enumerate(pipeline.rows):
            for n, step in enumerate(row):
                before: list[Event] = [(rank, n - 1)] if n else []
                if isinstance(step, OnValue) and step.word == "wait":
                    before.append(step.value)
                if synchronous and n and isinstance(last := row[n - 1], Move):
                    before.append(last.value)
                self.before[rank, n] = before
                if isinstance(step, Move):
                    self.before.setdefault(step.value, []).append((rank, n))
                    if rank < step.peer:
                        queues.setdefault((rank, step.peer), []).append(step.value)
        for values in queues.values():
            for first, then in pairwise(values):
                self.before[then].append(first)

    def sorted(self) -> tuple[list[Event], list[Event]]:
        """The events, each after those it comes after; and those that are on or behind a cycle."""
        missing = {event: len(before) for event, before in self.before.items()}
        behind: dict[Event, list[Event]] = {event: [] for event in self.before}
        for event, before in self.before.items():
            for other in before:
                behind[other].append(event)
        ready = [event for event, count in missing.items() if count == 0]
        order: list[Event] = []
        while ready:
            event = ready.pop()
            order.append(event)
            for other in behind[event]:
                missing[other] -= 1
                if missing[other] == 0:
                    ready.append(other)
        placed = set(order)
        return order, [event for event in self.before if event not in placed]

    def deadlock(self) -> Diagnostic | None:
        """FB1016 with a cycle, step by step."""
        _, left = self.sorted()
        if not left:
            return None
        stuck = set(left)
        path = [left[0]]
        while path[-1] not in path[:-1]:
            path.append(next(event for event in self.before[path[-1]] if event in stuck))
        cycle = path[path.index(path[-1]) : -1][::-1]
        notes = tuple(self._note(event) for event in cycle)
        span = next((note.span for note in notes if note.span is not None), None)
        message = f"deadlock: a cycle of {len(cycle)} events, each waits for the one before it"
        return Diagnostic("FB1016", message, span, notes, WAYS_OUT["FB1016"])

    def _note(self, event: Event) -> Note:
        if len(event) == 3:
            return Note(f"the copy of {_named(event)}")
        rank, n = event
        step = self.pipeline.rows[rank][n]
        return Note(f"rank {rank}: {_spelled(step)}", step.span)

    def ends_ns(self) -> dict[Event, int]:
        """When each event ends: the longest path to it. Of an acyclic relation."""
        ends: dict[Event, int] = {}
        for event in self.sorted()[0]:
            begin = max((ends[other] for other in self.before[event]), default=0)
            ends[event] = begin + self._duration(event)
        return ends

    def _duration(self, event: Event) -> int:
        p = self.pipeline
        if len(event) == 3:
            stage = p.stages[event[1]]
            size = stage.activation_bytes if event[0] == "act" else stage.gradient_bytes
            rate = p.link_bytes_per_s
            return 0 if rate is None else (size * 10**9 + rate - 1) // rate
        step = p.rows[event[0]][event[1]]
        if not isinstance(step, StageRun):
            return 0
        stage = p.stages[step.stage]
        if step.word == "wgt":
            return stage.weight_ns
        return stage.forward_ns if step.word == "fwd" else stage.backward_ns


def _spelled(step: RowStep) -> str:
    if isinstance(step, StageRun):
        return f"{step.word} {step.stage} mb {step.microbatch}"
    return f"{step.word} {_named(step.value)}"
