"""Obligation 2: device and activation bytes within a bound at every step.

Stands on obligation 1. Bytes are prefix sums: `act` counts activations, `held` the rest
(what the caller holds and the gradients of parameters), in single-assignment form. A
result that is still alive when its cNode runs again is made beside the old one and
dropped, so what a step adds to the sum depends on what is alive, which z3 sees too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..ir.graph import CALLER_KINDS
from .events import Event
from .sizes import Sizes
from .smt import Deadline, Encoding, Facts, Model, NoModel, OutOfTime, numeral
from .statements import Statements
from .validity import advance, start

__all__ = ["Bytes", "Excess", "Limits", "encode_memory", "guess", "prove_memory"]

BESIDE_ACTIVATIONS = CALLER_KINDS | {"param_grad"}
"""The kinds that an activation budget leaves out."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes during a step: all that the device holds, and the activations among them."""

    device: int
    activation: int


@dataclass(frozen=True)
class Limits:
    """Budgets in bytes; None where there is none."""

    device: int | None
    activation: int | None

    def allow(self, peak: Bytes) -> bool:
        return (self.device is None or peak.device <= self.device) and (
            self.activation is None or peak.activation <= self.activation
        )


@dataclass(frozen=True)
class Excess:
    """The bytes during every counted step of a schedule that does not hold its limits."""

    during: dict[int, Bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """During step `event`: the constants that hold the sums, and what comes on top."""

    event: int
    act: str
    held: str
    transient: Bytes


class _Encoder:
    def __init__(self, statements: Statements, sizes: Sizes):
        self.statements = statements
        self.sizes = sizes
        self.encoding = Encoding()
        self.facts = Facts(self.encoding)
        self.rows: list[Row] = []
        self.count = 0
        start(self.facts, statements)
        held = sizes.existing + sum(sizes.anode[name] for name in statements.caller)
        self.act = self.encoding.define("act0", "Int", "0")
        self.held = self.encoding.define("held0", "Int", str(held))

    def is_activation(self, name: str) -> bool:
        return self.statements.anodes[name].kind not in BESIDE_ACTIVATIONS

    def step(self, event: Event) -> None:
        if event.cnode is not None:
            self.rows.append(Row(event.index, self.act, self.held, self.transient(event)))
        changes = list(self.changes(event))
        self.act = self.next(self.act, "act", [term for name, term in changes
                                               if self.is_activation(name)])  # fmt: skip
        self.held = self.next(self.held, "held", [term for name, term in changes
                                                  if not self.is_activation(name)])  # fmt: skip
        advance(self.facts, self.statements, event)
        if event.ends is not None:
            # The storage may count as another class under its new name.
            self.rows.append(Row(event.index, self.act, self.held, Bytes(0, 0)))

    def transient(self, event: Event) -> Bytes:
        """What a step takes while it runs: its results and its workspace."""
        return transient(self.statements, self.sizes, event)

    def changes(self, event: Event) -> Iterator[tuple[str, str]]:
        """Per aNode, the term that a step adds to the sum that counts it."""
        size = self.sizes.anode
        for name in event.makes:
            if size[name]:
                yield name, f"(ite {self.facts.now('alive', name)} 0 {size[name]})"
        if event.ends is not None and event.becomes is not None:
            old, new = event.ends, event.becomes
            if size[old] and self.is_activation(old) != self.is_activation(new):
                yield old, f"(- {size[old]})"
                yield new, f"{size[new]}"
        for name in event.gives_back:
            if size[name]:
                yield name, f"(- {size[name]})"

    def next(self, now: str, stem: str, terms: list[str]) -> str:
        if not terms:
            return now
        self.count += 1
        return self.encoding.define(f"{stem}{self.count}", "Int", f"(+ {now} {' '.join(terms)})")


def transient(statements: Statements, sizes: Sizes, event: Event) -> Bytes:
    """What a step takes beside what is alive before it: its results and its workspace."""
    if event.cnode is None:
        return Bytes(0, 0)
    workspace = sizes.workspace[event.cnode.name][0 if event.execution == 1 else 1]
    taken = [(sizes.anode[name], statements.anodes[name].kind) for name in event.makes]
    activation = sum(size for size, kind in taken if kind not in BESIDE_ACTIVATIONS)
    return Bytes(workspace + sum(size for size, _ in taken), workspace + activation)


def encode_memory(
    statements: Statements, events: Sequence[Event], sizes: Sizes, limit: Bytes
) -> tuple[Encoding, list[Row]]:
    """The definitions of the sums; the goals say that a step exceeds `limit`."""
    encoder = _Encoder(statements, sizes)
    for event in events:
        encoder.step(event)
    goals = encoder.encoding.goals
    device, activation = numeral(limit.device), numeral(limit.activation)
    for row in encoder.rows:
        goals.append(f"(> (+ {row.act} {row.transient.activation}) {activation})")
        goals.append(f"(> (+ {row.act} {row.held} {row.transient.device}) {device})")
    return encoder.encoding, encoder.rows


def guess(statements: Statements, events: list[Event], sizes: Sizes) -> Bytes:
    """The peak by plain arithmetic: a bound to try, not to trust."""
    device = activation = 0
    act, held = 0, sizes.existing + sum(sizes.anode[name] for name in statements.caller)
    alive = set(statements.caller)

    def count(name: str, sign: int) -> None:
        nonlocal act, held
        if statements.anodes[name].kind in BESIDE_ACTIVATIONS:
            held += sign * sizes.anode[name]
        else:
            act += sign * sizes.anode[name]

    for event in events:
        extra = transient(statements, sizes, event)
        device = max(device, act + held + extra.device)
        activation = max(activation, act + extra.activation)
        made = event.makes if event.becomes is None else (event.becomes,)
        gone = event.gives_back if event.ends is None else (event.ends,)
        for name in made:
            if name not in alive:
                alive.add(name)
                count(name, 1)
        for name in gone:
            if name in alive:
                alive.remove(name)
                count(name, -1)
        if event.ends is not None:
            device, activation = max(device, act + held), max(activation, act)
    return Bytes(device, activation)


def prove_memory(
    statements: Statements,
    events: list[Event],
    sizes: Sizes,
    limits: Limits,
    deadline: Deadline,
) -> Bytes | Excess | OutOfTime:
    """The least bound that z3 proves within `limits`, or the steps that exceed them."""
    bound = guess(statements, events, sizes)
    while True:
        tried = bound if limits.allow(bound) else _at_most(bound, limits)
        encoding, rows = encode_memory(statements, events, sizes, tried)
        answer = encoding.check(deadline)
        if isinstance(answer, OutOfTime):
            return answer
        if isinstance(answer, NoModel):
            return tried
        during = _during(rows, answer)
        bound = Bytes(
            max(b.device for b in during.values()), max(b.activation for b in during.values())
        )
        if not limits.allow(bound):
            return Excess(during)


def _at_most(bound: Bytes, limits: Limits) -> Bytes:
    device = bound.device if limits.device is None else min(bound.device, limits.device)
    activation = bound.activation
    if limits.activation is not None:
        activation = min(activation, limits.activation)
    return Bytes(device, activation)


def _during(rows: Sequence[Row], model: Model) -> dict[int, Bytes]:
    found: dict[int, Bytes] = {}
    for row in rows:
        act, held = model.values[row.act], model.values[row.held]
        device = act + held + row.transient.device
        activation = act + row.transient.activation
        before = found.get(row.event, Bytes(0, 0))
        found[row.event] = Bytes(max(device, before.device), max(activation, before.activation))
    return found
