"""Lossy codecs: what is proven of a plan that has them, what is told, and what is refused."""

from __future__ import annotations

import re

import pytest

from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.verifier import ProvenPlan, Refuted, prove_largest, verify
from remat_compile.verifier.check import Accepted, Refused, check
from remat_compile.verifier.obligations.values import encode_values
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.lossy import Error, Reach, read_lossy
from remat_compile.verifier.read.statements import Statements, read_statements

# %h is read for the gradient of a weight, %a for that of the GELU before it.
TEXT = """fbir 1
graph @net {
  %x : input f32[8, 8] bytes 256
  %w : param f32[8, 8] bytes 256
  %v : param f32[8, 8] bytes 256
  %a : act f32[8, 8] bytes 256
  %h : act f32[8, 8] bytes 256
  %r : output f32[8, 8] bytes 256
  %dr : tangent f32[8, 8] bytes 256
  %hp : phantom u8[40] bytes 40
  %ap : phantom u8[68] bytes 68
  %hq : grad f32[8, 8] bytes 256
  %aq : grad f32[8, 8] bytes 256
  %dh : grad f32[8, 8] bytes 256
  %da : grad f32[8, 8] bytes 256
  %dv : param_grad f32[8, 8] bytes 256
  %dw : param_grad f32[8, 8] bytes 256
  %ht = view of %hq aten.t.default(%hq)
  F1: fwd %a = aten.mm.default(%x, %w) time 5us
  F2: fwd %h = aten.gelu.default(%a) time 5us
  F1p: fwd %ap = remat_compile.pack_int8.default(%a) time 1us
  F2p: fwd %hp = remat_compile.pack_int4.default(%h, 7) time 1us
  F3: fwd %r = aten.mm.default(%h, %v) time 5us
  L: loss %dr = loss(%r)
  B3u: bwd %hq = remat_compile.unpack_int4.default(%hp, [8, 8], dtype:f32) of F2p time 1us
  B3: bwd %dv = aten.mm.default(%ht, %dr) of F3 time 5us
  B3x: bwd %dh = aten.mm.default(%dr, %v) of F3 time 5us
  B2u: bwd %aq = remat_compile.unpack_int8.default(%ap, [8, 8], dtype:f32) of F1p time 1us
  B2: bwd %da = aten.gelu_backward.default(%dh, %aq) of F2 time 5us
  B1: bwd %dw = aten.mm.default(%x, %da) of F1 time 5us
}
bind {
  arg "x" = %x
  param "w" = %w grad %dw
  param "v" = %v grad %dv
  result %r tangent %dr
}
schedule @kept {
  F1; F2; F1p; free %a; F2p; F3; free %h; L; B3u; free %hp; B3; free %hq; B3x; free %dr
  B2u; free %ap; B2; free %dh; free %aq; B1; free %da
}
"""


def planned(text: str = TEXT) -> Program:
    return parse_program(text, "lossy.fbir")


def test_it_is_proven_where_it_is_allowed_and_told_by_name() -> None:
    program = planned()
    (schedule,) = program.schedules
    refused = verify(program, schedule, text=TEXT)
    assert isinstance(refused, Refuted)
    assert [d.code for d in refused.diagnostics] == ["FB0878"]
    assert refused.diagnostics[0].hint
    largest = prove_largest(program, schedule, (), "b", text=TEXT)
    assert isinstance(largest, Refuted)
    verdict = verify(program, schedule, text=TEXT, allow_lossy=True)
    assert isinstance(verdict, ProvenPlan)
    assert "values up to lossy codecs" in verdict.proven.obligations
    assert "values" not in verdict.proven.obligations
    told = {a.key: a.text for a in verdict.assuming}
    assert told["lossy"] == (
        "approximate: %h (int4), %a (int8); per element, "
        "int4: |error| <= (max x - min x) / 15 in groups of 64; at random by seed, with mean 0; "
        "int8: |error| <= max |x| / 254 in groups of 64"
    )
    assert told["lossy-gradients"] == (
        '2 of 2 gradients are approximate: "w", "v" (linear); loss, outputs, buffers are not'
    )
    assert "codecs" not in told
    opinion = check(TEXT, "kept")
    assert isinstance(opinion, Accepted)
    assert opinion.approximate == {"dv", "da", "dw"}


def test_no_equality_is_claimed_of_what_is_approximate() -> None:
    """A decoded tensor is a value of its own, and its readers are defined by that value."""
    program = planned()
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    assert not statements.packs.exact
    assert not statements.packs.sources
    events = unfold(statements, program.schedules[0])
    assert isinstance(events, list)
    (part,) = encode_values(statements, events).encoding.parts
    defined = re.findall(r"^\(assert \(= (T\d+) \(f", "\n".join(part.lines), re.MULTILINE)
    assert len(defined) == len(set(defined))


def test_a_certificate_says_so() -> None:
    program = planned()
    verdict = verify(program, program.schedules[0], allow_lossy=True)
    assert isinstance(verdict, ProvenPlan)
    certificate = verdict.proven.certificate
    assert certificate is not None
    assert {"lossy", "lossy-gradients"} <= {*certificate.assuming}


# What is written otherwise, each the only fault in the graph.
FAULTS = {
    "a seed below 0": ("(%h, 7)", "(%h, -1)"),
    "a seed that is no number": ("(%h, 7)", "(%h, true)"),
    "two seeds": ("(%h, 7)", "(%h, 7, 7)"),
    "a tensor for a seed": ("(%h, 7)", "(%h, %a)"),
    "indices": ("%h : act f32[8, 8] bytes 256", "%h : act i64[8, 8] bytes 512"),
    "storage of the caller": ("pack_int8.default(%a)", "pack_int8.default(%x)"),
    "a view": ("pack_int8.default(%a)", "pack_int8.default(%ht)"),
    "another codec makes it again": ("unpack_int8.default(%ap", "unpack_fp8.default(%ap"),
    "it is made again of another": ("unpack_int8.default(%ap", "unpack_int8.default(%hp"),
    "it is made again with more": ("(%ap, [8, 8], dtype:f32)", "(%ap, [8, 8], f32, %a)"),
    "it is made of another shape": ("%aq : grad f32[8, 8]", "%aq : grad f32[64]"),
    "it is kept": ("%hq : grad", "%hq : output"),
    "the packed value is read": ("(%dh, %aq)", "(%dh, %ap)"),
    "the backward exponentiates it": (
        "aten.gelu_backward.default(%dh, %aq)",
        "aten._log_softmax_backward_data.default(%dh, %aq, 1, dtype:f32)",
    ),
    "and through a view": (
        "aten.mm.default(%ht, %dr)",
        "aten._log_softmax_backward_data.default(%dr, %ht, 1, dtype:f32)",
    ),
}
# As of other operators, the checker knows no bytes and arguments of theirs.
UNKNOWN_TO_THE_CHECKER = {
    "no seed": ("pack_int4.default(%h, 7)", "pack_int4.default(%h)"),
    "fewer bytes": ("%ap : phantom u8[68] bytes 68", "%ap : phantom u8[67] bytes 67"),
    "a codec that is not there": ("pack_int8", "pack_int9"),
    "a seed where nothing is random": ("pack_int8.default(%a)", "pack_int8.default(%a, 3)"),
    "another shape is told": ("(%ap, [8, 8], dtype:f32)", "(%ap, [64], dtype:f32)"),
    "another type is told": ("(%ap, [8, 8], dtype:f32)", "(%ap, [8, 8], dtype:f64)"),
}


@pytest.mark.parametrize("fault", [*FAULTS, *UNKNOWN_TO_THE_CHECKER])
def test_language_verifier_and_checker_each_refuse(fault: str) -> None:
    was, now = {**FAULTS, **UNKNOWN_TO_THE_CHECKER}[fault]
    assert was in TEXT
    text = TEXT.replace(was, now)
    with pytest.raises(FBError) as refused:
        planned(text)
    assert {d.code for d in refused.value.diagnostics} & {"FB0233", "FB0206"}
    program = read_syntax(text, "lossy.fbir")
    verdict = verify(program, program.schedules[0], text=text, allow_lossy=True)
    assert isinstance(verdict, Refuted)
    assert {d.code for d in verdict.diagnostics} == {"FB0802"}
    assert isinstance(check(text, "kept"), Refused) == (fault in FAULTS)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("%da : grad f32[8, 8] bytes 256", "%da : grad i64[8, 8] bytes 512"),
        ("%da : grad f32[8, 8] bytes 256", "%da : grad bool[8, 8] bytes 64"),
    ],
)
def test_a_choice_by_approximate_values_is_refused(was: str, now: str) -> None:
    text = TEXT.replace(was, now)
    program = planned(text)
    verdict = verify(program, program.schedules[0], text=text, allow_lossy=True)
    assert isinstance(verdict, Refuted)
    assert [d.code for d in verdict.diagnostics] == ["FB0879"]
    assert isinstance(check(text, "kept"), Refused)


# What %da and %dw are computed by, and how an error reaches them.
CALLS = {
    ("aten.mm.default(%dh, %aq)", "aten.add.Tensor(%da, %da)"): (Error.SUM, Error.SUM),
    ("aten.mm.default(%aq, %aq)", "aten.clone.default(%da)"): (Error.VALUE, Error.VALUE),
    ("aten.mm.default(%dh, %aq)", "aten.mm.default(%x, %da)"): (Error.SUM, Error.VALUE),
    ("aten.mm.default(%dh, %aq)", "ns.other(%da)"): (Error.SUM, Error.VALUE),
    ("aten.sum.default(%aq)", "aten.sum.dim_IntList(%da, [0])"): (Error.SUM, Error.SUM),
    ("ns.exact(%dh)", "aten.mm.default(%x, %da)"): (None, None),
}


@pytest.mark.parametrize("calls", CALLS, ids=" ".join)
def test_how_an_error_reaches(calls: tuple[str, str]) -> None:
    """Through one product, and sums of such, it has a mean of 0; else it may not. The checker finds
    the same values approximate."""
    text = TEXT.replace("aten.gelu_backward.default(%dh, %aq)", calls[0])
    text = text.replace("aten.mm.default(%x, %da)", calls[1])
    program = planned(text)
    errors = read_lossy(program).errors
    assert (errors.get("da"), errors.get("dw")) == CALLS[calls]
    opinion = check(text, "kept")
    assert isinstance(opinion, Accepted), opinion
    assert opinion.approximate == {*errors} - {"aq", "hq"}


@pytest.mark.parametrize(
    ("args", "reached"),
    [
        ("(%dh, %aq, %v, none)", {"dw"}),  # the input of the forward
        ("(%aq, %dh, %v, none)", {"da", "dw"}),  # the gradient
        ("(%dh, %x, %aq, none)", {"da", "dw"}),  # the weight
        ("(%aq, %aq, %v, none)", {"da", "dw"}),
    ],
)
def test_the_input_of_a_convolution_is_read_for_its_weight_alone(
    args: str, reached: set[str]
) -> None:
    text = TEXT.replace(
        "bwd %da = aten.gelu_backward.default(%dh, %aq)",
        f"bwd %da, %dw, _ = aten.convolution_backward.default{args}",
    ).replace("  B1: bwd %dw = aten.mm.default(%x, %da) of F1 time 5us\n", "")
    text = text.replace("; B1; free %da", "; free %da")
    program = planned(text)
    errors = Reach(program.graph).errors
    assert {*errors} & {"da", "dw"} == reached
    assert (errors["dw"] is Error.SUM) == (len(reached) == 1)
    opinion = check(text, "kept")
    assert isinstance(opinion, Accepted), opinion
    assert opinion.approximate == {*errors} - {"aq", "hq"}
    assert isinstance(
        verify(program, program.schedules[0], text=text, allow_lossy=True), ProvenPlan
    )
