"""The time of a plan for whole tensors: four streams, followed from event to event.

The device computes, copies run in both directions (`ir/semantics/link.py`), the CPU updates. They
meet where one waits for another, and nowhere else: steps are no barriers, and a copy runs on until
its end is waited for, by who reads what it brings or takes the bytes that it leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ....ir.schedule import Direction
from ....ir.semantics.link import Link, Transfer
from .courses import Course, Stay, StepPlan
from .instance import Option, StepInstance

Key = tuple[str, int]
"""A copy: of the "weight", "states" or "grad" of a course, or the "act" of a block, by number."""

_TURNS = 4
"""The last turn is measured: by then each leaves to the next one what it found."""


Cause = tuple[int, str, Key]
"""Why the device stood still: step, "d2h", "h2d" or "cpu", and what it waited for."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds of a turn, when each of its steps begins, and what the device waited for."""

    time_ns: int
    starts_T: list[int]
    stalls_ns: dict[Cause, int]


def time_ns(instance: StepInstance, plan: StepPlan) -> int:
    """Nanoseconds of a turn in the steady state. Linear in steps and copies."""
    return timing_of(instance, plan).time_ns


def timing_of(instance: StepInstance, plan: StepPlan) -> Timing:
    """The same, with where the time goes."""
    clock = _Clock(instance, plan)
    begin, starts = 0, list[int]()
    for _ in range(_TURNS):
        begin, starts = clock.now, []
        clock.stalls_ns.clear()
        for t in range(instance.steps):
            starts.append(clock.now - begin)
            clock.step(t)
    return Timing(clock.now - begin, starts, dict(clock.stalls_ns))


class _Clock:
    def __init__(self, instance: StepInstance, plan: StepPlan):
        self.inst, self.plan = instance, plan
        self.link = Link(instance.target)
        self.now = self.cpu_free = self.t = 0
        self.stalls_ns: dict[Cause, int] = defaultdict(int)
        self.flights: dict[tuple[Direction, Key], Transfer] = {}
        self.cpu_end: dict[int, int] = {}
        self.frees: dict[int, list[Key]] = defaultdict(list)
        self.fetches: dict[int, list[Key]] = defaultdict(list)
        self.needs: dict[int, list[Key]] = defaultdict(list)
        self.sends: dict[int, list[Key]] = defaultdict(list)
        self.updates: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, list[int]] = defaultdict(list)
        for k, course in enumerate(plan.courses):
            self._enter(k, course)

    def _enter(self, k: int, course: Course) -> None:
        count = self.inst.steps
        group = self.inst.groups[course.group]
        last = group.last_grad(self.inst.blocks)
        for t in group.uses(self.inst.blocks):
            self.needs[t].append(("weight", k))
        self._stay(("weight", k), course.weight)
        if course.updated is None:
            self._stay(("states", k), course.states)
            if course.tensor.grad_bytes:
                self.ends[last].append(k)
        elif course.grad_sent is not None:
            self.sends[course.grad_sent].append(("grad", k))
            self.frees[(course.grad_sent + 1) % count].append(("grad", k))
            self.updates[course.updated].append(k)

    def _stay(self, key: Key, stay: Stay) -> None:
        count = self.inst.steps
        for t in stay.absent:
            if (t - 1) % count not in stay.absent:
                self.frees[t].append(key)
        for t in stay.fetched:
            self.fetches[t].append(key)
        if stay.sent is not None:
            self.sends[stay.sent].append(key)

    def _size(self, key: Key) -> int:
        tensor = self.plan.courses[key[1]].tensor
        if key[0] == "states":
            return round(self.inst.rates.states * tensor.grad_bytes)
        return tensor.size_bytes if key[0] == "weight" else tensor.grad_bytes

    def step(self, t: int) -> None:
        """Runs a step: what stands before its computation, that, and what follows it."""
        self.t = t
        self._wait("d2h", self.frees[t])
        if t <= self.inst.blocks:
            self._wait("d2h", [("act", t - 1)])
        behind = [key for key in self.sends[t] if self._is_last(key[1], t)]
        self._issue("d2h", [key for key in self.sends[t] if key not in behind])
        self._update_on_cpu(self.updates[t])
        late = [key for key in self.fetches[t] if key[0] == "weight" and key[1] in self.cpu_end]
        self._issue("h2d", [key for key in self.fetches[t] if key not in late])
        for key in sorted(late, key=lambda key: self.cpu_end[key[1]]):
            self._until(self.cpu_end.pop(key[1]), "cpu", key)
            self._issue("h2d", [key])
        if self.inst.blocks - 1 <= t < self.inst.steps - 1:
            i = self.inst.block(t + 1)
            if size := self._option(i).sent_bytes:
                self.flights["h2d", ("act", i)] = self.link.issue("h2d", size, self.now)
        self._wait("h2d", self.needs[t])
        self._compute(t)
        self._issue("d2h", [key for key in behind if key[0] == "grad"])
        self._wait("h2d", [("states", k) for k in self.ends[t]])
        tensors = (self.plan.courses[k].tensor for k in self.ends[t])
        self.now += round(self.inst.rates.device_ns(sum(x.grad_bytes for x in tensors)))
        self._issue("d2h", [key for key in behind if key[0] != "grad"])

    def _is_last(self, k: int, t: int) -> bool:
        group = self.inst.groups[self.plan.courses[k].group]
        return group.last_grad(self.inst.blocks) == t

    def _option(self, i: int) -> Option:
        return self.inst.options_L[i][self.plan.options[i]]

    def _compute(self, t: int) -> None:
        i = self.inst.block(t)
        option = self._option(i)
        if t >= self.inst.blocks:
            self._wait("h2d", [("act", i)])
            self.now += option.backward_ns
            return
        begin = self.now
        for ready, size in option.sent:
            self.now = max(self.now, begin + ready)
            self.flights["d2h", ("act", i)] = self.link.issue("d2h", size, self.now)
        self.now = max(self.now, begin + option.forward_ns)

    def _update_on_cpu(self, courses: list[int]) -> None:
        """The CPU takes them one after the other, behind the management of the step."""
        if courses:
            self.cpu_free = max(self.cpu_free, self.now + self.inst.rates.manage_ns)
        for k in courses:
            size = self.plan.courses[k].tensor.grad_bytes
            self.cpu_free += round(self.inst.rates.cpu_ns(size))
            self.cpu_end[k] = self.cpu_free

    def _issue(self, direction: Direction, keys: Iterable[Key]) -> None:
        for key in keys:
            self.flights[direction, key] = self.link.issue(direction, self._size(key), self.now)

    def _wait(self, direction: Direction, keys: Iterable[Key]) -> None:
        for key in keys:
            if (flight := self.flights.pop((direction, key), None)) is not None:
                self._until(self.link.end_of(flight), direction, key)

    def _until(self, end: int, why: str, key: Key) -> None:
        if end > self.now:
            self.stalls_ns[self.t, why, key] += end - self.now
            self.now = end
