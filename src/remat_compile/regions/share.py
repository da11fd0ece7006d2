"""Sharing of one budget among regions: all forwards run before all backwards, so what they save
adds up.

While one region runs, the others that wait for their backward hold what they saved. So a set of
calls that are in flight together needs what all of them hold, and on top the most that one needs
beyond what it holds: `bound_bytes`. For shares, each region is given its floor and the same part
of the way from there to its peak with nothing recomputed, and what a region saves is taken to be
at most its share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar


@dataclass(frozen=True)
class Needs:
    """Bytes that a region holds whatever its plan, and the bounds between which its activations may
    be planned. `held` are parameters and buffers, by their storage, and `grads` the gradients of
    those, by the same keys. Calls of a region on other parameters (equal blocks of a model) add
    theirs; `call_grads_bytes` are those of one call, and `is_repeated` says that some are of
    several calls in flight together."""

    floor_bytes: int
    peak_bytes: int
    inputs_bytes: int = 0
    held: Mapping[Hashable, int] = field(default_factory=dict)
    grads: Mapping[Hashable, int] = field(default_factory=dict)
    call_grads_bytes: int | None = None
    is_repeated: bool = True

    @property
    def room_bytes(self) -> int:
        """Beyond these bytes above the floor nothing is gained."""
        return max(0, self.peak_bytes - self.floor_bytes)

    def share_bytes(self, part: Fraction) -> int:
        """The floor, and `part` of the way up to the peak."""
        return self.floor_bytes + int(part * self.room_bytes)


@dataclass(frozen=True)
class Used:
    """Proven bytes of a plan: activations at the peak, and from the end of the forward to the begin
    of the backward."""

    peak_bytes: int
    saved_bytes: int


K = TypeVar("K", bound=Hashable)


def fixed_bytes(calls: Mapping[K, int], needs: Mapping[K, Needs], *, held_before: bool) -> int:
    """Parameters and buffers, their gradients, and inputs of calls that are in flight together.

    A gradient that is added to one that is there takes its bytes twice for a while: where a
    parameter is used by several calls, or `held_before` says that the caller keeps gradients.
    """
    held: dict[Hashable, int] = {}
    grads: dict[Hashable, int] = {}
    users: dict[Hashable, int] = {}
    for region, count in calls.items():
        held.update(needs[region].held)
        grads.update(needs[region].grads)
        for key in needs[region].grads:
            users[key] = users.get(key, 0) + (count if needs[region].is_repeated else 1)
    twice = 0
    for region in calls:
        own = needs[region]
        added = sum(b for key, b in own.grads.items() if held_before or users[key] > 1)
        most = added if own.call_grads_bytes is None else own.call_grads_bytes
        twice = max(twice, min(added, most))
    inputs = sum(count * needs[region].inputs_bytes for region, count in calls.items())
    return sum(held.values()) + sum(grads.values()) + twice + inputs


def fraction(calls: Mapping[K, int], needs: Mapping[K, Needs], bytes_for_all: int) -> Fraction:
    """Return how far from floor to peak each of these calls may go; below zero where not even the
    floors fit."""
    floors = sum(count * needs[region].floor_bytes for region, count in calls.items())
    room = sum(count * needs[region].room_bytes for region, count in calls.items())
    left = bytes_for_all - floors
    if room == 0:
        return Fraction(1 if left >= 0 else -1)
    return min(Fraction(1), Fraction(left, room))


def bound_bytes(calls: Mapping[K, int], used: Mapping[K, Used]) -> int:
    """Activations of calls that are in flight together, at the most."""
    saved = sum(count * used[region].saved_bytes for region, count in calls.items())
    more: Iterable[int] = (used[region].peak_bytes - used[region].saved_bytes for region in calls)
    return saved + max(more, default=0)
