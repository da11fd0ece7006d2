"""The largest size that fits, and the size of the highest throughput.

Each size has its own program, and one plan serves many: the order of steps does not depend on
sizes, so a schedule that was made for one is simulated at others before anything is planned anew.

Throughput is bounded before it is planned for. With t(n) the time with nothing recomputed, t(n)/n
does not rise with n (an operator takes max(a n + b, c n + d), none of them negative), and what
recomputation adds to t(n) is taken not to fall. So for a < n <= b

    n / time(n) <= b / (t(b) + extra(a))

which splits the range until no part can be more than a hundredth better than what was found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.semantics.simulate import simulate
from ...ir.wording import worded
from ...planners.registry import format_planner
from ...report.subject import store_all
from ..budget import format_bytes
from ..make import plan_costed
from ..packed import NO_PLAN
from .room import in_bytes

if TYPE_CHECKING:
    from ...ir.program import Program
    from ...ir.schedule import Schedule
    from ..request import PlanRequest
    from ..run_planner import Phases
    from .sizes import SizedModel

GAP = 0.01
"""The throughput found is at most this share below the bound on every other."""


@dataclass(frozen=True, slots=True)
class SizeFound:
    """`per_s` is the throughput there; no size has more than `bound_per_s` (None: not asked for).
    `planned` counts the sizes that `planner` was asked for, `reused` those that took the plan of
    another."""

    name: str
    size: int
    per_s: float
    bound_per_s: float | None
    planner: str
    planned: int
    reused: int


@dataclass
class SizeSearch:
    """Plans of a model by size; `room` gives the bytes for a step of a program."""

    model: SizedModel
    request: PlanRequest
    room: Callable[[Program], int]
    phases: Phases
    schedules: dict[int, Schedule | None] = field(default_factory=dict)
    times_ns: dict[int, int] = field(default_factory=dict)
    planned: int = 0
    reused: int = 0

    def time_ns(self, size: int) -> int | None:
        """The time of a plan at this size; None where none fits."""
        if size not in self.schedules:
            found = self._plan(size)
            self.schedules[size] = found and found[1]
            if found is not None:
                self.times_ns[size] = found[0]
        return self.times_ns.get(size)

    def _plan(self, size: int) -> tuple[int, Schedule] | None:
        program = self.model.at(size)
        room, base = self.room(program), self.model.baseline(size)
        if base.floor_bytes > room:
            return None
        if base.peak_bytes <= room:
            return base.time_ns, store_all(program)
        known = [s for s in self.schedules.values() if s is not None]
        found = min(filter(None, (_held(program, s, room) for s in known)), default=None, key=_time)
        if found is not None and found[0] <= (1 + GAP / 2) * base.time_ns:
            self.reused += 1
            return found
        made = self._made(program, room)
        self.reused += found is not None and made is None
        return min(filter(None, (found, made)), default=None, key=_time)

    def _made(self, program: Program, room: int) -> tuple[int, Schedule] | None:
        try:
            request = replace(self.request, budget=in_bytes(room))
            plan = plan_costed(program, request, self.phases)
        except FBError as error:
            if NO_PLAN & {d.code for d in error.diagnostics}:
                return None
            raise
        finally:
            self.planned += 1
        return plan.trace.time_ns, plan.schedule

    def largest(self) -> SizeFound:
        """The largest size of the range that fits, by halves. FB0975 where the least does not."""
        low, high = self.model.range.low, self.model.range.high
        if self._fits(high):
            return self._found(high)
        if not self._fits(low):
            raise self._nothing_fits(low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        return self._found(low)

    def _fits(self, size: int) -> bool:
        """A schedule of another size that fits is enough."""
        program = self.model.at(size)
        room = self.room(program)
        for schedule in filter(None, self.schedules.values()):
            if (held := _held(program, schedule, room)) is not None:
                self.reused += 1
                self.times_ns[size], self.schedules[size] = held
                return True
        return self.time_ns(size) is not None

    def fastest(self) -> SizeFound:
        """The size of the highest throughput, within `GAP` of the bound. FB0975 as `largest`,
        FB0974 where times are known at one size only."""
        if not self.model.has_times:
            message = "times were measured at one size of the program, and throughput needs all"
            example = "h100-80gb"
            hint = worded("name a {device}, or a factory that takes the size", device=example)
            raise FBError(Diagnostic("FB0974", message, hint=hint), usage=True)
        low, high = self.model.range.low, self.model.range.high
        if self.time_ns(low) is None:
            raise self._nothing_fits(low)
        self.time_ns(high)
        parts = [(low, high)]
        while parts:
            parts = [part for part in parts if part[1] - part[0] > 1]
            best = max(size / ns for size, ns in self.times_ns.items())
            parts = [part for part in parts if self._bound(*part) > (1 + GAP) * best]
            if parts:
                a, b = part = max(parts, key=lambda part: self._bound(*part))
                parts.remove(part)
                self.time_ns(middle := (a + b) // 2)
                parts += [(a, middle)] + [(middle, b)] * (self.times_ns.get(middle) is not None)
        size = max(self.times_ns, key=lambda n: n / self.times_ns[n])
        bound = (1 + GAP) * size * 1e9 / self.times_ns[size]
        return replace(self._found(size), bound_per_s=bound)

    def _bound(self, a: int, b: int) -> float:
        """Return the bound of the sizes between `a`, which fits, and `b`."""
        extra = self.times_ns[a] - self.model.baseline(a).time_ns
        return b / max(1, self.model.baseline(b).time_ns + extra)

    def _found(self, size: int) -> SizeFound:
        per_s = size * 1e9 / max(1, self.times_ns[size])
        name = self.model.range.name
        planner = format_planner(self.request.planner)
        return SizeFound(name, size, per_s, None, planner, self.planned, self.reused)

    def _nothing_fits(self, size: int) -> FBError:
        least = format_bytes(self.model.baseline(size).floor_bytes)
        left = format_bytes(max(0, self.room(self.model.at(size))))
        message = (
            f"nothing fits: a step takes {least} or more at {self.model.range.name} = {size}, and "
            f"{left} are left for it"
        )
        hint = worded("lower the range, name a larger {device}, or an optimizer of fewer states")
        return FBError(Diagnostic("FB0975", message, hint=hint))


def _time(found: tuple[int, Schedule]) -> int:
    return found[0]


def _held(program: Program, schedule: Schedule, room: int) -> tuple[int, Schedule] | None:
    """The schedule with its time in this program; None where it is too large, or not for it."""
    try:
        trace = simulate(program, schedule)
    except FBError:
        return None
    return (trace.time_ns, schedule) if trace.peak_bytes <= room else None
