"""Validity, values and races of a schedule, in one pass (`spec/semantics.md`).

Contents are terms: numbers, one per way to make them, so that two contents are equal if their
terms are. Time is a vector clock per operation: for each stream, how many of its operations have
surely ended. Nothing here depends on sizes; `Effect` says what each step does to the bytes.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from .read import Call, Program

CALLERS = ("input", "param", "buffer", "const", "opt_state")
COMPUTE, TO_HOST, TO_DEVICE = range(3)  # the three streams


class Wrong(Exception):
    """(what is wrong with the schedule or the graph, line)"""


class Effect(NamedTuple):
    """What a step takes while it runs, and what is there after it and not before, or gone."""

    taken: tuple[str, ...] = ()
    workspace: str = "0"
    enters: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    copied: str = ""
    host_freed: str = ""


class Terms:
    """Hash-consed terms, and the unplanned step: T of every aNode, and the stream at its end."""

    def __init__(self, p: Program) -> None:
        self.number: dict[object, int] = {}
        self.of = {a: self[a] for a in p.kind if p.kind[a] in CALLERS}
        self.stream = self["stream"]
        for name, call in p.nodes.items():
            if call.token:
                self.of[call.token] = self.stream
            reads = [self.of.get(a, -1) for a in p.reads(call)]
            self.of.update(self.results(name, call, call.results, reads, self.stream))
            if call.token or call.phase == "loss":
                self.stream = self[name, self.stream]

    def __getitem__(self, key: object) -> int:
        return self.number.setdefault(key, len(self.number))

    def results(
        self, name: str, own: Call, results: list[str], reads: list[int], stream: int
    ) -> dict[str, int]:
        """(P1): a result is a function of the cNode, its place, the reads and the random state."""
        made = self[(name, stream if own.token or own.phase == "loss" else -1, *reads)]
        return {a: self[made, j] for j, a in enumerate(results) if a != "_"}


class Machine:
    """The state between two steps. `held` and `home` are the contents of device and host."""

    def __init__(self, p: Program) -> None:
        self.p, self.terms = p, Terms(p)
        self.held = {a: self.terms.of[a] for a in p.kind if p.kind[a] in CALLERS}
        self.home: dict[str, int] = {}
        self.stale: set[str] = set()
        self.flying: dict[str, tuple[int, list[int]]] = {}  # stream and clock of a copy
        self.runs: Counter[str] = Counter()
        self.total = Counter(name for what, name, _ in p.steps if what in ("compute", "nosave"))
        self.place = {name: i for i, name in enumerate(p.nodes)}
        self.stream, self.drawn, self.lost = self.terms["stream"], -1, False
        self.results = {name for kind, name, _ in p.bound if kind == "result"}
        self.updates = {a: b for kind, a, b in p.bound if kind == "buffer" and b}
        self.clock = [0, 0, 0]  # of the stream that computes
        self.last = {TO_HOST: [0, 0, 0], TO_DEVICE: [0, 0, 0]}  # of the last copy of a direction
        self.uses: defaultdict[tuple[str, bool], list[list[int]]] = defaultdict(
            lambda: [[0, 0, 0], [0, 0, 0]]  # last change and last read, by stream
        )
        self.line = 0

    def need(self, holds: bool, *words: str) -> None:
        if not holds:
            raise Wrong(" ".join(words), self.line)

    def use(self, a: str, at_home: bool, changes: bool, stream: int, clock: list[int]) -> None:
        """No race: each earlier use that one of the two changes has surely ended. A storage that
        is given back is changed, so all its uses have ended before its bytes are taken again."""
        changed, read = self.uses[a, at_home]
        for before in (changed, read) if changes else (changed,):
            ended = before[0] <= clock[0] and before[1] <= clock[1] and before[2] <= clock[2]
            self.need(ended, "a copy races for", a)
        (changed if changes else read)[stream] = clock[stream]

    def change(self, a: str) -> None:
        self.use(a, False, True, COMPUTE, self.clock)

    def copy(self, a: str, stream: int) -> None:
        """A copy starts after this step and after the copy before it in its direction."""
        clock = [max(pair) for pair in zip(self.clock, self.last[stream], strict=True)]
        clock[stream] += 1
        self.use(a, False, stream == TO_DEVICE, stream, clock)
        self.use(a, True, stream == TO_HOST, stream, clock)
        self.last[stream], self.flying[a] = clock, (stream, clock)

    def step(self, what: str, a: str) -> Effect:
        self.clock[COMPUTE] += 1
        if what in ("compute", "nosave"):
            self.need(a in self.p.nodes, "no cNode", a)
            return self.execute(a, what == "nosave")
        self.need(a in self.p.kind, "no aNode", a)
        own = self.p.kind[a] in CALLERS
        match what:
            case "free":
                self.need(a in self.held, a, "is not live")
                self.need(not own and not (self.lost and a in self.results), a, "is the caller's")
                self.need(a not in self.flying, "a copy is in flight of", a)
                self.change(a)
                del self.held[a]
                return Effect(leaves=(a,))
            case "offload":
                self.need(a in self.held and not own, a, "is not live or the caller's")
                self.need(a not in self.flying, "a copy is in flight of", a)
                self.need(a not in self.home, "the host has", a)
                self.home[a] = self.held[a]
                self.copy(a, TO_HOST)
                return Effect(copied=a)
            case "prefetch":
                self.need(a not in self.flying, "a copy is in flight of", a)
                self.need(a in self.home and a not in self.stale, "no good host copy of", a)
                self.need(a not in self.held, a, "is live")
                self.held[a] = self.home[a]
                self.copy(a, TO_DEVICE)
                return Effect(taken=(a,), enters=(a,))
            case "wait":
                self.need(a in self.flying, "no copy is in flight of", a)
                _, clock = self.flying.pop(a)
                self.clock = [max(pair) for pair in zip(self.clock, clock, strict=True)]
                return Effect()
        self.need(a in self.home and a not in self.flying, "no host copy to give back of", a)
        self.use(a, True, True, COMPUTE, self.clock)
        self.stale.discard(a)
        del self.home[a]
        return Effect(host_freed=a)

    def execute(self, name: str, nosave: bool) -> Effect:
        p, own = self.p, self.p.nodes[name]
        self.runs[name] += 1
        first, loss = self.runs[name] == 1, own.phase == "loss"
        call = own if first else own.replay or own
        reads = [*p.reads(call), *([own.token] if own.token and not first else [])]
        for a in reads:  # rules 1 and 2, and the theorem: each read finds T
            self.need(a in self.held, a, "is not live and read by", name)
            self.need(self.flying.get(a, (TO_HOST,))[0] == TO_HOST, "not here yet:", a)
            self.need(loss or not self.lost or a not in self.updates, "updated buffer read:", a)
            self.need(self.held[a] == self.terms.of[a], a, "has another value, read by", name)
            self.use(a, False, False, COMPUTE, self.clock)
        values = self.values(name, own, call, [self.held[a] for a in p.reads(call)], first)
        if first and (loss or own.token):  # rule 3
            self.need(self.drawn < self.place[name], name, "draws too late")
            self.drawn, self.stream = self.place[name], self.terms[name, self.stream]
        if own.operator == "accumulate":  # rule 4
            (g1, _), (g2,) = reads, values
            self.need(g2 not in self.held, g2, "is live")
            self.need(not {g1, g2} & self.flying.keys(), "a copy is in flight of", g1, "or", g2)
            self.change(g1)
            self.change(g2)
            self.held[g2] = values[g2]
            del self.held[g1]
            self.stale |= {g1} & self.home.keys()
            return Effect((), call.workspace, (g2,), (g1,))
        for a in values:  # rule 5
            self.need(a not in self.flying, "a copy is in flight of", a)
            self.change(a)
        enters = tuple(a for a in values if a not in self.held)
        self.held.update((a, values[a]) for a in enters)
        leaves = tuple(a for a in values if nosave and p.kind[a] == "phantom")  # rule 6
        for a in leaves:
            del self.held[a]
        if loss:
            self.lost = True
            self.held.update((a, self.terms["updated", a]) for a in self.updates)
        return Effect(tuple(values), call.workspace, enters, leaves)

    def values(
        self, name: str, own: Call, call: Call, reads: list[int], first: bool
    ) -> dict[str, int]:
        """The contents of what an execution computes, the token among it."""
        stream = self.stream if first else self.held.get(own.token, -1)
        if not call.same(own):  # (P2)
            return {a: self.terms.of[a] for a in call.results if a != "_"}
        made = self.terms.results(name, own, call.results, reads, stream)
        if first and own.token and self.total[name] > 1:
            made[own.token] = stream
        return made

    def end(self) -> None:
        p, kind = self.p, self.p.kind
        for name, call in p.nodes.items():
            must = call.token or any(a != "_" and kind[a] == "pending" for a in call.results)
            self.need(not must or self.total[name] > 0, name, "is never executed")
            self.need(call.phase != "loss" or self.total[name] == 1, "the loss runs not once")
        for a in kind:
            kept = kind[a] in ("output", "param_grad")
            self.need((a in self.held) == (kept or kind[a] in CALLERS), a, "kept, or not")
            self.need(not kept or self.held[a] == self.terms.of[a], a, "ends with another value")
            self.use(a, False, False, COMPUTE, self.clock)
        self.need(not self.flying and not self.home, "copies in flight or on the host at the end")
        self.need(self.stream == self.terms.stream, "the random stream ends elsewhere")


def run(p: Program) -> list[Effect]:
    """What each step does to the bytes. Raises `Wrong` at the first step that breaks a rule."""
    machine, effects = Machine(p), []
    for what, name, machine.line in p.steps:
        effects.append(machine.step(what, name))
    machine.end()
    return effects
