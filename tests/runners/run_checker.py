"""Holds the checker against the simulator and the reference on random plans, half of them damaged.

    python tests/runners/run_checker.py [--random 2000] [--seed 0]

Fails where one accepts what another refuses, or where bytes or time differ.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.programs.strategies import random_program, random_schedule
from helpers.verifier.breaks import BREAKS
from helpers.verifier.opinions import agrees


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    accepted = 0
    for i in range(options.random):
        rng = Random(f"checker {options.seed} {i}")
        program = random_program(rng, size=rng.choice((4, 6, 9)))
        copy, home = rng.choice((0.0, 0.2)), rng.choice((0.0, 0.5))
        schedule = random_schedule(rng, program, copy=copy, home=home)
        steps = list(schedule.steps)
        if i % 2:
            BREAKS[rng.choice(list(BREAKS))](rng, steps)
        accepted += agrees(program, replace(schedule, steps=tuple(steps)))
    print(f"{options.random} plans, {accepted} accepted by all, the others refused by all")


if __name__ == "__main__":
    main()
