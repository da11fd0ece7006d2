"""Obligation 1: every read is alive and complete, everything wanted is there at the end.

`spec/verification.md` states the mathematics. Per aNode booleans say whether it is alive, in
flight and so on, in single-assignment form: where a step changes one, `machine.smt2` has the
function that says to what. Each goal is that a guard of the machine fails; z3 refutes their
disjunction, or its model gives the facts, and `Clause`s tell which rules these break.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ...ir.graph import CNode
from ...ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Wait
from ..inquiry import Inquiry
from ..read.events import Event
from ..read.statements import Statements
from ..smt import Answer, Encoding, Facts, Model, OutOfTime, boolean
from .machine import EncodedMachine, advance

Rule = Literal[
    "read", "token", "stale", "free", "caller", "given", "rename", "twice", "never", "kept", "left",
    "pending", "order", "undrawn",
    "belongs", "arriving", "flying", "hosted", "unhosted", "aged", "alive", "no copy",
    "copied at end", "on host at end", "not at home",
]  # fmt: skip
"""The demand of a clause; `explain` says it in words."""


@dataclass(frozen=True, slots=True)
class Clause:
    """At `event` (None: at the end) the fact `constant` about `subject` must be `wanted`.

    For the explanation only: what is asked is the guard of the rule, in `machine.smt2`.
    """

    rule: Rule
    event: int | None
    subject: str
    constant: str
    wanted: bool


@dataclass(frozen=True)
class Broken:
    """The clauses that the schedule breaks, in the order of the steps."""

    clauses: tuple[Clause, ...]


def encode_validity(
    statements: Statements, events: Sequence[Event]
) -> tuple[Encoding, list[Clause]]:
    """The definitions, and the clauses that the goals are about."""
    encoder = _encode(statements, events)
    return encoder.encoding, encoder.clauses


def _encode(
    statements: Statements, events: Sequence[Event], *, with_clauses: bool = True
) -> _ValidityEncoder:
    encoder = _ValidityEncoder(statements, events, with_clauses=with_clauses)
    for event in events:
        encoder.before(event)
        encoder.after(event)
        encoder.cut_if_full()
    encoder.end()
    return encoder


class _ValidityEncoder:
    """With `told` it collects the clauses too, which take more memory than the plan."""

    def __init__(self, statements: Statements, events: Sequence[Event], *, with_clauses: bool):
        self.statements = statements
        self.with_clauses = with_clauses
        self.encoding = Encoding()
        self.facts = Facts(self.encoding)
        self.machine = EncodedMachine(self.facts, statements)
        self.clauses: list[Clause] = []
        run = {event.cnode.name for event in events if event.cnode is not None}
        stream = [name for name in statements.stream if name in run]
        self.draws_after = dict(zip(stream[1:], stream, strict=False))
        self.has_token: dict[str, bool] = {}

    def cut_if_full(self) -> None:
        if self.encoding.is_full:
            self.encoding.cut()

    def guard(self, rule: str, *facts: str) -> None:
        """The goal that a guard of the machine fails."""
        self.encoding.ask(f"(not ({rule} {' '.join(facts)}))")

    def clause(
        self, rule: Rule, event: Event | None, subject: str, constant: str, wanted: bool
    ) -> None:
        """The demand of a guard on one fact, to identify it."""
        if self.with_clauses and self.facts.initial.get(constant) is not wanted:
            index = None if event is None else event.index
            self.clauses.append(Clause(rule, index, subject, constant, wanted))

    def before(self, event: Event) -> None:
        """The preconditions of a computation."""
        if event.cnode is not None:
            self.before_reads(event)
            self.before_run(event, event.cnode)
        elif event.update is not None:
            self.before_update(event)
        else:
            self.before_step(event)

    def before_reads(self, event: Event) -> None:
        assert event.cnode is not None
        at_loss = event.cnode.phase == "loss"
        late = self.statements.pending if at_loss else ()
        for name in event.needs:
            if name in late:
                continue  # below, with a message of its own
            self.read("read", event, name)
            if name in self.statements.updated:
                done = self.facts.now("done", "loss")
                self.guard("buffer.ok", done, boolean(at_loss))
                if not at_loss:
                    self.clause("stale", event, name, done, False)
        if event.token is not None:
            self.read("token", event, event.token)
        if at_loss:
            done = self.facts.now("done", "loss")
            self.guard("loss.ok", done)
            self.clause("twice", event, event.name, done, False)
            for name in late:
                self.read("pending", event, name)

    def read(self, rule: Rule, event: Event, name: str) -> None:
        alive, arriving = self.facts.now("alive", name), self.facts.now("arriving", name)
        self.guard("read.ok", alive, arriving)
        self.clause(rule, event, name, alive, True)
        self.clause("arriving", event, name, arriving, False)

    def before_run(self, event: Event, c: CNode) -> None:
        if c.name in self.draws_after:
            earlier = self.draws_after[c.name]
            drawn = self.facts.now("ran", earlier)
            self.guard("order.ok", self.facts.now("ran", c.name), drawn)
            if event.execution == 1:
                self.clause("order", event, earlier, drawn, True)
        if c.replay is not None or c.token is not None:
            again = boolean(event.execution > 1)
            self.guard("form.ok", self.facts.now("ran", c.name), again)
        if c.token is not None and event.execution == 1:
            self.has_token[c.name] = c.token in event.makes
        for name in event.makes:
            flying = self.facts.now("flying", name)
            self.guard("make.ok", flying)
            self.clause("flying", event, name, flying, False)
        for ended, named in event.takes_over:
            self.before_taking_over(event, ended, named)

    def before_update(self, event: Event) -> None:
        """The preconditions of an update on the host."""
        for name in (*event.looks, *dict(event.takes_over)):
            facts = [self.facts.now(what, name) for what in ("hosted", "aged", "flying")]
            self.guard("look.ok", *facts)
            of_copy: tuple[Rule, ...] = ("unhosted", "aged", "flying")
            for rule, fact in zip(of_copy, facts, strict=True):
                self.clause(rule, event, name, fact, rule == "unhosted")
        for ended, named in event.takes_over:
            alive = self.facts.now("alive", ended)
            self.guard("old.ok", self.machine.kinds[ended], alive)
            self.clause("alive", event, ended, alive, False)
            if ended not in self.statements.homes:
                self.clause("unhosted", event, ended, "false", True)
            facts = [self.facts.now(what, named) for what in ("alive", "flying", "hosted")]
            self.guard("new.ok", *facts)
            of_result: tuple[Rule, ...] = ("rename", "flying", "hosted")
            for rule, fact in zip(of_result, facts, strict=True):
                self.clause(rule, event, named, fact, False)

    def before_taking_over(self, event: Event, ended: str, named: str) -> None:
        flying = self.facts.now("flying", ended)
        self.guard("end.ok", self.machine.kinds[ended], flying)
        if ended not in self.statements.old:
            self.caller("caller", event, ended)
        renamed = self.facts.now("alive", named), self.facts.now("flying", named)
        self.guard("become.ok", *renamed)
        self.clause("rename", event, named, renamed[0], False)
        self.clause("flying", event, ended, flying, False)
        self.clause("flying", event, named, renamed[1], False)

    def caller(self, rule: Rule, event: Event, name: str) -> None:
        """Storages of the caller exist from the start: its initial fact tells its kind."""
        self.clause(rule, event, name, f"(start.alive {self.machine.kinds[name]})", False)

    def before_step(self, event: Event) -> None:
        """The preconditions of a step that is no computation."""
        assert not isinstance(event.step, Compute)
        name = event.step.anode
        alive, kind = self.facts.now("alive", name), self.machine.kinds[name]
        flying, hosted = self.facts.now("flying", name), self.facts.now("hosted", name)
        if isinstance(event.step, Offload):
            self.clause("read", event, name, alive, True)
        if not isinstance(event.step, Wait):
            self.clause("flying", event, name, flying, False)
        match event.step:
            case Free():
                done = self.facts.now("done", "loss")
                result = name in self.statements.results
                self.guard("free.ok", alive, kind, flying, boolean(result), done)
                self.caller("caller", event, name)
                self.clause("free", event, name, alive, True)
                if result:
                    self.clause("given", event, name, done, False)
            case Offload():
                self.guard("offload.ok", alive, kind, flying, hosted)
                if name in self.statements.homes:  # the host holds it, and gives it back never
                    self.clause("belongs", event, name, "false", True)
                else:
                    self.caller("belongs", event, name)
                    self.clause("hosted", event, name, hosted, False)
            case Prefetch():
                aged = self.facts.now("aged", name)
                self.guard("prefetch.ok", alive, flying, hosted, aged)
                self.clause("unhosted", event, name, hosted, True)
                self.clause("aged", event, name, aged, False)
                self.clause("alive", event, name, alive, False)
            case HostFree():
                aged = self.facts.now("aged", name)
                self.guard("hostfree.ok", flying, hosted, kind, aged)
                self.clause("unhosted", event, name, hosted, True)
                if name in self.statements.homes:
                    stale = aged if name in self.statements.old else "false"
                    self.clause("belongs", event, name, stale, True)
            case Wait():
                self.guard("wait.ok", flying)
                self.clause("no copy", event, name, flying, True)
            case _:
                assert_never(event.step)

    def after(self, event: Event) -> None:
        """The effects of the step, and what a plain walk says of them."""
        for changes in (self.machine.contents, self.machine.copies, self.machine.runs):
            for _ in changes(event):
                pass
        advance(self.facts, self.statements, event)

    def end(self) -> None:
        """The conditions after the last step."""
        done = self.facts.now("done", "loss")
        self.guard("finish.loss", done)
        self.clause("never", None, "loss", done, True)
        for name in self.statements.stream:
            drawn = self.facts.now("ran", name)
            self.guard("finish.drawn", drawn)
            if self.statements.cnodes[name].phase != "loss":
                self.clause("undrawn", None, name, drawn, True)
        for name, made in self.has_token.items():
            self.guard("token.ok", self.facts.now("twice", name), boolean(made))
        for name in self.statements.anodes:
            self.finish(name)
            self.cut_if_full()

    def finish(self, name: str) -> None:
        kept, kind = name in self.statements.kept, self.machine.kinds[name]
        alive, flying = self.facts.now("alive", name), self.facts.now("flying", name)
        hosted, aged = self.facts.now("hosted", name), self.facts.now("aged", name)
        self.guard("finish.ok", boolean(kept), alive, kind, flying, hosted, aged)
        if kept:
            self.clause("kept", None, name, alive, True)
        elif name not in self.statements.caller or name in self.statements.old:
            self.clause("left", None, name, alive, False)
        self.clause("copied at end", None, name, flying, False)
        if name in self.statements.host_end:
            self.clause("not at home", None, name, hosted, True)
            self.clause("not at home", None, name, aged, False)
        else:
            self.clause("on host at end", None, name, hosted, False)


def prove_validity(
    statements: Statements, events: Sequence[Event], inquiry: Inquiry
) -> Answer | Broken:
    """NoModel: proven. Broken: refuted. OutOfTime otherwise."""
    answer = _encode(statements, events, with_clauses=False).encoding.check(inquiry)
    if not isinstance(answer, Model):
        return answer
    encoder = _encode(statements, events)
    values = {**answer.values, **encoder.facts.initial}
    broken = (c for c in encoder.clauses if bool(values.get(c.constant, c.wanted)) != c.wanted)
    clauses = tuple(broken)
    return Broken(clauses) if clauses else OutOfTime("z3's model breaks no clause")
