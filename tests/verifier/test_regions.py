"""What a region may be, as the independent checker and the verifier's own reader see it."""

from __future__ import annotations

import pytest

from helpers.paths import TESTS
from remat_compile.ir.text.parser import read_syntax
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.check import Accepted, Refused, check

TEXT = (TESTS.parent / "spec" / "conformance" / "valid" / "fused.fbir").read_text()

FAULTS = {
    "reads what it is not given": ("%t = aten.mul.Tensor(%xt, %w); ", ""),
    "a sum in place inside": ("aten.tanh.default(%t)", "accumulate(%t, %t)"),
    "the loss inside": ("aten.tanh.default(%t)", "loss(%t)"),
    "a region inside": ("aten.tanh.default(%t)", "fused(%t)"),
    "its result is not made": ("%h = aten.tanh", "%k = aten.tanh"),
    "an argument is written": (
        "%h = aten.tanh.default(%t)",
        "%xt = f(%t); %h = aten.tanh.default(%t)",
    ),
    "a name is written twice": ("%h = aten.tanh", "%t = f(%t); %h = aten.tanh"),
    "another operator": ("= fused(%xt, %w)", "= aten.mul.Tensor(%xt, %w)"),
    "no calls": ("{ %t = aten.mul.Tensor(%xt, %w); %h = aten.tanh.default(%t) }", ""),
    "a result that is not used": ("F1: fwd %h =", "F1: fwd %h, _ ="),
    "calls in a circle": (
        "%t = aten.mul.Tensor(%xt, %w); %h = aten.tanh.default(%t)",
        "%h = aten.tanh.default(%t); %t = aten.mul.Tensor(%h, %w)",
    ),
}  # fmt: skip


def test_both_take_a_region() -> None:
    program = read_syntax(TEXT, "fused.fbir")
    for schedule in program.schedules:
        opinion = check(TEXT, schedule.name)
        assert isinstance(opinion, Accepted)
        assert (opinion.peak.device, opinion.peak.activation) == (112, 64)
        assert isinstance(verify(program, schedule, text=TEXT), ProvenPlan)


@pytest.mark.parametrize("fault", FAULTS)
def test_both_refuse_each_fault(fault: str) -> None:
    was, now = FAULTS[fault]
    assert was in TEXT
    text = TEXT.replace(was, now)
    program = read_syntax(text, "fused.fbir")
    answer = verify(program, program.schedules[0], text=text)
    assert isinstance(answer, Refuted)
    assert {d.code for d in answer.diagnostics} == {"FB0802"}
    assert all(d.span is not None and d.span.line == 15 for d in answer.diagnostics)
    assert isinstance(check(text, "once"), Refused)
