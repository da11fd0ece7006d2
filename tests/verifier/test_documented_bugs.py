"""Bugs that users of other systems reported, as plans, and refuted.

`bugs/` holds the plans: what PyTorch 2.13's partitioner really ran, and what its solver
answered. The races of copies to the host are in `test_races.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.verifier.reference import harm
from remat_compile.ir.diagnostics import Diagnostic
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import ProvenPlan, Refuted, verify

BUGS = Path(__file__).parent / "bugs"


def read(name: str) -> tuple[Program, dict[str, Schedule]]:
    program = parse_program((BUGS / name).read_text(encoding="utf-8"), name)
    return program, {s.name: s for s in program.schedules}


def refuted(program: Program, plan: Schedule, *budgets: Budget) -> tuple[Diagnostic, ...]:
    assert harm(program, plan, *budgets)
    answer = verify(program, plan, budgets)
    assert isinstance(answer, Refuted), answer
    return answer.diagnostics


def proven(program: Program, plan: Schedule) -> ProvenPlan:
    assert not harm(program, plan)
    answer = verify(program, plan)
    assert isinstance(answer, ProvenPlan), answer
    return answer


@pytest.mark.parametrize("name", ["half", "none"])
def test_dropout_redrawn_in_the_backward(name: str) -> None:
    """pytorch#190758, #190717: under a budget the partitioner runs dropout again in the
    backward, and it draws other numbers there. The plan says so: the state is not kept."""
    program, plans = read("dropout_redrawn.fbir")
    plan = plans[name]
    (drop,) = [c for c in program.graph.cnodes if c.token is not None]
    runs = [s for s in plan.steps if isinstance(s, Compute) and s.cnode == drop.name]
    assert len(runs) == 2
    (diagnostic,) = [d for d in refuted(program, plan) if d.code == "FB0806"]
    assert diagnostic.span == runs[1].span
    assert f"draws again, but its random state %{drop.token} was freed" in diagnostic.message
    assert [n.span for n in diagnostic.notes if n.message == "drawn first here"] == [runs[0].span]
    # With the state kept to the end the same plan is right.
    state = Free(str(drop.token))
    steps = (*(s for s in plan.steps if s != state), state)
    proven(program, Schedule("kept", "", steps))


def test_a_solver_that_exceeds_its_own_limit() -> None:
    """pytorch#197871: the set it returns takes a unit more than it was given."""
    program, plans = read("solver_over_its_limit.fbir")
    claim = proven(program, plans["dp"]).proven.activation_bytes
    (diagnostic,) = refuted(program, plans["hirschberg"], Budget(claim, "activation"))
    assert diagnostic.code == "FB0821"
    assert "1048576 bytes more" in diagnostic.message
    at = next(s for s in plans["hirschberg"].steps if s == Compute("F3"))
    assert diagnostic.span == at.span
    filled = " ".join(note.message for note in diagnostic.notes)
    for part in ("%a0 (act), made by F0 (chain.py:1", "%a1 (act), made by F1", "workspace"):
        assert part in filled


def test_a_lower_budget_with_a_higher_peak() -> None:
    """pytorch#197838: budgets of 0.5, 0.2 and 0 give rising peaks; all three plans are valid, and
    the claim that the lower one takes no more than the higher is refuted."""
    program, plans = read("lower_budget_higher_peak.fbir")
    peaks = {n: proven(program, p).proven.device_bytes for n, p in plans.items()}
    assert peaks["half"] < peaks["fifth"] < peaks["none"]
    for lower, higher in (("fifth", "half"), ("none", "fifth")):
        diagnostics = refuted(program, plans[lower], Budget(peaks[higher]))
        assert {d.code for d in diagnostics} == {"FB0820"}
        more = max(int(d.message.split(": ")[1].split(" ")[0]) for d in diagnostics)
        assert more == peaks[lower] - peaks[higher]
