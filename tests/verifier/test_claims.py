"""Obligation 5 and certificates: what a file claims is recomputed, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from helpers.programs.strategies import copying
from helpers.verifier.step_text import GRAPH, PLAN, schedule, text_of
from remat_compile.ir.analysis.liveness import floor_bytes
from remat_compile.ir.program import Budget, Certificate, Program, Proven, Target
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import (
    ProvenPlan,
    Refuted,
    Undecided,
    accept_certificate,
    check_certificate,
    smt,
    verify,
)
from remat_compile.verifier.certificate import seal
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.claims import prove_time
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.sizes import Amounts, read_amounts
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import Model, NoModel

TIMED = GRAPH.replace(" at m.py:3", " time 30ns at m.py:3").replace("of F5", "of F5 time 7ns")


def _proven(made: Program, plan: Schedule) -> Proven:
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan), answer
    return answer.proven


def _certificate(proven: Proven) -> Certificate:
    assert proven.certificate is not None
    return proven.certificate


def _sealed(proven: Proven, **claims: object) -> Proven:
    """The proof with other claims, under a seal that fits them: anyone can make one."""
    changed = replace(_certificate(proven), **claims)  # type: ignore[arg-type]
    open_ = replace(proven, certificate=changed)
    return replace(open_, certificate=replace(changed, seal_sha256=seal(open_, changed)))


@settings(max_examples=20)
@given(copying())
def test_claims_are_those_of_the_simulator(case: tuple[Program, Schedule]) -> None:
    """The time with copies and stalls; no plan takes less than the two lower bounds."""
    made, plan = case
    made = replace(made, target=replace(made.target, d2h_bytes_per_s=10**9, h2d_bytes_per_s=10**8))
    trace = simulate(made, plan)
    proven = _proven(made, plan)
    claims = _certificate(proven)
    assert claims.time_ns == trace.time_ns
    assert claims.least_time_ns <= trace.time_ns
    assert claims.least_bytes <= trace.peak_bytes
    # Random operators run in every schedule too, which the floor of the planners leaves out.
    assert claims.least_bytes >= floor_bytes(made, homes=plan.homes)[0]


@pytest.mark.parametrize("lines", [10, 8000])
def test_z3_has_the_time_of_the_streams(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from random import Random

    from helpers.programs.strategies import random_program, random_schedule

    monkeypatch.setattr(smt, "PART_LINES", lines)
    for seed in range(15):
        rng = Random(seed)
        made = replace(
            random_program(rng, size=6),
            target=Target(d2h_bytes_per_s=10**9, h2d_bytes_per_s=3 * 10**8),
        )
        plan = random_schedule(rng, made)
        statements = read_statements(made)
        assert isinstance(statements, Statements)
        events, amounts = unfold(statements, plan), read_amounts(made, statements)
        assert isinstance(events, list)
        assert isinstance(amounts, Amounts)
        sizes, time_ns = amounts.at(made.sample), simulate(made, plan).time_ns
        for claimed, kind in ((time_ns, NoModel), (time_ns + 1, Model), (time_ns - 1, Model)):
            answer = prove_time(events, sizes, made.target, claimed, Inquiry(60))
            assert isinstance(answer, kind)


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"time_ns": 1}, "FB0870"),
        ({"least_time_ns": 10**9}, "FB0871"),
        ({"least_bytes": 10**9}, "FB0871"),
    ],
)
def test_a_wrong_claim_is_refuted_at_the_proof(claims: dict[str, int], code: str) -> None:
    made, plan = schedule(PLAN, TIMED)
    wrong = _sealed(_proven(made, plan), **claims)
    text = format_program(replace(made, proven=(wrong,)))
    read = parse_program(text, "step.fbir")
    answer = verify(read, read.schedules[0])
    assert isinstance(answer, Refuted)
    (diagnostic,) = answer.diagnostics
    assert diagnostic.code == code
    assert diagnostic.span is not None
    assert text.splitlines()[diagnostic.span.line - 1].startswith("proven @plan")


def test_a_weaker_lower_bound_is_no_wrong_one() -> None:
    made, plan = schedule(PLAN, TIMED)
    weak = _sealed(_proven(made, plan), least_bytes=1, least_time_ns=0)
    assert isinstance(verify(replace(made, proven=(weak,)), plan), ProvenPlan)


def test_claims_about_other_steps_are_void_and_not_wrong() -> None:
    made, plan = schedule(PLAN, TIMED)
    proven = _sealed(_proven(made, plan), time_ns=1)
    edited = replace(plan, steps=plan.steps + plan.steps[:0])
    other = replace(made, proven=(replace(proven, graph_sha256="00"),))
    assert isinstance(verify(other, edited), ProvenPlan)


def test_a_certificate_survives_the_text_and_is_accepted() -> None:
    made, plan = schedule(PLAN, TIMED)
    answer = verify(made, plan, (Budget(2000),))
    assert isinstance(answer, ProvenPlan)
    text = format_program(replace(made, proven=(answer.proven,)))
    read = parse_program(text, "step.fbir")
    assert read.proven == (answer.proven,)
    assert _certificate(read.proven[0]).budgets == (Budget(2000),)
    assert _certificate(read.proven[0]).time_ns == 30 + 30 + 7
    assert check_certificate(read, read.proven[0]) is None
    assert accept_certificate(read, read.schedules[0], read.proven[0], (Budget(2000),)) == ()
    assert format_program(read) == text


EDITS: dict[str, tuple[Callable[[str], str], str]] = {
    "another bound": (lambda t: t.replace("device <= 1440", "device <= 1340"), "FB0831"),
    "another obligation": (lambda t: t.replace("values, races", "races"), "FB0831"),
    "another time": (lambda t: t.replace("time 67ns of", "time 66ns of"), "FB0831"),
    "another floor": (lambda t: t.replace("floor ", "floor 1"), "FB0831"),
    "another budget": (lambda t: t.replace("budget device 2000", "budget device 1500"), "FB0831"),
    "another version": (lambda t: t.replace('version "', 'version "9'), "FB0831"),
    "another range": (
        lambda t: t.replace("  assuming", "  range b in [1, 2]\n    assuming"),
        "FB0831",
    ),
    "another graph": (lambda t: t.replace("bytes 300", "bytes 299"), "FB0830"),
    "other steps": (lambda t: t.replace("\n  free %c\n", "\n  free %c // x\n  F1\n"), "FB0830"),
    "no certificate": (lambda t: t[: t.index("  certificate {")] + "}\n", "FB0832"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_file_is_not_accepted(name: str) -> None:
    edit, code = EDITS[name]
    made, plan = schedule(PLAN, TIMED)
    answer = verify(made, plan, (Budget(2000),))
    assert isinstance(answer, ProvenPlan)
    text = format_program(replace(made, proven=(answer.proven,)))
    changed = edit(text)
    assert changed != text
    read = parse_program(changed, "step.fbir")
    diagnostics = accept_certificate(read, read.schedules[0], read.proven[0])
    assert [d.code for d in diagnostics] == [code]
    assert all(d.span is not None for d in diagnostics)


def test_a_certificate_of_another_version_or_for_less_is_not_accepted() -> None:
    made, plan = schedule()
    proven = _proven(made, plan)
    held = replace(made, proven=(proven,))

    def codes(changed: Proven | None, *budgets: Budget) -> list[str]:
        return [d.code for d in accept_certificate(held, plan, changed, budgets)]

    assert codes(proven) == []
    assert codes(None) == ["FB0832"]
    assert codes(_sealed(proven, version="0.0.1")) == ["FB0833"]
    assert codes(_sealed(replace(proven, prover="z3 1.0"))) == ["FB0833"]
    assert codes(_sealed(replace(proven, obligations=("validity", "memory")))) == ["FB0834"]
    assert codes(proven, Budget(proven.device_bytes)) == []
    assert codes(proven, Budget(proven.device_bytes - 1)) == ["FB0834"]
    assert codes(proven, Budget(10, "activation")) == ["FB0834"]


def test_every_obligation_is_named_and_none_without_a_proof() -> None:
    made, plan = schedule()
    assert _proven(made, plan).obligations == ("validity", "memory", "values", "races", "claims")
    assert isinstance(verify(made, plan, time_limit_s=1e-9), Undecided)
    assert text_of().count("certificate") == 0
