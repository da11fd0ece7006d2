"""Memory thresholds and times of the choices of a chain's dynamic programs.

Shilova 2021, section 2.3.4, and Zhao 2024, section 2.1.2: m_0^{s,t} to run without saving
and m_all^{s,t} to save and come back. Bytes and nanoseconds; `t` is the stage whose
backward comes first, and the last stage is the loss.

Two stages and the loss, values of 1 byte, 3 bytes saved for a backward, gradients of 1 byte. On
the way to the backward of stage 1 (its gradient is there), stage 0 runs without saving: 1 + 1.
Saving both, with all that was saved before aside: the peak of the own backward, 3 + 2 gradients.

    >>> needs = Thresholds(stages)
    >>> needs.skim_needs(1)[0], needs.saves(0, 1)  # (bytes, held, ns) for each option
    (2, [(5, 3, 30)])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from math import gcd
from typing import Literal, assert_never

from .stages import Run, Stage


@dataclass(frozen=True, slots=True)
class Save:
    """Case 1: the stage is run with an option that its backward will follow."""

    option: int


@dataclass(frozen=True, slots=True)
class Split:
    """Case 2: forwards without saving up to `stage`, whose input is the next checkpoint."""

    stage: int


Choice = Save | Split


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One step of a chain's schedule: `skim` (F^0 or F^ck), `save` or `back` of a stage,
    with the cNodes that it runs."""

    kind: Literal["skim", "save", "back"]
    stage: int
    run: Run


class Thresholds:
    """The free bytes that each choice needs, the bytes it holds, and its time."""

    def __init__(self, stages: Sequence[Stage]):
        self.stages = stages
        self.last = len(stages) - 1
        self.tokens = [0, *accumulate(s.token_bytes for s in stages)]
        self._first = [0, *accumulate(s.skim_first.time_ns for s in stages)]
        self._again = [0, *accumulate(s.skim_again.time_ns for s in stages)]
        self.skim_needs = lru_cache(maxsize=None)(self._skim_needs)
        self._holds = [
            [(o.backward.peak_bytes, o.hold_bytes, o.backward.time_ns) for o in s.options]
            for s in stages
        ]

    def skim_times(self, t: int) -> Sequence[int]:
        """Times of forwards without saving, summed up from stage 0."""
        return self._first if t == self.last else self._again

    def split_bytes(self, s: int, k: int) -> int:
        """The bytes held from a split in front of stage k until its right part is done: the
        checkpoint, and the generator states of stages s to k - 1."""
        return self.stages[k - 1].cross_bytes + self.tokens[k] - self.tokens[s]

    def _skim_needs(self, t: int) -> list[int]:
        """For each s up to t: m_0^{s,t}, to run stages s to t - 1 without saving while the
        input of s stays."""
        needs = [0] * (t + 1)
        inner = 0
        # `inner`: the most that the stages behind s ask for, their own input (a_{h-1}) included;
        # for s itself it is counted outside. Section 2.3.3: delta_t + a_h + o_F.
        for s in range(t - 1, -1, -1):
            stage = self.stages[s]
            if t == self.last:
                # The first pass: generator states that it stores pile up behind it.
                own = stage.held_first + stage.skim_first.peak_bytes
                needs[s] = max(own, inner - self.tokens[s])
                dropping = stage.held_first + stage.skim_first.dropping_bytes
                inner = max(inner, dropping + self.tokens[s])
            else:
                always = self.stages[t].held_again + self.tokens[t + 1] - self.tokens[s]
                needs[s] = always + max(stage.skim_again.peak_bytes, inner)
                inner = max(inner, stage.skim_again.dropping_bytes)
        return needs

    def saves(self, s: int, t: int) -> list[tuple[int, int, int]]:
        """For each option of stage s: m_all^{s,t}, the bytes held until its backward, and
        the time of both."""
        stage = self.stages[s]
        if t == self.last:
            held = stage.held_first
            ways = [o.first for o in stage.options]
        else:
            held = self.stages[t].held_again + self.tokens[t + 1] - self.tokens[s]
            ways = [o.last if s == t else o.again for o in stage.options]
        return [
            (max(held + way.peak_bytes, peak), hold, way.time_ns + time_ns)
            for way, (peak, hold, time_ns) in zip(ways, self._holds[s], strict=True)
        ]

    @cached_property
    def sizes(self) -> list[int]:
        """Every size that a schedule can hold."""
        held = [s.cross_bytes for s in self.stages] + [s.token_bytes for s in self.stages]
        return held + [o.hold_bytes for s in self.stages for o in s.options]


def slot_bytes(stages: Sequence[Stage], limit_bytes: int, slots: int) -> int:
    """Bytes of a memory slot: exact where the sizes have a common divisor that is large
    enough, else the limit over `slots`, rounded up (Shilova 2021, section 2.4.2)."""
    common = gcd(*Thresholds(stages).sizes)
    if common and limit_bytes // common <= slots:
        return common
    return max(1, -(-limit_bytes // slots))


def reserve_tokens(stages: Sequence[Stage], slot: int) -> tuple[list[Stage], int]:
    """Stages without generator states, and the bytes to set aside for all of them, where
    these are less than a slot; else the stages as they are, and 0."""
    total = sum(s.token_bytes for s in stages)
    if total >= slot:
        return list(stages), 0
    return [replace(s, token_bytes=0) for s in stages], total


def operations(
    stages: Sequence[Stage], choose: Callable[[int, int, int], tuple[Choice, int]], memory: int
) -> list[ChainStep]:
    """The schedule that follows `choose` (first choice for stages s..t and a memory, and
    the memory of its inner part): algorithm 4 of Shilova 2021, 6 of Zhao 2024."""
    last = len(stages) - 1
    steps: list[ChainStep] = []
    todo: list[ChainStep | tuple[int, int, int]] = [(0, last, memory)]
    while todo:
        item = todo.pop()
        if isinstance(item, ChainStep):
            steps.append(item)
            continue
        s, t, m = item
        choice, inner = choose(s, t, m)
        match choice:
            case Save(o):
                option = stages[s].options[o]
                way = option.first if t == last else option.last if s == t else option.again
                steps.append(ChainStep("save", s, way.run))
                todo.append(ChainStep("back", s, option.backward.run))
                if s < t:
                    todo.append((s + 1, t, inner))
            case Split(k):
                for h in range(s, k):
                    skim = stages[h].skim_first if t == last else stages[h].skim_again
                    steps.append(ChainStep("skim", h, skim.run))
                todo.append((s, k - 1, m))
                todo.append((k, t, inner))
            case _:
                assert_never(choice)
    return steps
