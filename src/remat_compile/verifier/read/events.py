"""A schedule as events: the values that every step needs, makes, ends and gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import assert_never

from ...ir.diagnostics import Diagnostic, nearest
from ...ir.graph import UPDATE_OP, CNode
from ...ir.schedule import (
    Compute,
    ElementaryStep,
    Free,
    Home,
    HostFree,
    Offload,
    Prefetch,
    Schedule,
    Step,
    Wait,
)
from .statements import Statements

MOST_HINTS = 20
"""Looking for the nearest name is slow; past so many unknown names it is left out."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step, or one part of it. Names are aNodes (storages), never views.

    `execution` counts the runs of the cNode from 1 (0 for other steps). `needs` is what must be
    alive for the cNode (or an offload) to read it. `token` is the state that
    a later run of a random operator restores. `makes` takes memory; the first of each pair of
    `takes_over` goes on as the second without taking any; `gives_back` is what stops to exist after
    the step. An `update` on the host is no computation of the device: it reads the host copies
    `looks`, and `takes_over` is about storage there.
    """

    index: int
    step: Compute | ElementaryStep
    cnode: CNode | None
    execution: int
    needs: tuple[str, ...]
    token: str | None
    makes: tuple[str, ...]
    takes_over: tuple[tuple[str, str], ...]
    gives_back: tuple[str, ...]
    update: CNode | None = None
    looks: tuple[str, ...] = ()

    @property
    def renames(self) -> tuple[tuple[str, str], ...]:
        """The pairs of `takes_over` on the device."""
        return () if self.update is not None else self.takes_over

    @property
    def takes(self) -> bool:
        """True if the step may take memory on the device while it runs."""
        return self.cnode is not None or bool(self.makes)

    @property
    def to_host(self) -> tuple[str, ...]:
        """The events that take memory on the host."""
        return (self.step.anode,) if isinstance(self.step, Offload) else ()

    @property
    def off_host(self) -> tuple[str, ...]:
        """The events that give back memory on the host."""
        return (self.step.anode,) if isinstance(self.step, HostFree) else ()

    @property
    def name(self) -> str:
        """The name of the step in messages."""
        if isinstance(self.step, Compute):
            return f"{self.step.cnode} on host" if self.step.on_host else self.step.cnode
        return f"{self.step.word} %{self.step.anode}"


def read_homes(statements: Statements, schedule: Schedule) -> Statements | tuple[Diagnostic, ...]:
    """The statements with the homes of a schedule, or the lines that cannot be (FB0818)."""
    homes: dict[str, None] = {}
    wrong: list[Diagnostic] = []
    first = next((i for i, s in enumerate(schedule.steps) if not isinstance(s, Home)), 0)
    for place, step in enumerate(schedule.steps):
        if not isinstance(step, Home) or step.anode not in statements.anodes:
            continue
        name, kind = step.anode, statements.anodes[step.anode].kind
        if place > first:
            why = "stands after another step"
        elif name in homes:
            why = "is said twice"
        elif not statements.may_be_away(name):
            why = f"is about a {kind} that cannot be there between two steps"
        else:
            homes[name] = None
            continue
        message = f"{step.word} %{name} {why}"
        wrong.append(Diagnostic("FB0818", message, step.span, (), "remove this line"))
    return tuple(wrong) or statements.away(homes)


def unfold(statements: Statements, schedule: Schedule) -> list[Event] | tuple[Diagnostic, ...]:
    """The events of a schedule, or every step that names nothing (FB0801)."""
    if unknown := tuple(_unknown(statements, schedule)):
        return unknown
    total = Counter(s.cnode for s in schedule.steps if isinstance(s, Compute))
    runs: Counter[str] = Counter()
    events: list[Event] = []
    for index, step in enumerate(chain.from_iterable(map(_parts, schedule.steps))):
        match step:
            case Compute(name, nosave, on_host):
                runs[name] += 1
                c = statements.cnodes[name]
                if on_host:
                    pairs = statements.takes_over.get(name, ())
                    looks = tuple(r for r in statements.needs(c.call) if r not in dict(pairs))
                    given = (0, (), None, (), pairs, (), c, looks)
                    events.append(Event(index, step, None, *given))
                    continue
                events.append(_run(statements, c, index, step, runs[name], total[name], nosave))
            case Free(anode):
                events.append(Event(index, step, None, 0, (), None, (), (), (anode,)))
            case Offload(anode):
                events.append(Event(index, step, None, 0, (anode,), None, (), (), ()))
            case Prefetch(anode):
                events.append(Event(index, step, None, 0, (), None, (anode,), (), ()))
            case Wait() | HostFree():
                events.append(Event(index, step, None, 0, (), None, (), (), ()))
            case _:
                assert_never(step)
    return events


def _parts(step: Step) -> tuple[Compute | ElementaryStep, ...]:
    """The events of a step, as the verifier reads it: the obligations know nothing else."""
    match step:
        case Compute() | Free() | Offload() | Prefetch() | Wait() | HostFree():
            return (step,)
        case Home():  # the statements have it
            return ()
        case _:
            assert_never(step)


def _unknown(statements: Statements, schedule: Schedule) -> Iterator[Diagnostic]:
    hints = 0

    def near(name: str, known: Iterable[str]) -> str:
        nonlocal hints
        hints += 1
        return nearest(name, known) if hints <= MOST_HINTS else ""

    for step in schedule.steps:
        if isinstance(step, Compute) and step.on_host and step.cnode in statements.cnodes:
            if statements.cnodes[step.cnode].call.op != UPDATE_OP or step.nosave:
                message = f"{step.cnode} on host is no update"
                yield Diagnostic("FB0801", message, step.span)
        elif isinstance(step, Compute):
            if (name := step.cnode) not in statements.cnodes:
                message = f"the graph has no cNode {name}.{near(name, statements.cnodes)}"
                yield Diagnostic("FB0801", message, step.span)
        elif (name := step.anode) not in statements.anodes:
            base = statements.alias.get(name)
            why = f" It is a view of %{base}." if base else near(name, statements.anodes)
            yield Diagnostic("FB0801", f"the graph has no aNode %{name}.{why}", step.span)


def _run(
    statements: Statements,
    c: CNode,
    index: int,
    step: Compute,
    execution: int,
    total: int,
    nosave: bool,
) -> Event:
    """The `execution`-th of `total` runs of `c`; later ones take the replay form."""
    form = c if execution == 1 or c.replay is None else c.replay
    needs = tuple(reads_of(statements, c, execution))
    if pairs := statements.takes_over.get(c.name):
        return Event(index, step, c, execution, needs, None, (), pairs, ())
    makes = tuple(name for name in form.writes if name is not None)
    if c.token is not None and execution == 1 and total > 1:
        makes = (*makes, c.token)
    dropped: tuple[str, ...] = ()
    if nosave:
        dropped = tuple(name for name in makes if statements.anodes[name].kind == "phantom")
    token = c.token if execution > 1 else None
    return Event(index, step, c, execution, needs, token, makes, (), dropped)


def reads_of(statements: Statements, c: CNode, execution: int) -> dict[str, str]:
    """The storages that must be alive for an execution of `c`, each with the name in the read."""
    form = c if execution == 1 or c.replay is None else c.replay
    needs = statements.needs(form.call)
    if c.phase == "loss":
        for name in statements.handed:
            for storage in statements.storages(name):
                needs.setdefault(storage, name)
    return needs


def alive_before(statements: Statements, events: list[Event]) -> Iterator[dict[str, Event | None]]:
    """The storages alive before each event, with the event that made each (None: the caller's).

    A plain walk, for explanations and for guessing a bound; nothing is proven by it. The
    yielded dictionary is changed when the iteration goes on.
    """
    alive: dict[str, Event | None] = dict.fromkeys(statements.caller)
    for event in events:
        yield alive
        for name in event.makes:
            alive.setdefault(name, event)
        for ended, named in event.renames:
            alive.setdefault(named, event)
            alive.pop(ended, None)
        for name in event.gives_back:
            if name not in statements.caller:
                alive.pop(name, None)
