"""Counter-examples of copies, on the plan's own text: the two steps that race, and the order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...ir.diagnostics import Diagnostic, Note
from ...ir.schedule import HostFree, Offload, Prefetch, Wait
from ..obligations.races import Race, Racing
from ..obligations.validity import Clause

if TYPE_CHECKING:
    from .history import History

IMPLIES: dict[str, frozenset[str]] = {
    "read": frozenset(("arriving",)),
    "arriving": frozenset(("flying",)),
    "unhosted": frozenset(("aged",)),
    "belongs": frozenset(("read",)),
}
"""By a broken rule: the rules that are then broken for the same step and aNode too."""


def independent_clauses(
    clauses: Iterable[Clause], racing: Racing | None, end: int
) -> tuple[Clause, ...]:
    """Without clauses that another clause, or a race of the same step and aNode, implies.

    `end` is the number of steps.
    """
    clauses = tuple(clauses)
    implied: dict[tuple[int | None, str], set[str]] = {}
    for clause in clauses:
        implied.setdefault((clause.event, clause.subject), set()).update(
            IMPLIES.get(clause.rule, ())
        )
    for race in racing.races if racing is not None else ():
        event = None if race.use.event == end else race.use.event
        rules = ("arriving", "flying", "copied at end")
        implied.setdefault((event, race.use.anode), set()).update(rules)
    return tuple(c for c in clauses if c.rule not in implied[c.event, c.subject])


def races_by_copy(racing: Racing) -> tuple[tuple[Race, ...], ...]:
    """The races with the same copy on the same side: one `wait` is missing, in one place."""
    by_copy: dict[tuple[int, str], dict[int, Race]] = {}
    for race in racing.races:
        steps = by_copy.setdefault((race.copy.issued, race.use.side), {})
        steps.setdefault(race.use.event, race)
    return tuple(tuple(steps.values()) for steps in by_copy.values())


def explain_race(history: History, races: tuple[Race, ...]) -> Diagnostic:
    """FB0860 for a read of device bytes that comes too early, FB0861 for device bytes that
    are written or given back too early, FB0862 for bytes of the host. All `races` are with one
    copy; the first is blamed."""
    use, copy = races[0].use, races[0].copy
    code = "FB0862" if use.side == "host" else "FB0860" if use.act == "read" else "FB0861"
    at_end = use.event >= len(history.events)
    where = history.events[copy.issued if at_end else use.event]
    message = f"{_who(history, races[0])} may {_does(history, races[0])}"
    hint = "move" if copy.waited is not None else "put"
    hint += f" `wait %{copy.anode}` " + ("before the end" if at_end else "before it")
    return Diagnostic(code, message, where.step.span, _notes(history, races), hint)


def _who(history: History, race: Race) -> str:
    if race.use.event >= len(history.events):
        return "after the last step the caller"
    event = history.events[race.use.event]
    if race.use.copy is not None and event.update is None:
        at = f" (step {history.first + event.index})" if event.step.span is None else ""
        return f"the {_word(history, event.index)} of %{race.use.anode}{at}"
    return history.where(event)


def _does(history: History, race: Race) -> str:
    """The use's access, and the copy's access meanwhile."""
    use, name = race.use, f"%{race.use.anode}"
    word = _word(history, race.copy.issued)
    host = use.side == "host"
    what = f"the host copy of {name}" if host else name
    gives = use.act == "end" and (host or use.anode not in dict(history.events[use.event].renames))
    does = f"give back {what}" if host else f"give back the bytes of {name}"
    if not gives:
        does = f"read {what}" if use.act == "read" else f"write into {what}"
    still = "reads" if race.act == "read" else "writes"
    if (race.act, use.act) == ("write", "read"):
        return f"{does} before its {word} has written it"
    return f"{does} while its {word} still {still} {'it' if host or not gives else 'them'}"


def _notes(history: History, races: tuple[Race, ...]) -> tuple[Note, ...]:
    race = races[0]
    use, copy = race.use, race.copy
    word = _word(history, copy.issued)
    notes = [history.note(f"the {word} begins here, and takes as long as it takes", copy.issued)]
    taker = _taker(history, race)
    then = "the caller reads" if use.event >= len(history.events) else _name(history, use.event)
    if taker is not None:
        notes.append(history.note("this step may be given the same bytes", taker))
        then += f"; {_name(history, taker)} writes there"
    order = f"it goes wrong in this order: {_name(history, copy.issued)} begins; {then}; "
    notes.append(Note(f"{order}the copy of %{copy.anode} ends"))
    for other in races[1:]:
        if other.use.event < len(history.events):
            notes.append(history.note("the same for this step", other.use.event))
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
    steps = history.takes[use.side]
    at = bisect_right(steps, use.event)
    return steps[at] if at < len(steps) and steps[at] < stop else None


def _word(history: History, index: int) -> str:
    event = history.events[index]
    if event.update is not None:
        return "update"
    return "offload" if isinstance(event.step, Offload) else "prefetch"


def _name(history: History, index: int) -> str:
    event = history.events[index]
    return (
        event.name
        if event.step.span is not None
        else f"{event.name} (step {history.first + index})"
    )


def explain_copy(history: History, clause: Clause) -> Diagnostic:
    """A broken clause of validity about copies."""
    code, message, hint = _text(history, clause)
    end = len(history.events)
    index = end if clause.event is None else clause.event
    span = history.schedule.span if index == end else history.events[index].step.span
    return Diagnostic(code, message, span, tuple(_copy_notes(history, clause, index)), hint)


_TEXTS = {
    "belongs": (
        "FB0859", "{here}, a {kind}: it belongs to the caller",
        "offload and give back what the step makes itself",
    ),
    "arriving": (
        "FB0850", "{here} reads {name}, whose prefetch is waited for only later",
        "put `wait {name}` before it",
    ),
    "flying": (
        "FB0851", "{here} needs {name} at rest, and a copy of it is in flight",
        "put `wait {name}` before it",
    ),
    "unhosted": ("FB0852", "{here}: the host holds no copy of {name}", "remove this step"),
    "aged": (
        "FB0853",
        "{here}: the host copy of {name} is of before its storage was written, so it is stale",
        "compute it again instead",
    ),
    "alive": ("FB0854", "{here}: {name} is alive on the device already", "remove this step"),
    "hosted": (
        "FB0855", "{here}: the host holds a copy of {name} already",
        "put `hostfree {name}` before it",
    ),
    "no copy": ("FB0856", "{here}: no copy of {name} is in flight", "remove this step"),
    "copied at end": (
        "FB0857", "a copy of {name} is in flight at the end of {plan}", "add `wait {name}`"
    ),
    "on host at end": (
        "FB0858", "the host copy of {name} is left at the end of {plan}",
        "add `hostfree {name}` after its last prefetch",
    ),
    "not at home": (
        "FB0819", "{name} is not on the host, with its newest contents, at the end of {plan}",
        "add `offload {name}` and `wait {name}` after its writer",
    ),
}  # fmt: skip
"""Code, message and hint per rule."""


def _text(history: History, clause: Clause) -> tuple[str, str, str]:
    """Code, message and hint."""
    event = None if clause.event is None else history.events[clause.event]
    words = {
        "name": f"%{clause.subject}",
        "plan": f"@{history.schedule.name}",
        "here": "" if event is None else history.where(event),
        "kind": history.statements.anodes[clause.subject].kind,
    }
    code, message, hint = _TEXTS[clause.rule]
    if clause.rule == "unhosted" and event is not None and isinstance(event.step, Prefetch):
        hint = "put `offload {name}` and `wait {name}` before it"
    return code, message.format(**words), hint.format(**words)


def _copy_notes(history: History, clause: Clause, before: int) -> Iterator[Note]:
    """The last step that issued a copy of the aNode, and what ended or aged that copy."""
    name = clause.subject
    issued = gone = None
    for index in history.copied[name]:
        if index >= before:
            break
        match history.events[index].step:
            case Offload():
                issued = index
            case Prefetch() if clause.rule != "on host at end":
                issued = index
            case HostFree() | Wait():
                gone = index
    made = history.last(history.made, name, before)
    aged = history.last(history.gone, name, before)
    if clause.rule == "alive" and made is not None:
        yield history.note("made here", made)
    if clause.rule in ("belongs", "alive"):
        return
    if issued is not None:
        yield history.note(f"its {_word(history, issued)} is issued here", issued)
    if clause.rule == "unhosted" and isinstance(_step(history, gone), HostFree):
        yield history.note("the host copy is given back here", gone or 0)
    if clause.rule == "no copy" and isinstance(_step(history, gone), Wait):
        yield history.note("and waited for here", gone or 0)
    if clause.rule == "aged" and aged is not None:
        now = dict(history.events[aged].renames).get(name)
        yield history.note(f"it ends here: its storage is %{now}", aged)


def _step(history: History, index: int | None) -> object:
    return None if index is None else history.events[index].step
