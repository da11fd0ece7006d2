"""Which part of a plan to decide anew: the neighbourhoods of `polish`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from ._events import Event, useful_pairs
from ._instance import Instance, Order

__all__ = ["Window", "Windows", "window_events"]


@dataclass(frozen=True)
class Window:
    """Options to add: for each stage, what may be recomputed in it (rising)."""

    options: dict[int, list[int]]

    @property
    def size(self) -> int:
        return sum(len(ks) for ks in self.options.values())


def window_events(instance: Instance, order: Order, window: Window) -> tuple[list[Event], set[int]]:
    """The events of a plan with the window's options put in, and which of them the plan
    runs. Recomputations of the plan are options too: any of them may be left out."""
    events: list[Event] = []
    runs: set[int] = set()
    seen: set[int] = set()
    stage: list[int] = []

    def flush(extra: list[int]) -> None:
        present = set(stage)
        new = [k for k in extra if k not in present]
        for k in stage:
            while new and new[0] < k:
                events.append(Event(new.pop(0), False, True))
            runs.add(len(events))
            events.append(Event(k, False, True))
        events.extend(Event(k, False, True) for k in new)

    for c in order:
        if c in seen:
            stage.append(c)
            continue
        seen.add(c)
        flush(window.options.get(c, []))
        events.append(Event(c, True, False))
        stage = []
    flush([])
    return events, runs


@dataclass
class Windows:
    """Draws windows at random; `most` pairs at a time."""

    instance: Instance
    rng: Random
    pairs: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.pairs = useful_pairs(self.instance)

    def draw(self, order: Order, most: int) -> Window:
        """A run of stages, or two, around places where the plan recomputes."""
        rng = self.rng
        busy = [t for t, ks in enumerate(self.pairs) if ks]
        if not busy:
            return Window({})
        parts = rng.choice((1, 1, 2))
        options: dict[int, list[int]] = {}
        for _ in range(parts):
            at = rng.randrange(len(busy))
            self._grow(busy, at, most // parts, options)
        return Window(options)

    def _grow(self, busy: list[int], at: int, most: int, options: dict[int, list[int]]) -> None:
        """Adds stages to both sides of one until there are `most` pairs."""
        depth = self.rng.choice((4, 8, 16, 1000))
        total = 0
        low = high = at
        while total < most and (low >= 0 or high < len(busy)):
            for place in {low, high}:
                if 0 <= place < len(busy) and busy[place] not in options:
                    t = busy[place]
                    options[t] = self._near(t, depth)
                    total += len(options[t])
            low, high = low - 1, high + 1

    def _near(self, t: int, depth: int) -> list[int]:
        """The useful pairs of a stage that are at most `depth` reads away from it."""
        inst = self.instance
        allowed = set(self.pairs[t])
        if depth >= len(allowed):
            return self.pairs[t]
        found: set[int] = set()
        front = [inst.writer_A[a] for a in inst.reads_C[t]]
        for _ in range(depth):
            front = [c for c in front if c in allowed and c not in found]
            found.update(front)
            front = [inst.writer_A[a] for c in front for a in inst.rereads_C[c]]
        return sorted(found)


def stages(order: Order) -> Iterator[int]:
    """The cNodes of an order at their first execution."""
    seen: set[int] = set()
    for c in order:
        if c not in seen:
            seen.add(c)
            yield c
