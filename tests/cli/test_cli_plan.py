"""The default command: `remat-compile MODEL -o PLAN.fbir --budget B`."""

from __future__ import annotations

from pathlib import Path

from helpers.cli import Cli
from remat_compile.api import load
from remat_compile.verifier import ProvenPlan


def test_plans_proves_and_writes(cli: Cli, chain: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.fbir"
    ran = cli(chain, "-o", plan, "--activation-budget", "70%", "--time-limit", "5")
    assert ran.code == 0, ran.err
    assert "activations" in ran.out
    assert f"wrote {plan}" in ran.out
    assert "planning with auto" in ran.err
    made = load(plan)
    assert isinstance(made.verify(), ProvenPlan)
    assert made.proven is not None
    assert made.activation_peak_bytes <= 0.7 * made.baseline.activation_peak_bytes
    assert made.proven.activation_bytes <= 0.7 * made.baseline.activation_peak_bytes


def test_unreachable_budget_says_what_is_possible(cli: Cli, chain: Path, tmp_path: Path) -> None:
    ran = cli(chain, "-o", tmp_path / "p.fbir", "--activation-budget", "10B")
    assert ran.code == 1
    assert "the least it found is" in ran.err
    assert "no plan of any planner needs less than" in ran.err
    assert "(toy.op.default) works on %x" in ran.err
    # The hint is a command that works.
    words = ran.err.partition("give --activation-budget ")[2].split()
    assert cli(chain, "-o", tmp_path / "p.fbir", "--activation-budget", words[0]).code == 0
