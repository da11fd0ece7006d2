"""`hiremate` beside `rockmate`, `rotor` and `dtr`, on chains of layers and on graphs that are none.

    python benchmarks/hiremate.py --kept rows.jsonl                # table 1: every network
    python benchmarks/hiremate.py --kept rows.jsonl --nets gpt2-12,unet --best 600
    python benchmarks/hiremate.py --kept rows.jsonl --levels       # table 2: one, two, three levels

Networks of `zoo/hierarchies.py`, captured on the `meta` device; costs by roofline for a
V100. Budgets are f between the least bytes of activations for which `dtr` finds a plan and those
of the unplanned step. Figures are per cent over the time with nothing recomputed; `*`: the
time limit ended the search, `-`: no plan, `saved`: per cent of the unplanned activations.
`bound`: no plan is faster (docs/design/bounds.md). Where `hiremate` is more than 1.02 × above
that, `--best` gives the others so many seconds each; the least of all is `best`.

It says at the end which promises of the page hold: on chains never above 1.01 × the better of
`rockmate` and `rotor`, on the other networks never above 1.02 × the best plan known. With
`--check` it exits with 1 where one does not.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from _kept import Kept
from zoo.hierarchies import CHAINS, HIERARCHIES, make

import remat_compile
from remat_compile.costs import load_device, roofline
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import Infeasible, TimedOut, parse_planner
from remat_compile.planners.bounds.relaxation import lower_bound_ns
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.budget import Baseline

SHARES = (0.8, 0.5, 0.3, 0.1)
PLANNERS = ("hiremate", "rockmate", "rotor", "dtr")
LONG = ("auto{offload=false}", "rk-checkmate", "rockmate", "dtr")
"""Who is given much time where `hiremate` is not near the bound; none of them copies."""
LEVELS = ("hiremate{levels=1}", "hiremate{levels=2}", "hiremate{levels=3}")
ON_CHAINS, ON_OTHERS = 1.01, 1.02

Figure = tuple[int, bool] | None
"""Nanoseconds, and whether the time limit ended the search; None: no plan."""

app = typer.Typer(add_completion=False)


def captured(name: str) -> Program:
    """The network's step on a V100."""
    module, args = make(name)
    plan = remat_compile.plan(
        module, args, planner="store-all", costs="roofline", device="v100-16gb", cache=False
    )
    return roofline(plan.program, load_device("v100-16gb"))


def planned(planner: str, program: Program, budget: Budget, limit_s: float) -> Figure:
    result = parse_planner(planner).plan(program, budget, time_limit_s=limit_s)
    schedule = getattr(result, "schedule", None)
    if schedule is None:
        return None
    trace = simulate(program, schedule)
    assert trace.activation_peak_bytes <= budget.bytes, planner
    return trace.time_ns, isinstance(result, TimedOut)


def bounded(program: Program, budget: Budget, limit_s: float) -> int:
    with MilpSolver() as solver:
        instance = Instance.of(program, "activation")
        return lower_bound_ns(instance, budget.bytes, solver, limit_s)


def least_bytes(program: Program) -> int:
    """The least for which `dtr` finds a plan."""
    refused = parse_planner("dtr").plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    return refused.min_budget.bytes


class Row:
    """One network at one budget."""

    def __init__(self, net: str, program: Program, f: float, low: int, kept: Kept):
        base = Baseline.of(program)
        self.net, self.program, self.f, self.kept = net, program, f, kept
        self.base_ns, high = base.time_ns, base.activation_peak_bytes
        self.budget = Budget(int(low + f * (high - low)), "activation")
        self.saved = 1 - self.budget.bytes / high
        self.times_ns: dict[str, int] = {}

    def cell(self, planner: str, limit_s: float) -> str:
        """Per cent and processor seconds, in words."""
        of = (self.net, self.f, planner, limit_s)
        run = partial(planned, planner, self.program, self.budget, limit_s)
        figure, spent_s = self.kept.figure(of, run)
        if figure is None:
            return f"- ({spent_s:.0f} s)"
        time_ns, late = figure
        self.times_ns[planner] = min(time_ns, self.times_ns.get(planner, time_ns))
        return f"{self.percent(time_ns)}{'*' if late else ''} ({spent_s:.0f} s)"

    def percent(self, time_ns: int) -> str:
        return f"{100 * (time_ns / self.base_ns - 1):.2f}"

    def bound_ns(self, limit_s: float) -> int:
        run = partial(bounded, self.program, self.budget, limit_s)
        bound_ns, _ = self.kept.figure((self.net, self.f, "bound", limit_s), run)
        return bound_ns

    def worse(self, bound_ns: int) -> str | None:
        """What promise this row breaks."""
        names: tuple[str, ...]
        ours = self.times_ns.get("hiremate")
        if self.net in CHAINS:
            names, most = ("rockmate", "rotor"), ON_CHAINS
        else:
            names, most = tuple(self.times_ns), ON_OTHERS
        known = {name: self.times_ns[name] for name in names if name in self.times_ns}
        if not self.times_ns:
            return f"{self.net} at {self.f:g}: no plan of anyone"
        if not known or (ours is not None and ours <= most * bound_ns):
            return None
        best = min(known, key=lambda name: known[name])
        if ours is None or ours > most * known[best]:
            over = "no plan" if ours is None else f"{ours / known[best]:.3f} x {best}"
            return f"{self.net} at {self.f:g}: {over}"
        return None


@app.command()
def main(
    limit: Annotated[float, typer.Option(help="seconds for each plan")] = 60.0,
    nets: Annotated[str, typer.Option(help="names, comma separated")] = ",".join(HIERARCHIES),
    kept: Annotated[Path | None, typer.Option(help="JSON lines to go on from")] = None,
    best: Annotated[float, typer.Option(help="seconds for others, away from the bound")] = 0.0,
    levels: Annotated[bool, typer.Option("--levels", help="by number of levels")] = False,
    check: Annotated[bool, typer.Option("--check", help="exit code 1 if worse")] = False,
) -> None:
    """Prints a table in Markdown."""
    if levels and check:
        raise typer.BadParameter("the table of levels promises nothing: leave out one of both")
    known = Kept(kept)
    columns: tuple[str, ...] = LEVELS if levels else PLANNERS
    head = ["network", "cNodes", "f", "saved", *(f"`{column}`" for column in columns)]
    head += [] if levels else ["best", "bound"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)
    worse = []
    for name in nets.split(","):
        program = captured(name)
        low, _ = known.figure((name, "least"), partial(least_bytes, program))
        for f in SHARES:
            row = Row(name, program, f, low, known)
            size = str(len(program.graph.cnodes))
            cells = [name, size, f"{f:g}", f"{100 * row.saved:.0f}"]
            cells += [row.cell(column, limit) for column in columns]
            if not levels:
                bound_ns = row.bound_ns(limit)
                ours = row.times_ns.get("hiremate")
                if best and (ours is None or ours > ON_OTHERS * bound_ns):
                    for other in LONG:
                        row.cell(other, best)
                cells.append(row.percent(min(row.times_ns.values())) if row.times_ns else "-")
                cells.append(row.percent(bound_ns))
                worse += [text] if (text := row.worse(bound_ns)) else []
            print("| " + " | ".join(cells) + " |", flush=True)
    if not levels:
        print("\nAll promises hold." if not worse else "\nWorse: " + "; ".join(worse))
    raise typer.Exit(int(check and bool(worse)))


if __name__ == "__main__":
    app()
