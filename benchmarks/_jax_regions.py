"""XLA's temporary bytes beside the predicted ones, with and without regions, at three budgets."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import jax
from _tables import print_table

TESTS = Path(__file__).parents[1] / "tests"
PLANS = (("store-all", None), ("dtr", "range:0.7"), ("dtr", "range:0.4"))
LOW, HIGH = 0.9, 1.1


@dataclass(frozen=True)
class Row:
    """One model at one budget: XLA's bytes as shares of predicted ones. `live` counts what the
    plan has alive, `plain` and `fused` are the predictions without and with regions, `annotated`
    that of the form with `jax.checkpoint`."""

    model: str
    plan: str
    regions: int
    temp_bytes: int
    live: float
    plain: float
    fused: float
    annotated: float | None
    difference: float

    @property
    def holds(self) -> bool:
        return all(LOW <= ratio <= HIGH for ratio in (self.plain, self.fused))

    def cells(self) -> tuple[str, ...]:
        annotated = "" if self.annotated is None else f"{self.annotated:.2f}"
        ratios = (f"{ratio:.2f}" for ratio in (self.live, self.plain, self.fused))
        shares = (f"{self.regions}", f"{self.temp_bytes / 1024:.0f}", *ratios, annotated)
        verdict = "" if self.holds else "FAILS"
        return self.model, self.plan, *shares, f"{self.difference:.0e}", verdict


def report(names: tuple[str, ...], *, annotated: bool) -> bool:
    """Prints the table; whether every ratio is within the goal."""
    sys.path.insert(0, str(TESTS))
    head = ("", "plan", "regions", "XLA KiB", "live", "predicted", "with regions", "annotated")
    with jax.enable_x64(True):
        rows = [
            measured(name, planner, budget, annotated=annotated)
            for name in names
            for planner, budget in PLANS
        ]
    print_table((*head, "differs", ""), [row.cells() for row in rows])
    return all(row.holds for row in rows)


def measured(name: str, planner: str, budget: str | None, *, annotated: bool) -> Row:
    from helpers.jax.plans import case, fused_case

    plain, fused = case(name, planner, budget), fused_case(name, planner, budget)
    seen = plain.looked_at()[0].temp_bytes
    observed, compiled = fused.looked_at()
    assert observed.defects() == [], observed.defects()
    _, _, grads, _ = fused.run(compiled)
    nearest = case(name, planner, budget, "annotated-nearest") if annotated else None
    row = Row(
        name,
        budget or planner,
        sum(c.is_fused for c in fused.plan.graph.cnodes),
        observed.temp_bytes,
        seen / plain.live,
        seen / plain.predicted,
        observed.temp_bytes / fused.predicted,
        None if nearest is None else nearest.looked_at()[0].temp_bytes / nearest.predicted,
        fused.model.difference(grads),
    )
    print(*row.cells(), file=sys.stderr, flush=True)
    return row
