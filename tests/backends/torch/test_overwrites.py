"""Results written over arguments that die: where that may be, and how the text is held to it."""

from __future__ import annotations

import re

import pytest

from remat_compile.backends.torch import emit
from remat_compile.backends.torch.emit import emit_with_saved
from remat_compile.backends.torch.interface import default_interface
from remat_compile.backends.torch.overwrites import LEAST_BYTES, Overwrites, overwrites
from remat_compile.backends.torch.readback import check_source
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program

N = LEAST_BYTES // 4
TEXT = f"""fbir 1
graph @g {{
  %x : input f32[{N}] bytes {4 * N}
  %w : param f32[{N}] bytes {4 * N}
  %h : act f32[{N}] bytes {4 * N}
  %k : act f32[{N}] bytes {4 * N}
  %i : act f32[{N}] bytes {4 * N}
  %y : output f32[{N}] bytes {4 * N}
  %dy : tangent f32[{N}] bytes {4 * N}
  %c : grad f32[{N}] bytes {4 * N}
  %d : grad f32[{N}] bytes {4 * N}
  %e : grad f32[{N}] bytes {4 * N}
  %f : grad f32[{N}] bytes {4 * N}
  %dw : param_grad f32[{N}] bytes {4 * N}
  F1: fwd %h = aten.mul.Tensor(%x, %w)
  F2: fwd %k = aten.exp.default(%h)
  F3: fwd %i = fused(%h, %k) {{
    %t = aten.mul.Tensor(%h, %k)
    %i = aten.tanh.default(%t)
  }}
  F4: fwd %y = aten.exp.default(%i) workspace {4 * N}
  L: loss %dy = loss(%y)
  B1: bwd %c = aten.mul.Tensor(%dy, %x) of F4
  B2: bwd %d = fused(%c, %h) {{
    %t = aten.mul.Tensor(%c, %h)
    %d = aten.tanh.default(%t)
  }} of F3
  B3: bwd %e, %f = fused(%d, %h, %w) {{
    %t = aten.mul.Tensor(%d, %h)
    %e = aten.tanh.default(%t)
    %f = aten.mul.Tensor(%t, %w)
  }} of F2
  B4: bwd %dw = aten.add.Tensor(%e, %f) of F1
}}
bind {{
  arg "args[0]" = %x
  param "w" = %w grad %dw
  result %y tangent %dy
}}
schedule @p {{
  F1; F2; F3; free %k; F4; free %i; L
  B1; free %dy; B2; free %c; B3; free %d; free %h; B4; free %e; free %f
}}
"""


def read(text: str = TEXT) -> Program:
    return parse_program(text, "plan.fbir")


def over_of(program: Program) -> Overwrites:
    return overwrites(program, program.schedules[0])


def source(program: Program) -> str:
    return emit_with_saved(program, program.schedules[0], None, over_of(program))[0]


def test_a_result_is_written_over_what_dies_and_was_computed_here() -> None:
    """In the forward %h lives on, in the backward it was saved: %k, %c and %d are left. B3 with all
    that is alive is the peak of the backward."""
    over = over_of(read())
    assert over.calls == {("F3", 1): "fused0_r0_over_a1", ("B2", 1): "fused0_r0_over_a0"}
    assert over.functions["fused0_r0_over_a1"] == ("fused0", ((0, 1),))


def test_the_text_says_so() -> None:
    text = source(read())
    assert (
        """
def fused0_r0_over_a1(a0, a1):
    # as a kernel it writes result 0 over a1
    return fused0(a0, a1)
"""
        in text
    )
    assert "(i,) = fused0_r0_over_a1(h, k)\n    del k\n" in text
    assert "(d,) = fused0_r0_over_a0(c, h)\n    del c\n" in text
    assert "(e, f,) = fused1(d, h, w)" in text
    assert "_over_" not in emit(read(), read().schedules[0])  # a script runs by calls


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("F3; free %k; F4", "F3; F4; free %k"),
        ("B2; free %c; B3", "B2; B3; free %c"),
        ("F2; F3", "F2; free %h; F1; F3"),
    ],
)
def test_what_is_freed_later_or_lives_on_is_kept(was: str, now: str) -> None:
    """The last is a recomputation, which changes nothing here."""
    assert was in TEXT
    left = over_of(read(TEXT.replace(was, now))).calls
    assert ("F3", 1) in left or "free %k" in was
    assert ("B2", 1) in left or "free %c" in was
    assert len(left) == (2 if was == "F2; F3" else 1)


def test_smaller_results_and_other_types_are_not_written_over() -> None:
    fewer = TEXT.replace(str(4 * N), str(4 * N - 4)).replace(f"[{N}]", f"[{N - 1}]")
    assert over_of(read(fewer)).calls == {}
    wide = TEXT.replace("%k : act f32", "%k : act i32")
    assert [*over_of(read(wide)).calls] == [("B2", 1)]
    small = TEXT.replace(f"%c : grad f32[{N}] bytes {4 * N}", f"%c : grad f32[{N}] bytes {8 * N}")
    assert [*over_of(read(small)).calls] == [("F3", 1)]


def test_what_another_argument_looks_at_is_not_written_over() -> None:
    viewed = TEXT.replace(
        "  F1: fwd", "  %kv = view of %k aten.view.default(%k, [-1])\n  F1: fwd"
    ).replace(
        "fused(%h, %k) {\n    %t = aten.mul.Tensor(%h, %k)",
        "fused(%h, %k, %kv) {\n    %s = aten.mul.Tensor(%h, %k)\n    %t = aten.add.Tensor(%s, %kv)",
    )
    assert viewed != TEXT
    assert [*over_of(read(viewed)).calls] == [("B2", 1)]


def test_a_sum_in_place_lies_where_its_first_term_did() -> None:
    """Where that was made before the loss, it was saved, and a second backward reads it again."""
    text = TEXT.replace("%c : grad", f"%b : grad f32[{N}] bytes {4 * N}\n  %c : grad")
    text = text.replace(
        "B1: bwd %c = aten.mul.Tensor(%dy, %x)", "B1: bwd %b = aten.exp.default(%h)"
    )
    text = text.replace("  B2: bwd", "  B5: bwd %c = accumulate(%b, %dy)\n  B2: bwd")
    after = read(text.replace("B1; free %dy; B2", "B1; B5; free %dy; B2"))
    assert ("B2", 1) in over_of(after).calls
    before = read(text.replace("; L\n  B1; free %dy; B2", "; B1; L\n  B5; free %dy; B2"))
    assert [*over_of(before).calls] == [("F3", 1)]
    source(after)
    written = source(before).replace("(d,) = fused0(c", "(d,) = fused0_r0_over_a0(c")
    written = written.replace("def fused0_r0_over_a1", "def fused0_r0_over_a0")
    written = written.replace("fused0_r0_over_a1(h, k)", "fused0(h, k)")
    with pytest.raises(FBError, match=r"c \(instance .\), which was not computed here"):
        check_source(written, before, before.schedules[0])


ROOMY = TEXT.replace("of F4", f"workspace {8 * N} of F4")
"""B1 is the peak of the backward."""


def test_the_backward_writes_over_what_the_forward_saved() -> None:
    program = read(ROOMY)
    over = over_of(program)
    assert over.calls[("B3", 1)] == "fused1_r0_over_a0_r1_over_a1"
    _, carried = emit_with_saved(program, program.schedules[0], None, over)
    assert (carried.saved, carried.overwritten) == (("x", "w", "h"), {"h"})
    _, plain = emit_with_saved(program, program.schedules[0])
    assert (plain.saved, plain.overwritten) == (carried.saved, frozenset())


@pytest.mark.parametrize("given", ["%h", "%hv"])
def test_what_lies_in_a_result_is_never_written_over(given: str) -> None:
    """The caller has the first instance, also where it is computed once more at the end."""
    view = "  %hv = view of %h aten.view.default(%h, [-1])\n"
    text = ROOMY.replace("  F1: fwd", view + "  F1: fwd")
    text = text.replace("  result %y", f"  result {given}\n  result %y")
    text = text.replace("%h : act", "%h : output").replace("free %f\n", "free %f; F1\n")
    text = text.replace("loss(%y)", f"loss(%y, {given})")
    program = read(text)
    with pytest.raises(FBError, match="FB0302"):
        over_of(program)
    given_to = default_interface(program)
    written = writes(
        emit_with_saved(program, program.schedules[0], given_to)[0], "fused1_r0_over_a1"
    )
    with pytest.raises(FBError, match=r"h .* was not computed here"):
        check_source(written, program, program.schedules[0], given_to)
    with pytest.raises(FBError, match="FB0217"):  # nor is it said to be something else
        read(text.replace("%h : output", "%h : act"))


def writes(text: str, to: str) -> str:
    """The text where `fused1` is called as that function, which stands in it."""
    function = f"def {to}(a0, a1, a2):\n    return fused1(a0, a1, a2)\n\n\ndef forward"
    return text.replace("= fused1(", f"= {to}(").replace("def forward", function, 1)


def renamed(line: str, to: str) -> str:
    """The text where the call of that line is of another function, which stands in it."""
    text = source(read())
    (call,) = re.findall(line, text)
    base = re.sub("_r.*", "", to)
    given = {"fused0": "a0, a1", "fused1": "a0, a1, a2"}[base]
    text = text.replace(call, call.replace(re.findall(r"fused\w+", call)[0], to))
    if f"def {to}(" in text:
        return text
    function = f"def {to}({given}):\n    return {base}({given})\n\n\ndef forward"
    return text.replace("def forward", function, 1)


@pytest.mark.parametrize(
    ("line", "to", "says"),
    [
        (
            r"fused0\w+\(h, k\)",
            "fused0_r0_over_a0",
            "%h (instance 1), which is not freed right after",
        ),
        (
            r"fused0\w+\(c, h\)",
            "fused0_r0_over_a1",
            "%h (instance 1), which is not freed right after",
        ),
        (r"fused1\(d, h, w\)", "fused1_r1_over_a2", "%w, which was not computed here"),
        (r"fused1\(d, h, w\)", "fused1_r2_over_a0", "no such result or argument"),
        (r"fused1\(d, h, w\)", "fused1_r0_over_a3", "no such result or argument"),
        (r"fused1\(d, h, w\)", "fused1_r0_over_a0_r1_over_a0", "two results to one place"),
        (r"fused1\(d, h, w\)", "fused1_r0_over_a0_r0_over_a1", "or one to two"),
    ],
)
def test_a_text_that_writes_over_something_alive_is_refused(line: str, to: str, says: str) -> None:
    program = read()
    with pytest.raises(FBError) as caught:
        check_source(renamed(line, to), program, program.schedules[0])
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FB0945"
    assert says in diagnostic.message


def test_a_text_that_writes_over_more_than_was_planned_may_be_right() -> None:
    """The read-back asks whether anybody reads it again, and not whether it was worth it."""
    program = read()
    text = renamed(r"fused1\(d, h, w\)", "fused1_r0_over_a0")
    check_source(text, program, program.schedules[0])


@pytest.mark.parametrize(
    ("was", "now", "code"),
    [
        ("    return fused0(a0, a1)\n", "    return fused0(a1, a0)\n", "FB0945"),
        ("    return fused0(a0, a1)\n", "    return fused1(a0, a1)\n", "FB0945"),
        ("    return fused0(a0, a1)\n", "    return fused0_r0_over_a1(a0, a1)\n", "FB0946"),
        ("    return fused0(a0, a1)\n", "    return (a0,)\n", "FB0945"),
        ("h, k)\n    del k\n", "h, k)\n", "FB0945"),
        ("fused0_r0_over_a1", "fused0_over_a1", "FB0946"),
    ],
)
def test_a_function_that_stands_for_another_is_read(was: str, now: str, code: str) -> None:
    program, text = read(), source(read())
    assert was in text
    with pytest.raises(FBError) as caught:
        check_source(text.replace(was, now), program, program.schedules[0])
    assert [d.code for d in caught.value.diagnostics] == [code]
