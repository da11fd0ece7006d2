"""`hiremate` against `rockmate`, `rotor` and `dtr` on chains of layers and on graphs that are none.

    python benchmarks/hiremate.py                       # the table of docs/planners/hiremate.md
    python benchmarks/hiremate.py --limit 60 --graphs gpt2-12,unet

Budgets are f between the least bytes of activations for which `dtr` finds a plan and those of the
unplanned step. Overhead in per cent of the time with nothing recomputed; `*`: the time limit ended
the search, `-`: no plan. Graphs are synthetic; times are those written on them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from _tables import print_table

from remat_compile.driver.budget import Baseline
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Infeasible, TimedOut, parse_planner

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.planners.graphs import encoder_decoder, transformer, unet

GRAPHS: dict[str, Callable[[], Program]] = {
    "gpt2-4": lambda: transformer(4),
    "gpt2-12": lambda: transformer(12),
    "encoder-decoder 12+12": lambda: encoder_decoder(12),
    "unet 12": lambda: unet(12),
}
SHARES = (0.8, 0.5, 0.3, 0.1)
PLANNERS = ("hiremate", "rockmate", "rotor", "dtr")

app = typer.Typer(add_completion=False)


def cell(planner: str, program: Program, budget: Budget, limit_s: float) -> tuple[str, float]:
    """Overhead in words, and seconds."""
    start = perf_counter()
    result = parse_planner(planner).plan(program, budget, time_limit_s=limit_s)
    spent = perf_counter() - start
    schedule = getattr(result, "schedule", None)
    if schedule is None:
        return "-", spent
    trace = simulate(program, schedule)
    assert trace.activation_peak_bytes <= budget.bytes, planner
    base = sum(c.time_ns_at(1) for c in program.graph.cnodes)
    late = "*" if isinstance(result, TimedOut) else ""
    return f"{100 * (trace.time_ns / base - 1):.2f}{late}", spent


@app.command()
def main(
    limit: Annotated[float, typer.Option(help="seconds for each plan")] = 60.0,
    graphs: Annotated[str, typer.Option(help="names, comma separated")] = ",".join(GRAPHS),
) -> None:
    """Prints a row for each graph and budget."""
    rows = []
    for name in graphs.split(","):
        program = GRAPHS[name]()
        refused = parse_planner("dtr").plan(program, Budget(1, "activation"))
        assert isinstance(refused, Infeasible)
        assert refused.min_budget is not None
        low = refused.min_budget.bytes
        high = Baseline.of(program).activation_peak_bytes
        for f in SHARES:
            budget = Budget(int(low + f * (high - low)), "activation")
            cells = [cell(planner, program, budget, limit) for planner in PLANNERS]
            rows.append((name, f"{f:g}", *(f"{text} ({s:.0f} s)" for text, s in cells)))
            print(*rows[-1], sep=" | ", flush=True)
    print()
    print_table(("graph", "f", *PLANNERS), rows)


if __name__ == "__main__":
    app()
