"""Schedules that come about by running: each rank follows an order of passes as soon as it can.

A value leaves for the next stage when its pass ends and its link is free. Passes of an order wait
for what they read; meanwhile a rank makes gradients of parameters that were left for later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from ....ir.pipeline import Pass
from ....ir.semantics.pipeline import simulate_pipeline
from ..contract import PipelinePlan, PipelineResult, PipelineTask, Planned, plain_ways
from ..layers import Layers, Range
from ..pattern import Times, pseudo_durations
from ..rows import pipeline_of

PassOf = tuple[Pass, int]
"""A pass of a stage; each has the micro-batches in ascending order."""


@dataclass(frozen=True)
class Timetable(Times):
    """A start for each pass, pseudo-stage and micro-batch. The period is the largest load of a
    rank: no more is said of steps without an end."""

    period_ns: int
    starts: Mapping[tuple[Pass, int, int], int]

    def start_ns(self, word: Pass, s: int, microbatch: int) -> int:
        return self.starts[word, s, microbatch]

    def defers(self, s: int) -> bool:
        return ("wgt", 2 * s, 0) in self.starts


def order_of(stages: Sequence[int], group: int, ahead: int, microbatches: int) -> list[PassOf]:
    """The order of a rank: `ahead` forwards, then one backward after each forward, then backwards.
    Groups of micro-batches go through one stage of the rank after the other; a last group of fewer
    is a full one without those that are not there."""
    groups = range(0, microbatches, group)
    forwards = [("fwd", s, k + n) for k in groups for s in stages for n in range(group)]
    backwards = [("bwd", s, k + n) for k in groups for s in stages[::-1] for n in range(group)]
    order = forwards[:ahead]
    for n, backward in enumerate(backwards):
        order += [*forwards[ahead + n : ahead + n + 1], backward]
    return [("fwd" if word == "fwd" else "bwd", s) for word, s, k in order if k < microbatches]


def planned_by_order(
    task: PipelineTask,
    layers: Layers,
    stages: tuple[Range, ...],
    ahead: Callable[[int], int],
    *,
    group: int = 1,
    defers: bool = False,
) -> PipelineResult:
    """The plan of ranks that take stages in turn and follow `order_of`; infeasible where its rows
    take more than the memory. With `defers`, backwards leave `weight_ns_L` to a third pass."""
    m, p = layers.microbatches or 2 * layers.ranks, min(layers.ranks, len(stages))
    ranks = tuple(s % p for s in range(len(stages)))
    running = _Running(layers, stages, ranks, defers)
    mine = [range(rank, len(stages), p) for rank in range(p)]
    orders = [order_of(mine[rank], group, ahead(rank), m) for rank in range(p)]
    running.run(orders, m)
    loads = [sum(layers.load_ns(*stages[s]) for s in some) for some in mine]
    times = Timetable(max(loads), running.starts)
    ways = plain_ways(layers, stages)
    plan = PipelinePlan(layers, task.planner, stages, ranks, ways, times)
    if max(simulate_pipeline(pipeline_of(plan, m, None)).peak_bytes_R) > layers.limit_bytes:
        return task.infeasible()
    return Planned(plan, layers.least_period_ns)


class _Running:
    """`ready` and `began` count micro-batches by pass: those that may begin, and that have."""

    def __init__(
        self, layers: Layers, stages: tuple[Range, ...], ranks: tuple[int, ...], defers: bool
    ):
        forward, backward = pseudo_durations(layers, stages, plain_ways(layers, stages))
        weights = [sum(layers.weight_ns_L[i:j]) if defers else 0 for i, j in stages]
        backward[::2] = [b - w for b, w in zip(backward[::2], weights, strict=True)]
        self.ns = {"fwd": forward, "bwd": backward, "wgt": [x for w in weights for x in (w, 0)]}
        self.ranks = ranks
        self.ready: Counter[PassOf] = Counter()
        self.began: Counter[PassOf] = Counter()
        self.starts: dict[tuple[Pass, int, int], int] = {}
        self.link_free: Counter[frozenset[int]] = Counter()
        self.number = count()
        self.events: list[tuple[int, int, Callable[[int], None]]] = []

    def run(self, orders: Sequence[list[PassOf]], microbatches: int) -> None:
        """Until nothing happens any more."""
        self.left = [order[::-1] for order in orders]
        self.idle = set(range(len(orders)))
        self.ready["fwd", 0] = microbatches
        self._at(0, lambda _: None)
        while self.events:
            now, _, event = heappop(self.events)
            event(now)
            if not self.events or self.events[0][0] > now:
                for rank in sorted(self.idle):
                    self._begin(rank, now)
        assert not any(self.left)

    def _at(self, ns: int, event: Callable[[int], None]) -> None:
        heappush(self.events, (ns, next(self.number), event))

    def _begin(self, rank: int, now: int) -> None:
        """The next pass of the order, or gradients of parameters: these first where those of more
        than `rank` micro-batches wait."""
        order = self.left[rank]
        weights: PassOf = ("wgt", rank)
        late = self.began["bwd", rank] - self.began[weights] > rank
        choices = [*order[-1:], weights][:: -1 if late else 1]
        picked = next((run for run in choices if self.ready[run] > self.began[run]), None)
        if picked is None:
            return
        if picked != weights:
            order.pop()
        word, s = picked
        k = self.began[picked]
        self.began[picked] += 1
        self.starts[word, 2 * s, k] = now
        self.idle.remove(rank)
        self._at(now + self.ns[word][2 * s], lambda end: self._end(word, s, k, end))

    def _end(self, word: Pass, s: int, k: int, now: int) -> None:
        self.idle.add(self.ranks[s])
        if word == "bwd" and self.ns["wgt"][2 * s]:
            self.ready["wgt", s] += 1
        to = s + 1 if word == "fwd" else s - 1
        if word == "fwd" and to == len(self.ranks):
            self.ready["bwd", s] += 1
        elif word != "wgt" and to >= 0:
            between = 2 * min(s, to) + 1
            pair = frozenset((self.ranks[s], self.ranks[to]))
            begin, copy_ns = now, 0
            if len(pair) > 1:
                begin, copy_ns = max(now, self.link_free[pair]), self.ns[word][between]
                self.link_free[pair] = begin + copy_ns
            self.starts[word, between, k] = begin
            self._at(begin + copy_ns, lambda _: self.ready.update([(word, to)]))
