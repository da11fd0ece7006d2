"""Obligation 1: every read is alive and complete, everything wanted is there at the end.

`spec/verification.md` states the mathematics. Per aNode a boolean says whether it is
alive, in single-assignment form: a fresh constant where a step changes it. Every clause
below is one literal; z3 refutes their disjunction, or its model names the broken ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ..ir.schedule import Compute, CopyStep, Free, HostFree, Offload, Prefetch, Wait
from .events import Event
from .smt import Answer, Deadline, Encoding, Facts, Model, OutOfTime
from .statements import Statements

__all__ = ["Broken", "Clause", "advance", "encode_validity", "prove_validity", "start"]

Rule = Literal[
    "read", "token", "stale", "free", "caller", "given", "rename", "twice", "never", "kept", "left",
    "pending", "order", "undrawn",
    "lent", "arriving", "flying", "hosted", "unhosted", "aged", "landed", "idle", "aloft", "ashore",
]  # fmt: skip
"""What a clause demands; `explain` says it in words."""


@dataclass(frozen=True, slots=True)
class Clause:
    """At `event` (None: at the end) the fact `constant` about `subject` must be `wanted`."""

    rule: Rule
    event: int | None
    subject: str
    constant: str
    wanted: bool


@dataclass(frozen=True)
class Broken:
    """The clauses that the schedule breaks, in the order of the steps."""

    clauses: tuple[Clause, ...]


def start(facts: Facts, statements: Statements) -> None:
    """Before the first step only what the caller holds is alive."""
    for name in statements.anodes:
        if name in statements.caller:
            facts.set("alive", name, True)


def advance(facts: Facts, statements: Statements, event: Event) -> None:
    """The facts after a step. What the caller holds stays alive whatever a step says."""
    for name in event.makes:
        facts.set("alive", name, True)
    gone = list(event.gives_back)
    if event.ends is not None and event.becomes is not None:
        gone.append(event.ends)
        facts.set("alive", event.becomes, True)
    for name in gone:
        if name not in statements.caller:
            facts.set("alive", name, False)


def encode_validity(
    statements: Statements, events: Sequence[Event]
) -> tuple[Encoding, list[Clause]]:
    """The definitions, and the clauses whose negations are the goals."""
    encoder = _Encoder(statements, events)
    for event in events:
        encoder.before(event)
        advance(encoder.facts, statements, event)
        encoder.after(event)
        if encoder.encoding.is_full:
            encoder.encoding.cut()
    encoder.end()
    return encoder.encoding, encoder.clauses


class _Encoder:
    def __init__(self, statements: Statements, events: Sequence[Event]):
        self.statements = statements
        self.encoding = Encoding()
        self.facts = Facts(self.encoding)
        self.clauses: list[Clause] = []
        run = {event.cnode.name for event in events if event.cnode is not None}
        stream = [name for name in statements.stream if name in run]
        self.copied = copied_names(events)
        self.draws_after = dict(zip(stream[1:], stream, strict=False))
        start(self.facts, statements)
        for name in statements.caller:
            self.facts.set("held", name, True)
        self.facts.set("done", "loss", False)

    def demand(
        self, rule: Rule, event: Event | None, subject: str, fact: tuple[str, str], wanted: bool
    ) -> None:
        constant = self.facts.now(*fact)
        index = None if event is None else event.index
        self.clauses.append(Clause(rule, index, subject, constant, wanted))
        self.encoding.ask(f"(not {constant})" if wanted else constant)

    def before(self, event: Event) -> None:
        """What must hold when the step begins."""
        c = event.cnode
        at_loss = c is not None and c.phase == "loss"
        for name in event.needs:
            if at_loss and name in self.statements.pending:
                continue  # demanded below, with a message of its own
            self.demand("read", event, name, ("alive", name), True)
            if name in self.copied and not isinstance(event.step, Offload):
                self.demand("arriving", event, name, ("arriving", name), False)
            if name in self.statements.updated and not at_loss:
                self.demand("stale", event, name, ("done", "loss"), False)
        if event.token is not None:
            self.demand("token", event, event.token, ("alive", event.token), True)
            if event.token in self.copied:
                self.demand("arriving", event, event.token, ("arriving", event.token), False)
        if at_loss:
            self.demand("twice", event, event.name, ("done", "loss"), False)
            for name in self.statements.pending:
                self.demand("pending", event, name, ("alive", name), True)
        if c is not None and event.execution == 1 and c.name in self.draws_after:
            earlier = self.draws_after[c.name]
            self.demand("order", event, earlier, ("drawn", earlier), True)
        if event.ends is not None and event.becomes is not None:
            self.demand("caller", event, event.ends, ("held", event.ends), False)
            self.demand("rename", event, event.becomes, ("alive", event.becomes), False)
        for name in touched(event):
            if name in self.copied:
                self.demand("flying", event, name, ("flying", name), False)
        self.before_step(event)

    def before_step(self, event: Event) -> None:
        """What must hold when a step that is no computation begins."""
        match event.step:
            case Compute():
                pass
            case Free(name):
                self.demand("caller", event, name, ("held", name), False)
                self.demand("free", event, name, ("alive", name), True)
                if name in self.statements.results:
                    self.demand("given", event, name, ("done", "loss"), False)
            case Offload(name):
                self.demand("lent", event, name, ("held", name), False)
                self.demand("hosted", event, name, ("hosted", name), False)
            case Prefetch(name):
                self.demand("unhosted", event, name, ("hosted", name), True)
                self.demand("aged", event, name, ("aged", name), False)
                self.demand("landed", event, name, ("alive", name), False)
            case HostFree(name):
                self.demand("unhosted", event, name, ("hosted", name), True)
            case Wait(name):
                self.demand("idle", event, name, ("flying", name), True)
            case _:
                assert_never(event.step)

    def after(self, event: Event) -> None:
        match event.step:
            case Offload(name):
                self.facts.set("flying", name, True)
                self.facts.set("hosted", name, True)
                self.facts.set("aged", name, False)
            case Prefetch(name):
                self.facts.set("flying", name, True)
                self.facts.set("arriving", name, True)
            case Wait(name):
                self.facts.set("flying", name, False)
                self.facts.set("arriving", name, False)
            case HostFree(name):
                self.facts.set("hosted", name, False)
                self.facts.set("aged", name, False)
            case Compute() | Free():
                self.after_computation(event)
            case _:
                assert_never(event.step)

    def after_computation(self, event: Event) -> None:
        if event.ends is not None and event.ends in self.copied:
            self.facts.set("aged", event.ends, True)
        c = event.cnode
        if c is None:
            return
        if c.phase == "loss":
            self.facts.set("done", "loss", True)
        if event.execution == 1 and (c.token is not None or c.phase == "loss"):
            self.facts.set("drawn", c.name, True)

    def end(self) -> None:
        """What must hold after the last step."""
        self.demand("never", None, "loss", ("done", "loss"), True)
        for name in self.statements.stream:
            if self.statements.cnodes[name].phase != "loss":
                self.demand("undrawn", None, name, ("drawn", name), True)
        for name in self.statements.anodes:
            if name in self.statements.kept:
                self.demand("kept", None, name, ("alive", name), True)
            elif name not in self.statements.caller:
                self.demand("left", None, name, ("alive", name), False)
            if name in self.copied:
                self.demand("aloft", None, name, ("flying", name), False)
                self.demand("ashore", None, name, ("hosted", name), False)


def copied_names(events: Sequence[Event]) -> frozenset[str]:
    """The aNodes that some step about copies names."""
    return frozenset(e.step.anode for e in events if isinstance(e.step, CopyStep))


def touched(event: Event) -> tuple[str, ...]:
    """The aNodes of which no copy may be in flight when a step begins."""
    match event.step:
        case Compute():
            ended = () if event.ends is None else (event.ends,)
            named = () if event.becomes is None else (event.becomes,)
            return (*event.makes, *ended, *named)
        case Free(name) | Offload(name) | Prefetch(name) | HostFree(name):
            return (name,)
        case Wait():
            return ()
        case _:
            assert_never(event.step)


def prove_validity(
    statements: Statements, events: Sequence[Event], deadline: Deadline
) -> Answer | Broken:
    """NoModel: proven. Broken: refuted. OutOfTime otherwise."""
    encoding, clauses = encode_validity(statements, events)
    answer = encoding.check(deadline)
    if not isinstance(answer, Model):
        return answer
    values = answer.values
    broken = (c for c in clauses if bool(values.get(c.constant, c.wanted)) != c.wanted)
    found = tuple(broken)
    return Broken(found) if found else OutOfTime("z3's model breaks no clause")
