"""Counter-examples of memory, on the plan's own text: the values that fill a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from ...ir.diagnostics import Diagnostic, Note
from ...ir.program import Budget, Target
from ...ir.schedule import Schedule
from ..arithmetic.walk import BESIDE_ACTIVATIONS, StepBytes
from ..obligations.memory import Excess
from ..read.events import Event, alive_before
from ..read.sizes import Sizes
from ..read.statements import Statements
from .history import History

MOST_PEAKS = 8
MOST_OWNERS = 10


def explain_excess(
    statements: Statements,
    schedule: Schedule,
    events: list[Event],
    sizes: Sizes,
    excess: Excess,
    budgets: Sequence[Budget],
    at: str,
    target: Target,
) -> tuple[Diagnostic, ...]:
    """Per broken budget, the worst step of each stretch of steps that exceed it, in order.

    `at` says at which sizes, as in ` at b = 8`. Past `MOST_PEAKS` stretches only the
    worst ones are shown, and the last diagnostic counts the others.
    """
    history = History(statements, schedule, events)
    wanted: dict[int, list[_Peak]] = defaultdict(list)
    for budget in budgets:
        peaks = _peaks(excess.during, budget)
        shown = sorted(peaks[:MOST_PEAKS])
        for index in shown:
            count = _bytes_of(excess.during[index], budget)
            others = len(peaks) - len(shown) if index == shown[-1] else 0
            memory = target.memory_bytes
            of = target.name if memory is not None and budget == Budget(memory) else None
            wanted[index].append(_Peak(budget, count, others, at, of))
    diagnostics = []
    for event, alive in zip(events, alive_before(statements, events), strict=True):
        for peak in wanted.get(event.index, ()):
            owners = sorted(
                _owners(history, sizes, event, alive, peak.budget), key=lambda o: -o.bytes
            )
            diagnostics.append(_describe(history, event, owners, peak))
    return tuple(diagnostics)


@dataclass(frozen=True, slots=True)
class _Peak:
    """`count` bytes for `budget` at a step; `others` such stretches are not shown. `target` is
    the device whose memory the budget is, where it is one's."""

    budget: Budget
    count: int
    others: int
    at: str
    target: str | None


@dataclass(frozen=True, slots=True)
class _Owner:
    bytes: int
    what: str
    made: Event | None


def _bytes_of(during: StepBytes, budget: Budget) -> int:
    match budget.kind:
        case "device":
            return during.device
        case "activation":
            return during.activation
        case "host":
            return during.host
        case _:
            assert_never(budget.kind)


def _peaks(during: Mapping[int, StepBytes], budget: Budget) -> list[int]:
    """The worst step of each stretch of computations above the budget, worst first."""
    peaks: list[int] = []
    inside = False
    for index in sorted(during):
        size = _bytes_of(during[index], budget)
        if size <= budget.bytes:
            inside = False
        elif not inside:
            peaks.append(index)
            inside = True
        elif size > _bytes_of(during[peaks[-1]], budget):
            peaks[-1] = index
    return sorted(peaks, key=lambda index: -_bytes_of(during[index], budget))


def _owners(
    history: History,
    sizes: Sizes,
    event: Event,
    alive: Mapping[str, Event | None],
    budget: Budget,
) -> Iterator[_Owner]:
    """Everything that a budget counts during a step; what the caller holds as one."""
    anodes = history.statements.anodes
    if budget.kind == "host":
        for name, copied in _on_host(history, event).items():
            yield _Owner(sizes.anode[name], f"the copy of %{name} ({anodes[name].kind})", copied)
        homes = history.statements.homes
        at_home = sizes.existing_host + sum(sizes.anode[name] for name in homes)
        yield _Owner(at_home, f"what is there between two steps ({len(homes)} tensors)", None)
        return
    device = budget.kind == "device"
    held = [sizes.anode[name] for name, made in alive.items() if made is None]
    if device:
        yield _Owner(sum(held), f"what the caller holds ({len(held)} tensors)", None)
        yield _Owner(sizes.existing, "the gradients that the caller holds already", None)

    def counted(name: str) -> bool:
        return device or anodes[name].kind not in BESIDE_ACTIVATIONS

    for name, made in alive.items():
        if made is not None and counted(name):
            yield _Owner(sizes.anode[name], f"%{name} ({anodes[name].kind})", made)
    for name in event.makes:
        if counted(name):
            again = ", a second one, dropped after the step" if name in alive else ""
            yield _Owner(sizes.anode[name], f"%{name} ({anodes[name].kind}{again})", event)
    if event.cnode is not None:
        workspace = sizes.workspace[event.cnode.name][0 if event.execution == 1 else 1]
        yield _Owner(workspace, "workspace of the step", event)


def _on_host(history: History, event: Event) -> dict[str, Event]:
    """The copies that the host holds during a step, each with the step that made it."""
    copies: dict[str, Event] = {}
    for earlier in history.events[: event.index]:
        for name in earlier.to_host:
            copies[name] = earlier
        for name in earlier.off_host:
            copies.pop(name, None)
    for name in event.to_host:
        copies[name] = event
    return copies


_CODES = {
    "device": ("FB0820", ""),
    "activation": ("FB0821", " of activations"),
    "host": ("FB0863", " on the host"),
}


def _describe(history: History, event: Event, owners: list[_Owner], peak: _Peak) -> Diagnostic:
    code, where = _CODES[peak.budget.kind]
    limit = peak.budget.bytes
    bound = "the budget of" if peak.target is None else f'the target "{peak.target}" has:'
    message = (
        f"{history.where(event)} takes {_human(peak.count)}{where}{peak.at}: "
        f"{peak.count - limit} bytes more than {bound} {_human(limit)}"
    )
    owners = [owner for owner in owners if owner.bytes]
    notes = [_note(history, event, owner) for owner in owners[:MOST_OWNERS]]
    if rest := owners[MOST_OWNERS:]:
        total = sum(owner.bytes for owner in rest)
        notes.append(Note(f"{_human(total)}: {len(rest)} smaller tensors"))
    if peak.others:
        notes.append(Note(f"{peak.others} other stretches of steps exceed the budget by less"))
    hint = "free some of these before this step and make them again after, or raise the budget"
    if peak.target is not None:
        code, hint = "FB0826", "plan for a budget within it, or for another target"
    return Diagnostic(code, message, event.step.span, tuple(notes), hint)


def _note(history: History, event: Event, owner: _Owner) -> Note:
    text = f"{_human(owner.bytes)}: {owner.what}"
    if owner.made is None:
        return Note(text)
    if owner.made is event:
        return Note(f"{text}, made by this step", event.step.span)
    return Note(f"{text}, made by {history.where(owner.made)}", owner.made.step.span)


def _human(count: int) -> str:
    """`16777216 bytes (16 MiB)`, rounded to four digits."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count} bytes ({count / size:.4g} {unit})"
    return f"{count} bytes"
