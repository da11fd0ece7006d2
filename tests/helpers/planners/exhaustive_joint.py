"""All plans of a small chain under Assumptions 4 of Shilova 2021, by plain recursion over amounts:
what `JointTable` must find. Rates are one byte per nanosecond both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from remat_compile.planners.chains.stages import Stage


def least_time(stages: Sequence[Stage], memory: int) -> float:
    return min(_forward(stages, memory, 0, 0, 0, 0.0, 0.0), default=inf)


def least_backward(
    stages: Sequence[Stage], memory: int, s: int, t: int, held: int, moving: int
) -> float:
    """The same of the backward of stages t to s alone."""
    return min(_backward(stages, memory, s, t, held, moving), default=inf)


def _wait(need: float, memory: int, held: float, moving: float) -> float:
    return inf if need + held > memory else max(0.0, need + held + moving - memory)


def _forward(
    stages: Sequence[Stage], memory: int, s: int, own: int, held: float, out: float, back: float
) -> Iterator[float]:
    """Every way to run stages s and on; `own` bytes stand in front of s."""
    last = len(stages) - 1
    stage, option = stages[s], stages[s].options[0]
    beside = held + own
    first = stage.held_first + option.first.peak_bytes
    forward = option.first.time_ns + _wait(first, memory, beside, out)
    backward = option.backward.time_ns + _wait(option.backward.peak_bytes, memory, beside, back)
    for moved in (0, own):
        state = held + own - moved, max(0.0, out + moved - forward)
        later = max(0.0, back - backward) + moved
        if s == last:
            yield forward + backward + state[1] + later
        elif forward + backward < inf:
            rest = _forward(stages, memory, s + 1, option.hold_bytes, *state, later)
            yield forward + backward + min(rest, default=inf)
    for k in range(s + 1, last + 1):
        need = 0.0
        for h in range(s, k):  # the input of s stays; later ones go after their use
            skim = stages[h].skim_first
            bytes_ = skim.peak_bytes if h == s else skim.dropping_bytes
            need = max(need, stages[h].held_first + bytes_)
        forward = sum(stages[h].skim_first.time_ns for h in range(s, k))
        forward += _wait(need, memory, beside, out)
        inner = min(_backward(stages, memory, s, k - 1, beside, back), default=inf)
        if forward + inner == inf:
            continue
        for moved in (0, own):
            state = held + own - moved, max(0.0, out + moved - forward)
            later = max(0.0, back - inner) + moved
            rest = _forward(stages, memory, k, stages[k - 1].cross_bytes, *state, later)
            yield forward + inner + min(rest, default=inf)


def _backward(
    stages: Sequence[Stage], memory: int, s: int, t: int, held: float, moving: float
) -> Iterator[float]:
    """Every way to run the backward of stages t to s, while `moving` bytes come back by its end."""
    option, other = stages[s].options[0], stages[t].held_again
    back = option.backward
    if s == t:
        first = other + option.last.peak_bytes
        if first + held <= memory and back.peak_bytes + held <= memory:
            ahead = max(0.0, first + held + moving - back.time_ns - memory)
            waiting = max(ahead, _wait(back.peak_bytes, memory, held, moving))
            yield option.last.time_ns + back.time_ns + waiting
        return
    late = back.time_ns + _wait(back.peak_bytes, memory, held, moving)
    if late < inf:
        after = max(0.0, moving - late)
        inner = min(
            _backward(stages, memory, s + 1, t, held + option.hold_bytes, after), default=inf
        )
        if inner < inf:
            rest = max(0.0, after - inner)
            early = _wait(other + option.again.peak_bytes, memory, held, rest)
            yield option.again.time_ns + late + inner + early
    for k in range(s + 1, t + 1):
        left = min(_backward(stages, memory, s, k - 1, held, moving), default=inf)
        if left == inf:
            continue
        after = max(0.0, moving - left)
        beside = held + stages[k - 1].cross_bytes
        right = min(_backward(stages, memory, k, t, beside, after), default=inf)
        if right == inf:
            continue
        need = 0.0
        for h in range(s, k):
            skim = stages[h].skim_again
            need = max(need, skim.peak_bytes if h == s else skim.dropping_bytes)
        early = _wait(other + need, memory, held, max(0.0, after - right))
        yield sum(stages[h].skim_again.time_ns for h in range(s, k)) + left + right + early
