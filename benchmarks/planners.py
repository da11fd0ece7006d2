"""Quality and speed of the planners on transformer blocks and on GPT-2 graphs.

    python benchmarks/planners.py quality                # blocks of 34 computations, all planners
    python benchmarks/planners.py quality --blocks 2 --planners auto,rockmate --check
    python benchmarks/planners.py timings --check        # the speed that is promised
    python benchmarks/planners.py gpt2                   # 12 layers, H200 roofline, half the peak

Budgets are f between the least bytes of activations for which a plan is known and those of
the unplanned step. `results/best_known.csv` holds the least time ever found for each, and the
highest proven bound; `quality` adds what it finds. With --check, exit code 1 where `auto`
is more than 1.05 times the best known overhead plus 0.2 points away, or something is slow.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Annotated, Any

import typer

import remat_compile
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import Infeasible, Optimal, available, parse_planner
from remat_compile.planners.bounds.relaxation import moments_ns
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.plans.budget import Baseline, BudgetText, format_bytes, parse_budget
from remat_compile.plans.sweep.sweep import Cell, Sweep, run_sweep

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
BEST_KNOWN = HERE / "results" / "best_known.csv"
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.1)
NEAR, POINTS = 1.05, 0.002
"""How far `auto` may be from the best known overhead, from f = .3 on."""
CPU_ONLY = {"rotor-floating": 2}
"""Planners that are left out where there are more blocks than this."""

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Best:
    """The least time known for a budget, and the highest bound; relative overheads."""

    blocks: int
    f: float
    budget_bytes: int
    overhead: float
    bound: float
    planner: str


def read_best() -> dict[tuple[int, float], Best]:
    if not BEST_KNOWN.exists():
        return {}
    with BEST_KNOWN.open(encoding="utf-8", newline="") as file:
        best = [
            Best(
                int(row["blocks"]),
                float(row["f"]),
                int(row["budget_bytes"]),
                float(row["overhead"]),
                float(row["bound"]),
                row["planner"],
            )
            for row in csv.DictReader(file)
        ]
    return {(b.blocks, b.f): b for b in best}


def write_best(best: dict[tuple[int, float], Best]) -> None:
    BEST_KNOWN.parent.mkdir(exist_ok=True)
    with BEST_KNOWN.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("blocks", "f", "budget_bytes", "overhead", "bound", "planner"))
        for b in sorted(best.values(), key=lambda b: (b.blocks, -b.f)):
            row = (f"{b.overhead:.6f}", f"{b.bound:.6f}", b.planner)
            writer.writerow((b.blocks, b.f, b.budget_bytes, *row))


def transformer(blocks: int) -> Program:
    from helpers.planners.graphs import transformer

    made: Program = transformer(blocks)
    return made


def budgets_of(program: Program) -> list[tuple[float, BudgetText]]:
    """The budgets at every f, in bytes of activations."""
    refused = Dtr().plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    low, high = refused.min_budget.bytes, Baseline.of(program).activation_peak_bytes
    print(f"f = 0 is {format_bytes(low)}, f = 1 {format_bytes(high)}")
    sizes = [(f, int(low + f * (high - low))) for f in SHARES]
    return [(f, replace(parse_budget(n, "activation"), text=f"f={f}")) for f, n in sizes]


@app.command()
def quality(
    blocks: str = "2,4",
    planners: Annotated[str, typer.Option(help="With commas between (all).")] = "",
    time_limit: float = 60.0,
    check: bool = False,
) -> None:
    """Every planner at every f, beside the best that is known."""
    known = read_best()
    wrong: list[str] = []
    for count in map(int, blocks.split(",")):
        program = transformer(count)
        names = planners.split(",") if planners else list(available())
        names = [n for n in names if CPU_ONLY.get(n, count) >= count]
        budgets = budgets_of(program)
        sweep = run_sweep(
            program,
            [parse_planner(name) for name in names],
            [text for _, text in budgets],
            time_limit_s=time_limit,
            progress=_only_results,
        )
        _learn(known, count, budgets, sweep)
        write_best(known)
        print(f"\n{count} blocks, {len(program.graph.cnodes)} computations")
        print(_table(sweep, known, count, budgets))
        wrong += _misses(sweep, known, count, budgets)
    print("\n".join(wrong))
    if check and wrong:
        raise SystemExit(1)


def _only_results(line: str) -> None:
    if line.count(": ") == 1:
        print(line, file=sys.stderr, flush=True)


def _at(sweep: Sweep, text: BudgetText) -> list[Cell]:
    return [cell for cell in sweep.cells if cell.budget == text.text]


def _learn(
    known: dict[tuple[int, float], Best],
    count: int,
    budgets: Sequence[tuple[float, BudgetText]],
    sweep: Sweep,
) -> None:
    base_s = sweep.baseline.time_ns / 1e9
    for f, text in budgets:
        size = int(text.amount)
        old = known.get((count, f))
        if old is None or old.budget_bytes != size:
            old = Best(count, f, size, float("inf"), 0.0, "")
        for cell in _at(sweep, text):
            if cell.overhead is not None and cell.overhead < old.overhead - 1e-9:
                old = replace(old, overhead=cell.overhead, planner=cell.winner or cell.planner)
            if cell.lower_bound_s is not None:
                old = replace(old, bound=max(old.bound, cell.lower_bound_s / base_s - 1))
        known[count, f] = replace(old, bound=min(old.bound, old.overhead))


def _table(
    sweep: Sweep,
    known: dict[tuple[int, float], Best],
    count: int,
    budgets: Sequence[tuple[float, BudgetText]],
) -> str:
    """Overheads in percent; `best known` with its bound; the least each planner reaches."""
    lines = [["", *(f"f={f}" for f, _ in budgets), "least", "seconds"]]
    best = [known[count, f] for f, _ in budgets]
    lines.append(["best known", *(f"{100 * b.overhead:.2f}" for b in best), "", ""])
    lines.append(["bound", *(f"{100 * b.bound:.2f}" for b in best), "", ""])
    for name in dict.fromkeys(c.planner for c in sweep.cells):
        mine = [c for c in sweep.cells if c.planner == name]
        shown = ["-" if c.overhead is None else f"{100 * c.overhead:.2f}" for c in mine]
        least = [c.least_bytes for c in mine if c.least_bytes is not None]
        reach = [c.budget_bytes for c in mine if c.overhead is not None]
        low = min((*least, *reach), default=None)
        seconds = f"{max(c.plan_s for c in mine):.1f}"
        lines.append([name, *shown, "" if low is None else format_bytes(low), seconds])
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(r, widths, strict=True))
        )
        for r in lines
    )


def _misses(
    sweep: Sweep,
    known: dict[tuple[int, float], Best],
    count: int,
    budgets: Sequence[tuple[float, BudgetText]],
) -> list[str]:
    wrong = []
    for f, text in budgets:
        for cell in _at(sweep, text):
            if cell.planner != "auto" or f < 0.3:
                continue
            limit = NEAR * known[count, f].overhead + POINTS
            if cell.overhead is None or cell.overhead > limit:
                wrong.append(f"auto on {count} blocks at f={f}: {cell.overhead} above {limit:.4f}")
    return wrong


def _cpu_s() -> float:
    own, children = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    return own.ru_utime + children.ru_utime


@dataclass(frozen=True)
class Timing:
    what: str
    limit_s: float
    wall_s: float
    cpu_s: float
    ok: bool = True
    note: str = ""


def _timed(
    what: str, limit_s: float, run: Callable[[], Any], good: Callable[[Any], bool]
) -> Timing:
    cpu, start = _cpu_s(), perf_counter()
    result = run()
    wall = perf_counter() - start
    ok = good(result) and wall <= limit_s
    made = Timing(what, limit_s, wall, _cpu_s() - cpu, ok, type(result).__name__)
    print(
        f"{what:44} {wall:7.1f} s  limit {limit_s:5.0f} s  user cpu {made.cpu_s:7.1f} s  "
        f"{made.note}{'' if ok else '  TOO SLOW OR WRONG'}",
        flush=True,
    )
    return made


def _has_plan(result: Any) -> bool:
    return getattr(result, "schedule", None) is not None


@app.command()
def timings(check: bool = False, gpt: bool = True) -> None:
    """The speed that is promised: limits are wall clock on two idle cores."""
    timed: list[Timing] = []
    two = transformer(2)
    for f, text in budgets_of(two):
        if f >= 0.3:
            budget = Budget(int(text.amount), "activation")
            exact = parse_planner("rk-checkmate")
            what = f"compact ILP, 2 blocks, f = {f}, proven"
            run = _planning(exact, two, budget, 60.0)
            timed.append(_timed(what, 15, run, lambda r: isinstance(r, Optimal)))
    from helpers.planners.graphs import chain

    rotor = parse_planner("rotor{slots=500}")
    _half(rotor, chain(12, seed=1))()  # compiles what is compiled
    timed.append(
        _timed("rotor, 340 blocks, 500 slots", 5, _half(rotor, chain(340, seed=1)), _has_plan)
    )
    large = transformer(2942)
    size = len(large.graph.cnodes)
    timed.append(
        _timed(f"dtr, {size} computations", 10, _half(parse_planner("dtr"), large), _has_plan)
    )
    if gpt:
        timed += _rockmate()
    if check and not all(t.ok for t in timed):
        raise SystemExit(1)


def _planning(planner: Any, program: Program, budget: Budget, limit_s: float) -> Callable[[], Any]:
    return lambda: planner.plan(program, budget, time_limit_s=limit_s)


def _half(planner: Any, program: Program) -> Callable[[], Any]:
    size = Baseline.of(program).activation_peak_bytes // 2
    return _planning(planner, program, Budget(size, "activation"), 600.0)


def _rockmate() -> list[Timing]:
    rockmate = parse_planner("rockmate")
    twelve = _half(rockmate, gpt2_program(12, width=768, vocab=50257))
    first = _timed("rockmate, GPT-2 of 12 layers", 30, twelve, lambda r: r is not None)
    deep = _half(rockmate, gpt2_program(48, width=768, vocab=50257))
    second = _timed("rockmate, GPT-2 of 48 layers", 90, deep, lambda r: r is not None)
    return [first, second]


def gpt2_program(layers: int, *, width: int, vocab: int) -> Program:
    """Captured once, the loss outside; batch 4, sequence 256, H200 by roofline."""
    import torch
    from _common import gpt2

    folder = Path(tempfile.gettempdir()) / "remat-compile-benchmarks"
    folder.mkdir(exist_ok=True)
    path = folder / f"gpt2-{layers}-{width}-{vocab}-torch{torch.__version__}.fbir"
    if not path.exists():
        model = gpt2(layers=layers, width=width, heads=12, vocab=vocab, seq=256)
        ids = torch.zeros(4, 256, dtype=torch.int64)
        made = remat_compile.plan(
            model, (ids,), planner="store-all", costs="roofline", device="h200"
        )
        path.write_text(format_program(replace(made.program, schedules=(), proven=())))
    return parse_program(path.read_text())


@app.command("gpt2")
def half_of_gpt2(
    planners: str = "auto,dtr,reorder,rockmate,rk-checkmate,polish,rotor,periodic,chen",
    layers: int = 12,
    time_limit: float = 60.0,
    budgets: str = "50%,60%,70%,80%",
    check: bool = False,
) -> None:
    """GPT-2 of 12 layers, 50 257 words, batch 4, sequence 256, the loss outside."""
    program = gpt2_program(layers, width=768, vocab=50257)
    sweep = run_sweep(
        program,
        [parse_planner(name) for name in planners.split(",")],
        [parse_budget(text, "activation") for text in budgets.split(",")],
        time_limit_s=time_limit,
        progress=_only_results,
    )
    print(sweep.table())
    instance = Instance.of(program, "activation")
    for cell in {c.budget: c for c in sweep.cells}.values():
        size, base_ns = cell.budget_bytes, instance.base_time_ns
        with MilpSolver() as solver:
            ordered, free = (
                moments_ns(instance, size, solver, 60.0, any_order=o) for o in (False, True)
            )
        print(
            f"{cell.budget}: no plan takes less than {100 * (free / base_ns - 1):.2f} % extra "
            f"time, in the order of capture none less than {100 * (ordered / base_ns - 1):.2f} %"
        )
    first = sweep.cells[0]
    if check and (first.overhead is None or first.overhead > 0.05):
        raise SystemExit(1)


if __name__ == "__main__":
    app()
