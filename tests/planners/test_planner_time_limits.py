"""Every planner ends at its time limit, on whatever machine: the clock moves on as it is looked
at, and looks are counted."""

from __future__ import annotations

import pytest

from helpers.clock import HANGS_S, skips
from helpers.planners.matrix import budget_of, check, program_for, program_of
from helpers.slow import default_only
from remat_compile.planners import NotApplicable, available, parse_planner

MORE = 12
MORE_OF = {
    "auto": 40,
    "autocapper": 30,  # asks another planner for each cap
    "autoswap": 80,  # once for each point of its search, without trying it
    "offload-dp": 100,  # tries those of autoswap
    "reorder": 40,  # each order is bounded once more, in 0.1 s
    "rockmate": 120,  # once for each job, without giving it to anybody
}
"""Looks past the limit, on a graph of 32 cNodes: each part of a planner sees it for itself."""


WITHIN = (1, 4, 30)
CASES = [(planner, within) for planner in sorted(available()) for within in WITHIN]


@pytest.mark.parametrize(("planner", "within"), default_only(CASES, CASES[::2]))
def test_a_planner_ends_at_its_limit(
    planner: str, within: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many looks are within the limit, and few are enough to end after it. One that does not
    heed what it sees goes on and on; one that does not look waits for a solver that is given
    longer than any test takes."""
    program = program_for(planner, program_of("transformer"))
    budget = budget_of("transformer", 0.26)
    chosen, clock = parse_planner(planner), skips(monkeypatch)
    clock.each_s = 10 * HANGS_S
    monkeypatch.setattr("remat_compile.planners.auto.QUICK_GRACE_S", 10**9)
    result = chosen.plan(program, budget, time_limit_s=(within - 0.5) * clock.each_s)
    looks, clock.each_s = clock.looks, 0.0
    assert looks <= within + MORE_OF.get(planner, MORE)
    if not isinstance(result, NotApplicable):
        check(program, budget, result)
