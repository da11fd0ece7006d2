"""Faults put into the Python of the verifier: what it walks, claims and picks proves nothing.

Scripts hold what the file says and the functions of `machine.smt2`. So where a plain walk goes
wrong, no solver confirms it: the answer may be `Undecided` or a refutation, but not a proof.
Faults in the reading of the statements (section 1 of `spec/verification.md`) are not among these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remat_compile.ir.program import Program, Target
from remat_compile.ir.schedule import Compute, Free, Schedule, Wait
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import ProvenPlan, smt, verify
from remat_compile.verifier.arithmetic import walk
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations import claims, machine, memory, races, validity, values
from remat_compile.verifier.read import sizes
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import NoModel

ROOT = Path(__file__).parents[2]

Patch = Callable[[pytest.MonkeyPatch], None]


def _read(path: str) -> Program:
    return parse_program((ROOT / path).read_text(encoding="utf-8"), path)


def _right() -> tuple[Program, Schedule]:
    program = replace(_read("spec/conformance/valid/mlp.fbir"), proven=())
    return program, program.schedules[0]


def _copies() -> tuple[Program, Schedule]:
    program = _read("tests/verifier/races/right.fbir")
    rates = Target(d2h_bytes_per_s=10**6, h2d_bytes_per_s=10**6)
    return replace(program, target=rates, proven=()), program.schedules[0]


def _freed_too_early() -> tuple[Program, Schedule]:
    program, plan = _right()
    steps = []
    for index, step in enumerate(plan.steps):
        if step != Free("h1") or index <= 3:
            steps.append(step)
        if step == Compute("F2"):
            steps.append(Free("h1"))
    return program, replace(plan, steps=tuple(steps))


def _no_wait() -> tuple[Program, Schedule]:
    program, plan = _copies()
    first = next(i for i, step in enumerate(plan.steps) if isinstance(step, Wait))
    return program, replace(plan, steps=plan.steps[:first] + plan.steps[first + 1 :])


def _claims(change: Callable[[str, bool], bool]) -> Patch:
    """The plain walk of the facts claims something else."""

    def patch(monkey: pytest.MonkeyPatch) -> None:
        claim = smt.Facts.claim

        def changed(self: smt.Facts, what: str, of: str, value: bool) -> None:
            claim(self, what, of, change(what, value))

        monkey.setattr(smt.Facts, "claim", changed)

    return patch


def _no_walk(monkey: pytest.MonkeyPatch) -> None:
    for module in (machine, validity, memory):
        monkey.setattr(module, "advance", lambda *_: None)


def _walk_forgets(monkey: pytest.MonkeyPatch) -> None:
    monkey.setattr(walk.Alive, "after", lambda *_: iter(()))


def _bound_too_low(monkey: pytest.MonkeyPatch) -> None:
    honest = walk.walk

    def low(*args: Any) -> dict[int, walk.StepBytes]:
        return {i: replace(b, device=b.device - 1) for i, b in honest(*args).items()}

    monkey.setattr(memory, "walk", low)


def _half_sizes(monkey: pytest.MonkeyPatch) -> None:
    honest = sizes.value

    def half(expr: Any, env: Mapping[str, int]) -> int:
        return honest(expr, env) // 2

    monkey.setattr(sizes, "value", half)
    monkey.setattr(memory, "value", half)


def _no_rounding(monkey: pytest.MonkeyPatch) -> None:
    monkey.setattr(sizes, "_ceil", lambda a, n: a // n)


def _all_held(monkey: pytest.MonkeyPatch) -> None:
    monkey.setattr(walk, "counted", lambda *_: "held")
    monkey.setattr(memory, "counted", lambda *_: "held")
    monkey.setattr(walk, "BESIDE_ACTIVATIONS", frozenset(("act", "phantom", "grad", "output")))


def _no_time(monkey: pytest.MonkeyPatch) -> None:
    monkey.setattr(claims, "time_of", lambda _: 0)


def _no_time_of_copies(monkey: pytest.MonkeyPatch) -> None:
    monkey.setattr(claims, "copy_ns", lambda *_: None)


def _no_pairs(monkey: pytest.MonkeyPatch) -> None:
    monkey.setattr(races, "pairs_of", lambda *_: iter(()))


def _contents_stay(monkey: pytest.MonkeyPatch) -> None:
    honest = values._ValueEncoder.step

    def step(self: Any, event: Any) -> None:
        before = dict(self.device)
        honest(self, event)
        self.device = {**before, **self.device}

    monkey.setattr(values._ValueEncoder, "step", step)


FAULTS: dict[str, tuple[Callable[[], tuple[Program, Schedule]], Patch]] = {
    "nothing is claimed": (_freed_too_early, _no_walk),
    "frees are claimed to do nothing": (
        _freed_too_early, _claims(lambda what, value: value or what == "alive")
    ),
    "nothing is claimed, right plan": (_right, _no_walk),
    "all is claimed to be alive": (_right, _claims(lambda what, value: value or what == "alive")),
    "waits are claimed not to end": (_copies, _claims(lambda w, value: value or w == "flying")),
    "no copy is claimed to fly": (_no_wait, _claims(lambda w, v: v and w != "flying")),
    "walk forgets what is made": (_right, _walk_forgets),
    "bound one byte too low": (_right, _bound_too_low),
    "all sizes halved": (_right, _half_sizes),
    "all are counted as held": (_right, _all_held),
    "no execution takes time": (_right, _no_time),
    "no copy takes time": (_copies, _no_time_of_copies),
    "contents stay where they were freed": (_copies, _contents_stay),
    "no pair can race": (_no_wait, _no_pairs),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_python_proves_nothing_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smt, "PART_LINES", 12)  # each script assumes much of those before it
    plan, fault = FAULTS[name]
    program, schedule = plan()
    fault(monkeypatch)
    assert not isinstance(verify(program, schedule), ProvenPlan)


def test_sizes_that_are_not_rounded_up_are_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    program, plan = _right()
    program = replace(program, target=replace(program.target, granularity_bytes=100))
    assert isinstance(verify(program, plan), ProvenPlan)
    _no_rounding(monkeypatch)
    assert not isinstance(verify(program, plan), ProvenPlan)


@pytest.mark.parametrize("plan", [_right, _copies])
def test_the_plans_are_proven_without_a_fault(
    plan: Callable[[], tuple[Program, Schedule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smt, "PART_LINES", 12)
    assert isinstance(verify(*plan()), ProvenPlan)


@pytest.mark.parametrize("plan", [_freed_too_early, _no_wait])
def test_races_and_validity_stand_each_on_their_own(
    plan: Callable[[], tuple[Program, Schedule]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pairs are not listed, the missing wait is a race still."""
    program, schedule = plan()
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    events = unfold(statements, schedule)
    assert isinstance(events, list)
    assert not isinstance(validity.prove_validity(statements, events, Inquiry(10)), NoModel)
    _no_pairs(monkeypatch)
    ordered = isinstance(races.prove_races(statements, events, Inquiry(10)), NoModel)
    assert ordered == (plan is _freed_too_early)
