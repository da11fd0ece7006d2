"""Random valid plans that do everything a schedule may do, often; for plans that are executed.

On top of `random_schedules`: another valid order of computations, executions of what is alive
already, `nosave` of any execution, and frees anywhere between the last use and the last moment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from helpers.programs.random_schedules import Run
from remat_compile.ir.graph import CALLER_KINDS, CNode, Graph
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import (
    Compute,
    Free,
    HostFree,
    Offload,
    Prefetch,
    Schedule,
    Step,
    Wait,
)

KINDS = (
    "computed again in the forward",
    "computed again in the backward",
    "backward computed again",
    "computed while alive",
    "nosave, first execution",
    "nosave, later execution",
    "nosave of what was alive",
    "random operator replayed",
    "replay form of its own",
    "accumulate",
    "accumulate, again",
    "other order than captured",
    "freed later than its last use",
    "copy to the host",
    "copy back",
    "wait for a copy",
    "host copy freed",
)
"""What a plan may hold, as the tables of the runners name it."""

COPIES = frozenset(("copy to the host", "copy back", "wait for a copy", "host copy freed"))
"""Those about copies to the host."""


@dataclass
class _Plan(Run):
    """A run that now and then executes something again for nothing."""

    again: float = 0.0

    def run(self, c: CNode, keep: frozenset[str] = frozenset()) -> None:
        super().run(c, keep)
        if keep:
            return
        done = [self.graph.cnode[n] for n in self.runs]
        while self.again and self.rng.random() < self.again:
            other = self.rng.choice(done)
            if self._may_run_again(other):
                # It keeps its reads, so that no copy and no drop comes between.
                super().run(other, frozenset(self.graph.reads(other, 2)) or frozenset({""}))

    def _may_run_again(self, c: CNode) -> bool:
        if c.is_loss or c.is_accumulate:
            return False
        reads = self.graph.reads(c, 2)
        results = c.results_at(2)
        kinds = {self.graph.anode[name].kind for name in results}
        there = all(name in self.live or self._can_make(name) for name in reads)
        after_loss = self.graph.loss.name in self.runs
        stale = after_loss and bool(set(reads) & self.updated)
        return bool(results) and there and not stale and "pending" not in kinds

    def _can_make(self, name: str) -> bool:
        if self.graph.anode[name].kind in CALLER_KINDS:
            return True
        writer = self.graph.writer[name]
        return self.replayable(name) and writer.name in self.runs and not writer.is_accumulate


def random_plan(rng: Random, program: Program, *, copy: float = 0.0) -> Schedule:
    """A schedule, valid but for rare orders of repeated accumulations: verify it."""
    run = _Plan(rng, program, rng.choice((0.05, 0.2, 0.4)), copy)
    run.again, run.nosave = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.1, 0.5, 0.9))
    for c in _order(rng, program):
        run.run(c)
    run.end()
    steps = list(run.steps)
    tokens = [c.token for c in program.graph.cnodes if c.token and run.runs[c.name] > 1]
    steps += [Free(token) for token in tokens]
    return Schedule("plan", "random", tuple(_frees_moved(rng, program, steps)))


def _order(rng: Random, program: Program) -> list[CNode]:
    """A random order in which every cNode may run once."""
    graph = program.graph
    before = _must_run_before(program)
    left = list(graph.cnodes)
    done: set[str] = set()
    order = []
    jumps = rng.choice((0.0, 0.1, 0.4))
    while left:
        ready = [c for c in left if before[c.name] <= done]
        c = rng.choice(ready) if rng.random() < jumps else ready[0]
        left.remove(c)
        done.add(c.name)
        order.append(c)
    return order


def _must_run_before(program: Program) -> dict[str, set[str]]:
    graph = program.graph
    before = {
        c.name: {graph.writer[r].name for r in graph.reads(c) if r in graph.writer}
        for c in graph.cnodes
    }
    loss = graph.loss.name
    updated = {b.name for b in program.binding.buffers if b.update is not None}
    drawn: list[str] = []
    for c in graph.cnodes:
        if c.token is not None or c.is_loss:
            before[c.name].update(drawn)
            drawn.append(c.name)
        writes_buffer = any(graph.anode[r].kind == "pending" for r in c.results)
        if writes_buffer or (set(graph.reads(c)) & updated and not c.is_loss):
            before[loss].add(c.name)
        if c.is_accumulate:
            ended = graph.reads(c)[0]
            before[c.name].update(r.name for r in graph.readers[ended] if r != c)
    return before


def _frees_moved(rng: Random, program: Program, steps: list[Step]) -> list[Step]:
    """Each free somewhere between the last use of what it frees and where it stands."""
    uses = _uses(program.graph, steps)
    rate = rng.choice((0.3, 0.7, 1.0))
    at: dict[int, list[Step]] = {}
    for index, step in enumerate(steps):
        place = index
        if isinstance(step, Free) and rng.random() < rate:
            last = max((i for i in uses[step.anode] if i < index), default=index - 1)
            place = last if rng.random() < 0.7 else rng.randrange(last, index)
        at.setdefault(place, []).insert(0 if place == index else len(at.get(place, ())), step)
    return [step for index in sorted(at) for step in at[index]]


def _uses(graph: Graph, steps: list[Step]) -> dict[str, list[int]]:
    """The steps that read, write or copy each aNode."""
    uses: dict[str, list[int]] = {a.name: [] for a in graph.anodes}
    runs: Counter[str] = Counter()
    results = {graph.storage[r] for r in graph.loss.call.refs()}
    for index, step in enumerate(steps):
        match step:
            case Compute(name):
                c = graph.cnode[name]
                runs[name] += 1
                token = (c.token,) if c.token is not None else ()
                more = results if c.is_loss else set[str]()
                for used in (*graph.reads(c, runs[name]), *c.results_at(runs[name]), *token, *more):
                    uses[used].append(index)
            case Offload(name) | Prefetch(name) | Wait(name) | HostFree(name):
                uses[name].append(index)
            case Free():
                pass
    return uses


def kinds_of(program: Program, schedule: Schedule) -> Counter[str]:
    """How many steps of each of `KINDS` a schedule has."""
    graph = program.graph
    counts: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    live: set[str] = set()
    last: dict[str, int] = {}
    after_loss = False
    first: list[str] = []
    for index, step in enumerate(schedule.steps):
        match step:
            case Compute(name, nosave):
                c = graph.cnode[name]
                runs[name] += 1
                n = runs[name]
                first += [name] if n == 1 else []
                results = c.results_at(n)
                phantoms = {r for r in results if graph.anode[r].kind == "phantom"}
                counts["accumulate"] += c.is_accumulate
                counts["accumulate, again"] += c.is_accumulate and n > 1
                if n > 1:
                    counts[f"computed again in the {'backward' if after_loss else 'forward'}"] += 1
                    counts["backward computed again"] += c.phase == "bwd"
                    counts["computed while alive"] += bool(set(results) & live)
                    counts["random operator replayed"] += c.token is not None
                    counts["replay form of its own"] += (
                        c.replay is not None and c.replay.call != c.call
                    )
                if nosave and phantoms:
                    counts[f"nosave, {'first' if n == 1 else 'later'} execution"] += 1
                    counts["nosave of what was alive"] += bool(phantoms & live)
                last.update(dict.fromkeys((*graph.reads(c, n), *results), index))
                live.update(results)
                live -= phantoms if nosave else set()
                if c.is_accumulate:
                    live.discard(graph.reads(c)[0])
                after_loss |= c.is_loss
            case Free(name):
                live.discard(name)
                between = schedule.steps[last.get(name, index) + 1 : index]
                counts["freed later than its last use"] += any(
                    isinstance(s, Compute) for s in between
                )
            case Offload():
                counts["copy to the host"] += 1
            case Prefetch(name):
                counts["copy back"] += 1
                live.add(name)
            case Wait():
                counts["wait for a copy"] += 1
            case HostFree():
                counts["host copy freed"] += 1
    counts["other order than captured"] += first != [c.name for c in graph.cnodes]
    return counts
