"""Copies that go wrong, told on the plan's own text: which two steps race, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..ir.diagnostics import Diagnostic, Note
from ..ir.schedule import Compute, HostFree, Offload, Prefetch, Wait
from .races import Race, Racing
from .validity import Clause

if TYPE_CHECKING:
    from .explain import History

__all__ = ["distinct", "explain_copy", "explain_race", "sifted"]

LEADS_TO: dict[str, frozenset[str]] = {
    "read": frozenset(("arriving",)),
    "arriving": frozenset(("flying",)),
    "unhosted": frozenset(("aged",)),
    "lent": frozenset(("read",)),
}
"""A clause that is broken says enough: these others about the same step and aNode follow."""


def sifted(clauses: Iterable[Clause], racing: Racing | None) -> tuple[Clause, ...]:
    """Without clauses that another clause, or a race of the same step and aNode, tells better."""
    clauses = tuple(clauses)
    told: dict[tuple[int | None, str], set[str]] = {}
    for clause in clauses:
        told.setdefault((clause.event, clause.subject), set()).update(LEADS_TO.get(clause.rule, ()))
    for race in racing.races if racing is not None else ():
        told.setdefault((race.use.event, race.use.anode), set()).update(("arriving", "flying"))
    return tuple(c for c in clauses if c.rule not in told[c.event, c.subject])


def distinct(racing: Racing) -> tuple[Race, ...]:
    """One race for each step, side and copy: the first thing that the step does is enough."""
    found = {(r.use.event, r.use.anode, r.use.side, r.copy.issued): r for r in racing.races[::-1]}
    return tuple(found.values())[::-1]


def explain_race(history: History, race: Race) -> Diagnostic:
    """FB0860 for a read of device bytes that come too late, FB0861 for device bytes that are
    written or given back too early, FB0862 for bytes of the host."""
    use, copy = race.use, race.copy
    word = _word(history, copy.issued)
    name = f"%{copy.anode}"
    at_end = use.event >= len(history.events)
    where = history.events[copy.issued if at_end else use.event]
    code = "FB0862" if use.side == "host" else "FB0860" if use.act == "read" else "FB0861"
    still = "still reads it" if race.act == "read" else "still writes it"
    late = f"before its {word} has written it"
    after = late if (race.act, use.act) == ("write", "read") else f"while its {word} {still}"
    message = f"{_who(history, race)} may {_does(history, race)} {after}"
    return Diagnostic(code, message, where.step.span, _notes(history, race), _hint(race, name))


def _who(history: History, race: Race) -> str:
    if race.use.event >= len(history.events):
        return "after the last step the caller"
    event = history.events[race.use.event]
    if race.use.copy is not None:
        at = f" (step {event.index + 1})" if event.step.span is None else ""
        return f"the {_word(history, event.index)} of %{race.use.anode}{at}"
    return history.where(event)


def _does(history: History, race: Race) -> str:
    use, name = race.use, f"%{race.use.anode}"
    if use.side == "host":
        verb = {"read": "read", "write": "overwrite", "end": "give back"}[use.act]
        return f"{verb} the host copy of {name}"
    if use.act == "read":
        return f"read {name}"
    if use.act == "end" and history.events[use.event].ends != use.anode:
        return f"give back the bytes of {name}"
    return f"write into {name}"


def _notes(history: History, race: Race) -> tuple[Note, ...]:
    use, copy = race.use, race.copy
    word = _word(history, copy.issued)
    notes = [history.note(f"the {word} begins here, and takes as long as it takes", copy.issued)]
    if use.event < len(history.events):
        notes.append(history.note("nothing makes this step wait for its end", use.event))
    taker = _taker(history, race)
    then = "the caller reads" if use.event >= len(history.events) else _name(history, use.event)
    if taker is not None:
        notes.append(history.note("this step may be given the same bytes", taker))
        then += f"; {_name(history, taker)} writes its results there"
    order = f"it goes wrong in this order: {_name(history, copy.issued)} begins; {then}; "
    notes.append(Note(f"{order}the copy of %{copy.anode} ends"))
    if copy.waited is None:
        notes.append(Note(f"no step waits for the {word} of %{copy.anode}"))
    elif copy.waited > use.event:
        notes.append(history.note("its wait comes only here", copy.waited))
    return tuple(notes)


def _taker(history: History, race: Race) -> int | None:
    """The next step that takes memory, where a step gives bytes back that a copy still uses."""
    use, copy = race.use, race.copy
    if use.act != "end" or use.event >= len(history.events):
        return None
    stop = len(history.events) if copy.waited is None else copy.waited
    for event in history.events[use.event + 1 : stop]:
        if event.makes if use.side == "device" else isinstance(event.step, Offload):
            return event.index
    return None


def _hint(race: Race, name: str) -> str:
    if race.copy.waited is None:
        return f"put `wait {name}` before it"
    return f"move `wait {name}` before it"


def _word(history: History, index: int) -> str:
    return "offload" if isinstance(history.events[index].step, Offload) else "prefetch"


def _name(history: History, index: int) -> str:
    event = history.events[index]
    return event.name if event.step.span is not None else f"{event.name} (step {index + 1})"


def explain_copy(history: History, clause: Clause) -> Diagnostic:
    """A broken clause of validity about copies."""
    code, message, hint = _said(history, clause)
    end = len(history.events)
    index = end if clause.event is None else clause.event
    span = history.schedule.span if index == end else history.events[index].step.span
    return Diagnostic(code, message, span, tuple(_story(history, clause, index)), hint)


def _said(history: History, clause: Clause) -> tuple[str, str, str]:
    """Code, message and hint."""
    name = f"%{clause.subject}"
    schedule = history.schedule.name
    here = "" if clause.event is None else history.where(history.events[clause.event])
    match clause.rule:
        case "lent":
            kind = history.statements.anodes[clause.subject].kind
            message = f"{here}, a {kind}: it belongs to the caller"
            return "FB0859", message, "offload what the step makes itself"
        case "arriving":
            message = f"{here} reads {name}, whose prefetch is waited for only later"
            return "FB0850", message, f"put `wait {name}` before it"
        case "flying":
            message = f"{here} needs {name} at rest, and a copy of it is in flight"
            return "FB0851", message, f"put `wait {name}` before it"
        case "unhosted":
            message = f"{here}: the host holds no copy of {name}"
            prefetch = isinstance(history.events[clause.event or 0].step, Prefetch)
            hint = f"put `offload {name}` and `wait {name}` before it" if prefetch else ""
            return "FB0852", message, hint or "remove this step"
        case "aged":
            message = (
                f"{here}: the host copy of {name} is of before an accumulation, so it is stale"
            )
            return "FB0853", message, "compute it again instead"
        case "landed":
            return "FB0854", f"{here}: {name} is alive on the device already", "remove this step"
        case "hosted":
            message = f"{here}: the host holds a copy of {name} already"
            return "FB0855", message, f"put `hostfree {name}` before it"
        case "idle":
            return "FB0856", f"{here}: no copy of {name} is in flight", "remove this step"
        case "aloft":
            message = f"a copy of {name} is in flight at the end of @{schedule}"
            return "FB0857", message, f"add `wait {name}`"
        case "ashore":
            message = f"the host copy of {name} is left at the end of @{schedule}"
            return "FB0858", message, f"add `hostfree {name}` after its last prefetch"
        case _:
            raise AssertionError(clause.rule)


def _story(history: History, clause: Clause, before: int) -> Iterator[Note]:
    """The last step that issued a copy of the aNode, and what ended or aged that copy."""
    name = clause.subject
    issued = gone = aged = made = None
    for event in history.events[:before]:
        match event.step:
            case Offload(anode) | Prefetch(anode) if anode == name:
                issued = event.index
                made = event.index if isinstance(event.step, Prefetch) else made
            case HostFree(anode) | Wait(anode) if anode == name:
                gone = event.index
            case Compute() if event.ends == name:
                aged = event.index
        if name in event.makes:
            made = event.index
    if clause.rule == "landed" and made is not None:
        yield history.note("made here", made)
    if clause.rule in ("lent", "landed"):
        return
    if issued is not None:
        yield history.note(f"its {_word(history, issued)} is issued here", issued)
    if clause.rule == "unhosted" and isinstance(_step(history, gone), HostFree):
        yield history.note("the host copy is given back here", gone or 0)
    if clause.rule == "idle" and isinstance(_step(history, gone), Wait):
        yield history.note("and waited for here", gone or 0)
    if clause.rule == "aged" and aged is not None:
        yield history.note(f"it ends here: its storage is %{history.events[aged].becomes}", aged)


def _step(history: History, index: int | None) -> object:
    return None if index is None else history.events[index].step
