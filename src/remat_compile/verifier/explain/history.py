"""The history of each aNode over the steps of a schedule, to point at in a message."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum

from ...ir.diagnostics import Note
from ...ir.schedule import Compute, CopyStep, Schedule
from ..read.events import Event
from ..read.statements import Statements


class Fate(StrEnum):
    """Why an aNode is not alive, as a message says it."""

    NEVER_MADE = "was never made"
    FREED = "was freed"
    ENDED = "has ended"


class History:
    """The events of each aNode, in order, to point at."""

    def __init__(self, statements: Statements, schedule: Schedule, events: Sequence[Event]):
        self.statements = statements
        self.schedule = schedule
        self.events = events
        self.first = 1 + len(schedule.homes)
        """The number of the first event among the steps: what is at home stands before it."""
        self.made: dict[str, list[int]] = defaultdict(list)
        self.gone: dict[str, list[int]] = defaultdict(list)
        self.runs: dict[str, list[int]] = defaultdict(list)
        self.copied: dict[str, list[int]] = defaultdict(list)
        self.takes: dict[str, list[int]] = {"device": [], "host": []}
        for event in events:
            for name in (*event.makes, *(named for _, named in event.renames)):
                self.made[name].append(event.index)
            for name in (*event.gives_back, *(ended for ended, _ in event.renames)):
                self.gone[name].append(event.index)
            if isinstance(event.step, CopyStep):
                self.copied[event.step.anode].append(event.index)
            for side, taken in (("device", event.makes), ("host", event.to_host)):
                if taken:
                    self.takes[side].append(event.index)
            if event.cnode is not None:
                self.runs[event.cnode.name].append(event.index)

    def last(self, where: Mapping[str, list[int]], name: str, before: int) -> int | None:
        """The last of the steps `where[name]` before step `before`."""
        steps = where.get(name, [])
        at = bisect_left(steps, before)
        return steps[at - 1] if at else None

    def next(self, where: Mapping[str, list[int]], name: str, start: int) -> int | None:
        steps = where.get(name, [])
        at = bisect_left(steps, start)
        return steps[at] if at < len(steps) else None

    def note(self, text: str, index: int) -> Note:
        """A note at a step; it tells the number of a step that has no place in a text."""
        event = self.events[index]
        if event.step.span is None:
            text = f"{text}: step {self.first + index}, {event.name}"
        return Note(text, event.step.span)

    def where(self, event: Event) -> str:
        """The name of a step in messages: cNode, model line, and its number if it has no span."""
        words = [event.name]
        if event.cnode is not None and event.cnode.loc is not None and str(event.cnode.loc):
            words.append(f"({event.cnode.loc})")
        if event.step.span is None:
            words.append(f"at step {self.first + event.index}")
        return " ".join(words)

    def fate(self, name: str, before: int) -> tuple[Fate, list[Note]]:
        """Why `name` is not alive before a step, with the places."""
        made = self.last(self.made, name, before)
        gone = self.last(self.gone, name, before)
        later = self.next(self.made, name, before)
        notes = [] if made is None else [self.note(f"%{name} is made here", made)]
        if gone is not None and (made is None or gone >= made):
            event = self.events[gone]
            if named := dict(event.renames).get(name):
                why = Fate.ENDED
                notes.append(self.note(f"it ends here: its storage is %{named} now", gone))
            else:
                why = Fate.FREED
                nosave = isinstance(event.step, Compute)
                notes.append(self.note("freed here" + (" by nosave" if nosave else ""), gone))
            missing = "never made again"
        else:
            why, missing = Fate.NEVER_MADE, "made by no step"
        writer = self.statements.writer.get(name)
        if later is not None:
            again = " again" if made is not None else ""
            notes.append(self.note(f"made{again} here, too late", later))
        elif writer is None:
            notes.append(Note(f"no cNode writes %{name}"))
        elif writer.token == name and len(self.runs[writer.name]) < 2:
            notes.append(Note(f"{writer.name} runs no second time, so it keeps no random state"))
        else:
            notes.append(Note(f"%{name} is {missing}; its writer is {writer.name}"))
        return why, notes
