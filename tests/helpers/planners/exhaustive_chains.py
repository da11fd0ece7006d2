"""Exhaustive searches over the models of Shilova 2021, for chains small enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from helpers.planners.dijkstra import least_cost
from remat_compile.planners.chains.stages import SavingOption, Skim, Stage, StageRun

Mode = Literal["any", "persistent", "dropping"]
ChainState = tuple[frozenset[tuple[str, int]], int, frozenset[int]]
MultiState = tuple[frozenset[tuple[int, int]], tuple[int, ...], bool]


@dataclass(frozen=True)
class ThesisChain:
    """The quantities of figure 2.1a. Sizes have an entry per value, 0 to N; the others one
    per stage, of which the last is the loss."""

    a: Sequence[int]
    a_bar: Sequence[int]
    delta: Sequence[int]
    u_f: Sequence[int]
    u_b: Sequence[int]
    o_f: Sequence[int]
    o_b: Sequence[int]

    def stages(self) -> list[Stage]:
        """As the dynamic programs take them: table 2.1 and the thresholds of 2.3."""
        n = len(self.u_f)
        stages = []
        for i in range(n):
            keeping = self.a[i + 1] + self.o_f[i]
            skim = Skim(self.u_f[i], keeping, self.a[i] + keeping)
            way = StageRun(self.u_f[i], self.a_bar[i + 1] + self.o_f[i])
            peak = self.a_bar[i + 1] + self.delta[i + 1] + self.delta[i] + self.o_b[i]
            option = SavingOption(way, way, way, StageRun(self.u_b[i], peak), self.a_bar[i + 1])
            stages.append(
                Stage(skim, skim, (option,), self.a[i + 1], 0, self.delta[n], self.delta[i + 1])
            )
        return stages


def counter_example(n: int) -> ThesisChain:
    """Figure 2.3: a chain of L = n + 2 layers and the loss, for a memory of 15."""
    last = n + 2
    a = [0, 1, *([3] * n), 4, 0]
    assert len(a) == last + 2
    u_f = [n - 2, 2, *([0] * (n + 1))]
    zeros = [0] * (last + 1)
    return ThesisChain(a, a, a, u_f, zeros, zeros, zeros)


def least_time(chain: ThesisChain, memory: int, mode: Mode) -> float:
    """The makespan of Remat(L, memory) over all sequences of table 2.1's operations.

    `persistent`: a saved value stays until its backward (property R.1). `dropping`: any
    value may be given up at any time, also the input of a stage that saved.
    """
    n = len(chain.u_f)

    def size(stored: frozenset[tuple[str, int]]) -> int:
        return sum(chain.a[i] if kind == "a" else chain.a_bar[i] for kind, i in stored)

    def moves(state: ChainState) -> Iterable[tuple[float, Any]]:
        stored, turn, pinned = state
        if mode == "dropping":
            for item in stored:
                yield 0, (stored - {item}, turn, pinned)
        used = size(stored) + chain.delta[turn]
        for i in range(1, turn + 1):
            plain, full = ("a", i - 1) in stored, ("bar", i - 1) in stored
            if not plain and not full:
                continue
            pins = pinned | {i - 1} if mode == "persistent" else pinned
            saving = used + chain.a_bar[i] + chain.o_f[i - 1]
            if ("bar", i) not in stored and saving <= memory:
                yield chain.u_f[i - 1], (stored | {("bar", i)}, turn, pins)
            if ("a", i) in stored or used + chain.a[i] + chain.o_f[i - 1] > memory:
                continue
            yield chain.u_f[i - 1], (stored | {("a", i)}, turn, pins)
            if plain and i - 1 not in pinned:
                gone = stored - {("a", i - 1)} | {("a", i)}
                yield chain.u_f[i - 1], (gone, turn, pinned)
        ready = {("a", turn - 1), ("bar", turn - 1)} & stored and ("bar", turn) in stored
        if ready and used + chain.delta[turn - 1] + chain.o_b[turn - 1] <= memory:
            left = stored - {("bar", turn), ("a", turn), ("a", turn - 1)}
            yield chain.u_b[turn - 1], (left, turn - 1, pinned - {turn - 1})

    start = (frozenset([("a", 0)]), n, frozenset[int]())
    least = least_cost(start, 0.0, lambda state: state[1] == 0, moves)
    return inf if least is None else least


def least_multi_time(lengths: Sequence[int], slots: int) -> float:
    """The makespan of Multi-0(L, m): one slot per value, every operation takes 1, and an
    operation may put its output where its input was."""
    branches = range(len(lengths))

    def moves(state: MultiState) -> Iterable[tuple[float, Any]]:
        stored, turns, lost = state
        for item in stored:
            yield 0, (stored - {item}, turns, lost)
        for k in branches:
            for i in range(turns[k] if lost else lengths[k]):
                if (k, i) in stored and (k, i + 1) not in stored:
                    grads = sum(1 for t in turns if t > 0) if lost else 0
                    for after in (stored | {(k, i + 1)}, stored - {(k, i)} | {(k, i + 1)}):
                        if len(after) + grads <= slots:
                            yield 1, (after, turns, lost)
            if lost and turns[k] > 0 and (k, turns[k] - 1) in stored:
                after = stored - {(k, turns[k] - 1), (k, turns[k])}
                yield 1, (after, (*turns[:k], turns[k] - 1, *turns[k + 1 :]), lost)
        if not lost and all((k, lengths[k]) in stored for k in branches):
            left = stored - {(k, lengths[k]) for k in branches}
            yield 1, (left, tuple(lengths), True)

    start = (frozenset((k, 0) for k in branches), tuple(lengths), False)
    least = least_cost(start, 0.0, lambda s: s[2] and not any(s[1]), moves)
    return inf if least is None else least
