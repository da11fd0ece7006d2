"""The table of saved sets on the host: Shilova 2021, section 3.3 (equations 3.4 to 3.17).

A state before stage i is (A, F, B): bytes that stay, bytes that still have to leave (backlog of the
way out), bytes that have to be back before the backward of stage i - 1 (backlog of the way back,
seen from the end). With the input I of stage i, the saved set of stage i - 1:

    e_F = max(0, (need_F - M + A + F + I) / d2h)                          (3.6), e_B alike with h2d
    moved:  F <- max(0, F + I - (e_F + u_F) d2h),  B <- max(0, B - (e_B + u_B) h2d) + I
    kept:   A <- A + I,  F <- max(0, F - (e_F + u_F) d2h),  B <- max(0, B - (e_B + u_B) h2d)
    cost:   u_F + e_F + u_B + e_B      (algorithm 5 prints "u_B e_B": a plus is missing)

The thesis has one link for both ways, whose copies out end before copies back begin; there what is
left behind the loss takes F + B over its rate (3.16). With two ways it takes the longer of both.

Three stages, sets of 2, M = 5 and 1 a ns both ways: the first set leaves during the second forward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from ...chains.stages import Stage

_State = tuple[int, int, int]
_MOST_STATES = 30_000
_MOST_SETS = 3


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per nanosecond; `shared`: one transfer at a time."""

    out: float
    back: float
    shared: bool


@dataclass(frozen=True, slots=True)
class _Reached:
    """The least time to a state, and the stages whose sets were moved on the way, as bits."""

    time_ns: float
    moved: int


def best_sets(
    stages: Sequence[Stage], room_bytes: int, slots: int, rates: Rates, deadline: float
) -> Iterator[tuple[int, ...]]:
    """The fastest few sets of stages whose saved sets are moved, best first; none where there is
    no schedule, or past the deadline. The last stage is the loss."""
    slot = max(1, -(-room_bytes // slots))
    layer: dict[_State, _Reached] = {(0, 0, 0): _Reached(0.0, 0)}
    for i, stage in enumerate(stages):
        if monotonic() > deadline:
            return
        own = stages[i - 1].options[0].hold_bytes if i else 0
        after: dict[_State, _Reached] = {}
        for state, reached in layer.items():
            for following, time_ns, moves in _steps(stage, own, state, slot, room_bytes, rates):
                total = reached.time_ns + time_ns
                if following not in after or total < after[following].time_ns:
                    moved = reached.moved | (1 << (i - 1) if moves else 0)
                    after[following] = _Reached(total, moved)
        layer = _pruned(after)
    ended = [(_ending(state, slot, rates) + r.time_ns, r.moved) for state, r in layer.items()]
    sets = dict.fromkeys(moved for _, moved in sorted(ended))
    for moved in list(sets)[:_MOST_SETS]:
        yield tuple(i for i in range(len(stages)) if moved >> i & 1)


def _steps(
    stage: Stage, own: int, state: _State, slot: int, room: int, rates: Rates
) -> Iterator[tuple[_State, float, bool]]:
    kept, out, back = (n * slot for n in state)
    option = stage.options[0]
    need_out = stage.held_first + option.first.peak_bytes
    need_back = option.backward.peak_bytes
    if max(need_out, need_back) + kept + own > room:
        return
    wait_out = max(0.0, (need_out + kept + out + own - room) / rates.out)
    wait_back = max(0.0, (need_back + kept + back + own - room) / rates.back)
    forward = option.first.time_ns + wait_out
    backward = option.backward.time_ns + wait_back
    for moves in (False, True) if own else (False,):
        left = max(0.0, out + (own if moves else 0) - forward * rates.out)
        waiting = max(0.0, back - backward * rates.back) + (own if moves else 0)
        stays = kept if moves else kept + own
        amounts = (stays, left, waiting)
        following = tuple(-int(-amount // slot) for amount in amounts)
        yield following, forward + backward, moves  # type: ignore[misc]


def _pruned(layer: dict[_State, _Reached]) -> dict[_State, _Reached]:
    """The fastest states, where there are too many."""
    if len(layer) <= _MOST_STATES:
        return layer
    ranked = sorted(layer.items(), key=lambda item: (item[1].time_ns, item[0]))
    return dict(ranked[:_MOST_STATES])


def _ending(state: _State, slot: int, rates: Rates) -> float:
    out, back = state[1] * slot / rates.out, state[2] * slot / rates.back
    return out + back if rates.shared else max(out, back)
