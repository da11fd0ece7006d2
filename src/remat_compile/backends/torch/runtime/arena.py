"""Addresses of all host copies of a plan, in one arena of exactly the bytes proven for the host.

Which copies are on the host at which step is known before the step runs, so nothing is allocated
during it. Intervals of different lengths do not always fit into as many bytes as the most that
are there at a time, however they are placed. A host copy is never computed with, so one that
finds no gap of its size lies in several: then every plan fits, and the arena is the peak.

    %a  2 bytes   steps 0 to 2    at 0..2
    %b  2 bytes   steps 0 to 4    at 2..4    6 bytes at most, at step 1 and from step 2 on;
    %c  2 bytes   steps 0 to 2    at 4..6    %d finds 0..2 and 4..6, and lies in both
    %d  4 bytes   steps 2 to 4               (the largest first: %d at 0..4 and %b at 4..6)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....ir.program import Program
from ....ir.schedule import HostFree, Offload, Schedule
from ....ir.semantics.sizes import Sizes

Pieces = tuple[tuple[int, int], ...]
"""Address and length, in bytes, of each part of one host copy, in the order of its bytes."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """One host copy: its aNode, its bytes, and the steps from `begin` up to before `end`."""

    anode: str
    size_bytes: int
    begin: int
    end: int


@dataclass(frozen=True)
class HostLayout:
    """`slots` has, by aNode, where each of its offloads puts the copy, the first one first."""

    size_bytes: int
    slots: Mapping[str, tuple[Pieces, ...]]


def host_layout(
    program: Program, schedule: Schedule, env: Mapping[str, int] | None = None
) -> HostLayout:
    """Where the host copies of a valid schedule lie; its size is the schedule's host peak at
    `env` (the sample by default)."""
    tenants = tenancies(schedule, Sizes.of(program, env).anode)
    size, placed = place(tenants)
    slots: dict[str, tuple[Pieces, ...]] = {}
    for tenancy, pieces in zip(tenants, placed, strict=True):
        slots[tenancy.anode] = (*slots.get(tenancy.anode, ()), pieces)
    return HostLayout(size, slots)


def tenancies(schedule: Schedule, size_bytes: Mapping[str, int]) -> list[Tenancy]:
    """The host copies of a schedule in the order in which they are issued, but for those of
    `homes`, which are in the caller's memory."""
    begins: dict[str, int] = {}
    copies: list[Tenancy] = []
    for index, step in enumerate(schedule.elementary.steps):
        match step:
            case Offload(name):
                begins[name] = index
            case HostFree(name) if name in begins:  # else of a home, in the caller's memory
                copies.append(Tenancy(name, size_bytes[name], begins.pop(name), index))
            case _:
                pass
    return sorted(copies, key=lambda tenancy: tenancy.begin)


def place(tenancies: list[Tenancy]) -> tuple[int, list[Pieces]]:
    """The most bytes that are there at a time, and pieces within so many for each tenancy.

    Tried in turn, until nothing is split: in the order of issue into the smallest gap that is
    large enough, then the largest first at the lowest address. What is left is split.
    """
    peak = _peak_bytes(tenancies)
    in_order = in_order_of_issue(tenancies, peak)
    if any(len(pieces) > 1 for pieces in in_order):
        return peak, _largest_first(tenancies, peak) or in_order
    return peak, in_order


def _peak_bytes(tenancies: list[Tenancy]) -> int:
    """`tenancies` is in the order of issue. At a step with both, a copy ends before one begins."""
    changes = sorted(
        change for t in tenancies for change in ((t.begin, t.size_bytes), (t.end, -t.size_bytes))
    )
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def in_order_of_issue(tenancies: list[Tenancy], size_bytes: int) -> list[Pieces]:
    """Into the smallest gap that is large enough, else into the largest gaps together."""
    placed: list[Pieces] = []
    present: list[int] = []
    for tenancy in tenancies:
        present = [i for i in present if tenancies[i].end > tenancy.begin]
        gaps = _gaps([piece for i in present for piece in placed[i]], size_bytes)
        placed.append(_taken(gaps, tenancy.size_bytes))
        present.append(len(placed) - 1)
    return placed


def _taken(gaps: list[tuple[int, int]], wanted: int) -> Pieces:
    fitting = [gap for gap in gaps if gap[1] >= wanted]
    if fitting:
        address, _ = min(fitting, key=lambda gap: (gap[1], gap[0]))
        return ((address, wanted),)
    pieces = []
    for address, length in sorted(gaps, key=lambda gap: -gap[1]):
        used = min(length, wanted)
        if used:
            pieces.append((address, used))
        wanted -= used
    assert wanted == 0, "the peak is what is there at the worst step"
    return tuple(sorted(pieces))


def _largest_first(tenancies: list[Tenancy], size_bytes: int) -> list[Pieces] | None:
    """Each in one piece, the largest first at the lowest address; None where one finds none."""
    placed: dict[int, tuple[int, int]] = {}
    for index in sorted(range(len(tenancies)), key=lambda i: (-tenancies[i].size_bytes, i)):
        mine = tenancies[index]
        beside = [
            piece
            for other, piece in placed.items()
            if tenancies[other].begin < mine.end and mine.begin < tenancies[other].end
        ]
        fitting = [gap for gap in _gaps(beside, size_bytes) if gap[1] >= mine.size_bytes]
        if not fitting:
            return None
        placed[index] = (fitting[0][0], mine.size_bytes)
    return [(placed[index],) for index in range(len(tenancies))]


def _gaps(taken: list[tuple[int, int]], size_bytes: int) -> list[tuple[int, int]]:
    """Return the gaps between pieces that may overlap, by address; one of no bytes at the end."""
    gaps, end = [], 0
    for address, length in sorted(taken):
        if address > end:
            gaps.append((end, address - end))
        end = max(end, address + length)
    return [*gaps, (end, size_bytes - end)]
