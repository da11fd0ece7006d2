"""Simulator, verifier and independent checker agree on the time of random plans, whatever the link.

`python tests/verifier/test_link_clocks.py 10000` asks for so many plans.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import pytest

from helpers.programs.strategies import random_program, random_schedule
from helpers.slow import default_only
from remat_compile.ir.program import Program, Target
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier.check import check
from remat_compile.verifier.check.check import Accepted
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.claims import compute_claims, prove_time
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.sizes import Amounts, read_amounts
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import Model, NoModel

LINKS = (
    Target(),
    Target(d2h_bytes_per_s=10**9),
    Target(copy_latency_ns=7),
    Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=3 * 10**8, copy_latency_ns=11),
    Target(d2h_bytes_per_s=10**8, h2d_bytes_per_s=10**8, both_bytes_per_s=10**8),
    Target(
        d2h_bytes_per_s=123456789,
        h2d_bytes_per_s=3 * 10**8,
        both_bytes_per_s=333333337,
        copy_latency_ns=40,
    ),
    Target(d2h_bytes_per_s=10**6, h2d_bytes_per_s=3 * 10**6, both_bytes_per_s=3 * 10**6),
    Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**9, both_bytes_per_s=5 * 10**9),
    Target(copy_issue_ns=5),
    Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=3 * 10**8, copy_latency_ns=11, copy_issue_ns=9),
    Target(
        d2h_bytes_per_s=123456789,
        h2d_bytes_per_s=3 * 10**8,
        both_bytes_per_s=333333337,
        copy_latency_ns=40,
        copy_issue_ns=60,
    ),
)


def planned(seed: int) -> tuple[Program, Schedule]:
    rng = Random(seed)
    made = random_program(rng, size=rng.randint(3, 9))
    target = replace(LINKS[seed % len(LINKS)], granularity_bytes=rng.choice((1, 8, 512)))
    made = replace(made, target=target)
    return made, random_schedule(rng, made, copy=rng.choice((0.1, 0.3, 0.6)))


def clocks(made: Program, plan: Schedule) -> tuple[int, int, int]:
    """Nanoseconds of the simulator, of the verifier, and of the checker, which reads text."""
    statements = read_statements(made)
    assert isinstance(statements, Statements)
    events, amounts = unfold(statements, plan), read_amounts(made, statements)
    assert isinstance(events, list)
    assert isinstance(amounts, Amounts)
    claims = compute_claims(statements, events, amounts.at(made.sample), made.target)
    text = format_program(made.with_schedule(plan))
    checked = check(text, plan.name)
    assert isinstance(checked, Accepted), checked
    return simulate(made, plan).time_ns, claims.time_ns, checked.time_ns


def agree(seed: int) -> bool:
    made, plan = planned(seed)
    ours, theirs, independent = clocks(made, plan)
    assert ours == theirs == independent, (seed, ours, theirs, independent)
    return plan.has_copies


@pytest.mark.parametrize("part", default_only(range(4), [0]))
def test_three_clocks_agree_on_random_plans(part: int) -> None:
    copying = sum(agree(seed) for seed in range(100 * part, 100 * part + 100))
    assert copying > 30


@pytest.mark.parametrize("seed", range(24))
def test_the_solver_has_the_time_with_every_link(seed: int) -> None:
    made, plan = planned(seed)
    statements = read_statements(made)
    assert isinstance(statements, Statements)
    events, amounts = unfold(statements, plan), read_amounts(made, statements)
    assert isinstance(events, list)
    assert isinstance(amounts, Amounts)
    sizes, time_ns = amounts.at(made.sample), simulate(made, plan).time_ns
    for claimed, kind in ((time_ns, NoModel), (time_ns + 1, Model), (time_ns - 1, Model)):
        assert isinstance(prove_time(events, sizes, made.target, claimed, Inquiry(60)), kind)


if __name__ == "__main__":
    count = int(sys.argv[1])
    print(f"{sum(map(agree, range(count)))} of {count} plans copy; all clocks agree")
