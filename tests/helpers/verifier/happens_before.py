"""Happens-before and all timings, written without the verifier: two oracles for races.

Both know a program only by the core's data and reads, and a schedule by its steps. What is
run are *operations*: every step on the compute stream, every copy on the stream of its
direction, and on a stream of its own an update on the host, as one for each storage. An
operation uses bytes: `(side, aNode, instance)`, and whether it only reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from remat_compile.ir.graph import Graph
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

Bytes = tuple[str, str, int]


@dataclass
class Operation:
    """`after` are operations that must have ended before this one begins."""

    name: str
    stream: str
    step: int
    after: list[int] = field(default_factory=list)
    uses: dict[Bytes, bool] = field(default_factory=dict)
    """Whether more is done with the bytes than reading."""


@dataclass
class _Reader:
    program: Program
    steps: tuple[Step, ...]
    instance: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    there: set[str] = field(default_factory=set)

    def use(
        self, op: Operation, side: str, name: str, *, changes: bool, ends: bool = False
    ) -> None:
        key = (side, name, self.instance[side, name])
        op.uses[key] = op.uses.get(key, False) or changes
        if ends:
            self.instance[side, name] += 1

    def compute(self, op: Operation, step: Compute, execution: int, total: int) -> None:
        graph: Graph = self.program.graph
        c = graph.cnode[step.cnode]
        token = (c.token,) if c.token is not None else ()
        reads = [*graph.reads(c, execution), *(token if execution > 1 else ())]
        if c.is_loss:
            reads += [graph.storage[r.name] for r in self.program.binding.results]
        for name in reads:
            self.use(op, "device", name, changes=False)
        for old, new in c.takes_over:
            self.use(op, "device", old, changes=True, ends=True)
            self.use(op, "device", new, changes=True)
        if c.takes_over:
            return
        made = (*c.results_at(execution), *(token if execution == 1 < total else ()))
        for name in made:
            self.use(op, "device", name, changes=True)
        if step.nosave:
            for name in made:
                if graph.anode[name].kind == "phantom":
                    self.use(op, "device", name, changes=True, ends=True)


def _moved(homes: set[str], program: Program, step: Compute) -> set[str]:
    pairs = dict(program.graph.cnode[step.cnode].takes_over)
    return {pairs.get(name, name) for name in homes}


def operations(program: Program, schedule: Schedule) -> list[Operation]:
    """All operations; the last one is the caller's, who reads what is his."""
    reader = _Reader(program, schedule.steps)
    total: dict[str, int] = defaultdict(int)
    for step in schedule.steps:
        if isinstance(step, Compute):
            total[step.cnode] += 1
    runs: dict[str, int] = defaultdict(int)
    ops: list[Operation] = []
    last: dict[str, int] = {}
    open_: dict[str, list[int]] = defaultdict(list)

    def add(name: str, stream: str, step: int) -> Operation:
        op = Operation(name, stream, step, [last[stream]] if stream in last else [])
        last[stream] = len(ops)
        ops.append(op)
        return op

    # A step that says where storage is at first runs nothing.
    homes = {step.anode for step in schedule.steps if isinstance(step, Home)}
    steps = [step for step in schedule.steps if not isinstance(step, Home)]
    for index, step in enumerate(steps):
        op = add(f"step {index}", "compute", index)
        match step:
            case Compute() if step.on_host:
                c, issued = program.graph.cnode[step.cnode], len(ops) - 1
                old = dict(c.takes_over)
                homes = _moved(homes, program, step)
                looks = [name for name in program.graph.reads(c) if name not in old]
                for name in (*looks, *old.values()):
                    open_[name].append(len(ops))
                    part = add(f"update {index}", "cpu", index)
                    part.after.append(issued)
                    reader.use(part, "host", name, changes=name not in looks)
            case Compute():
                homes = _moved(homes, program, step)
                runs[step.cnode] += 1
                reader.compute(op, step, runs[step.cnode], total[step.cnode])
            case Free(name):
                reader.use(op, "device", name, changes=True, ends=True)
            case HostFree(name):
                reader.use(op, "host", name, changes=True, ends=True)
            case Wait(name):
                if open_[name]:
                    op.after.append(open_[name].pop(0))
            case Offload(name) | Prefetch(name):
                out = isinstance(step, Offload)
                issued = len(ops) - 1
                open_[name].append(len(ops))
                copy = add(f"copy {index}", "d2h" if out else "h2d", index)
                copy.after.append(issued)
                reader.use(copy, "device", name, changes=not out)
                reader.use(copy, "host", name, changes=out)
    end = add("end", "compute", len(steps))
    for a in program.graph.anodes:
        if a.name in homes:
            reader.use(end, "host", a.name, changes=False)
        elif a.kind in KEPT_KINDS:
            reader.use(end, "device", a.name, changes=False)
    return ops


def conflicts(one: Operation, other: Operation) -> Iterator[tuple[str, str]]:
    """Side and aNode of bytes that both use and one of them changes."""
    for key in one.uses.keys() & other.uses.keys():
        if one.uses[key] or other.uses[key]:
            yield key[0], key[1]


Race = tuple[int, int, str, str]
State = tuple[tuple[int, bool], ...]
"""A race: the steps of both operations, the earlier first, and side and aNode."""


def races_by_reachability(program: Program, schedule: Schedule) -> set[Race]:
    """Pairs of operations that use the same bytes and that no path orders."""
    ops = operations(program, schedule)
    before: list[int] = []
    for op in ops:
        mask = 0
        for earlier in op.after:
            mask |= before[earlier] | (1 << earlier)
        before.append(mask)
    return {
        (ops[i].step, op.step, *bytes_)
        for j, op in enumerate(ops)
        for i in range(j)
        if not before[j] >> i & 1
        for bytes_ in conflicts(ops[i], op)
    }


def races_by_enumeration(program: Program, schedule: Schedule) -> set[Race]:
    """Every state that some timing reaches: operations begin and end one at a time."""
    ops = operations(program, schedule)
    streams = ("compute", "d2h", "h2d", "cpu")
    lanes = {s: [i for i, op in enumerate(ops) if op.stream == s] for s in streams}
    races: set[Race] = set()
    # Per stream: how many have ended, and whether the next one runs.
    start: State = ((0, False),) * len(streams)
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        running, ended = [], set()
        for (count, runs), lane in zip(state, lanes.values(), strict=True):
            ended.update(lane[:count])
            running += lane[count : count + 1] if runs else []
        for i in running:
            for j in running:
                if i < j:
                    races |= {(ops[i].step, ops[j].step, *b) for b in conflicts(ops[i], ops[j])}
        for at, ((count, runs), lane) in enumerate(zip(state, lanes.values(), strict=True)):
            if runs:
                following = (count + 1, False)
            elif count < len(lane) and ended.issuperset(ops[lane[count]].after):
                following = (count, True)
            else:
                continue
            reached: State = (*state[:at], following, *state[at + 1 :])
            if reached not in seen:
                seen.add(reached)
                todo.append(reached)
    return races
