"""Updates of an optimizer in random programs, and steps of a plan in other places."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import ANode, Call, CNode, Ref, View
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Home, Schedule
from remat_compile.ir.semantics.simulate import simulate


def with_random_updates(rng: Random, program: Program) -> Program:
    """Each parameter with a gradient is updated: from the gradient or a view of it, which the
    caller gets too or not, with up to two states. At times it reads what another made."""
    graph, binding = program.graph, program.binding
    anodes, views, cnodes = list(graph.anodes), list(graph.views), list(graph.cnodes)
    of_kind = {a.name: a for a in anodes}
    params, news = [], list[str]()
    for p in binding.params:
        if p.grad is None:
            params.append(p)
            continue
        gradient = p.grad
        if rng.random() < 0.6:  # the caller does not get it
            storage = graph.storage[gradient]
            anodes[anodes.index(of_kind[storage])] = replace(of_kind[storage], kind="grad")
            p = replace(p, grad=None)
        params.append(p)
        if rng.random() < 0.3:
            views.append(View(f"{gradient}.v", graph.storage[gradient], _view_of(gradient)))
            gradient = views[-1].name
        olds = [p.name]
        for n in range(rng.randrange(3)):
            olds.append(f"{p.name}.s{n}")
            anodes.append(replace(of_kind[p.name], name=olds[-1], kind="opt_state"))
        made = [f"{old}.new" for old in olds]
        anodes += [_renamed(anodes, old, new) for old, new in zip(olds, made, strict=True)]
        more = [rng.choice(news)] if news and rng.random() < 0.3 else []
        args = tuple(Ref(name) for name in (*olds, gradient, *more))
        call = Call("update", (*args, "torch.optim.AdamW", 0))
        update = CNode(f"U{len(news)}", "opt", tuple(made), call)
        times = rng.choice((None, 3, 2200)), rng.choice((None, 7, 9999))
        cnodes.append(replace(update, time_ns=times[0], host_time_ns=times[1]))
        news += made
    graph = replace(graph, anodes=tuple(anodes), views=tuple(views), cnodes=tuple(cnodes))
    return replace(program, graph=graph, binding=replace(binding, params=tuple(params)))


def _view_of(name: str) -> Call:
    return Call("aten.t.default", (Ref(name),))


def _renamed(anodes: list[ANode], old: str, new: str) -> ANode:
    return replace(next(a for a in anodes if a.name == old), name=new, kind="updated")


def stirred(rng: Random, program: Program, schedule: Schedule, tries: int) -> Schedule:
    """The schedule with some steps elsewhere, wherever the simulator has nothing against it."""
    first = sum(isinstance(step, Home) for step in schedule.steps)
    for _ in range(tries):
        steps = list(schedule.steps)
        steps.insert(rng.randrange(first, len(steps)), steps.pop(rng.randrange(first, len(steps))))
        moved = replace(schedule, steps=tuple(steps))
        try:
            simulate(program, moved)
        except FBError:
            continue
        schedule = moved
    return schedule
