"""Which waits of a plan nothing else stands in for."""

from __future__ import annotations

from collections import Counter

from remat_compile.ir.schedule import Offload, Prefetch, Schedule, Wait


def needed_waits(schedule: Schedule) -> list[int]:
    """Waits for a copy behind which, in its direction, no copy was waited for before."""
    issued: Counter[str] = Counter()
    flying: dict[str, tuple[str, int]] = {}
    latest: Counter[str] = Counter()
    needed, number = [], 0
    for step in schedule.steps:
        match step:
            case Offload(name) | Prefetch(name):
                issued[step.word] += 1
                flying[name] = (step.word, issued[step.word])
            case Wait(name):
                direction, turn = flying.pop(name)
                if turn > latest[direction]:
                    needed.append(number)
                    latest[direction] = turn
                number += 1
            case _:
                pass
    return needed
