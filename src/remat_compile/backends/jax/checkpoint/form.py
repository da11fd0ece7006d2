"""The plans that `jax.checkpoint` can express: keep S, offload O, run the rest again.

Such a plan runs the forward once, in the order of capture. Its backward runs in the order
of capture too, and before the first computation that needs a value of a segment that was
not kept, all of what the backward needs of that segment runs again, once. Values that
pass from one segment to a later one are kept on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.analysis.order import frees_after_last_use
from ....ir.graph import Graph
from ....ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Step, Wait
from ...python.names import loss_index
from ..emit.executions import constants


@dataclass(frozen=True)
class Form:
    """`starts` are indices into the forward cNodes at which segments begin, 0 the first;
    `kept` aNodes that stay on the device, `offloaded` those that go to the host."""

    starts: tuple[int, ...]
    kept: frozenset[str]
    offloaded: frozenset[str]


@dataclass(frozen=True)
class Misfit:
    """The first step of a schedule that the form has not, and what it has instead."""

    step: Step
    why: str


def form_of(graph: Graph, schedule: Schedule) -> Form:
    """The form nearest to a schedule: it keeps and offloads the same, and its segments
    begin where the schedule's recomputations do, or at the place before where it may."""
    border = loss_index(graph, schedule)
    alive, host = _at_the_loss(graph, schedule.steps[:border])
    needed = _read_after(graph, schedule.steps[border + 1 :])
    kept = frozenset(alive & needed)
    # What the schedule lets go and reads again comes from the host.
    offloaded = frozenset(host - kept)
    forward = [c for c in graph.cnodes if c.phase == "fwd"]
    place = {c.name: i for i, c in enumerate(forward)}
    cuts = _cuts(graph, kept)
    starts = {0}
    runs = {s.cnode for s in schedule.steps[:border] if isinstance(s, Compute)}
    group: list[int] = []
    for step in schedule.steps[border + 1 :]:
        if not isinstance(step, Compute):
            continue
        if step.cnode in runs and step.cnode in place:
            group.append(place[step.cnode])
        elif group:
            starts.add(max(cut for cut in cuts if cut <= min(group)))
            group = []
    return Form(tuple(sorted(starts)), kept, offloaded)


def schedule_of(graph: Graph, form: Form, name: str, planner: str) -> Schedule:
    """The schedule that a form stands for."""
    kept = form.kept | form.offloaded
    forward = [c for c in graph.cnodes if c.phase == "fwd"]
    segment = {}
    for i, c in enumerate(forward):
        segment[c.name] = max(s for s in form.starts if s <= i)
    again = _again(graph, kept)
    order = [c.name for c in forward] + [graph.loss.name]
    done: set[int] = set()
    for c in graph.cnodes:
        if c.phase != "bwd":
            continue
        for read in graph.reads(c):
            writer = graph.writer.get(read)
            if writer is None or writer.name not in again or read in kept:
                continue
            if (begin := segment[writer.name]) not in done:
                done.add(begin)
                order += [f.name for f in forward if f.name in again and segment[f.name] == begin]
        order.append(c.name)
    return _with_copies(graph, Schedule(name, planner, frees_after_last_use(graph, order)), form)


def misfit(graph: Graph, schedule: Schedule, form: Form) -> Misfit | None:
    """Where a schedule first does something else than the form; None where it never does.

    The order of frees and of waits is left to XLA and does not count.
    """
    wanted = [s for s in schedule_of(graph, form, "", "").steps if _counts(s)]
    actual = [s for s in schedule.steps if _counts(s)]
    for step, other in zip(actual, wanted, strict=False):
        if step != other:
            return Misfit(step, f"jax.checkpoint runs {_said(other)} there")
    if len(actual) > len(wanted):
        return Misfit(actual[len(wanted)], "jax.checkpoint is done there")
    if len(wanted) > len(actual):
        return Misfit(schedule.steps[-1], f"jax.checkpoint runs {_said(wanted[len(actual)])} too")
    return None


def _said(step: Step) -> str:
    match step:
        case Compute(name):
            return name
        case Offload(name) | Prefetch(name):
            return f"{type(step).__name__.lower()} %{name}"
        case _:
            return type(step).__name__.lower()


def _counts(step: Step) -> bool:
    return isinstance(step, Compute | Offload)


def _at_the_loss(graph: Graph, steps: tuple[Step, ...]) -> tuple[set[str], set[str]]:
    """The values that the forward leaves on the device, and those only on the host."""
    alive: set[str] = set()
    host: set[str] = set()
    for step in steps:
        match step:
            case Compute(name, nosave):
                results = graph.cnode[name].results
                alive.update(results)
                if nosave:
                    alive -= {n for n in results if graph.anode[n].kind == "phantom"}
            case Free(name):
                alive.discard(name)
            case Offload(name):
                host.add(name)
            case _:
                pass
    return alive, host


def _read_after(graph: Graph, steps: tuple[Step, ...]) -> set[str]:
    """The forward's values that the backward reads."""
    made: set[str] = set()
    reads: set[str] = set()
    for step in steps:
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            reads.update(n for n in graph.reads(c, 2 if c.phase == "fwd" else 1) if n not in made)
            made.update(c.results)
        elif isinstance(step, Prefetch):
            made.add(step.anode)
    return reads


def _cuts(graph: Graph, kept: frozenset[str]) -> list[int]:
    """Places in the forward before which a segment may begin: all that passes is kept on
    the device, where JAX keeps the inputs of a segment."""
    forward = [c for c in graph.cnodes if c.phase == "fwd"]
    constant = constants(graph)
    place = {c.name: i for i, c in enumerate(forward)}
    crossed = [0] * (len(forward) + 1)
    for c in forward:
        for name in graph.reads(c):
            writer = graph.writer.get(name)
            if writer is None or name in kept or writer.name in constant:
                continue
            for i in range(place[writer.name] + 1, place[c.name] + 1):
                crossed[i] += 1
    return [i for i in range(len(forward)) if crossed[i] == 0]


def _again(graph: Graph, kept: frozenset[str]) -> set[str]:
    """The forward cNodes that the backward needs again."""
    stack = [name for c in graph.in_phase("bwd") for name in graph.reads(c) if name not in kept]
    recomputed: set[str] = set()
    while stack:
        writer = graph.writer.get(stack.pop())
        if writer is None or writer.phase != "fwd" or writer.name in recomputed:
            continue
        recomputed.add(writer.name)
        stack += [name for name in graph.reads(writer, 2) if name not in kept]
    return recomputed


def _with_copies(graph: Graph, schedule: Schedule, form: Form) -> Schedule:
    """Each offloaded aNode goes to the host after its last read in the forward, and comes
    back before its first after the loss."""
    if not form.offloaded:
        return schedule
    border = loss_index(graph, schedule)
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    for i, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            for name in (*graph.reads(c), *c.results):
                if i < border:
                    last[name] = i
                elif name not in first:
                    first[name] = i
    steps: list[Step] = []
    for i, step in enumerate(schedule.steps):
        for name in sorted(n for n in form.offloaded if first.get(n) == i):
            steps += [Prefetch(name), Wait(name), HostFree(name)]
        steps.append(step)
        for name in sorted(n for n in form.offloaded if last.get(n) == i):
            steps += [Offload(name), Wait(name), Free(name)]
    return Schedule(schedule.name, schedule.planner, tuple(steps))
