"""How long the dynamic programs of chains take, on random chains: no framework needed.

    python benchmarks/rotor.py
    python benchmarks/rotor.py --check       # exit code 1 where L = 340 takes more than 5 s

Seconds are processor time of one thread.
"""

from __future__ import annotations

import random
import time
from typing import Annotated

import typer
from _tables import print_table

from remat_compile.planners.chains.choices import operations, slot_bytes
from remat_compile.planners.chains.recurrences.floating import Floating
from remat_compile.planners.chains.recurrences.persistent import Persistent
from remat_compile.planners.chains.stages import SavingOption, Skim, Stage, StageRun

LIMIT_S = 5.0


def random_stages(length: int, seed: int = 0) -> list[Stage]:
    """A chain of `length` layers and a loss, all with different times and sizes."""
    rng = random.Random(seed)
    a = [rng.randint(500_000, 1_500_000) for _ in range(length + 2)]
    stages = []
    for i in range(length + 1):
        time_ns = rng.randint(100, 10_000)
        saved = a[i + 1] + rng.randint(500_000, 6_000_000)
        skim = Skim(time_ns, a[i + 1], a[i] + a[i + 1])
        way = StageRun(time_ns, saved)
        back = StageRun(2 * time_ns, saved + a[i] + a[i + 1])
        option = SavingOption(way, way, way, back, saved)
        stages.append(Stage(skim, skim, (option,), a[i + 1], 0, a[length + 1], a[i + 1]))
    return stages


def measure(name: str, length: int, slots: int, share: float) -> tuple[str, ...]:
    """A row: seconds for the table and for the schedule, and the overhead of the plan."""
    stages = random_stages(length)
    limit = int(share * sum(s.options[0].hold_bytes for s in stages))
    slot = slot_bytes(stages, limit, slots)
    start = time.process_time()
    table = (Persistent if name == "rotor" else Floating)(stages, slot, limit // slot)
    middle = time.process_time()
    if isinstance(table, Persistent):
        operations(stages, table.choose, table.top)
    else:
        table.operations(table.top)
    end = time.process_time()
    base = sum(s.skim_first.time_ns + s.options[0].backward.time_ns for s in stages)
    overhead = table.time_ns(table.top) / base - 1
    return (
        f"{name} L={length} {slots} slots",
        f"{share:.0%}",
        f"{middle - start:.2f}",
        f"{end - middle:.2f}",
        f"{overhead:.1%}",
    )


def main(check: Annotated[bool, typer.Option(help="Fail above the limit.")] = False) -> None:
    """Times `rotor` and `rotor-floating`."""
    cases = [
        ("rotor", 50, 500),
        ("rotor", 340, 500),
        ("rotor-floating", 30, 500),
        ("rotor-floating", 60, 500),
    ]
    rows = [measure(*case, share) for case in cases for share in (0.5, 0.15)]
    print_table(("program", "memory", "table s", "schedule s", "overhead"), rows)
    large = [float(row[2]) + float(row[3]) for row in rows if row[0].startswith("rotor L=340")]
    if check and max(large) > LIMIT_S:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
