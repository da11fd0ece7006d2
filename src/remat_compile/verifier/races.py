"""Obligation 4: no use of bytes races with a copy, whatever the timing of the copies.

`spec/verification.md` states the mathematics. The device has a stream that computes and one
that copies in each direction; they meet where a copy is issued and where the compute stream
waits for one. Whether one event comes before another in every timing is told by clocks: each
event carries, per direction, the number of the last copy that has surely ended. The clocks
are constants in single-assignment form; a use that must come after a copy is one literal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from ..ir.schedule import Free, HostFree, Offload, Prefetch, Wait
from .events import Event
from .smt import Answer, Deadline, Encoding, Model, numeral
from .statements import Statements

__all__ = ["Copy", "Race", "Racing", "Side", "Use", "encode_races", "pairs_of", "prove_races"]

Side = Literal["device", "host"]
Lane = Literal["d2h", "h2d"]
LANES: tuple[Lane, ...] = ("d2h", "h2d")

Act = Literal["read", "write", "end"]
"""What is done with bytes; `end` gives them to whatever takes memory next."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The `number`-th copy (from 1) of its direction. `waited` is the step that waits for
    it; None where none does."""

    lane: Lane
    number: int
    anode: str
    issued: int
    waited: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """What a step does with bytes of `anode` on a side; `copy` if the copy it issues does.

    `event` is the number of events for what happens after the last step.
    """

    event: int
    anode: str
    side: Side
    act: Act
    copy: Copy | None


@dataclass(frozen=True, slots=True)
class Race:
    """`use` must come after `copy`, which does `act` with the same bytes. In the encoding
    it does if the clock `constant` is at least the number of the copy."""

    copy: Copy
    act: Act
    use: Use
    constant: str = ""


@dataclass(frozen=True)
class Racing:
    """The pairs that some timing does not keep apart, in the order of the steps."""

    races: tuple[Race, ...]


def _copies(events: Sequence[Event]) -> dict[int, Copy]:
    """The copies by the steps that issue them. A `wait` is for the oldest copy of its aNode
    that nobody has waited for."""
    waits: dict[int, int] = {}
    open_: dict[str, list[int]] = defaultdict(list)
    for event in events:
        match event.step:
            case Offload(name) | Prefetch(name):
                open_[name].append(event.index)
            case Wait(name) if open_[name]:
                waits[open_[name].pop(0)] = event.index
    found: dict[int, Copy] = {}
    count = dict.fromkeys(LANES, 0)
    for event in events:
        match event.step:
            case Offload(name) | Prefetch(name):
                lane: Lane = "d2h" if isinstance(event.step, Offload) else "h2d"
                count[lane] += 1
                waited = waits.get(event.index)
                found[event.index] = Copy(lane, count[lane], name, event.index, waited)
    return found


def _uses(event: Event, copy: Copy | None) -> Iterator[Use]:
    """What a step does with bytes. A result that is alive already is taken to be written in
    place: not every implementation makes it beside the old one."""
    at = event.index
    if copy is not None and copy.lane == "d2h":
        yield Use(at, copy.anode, "device", "read", copy)
        yield Use(at, copy.anode, "host", "write", copy)
    elif copy is not None:
        yield Use(at, copy.anode, "host", "read", copy)
        yield Use(at, copy.anode, "device", "write", copy)
    elif isinstance(event.step, HostFree):
        yield Use(at, event.step.anode, "host", "end", None)
    elif isinstance(event.step, Free):
        yield Use(at, event.step.anode, "device", "end", None)
    else:
        ended = (event.ends,) if event.ends is not None else ()
        named = (event.becomes,) if event.becomes is not None else ()
        for name in (*event.needs, *((event.token,) if event.token is not None else ())):
            if name not in ended:
                yield Use(at, name, "device", "read", None)
        for name in (*event.makes, *named):
            yield Use(at, name, "device", "write", None)
        # An accumulation writes into the storage that it ends.
        for name in (*ended, *event.gives_back):
            yield Use(at, name, "device", "end", None)


def pairs_of(statements: Statements, events: Sequence[Event]) -> Iterator[Race]:
    """Every use that must come after an earlier copy of the same bytes: one of the two
    writes or ends them. What comes before a copy is before it in any case. After the last
    step the caller reads what it gets."""
    copies = _copies(events)
    running: dict[tuple[Side, str], list[tuple[Copy, Act]]] = defaultdict(list)
    uses = (use for event in events for use in _uses(event, copies.get(event.index)))
    at_end = (Use(len(events), name, "device", "read", None) for name in statements.kept)
    if copies:
        for use in chain(uses, at_end):
            bytes_ = use.side, use.anode
            for copy, act in running.get(bytes_, ()):
                if act != "read" or use.act != "read":
                    yield Race(copy, act, use)
            if use.copy is not None:
                running[bytes_].append((use.copy, use.act))
            if use.act == "end":
                running.pop(bytes_, None)


class _Clocks:
    """The clocks along the events; `now` are those of the compute stream."""

    def __init__(self, encoding: Encoding):
        self.encoding = encoding
        self.count = 0
        self.now = {lane: self.define("0") for lane in LANES}
        self.last: dict[Lane, dict[Lane, str]] = {}
        self.ends: dict[int, dict[Lane, str]] = {}

    def define(self, term: str) -> str:
        self.count += 1
        return self.encoding.define(f"clock{self.count}", "Int", term)

    def later(self, one: dict[Lane, str], other: dict[Lane, str]) -> dict[Lane, str]:
        """The clocks of an event that comes after two others."""
        return {
            lane: one[lane]
            if one[lane] == other[lane]
            else self.define(f"(ite (>= {one[lane]} {other[lane]}) {one[lane]} {other[lane]})")
            for lane in LANES
        }

    def issue(self, copy: Copy) -> dict[Lane, str]:
        """The clocks when the copy starts: it is issued, and the one before it has ended."""
        before = self.last.get(copy.lane)
        start = dict(self.now) if before is None else self.later(self.now, before)
        self.last[copy.lane] = {**start, copy.lane: self.define(numeral(copy.number))}
        self.ends[copy.issued] = self.last[copy.lane]
        return start

    def wait(self, copy: Copy) -> None:
        self.now = self.later(self.now, self.ends[copy.issued])


def encode_races(statements: Statements, events: Sequence[Event]) -> tuple[Encoding, list[Race]]:
    """The definitions of the clocks; the goals say that a use comes too early."""
    encoding = Encoding()
    clocks = _Clocks(encoding)
    copies = _copies(events)
    waits = {copy.waited: copy for copy in copies.values() if copy.waited is not None}
    todo: dict[int, list[Race]] = defaultdict(list)
    for race in pairs_of(statements, events):
        todo[race.use.event].append(race)
    found: list[Race] = []
    for index in sorted({*copies, *waits, *todo}):
        start = clocks.issue(copies[index]) if index in copies else clocks.now
        for race in todo[index]:
            clock = start[race.copy.lane]
            found.append(Race(race.copy, race.act, race.use, clock))
            encoding.ask(f"(< {clock} {race.copy.number})")
        if index in waits:
            clocks.wait(waits[index])
    return encoding, found


def prove_races(
    statements: Statements, events: Sequence[Event], deadline: Deadline
) -> Answer | Racing:
    """NoModel: proven. Racing: refuted. OutOfTime otherwise."""
    encoding, races = encode_races(statements, events)
    answer = encoding.check(deadline)
    if not isinstance(answer, Model):
        return answer
    values = answer.values
    return Racing(tuple(r for r in races if values[r.constant] < r.copy.number))
