"""Ways to break a schedule: each changes a list of steps in place, and often makes it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from remat_compile.ir.schedule import Compute, Free, Step

Break = Callable[[Random, list[Step]], None]


def _drop(rng: Random, steps: list[Step]) -> None:
    del steps[rng.randrange(len(steps))]


def _swap(rng: Random, steps: list[Step]) -> None:
    i, j = rng.randrange(len(steps)), rng.randrange(len(steps))
    steps[i], steps[j] = steps[j], steps[i]


def _swap_neighbours(rng: Random, steps: list[Step]) -> None:
    i = rng.randrange(len(steps) - 1) if len(steps) > 1 else 0
    steps[i : i + 2] = reversed(steps[i : i + 2])


def _repeat(rng: Random, steps: list[Step]) -> None:
    steps.insert(rng.randrange(len(steps) + 1), rng.choice(steps))


def _drop_recompute(rng: Random, steps: list[Step]) -> None:
    seen: set[str] = set()
    again = []
    for index, step in enumerate(steps):
        if isinstance(step, Compute):
            if step.cnode in seen:
                again.append(index)
            seen.add(step.cnode)
    if again:
        del steps[rng.choice(again)]


def _move_free(rng: Random, steps: list[Step]) -> None:
    frees = [index for index, step in enumerate(steps) if isinstance(step, Free)]
    if frees:
        step = steps.pop(rng.choice(frees))
        steps.insert(rng.randrange(len(steps) + 1), step)


def _toggle_nosave(rng: Random, steps: list[Step]) -> None:
    for index, step in enumerate(steps):
        if isinstance(step, Compute) and rng.random() < 0.5:
            steps[index] = replace(step, nosave=not step.nosave)


BREAKS: dict[str, Break] = {
    "drop": _drop,
    "swap": _swap,
    "swap neighbours": _swap_neighbours,
    "repeat": _repeat,
    "drop a recomputation": _drop_recompute,
    "move a free": _move_free,
    "toggle nosave": _toggle_nosave,
}
