"""Schedules that come about by running: a free rank begins the pass that its rule picks.

Time goes from event to event. A value leaves for the next stage when its pass ends and its link is
free. Of each pass of a stage the micro-batches run in ascending order.
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
"""A pass of a stage."""
Rule = Callable[[int, Sequence[PassOf], Mapping[PassOf, int]], PassOf | None]
"""The choice of a free rank among passes that may begin, by how often each has begun."""


@dataclass(frozen=True)
class Timetable(Times):
    """A start for each pass, pseudo-stage and micro-batch. The period is the largest load of a
    rank: no more is said of steps without an end."""

    period_ns: int
    starts: Mapping[tuple[Pass, int, int], int]

    def defers(self, s: int) -> bool:
        return ("wgt", 2 * s, 0) in self.starts

    def start_ns(self, word: Pass, s: int, microbatch: int) -> int:
        return self.starts[word, s, microbatch]


def planned_by_rule(
    task: PipelineTask,
    layers: Layers,
    stages: tuple[Range, ...],
    ranks: tuple[int, ...],
    rule: Rule,
    *,
    defers: bool = False,
) -> PipelineResult:
    """The plan that the rule makes; infeasible where its rows take more than the memory."""
    m = layers.microbatches or 2 * layers.ranks
    times = timetable(layers, stages, ranks, m, rule, defers=defers)
    ways = plain_ways(layers, stages)
    plan = PipelinePlan(layers, task.planner, stages, ranks, ways, times)
    if max(simulate_pipeline(pipeline_of(plan, m, None)).peak_bytes_R) > layers.limit_bytes:
        return task.infeasible()
    return Planned(plan, layers.least_period_ns)


def order_of(rank: int, ranks: Sequence[int], p: int, microbatches: int) -> list[PassOf]:
    """Forwards alone at first, then one backward after each forward, then backwards alone. A last
    group of fewer micro-batches is that of a full one without those that are not there."""
    mine = [s for s, r in enumerate(ranks) if r == rank]
    groups = range(0, microbatches, p)
    forwards = [("fwd", s, k + n) for k in groups for s in mine for n in range(p)]
    backwards = [("bwd", s, k + n) for k in groups for s in mine[::-1] for n in range(p)]
    chunks = -(-len(ranks) // p)
    ahead = 2 * (p - rank - 1) + (chunks - 1) * p if chunks > 1 else p - rank - 1
    order = forwards[:ahead]
    for n, backward in enumerate(backwards):
        order += [*forwards[ahead + n : ahead + n + 1], backward]
    return [("fwd" if word == "fwd" else "bwd", s) for word, s, k in order if k < microbatches]


def timetable(
    layers: Layers,
    stages: tuple[Range, ...],
    ranks: tuple[int, ...],
    microbatches: int,
    rule: Rule,
    *,
    defers: bool = False,
) -> Timetable:
    """Runs the rule. With `defers` each backward leaves `weight_ns_L` to a third pass."""
    running = _Running(layers, stages, ranks, rule, defers)
    running.run(microbatches)
    loads = Counter[int]()
    for rank, (i, j) in zip(ranks, stages, strict=True):
        loads[rank] += layers.load_ns(i, j)
    return Timetable(max(loads.values()), running.starts)


class _Running:
    """`ready` and `began` count micro-batches by pass: those that may begin, and that have."""

    def __init__(
        self,
        layers: Layers,
        stages: tuple[Range, ...],
        ranks: tuple[int, ...],
        rule: Rule,
        defers: bool,
    ):
        forward, backward = pseudo_durations(layers, stages, plain_ways(layers, stages))
        weights = [sum(layers.weight_ns_L[i:j]) if defers else 0 for i, j in stages]
        backward[::2] = [b - w for b, w in zip(backward[::2], weights, strict=True)]
        self.ns = {"fwd": forward, "bwd": backward, "wgt": [x for w in weights for x in (w, 0)]}
        self.ranks, self.rule = ranks, rule
        self.ready: Counter[PassOf] = Counter()
        self.began: Counter[PassOf] = Counter()
        self.starts: dict[tuple[Pass, int, int], int] = {}
        self.link_free: Counter[frozenset[int]] = Counter()
        self.idle = set(ranks)
        self.number = count()
        self.events: list[tuple[int, int, Callable[[int], None]]] = []

    def run(self, microbatches: int) -> None:
        """Until nothing happens any more; AssertionError where a rule leaves ranks waiting."""
        self.ready["fwd", 0] = microbatches
        self._at(0, lambda _: None)
        while self.events:
            now, _, event = heappop(self.events)
            event(now)
            if not self.events or self.events[0][0] > now:
                for rank in sorted(self.idle):
                    self._begin(rank, now)
        assert all(self.began["bwd", s] == microbatches for s in range(len(self.ranks)))

    def _at(self, ns: int, event: Callable[[int], None]) -> None:
        heappush(self.events, (ns, next(self.number), event))

    def _begin(self, rank: int, now: int) -> None:
        ready = [run for run, n in self.ready.items() if self._is_ready(run, n, rank)]
        picked = self.rule(rank, ready, self.began) if ready else None
        if picked is not None:
            word, s = picked
            k = self.began[picked]
            self.began[picked] += 1
            self.starts[word, 2 * s, k] = now
            self.idle.remove(rank)
            self._at(now + self.ns[word][2 * s], lambda end: self._end(word, s, k, end))

    def _is_ready(self, run: PassOf, n: int, rank: int) -> bool:
        return self.ranks[run[1]] == rank and n > self.began[run]

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
