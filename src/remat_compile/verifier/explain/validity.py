"""Counter-examples of obligation 1, on the plan's own text: the steps involved, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from ...ir.diagnostics import Diagnostic, Note
from ...ir.schedule import Schedule
from ..obligations.races import Racing
from ..obligations.validity import Broken, Clause
from ..read.events import Event, reads_of
from ..read.statements import Statements
from .copies import explain_copy, explain_race, independent_clauses, races_by_copy
from .history import Fate, History


def explain_broken(
    statements: Statements,
    schedule: Schedule,
    events: Sequence[Event],
    broken: Broken | None,
    racing: Racing | None = None,
) -> tuple[Diagnostic, ...]:
    """One diagnostic per broken clause and race, in the order of the steps."""
    history = History(statements, schedule, events)
    end = len(events)
    placed: list[tuple[int, Diagnostic]] = []
    for races in () if racing is None else races_by_copy(racing):
        placed.append((races[0].use.event, explain_race(history, races)))
    for clause in () if broken is None else independent_clauses(broken.clauses, racing, end):
        index = end if clause.event is None else clause.event
        placed.append((index, _explain(history, clause)))
    return tuple(diagnostic for _, diagnostic in sorted(placed, key=lambda pair: pair[0]))


def _explain(history: History, clause: Clause) -> Diagnostic:
    if clause.event is None:
        copied = clause.rule in ("copied at end", "on host at end", "not at home")
        at_end = explain_copy if copied else _at_end
        return at_end(history, clause)
    event = history.events[clause.event]
    name, here, span = clause.subject, history.where(event), event.step.span
    match clause.rule:
        case "read":
            return _dead_read(history, event, name)
        case "token":
            why, notes = history.fate(name, event.index)
            message = f"{here} draws again, but its random state %{name} {why}"
            notes += _first_run(history, event, "drawn first here")
            hint = f"keep %{name} until after this step, or this step draws other numbers"
            return Diagnostic("FB0806", message, span, tuple(notes), hint)
        case "stale":
            message = f"{here} reads buffer %{name} after its new contents were written back"
            hint = "run it before the loss, or keep its results instead"
            return Diagnostic("FB0807", message, span, _loss_note(history, event), hint)
        case "free":
            why, notes = history.fate(name, event.index)
            message = f"free of %{name}, which {why}{' already' if why is Fate.FREED else ''}"
            return Diagnostic("FB0808", message, span, tuple(notes), "remove this step")
        case "caller":
            kind = history.statements.anodes[name].kind
            verb = "free of" if event.cnode is None else f"{here} ends"
            message = f"{verb} %{name}, a {kind}: it belongs to the caller"
            return Diagnostic("FB0809", message, span, (), "remove this step")
        case "given":
            handed = {history.statements.alias[r] for r in history.statements.handed}
            what = "a result of the model" if name in handed else "an output of the loss"
            message = f"free of %{name}, {what}: the caller holds it since the loss"
            return Diagnostic(
                "FB0809", message, span, _loss_note(history, event), "remove this step"
            )
        case "rename":
            made = history.last(history.made, name, event.index)
            notes = [] if made is None else [history.note("made here", made)]
            message = f"{here} names a storage %{name}, but another %{name} is alive"
            return Diagnostic("FB0810", message, span, tuple(notes), f"free %{name} before it")
        case "twice":
            notes = list(_loss_note(history, event))
            message = f"the loss {here} runs more than once"
            return Diagnostic("FB0811", message, span, tuple(notes), "remove this step")
        case "pending":
            why, notes = history.fate(name, event.index)
            message = f"at the loss {here}, the buffer contents %{name} to write back {why}"
            hint = "compute its writer before the loss, and free it after"
            return Diagnostic("FB0814", message, span, tuple(notes), hint)
        case "order":
            return _out_of_order(history, event, name)
        case "never" | "undrawn" | "kept" | "left":
            return _at_end(history, clause)
        case "belongs" | "arriving" | "flying" | "hosted" | "unhosted":
            return explain_copy(history, clause)
        case "aged" | "alive" | "no copy" | "copied at end" | "on host at end" | "not at home":
            return explain_copy(history, clause)
        case _:
            assert_never(clause.rule)


def _dead_read(history: History, event: Event, name: str) -> Diagnostic:
    why, notes = history.fate(name, event.index)
    by = name
    if event.cnode is not None:
        by = reads_of(history.statements, event.cnode, event.execution)[name]
    through = "" if by == name else f" (through %{by})"
    match why:
        case Fate.NEVER_MADE:
            code, hint = "FB0803", "compute its writer before this step"
        case Fate.FREED:
            code, hint = "FB0804", "compute its writer again before this step, or free it after"
        case Fate.ENDED:
            code, hint = "FB0805", "run this step before the accumulation, or make it again"
        case _:
            assert_never(why)
    if name in history.statements.homes:
        hint = f"put `prefetch %{name}` and `wait %{name}` before this step"
    message = f"{history.where(event)} reads %{name}{through}, which {why}"
    notes.append(history.note("read here", event.index))
    return Diagnostic(code, message, event.step.span, tuple(notes), hint)


def _first_run(history: History, event: Event, text: str) -> Iterator[Note]:
    if event.cnode is not None:
        yield history.note(text, history.runs[event.cnode.name][0])


def _loss_note(history: History, event: Event) -> tuple[Note, ...]:
    for index in _loss_steps(history):
        if index < event.index:
            return (history.note("the loss is here", index),)
    return ()


def _loss_steps(history: History) -> Iterator[int]:
    for event in history.events:
        if event.cnode is not None and event.cnode.phase == "loss":
            yield event.index


def _out_of_order(history: History, event: Event, earlier: str) -> Diagnostic:
    first = history.next(history.runs, earlier, 0)
    message = (
        f"{history.where(event)} runs first before {earlier}, which comes earlier in the model's "
        "stream of random numbers"
    )
    notes = () if first is None else (history.note(f"{earlier} runs first here", first),)
    hint = f"run {earlier} before it, or they draw other numbers than in the model"
    return Diagnostic("FB0815", message, event.step.span, notes, hint)


def _at_end(history: History, clause: Clause) -> Diagnostic:
    schedule, name = history.schedule, clause.subject
    end = len(history.events)
    if clause.rule == "never":
        message = f"schedule @{schedule.name} never runs the loss"
        return Diagnostic("FB0811", message, schedule.span, (), "add it")
    if clause.rule == "undrawn":
        message = f"{name} draws random numbers and never runs in @{schedule.name}"
        hint = "run it once, or whatever draws later draws other numbers than in the model"
        return Diagnostic("FB0816", message, schedule.span, (), hint)
    if clause.rule == "kept":
        why, notes = history.fate(name, end)
        gone = history.last(history.gone, name, end)
        span = schedule.span if gone is None else history.events[gone].step.span
        what = history.statements.kept[name]
        message = f"%{name} ({what}) is not there at the end of @{schedule.name}: it {why}"
        hint = "compute its writer, and do not free it after"
        return Diagnostic("FB0812", message, span, tuple(notes), hint)
    made = history.last(history.made, name, end)
    span = schedule.span if made is None else history.events[made].step.span
    notes = [] if made is None else [history.note("made here, and not freed after", made)]
    message = f"%{name} is left behind at the end of @{schedule.name}"
    return Diagnostic(
        "FB0813", message, span, tuple(notes), f"add `free %{name}` after its last use"
    )
