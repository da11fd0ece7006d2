"""Copies between device and host: which are in flight, what the host holds, when each runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..diagnostics import Note
from ..graph import CNode
from ..program import Target
from ..schedule import Compute, Direction, Schedule, StorageStep
from ..span import Span
from .link import Link, Transfer


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that was waited for. `issued` and `waited` are indices of steps.

    It runs from `start_ns` to `end_ns` after the begin of the step; `stall_ns` is how long
    the compute stream stood still in its `wait`.
    """

    anode: str
    direction: Direction
    issued: int
    waited: int
    start_ns: int
    end_ns: int
    stall_ns: int


@dataclass(frozen=True, slots=True)
class _Flight:
    """A copy that nobody has waited for yet; `word` spells the step that issued it."""

    word: str
    direction: Direction | Literal["cpu"]
    issued: int
    transfer: Transfer
    span: Span | None


class Copies:
    """The state of the host and of copies at a step; reports violations.

    The device side (what is alive) is the machine's.
    """

    def __init__(self, sizes: Mapping[str, int], target: Target, report: Callable[..., None]):
        self.sizes = sizes
        self.now_ns = 0
        """The time of the compute stream."""
        self._link = Link(target)
        self._issue_ns = target.copy_issue_ns
        self._cpu_ns = 0
        self.host: dict[str, None] = {}
        self.host_bytes = 0
        self.done: list[Copy] = []
        self._stale: dict[str, Note] = {}
        self._flights: dict[str, _Flight] = {}
        self._gone: dict[str, Note] = {}
        self._forgiven: set[str] = set()
        self._homes: frozenset[str] = frozenset()
        self.bytes_beside = 0
        self._report = report

    def begin(self, homes: Iterable[str], bytes_beside: int) -> None:
        """The host holds `homes` before the first step, and `bytes_beside` during all of it."""
        self._homes = frozenset(homes)
        self.bytes_beside = bytes_beside
        self.host = dict.fromkeys(self._homes)
        self.host_bytes = bytes_beside + sum(self.sizes[name] for name in self.host)

    def arriving(self, name: str) -> Note | None:
        """Where the prefetch of `name` was issued that nobody has waited for."""
        flight = self._flights.get(name)
        if flight is None or flight.direction != "h2d":
            return None
        return _issued(flight)

    def at_rest(self, name: str, what: str, span: Span | None) -> bool:
        """True if no copy of `name` is in flight; FB0314 for `what` otherwise."""
        flight = self._flights.get(name)
        if flight is None:
            return True
        message = f"{what} %{name}, of which a copy is in flight"
        hint = f"put `wait %{name}` before it"
        self._report("FB0314", message, span, (_issued(flight),), hint)
        return False

    def leave_home(self, name: str) -> None:
        """The storage goes on under another name, whose home is there from now on."""
        self._homes -= {name}

    def update(self, index: int, c: CNode, reads: Iterable[str], step: Compute) -> None:
        """An update on the host, beside the compute stream and the link. What it reads and writes
        is in flight until its waits."""
        self._cpu_ns = max(self.now_ns, self._cpu_ns) + (c.host_time_ns or 0)
        flight = _Flight("update", "cpu", index, Transfer(0, 0, -1, self._cpu_ns), step.span)
        who, old = f"{c.name} on host reads", dict(c.takes_over)
        for name in reads:
            if not self.may_issue(name, who, step.span):
                continue
            if name not in self.host:
                message = f"{who} %{name}, of which the host holds no copy"
                hint = f"put `offload %{name}` and `wait %{name}` before it"
                self._report("FB0315", message, step.span, (), hint)
            elif name in self._stale:
                message = f"{who} %{name}, whose host copy is stale"
                self._report("FB0317", message, step.span, (self._stale[name],))
            if name not in old:
                self._flights[name] = flight
            elif name in self.host:
                del self.host[name]
                self._gone[name] = Note(f"{c.name} ended it on the host here", step.span)
                self.host_bytes -= self.sizes[name]
        for name in old.values():
            if name in self.host:
                message = f"{c.name} on host makes %{name}, of which the host holds a copy already"
                self._report("FB0321", message, step.span, (), f"put `hostfree %{name}` before it")
            elif self.may_issue(name, f"{c.name} on host makes", step.span):
                self.host[name] = None
                self.host_bytes += self.sizes[name]
                self._flights[name] = flight

    def may_issue(self, name: str, what: str, span: Span | None) -> bool:
        """True if no copy of `name` is in flight; if one is, the second wait is forgiven."""
        if self.at_rest(name, what, span):
            return True
        self._forgiven.add(name)
        return False

    def issue(self, index: int, step: StorageStep, direction: Direction) -> None:
        """Issues a copy, which takes the compute stream its time. One to the host takes bytes
        there; one from it needs one up to date."""
        name, span = step.anode, step.span
        if direction == "d2h" and name in self.host:
            if name not in self._homes:  # else it was refused already
                message = f"{step.word} of %{name}, of which the host holds a copy already"
                self._report("FB0321", message, span, (), f"put `hostfree %{name}` before it")
        elif direction == "d2h":
            self.host[name] = None
            self.host_bytes += self.sizes[name]
        elif self._on_host(step) and name in self._stale:
            message = f"{step.word} of %{name}, whose host copy is stale"
            self._report("FB0317", message, span, (self._stale[name],), "compute it again instead")
        self.now_ns += self._issue_ns
        transfer = self._link.issue(direction, self.sizes[name], self.now_ns)
        self._flights[name] = _Flight(step.word, direction, index, transfer, span)

    def wait(self, index: int, name: str, span: Span | None) -> None:
        flight = self._flights.pop(name, None)
        if flight is None:
            if name in self._forgiven:
                self._forgiven.discard(name)
                return
            message = f"wait for %{name}, of which no copy is in flight"
            self._report("FB0318", message, span, (), "remove this step")
            return
        end_ns = self._link.end_of(flight.transfer)
        stall = max(0, end_ns - self.now_ns)
        self.now_ns += stall
        times = flight.transfer.start_ns, end_ns, stall
        if flight.direction != "cpu":
            self.done.append(Copy(name, flight.direction, flight.issued, index, *times))

    def give_back(self, step: StorageStep) -> None:
        """The bytes of a host copy."""
        name = step.anode
        self.at_rest(name, f"{step.word} of", step.span)
        if name in self._homes:
            message = f"{step.word} of %{name}, which is the caller's and has its home there"
            self._report("FB0312", message, step.span, (), "remove this step")
        elif self._on_host(step):
            del self.host[name]
            self._stale.pop(name, None)
            self.host_bytes -= self.sizes[name]
            self._gone[name] = Note("the host copy was given back here", step.span)

    def _on_host(self, step: StorageStep) -> bool:
        name = step.anode
        if name in self.host:
            return True
        notes = (self._gone[name],) if name in self._gone else ()
        hint = f"put `offload %{name}` before it" if step.copies else "remove this step"
        message = f"{step.word} of %{name}, of which the host holds no copy"
        self._report("FB0315", message, step.span, notes, hint)
        return False

    def age(self, name: str, note: Note) -> None:
        """The storage of `name` goes on under another name, so a host copy of it is stale."""
        if name in self.host:
            self._stale[name] = note

    def check_end(
        self, names: Iterable[str], schedule: Schedule, homes: Collection[str] = ()
    ) -> None:
        """Checks that no copy is in flight, and that on the host is what has its home there."""
        for name in names:
            if name in self._flights:
                message = f"a copy of %{name} is in flight at the end of schedule @{schedule.name}"
                hint = f"add `wait %{name}`"
                notes = (_issued(self._flights[name]),)
                self._report("FB0320", message, schedule.span, notes, hint)
            if name in homes and name not in self.host:
                message = f"%{name} is not on the host at the end of @{schedule.name}"
                hint = f"add `offload %{name}` and `wait %{name}` after its writer"
                self._report("FB0328", message, schedule.span, (), hint)
            if name in self.host and name not in homes:
                message = f"the host copy of %{name} is left at the end of @{schedule.name}"
                hint = f"add `hostfree %{name}` after its last prefetch"
                self._report("FB0319", message, schedule.span, (), hint)


def _issued(flight: _Flight) -> Note:
    return Note(f"its {flight.word} was issued here", flight.span)
