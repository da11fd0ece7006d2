"""Random valid schedules of a program: recomputation, `nosave`, early and late frees, copies
to the host and back, storage of the caller at home on the host, updates on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from remat_compile.ir.graph import CALLER_KINDS, CNode
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import (
    Compute,
    Free,
    Home,
    HostFree,
    Offload,
    Prefetch,
    Schedule,
    Step,
    Wait,
)
from remat_compile.ir.semantics.simulate import KEPT_KINDS
from remat_compile.ir.semantics.sizes import HOMES


@dataclass
class Run:
    """Grows a valid order of computations, frees and copies, ignoring tokens.

    `live` holds what is alive or arriving, `host` the host copies that are not stale,
    `flying` the aNodes with a copy in flight (True: to the device). `nosave` is a rate, that of
    `evict` where it is None. `homes` are on the host between two steps.
    """

    rng: Random
    program: Program
    evict: float
    copy: float = 0.0
    nosave: float | None = None
    homes: frozenset[str] = frozenset()
    steps: list[Step] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    runs: dict[str, int] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)
    host: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    flying: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.program.graph
        callers = {a.name for a in self.graph.anodes if a.kind in CALLER_KINDS}
        self.live, self.host = callers - self.homes, callers & self.homes
        self.steps += [Home(name) for name in sorted(self.homes)]
        self.updated = {b.name for b in self.program.binding.buffers if b.update is not None}
        self.results = self.program.held_since_loss

    def replayable(self, name: str) -> bool:
        """Whether `name` can be made again at any later time."""
        kind = self.graph.anode[name].kind
        if kind in CALLER_KINDS | KEPT_KINDS | {"pending", "rng", "tangent"}:
            return False
        c = self.graph.writer[name]
        reads = set(self.graph.reads(c, 2))
        gone = any(self.graph.anode[r].kind == "pending" for r in reads)
        return name in c.results_at(2) and not c.is_loss and not gone and not reads & self.updated

    def ensure(self, names: Sequence[str], keep: frozenset[str]) -> None:
        """Makes `names` alive by running their writers again; frees nothing in `keep`."""
        for name in names:
            if name not in self.live and name in self.host:
                self.prefetch(name)
            elif name not in self.live:
                self.run(self.graph.writer[name], keep | frozenset(names))
        for name in names:
            if self.flying.get(name):
                self.wait(name)

    def run(self, c: CNode, keep: frozenset[str] = frozenset()) -> None:
        n = self.runs.get(c.name, 0) + 1
        self.ensure(self.graph.reads(c, n), keep)
        n = self.runs[c.name] = self.runs.get(c.name, 0) + 1
        results = c.results_at(n)
        ended = [old for old, _ in c.takes_over]
        if c.is_update and self.homes.issuperset(ended) and self.rng.random() < 0.5:
            self.update_on_host(c)
            return
        for name in (*results, *ended):
            self.wait(name)
        for name in ended:
            self.live.discard(name)
            if name in self.host:
                self.host.discard(name)
                self.stale.add(name)
        self.move_homes(c)
        phantoms = [r for r in results if self.graph.anode[r].kind == "phantom"]
        droppable = phantoms and not set(phantoms) & keep and all(map(self.replayable, phantoms))
        rate = self.evict if self.nosave is None else self.nosave
        nosave = bool(droppable) and self.rng.random() < rate
        self.steps.append(Compute(c.name, nosave))
        self.live.update(results)
        if nosave:
            self.live.difference_update(phantoms)
        if not keep:
            self.drop_some()
            if self.copy:
                self.copy_some()

    def move_homes(self, c: CNode) -> None:
        for old, new in c.takes_over:
            if old in self.homes:
                self.homes = self.homes - {old} | {new}

    def update_on_host(self, c: CNode) -> None:
        old = dict(c.takes_over)
        for name in self.graph.reads(c):
            if name in old and name in self.live:
                self.free(name)
            elif name not in self.host:
                self.ensure([name], frozenset())
                self.steps.append(Offload(name))
                self.host.add(name)
                self.flying[name] = False
            self.wait(name)
        self.steps.append(Compute(c.name, on_host=True))
        self.host = self.host - set(old) | set(old.values())
        self.flying.update(dict.fromkeys({*self.graph.reads(c)} - set(old), False))
        self.flying.update(dict.fromkeys(old.values(), False))
        self.move_homes(c)

    def drop_some(self) -> None:
        given = self.results if self.graph.loss.name in self.runs else frozenset[str]()
        for name in sorted(self.live - given):
            if self.rng.random() < self.evict and (self.replayable(name) or name in self.host):
                self.free(name)

    def free(self, name: str) -> None:
        self.wait(name)
        self.live.discard(name)
        self.steps.append(Free(name))

    def copy_some(self) -> None:
        """Issues some copies, waits for some, and gives some host copies back."""
        for name in sorted(self.flying):
            if self.rng.random() < 0.4:
                self.wait(name)
        for name in sorted(self.live):
            held = name in self.host or name in self.stale or name in self.flying
            ours = self.graph.anode[name].kind not in CALLER_KINDS
            if ours and not held and self.rng.random() < self.copy:
                self.steps.append(Offload(name))
                self.host.add(name)
                self.flying[name] = False
        for name in sorted(self.host - self.live):
            if self.rng.random() < self.copy:
                self.prefetch(name)
        for name in sorted(self.host & self.live) + sorted(self.stale):
            mine = self.graph.anode[name].kind not in CALLER_KINDS or name in self.stale
            if mine and name not in self.flying and self.rng.random() < self.copy:
                self.host_free(name)

    def prefetch(self, name: str) -> None:
        self.wait(name)
        self.steps.append(Prefetch(name))
        self.flying[name] = True
        self.live.add(name)

    def wait(self, name: str) -> None:
        if self.flying.pop(name, None) is not None:
            self.steps.append(Wait(name))

    def host_free(self, name: str) -> None:
        self.wait(name)
        self.steps.append(HostFree(name))
        self.host.discard(name)
        self.stale.discard(name)

    def end(self) -> None:
        """Brings back what is wanted, and leaves nothing else."""
        kept = sorted(a.name for a in self.graph.anodes if a.kind in KEPT_KINDS)
        here = [name for name in kept if name in self.host and name not in self.homes]
        self.ensure(here, frozenset(kept))
        for name in sorted(self.homes - self.host):  # gradients that go there
            self.steps.append(Offload(name))
            self.flying[name] = False
        for left in sorted(self.live):
            if self.graph.anode[left].kind not in CALLER_KINDS | KEPT_KINDS or left in self.homes:
                self.free(left)
        for name in sorted((self.host | self.stale) - self.homes):
            self.host_free(name)
        for name in sorted(self.flying):
            self.wait(name)


def may_be_away(program: Program) -> list[str]:
    """The storages that a schedule may say are on the host between two steps."""
    updated = {b.name for b in program.binding.buffers if b.update is not None}
    fixed = updated | program.held_since_loss
    return [a.name for a in program.graph.anodes if a.kind in HOMES and a.name not in fixed]


def random_schedule(
    rng: Random,
    program: Program,
    *,
    evict: float | None = None,
    copy: float = 0.0,
    home: float = 0.0,
    name: str = "plan",
) -> Schedule:
    """A valid schedule: the order of capture, with random frees and what they force to rerun.

    With `copy`, a rate, also copies to the host and back; with `home` so much of the caller's
    storage and of the gradients is on the host between two steps.
    """
    rate = rng.choice((0.0, 0.1, 0.4)) if evict is None else evict
    away = (
        frozenset(x for x in may_be_away(program) if rng.random() < home) if home else frozenset()
    )
    run = Run(rng, program, rate, copy, homes=away)
    gradients = [
        name
        for c in program.graph.cnodes
        if c.is_update
        for name in program.graph.reads(c)
        if program.graph.anode[name].kind in ("grad", "param_grad")
    ]
    for c in program.graph.cnodes:
        if c.is_update and run.evict:  # nothing is made again from what was updated
            run.ensure(gradients, frozenset(gradients))
            run.evict = 0.0
        run.run(c)
    run.end()
    tokens = [c.token for c in program.graph.cnodes if c.token and run.runs[c.name] > 1]
    steps = (*run.steps, *(Free(token) for token in tokens))
    return Schedule(name, rng.choice(("random", "periodic{segments=4}", "")), steps)
