"""Validity, values and races of a schedule, in one pass (`spec/semantics.md`).

A content is a term: a number, one per way to make it. A clock says of each of the three streams how
many of its operations have surely ended. Nothing here depends on sizes.
"""

from collections import Counter, defaultdict
from itertools import count
from typing import NamedTuple, TypeAlias

from .read import Program, Words, Wrong, need

CALLERS = ("input", "param", "buffer", "const", "opt_state")
KEPT = ("output", "param_grad")
PHASES = ("fwd", "loss", "bwd", "opt")
WRITERS = {"act": "fwd", "phantom": "fwd", "pending": "fwd", "tangent": "loss", "grad": "bwd"}
WRITERS |= {"param_grad": "bwd", "output": "fwd loss bwd"}
COMPUTE, D2H, H2D = range(3)  # streams
Terms: TypeAlias = "defaultdict[object, int]"


class Effect(NamedTuple):
    """What a step takes while it runs, what is there after it and not before, and what is gone:
    storages, `host %a` for copies there, and expressions of workspace."""

    takes: tuple[str, ...] = ()
    enters: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()


def results(terms: Terms, name: str, made: Words, reads: list[int], state: int) -> dict[str, int]:
    """(P1): a result is a function of the cNode, its place, the reads and the random state."""
    call = terms[name, state, *reads]
    return {a: terms[call, place] for place, a in enumerate(made) if a != "_"}


def unplanned(p: Program, terms: Terms) -> tuple[dict[str, int], int]:
    """T of every aNode and the random stream at the end. What it rests on holds (grammar.md)."""
    t = {a: terms[a] for a, kind in p.kind.items() if kind in CALLERS}
    stream, ended, phase = terms["stream"], set[str](), "fwd"
    for name, call in p.nodes.items():
        form, reads, made = call.replay or call, p.reads(call), call.made()
        need(PHASES.index(phase) <= PHASES.index(call.phase), name, "comes after a later phase")
        need(all(a in t and a not in ended for a in (*reads, *p.reads(form))), name, "reads early")
        need(all(call.phase in WRITERS.get(p.kind[a], "") for a in made), name, "writes no such")
        need(not call.token or p.kind[call.token] == "rng", name, "has no random state")
        written = [*made, *filter(None, [call.token])]
        again = len({*written}) < len(written) or any(a in t for a in written)
        need(not again, name, "writes what another writes")
        need({*form.made()} <= {*made} and len({*form.made()}) == len(form.made()), name, "again")
        places = [a in ("_", *call.results[j : j + 1]) for j, a in enumerate(form.results)]
        need(all(places) or not form.same(call), name, "replays results in other places")
        need((call.phase == "loss") == (call.operator == "loss"), name, "is the loss, or is not")
        if call.phase == "loss":
            ends = {a for kind, a, _ in p.bound if kind == "result"}
            ends |= {a for a, kind in p.kind.items() if kind == "pending"}
            need(ends <= {*reads}, "the loss does not read all results and new contents")
        if call.operator == "accumulate":
            alone = not call.token and not call.replay and len(made) == 1 and call.phase == "bwd"
            need(alone and len(call.arguments) == 3 and call.arguments[1] == ",", name)
            need(reads[0] != reads[1] and p.kind[reads[0]] == "grad", name, "adds to no gradient")
            ended.add(reads[0])
        random, phase = call.token or call.phase == "loss", call.phase
        t |= {call.token: stream} if call.token else {}
        made_of = [t[a] for a in reads]
        t |= results(terms, name, call.results, made_of, stream if random else -1)
        stream = terms["after", name, stream] if random else stream
    need(t.keys() == p.kind.keys(), "somebody writes nothing:", *(p.kind.keys() - t.keys()))
    need([call.phase for call in p.nodes.values()].count("loss") == 1, "there is not one loss")
    return t, stream


class Machine:
    """The state between two steps: contents of device and host, copies in flight, clocks."""

    def __init__(self, p: Program) -> None:
        self.p, self.terms = p, defaultdict[object, int](count().__next__)
        self.t, self.last_stream = unplanned(p, self.terms)
        self.live = {a: self.t[a] for a, kind in p.kind.items() if kind in CALLERS}
        self.host: dict[str, int] = {}
        self.stale: set[str] = set()
        self.flying: dict[str, tuple[int, list[int]]] = {}  # stream and clock of a copy
        self.runs: Counter[str] = Counter()
        self.total = Counter(name for _, what, name in p.steps if what in ("compute", "nosave"))
        self.place = {name: i for i, name in enumerate(p.nodes)}
        self.stream, self.drawn, self.lost = self.terms["stream"], -1, False
        self.results = {a for kind, a, _ in p.bound if kind == "result"}
        self.updated = [a for kind, a, pending in p.bound if kind == "buffer" and pending]
        self.clocks = [[0, 0, 0] for _ in (COMPUTE, D2H, H2D)]  # of the last of each stream
        self.uses = defaultdict[str, tuple[list[int], list[int]]](lambda: ([0, 0, 0], [0, 0, 0]))

    def use(self, a: str, changes: bool, stream: int = COMPUTE) -> None:
        """No race: each earlier use that one of the two changes has surely ended. A storage that
        is given back is changed, so all its uses have ended before its bytes are taken again."""
        changed, read = self.uses[a]
        now = self.clocks[stream]
        for before in (changed, read) if changes else (changed,):
            if before[0] > now[0] or before[1] > now[1] or before[2] > now[2]:
                raise Wrong(f"a copy races for {a}")
        (changed if changes else read)[stream] = now[stream]

    def copy(self, a: str, stream: int) -> None:
        """A copy starts after this step and after the copy before it in its direction."""
        self.clocks[stream] = [*map(max, self.clocks[COMPUTE], self.clocks[stream])]
        self.clocks[stream][stream] += 1
        self.use(a, stream == H2D, stream)
        self.use("host " + a, stream == D2H, stream)
        self.flying[a] = stream, self.clocks[stream]

    def step(self, what: str, a: str) -> Effect:
        """A step whose guard does not hold is wrong."""
        self.clocks[COMPUTE][COMPUTE] += 1
        if what in ("compute", "nosave"):
            return self.compute(a, what == "nosave")
        live, host, still = a in self.live, a in self.host, a not in self.flying
        own = self.p.kind[a] in CALLERS
        match what:
            case "free" if live and still and not own and not (self.lost and a in self.results):
                self.use(a, changes=True)
                del self.live[a]
                return Effect(leaves=(a,))
            case "offload" if live and still and not own and not host:
                self.host[a] = self.live[a]
                self.copy(a, D2H)
                return Effect(takes=("host " + a,), enters=("host " + a,))
            case "prefetch" if host and still and not live and a not in self.stale:
                self.live[a] = self.host[a]
                self.copy(a, H2D)
                return Effect(takes=(a,), enters=(a,))
            case "wait" if not still:
                _, clock = self.flying.pop(a)
                self.clocks[COMPUTE] = [*map(max, self.clocks[COMPUTE], clock)]
                return Effect()
            case "hostfree" if host and still:
                self.use("host " + a, changes=True)
                self.stale.discard(a)
                del self.host[a]
                return Effect(leaves=("host " + a,))
        raise Wrong(f"{what} {a} is against its rule")

    def compute(self, name: str, nosave: bool) -> Effect:
        own, live = self.p.nodes[name], self.live
        self.runs[name] += 1
        first, loss = self.runs[name] == 1, own.phase == "loss"
        form = own if first else own.replay or own
        reads, token = self.p.reads(form), [own.token] if own.token and not first else []
        for a in (*reads, *token):  # rule 1; rule 2 and the theorem: each read finds T
            here = a in live and self.flying.get(a, (D2H,))[0] == D2H
            need(here and live[a] == self.t[a], a, "does not hold what is read by", name)
            self.use(a, changes=False)
        state = live[own.token] if token else self.stream if own.token or loss else -1
        if form.same(own):
            made = results(self.terms, name, form.results, [live[a] for a in reads], state)
        else:
            made = {a: self.t[a] for a in form.made()}  # (P2)
        if first and (own.token or loss):  # rule 3
            need(self.drawn < self.place[name], name, "draws too late")
            made |= {own.token: state} if own.token and self.total[name] > 1 else {}
            self.drawn, self.stream = self.place[name], self.terms["after", name, state]
        still = not self.flying.keys() & made.keys()
        for a in made:
            self.use(a, changes=True)
        if own.operator == "accumulate":  # rule 4
            (g1, _), (g2,) = reads, made
            need(still and g1 not in self.flying and g2 not in live, name, "cannot add")
            self.use(g1, changes=True)
            self.stale |= {g1} & self.host.keys()
            del live[g1]
            live |= made
            return Effect((form.workspace,), (g2,), (g1,))
        need(still, name, "computes what is copied")  # rule 5
        enters = tuple(a for a in made if a not in live)
        live.update((a, made[a]) for a in enters)
        leaves = tuple(a for a in made if nosave and self.p.kind[a] == "phantom")  # rule 6
        for a in leaves:
            del live[a]
        if loss:
            self.lost = True
            live.update((a, self.terms["updated", a]) for a in self.updated)
        return Effect((*made, form.workspace), enters, leaves)

    def end(self) -> None:
        for name, call in self.p.nodes.items():
            must = call.token or "pending" in (self.p.kind[a] for a in call.made())
            need(not must or self.total[name] > 0, name, "is never executed")
            need(call.phase != "loss" or self.total[name] == 1, "the loss runs not once")
        for a, kind in self.p.kind.items():
            need((a in self.live) == (kind in (*KEPT, *CALLERS)), a, "is kept, or is not")
            need(kind not in KEPT or self.live[a] == self.t[a], a, "ends with another value")
            self.use(a, changes=False)
        need(not self.flying and not self.host, "copies are in flight or on the host at the end")
        need(self.stream == self.last_stream, "the random stream ends elsewhere")


def run(p: Program) -> list[Effect]:
    """What each step does to the bytes. Raises `Wrong` at the first step that breaks a rule."""
    machine, effects = Machine(p), []
    for line, what, name in p.steps:
        p.line = line
        effects.append(machine.step(what, name))
    p.line = 0
    machine.end()
    return effects
