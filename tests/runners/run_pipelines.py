"""Kills ranks of pipelined steps, and times steps.

    python tests/runners/run_pipelines.py [--kills 200] [--seed 0] [--seconds 0.6]

Each kill: three ranks train with dropout and AdamW until one of them is killed at a random moment.
The others must raise FB1030 by their deadline, and be as they were before the step that failed.
Then stages that sleep, against the time that was claimed; and two ranks of a thread each against
one (both on idle cores only). Exit code 1 if a kill hangs or leaves something changed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.distributed.forked import asleep, durations_s, killed, planned, sleeping
from helpers.distributed.pipelines import wide


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.6)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    ranks = planned("dropout", 3, microbatches=4, timeout_s=5)
    told: Counter[str] = Counter()
    steps: list[int] = []
    for _ in range(options.kills):
        answers = killed(ranks, chance, options.seconds)
        told.update(a["code"] + (" unchanged" if a["same"] else " CHANGED") for a in answers)
        steps += [a["steps"] for a in answers]
        told["apart"] += len({a["steps"] for a in answers}) > 1
    print(f"{options.kills} kills after {min(steps)} to {max(steps)} steps: {dict(told)}")
    slow, claimed_s = asleep(ranks, 0.1)
    with sleeping():
        took = statistics.median(durations_s(slow, 3))
    print(f"sleeping stages: {took:.3f} s, claimed {claimed_s:.3f} s: {took / claimed_s:.3f}")
    one, two = (planned("", n, wide, microbatches=8, timeout_s=300) for n in (1, 2))
    pairs = [(durations_s(one, 1)[0], durations_s(two, 1)[0]) for _ in range(5)]
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"two ranks against one: {ratio:.3f} of the time ({pairs})")
    wrong = [name for name in told if name not in ("FB1030 unchanged", "apart")]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
