"""All subsets of the saved sets of a chain, each timed by the recurrence of Shilova 2021, 3.3, with
every amount exact: what `best_sets` must find."""

from __future__ import annotations

from itertools import product
from random import Random

from remat_compile.planners.chains.stages import SavingOption, Skim, Stage, StageRun


def stages(seed: int) -> tuple[list[Stage], int, float]:
    """A chain of up to six stages and the loss, its room, and bytes per nanosecond. Amounts moved
    in a computation are whole, so that slots of one byte are exact."""
    rng = Random(seed)
    rate = float(rng.choice((1, 2)))
    made = []
    count = rng.randint(3, 6)
    for i in range(count):
        hold = rng.randint(2, 9) if i < count - 1 else 0
        forward = StageRun(rng.randint(1, 6), hold + rng.randint(0, 2))
        backward = StageRun(rng.randint(1, 6), hold + rng.randint(0, 3))
        option = SavingOption(forward, forward, forward, backward, hold)
        made.append(Stage(Skim(1, 1, 1), Skim(1, 1, 1), (option,), 1, 0, 0, 0))
    whole = sum(stage.options[0].hold_bytes for stage in made)
    return made, rng.randint(whole // 2, whole + 2), rate


def best_of_all_sets(
    made: list[Stage], room: int, rate: float
) -> tuple[float | None, dict[tuple[int, ...], float]]:
    """The least time, None where no set fits; and the time of each set that does."""
    times: dict[tuple[int, ...], float] = {}
    for bits in product((False, True), repeat=len(made) - 1):
        moved = tuple(i for i, bit in enumerate(bits) if bit)
        if (time := _time(made, room, rate, set(moved))) is not None:
            times[moved] = time
    return min(times.values(), default=None), times


def _time(made: list[Stage], room: int, rate: float, moved: set[int]) -> float | None:
    kept = out = back = total = 0.0
    for i, stage in enumerate(made):
        own = made[i - 1].options[0].hold_bytes if i else 0
        option = stage.options[0]
        for need in (option.first.peak_bytes, option.backward.peak_bytes):
            if need + kept + own > room:
                return None
        ahead = max(0.0, (option.first.peak_bytes + kept + out + own - room) / rate)
        behind = max(0.0, (option.backward.peak_bytes + kept + back + own - room) / rate)
        forward = option.first.time_ns + ahead
        backward = option.backward.time_ns + behind
        total += forward + backward
        leaves = own if i - 1 in moved else 0
        out = max(0.0, out + leaves - forward * rate)
        back = max(0.0, back - backward * rate) + leaves
        kept += own - leaves
    return total + max(out, back) / rate
