"""A local search over the decisions of walks, for fewer bytes than single walks reach.

A walk follows fixed rules: first executions in the order of capture, what to evict by a score,
inputs that are missing made in the order they are read. Here each of these is a choice that is
changed a little at a time: the place of a computation among the first executions, a factor on the
score of each aNode, which input is made first, the heuristic. A choice is tried by a walk that goes
over its limit where nothing is left to evict; the bytes of its profile over the limit, added up
over the step, say how near it came, where walks under the limit would just fail. Where nothing is
over, the limit is lowered to just below the new peak. Not taken from a paper.

The same seed and number of walks give the same order on any machine, unless the deadline passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise, product, starmap
from math import exp, inf
from random import Random
from time import monotonic
from typing import Any

from ...ir.analysis.order import least_first
from ..instance import Instance, Order
from .walk import Heuristic, Scope, Walk, WalkFailed

_STEP = 0.005
"""The limit is by so much below the least peak so far."""
_SLACK = 0.05
"""A change may make the excess worse by up to so much."""
_GIVEN_UP = 1500
"""The search ends after so many walks that led to no fewer bytes."""
_PATIENCE = 400
"""After so many walks without a gain the search begins anew."""
_GRADIENTS = (inf, 1.0)
"""Factors of what the backward makes at first: never evicted, or like all else."""
_TIGHTEST = 0.85
_LONGEST = 15
"""A walk ends after so many times the graph."""


def permuted(instance: Instance, order: Order) -> Instance:
    """The same step captured in another order of its cNodes; aNodes keep their numbers. Only for
    walks: its `program` is as before."""
    place = [0] * len(order)
    for k, c in enumerate(order):
        place[c] = k
    by_cnode: dict[str, Any] = {
        f.name: [getattr(instance, f.name)[c] for c in order]
        for f in fields(instance)
        if f.name.endswith("_C")
    }
    by_cnode["after_C"] = [tuple(place[d] for d in others) for others in by_cnode["after_C"]]
    writer_A = [place[w] if w >= 0 else w for w in instance.writer_A]
    return replace(instance, **by_cnode, writer_A=writer_A, loss=place[instance.loss])


def may_move(instance: Instance) -> tuple[list[set[int]], list[set[int]]]:
    """The first executions that must precede and follow each cNode: what it reads, what
    is read of a sum before an accumulate ends it, the forward before the loss, all before the
    optimizer, and random numbers out of one stream."""
    inst, count = instance, len(instance.names_C)
    before: list[set[int]] = [set(others) for others in inst.after_C]
    stream = [c for c in range(count) if inst.token_C[c] >= 0 or c == inst.loss]
    for a, b in pairwise(stream):
        before[b].add(a)
    readers: dict[int, list[int]] = {}
    for c, reads in enumerate(inst.reads_C):
        for a in reads:
            readers.setdefault(a, []).append(c)
    steps = [c for c in range(count) if inst.phase_C[c] == "opt"]
    for c in range(count):
        before[c] |= {inst.writer_A[a] for a in inst.reads_C[c] if inst.writer_A[a] >= 0}
        if inst.ends_C[c] >= 0:
            before[c] |= {d for d in readers[inst.ends_C[c]] if d != c}
        if inst.phase_C[c] == "fwd":
            before[inst.loss].add(c)
        if inst.phase_C[c] == "bwd":
            for step in steps:
                before[step].add(c)
    after: list[set[int]] = [set() for _ in range(count)]
    for c, others in enumerate(before):
        for d in others:
            after[d].add(c)
    return before, after


@dataclass(frozen=True)
class _Choice:
    """The parameters of a walk; `reversed_C` are cNodes whose inputs are made last first. What
    has a factor of `inf` is not evicted."""

    order: tuple[int, ...]
    reversed_C: frozenset[int]
    factor_A: tuple[float, ...]
    heuristic: Heuristic
    tighter: float = 1.0
    """The share of the limit that the walk aims for; its result is measured by the full limit."""


@dataclass(frozen=True)
class _Trial:
    """A walk that ended: `excess` is bytes over the limit, added up over its steps."""

    choice: _Choice
    order: Order
    peak_bytes: int
    excess: int


@dataclass
class LeanWalks:
    """`best` is the order of the least peak so far; `late` says that the deadline ended it."""

    instance: Instance
    best: Order
    heuristics: Sequence[Heuristic]
    deadline: float = inf
    seed: int = 0
    walks: int = 0
    late: bool = False
    _led_at: int = 0
    """The walk that led to the least peak so far."""
    _scopes: dict[bool, Scope] = field(default_factory=dict)
    _captured: tuple[tuple[int, ...], frozenset[int]] | None = None
    """The order and the reversed cNodes that `_scopes` are for."""

    def __post_init__(self) -> None:
        inst = self.instance
        self.peak_bytes = inst.peak(self.best)
        self.rng = Random(self.seed)
        self.before, self.after = may_move(inst)
        fixed = {c for c, token in enumerate(inst.token_C) if token >= 0} | {inst.loss}
        movable = [c for c in inst.capture if c not in fixed and inst.phase_C[c] != "opt"]
        self.movable = [c for c in movable if inst.phase_C[c] == "bwd"]
        self.gradients = [
            a
            for a, w in enumerate(inst.writer_A)
            if w >= 0 and inst.phase_C[w] == "bwd" and inst.makable_C[w] and not inst.kept_A[a]
        ]
        self.orders = list(dict.fromkeys((tuple(inst.capture), self._ends_first())))
        self.turned = list(dict.fromkeys((frozenset[int](), self._deep_last(), self._hard_last())))
        self.changes: list[tuple[float, Callable[[_Choice], _Choice]]] = [
            (0.35, self._score_otherwise),
            (0.45 if self.gradients else 0.0, self._evict_or_not),
            (0.8 if self.movable else 0.0, self._move),
            (0.9, self._reverse),
            (0.97, self._other_limit),
            (1.0, self._other_heuristic),
        ]

    def run(self, most_walks: int, enough_bytes: int = 0) -> None:
        """Until so many walks are done, none of the last 1500 led to fewer bytes, or a peak of
        `enough_bytes` is reached."""
        current = self._begin(most_walks)
        idle = 0
        while current is not None and self._goes_on(most_walks, enough_bytes):
            trial = self._walk(self._changed(current.choice))
            idle += 1
            if trial is None:
                continue
            if trial.peak_bytes < self.peak_bytes:
                current, idle = self._lead(trial), 0
                continue
            slack = 1 + _SLACK * self.rng.random() ** 3
            if trial.excess <= slack * current.excess:
                idle = 0 if trial.excess < current.excess else idle
                current = trial
            if idle >= _PATIENCE:
                current, idle = self._fresh() or current, 0

    @property
    def limit_bytes(self) -> int:
        """The bytes that walks aim for."""
        return int(self.peak_bytes - max(1.0, _STEP * self.peak_bytes))

    def _goes_on(self, most_walks: int, enough_bytes: int) -> bool:
        self.late = self.late or monotonic() > self.deadline
        idle = self.walks - self._led_at >= _GIVEN_UP
        done = idle or self.walks >= most_walks or self.peak_bytes <= enough_bytes
        return not (self.late or done)

    def _begin(self, most_walks: int) -> _Trial | None:
        """The best of the heuristics."""
        best: _Trial | None = None
        starts = product(self.heuristics, self.orders, self.turned, _GRADIENTS)
        for plain in dict.fromkeys(starmap(self._plain, starts)):
            if not self._goes_on(most_walks, 0):
                break
            trial = self._walk(plain)
            if trial is not None and trial.peak_bytes < self.peak_bytes:
                best = self._lead(trial)
            elif trial is not None and (best is None or trial.excess < best.excess):
                best = trial
        return best

    def _plain(
        self,
        heuristic: Heuristic,
        order: tuple[int, ...],
        reversed_C: frozenset[int],
        gradients: float,
    ) -> _Choice:
        """`gradients` is the factor of what the backward makes."""
        inst = self.instance
        makers = (inst.phase_C[w] if w >= 0 else "" for w in inst.writer_A)
        first = gradients if heuristic.backward else 1.0  # else they stay anyway
        factors = tuple(first if phase == "bwd" else 1.0 for phase in makers)
        return _Choice(order, reversed_C, factors, heuristic)

    def _fresh(self) -> _Trial | None:
        pick = self.rng.choice
        order, reversed_C = pick(self.orders), pick(self.turned)
        choice = self._plain(pick(self.heuristics), order, reversed_C, pick(_GRADIENTS))
        return self._walk(self._other_limit(choice))

    def _deep_last(self) -> frozenset[int]:
        """cNodes whose last input takes more computations in a row than the first: it is made first
        when all are missing, so that the others need not wait for it."""
        inst = self.instance
        depth = [0] * len(inst.names_C)
        for c, reads in enumerate(inst.reads_C):
            makers = [inst.writer_A[a] for a in reads]
            depth[c] = 1 + max((depth[w] for w in makers if w >= 0), default=0)
        of = [[depth[inst.writer_A[a]] for a in reads] for reads in inst.reads_C]
        return frozenset(c for c, depths in enumerate(of) if depths and depths[-1] > depths[0])

    def _hard_last(self) -> frozenset[int]:
        """cNodes whose last input takes more bytes than the first to make from nothing, less its
        own. (Sethi and Ullman, 1970: such an input is made first, as if nothing were shared.)"""
        inst = self.instance
        need_A = [0] * len(inst.names_A)
        hard = []
        for c, reads in enumerate(inst.reads_C):
            made = [a for a in reads if inst.writer_A[a] >= 0]
            beside = {a: need_A[a] - inst.size_A[a] for a in made}
            if made and beside[made[-1]] > beside[made[0]]:
                hard.append(c)
            held = peak = 0
            for a in sorted(made, key=lambda a: -beside[a]):
                peak = max(peak, held + need_A[a])
                held += inst.size_A[a]
            results = 0 if inst.ends_C[c] >= 0 else sum(inst.size_A[a] for a in inst.writes_C[c])
            peak = max(peak, held + results + inst.workspace_C[c])
            for a in inst.writes_C[c]:
                need_A[a] = peak
        return frozenset(hard)

    def _ends_first(self) -> tuple[int, ...]:
        """The order in which what nobody reads, such as a gradient of a weight, runs as soon as it
        can, and all else as captured."""
        inst = self.instance
        read = {a for reads in inst.reads_C for a in reads}

        def goes_on(c: int) -> bool:
            return inst.phase_C[c] != "bwd" or any(a in read for a in inst.writes_C[c])

        return tuple(least_first(dict(enumerate(self.before)), goes_on))

    def _lead(self, trial: _Trial) -> _Trial:
        """Takes a trial of fewer bytes; the same as it is under the limit from now on."""
        self.best, self.peak_bytes, self._led_at = trial.order, trial.peak_bytes, self.walks
        limit, inst = self.limit_bytes, self.instance
        excess = sum(max(0, inst.base_bytes + p - limit) for p in inst.profile(trial.order))
        return replace(trial, excess=excess)

    def _walk(self, choice: _Choice) -> _Trial | None:
        """Walks once. None where the walk would not end."""
        self.walks += 1
        scope = self._scope(choice)
        inst, limit = scope.instance, self.limit_bytes
        heuristic = replace(choice.heuristic, factor_A=choice.factor_A)
        most = _LONGEST * len(choice.order)
        try:
            own = int(choice.tighter * limit)
            taken = Walk(scope, own, heuristic, most, self.deadline, goes_over=True).run()
        except WalkFailed:
            return None
        taken = inst.without_idle(taken)
        profile = inst.profile(taken)
        room = limit - inst.base_bytes
        order = [choice.order[k] for k in taken]
        excess = sum(p - room for p in profile if p > room)
        return _Trial(choice, order, max(profile) + inst.base_bytes, excess)

    def _scope(self, choice: _Choice) -> Scope:
        captured = choice.order, choice.reversed_C
        if captured != self._captured:
            self._captured, self._scopes = captured, {}
        backward = choice.heuristic.backward
        if backward not in self._scopes:
            inst = self._reversed(choice.reversed_C)
            self._scopes[backward] = Scope(permuted(inst, list(choice.order)), backward)
        return self._scopes[backward]

    def _reversed(self, cnodes: frozenset[int]) -> Instance:
        """The instance with the reads of these cNodes last first. An accumulate's stay: the first
        is the sum."""
        inst = self.instance
        if not cnodes:
            return inst
        turned = {c for c in cnodes if inst.ends_C[c] < 0}
        reads, rereads = (
            [r[::-1] if c in turned else r for c, r in enumerate(reads_C)]
            for reads_C in (inst.reads_C, inst.rereads_C)
        )
        return replace(inst, reads_C=reads, rereads_C=rereads)

    def _changed(self, choice: _Choice) -> _Choice:
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            draw = self.rng.random()
            choice = next(change for share, change in self.changes if draw < share)(choice)
        return choice

    def _score_otherwise(self, choice: _Choice) -> _Choice:
        factors = list(choice.factor_A)
        wide = self.rng.choice((0.3, 1.0, 2.0))
        some = min(len(factors), self.rng.choice((1, 2, 5, 20)))
        for a in self.rng.sample(range(len(factors)), some):
            factors[a] *= exp(self.rng.gauss(0, wide))
        return replace(choice, factor_A=tuple(factors))

    def _evict_or_not(self, choice: _Choice) -> _Choice:
        """One of what the backward makes may be evicted, or may not any more."""
        factors = list(choice.factor_A)
        a = self.rng.choice(self.gradients)
        factors[a] = 1.0 if factors[a] == inf else inf
        return replace(choice, factor_A=tuple(factors))

    def _move(self, choice: _Choice) -> _Choice:
        """One computation of the backward, nearby or anywhere that it may run."""
        c = self.rng.choice(self.movable)
        place = {d: k for k, d in enumerate(choice.order)}
        low = max((place[d] for d in self.before[c]), default=-1) + 1
        high = min((place[d] for d in self.after[c]), default=len(place)) - 1
        if self.rng.random() < 0.5:
            target = self.rng.randint(low, high)
        else:
            target = min(high, max(low, place[c] + self.rng.choice((-3, -2, -1, 1, 2, 3))))
        order = [d for d in choice.order if d != c]
        order.insert(target, c)
        return replace(choice, order=tuple(order))

    def _reverse(self, choice: _Choice) -> _Choice:
        c = self.rng.randrange(len(choice.order))
        return replace(choice, reversed_C=choice.reversed_C ^ {c})

    def _other_limit(self, choice: _Choice) -> _Choice:
        return replace(choice, tighter=self.rng.uniform(_TIGHTEST, 1.0))

    def _other_heuristic(self, choice: _Choice) -> _Choice:
        return replace(choice, heuristic=self.rng.choice(self.heuristics))
