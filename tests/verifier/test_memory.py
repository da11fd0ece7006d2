"""Obligation 2: bytes at every step, budgets, symbols, and what is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.verifier.step_text import GRAPH, PLAN, schedule, text_of, verdict
from remat_compile.ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.arithmetic.intervals import bounds, direction
from remat_compile.verifier.read.sizes import value

BATCHED = (
    GRAPH.replace('costs none\n', 'costs none\nsym b in [1, 64] = 8 of arg 0 dim 0\n')
    .replace("%x : input f32[8]", "%x : input f32[b]")
    .replace("%d : act f32[8] bytes 300", "%d : act f32[b] bytes 37*b + 4")
    .replace("%e : act f32[8] bytes 300", "%e : act f32[b] bytes max(300, roundup(37*b, 64))")
    .replace("workspace 5", "workspace ceildiv(b, 2)")
)  # fmt: skip


AFTER = ("values", "races", "claims")


def _peaks(made: Program, plan: Schedule, env: dict[str, int]) -> tuple[int, int]:
    trace = simulate(made, plan, env)
    return trace.peak_bytes, trace.activation_peak_bytes


def test_the_bound_is_the_peak_and_one_byte_less_is_refuted() -> None:
    proven = verdict()
    assert isinstance(proven, ProvenPlan)
    device, activation = proven.proven.device_bytes, proven.proven.activation_bytes
    assert (device, activation) == (1440, 1328)
    assert proven.proven.obligations == ("validity", "memory", *AFTER)
    assert isinstance(verdict(PLAN, Budget(1440), Budget(1328, "activation")), ProvenPlan)
    refuted = verdict(PLAN, Budget(1439), Budget(1327, "activation"))
    assert isinstance(refuted, Refuted)
    assert {d.code for d in refuted.diagnostics} == {"FB0820", "FB0821"}


def test_a_budget_that_is_looser_than_the_peak_does_not_loosen_the_bound() -> None:
    proven = verdict(PLAN, Budget(10**12))
    assert isinstance(proven, ProvenPlan)
    assert proven.proven.device_bytes == 1440


def test_the_tightest_budget_of_a_kind_counts() -> None:
    refuted = verdict(PLAN, Budget(10**12), Budget(1439), Budget(1438))
    assert isinstance(refuted, Refuted)
    (diagnostic,) = refuted.diagnostics
    assert "2 bytes more than the budget of 1438 bytes" in diagnostic.message


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_of_nothing_is_refuted(budget: int) -> None:
    refuted = verdict(PLAN, Budget(budget))
    assert isinstance(refuted, Refuted)
    assert {d.code for d in refuted.diagnostics} == {"FB0820"}


def test_a_peak_is_explained_by_what_fills_it_and_where_that_was_made() -> None:
    refuted = verdict(PLAN, Budget(1439))
    assert isinstance(refuted, Refuted)
    (diagnostic,) = refuted.diagnostics
    lines = text_of().splitlines()
    assert diagnostic.span is not None
    assert diagnostic.message == (
        'F4 (m.py:6 "drop2") takes 1440 bytes (1.406 KiB): 1 bytes more than the budget of '
        "1439 bytes (1.405 KiB)"
    )
    # The second run of F4: it draws its mask again.
    assert lines[diagnostic.span.line - 1].strip() == "F4"
    assert diagnostic.span.line > lines.index("  L")
    shown = {
        note.message: None if note.span is None else lines[note.span.line - 1].strip()
        for note in diagnostic.notes
    }
    assert shown['304 bytes: %d (act), made by F3 (m.py:5 "drop")'] == "F3"
    assert shown["304 bytes: %de (grad), made by B5"] == "B5"
    assert shown["304 bytes: %e (act), made by this step"] == "F4"
    assert shown["112 bytes: what the caller holds (3 tensors)"] is None


def test_stretches_of_steps_over_budget_are_told_apart() -> None:
    refuted = verdict(PLAN, Budget(700, "activation"))
    assert isinstance(refuted, Refuted)
    spans = [d.span.line for d in refuted.diagnostics if d.span is not None]
    lines = text_of().splitlines()
    assert [lines[line - 1].strip() for line in spans] == ["F4", "F4"]
    assert spans[0] < lines.index("  L") < spans[1]


def test_a_result_that_is_alive_when_it_is_made_again_counts_twice_during_the_step() -> None:
    plan = PLAN.replace("F1\nfree %hm\nF2\n", "F1\nF1\nfree %hm\nF2\n")
    made, again = schedule(plan)
    answer = verify(made, again)
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.device_bytes == simulate(made, again).peak_bytes
    biggest = PLAN.replace("F3\nF4\nfree %d\n", "F3\nF4\nF4\nfree %d\n")
    made, again = schedule(biggest)
    answer = verify(made, again)
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.device_bytes == simulate(made, again).peak_bytes == 1440 + 304
    refuted = verify(made, again, (Budget(1440),))
    assert isinstance(refuted, Refuted)
    assert any("a second one" in note.message for note in refuted.diagnostics[0].notes)


def test_existing_gradients_count() -> None:
    answer = verdict(PLAN, graph=GRAPH.replace("grads fresh", "grads accumulate"))
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.device_bytes == 1440 + 64


def test_a_rising_size_is_proven_for_the_whole_range() -> None:
    made, plan = schedule(PLAN, BATCHED)
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.obligations == ("validity", "memory for b in [1, 64]", *AFTER)
    sample, corner = answer.bounds
    assert (sample.device_bytes, sample.activation_bytes) == _peaks(made, plan, {"b": 8})
    assert (corner.device_bytes, corner.activation_bytes) == _peaks(made, plan, {"b": 64})
    assert answer.proven.device_bytes == corner.device_bytes
    assert all(_peaks(made, plan, {"b": b})[0] <= corner.device_bytes for b in range(1, 65))


def test_a_budget_that_only_the_sample_meets_is_claimed_for_the_sample_only() -> None:
    made, plan = schedule(PLAN, BATCHED)
    device, activation = _peaks(made, plan, {"b": 8})
    answer = verify(made, plan, (Budget(device), Budget(activation, "activation")))
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.obligations == ("validity", "memory at sample", *AFTER)
    assert answer.proven.device_bytes == device
    assert len(answer.bounds) == 1
    refuted = verify(made, plan, (Budget(device - 1),))
    assert isinstance(refuted, Refuted)
    assert "at b = 8" in refuted.diagnostics[0].message


def test_a_size_that_falls_is_proven_at_its_own_corner() -> None:
    graph = BATCHED.replace("bytes 37*b + 4", "bytes max(0, 8000 - 37*b)")
    made, plan = schedule(PLAN, graph)
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.obligations == ("validity", "memory for b in [1, 64]", *AFTER)
    peaks = {b: _peaks(made, plan, {"b": b}) for b in range(1, 65)}
    assert answer.proven.device_bytes == max(device for device, _ in peaks.values())
    assert answer.proven.activation_bytes == max(activation for _, activation in peaks.values())


def test_a_fixed_symbol_is_no_range() -> None:
    graph = BATCHED.replace("b in [1, 64] = 8", "b in [8, 8] = 8")
    answer = verify(*schedule(PLAN, graph))
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.obligations == ("validity", "memory", *AFTER)


B, C = Sym("b"), Sym("c")
MINUS = Add((B, Const(-5)))
LESS = Mul((Const(-1), B))


@pytest.mark.parametrize(
    ("expr", "along_b", "along_c"),
    [
        (Mul((Const(4), B, C)), "rises", "rises"),
        (Add((Mul((Const(4), B)), Const(-3))), "rises", "flat"),
        (Max((Const(-1), FloorDiv(B, 4))), "rises", "flat"),
        (RoundUp(CeilDiv(Mul((B, B)), 3), 512), "rises", "flat"),
        (Const(-7), "flat", "flat"),
        (LESS, "falls", "flat"),
        (Mul((LESS, LESS)), "rises", "flat"),
        (Mul((LESS, C)), "falls", "falls"),
        (Mul((MINUS, MINUS)), "mixed", "flat"),
        (Mul((MINUS, C)), "rises", "mixed"),
        (Max((Const(0), Add((C, LESS)))), "falls", "rises"),
        (Add((C, LESS, B)), "mixed", "rises"),
    ],
)
def test_which_way_a_size_goes_along_a_symbol(expr: Expr, along_b: str, along_c: str) -> None:
    box = {"b": (1, 11), "c": (2, 7)}
    directions = direction(expr, "b", box), direction(expr, "c", box)
    assert directions == (along_b, along_c)
    grid = [(b, c) for b in range(1, 12) for c in range(2, 8)]
    at = {(b, c): value(expr, {"b": b, "c": c}) for b, c in grid}
    low, high = bounds(expr, box)
    assert all(low <= number <= high for number in at.values())
    for (b, c), number in at.items():
        for after, way in ((at.get((b + 1, c)), along_b), (at.get((b, c + 1)), along_c)):
            if after is not None:
                assert way != "flat" or after == number
                assert way != "rises" or after >= number
                assert way != "falls" or after <= number


def test_bytes_are_rounded_up_to_the_granularity() -> None:
    made, plan = schedule()
    coarse = replace(made, target=replace(made.target, granularity_bytes=512))
    answer = verify(coarse, plan)
    assert isinstance(answer, ProvenPlan)
    assert answer.proven.device_bytes == simulate(coarse, plan).peak_bytes
    assert answer.proven.device_bytes % 512 == 0
