"""Correct plans that copy to the host and back, made of correct ones that do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remat_compile.ir.schedule import Free, HostFree, Offload, Prefetch, Schedule, Step, Wait

from .case import Case, Life

MOST = 6
"""So many storages of a plan travel."""
AHEAD = 3
"""A copy back is issued so many steps before its first reader."""


@dataclass(frozen=True)
class Trip:
    """The steps of one storage's way to the host and back, and its first reader after."""

    anode: str
    offload: int
    landed: int
    freed: int
    prefetch: int
    back: int
    reader: int
    hostfree: int


def _travellers(case: Case) -> Iterator[Life]:
    """Instances that are read before the loss and after it, and freed by a step."""
    for life in case.lives:
        before = [i for i in life.reads if i < case.loss]
        after = [i for i in life.reads if i > case.loss + AHEAD]
        if life.freed and before and after and len(before) + len(after) == len(life.reads):
            yield life


def offloaded(case: Case) -> Schedule:
    """The plan of `case`, some of what lives across the loss on the host meanwhile."""
    edit = case.edit()
    lives = list(_travellers(case))
    for life in lives[:: max(1, len(lives) // MOST)]:
        name = life.anode
        last = max(i for i in life.reads if i < case.loss)
        first = min(i for i in life.reads if i > case.loss)
        for step in (Free(name), Wait(name)):
            edit.insert(step, before=case.loss)
        _swap(edit.items, edit.at(case.loss) - 2)
        edit.after(last, Offload(name))
        edit.insert(Prefetch(name), before=max(case.loss + 1, first - AHEAD))
        edit.insert(Wait(name), before=first)
        edit.after(first, HostFree(name))
    steps = tuple(step for _, step in edit.items)
    return Schedule("offload", case.schedule.planner, steps)


def _swap(items: list[tuple[int, Step]], at: int) -> None:
    items[at : at + 2] = reversed(items[at : at + 2])


def trips(case: Case) -> Iterator[Trip]:
    """The trips of an offloaded plan, told from its steps."""
    for offload, step in enumerate(case.steps):
        if not isinstance(step, Offload):
            continue
        name = step.anode

        def find(kind: type[Step], start: int, name: str = name) -> int:
            return next(
                i
                for i in range(start, len(case.steps))
                if isinstance(s := case.steps[i], kind) and getattr(s, "anode", "") == name
            )

        landed = find(Wait, offload)
        prefetch = find(Prefetch, landed)
        back = find(Wait, prefetch)
        reader = next(e.index for e in case.events[back:] if e.cnode and name in e.reads)
        hostfree = find(HostFree, prefetch)
        yield Trip(name, offload, landed, find(Free, landed), prefetch, back, reader, hostfree)
