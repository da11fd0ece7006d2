"""Costs of the ways to run a child of a level: time, extra bytes, reads.

Zhao 2024, section 3.4.1.2. A *run* is a list of the level's cNodes; what it needs of other children
is not counted here, the level says whether that is alive. Every price is at least the truth of the
flat schedule: a run counts what it makes even where that is alive already, and what it reads for
its whole length; `slack` takes the latter back.

An option of a child is an order of its own instance: what it runs before its loss is the saving
forward, what it runs behind it the backward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...chains.stages import cost_of, forms, needed_at_start, needed_part, profile_of, written_by
from ...instance import Instance, Order
from ..partition.levels import Level

_SLACKS = 4
"""Limit on the moments of a run that are distinguished by their dead inputs."""

Slack = tuple[int, frozenset[int]]
"""At a moment of a run: its bytes, and the interface values that it needs no longer."""


@dataclass(frozen=True)
class Way:
    """A run with its time, and its peak beside what others hold; `reads` are interface values
    that must be there when it starts."""

    run: tuple[int, ...]
    time_ns: int
    peak_bytes: int
    reads: frozenset[int]
    slack: tuple[Slack, ...] = ()


@dataclass(frozen=True)
class ChildOption:
    """`kept_bytes` of inside values live from the saving forward to the backward. `wants`:
    interface values of the child itself that the backward finds alive."""

    first: Way
    again: Way
    last: Way
    back: Way
    kept_bytes: int
    wants: frozenset[int]

    @property
    def time_ns(self) -> int:
        return self.first.time_ns + self.back.time_ns


@dataclass(frozen=True)
class ChildPrices:
    """`skim_first` and `skim_again` make the interface values and save nothing. `options` is
    empty where the child has no backward. `held_first`: permanent bytes of the children before;
    `held_back`: permanent bytes and gradients of others at its backward; `held_again`: all of
    them, at a replay just before. `token_bytes`: generator states from its first run on."""

    skim_first: Way
    skim_again: Way
    options: tuple[ChildOption, ...]
    held_first: int
    held_again: int
    held_back: int
    token_bytes: int


def prices_of(level: Level, orders_N: Sequence[Sequence[Order]]) -> list[ChildPrices]:
    """The prices of each child with these options (orders of the level's cNodes that have the
    loss between forward and backward); of the loss too, which has one."""
    inst = level.instance
    prices: list[ChildPrices] = []
    made_bytes = 0
    for j in range(len(level)):
        pricer = _Pricer(level, j)
        prices.append(pricer.prices(orders_N[j] if j < len(orders_N) else (), made_bytes))
        made_bytes += sum(inst.size_A[a] for a in pricer.made)
    return prices


class _Pricer:
    def __init__(self, level: Level, j: int):
        self.level, self.j = level, j
        self.instance = inst = level.instance
        self.forward = level.forward_N[j]
        self.made = written_by(inst, self.forward, again=False) & level.permanent
        self.musts = level.musts & set(self.forward)
        self.tokens = {
            inst.token_C[c] for c in self.forward if inst.token_C[c] >= 0 and inst.makable_C[c]
        }
        self.out = level.cross_N[j]
        if j == len(level) - 1:
            self.made |= set(inst.writes_C[inst.loss])
            self.musts |= {inst.loss}

    def _bytes(self, anodes: Collection[int]) -> int:
        return sum(self.instance.size_A[a] for a in anodes)

    def prices(self, orders: Sequence[Order], made_bytes: int) -> ChildPrices:
        level, j = self.level, self.j
        lasting = sum(self.instance.size_A[a] for a, until in level.until_A.items() if until <= j)
        grads = self._bytes(level.grads_N[j])
        passing = grads - self._bytes(level.given(j))
        return ChildPrices(
            self._way(self.forward, self.out, again=False),
            self._way(self.forward, self.out, again=True),
            tuple(self._option(order) for order in orders),
            made_bytes,
            lasting + grads,
            lasting + passing,
            self._bytes(self.tokens),
        )

    def _option(self, order: Order) -> ChildOption:
        inst, level = self.instance, self.level
        at = order.index(inst.loss)
        before, after = order[:at], tuple(order[at + 1 :])
        needed = needed_at_start(inst, after, again=True) - level.permanent
        own = needed & written_by(inst, before, again=True)
        kept, wants = own - level.interface, own & level.interface
        given = level.given(self.j)
        back = cost_of(inst, after, kept | given, level.passed(self.j), again=True)
        reads = frozenset(needed & level.interface)
        slack = _slack(inst, after, kept | given, level.passed(self.j), reads)
        return ChildOption(
            self._way(before, kept | self.out, again=False),
            self._way(before, kept | self.out, again=True),
            self._way(before, kept | wants, again=True),
            Way(after, back.time_ns, back.peak_bytes, reads, slack),
            self._bytes(kept),
            frozenset(wants),
        )

    def _way(self, run: Sequence[int], keep: Collection[int], *, again: bool) -> Way:
        inst, level = self.instance, self.level
        given = level.permanent if again else ()
        must = () if again else self.musts
        part = needed_part(inst, run, keep, given, again=again, must=must)
        stays = set(keep) if again else set(keep) | self.made
        cost = cost_of(inst, part, (), stays, again=again)
        reads = frozenset((needed_at_start(inst, part, again=again) & level.interface) - self.out)
        slack = _slack(inst, part, (), stays, reads, again=again)
        return Way(part, cost.time_ns, cost.peak_bytes, reads, slack)


def _slack(
    instance: Instance,
    run: Sequence[int],
    alive: Collection[int],
    keep: Collection[int],
    inputs: frozenset[int],
    *,
    again: bool = True,
) -> tuple[Slack, ...]:
    """The moments of a run at which it needs more bytes than ever before, with those of `inputs`
    that are dead by then; the few of which the largest part of the difference is told."""
    if not inputs or not run:
        return ()
    last: dict[int, int] = {}
    for i, (c, first) in enumerate(forms(instance, run, again=again)):
        reads = instance.reads_C[c] if first else instance.rereads_C[c]
        last.update((a, i) for a in reads if a in inputs)
    ends = sorted({i + 1 for i in last.values()} | {0})
    _, during = profile_of(instance, run, alive, keep, again=again)
    moments: list[Slack] = []
    for start, end in zip(ends, [*ends[1:], len(run)], strict=True):
        if start < end:
            dead = frozenset(a for a, i in last.items() if i < start)
            # With no bytes more than an earlier moment, more inputs dead ask for nothing new.
            if not moments or max(during[start:end]) > moments[-1][0]:
                moments.append((max(during[start:end]), dead))
    while len(moments) > _SLACKS:
        gaps = [later - need for (need, _), (later, _) in pairwise(moments)]
        i = gaps.index(min(gaps))
        moments[i : i + 2] = [(moments[i + 1][0], moments[i][1])]
    return tuple(moments)
