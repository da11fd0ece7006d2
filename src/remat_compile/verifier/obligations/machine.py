"""The effects of steps on the facts of the machine: applications of the functions in
`machine.smt2`.

Which aNode a step names, of which kind, is data; what becomes of it is computed by the solver.
`advance` says it a second time, by a plain walk: what the parts of a proof assume of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from ...ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Wait
from ..read.events import Event
from ..read.statements import Statements
from ..smt import Facts, boolean


@dataclass(frozen=True, slots=True)
class Change:
    """A step changes the fact `what` of an aNode from one constant to another."""

    what: str
    anode: str
    before: str
    after: str


class EncodedMachine:
    """The facts along the steps; `kinds` are the terms of the kinds of the aNodes."""

    def __init__(self, facts: Facts, statements: Statements):
        self.facts = facts
        term = {a.kind: f"kind.{a.kind}" for a in statements.anodes.values()}
        start = {kind: f"(start.alive {kind})" for kind in term.values()}
        self.kinds = {name: term[a.kind] for name, a in statements.anodes.items()}
        for name in statements.host_end:
            self.kinds[name] = "kind.home" if name in statements.homes else "kind.home_grad"
        for name in statements.old:
            self.kinds[name] = "kind.old_home" if name in statements.homes else "kind.old"
        start |= {kind: f"(start.alive {kind})" for kind in self.kinds.values()}
        for name, kind in self.kinds.items():
            facts.begin("alive", name, start[kind], name in statements.caller)
        for name in statements.homes:
            facts.begin("hosted", name, f"(start.hosted {self.kinds[name]})", True)

    def contents(self, event: Event) -> Iterator[Change]:
        """The effect of a step on liveness and on the host's copies."""
        match event.step:
            case Compute() if event.update is not None:
                for ended, named in event.takes_over:
                    yield self.change("hosted", ended, "old.hosted")
                    yield self.change("hosted", named, "new.hosted")
            case Compute(_, nosave):
                for name in event.makes:
                    dropped = boolean(nosave)
                    yield self.change("alive", name, f"(make.alive {self.kinds[name]} {dropped})")
                for ended, named in event.takes_over:
                    yield self.change("alive", ended, "end.alive")
                    yield self.change("alive", named, "become.alive")
            case Free(name):
                alive = self.facts.now("alive", name)
                yield self.change("alive", name, f"(free.alive {alive} {self.kinds[name]})")
            case Offload(name):
                yield self.change("hosted", name, "offload.hosted")
            case Prefetch(name):
                yield self.change("alive", name, "prefetch.alive")
            case HostFree(name):
                yield self.change("hosted", name, "hostfree.hosted")
            case Wait():
                pass
            case _:
                assert_never(event.step)

    def copies(self, event: Event) -> Iterator[Change]:
        """The effect of a step on copies in flight and on the age of host copies."""
        match event.step:
            case Offload(name):
                yield self.change("flying", name, "offload.flying")
                yield self.change("aged", name, "offload.aged")
            case Prefetch(name):
                yield self.change("flying", name, "prefetch.flying")
                yield self.change("arriving", name, "prefetch.arriving")
            case Wait(name):
                yield self.change("flying", name, "wait.flying")
                yield self.change("arriving", name, "wait.arriving")
            case HostFree(name):
                yield self.change("aged", name, "hostfree.aged")
            case Compute() if event.update is not None:
                for name in event.looks:
                    yield self.change("flying", name, "look.flying")
                for _, name in event.takes_over:
                    yield self.change("flying", name, "new.flying")
                    yield self.change("aged", name, "new.aged")
            case Compute() if event.takes_over:
                for ended, _ in event.takes_over:
                    yield self.change("aged", ended, "end.aged")
            case Compute() | Free():
                pass
            case _:
                assert_never(event.step)

    def runs(self, event: Event) -> Iterator[Change]:
        """The effect of a computation on the set of past executions, if a later step depends on
        it."""
        c = event.cnode
        if c is None:
            return
        if c.phase == "loss":
            yield self.change("done", "loss", "loss.done")
        if c.phase == "loss" or c.token is not None or c.replay is not None:
            ran = self.facts.now("ran", c.name)
            yield self.change("twice", c.name, f"(run.twice {ran})")
            yield self.change("ran", c.name, "run.ran")

    def change(self, what: str, name: str, term: str) -> Change:
        before = self.facts.now(what, name)
        return Change(what, name, before, self.facts.change(what, name, term))


def advance(facts: Facts, statements: Statements, event: Event) -> None:
    """Claims the facts after a step, by a plain walk: nothing is proven by it.

    What the caller holds stays alive whatever a step says.
    """
    for name in event.makes:
        facts.claim("alive", name, True)
    for ended, named in event.renames:
        facts.claim("alive", ended, False)
        facts.claim("alive", named, True)
        facts.claim("aged", ended, True)
    if event.update is not None:
        for ended, named in event.takes_over:
            facts.claim("hosted", ended, False)
            facts.claim("hosted", named, True)
            facts.claim("aged", named, False)
        for name in (*event.looks, *(named for _, named in event.takes_over)):
            facts.claim("flying", name, True)
    for name in event.gives_back:
        facts.claim("alive", name, name in statements.caller)
    match event.step:
        case Offload(name):
            facts.claim("flying", name, True)
            facts.claim("hosted", name, True)
            facts.claim("aged", name, False)
        case Prefetch(name):
            facts.claim("flying", name, True)
            facts.claim("arriving", name, True)
        case Wait(name):
            facts.claim("flying", name, False)
            facts.claim("arriving", name, False)
        case HostFree(name):
            facts.claim("hosted", name, False)
            facts.claim("aged", name, False)
        case Compute() | Free():
            _advance_runs(facts, event)
        case _:
            assert_never(event.step)


def _advance_runs(facts: Facts, event: Event) -> None:
    c = event.cnode
    if c is None:
        return
    if c.phase == "loss":
        facts.claim("done", "loss", True)
    facts.claim("twice", c.name, event.execution > 1)
    facts.claim("ran", c.name, True)
