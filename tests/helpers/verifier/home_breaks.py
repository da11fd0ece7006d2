"""Ways to break a plan with homes, each of which every opinion must refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from helpers.programs.random_schedules import may_be_away
from remat_compile.ir.graph import CALLER_KINDS
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Free, Home, HostFree, Offload, Prefetch, Step, Wait

Break = Callable[[Random, Program, list[Step], Sequence[str]], bool]
"""Changes the steps of a plan with these homes; False where there is no place for it."""

BREAKS: dict[str, Break] = {}


def breaks(name: str) -> Callable[[Break], Break]:
    def register(seed: Break) -> Break:
        BREAKS[name] = seed
        return seed

    return register


def _drop_one(rng: Random, steps: list[Step], candidates: Sequence[Step]) -> bool:
    places = [i for i, step in enumerate(steps) if step in candidates]
    if places:
        del steps[rng.choice(places)]
    return bool(places)


@breaks("home forgotten")
def forget(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    used = {s.anode for s in steps if not isinstance(s, Compute | Home)}
    return _drop_one(rng, steps, [Home(name) for name in homes if name in used])


@breaks("home of what stays on the device")
def add(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    """Of a gradient, or of a parameter that some step reads."""
    read = {r for c in program.graph.cnodes for r in program.graph.reads(c) if _runs(steps, c.name)}
    kind = program.graph.anode
    names = [
        name
        for name in may_be_away(program)
        if name not in homes and (name in read or kind[name].kind == "param_grad")
    ]
    if names:
        steps.insert(0, Home(rng.choice(names)))
    return bool(names)


def _runs(steps: Sequence[Step], name: str) -> bool:
    return any(isinstance(step, Compute) and step.cnode == name for step in steps)


@breaks("home said twice")
def twice(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    steps.insert(rng.randrange(len(homes)), Home(rng.choice(homes)))
    return True


@breaks("home said late")
def late(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    step = steps.pop(rng.randrange(len(homes)))
    steps.insert(rng.randrange(len(homes), len(steps) + 1), step)
    return True


@breaks("home of what cannot be away")
def fixed(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    others = {a.name for a in program.graph.anodes} - {*may_be_away(program)}
    steps.insert(rng.randrange(len(homes) + 1), Home(rng.choice(sorted(others))))
    return True


@breaks("hostfree of a home")
def give_back(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    own = [name for name in homes if program.graph.anode[name].kind in CALLER_KINDS]
    if own:
        steps.insert(rng.randrange(len(homes), len(steps) + 1), HostFree(rng.choice(own)))
    return bool(own)


@breaks("offload of a home")
def offload(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    own = [Wait(n) for n in homes if program.graph.anode[n].kind in CALLER_KINDS]
    places = [i for i, step in enumerate(steps) if step in own]
    if places:
        at = rng.choice(places)
        name = steps[at].anode  # type: ignore[union-attr]
        steps[at + 1 : at + 1] = [Offload(name), Wait(name)]
    return bool(places)


@breaks("home left alive")
def leave(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    last = {s.anode: i for i, s in enumerate(steps) if isinstance(s, Free) and s.anode in homes}
    if last:
        del steps[rng.choice(sorted(last.values()))]
    return bool(last)


@breaks("offload of a gradient forgotten")
def keep(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    last = {s.anode: i for i, s in enumerate(steps) if isinstance(s, Offload) and s.anode in homes}
    if last:
        name = rng.choice(sorted(last))
        del steps[next(i for i in range(last[name], len(steps)) if steps[i] == Wait(name))]
        del steps[last[name]]
    return bool(last)


@breaks("prefetch of a home forgotten")
def miss(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    places = [i for i, s in enumerate(steps) if isinstance(s, Prefetch) and s.anode in homes]
    if places:
        at = rng.choice(places)
        name = steps[at].anode  # type: ignore[union-attr]
        del steps[next(i for i in range(at, len(steps)) if steps[i] == Wait(name))]
        del steps[at]
    return bool(places)


@breaks("wait for a home forgotten")
def hurry(rng: Random, program: Program, steps: list[Step], homes: Sequence[str]) -> bool:
    return _drop_one(rng, steps, [Wait(name) for name in homes])
