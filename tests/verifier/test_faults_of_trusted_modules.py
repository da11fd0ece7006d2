"""Faults in our own trusted modules prove nothing wrong: one of solver and checker objects.

`make redteam` tries at least 20 dangerous faults in each module (`run_faults.py`); here are the
ones that the red team found, and a few of the others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.verifier.module_faults import entries_for, mutants_of, try_fault
from remat_compile.ir.program import Program, Target
from remat_compile.ir.schedule import Compute, Free, Schedule, Wait
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import ProvenPlan, verify
from remat_compile.verifier.arithmetic.walk import StepBytes
from remat_compile.verifier.obligations import claims, memory, races, validity
from remat_compile.verifier.read import statements
from remat_compile.verifier.read.sizes import Amounts, Sizes

ROOT = Path(__file__).parents[2]
Patch = pytest.MonkeyPatch


def right(path: str) -> tuple[Program, Schedule]:
    program = parse_program((ROOT / path).read_text(encoding="utf-8"), path)
    return program, program.schedules[0]


def freed_too_early() -> tuple[Program, Schedule]:
    program, schedule = right("spec/conformance/valid/mlp.fbir")
    steps = [step for step in schedule.steps if step != Free("h1")]
    steps.insert(steps.index(Compute("F2")) + 1, Free("h1"))
    return program, replace(schedule, steps=tuple(steps))


def never_waited() -> tuple[Program, Schedule]:
    program, schedule = right("tests/verifier/races/right.fbir")
    first = next(i for i, step in enumerate(schedule.steps) if isinstance(step, Wait))
    return program, replace(schedule, steps=schedule.steps[:first] + schedule.steps[first + 1 :])


def mlp() -> tuple[Program, Schedule]:
    return right("spec/conformance/valid/mlp.fbir")


def first_read_only(patch: Patch) -> None:
    needs = statements.Statements.needs
    patch.setattr(
        statements.Statements, "needs", lambda self, call: dict(list(needs(self, call).items())[:1])
    )


def frees_ignored(patch: Patch) -> None:
    advance: Any = validity.__dict__["advance"]

    def ignoring(facts: Any, at: Any, event: Any) -> None:
        if not event.gives_back:
            advance(facts, at, event)

    patch.setattr(validity, "advance", ignoring)


def a_byte_too_few(patch: Patch) -> None:
    walk: Any = memory.__dict__["walk"]

    def short(*rest: Any) -> dict[int, StepBytes]:
        during = walk(*rest).items()
        return {i: StepBytes(b.device - 1, b.activation, b.host) for i, b in during}

    patch.setattr(memory, "walk", short)


def sizes_halved(patch: Patch) -> None:
    at, value = Amounts.at, memory.__dict__["value"]

    def half(self: Amounts, env: Any) -> Sizes:
        sizes = at(self, env)
        anode = {name: size // 2 for name, size in sizes.anode.items()}
        return Sizes(anode, sizes.workspace, sizes.existing)

    patch.setattr(Amounts, "at", half)
    patch.setattr(memory, "value", lambda form, env: value(form, env) // 2)


def no_pairs(patch: Patch) -> None:
    patch.setattr(races, "pairs_of", lambda *rest: iter(()))


def no_time(patch: Patch) -> None:
    patch.setattr(claims, "time_of", lambda event: 0)


def issued_at_once(patch: Patch) -> None:
    """Copies take the compute stream no time, in the plain clock and in z3's."""
    for name in ("_Clock", "_TimeEncoder"):
        kind: Any = claims.__dict__[name]

        def free(self: Any, sizes: Sizes, target: Target, *, made: Any = kind.__init__) -> None:
            made(self, sizes, replace(target, copy_issue_ns=0))

        patch.setattr(kind, "__init__", free)


def issuing() -> tuple[Program, Schedule]:
    return right("spec/conformance/valid/copy_issue.fbir")


FAULTS: list[tuple[Callable[[Patch], None], Callable[[], tuple[Program, Schedule]]]] = [
    (first_read_only, freed_too_early),
    (frees_ignored, freed_too_early),
    (a_byte_too_few, mlp),
    (sizes_halved, mlp),
    (no_pairs, never_waited),
    (no_time, mlp),
    (issued_at_once, issuing),
]
"""The faults of the red team's `tcbfault.py`, and the plan of which each proved what is not so; and
one of ours."""


@pytest.mark.parametrize(("fault", "plan"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_faults_that_the_red_team_found(
    fault: Callable[[Patch], None],
    plan: Callable[[], tuple[Program, Schedule]],
    monkeypatch: Patch,
) -> None:
    program, schedule = plan()
    honest = verify(program, schedule)
    try:
        fault(monkeypatch)
    except (KeyError, AttributeError):
        pytest.skip("the function that this fault is in is gone")
    faulty = verify(program, schedule)
    assert not isinstance(faulty, ProvenPlan) or faulty == honest


@pytest.mark.parametrize(
    "module", ["verifier/arithmetic/walk.py", "verifier/check/machine.py", "ir/text/parser.py"]
)
def test_some_other_faults(module: str) -> None:
    entries = [e for e in entries_for(module) if not e.name.startswith("fb02")][::16]
    for fault, tree in mutants_of(module, 2):
        assert try_fault(module, fault, tree, entries).together == ()


def test_a_fault_on_one_side_is_dangerous_without_the_other() -> None:
    """The injector is able to see harm: a machine that needs nothing accepts wrong plans."""
    module = "verifier/check/machine.py"
    source = ROOT / "src" / "remat_compile" / module
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.For):
            node.body = [s for s in node.body if not ast.unparse(s).startswith("need(")]
            node.body = node.body or [ast.Pass()]
    entries = [e for e in entries_for(module) if e.name.startswith("fb030")]
    outcome = try_fault(module, "needs nothing", ast.fix_missing_locations(tree), entries)
    assert outcome.alone
    assert outcome.together == ()


def test_a_fault_in_the_way_to_the_solvers_is_seen() -> None:
    """Goals that are forgotten are harm that only the checker stops."""
    module = "verifier/smt.py"
    source = (ROOT / "src" / "remat_compile" / module).read_text(encoding="utf-8")
    forgetful = source.replace("        self.parts[-1].ask(goal)\n", "        pass\n")
    assert forgetful != source
    entries = [e for e in entries_for(module) if e.name.startswith("fb0302")]
    outcome = try_fault(module, "asks nothing", ast.parse(forgetful), entries)
    assert outcome.alone
    assert outcome.together == ()
