"""The conformance matrix: every planner on every graph under every budget.

What each cell must hold stands in `check`; `test_matrix.py` runs the small graphs, and
`benchmarks/conformance.py` all of them (`make matrix`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter

from helpers.paths import TESTS
from helpers.planners.graphs import (
    chain,
    encoder_decoder,
    random_dag,
    residual,
    stochastic,
    towers,
    transformer,
    unet,
)
from remat_compile.ir.analysis.liveness import floor_bytes, lower_bound_bytes
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.planners import (
    Infeasible,
    NotApplicable,
    Optimal,
    PlanResult,
    TimedOut,
    parse_planner,
)
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.isolation.crew import is_foreign
from remat_compile.plans.budget import Baseline
from remat_compile.plans.run_planner import ask
from remat_compile.verifier import ProvenPlan, verify

Make = Callable[[], Program]

SMALL: dict[str, Make] = {
    "chain": lambda: chain(9),
    "uneven chain": lambda: chain(14, seed=2),
    "long chain": lambda: chain(19, seed=5),
    "residual": residual,
    "unet": unet,
    "stochastic": stochastic,
    "transformer": lambda: transformer(1),
    "towers": towers,
    "encoder-decoder": encoder_decoder,
    "mlp": lambda: parse_program((TESTS / "planners" / "programs" / "mlp.fbir").read_text()),
    "random 1": lambda: random_dag(1),
    "random 3": lambda: random_dag(3, nodes=10),
    "random 7": lambda: random_dag(7),
    "random 40": lambda: random_dag(40, nodes=14),
}
"""At most 40 cNodes."""
DIFFERENT = {"uneven chain", "unet", "stochastic", "transformer", "towers", "random 1"}
"""Of these, graphs of every kind: where all of them take long."""
LARGER: dict[str, Make] = {
    "random 41": lambda: random_dag(41, nodes=25),
    "deep unet": lambda: unet(8),
    "2 blocks": lambda: transformer(2),
    "4 blocks": lambda: transformer(4),
    "12 blocks": lambda: transformer(12),
}
SHARES = (0.1, 0.26, 0.42, 0.58, 0.74, 0.9)
"""Budgets, as places between the least that `dtr` reaches and what the unplanned step takes."""
COPYING = {
    "autocapper",
    "autoswap",
    "offload-dp",
    "offload-greedy",
    "opportunist",
    "pofo",
    "rk-pofo",
    "tflms",
    "vdnn",
}
"""Planners that copy to the host: their programs get a link."""
HOMES = {"offmate", "paged-states", "zero-infinity", "zero-offload"}
"""Planners that have storage of the caller on the host between steps: they get a link too."""
CAPTURED = "torch "
"""Before the names of models: there is a `unet` of each kind."""
PLANS = ("optimal", "feasible", "late plan")
USE_UP_THEIR_LIMIT = {
    "auto",
    "checkmate",
    "hiremate",
    "moccasin",
    "polish",
    "rk-checkmate",
    "rockmate",
}
"""Planners that search until their time limit ends."""


@dataclass(frozen=True)
class Outcome:
    """A cell. Times relative to the time with nothing recomputed; `bound` is the planner's."""

    graph: str
    cnodes: int
    planner: str
    share: float
    budget_bytes: int
    status: str
    time: float | None = None
    bound: float | None = None
    plan_s: float = 0.0
    message: str = ""


@cache
def program_of(graph: str) -> Program:
    make = SMALL.get(graph) or LARGER.get(graph)
    return make() if make is not None else _captured(graph.removeprefix(CAPTURED))


def models() -> tuple[str, ...]:
    """The models of `tests/helpers/models.py`, which take a framework to capture."""
    from helpers.models import BASE

    return tuple(CAPTURED + name for name in BASE)


def _captured(name: str) -> Program:
    import torch

    import remat_compile
    from helpers.models import MODELS

    module, args, kwargs = MODELS[name](torch.float32)
    return remat_compile.plan(
        module, args, kwargs, planner="store-all", costs="roofline", device="cpu"
    ).program


def linked(program: Program, rate: float = 1.0) -> Program:
    """The program on a target whose link moves the peak of the activations `rate` times, each
    way, while the step runs with nothing recomputed."""
    base = Baseline.of(program)
    bytes_per_s = 1 + int(rate * base.activation_peak_bytes * 10**9 / max(1, base.time_ns))
    target = replace(program.target, d2h_bytes_per_s=bytes_per_s, h2d_bytes_per_s=bytes_per_s)
    return replace(program, target=target)


def program_for(planner: str, program: Program) -> Program:
    """The program as this planner accepts it."""
    return linked(program) if planner in COPYING | HOMES else program


@cache
def reach_of(graph: str) -> tuple[int, int]:
    """Activation bytes: the least that `dtr` reaches, and those of the unplanned step."""
    program = program_of(graph)
    refused = Dtr().plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    return refused.min_budget.bytes, Baseline.of(program).activation_peak_bytes


def budget_of(graph: str, share: float) -> Budget:
    low, high = reach_of(graph)
    return Budget(int(low + share * (high - low)), "activation")


@cache
def outcome(planner: str, graph: str, share: float, time_limit_s: float) -> Outcome:
    """Runs one cell and holds it to its word; AssertionError where it breaks it."""
    program, budget = program_for(planner, program_of(graph)), budget_of(graph, share)
    made = parse_planner(planner)
    start = perf_counter()
    result = ask(
        made,
        planner,
        program,
        budget,
        time_limit_s=time_limit_s,
        progress=None,
        accept=lambda schedule: True,
    )
    spent = perf_counter() - start
    trusted = not is_foreign(made)
    status, time_ns, bound_ns = check(program, budget, result, trusted=trusted)
    base = Baseline.of(program).time_ns
    return Outcome(
        graph,
        len(program.graph.cnodes),
        planner,
        share,
        budget.bytes,
        status,
        None if time_ns is None else time_ns / base,
        None if bound_ns is None else bound_ns / base,
        round(spent, 3),
        result.why.message if isinstance(result, Infeasible) else "",
    )


def check(
    program: Program,
    budget: Budget,
    result: PlanResult,
    *,
    trusted: bool = True,
    prove: bool = True,
) -> tuple[str, int | None, int | None]:
    """Status, time and bound of a result whose claims all hold in the simulator and, with
    `prove`, are proven."""
    assert budget.kind != "host"
    if isinstance(result, NotApplicable):
        assert result.why.code == "FB0409"
        return "refused", None, None
    if isinstance(result, Infeasible):
        copies = program.target.has_link
        assert result.floor_bytes == lower_bound_bytes(program, budget.kind, copies=copies)[0]
        assert result.why.code == "FB0407"
        if result.min_budget is not None:
            assert budget.bytes < result.min_budget.bytes
            assert result.floor_bytes <= result.min_budget.bytes
        return "infeasible", None, None
    bound = result.lower_bound_ns
    if isinstance(result, TimedOut) and result.schedule is None:
        return "out of time", None, bound
    schedule = result.schedule
    assert schedule is not None
    trace = simulate(program, schedule)
    peak = peak_bytes(trace, budget.kind)
    assert floor_bytes(program, budget.kind)[0] <= peak <= budget.bytes
    assert trace.time_ns == result.time_ns
    assert bound is not None
    assert bound <= result.time_ns
    if prove:
        verdict = verify(program, schedule, (budget,), time_limit_s=60)
        assert isinstance(verdict, ProvenPlan), verdict
    if isinstance(result, TimedOut):
        return "late plan", result.time_ns, bound
    if isinstance(result, Optimal):
        assert bound == result.time_ns or not trusted
        return "optimal", result.time_ns, bound
    assert result.gap == (result.time_ns / bound - 1 if bound else 0.0)
    return "feasible", result.time_ns, bound


def peak_bytes(trace: Trace, kind: str) -> int:
    return trace.peak_bytes if kind == "device" else trace.activation_peak_bytes


def gaps(outcomes: Iterable[Outcome], most_cnodes: int = 70) -> list[float]:
    """For each plan on a graph of that size: its time less its own bound, as a share of the
    time with nothing recomputed."""
    return [
        o.time - o.bound
        for o in outcomes
        if o.cnodes <= most_cnodes and o.time is not None and o.bound is not None
    ]


def read(path: Path) -> list[Outcome]:
    """What `write` wrote; nothing where there is no file."""
    if not path.exists():
        return []

    def number(text: str) -> float | None:
        return float(text) if text else None

    with path.open(encoding="utf-8", newline="") as file:
        return [
            Outcome(
                row["graph"],
                int(row["cnodes"]),
                row["planner"],
                float(row["share"]),
                int(row["budget_bytes"]),
                row["status"],
                number(row["time"]),
                number(row["bound"]),
                float(row["plan_s"]),
                row["message"],
            )
            for row in csv.DictReader(file)
        ]


def write(path: Path, outcomes: Sequence[Outcome]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Outcome)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(o) for o in outcomes)


def summary(outcomes: Sequence[Outcome], when: str) -> str:
    """A table for people: a row for each planner."""
    lines = [
        "# Conformance matrix",
        "",
        f"{when}: {len(outcomes)} cells, {len({o.graph for o in outcomes})} graphs, "
        f"{len(SHARES)} budgets from {SHARES[0]:.0%} to {SHARES[-1]:.0%} of the reachable range "
        "of activations. Every plan was simulated and proven, holds its budget, takes the time "
        "it claims, and is above its lower bound. Times are relative to the step with nothing "
        "recomputed.",
        "",
        f"Median gap of a plan to its own bound on graphs of at most 70 cNodes: "
        f"{median(gaps(outcomes)):.2%}.",
        "",
        "| planner | plans | optimal | infeasible | refused | out of time | median time "
        "| median gap, ≤ 70 cNodes | longest planning |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for planner in dict.fromkeys(o.planner for o in outcomes):
        lines.append(_row(planner, [o for o in outcomes if o.planner == planner]))
    return "\n".join(lines) + "\n"


def _row(planner: str, mine: Sequence[Outcome]) -> str:
    count = {s: sum(o.status == s for o in mine) for s in {o.status for o in mine}}
    times = [o.time for o in mine if o.time is not None]
    own = gaps(mine)
    cells = [
        f"`{planner}`",
        str(len(times)),
        *(str(count.get(s, 0)) for s in ("optimal", "infeasible", "refused", "out of time")),
        f"{median(times):.3f}" if times else "",
        f"{median(own):.2%}" if own else "",
        f"{max(o.plan_s for o in mine):.1f} s",
    ]
    return f"| {' | '.join(cells)} |"
