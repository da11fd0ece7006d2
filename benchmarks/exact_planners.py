"""The exact planners on transformer blocks: time, proven bound and seconds.

    python benchmarks/exact_planners.py [--blocks 2 4] [--limit 120] [-o best_known.csv]

Budgets are at shares f of the way from the least activation peak that `dtr` reaches to that of
the unplanned step. Overheads are in % of the time with nothing recomputed. With -o, a table of
the best plan and the best bound per instance, whichever planner they come from.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planners"))

from graphs import transformer

from remat_compile.ir.program import Budget, Program
from remat_compile.ir.simulate import simulate
from remat_compile.planners import Infeasible, parse_planner
from remat_compile.planners._instance import Instance

SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)
PLANNERS = ("dtr", "rk-checkmate", "polish{of=dtr{rounds=0}}")


def budgets(program: Program) -> Iterator[tuple[float, Budget]]:
    refused = parse_planner("dtr{rounds=0}").plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    instance = Instance.of(program, "activation")
    low, high = refused.min_budget.bytes, instance.peak(instance.capture)
    for share in SHARES:
        yield share, Budget(int(low + share * (high - low)), "activation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[2])
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per planner")
    parser.add_argument("--planners", nargs="+", default=PLANNERS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    rows = []
    for blocks in asked.blocks:
        program = transformer(blocks)
        base = Instance.of(program, "activation").base_time_ns
        for share, budget in budgets(program):
            best, bound = float("inf"), 0.0
            for text in asked.planners:
                began = monotonic()
                result = parse_planner(text).plan(program, budget, time_limit_s=asked.limit)
                took = monotonic() - began
                schedule = getattr(result, "schedule", None)
                if schedule is None:
                    print(f"{blocks} blocks  f={share}  {text:28} {type(result).__name__}")
                    continue
                trace = simulate(program, schedule)
                assert trace.activation_peak_bytes <= budget.bytes
                extra = 100 * (trace.time_ns / base - 1)
                least = 100 * ((result.lower_bound_ns or base) / base - 1)
                best, bound = min(best, extra), max(bound, least)
                print(
                    f"{blocks} blocks  f={share}  {text:28} {type(result).__name__:9} "
                    f"{extra:7.3f} %  bound {least:7.3f} %  {took:6.1f} s",
                    flush=True,
                )
            rows.append([blocks, share, budget.bytes, f"{best:.4f}", f"{bound:.4f}"])
    if asked.output is not None:
        with asked.output.open("w", newline="", encoding="utf-8") as out:
            table = csv.writer(out, lineterminator="\n")
            table.writerow(["blocks", "f", "budget_bytes", "best_percent", "bound_percent"])
            table.writerows(rows)


if __name__ == "__main__":
    main()
