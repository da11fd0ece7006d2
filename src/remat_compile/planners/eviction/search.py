"""Looks for a good order with many walks: heuristics, scopes, and random restarts.

Each walk is followed by `keep_what_fits`. The number of walks depends on the size of the
graph, not on the clock, so that the same program and budget give the same plan; the time
limit only cuts it short.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import exp
from random import Random
from time import monotonic

from ..contract import Progress
from ..instance import Instance, Order
from .keep import keep_what_fits
from .lean import LeanWalks
from .walk import Heuristic, Scope, Walk, WalkFailed

_HEURISTICS: tuple[Heuristic, ...] = tuple(
    Heuristic(distance_power, cost_power, shared)
    for distance_power, cost_power, shared in (
        (0.5, 1.0, 0.5),
        (1.0, 1.0, 0.5),
        (0.0, 1.0, 0.0),
        (0.5, 1.0, 0.0),
        (1.0, 1.0, 0.0),
        (1.0, 2.0, 0.0),
        (0.0, 2.0, 0.5),
        (0.5, 2.0, 0.5),
        (1.0, 1.0, 1.0),
        (0.0, 1.0, 1.0),
    )
)
_LEAN = (Heuristic(1.0, 1.0, 0.0), Heuristic(1.0, 1.0, 0.5))
"""Heuristics that reach the least memory: the nearer the next use, the more a storage is kept."""
_NEAREST = (Heuristic(1.0, 0.0, 0.0), Heuristic(3.0, 1.0, 0.0))
"""Heuristics that nearly ignore the cost of recomputation."""
_WALKED_CNODES = 60_000
"""Random restarts are as many as walk about so many cNodes."""
_PATIENCE = 100
"""Restarts end after so many without a better plan."""
_NOISE = 0.6
_BIAS = 0.5
_FLIPS = 0.15
"""Noise of the scores in a restart, pull towards the best plan, and how often it is let go."""


@dataclass
class Search:
    """Orders under `limit_bytes`; `best` is the fastest so far."""

    instance: Instance
    limit_bytes: int
    deadline: float
    backward: tuple[bool, ...] = (False, True)
    progress: Progress | None = None
    best: Order | None = None
    best_ns: int = 0
    late: bool = False
    walks: int = 0
    """Additional walks with varied decisions, for a budget of `least`."""
    seed: int = 0
    """The heuristics of the additional walks."""
    _least: Order | None = None
    _scopes: dict[bool, Scope] = field(default_factory=dict)
    _winner: Heuristic | None = None
    """The heuristic that found the best order."""
    longest_s: float = 0.0
    """The longest that a walk took, with what was kept of it."""

    @property
    def size(self) -> int:
        return len(self.instance.names_C)

    def heuristics(self) -> list[Heuristic]:
        """The walks that fit the time limit for a graph of this size, forward-only ones first."""
        heuristics = [replace(h, backward=b) for b in self.backward for h in _HEURISTICS]
        return heuristics[: max(1, 150_000 // max(1, self.size))]

    def walk(self, heuristic: Heuristic, limit_bytes: int) -> Order | None:
        """One walk; None where it fails."""
        backward = heuristic.backward
        if backward not in self._scopes:
            self._scopes[backward] = Scope(self.instance, backward)
        most = max(4 * self.size, min(15 * self.size + 50, 400_000))
        if self.best is not None:
            most = min(most, 2 * len(self.best) + 50)  # a longer walk hardly wins
        try:
            scope = self._scopes[backward]
            return Walk(scope, limit_bytes, heuristic, most, self.deadline).run()
        except WalkFailed:
            return None

    def run(self, rounds: int | None, seed: int) -> None:
        """Tries the heuristics, then `rounds` random restarts (None: by size)."""
        for heuristic in self.heuristics():
            if self._try(heuristic, self.limit_bytes, ()):
                self._winner = heuristic
            if self._out_of_time():
                return
        if self._winner is None:
            self._fall_back()
        self.restart(rounds, seed)

    def restart(self, rounds: int | None, seed: int) -> None:
        """Random restarts from what `run` found, if anything: `rounds` of them (None: by size)."""
        if self.best is None:
            return
        if rounds is None:
            rounds = min(300, _WALKED_CNODES // max(1, self.size))
        self._restart(self._winner or _HEURISTICS[0], rounds, Random(seed))

    def _out_of_time(self) -> bool:
        self.late = self.late or monotonic() > self.deadline
        return self.late

    def _fall_back(self) -> None:
        """Offers the order of least memory, which may fit where no walk does."""
        order = self.least(self.limit_bytes)
        if self.instance.peak(order) <= self.limit_bytes:
            self._offer(order, ())

    def _try(self, heuristic: Heuristic, limit: int, weight_C: tuple[float, ...]) -> bool:
        began = monotonic()
        order = self.walk(heuristic, limit)
        leads = order is not None and self._offer(order, weight_C)
        self.longest_s = max(self.longest_s, monotonic() - began)
        return leads

    def _offer(self, order: Order, weight_C: tuple[float, ...]) -> bool:
        """Improves an order and takes it where it beats the best."""
        order = keep_what_fits(self.instance, order, self.limit_bytes, weight_C, self.deadline)
        if self.instance.peak(order) > self.limit_bytes:
            return False
        time_ns = self.instance.time_ns(order)
        if self.best is not None and time_ns >= self.best_ns:
            return False
        self.best, self.best_ns = order, time_ns
        if self.progress is not None:
            base = self.instance.base_time_ns
            self.progress(f"dtr: {time_ns / base if base else 1.0:.4f} of the time without budget")
        return True

    def _restart(self, winner: Heuristic, rounds: int, rng: Random) -> None:
        """Walks with scores that lean towards the best plan, and noise."""
        known = self.heuristics()
        spare = self.limit_bytes - self.instance.base_bytes
        idle = 0
        for _ in range(rounds):
            idle += 1
            settled = idle > _PATIENCE or self.best_ns <= self.instance.base_time_ns
            if self._out_of_time() or settled:
                return
            base = winner if rng.random() < 0.7 else rng.choice(known)
            lean = tuple(self._lean(rng))
            weight = tuple(exp(rng.gauss(0, _NOISE)) for _ in range(self.size))
            tighter = rng.choice((0.0, 0.0, 0.02, 0.05, 0.1))
            limit = self.limit_bytes - int(tighter * spare)
            if self._try(replace(base, factor_A=lean), limit, weight):
                winner, idle = base, 0

    def _lean(self, rng: Random) -> Iterator[float]:
        again: set[int] = set()
        seen: set[int] = set()
        for c in self.best or ():
            (again if c in seen else seen).add(c)
        for writer in self.instance.writer_A:
            factor = exp(rng.gauss(0, _NOISE))
            if rng.random() > _FLIPS:
                factor *= _BIAS if writer in again else 1 / _BIAS
            yield factor

    def least(self, enough_bytes: int = 0) -> Order:
        """An order of about the least peak that walks reach, by bisection of the limit, then by
        `walks` that vary what they decide (`lean.py`), until a peak is `enough_bytes`.

        Does not depend on `limit_bytes`; it is the order of capture where no walk does
        better. Past the deadline, the least so far, and `late` is set.
        """
        if self._least is not None:
            return self._least
        best = self._bisected()
        if self.walks and not self._out_of_time():
            heuristics = (*_HEURISTICS, *_NEAREST)
            known = [replace(h, backward=b) for h in heuristics for b in self.backward]
            lean = LeanWalks(self.instance, best, known, self.deadline, self.seed)
            lean.run(self.walks, enough_bytes)
            best, self.late = lean.best, lean.late
        self._least = best
        return best

    def _bisected(self) -> Order:
        inst = self.instance
        best = inst.capture
        high = inst.peak(best)
        low = inst.base_bytes
        known = [replace(h, backward=b) for h in _LEAN for b in self.backward]
        if self.size > 20_000:
            known = known[:1]
        for _ in range(16):
            if high - low <= max(1, (high - inst.base_bytes) // 500) or self._out_of_time():
                break
            middle = (low + high) // 2
            order = next((o for h in known if (o := self.walk(h, middle)) is not None), None)
            if order is None:
                low = middle
            else:
                best, high = order, inst.peak(order)
        return best
