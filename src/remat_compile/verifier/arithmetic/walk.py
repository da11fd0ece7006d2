"""The bytes of every step by plain arithmetic: what z3 is asked about, and not an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ...ir.graph import CALLER_KINDS
from ..read.events import Event
from ..read.sizes import Sizes
from ..read.statements import Statements

BESIDE_ACTIVATIONS = CALLER_KINDS | {"param_grad", "updated"}
"""The kinds that an activation budget leaves out."""


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes during a step: all that the device holds, the activations among them, and the
    copies on the host."""

    device: int
    activation: int
    host: int = 0

    @property
    def all(self) -> tuple[int, int, int]:
        return self.device, self.activation, self.host


def counted(statements: Statements, name: str) -> Literal["act", "held"]:
    """The sum that counts an aNode: of activations, or of what an activation budget leaves out."""
    return "held" if statements.anodes[name].kind in BESIDE_ACTIVATIONS else "act"


class Alive:
    """The storage on the device along the steps; at first the caller's."""

    def __init__(self, statements: Statements):
        self.caller = statements.caller
        self.names = set(statements.caller)

    def after(self, event: Event) -> Iterator[tuple[str, int]]:
        """The storages that a step makes alive (1) or ends (-1), by name."""
        for name, _ in event.renames:
            if name in self.names:
                self.names.remove(name)
                yield name, -1
        for name in (*event.makes, *(named for _, named in event.renames)):
            if name not in self.names:
                self.names.add(name)
                yield name, 1
        for name in event.gives_back:
            if name in self.names and name not in self.caller:
                self.names.remove(name)
                yield name, -1


def walk(statements: Statements, events: Iterable[Event], sizes: Sizes) -> dict[int, StepBytes]:
    """The bytes during every step that takes some, by plain arithmetic: to try, not to trust."""
    during: dict[int, StepBytes] = {}
    host = sizes.existing_host + sum(sizes.anode[name] for name in statements.homes)
    act, held = 0, sizes.existing + sum(sizes.anode[name] for name in statements.caller)
    alive = Alive(statements)
    for event in events:
        host += sum(sizes.anode[name] for name in event.to_host)
        if event.takes or event.to_host:
            extra = _transient(statements, sizes, event)
            during[event.index] = StepBytes(act + held + extra.device, act + extra.activation, host)
        host -= sum(sizes.anode[name] for name in event.off_host)
        if event.update is not None:
            host += sum(sizes.anode[b] - sizes.anode[a] for a, b in event.takes_over)
        for name, sign in alive.after(event):
            if counted(statements, name) == "held":
                held += sign * sizes.anode[name]
            else:
                act += sign * sizes.anode[name]
        if event.renames:
            before = during[event.index]
            most = max(before.device, act + held), max(before.activation, act)
            during[event.index] = StepBytes(*most, host)
    return during


def _transient(statements: Statements, sizes: Sizes, event: Event) -> StepBytes:
    """The bytes that a step takes beside those alive before it: its results and its workspace."""
    workspace = 0
    if event.cnode is not None:
        workspace = sizes.workspace[event.cnode.name][event.execution > 1]
    taken = [(sizes.anode[name], statements.anodes[name].kind) for name in event.makes]
    activation = sum(size for size, kind in taken if kind not in BESIDE_ACTIVATIONS)
    return StepBytes(workspace + sum(size for size, _ in taken), workspace + activation)


def peaks(during: Mapping[int, StepBytes]) -> StepBytes:
    """The peaks of a walk."""
    bytes_ = during.values()
    return StepBytes(
        max((b.device for b in bytes_), default=0),
        max((b.activation for b in bytes_), default=0),
        max((b.host for b in bytes_), default=0),
    )
