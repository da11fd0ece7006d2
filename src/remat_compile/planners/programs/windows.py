"""Which part of a plan to decide anew: the neighbourhoods of `polish`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ..instance import Instance, Order
from .events import Event, Pairs

__all__ = ["Window", "Windows", "window_events"]

_FREE = 1500
"""In orders of up to this many more runs than cNodes every one of them may be left out."""


@dataclass(frozen=True)
class Window:
    """Options to add: for each stage, what may be recomputed in it (rising)."""

    options: dict[int, list[int]]

    @property
    def size(self) -> int:
        return sum(len(ks) for ks in self.options.values())


def window_events(instance: Instance, order: Order, window: Window) -> tuple[list[Event], set[int]]:
    """The events of a plan with the window's options put in, and the indices of those
    optional events that the plan runs.

    Recomputations of the plan are optional too, so that what the window gains can be
    spent elsewhere; in very long plans only those in the window.
    """
    free = len(order) - len(instance.names_C) <= _FREE
    events: list[Event] = []
    runs: set[int] = set()
    seen: set[int] = set()
    stage: list[int] = []

    def close(extra: list[int], optional: bool) -> None:
        present = set(stage)
        new = [k for k in extra if k not in present and k in seen]
        for k in stage:
            while new and new[0] < k:
                events.append(Event(new.pop(0), False, True))
            if optional:
                runs.add(len(events))
            events.append(Event(k, False, optional))
        events.extend(Event(k, False, True) for k in new)
        stage.clear()

    for c in order:
        if c in seen:
            stage.append(c)
            continue
        close(window.options.get(c, []), free or c in window.options)
        seen.add(c)
        events.append(Event(c, True, False))
    close([], free)
    return events, runs


@dataclass
class Windows:
    """Draws windows at random: runs of stages, with what may be recomputed in them."""

    instance: Instance
    rng: Random
    forward: Pairs = field(init=False)
    both: Pairs = field(init=False)

    def __post_init__(self) -> None:
        self.forward = Pairs(self.instance, backward=False)
        self.both = Pairs(self.instance, backward=True)

    def draw(self, most: int) -> Window:
        """One run of stages, or two apart, of about `most` options in all.

        Most windows lie after the loss and recompute forward cNodes up to some number of
        reads away; a few lie anywhere and recompute backward ones too.
        """
        rng, inst = self.rng, self.instance
        n = len(inst.names_C)
        anywhere = rng.random() < 0.15
        pairs = self.both if rng.random() < 0.15 else self.forward
        low = 0 if anywhere or inst.loss >= n - 1 else inst.loss + 1
        depth = rng.choice((4, 8, 16, 1 << 30))
        parts = rng.choice((1, 1, 2))
        options: dict[int, list[int]] = {}
        for _ in range(parts):
            self._grow(rng.randrange(low, n), low, most // parts, pairs, depth, options)
        return Window(options)

    def _grow(
        self,
        at: int,
        low: int,
        most: int,
        pairs: Pairs,
        depth: int,
        options: dict[int, list[int]],
    ) -> None:
        """Adds stages to both sides of one until there are `most` options."""
        n = len(self.instance.names_C)
        total = 0
        for step in range(n):
            for t in {at - step, at + step}:
                if low <= t < n and t not in options and total < most:
                    found = pairs.of(t, self.instance.reads_C[t], depth)
                    if len(found) > most:
                        found = found[-most:]
                    options[t] = found
                    total += len(found) + 1
            if total >= most or (at - step < low and at + step >= n):
                return
