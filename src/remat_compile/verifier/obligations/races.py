"""Obligation 4: no use of bytes races with a copy, whatever the timing of the copies.

`spec/verification.md` states the mathematics. The device has a stream that computes and one
that copies in each direction; they meet where a copy is issued and where the compute stream
waits for one. Whether one event comes before another in every timing is told by clocks: each
event carries, per direction, the number of the last copy that has surely ended. The clocks
are constants in single-assignment form, and so are the numbers of the last copies that use the
bytes of an aNode. Each later use of these has one goal: that a guard of `machine.smt2` fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from ...ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Wait
from ..inquiry import Inquiry
from ..read.events import Event
from ..read.statements import Statements
from ..smt import Answer, Encoding, Model, OutOfTime

Side = Literal["device", "host"]
Lane = Literal["d2h", "h2d", "cpu"]
LANES: tuple[Lane, ...] = ("d2h", "h2d", "cpu")
"""The directions of copies, and updates on the host."""

Act = Literal["read", "write", "end"]
"""An access to bytes; `end` gives them to whatever takes memory next."""


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """The `number`-th copy (from 1) of its direction. `waited` is the step that waits for
    it; None where none does."""

    lane: Lane
    number: int
    anode: str
    issued: int
    waited: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """The access of a step to bytes of `anode` on a side; `copy` if the copy it issues does.

    `event` is the number of events for what happens after the last step.
    """

    event: int
    anode: str
    side: Side
    act: Act
    copy: CopyTimes | None


@dataclass(frozen=True, slots=True)
class Race:
    """`use` must come after `copy`, which does `act` with the same bytes. In the encoding
    it does if the clock `constant` is at least the number of the copy.

    To tell of a race: what is asked are the guards of `_RaceEncoder.use`.
    """

    copy: CopyTimes
    act: Act
    use: Use
    constant: str = ""


@dataclass(frozen=True)
class Racing:
    """The pairs that some timing does not keep apart, in the order of the steps."""

    races: tuple[Race, ...]


def _copies(events: Sequence[Event]) -> dict[int, tuple[CopyTimes, ...]]:
    """The copies by the steps that issue them, and updates on the host as one for each storage. A
    `wait` is for the oldest copy of its aNode
    that nobody has waited for."""
    waits: dict[tuple[int, str], int] = {}
    open_: dict[str, list[int]] = defaultdict(list)
    for event in events:
        match event.step:
            case Offload(name) | Prefetch(name):
                open_[name].append(event.index)
            case Compute() if event.update is not None:
                for name, _ in _of_update(event):
                    open_[name].append(event.index)
            case Wait(name) if open_[name]:
                waits[open_[name].pop(0), name] = event.index
    copies: dict[int, tuple[CopyTimes, ...]] = {}
    count = dict.fromkeys(LANES, 0)
    for event in events:
        lane: Lane = "d2h" if isinstance(event.step, Offload) else "h2d"
        names: tuple[str, ...] = ()
        if isinstance(event.step, Offload | Prefetch):
            names = (event.step.anode,)
        elif event.update is not None:
            lane, names = "cpu", tuple(name for name, _ in _of_update(event))
        begun: list[CopyTimes] = []
        for name in names:
            count[lane] += 1
            waited = waits.get((event.index, name))
            begun.append(CopyTimes(lane, count[lane], name, event.index, waited))
        copies[event.index] = tuple(begun)
    return copies


def _of_update(event: Event) -> Iterator[tuple[str, Act]]:
    """The accesses of an update on the host to each storage there until the wait for that."""
    for name in event.looks:
        yield name, "read"
    for _, name in event.takes_over:
        yield name, "write"


def _uses(event: Event, copies: Sequence[CopyTimes]) -> Iterator[Use]:
    """The accesses of a step. A result that is alive already is taken to be written in
    place: not every implementation makes it beside the old one."""
    at = event.index
    for copy in copies:
        if copy.lane == "cpu":
            act = dict(_of_update(event))[copy.anode]
            yield Use(at, copy.anode, "host", act, copy)
            continue
        out = copy.lane == "d2h"
        yield Use(at, copy.anode, "device", "read" if out else "write", copy)
        yield Use(at, copy.anode, "host", "write" if out else "read", copy)
    if copies:
        return
    if isinstance(event.step, HostFree):
        yield Use(at, event.step.anode, "host", "end", None)
    elif isinstance(event.step, Free):
        yield Use(at, event.step.anode, "device", "end", None)
    else:
        ended, named = [*dict(event.takes_over)], [name for _, name in event.takes_over]
        for name in (*event.needs, *((event.token,) if event.token is not None else ())):
            if name not in ended:
                yield Use(at, name, "device", "read", None)
        for name in (*event.makes, *named):
            yield Use(at, name, "device", "write", None)
        # An accumulation writes into the storage that it ends.
        for name in (*ended, *event.gives_back):
            yield Use(at, name, "device", "end", None)


def _at_end(statements: Statements, end: int) -> Iterator[Use]:
    """The caller reads what he gets, on the device and on the host."""
    for name in statements.kept:
        yield Use(end, name, "device", "read", None)
    for name in statements.host_end:
        yield Use(end, name, "host", "read", None)


def pairs_of(statements: Statements, events: Sequence[Event]) -> Iterator[Race]:
    """Every use that must come after an earlier copy of the same bytes: one of the two
    writes or ends them. A plain walk, to tell of races; nothing is proven by it.

    What comes before a copy is before it in any case. After the last step the caller reads
    what it gets."""
    copies = _copies(events)
    running: dict[tuple[Side, str], list[tuple[CopyTimes, Act]]] = defaultdict(list)
    uses = (use for event in events for use in _uses(event, copies[event.index]))
    if any(copies.values()):
        for use in chain(uses, _at_end(statements, len(events))):
            bytes_ = use.side, use.anode
            for copy, act in running.get(bytes_, ()):
                if act != "read" or use.act != "read":
                    yield Race(copy, act, use)
            if use.copy is not None:
                running[bytes_].append((use.copy, use.act))
            if use.act == "end":
                running.pop(bytes_, None)


@dataclass
class _Bytes:
    """The numbers of the last copies that use the bytes of an aNode on one side, as constants,
    by direction: of the two uses one writes and one reads."""

    last: dict[Lane, str] = field(default_factory=lambda: dict.fromkeys(LANES, "0"))


class _RaceEncoder:
    """The clocks along the events; `now` are those of the compute stream."""

    def __init__(self) -> None:
        self.encoding = Encoding()
        self.count = 0
        self.now = {lane: self.define("0") for lane in LANES}
        self.last: dict[Lane, dict[Lane, str]] = {}
        self.number = dict.fromkeys(LANES, "0")
        self.open: dict[str, list[dict[Lane, str]]] = defaultdict(list)
        self.used: dict[tuple[Side, str], _Bytes] = {}
        self.starts: dict[tuple[int, str], dict[Lane, str]] = {}

    def define(self, term: str) -> str:
        self.count += 1
        return self.encoding.define(f"clock{self.count}", "Int", term)

    def later(self, one: dict[Lane, str], other: dict[Lane, str]) -> dict[Lane, str]:
        """The clocks of an event that comes after two others."""
        return {
            lane: one[lane]
            if one[lane] == other[lane]
            else self.define(f"(later {one[lane]} {other[lane]})")
            for lane in LANES
        }

    def step(self, event: Event) -> None:
        """The uses of a step, and what it does to the clocks."""
        match event.step:
            case Offload(name):
                self.copy(event.index, "d2h", name)
            case Prefetch(name):
                self.copy(event.index, "h2d", name)
            case Wait(name):
                # It means the oldest copy of the aNode that nobody has waited for.
                if self.open[name]:
                    self.now = self.later(self.now, self.open[name].pop(0))
            case Compute() if event.update is not None:
                for name, act in _of_update(event):
                    self.issue("cpu", name, (Use(event.index, name, "host", act, None),))
            case _:
                self.uses(_uses(event, ()), event.index, self.now)

    def uses(self, uses: Iterable[Use], index: int, clocks: dict[Lane, str]) -> None:
        for use in uses:
            if (use.side, use.anode) in self.used:
                self.starts[index, use.anode] = clocks
                self.use(use, clocks)

    def use(self, use: Use, clocks: dict[Lane, str]) -> None:
        """The goal that a use of bytes that copies have used comes too early."""
        key = use.side, use.anode
        numbers = self.used[key].last
        lanes: tuple[Lane, ...] = LANES if use.side == "host" else ("d2h", "h2d")
        if use.act == "read":
            lanes = ("d2h", "cpu") if use.side == "host" else ("h2d",)
        facts = (*(clocks[lane] for lane in lanes), *(numbers[lane] for lane in lanes))
        guard = f"{use.side}.{'read' if use.act == 'read' else 'write'}.ok {' '.join(facts)}"
        self.encoding.ask(f"(not ({guard}))")
        if use.act == "end":
            del self.used[key]

    def copy(self, index: int, lane: Lane, name: str) -> None:
        """A copy uses bytes of both sides."""
        device: Act = "read" if lane == "d2h" else "write"
        host: Act = "write" if lane == "d2h" else "read"
        uses = (
            Use(index, name, "device", device, None),
            Use(index, name, "host", host, None),
        )
        self.issue(lane, name, uses)

    def issue(self, lane: Lane, name: str, uses: tuple[Use, ...]) -> None:
        """It starts when it is issued and the one before it has ended, and has the next number of
        its direction."""
        index, before = uses[0].event, self.last.get(lane)
        start = dict(self.now) if before is None else self.later(self.now, before)
        self.uses(uses, index, start)
        self.number[lane] = self.define(f"(copy.number {self.number[lane]})")
        for use in uses:
            self.used.setdefault((use.side, name), _Bytes()).last[lane] = self.number[lane]
        self.last[lane] = {**start, lane: self.number[lane]}
        self.open[name].append(self.last[lane])


def _encode(statements: Statements, events: Sequence[Event]) -> _RaceEncoder:
    encoder = _RaceEncoder()
    for event in events:
        encoder.step(event)
    encoder.uses(_at_end(statements, len(events)), len(events), encoder.now)
    return encoder


def _pairs(
    encoder: _RaceEncoder, statements: Statements, events: Sequence[Event]
) -> Iterator[Race]:
    """The pairs that the goals are about, each with its clock."""
    for race in pairs_of(statements, events):
        clock = encoder.starts[race.use.event, race.use.anode][race.copy.lane]
        yield Race(race.copy, race.act, race.use, clock)


def encode_races(statements: Statements, events: Sequence[Event]) -> tuple[Encoding, list[Race]]:
    """The definitions of the clocks; the goals say that a use comes too early."""
    encoder = _encode(statements, events)
    return encoder.encoding, list(_pairs(encoder, statements, events))


def prove_races(
    statements: Statements, events: Sequence[Event], inquiry: Inquiry
) -> Answer | Racing:
    """NoModel: proven. Racing: refuted. OutOfTime otherwise."""
    encoder = _encode(statements, events)
    answer = encoder.encoding.check(inquiry)
    if not isinstance(answer, Model):
        return answer
    values = answer.values
    pairs = _pairs(encoder, statements, events)
    races = tuple(race for race in pairs if values[race.constant] < race.copy.number)
    return Racing(races) if races else OutOfTime("z3 and the plain walk do not agree on races")
