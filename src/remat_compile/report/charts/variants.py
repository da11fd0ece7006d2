"""Variants of a plan with one decision changed, simulated for bytes and time.

The new schedules are for figures only. They are simulated as any other, so a figure is that of a
valid schedule; where the change makes none, there is no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...ir.diagnostics import FBError
from ...ir.graph import CALLER_KINDS, CNode
from ...ir.program import Program
from ...ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Step, Wait
from ...ir.semantics.simulate import KEPT_KINDS, simulate
from ..subject import Subject
from .timeline import Life, replay


@dataclass(frozen=True, slots=True)
class Effect:
    """Peak and time of a changed plan, and the changes of both."""

    peak_bytes: int
    time_ns: int
    more_bytes: int
    more_ns: int


@dataclass(frozen=True, slots=True)
class HeldGap:
    """Steps over which an instance is held and not touched: it was used at `last`, and is used
    again at `next` (indices)."""

    anode: str
    last: int
    next: int


def gap_at(subject: Subject, life: Life, step: int) -> HeldGap | None:
    """The gap of an instance around a step; None where the step touches it, or nothing after
    the step does."""
    last, after = life.born, None
    for index in range(life.born + 1, min(life.died + 1, len(subject.schedule.steps))):
        if life.anode not in subject.touched[index]:
            continue
        if index >= step:
            after = index
            break
        last = index
    if after is None or after == step or last >= step:
        return None
    if (
        isinstance(next_touch := subject.schedule.steps[after], Free)
        and next_touch.anode == life.anode
    ):
        return None
    return HeldGap(life.anode, last, after)


def keep(subject: Subject, *names: str) -> Effect | None:
    """Holding aNodes from when they are first made to their last use, without making them again
    or copying them. What was made again for their sake alone is not made either."""
    steps: list[Step] = list(subject.schedule.elementary.steps)
    last = {s.anode: i for i, s in enumerate(steps) if isinstance(s, Free) and s.anode in names}
    kept = [
        replace(s, nosave=False)
        if isinstance(s, Compute) and s.nosave and _writes(subject, s, names)
        else s
        for i, s in enumerate(steps)
        if isinstance(s, Compute) or s.anode not in names or i == last.get(s.anode)
    ]
    return _effect(subject, _without_useless(subject.program, kept))


def _writes(subject: Subject, step: Compute, names: Sequence[str]) -> bool:
    return not set(names).isdisjoint(subject.program.graph.cnode[step.cnode].results)


def rebuild(subject: Subject, gap: HeldGap) -> Effect | None:
    """Freeing an aNode over a gap, and making it again before its next use from what is held
    there; what that takes is made again first, and freed at once."""
    graph, steps = subject.program.graph, subject.schedule.steps
    held = {life.anode for life in subject.timeline.lives if life.born < gap.next <= life.died}
    held |= {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
    held.discard(gap.anode)
    chain = _chain(subject, gap.anode, held)
    if chain is None:
        return None
    made = [Compute(c.name) for c in chain]
    inserted: list[Step] = []
    last_use: dict[str, int] = {}
    for i, c in enumerate(chain):
        fresh = (r for r in c.results_at(2) if r not in held and r != gap.anode)
        last_use.update(dict.fromkeys(fresh, i))
        last_use.update({r: i for r in graph.reads(c, 2) if r in last_use})
        if c.token is not None and c.token not in held:
            last_use[c.token] = i
    for i, step in enumerate(made):
        inserted.append(step)
        inserted += [Free(name) for name, use in last_use.items() if use == i]
    changed = [
        *steps[: gap.last + 1],
        Free(gap.anode),
        *steps[gap.last + 1 : gap.next],
        *inserted,
        *steps[gap.next :],
    ]
    return _effect(subject, changed)


def _chain(subject: Subject, name: str, held: set[str]) -> list[CNode] | None:
    """The cNodes, in the order of capture, that make `name` from `held`; None where nothing can."""
    graph = subject.program.graph
    needed: set[str] = set()
    stack = [name]
    while stack:
        writer = graph.writer.get(stack.pop())
        if writer is None or writer.is_loss or writer.is_accumulate:
            return None
        if writer.name in needed:
            continue
        again = subject.trace.executions.get(writer.name, 0) > 1
        if writer.token is not None and again and writer.token not in held:
            return None  # its random state is gone by then
        needed.add(writer.name)
        stack += [read for read in graph.reads(writer, 2) if read not in held]
    return [c for c in graph.cnodes if c.name in needed]


def move(subject: Subject, gap: HeldGap, step: int) -> Effect | None:
    """Copying an aNode to the host over `step` within a gap; None where the target has no
    bandwidths."""
    target, steps = subject.program.target, subject.schedule.steps
    if target.d2h_bytes_per_s is None or target.h2d_bytes_per_s is None:
        return None
    name = gap.anode
    changed = [
        *steps[: gap.last + 1],
        Offload(name),
        *steps[gap.last + 1 : step],
        Wait(name),
        Free(name),
        *steps[step : gap.next],
        Prefetch(name),
        Wait(name),
        HostFree(name),
        *steps[gap.next :],
    ]
    return _effect(subject, changed)


def _effect(subject: Subject, steps: Sequence[Step]) -> Effect | None:
    """By simulation; None where the steps make no valid schedule."""
    schedule = Schedule(subject.schedule.name, "", tuple(steps))
    try:
        trace = simulate(subject.program, schedule)
    except FBError:
        return None
    now = subject.trace
    limit = subject.program.target.host_bytes
    if limit is not None and trace.host_peak_bytes > max(limit, now.host_peak_bytes):
        return None
    return Effect(
        trace.peak_bytes,
        trace.time_ns,
        trace.peak_bytes - now.peak_bytes,
        trace.time_ns - now.time_ns,
    )


def _without_useless(program: Program, steps: Sequence[Step]) -> list[Step]:
    """The steps without later executions whose results nobody reads, and the frees of these."""
    graph = program.graph
    fresh: dict[int, tuple[str, ...]] = {}
    number: dict[int, int] = {}
    for index, step, state in replay(program, Schedule("", "", tuple(steps))):
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            number[index] = state.executions.get(c.name, 0) + 1
            # Phantoms of a `nosave` are gone at once: no later free belongs to them.
            fresh[index] = tuple(
                r
                for r in c.results_at(number[index])
                if r not in state.live and not (step.nosave and graph.anode[r].kind == "phantom")
            )
        state.apply(index, step)
    used = {a.name for a in graph.anodes if a.kind in KEPT_KINDS}
    free_at: dict[str, int] = {}
    useless: set[int] = set()
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if isinstance(step, Compute):
            c, n = graph.cnode[step.cnode], number[index]
            if n > 1 and used.isdisjoint(fresh[index]):
                useless.add(index)
                useless |= {free_at.pop(r) for r in fresh[index] if r in free_at}
                continue
            used.difference_update(fresh[index])
            used.update(graph.reads(c, n))
        elif isinstance(step, Free):
            used.discard(step.anode)
            free_at[step.anode] = index
        elif step.copies == "d2h":
            used.add(step.anode)
    left = [step for i, step in enumerate(steps) if i not in useless]
    return _without_tokens(program, left)


def _without_tokens(program: Program, steps: Iterable[Step]) -> list[Step]:
    """The random state of a cNode that runs once is not kept, so there is nothing to free."""
    listed = list(steps)
    runs: dict[str, int] = {}
    for step in listed:
        if isinstance(step, Compute):
            runs[step.cnode] = runs.get(step.cnode, 0) + 1
    unkept = {c.token for c in program.graph.cnodes if c.token and runs.get(c.name, 0) <= 1}
    return [s for s in listed if isinstance(s, Compute) or s.anode not in unkept]
