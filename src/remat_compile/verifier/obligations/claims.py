"""Obligation 5: claimed time and bounds, recomputed from the statements at the sample.

The time of a schedule is the end of its compute stream; z3 has it as prefix sums and
maxima. Where the directions of the link slow each other down, the ends of copies are worked out by
`SharedLink` and z3 has them as numbers. What no schedule can do without (`least_time_ns`,
`least_bytes`) is a sum over the cNodes that every valid schedule runs: plain arithmetic, there is
nothing to solve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from ...ir.graph import ACCUMULATE_OP, UPDATE_OP, CNode
from ...ir.program import Target
from ...ir.schedule import Compute, Offload, Prefetch, Wait
from ..inquiry import Inquiry
from ..read.events import Event
from ..read.sizes import Sizes
from ..read.statements import Statements
from ..smt import Encoding, Model, NoModel, OutOfTime, boolean, numeral


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims about a schedule at the sample.

    `time_ns` is its time. No valid schedule of the graph takes less time than
    `least_time_ns`, or fewer device bytes than `least_bytes`.
    """

    time_ns: int
    least_time_ns: int
    least_bytes: int


def compute_claims(
    statements: Statements, events: Sequence[Event], sizes: Sizes, target: Target
) -> Claims:
    """The true ones, by plain arithmetic."""
    names = required(statements)
    required_ones = [c for c in statements.cnodes.values() if c.name in names]
    cnodes = [c for c in required_ones if c.call.op != UPDATE_OP]  # which may run on the host
    held = sizes.existing + sum(sizes.anode[name] for name in statements.caller)
    return Claims(
        _Clock(sizes, target).run(events),
        sum(c.time_ns or 0 for c in cnodes),
        max((held + _working_set(statements, sizes, c) for c in cnodes), default=0),
    )


def time_of(event: Event) -> int:
    """Nanoseconds of an execution; unknown counts as 0."""
    c = event.cnode
    if c is None:
        return 0
    if event.execution > 1 and c.replay is not None and c.replay.time_ns is not None:
        return c.replay.time_ns
    return c.time_ns or 0


def copy_ns(sizes: Sizes, target: Target, event: Event) -> tuple[str, str, int] | None:
    """Direction, aNode and nanoseconds of the copy that a step issues."""
    match event.step:
        case Offload(name):
            lane, rate = "d2h", target.d2h_bytes_per_s
        case Prefetch(name):
            lane, rate = "h2d", target.h2d_bytes_per_s
        case _:
            return None
    moving = 0 if not rate else -(-sizes.anode[name] * 10**9 // rate)
    return lane, name, target.copy_latency_ns + moving


def required(statements: Statements) -> frozenset[str]:
    """The cNodes that every valid schedule runs in their first form.

    The loss, those that draw random numbers, and the writers of what is wanted at the end
    or at the loss; and with each of them the writers of what it reads.
    """
    wanted = [*statements.kept, *statements.host_end, *statements.pending]
    todo = [statements.writer[name].name for name in wanted if name in statements.writer]
    todo += statements.stream
    names: set[str] = set()
    while todo:
        name = todo.pop()
        if name in names:
            continue
        names.add(name)
        reads = _reads(statements, statements.cnodes[name])
        todo += [statements.writer[read].name for read in reads if read in statements.writer]
    return frozenset(names)


def _reads(statements: Statements, c: CNode) -> Iterator[str]:
    yield from statements.needs(c.call)
    if c.phase == "loss":
        yield from statements.pending
        for name in statements.handed:
            yield from statements.storages(name)


def _working_set(statements: Statements, sizes: Sizes, c: CNode) -> int:
    """Bytes on top of what the caller holds during the first execution of `c` in whatever
    schedule: what is read, the results, which nothing can have made before, and the workspace."""
    live = set(_reads(statements, c))
    if c.call.op != ACCUMULATE_OP:
        live |= {name for name in c.writes if name is not None}
    live -= statements.caller
    return sizes.workspace[c.name][0] + sum(sizes.anode[name] for name in live)


def in_flight(event: Event) -> Iterator[str]:
    """The storages that an update on the host reads and makes, until the waits."""
    yield from event.looks
    yield from (named for _, named in event.takes_over)


class _Clock:
    """The streams, by plain arithmetic."""

    def __init__(self, sizes: Sizes, target: Target):
        self.sizes = sizes
        self.target = target
        self.now = 0
        self.busy = {"d2h": 0, "h2d": 0}
        self.cpu = 0
        self.ends: dict[str, int] = {}
        self.shared = shared_link(target)

    def step(self, event: Event) -> None:
        if (copy := copy_ns(self.sizes, self.target, event)) is not None:
            lane, name, takes = copy
            self.now += self.target.copy_issue_ns
            if self.shared is not None:
                self.shared.issue(lane, name, self.sizes.anode[name], self.now)
            else:
                self.busy[lane] = self.ends[name] = max(self.now, self.busy[lane]) + takes
        elif event.update is not None:
            self.cpu = max(self.now, self.cpu) + (event.update.host_time_ns or 0)
            self.ends.update(dict.fromkeys(in_flight(event), self.cpu))
            if self.shared is not None:
                self.shared.ended.update(dict.fromkeys(in_flight(event), self.cpu))
        elif isinstance(event.step, Wait):
            self.now = max(self.now, self.end_of(event.step.anode))
        else:
            self.now += time_of(event)

    def end_of(self, name: str) -> int:
        """When the copy in flight ends that is waited for now."""
        if self.shared is not None:
            return self.shared.end_of(name)
        return self.ends.pop(name, 0)

    def run(self, events: Iterable[Event]) -> int:
        for event in events:
            self.step(event)
        return self.now


def shared_link(target: Target) -> SharedLink | None:
    """The link where both directions together are slower than their sum; else None."""
    out, back, both = target.d2h_bytes_per_s, target.h2d_bytes_per_s, target.both_bytes_per_s
    if not out or not back or both is None or both >= out + back:
        return None
    return SharedLink({"d2h": out, "h2d": back}, both, target.copy_latency_ns)


class SharedLink:
    """Copies that slow each other down, by the rule of `semantics.md`.

    Bytes are fractions; a copy begins and ends on whole nanoseconds.
    """

    def __init__(self, rates: Mapping[str, int], both: int, latency: int):
        self.latency = latency
        total = sum(rates.values())
        self.alone = {lane: Fraction(rate, 10**9) for lane, rate in rates.items()}
        self.beside = {lane: Fraction(rate * both, total * 10**9) for lane, rate in rates.items()}
        self.waiting: dict[str, list[tuple[str, int]]] = {lane: [] for lane in rates}
        self.moving: dict[str, tuple[str, int, Fraction]] = {}
        """By lane: the aNode, when its latency is over, and the bytes left."""
        self.time = 0
        self.ended: dict[str, int] = {}

    def issue(self, lane: str, name: str, size: int, now: int) -> None:
        while self.time < now:
            self.advance(now)
        self.waiting[lane].append((name, size))
        self.ended.pop(name, None)
        self.begin()

    def end_of(self, name: str) -> int:
        while name not in self.ended and self.moving:
            self.advance(None)
        return self.ended.pop(name, 0)

    def begin(self) -> None:
        """The next copies of a free direction, and copies without bytes."""
        for lane, queue in self.waiting.items():
            while queue and lane not in self.moving:
                name, size = queue.pop(0)
                if size or self.latency:
                    self.moving[lane] = name, self.time + self.latency, Fraction(size)
                else:
                    self.ended[name] = self.time

    def advance(self, limit: int | None) -> None:
        """To the next whole nanosecond at which a rate changes, or to the limit."""
        ready = {lane: at <= self.time for lane, (_, at, _) in self.moving.items()}
        speed = self.beside if sum(ready.values()) == 2 else self.alone
        stops = [] if limit is None else [limit]
        for lane, (_, at, left) in self.moving.items():
            stops.append(self.time + ceil(left / speed[lane]) if ready[lane] else at)
        then = min(stops)
        for lane, (name, at, left) in list(self.moving.items()):
            if ready[lane]:
                left -= (then - self.time) * speed[lane]
            self.moving[lane] = name, at, left
            if left <= 0 and at <= then:
                self.ended[name] = then
                del self.moving[lane]
        self.time = then
        self.begin()


class _TimeEncoder:
    """The streams as constants in single-assignment form."""

    def __init__(self, sizes: Sizes, target: Target):
        self.encoding = Encoding()
        self.target = target
        self.clock = _Clock(sizes, target)
        self.count = 0
        self.now = self.define("0")
        self.busy = dict.fromkeys(self.clock.busy, self.now)
        self.cpu = self.now
        self.ends: dict[str, str] = {}

    def define(self, term: str) -> str:
        self.count += 1
        return self.encoding.define(f"t{self.count}", "Int", term)

    def step(self, event: Event) -> None:
        match event.step:
            case Offload(name):
                self.copy("d2h", name, self.target.d2h_bytes_per_s)
            case Prefetch(name):
                self.copy("h2d", name, self.target.h2d_bytes_per_s)
            case Wait(name) if self.clock.shared is not None:
                end = self.clock.shared.end_of(name)
                self.clock.shared.ended[name] = end
                self.now = self.define(f"(wait.now {self.now} {numeral(end)})")
            case Wait(name) if name in self.ends:
                self.now = self.define(f"(wait.now {self.now} {self.ends.pop(name)})")
            case Compute() if event.update is not None:
                takes = event.update.host_time_ns or 0
                self.cpu = self.define(f"(host.end {self.now} {self.cpu} {takes})")
                self.ends.update(dict.fromkeys(in_flight(event), self.cpu))
            case _ if event.cnode is not None:
                self.run(event.cnode, event.execution > 1)
        self.clock.step(event)

    def run(self, c: CNode, again: bool) -> None:
        """The file's times of a cNode, unknown ones as in `semantics.md`."""
        first = c.time_ns or 0
        replay = first
        if c.replay is not None and c.replay.time_ns is not None:
            replay = c.replay.time_ns
        if first or replay:
            form = f"{boolean(again)} {first} {replay}"
            self.now = self.define(f"(run.now {self.now} {form})")

    def copy(self, lane: str, name: str, rate: int | None) -> None:
        if self.target.copy_issue_ns:
            self.now = self.define(f"(issue.now {self.now} {self.target.copy_issue_ns})")
        if self.clock.shared is not None:
            return
        takes = f"(copy.takes {self.clock.sizes.anode[name]} {rate or 0})"
        if self.target.copy_latency_ns:
            takes = f"(+ {self.target.copy_latency_ns} {takes})"
        end = self.define(f"(copy.end {self.now} {self.busy[lane]} {takes})")
        self.busy[lane] = self.ends[name] = end

    def cut(self) -> None:
        """Asks this part for the values of the plain clocks, where the next part begins."""
        known: Mapping[str, int] = {
            self.now: self.clock.now,
            **{self.busy[lane]: self.clock.busy[lane] for lane in self.busy},
            self.cpu: self.clock.cpu,
            **{end: self.clock.ends.get(name, 0) for name, end in self.ends.items()},
        }
        home = self.encoding.part
        self.encoding.cut()
        for constant, value in known.items():
            self.encoding.assume(constant, "Int", numeral(value), home)


def encode_time(events: Iterable[Event], sizes: Sizes, target: Target, claimed_ns: int) -> Encoding:
    """The times along the steps; the goal is that the schedule does not take `claimed_ns`."""
    encoder = _TimeEncoder(sizes, target)
    for event in events:
        encoder.step(event)
        if encoder.encoding.is_full:
            encoder.cut()
    encoder.encoding.ask(f"(not (= {encoder.now} {numeral(claimed_ns)}))")
    return encoder.encoding


def prove_time(
    events: Iterable[Event], sizes: Sizes, target: Target, claimed_ns: int, inquiry: Inquiry
) -> NoModel | Model | OutOfTime:
    """NoModel: the schedule takes `claimed_ns`. Model: it does not."""
    return encode_time(events, sizes, target, claimed_ns).check(inquiry)
