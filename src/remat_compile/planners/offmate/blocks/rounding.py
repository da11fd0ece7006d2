"""Rounding: fractions of groups become whole tensors (Zhao 2024, 4.6 and algorithm 8).

In each step at least as much is gone as the program says, and at most as much comes back, so that a
step holds no more than in the program. Which tensors: by subset sums. Of 5, 3 and 4 MiB at least
6 are gone:

    >>> sorted(at_least([5 << 20, 3 << 20, 4 << 20], 6 << 20))
    [1, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .courses import Course, Stay, StepPlan, gap_after
from .instance import Group, StepInstance, Tensor
from .program import Fractions

_MOST_CELLS = 10_000
_NOISE = 1e-3


def at_least(sizes: Sequence[int], need: float) -> frozenset[int]:
    """The places of sizes whose sum is the least of those that reach `need` (all where none does).
    By a table of 10 000 sums at most: exact up to so many bytes, and to a ten thousandth of all."""
    total = sum(sizes)
    if need <= 0:
        return frozenset()
    if need >= total:
        return frozenset(range(len(sizes)))
    unit = -(-total // _MOST_CELLS)
    reached: dict[int, tuple[int, int]] = {0: (0, 0)}
    for place, size in enumerate(sizes):
        for exact, chosen in list(reached.values()):
            with_it = exact + size
            # Of the sums in one cell the largest is kept: it reaches any need that another does.
            cell = with_it // unit
            if cell not in reached or reached[cell][0] < with_it:
                reached[cell] = (with_it, chosen | 1 << place)
    _, chosen = min(some for some in reached.values() if some[0] >= need)
    return frozenset(place for place in range(len(sizes)) if chosen >> place & 1)


def at_most(sizes: Sequence[int], room: float) -> frozenset[int]:
    """The places of sizes whose sum is the largest within `room`: all others are what has to stay
    out, at least."""
    out = at_least(sizes, sum(sizes) - room)
    return frozenset(range(len(sizes))) - out


def rounded(instance: StepInstance, fractions: Fractions) -> StepPlan:
    """The plan for whole tensors."""
    courses: list[Course] = []
    for w in range(len(instance.groups)):
        courses += _Group(instance, fractions, w).courses()
    return StepPlan(fractions.options, tuple(courses))


class _Group:
    """The tensors of one group; bytes that the program says are `kind` in a step, by `said`."""

    def __init__(self, instance: StepInstance, fractions: Fractions, w: int):
        self.instance, self.fractions, self.w = instance, fractions, w
        self.group: Group = instance.groups[w]
        self.last = self.group.last_grad(instance.blocks)
        self.turn = [(self.last + n) % instance.steps for n in range(instance.steps)]

    def said(self, kind: str, size: float, *steps: int) -> float:
        return size * float(sum(self.fractions.of[kind][self.w][t] for t in steps))

    def courses(self) -> list[Course]:
        group, states = self.group, self.instance.rates.states
        tensors = list(group.tensors)
        cpu = self._updated_by_cpu(tensors)
        plans = [Course(self.w, tensor) for tensor in tensors]
        self._on_cpu(plans, cpu)
        away: list[set[int]] = [set(range(1, self._back(plan))) for plan in plans]
        sizes = [tensor.size_bytes for tensor in tensors]
        uses = sorted(group.uses(self.instance.blocks), key=self.turn.index)
        for use in uses:
            gap = [self.turn.index(t) for t in gap_after(group, self.instance.blocks, use)]
            self._gap(("Sto", "Prf"), group.size_bytes, sizes, gap, away)
        sent = self._sent("Ofl", group.size_bytes, sizes, away, cpu)
        weights = [self._stay(absent, out) for absent, out in zip(away, sent, strict=True)]
        mine = [k for k, tensor in enumerate(tensors) if tensor.grad_bytes and k not in cpu]
        grads = [round(states * tensors[k].grad_bytes) for k in mine]
        away = [set() for _ in mine]
        whole = states * group.grad_bytes
        self._gap(("StoO", "PrfO"), whole, grads, list(range(1, len(self.turn))), away)
        sent = self._sent("OflO", whole, grads, away, frozenset())
        stays = dict(zip(mine, map(self._stay, away, sent), strict=True))
        return [
            replace(plan, weight=weight, states=stays.get(k, Stay()))
            for k, (plan, weight) in enumerate(zip(plans, weights, strict=True))
        ]

    def _stay(self, absent: set[int], sent: int | None) -> Stay:
        count = len(self.turn)
        fetched = {(n + 1) % count for n in absent} - absent
        step = self.turn
        return Stay(
            frozenset(step[n] for n in absent),
            frozenset(step[n] for n in fetched),
            None if sent is None else step[sent],
        )

    def _updated_by_cpu(self, tensors: Sequence[Tensor]) -> frozenset[int]:
        """The tensors whose bytes are nearest to what the program says."""
        trained = [k for k, tensor in enumerate(tensors) if tensor.grad_bytes]
        sizes = [tensors[k].grad_bytes for k in trained]
        want = self.said("Opt", self.group.grad_bytes, *self.turn)
        ways = (at_least(sizes, want * (1 - _NOISE)), at_most(sizes, want * (1 + _NOISE)))
        best = min(ways, key=lambda way: abs(sum(sizes[k] for k in way) - want))
        return frozenset(trained[k] for k in best)

    def _on_cpu(self, plans: list[Course], cpu: frozenset[int]) -> None:
        """The steps in which gradients leave and the CPU updates: the first by which the program
        has done as much, the one at least a step after the other."""
        window = len(list(self.group.between(self.instance.blocks)))
        done, total = 0, self.group.grad_bytes
        whole = sum(plans[k].tensor.grad_bytes for k in cpu)
        share = self.said("Opt", total, *self.turn) / max(1, whole)
        for k in sorted(cpu, key=lambda k: -plans[k].tensor.grad_bytes):
            done += plans[k].tensor.grad_bytes
            sent = self._by("OflG", total, done * share, 0, window - 1)
            updated = self._by("Opt", total, done * share, sent + 1, window)
            plans[k] = replace(plans[k], grad_sent=self.turn[sent], updated=self.turn[updated])

    def _by(self, kind: str, size: float, need: float, begin: int, end: int) -> int:
        """The first place from `begin` on, `end` at the latest, by which so much is done."""
        done = 0.0
        for n, t in enumerate(self.turn[: end + 1]):
            done += self.said(kind, size, t)
            if n >= begin and done >= need * (1 - 1e-3):
                return n
        return end

    def _back(self, plan: Course) -> int:
        """The first place at which a tensor may come back: behind its update by the CPU."""
        return 1 if plan.updated is None else self.turn.index(plan.updated) + 1

    def _gap(
        self,
        kinds: tuple[str, str],
        whole: float,
        sizes: Sequence[int],
        gap: Sequence[int],
        away: list[set[int]],
    ) -> None:
        """Algorithm 8 between two uses: `gap` are places in a row; adds to the places at which each
        tensor is away. What is away at its end comes back in time for the use."""
        first = {k for k in range(len(sizes)) if gap and gap[0] in away[k]}
        held_back = {k: max(away[k]) for k in first}
        there = set(range(len(sizes))) - first
        left = set(range(len(sizes)))
        for n in gap:
            most = self.said(kinds[0], whole, self.turn[n]) + self.said(
                kinds[1], whole, self.turn[n]
            )
            bytes_there = sum(sizes[k] for k in there)
            free = [k for k in range(len(sizes)) if k not in there and held_back.get(k, -1) < n]
            coming = at_most([sizes[k] for k in free], (most - bytes_there) + whole * _NOISE)
            if bytes_there > most + whole * _NOISE:
                able = sorted(there & left)
                gone = at_least([sizes[k] for k in able], bytes_there - most)
                there -= {able[j] for j in gone}
            elif most > bytes_there:
                back = {free[j] for j in coming}
                there |= back
                left -= back
            for k in range(len(sizes)):
                if k not in there:
                    away[k].add(n)

    def _sent(
        self,
        kind: str,
        whole: float,
        sizes: Sequence[int],
        away: Sequence[set[int]],
        cpu: frozenset[int],
    ) -> list[int | None]:
        """When each tensor that leaves is copied to the host: those that leave first before others,
        by the step by which the program has copied as much."""
        sent: list[int | None] = [None] * len(sizes)
        done = 0.0
        trained = [tensor.grad_bytes > 0 for tensor in self.group.tensors]
        leaving = [
            k
            for k in range(len(sizes))
            if away[k] and k not in cpu and (kind == "OflO" or trained[k])
        ]
        for k in sorted(leaving, key=lambda k: (min(away[k]), -sizes[k])):
            done += sizes[k]
            sent[k] = self._by(kind, whole, done - sizes[k] / 2, 0, min(away[k]) - 1)
        return sent
