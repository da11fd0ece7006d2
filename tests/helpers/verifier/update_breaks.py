"""Ways to break a plan with updates, each of which every opinion must refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import (
    Compute,
    Free,
    HostFree,
    Offload,
    Prefetch,
    Step,
    StorageStep,
    Wait,
)

Break = Callable[[Random, Program, list[Step]], bool]
"""Changes the steps of a plan with updates; False where there is no place for it."""

BREAKS: dict[str, Break] = {}


def breaks(name: str) -> Callable[[Break], Break]:
    def register(seed: Break) -> Break:
        BREAKS[name] = seed
        return seed

    return register


def _updates(
    program: Program, steps: list[Step], *, on_host: bool | None = None
) -> list[tuple[int, CNode]]:
    """The updates of a plan, on one side or on both, with their places."""
    runs = [
        (i, program.graph.cnode[s.cnode], s) for i, s in enumerate(steps) if isinstance(s, Compute)
    ]
    return [(i, c) for i, c, s in runs if c.is_update and on_host in (None, s.on_host)]


def _drop(rng: Random, steps: list[Step], places: list[int]) -> bool:
    if places:
        del steps[rng.choice(places)]
    return bool(places)


def _next(steps: list[Step], step: Step, start: int) -> int | None:
    return next((i for i in range(start, len(steps)) if steps[i] == step), None)


def _drop_copies(rng: Random, steps: list[Step], issued: list[int]) -> bool:
    """Drops a copy and its wait."""
    if issued:
        at = rng.choice(issued)
        step = steps[at]
        assert isinstance(step, StorageStep)
        del steps[_next(steps, Wait(step.anode), at) or at], steps[at]
    return bool(issued)


@breaks("update forgotten")
def forget(rng: Random, program: Program, steps: list[Step]) -> bool:
    return _drop(rng, steps, [i for i, _ in _updates(program, steps)])


@breaks("update done twice")
def twice(rng: Random, program: Program, steps: list[Step]) -> bool:
    at, _ = rng.choice(_updates(program, steps))
    steps.insert(rng.randrange(at, len(steps)), steps[at])
    return True


@breaks("update on the other side")
def other_side(rng: Random, program: Program, steps: list[Step]) -> bool:
    at, _ = rng.choice(_updates(program, steps))
    step = steps[at]
    assert isinstance(step, Compute)
    steps[at] = replace(step, on_host=not step.on_host)
    return True


@breaks("another cNode on the host")
def of_another(rng: Random, program: Program, steps: list[Step]) -> bool:
    own = {i for i, _ in _updates(program, steps)}
    at = rng.choice([i for i, s in enumerate(steps) if isinstance(s, Compute) and i not in own])
    step = steps[at]
    assert isinstance(step, Compute)
    steps[at] = replace(step, on_host=True)
    return True


@breaks("old contents read")
def late_read(rng: Random, program: Program, steps: list[Step]) -> bool:
    """A run that reads them comes after the update."""
    graph = program.graph
    for at, c in _updates(program, steps):
        old = dict(c.takes_over)
        readers = [
            o.name for o in graph.cnodes if not o.is_update and old.keys() & {*graph.reads(o)}
        ]
        if readers:
            steps.insert(rng.randrange(at + 1, len(steps) + 1), Compute(rng.choice(readers)))
            return True
    return False


@breaks("old contents copied to the device")
def stale(rng: Random, program: Program, steps: list[Step]) -> bool:
    at, c = rng.choice(_updates(program, steps))
    old, _ = rng.choice(c.takes_over)
    place = rng.randrange(at + 1, len(steps) + 1)
    steps[place:place] = [Prefetch(old), Wait(old), Free(old)]
    return True


@breaks("update before its gradient")
def early(rng: Random, program: Program, steps: list[Step]) -> bool:
    at, c = rng.choice(_updates(program, steps))
    gradients = {*program.graph.reads(c)} - dict(c.takes_over).keys()
    makers = {program.graph.writer[name].name for name in gradients}
    places = [i for i, s in enumerate(steps) if isinstance(s, Compute) and s.cnode in makers]
    steps.insert(min(places), steps.pop(at))
    return True


def _waits_after(program: Program, steps: list[Step], *, made: bool) -> Iterator[int]:
    """The waits for what updates on the host make, or for what they only read there."""
    for at, c in _updates(program, steps, on_host=True):
        old = dict(c.takes_over)
        names = c.results if made else [n for n in program.graph.reads(c) if n not in old]
        yield from (i for n in names if (i := _next(steps, Wait(n), at)) is not None)


@breaks("update on the host not waited for")
def hurry(rng: Random, program: Program, steps: list[Step]) -> bool:
    return _drop(rng, steps, [*_waits_after(program, steps, made=True)])


@breaks("update on the host read and not waited for")
def hurry_reads(rng: Random, program: Program, steps: list[Step]) -> bool:
    return _drop(rng, steps, [*_waits_after(program, steps, made=False)])


@breaks("gradient not waited for")
def racing(rng: Random, program: Program, steps: list[Step]) -> bool:
    """Its offload is waited for only after the update on the host."""
    for at, c in _updates(program, steps, on_host=True):
        for name in {*program.graph.reads(c)} - dict(c.takes_over).keys():
            waits = [i for i in range(at) if steps[i] == Wait(name)]
            if waits and _next(steps, Free(name), waits[-1]) not in range(waits[-1], at):
                steps.insert(at, steps.pop(waits[-1]))
                return True
    return False


@breaks("stale home left there")
def left(rng: Random, program: Program, steps: list[Step]) -> bool:
    olds = [
        HostFree(o) for _, c in _updates(program, steps, on_host=False) for o, _ in c.takes_over
    ]
    return _drop(rng, steps, [i for i, step in enumerate(steps) if step in olds])


@breaks("home given back before the update")
def give_early(rng: Random, program: Program, steps: list[Step]) -> bool:
    for at, c in _updates(program, steps, on_host=False):
        for old, _ in c.takes_over:
            place = _next(steps, HostFree(old), at)
            if place is not None:
                steps.insert(rng.randrange(len([*steps[:at]])), steps.pop(place))
                return True
    return False


@breaks("updated not brought home")
def keep(rng: Random, program: Program, steps: list[Step]) -> bool:
    homes = {s.anode for s in steps if not isinstance(s, Compute) and s.word == "on host"}
    names = {
        n for _, c in _updates(program, steps, on_host=False) for o, n in c.takes_over if o in homes
    }
    last = {s.anode: i for i, s in enumerate(steps) if isinstance(s, Offload) and s.anode in names}
    return _drop_copies(rng, steps, [*last.values()])


@breaks("updated given back")
def lose(rng: Random, program: Program, steps: list[Step]) -> bool:
    _, c = rng.choice(_updates(program, steps))
    old, name = rng.choice(c.takes_over)
    homes = {s.anode for s in steps if not isinstance(s, Compute) and s.word == "on host"}
    steps.append(HostFree(name) if old in homes else Free(name))
    return True


@breaks("updated parameter not brought")
def miss(rng: Random, program: Program, steps: list[Step]) -> bool:
    """The update on the device reads it, and so does nobody before."""
    places = []
    for at, c in _updates(program, steps, on_host=False):
        for old, _ in c.takes_over:
            fetched = [i for i in range(at) if steps[i] == Prefetch(old)]
            places += fetched[-1:]
    return _drop_copies(rng, steps, places)
