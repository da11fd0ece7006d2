"""A schedule as the memory snapshot that https://pytorch.org/memory_viz and
`torch/cuda/_memory_viz.py` read: what `torch.cuda.memory._snapshot()` gives, pickled.

One event per allocation and free, in the order of the simulator. So the largest sum of bytes is
the peak of the plan to the byte; the addresses are those of a first-fit allocator without rounding.
The pickle holds dictionaries, lists, texts and numbers; it names no class and runs nothing.
"""

from __future__ import annotations

import pickle
from bisect import insort
from collections.abc import Iterator
from typing import Any

from ..ir.graph import CNode
from ..ir.schedule import Compute, Step
from ..ir.semantics.machine import Machine
from . import MARK
from .charts.timeline import replay
from .subject import Subject, place_of, shown

Entry = dict[str, Any]
Frame = dict[str, str | int]

DEVICE, STREAM = 0, 0
PROTOCOL = 4
"""The latest that the page reads."""
CALLERS: Frame = {"filename": "", "line": 0, "name": "held by the caller"}
FIRST = 1 << 20
"""The first address: 0 would stand for none."""


def snapshot(subject: Subject) -> bytes:
    """The whole snapshot, pickled."""
    entries = list(events(subject))
    held: dict[int, Entry] = {}
    end = FIRST
    for entry in entries:
        end = max(end, entry["addr"] + entry["size"])
        if entry["action"] == "alloc":
            held[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            del held[entry["addr"]]
    made = {
        "generator": MARK,
        "segments": [_segment(held, end)],
        "device_traces": [entries],
    }
    return pickle.dumps(made, protocol=PROTOCOL)


def events(subject: Subject) -> Iterator[Entry]:
    """Every allocation and free: what the caller holds, then the steps."""
    recorder = _AllocationRecorder(subject)
    for index, step, state in replay(subject.program, subject.schedule):
        if index == 0:
            for name, size in state.bytes_of_live().items():
                yield recorder.alloc(name, size, [CALLERS], 0)
        yield from recorder.step(index, step, state)


class _AllocationRecorder:
    """Allocations and their addresses on a device with unlimited addresses."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.held: dict[str, Entry] = {}
        self.gaps: list[tuple[int, int]] = []
        self.end = FIRST

    def step(self, index: int, step: Step, state: Machine) -> Iterator[Entry]:
        """Allocations before a step runs, and frees after it. Applies the step."""
        sizes = state.sizes
        time = self._time(index)
        frames = self._frames(index)
        passing: list[str] = []
        touched: tuple[str, ...]
        if isinstance(step, Compute):
            c = state.graph.cnode[step.cnode]
            n = state.executions.get(c.name, 0) + 1
            for name in state.allocated(c, n):
                # One that is alive already gets a second instance, which is dropped at once.
                own = f"(dropped %{name})" if name in state.live else name
                passing += [own] if name in state.live else []
                yield self.alloc(own, sizes.anode[name], frames, time)
            if size := sizes.workspace_at(c, n):
                passing.append("(workspace)")
                yield self.alloc("(workspace)", size, frames, time)
            touched = (*_named(state, c), *state.allocated(c, n))
        else:
            touched = (step.anode,)
            if step.copies == "h2d":
                yield self.alloc(step.anode, sizes.anode[step.anode], frames, time)
        state.apply(index, step)
        after = self._time(index + 1)
        for name in passing:
            yield from self.free(name, after)
        names = dict.fromkeys(touched)
        for name in names:
            if name in self.held and name not in state.live:
                yield from self.free(name, after)
        for name in names:
            if name in state.live and name not in self.held:  # a storage under another name
                yield self.alloc(name, sizes.anode[name], frames, after)

    def alloc(self, name: str, size: int, frames: list[Frame], time_us: int) -> Entry:
        made: Entry = {"action": "alloc", "addr": self._take(size), "size": size, "stream": STREAM}
        own = name if name.startswith("(") else f"%{name}"
        own_frame = {"filename": "", "line": 0, "name": shown(own)}
        made |= {"frames": [own_frame, *frames], "time_us": time_us}
        self.held[name] = made
        return made

    def free(self, name: str, time_us: int) -> Iterator[Entry]:
        taken = self.held.pop(name)
        if taken["size"]:
            insort(self.gaps, (taken["addr"], taken["size"]))
            self._join()
        for action in ("free_requested", "free_completed"):
            yield {**taken, "action": action, "time_us": time_us}

    def _take(self, size: int) -> int:
        """An address with room, the lowest there is; nothing else has it, of whatever size."""
        size = max(size, 1)
        for place, (address, room) in enumerate(self.gaps):
            if room >= size:
                self.gaps[place : place + 1] = (
                    [(address + size, room - size)] if room > size else []
                )
                return address
        self.end += size
        return self.end - size

    def _join(self) -> None:
        """Gaps side by side are one."""
        joined: list[tuple[int, int]] = []
        for address, room in self.gaps:
            if joined and sum(joined[-1]) == address:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((address, room))
        self.gaps = joined

    def _time(self, index: int) -> int:
        """Microseconds; the number of the step where the plan holds no times."""
        clock = self.subject.timeline.clock_ns
        return clock[index] // 1000 if self.subject.has_times else index

    def _frames(self, index: int) -> list[Frame]:
        """The step, and its line of the model, as a stack of two calls."""
        text = f"step {index + 1}: {self.subject.step_text(index)}"
        frames: list[Frame] = [{"filename": "", "line": 0, "name": text}]
        step, program = self.subject.schedule.steps[index], self.subject.program
        if not isinstance(step, Compute):
            if place := place_of(program, step.anode):
                frames.append({"filename": "", "line": 0, "name": f"made by {place}"})
        elif (loc := program.graph.cnode[step.cnode].loc) is not None:
            frames.append(
                {"filename": shown(loc.file), "line": loc.line, "name": shown(loc.module)}
            )
        return frames


def _named(state: Machine, c: CNode) -> tuple[str, ...]:
    """The storages that a computation may end or rename without new bytes."""
    return (*c.results, *state.graph.reads(c)) if c.is_accumulate else c.results


def _segment(held: dict[int, Entry], end: int) -> Entry:
    """The device after the last event, as one segment; what nothing holds is inactive."""
    blocks: list[Entry] = []
    at = FIRST
    for address, entry in sorted(held.items()):
        if address > at:
            blocks.append(_block(at, address - at, "inactive", []))
        blocks.append(_block(address, entry["size"], "active_allocated", entry["frames"]))
        at = address + entry["size"]
    if end > at:
        blocks.append(_block(at, end - at, "inactive", []))
    active = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    return {
        "device": DEVICE,
        "address": FIRST,
        "total_size": end - FIRST,
        "stream": STREAM,
        "segment_type": "large",
        "allocated_size": active,
        "active_size": active,
        "requested_size": active,
        "blocks": blocks,
        "frames": [],
    }


def _block(address: int, size: int, state: str, frames: list[Frame]) -> Entry:
    return {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": state,
        "frames": frames,
    }
