"""A plan that sends every activation to the host between its last reader in the forward and its
first reader in the backward."""

from __future__ import annotations

from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
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


def offload_everything(program: Program) -> Schedule:
    """Each `offload` stands behind the writer, each `prefetch` one computation ahead of the first
    reader in the backward; waits stand as late as they may."""
    graph = program.graph
    steps = list(frees_after_last_use(graph, capture_order(graph)))
    computed = [step.cnode for step in steps if isinstance(step, Compute)]
    border = computed.index(graph.loss.name)
    results = {graph.storage[r.name] for r in program.binding.results}
    before: dict[str, list[Step]] = {}
    after: dict[str, list[Step]] = {}
    for anode in graph.anodes:
        name = anode.name
        users = [c for c in computed if name in graph.reads(graph.cnode[c])]
        forward = [c for c in users if computed.index(c) < border]
        backward = [c for c in users if computed.index(c) > border]
        writer = graph.writer.get(name)
        if writer is None or not backward or computed.index(writer.name) >= border:
            continue
        if name in results or anode.kind in ("pending", "rng"):
            continue
        after.setdefault(writer.name, []).append(Offload(name))
        last = forward[-1] if forward else writer.name
        after.setdefault(last, []).extend((Wait(name), Free(name)))
        ahead = computed[computed.index(backward[0]) - 1]
        (before if ahead != graph.loss.name else after).setdefault(ahead, []).append(Prefetch(name))
        before.setdefault(backward[0], []).extend((Wait(name), HostFree(name)))
    scheduled: list[Step] = []
    for step in steps:
        if isinstance(step, Compute):
            # What a computation begins ahead of itself comes behind the waits for its own reads.
            own = before.get(step.cnode, [])
            scheduled += sorted(own, key=lambda s: isinstance(s, Prefetch))
            scheduled += [step, *after.get(step.cnode, ())]
        else:
            scheduled.append(step)
    return Schedule("plan", "by hand", tuple(scheduled))
