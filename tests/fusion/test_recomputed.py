"""What a recomputation takes inside a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remat_compile.fusion import Fusing, Priced, recomputation_shares, unrolled
from remat_compile.ir.graph import CNode, Ref
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program

PROGRAM = """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %w : param f32[4] bytes 16
  %s : act f32[4] bytes 16
  %t : act f32[4] bytes 16
  %y : output f32[4] bytes 16
  %dy : tangent f32[4] bytes 16
  %g : grad f32[4] bytes 16
  %dw : param_grad f32[4] bytes 16
  F1: fwd %s = aten.silu.default(%w) time 200us
  F2: fwd %t = aten.tanh.default(%s) time 200us
  F3: fwd %y = aten.mm.default(%x, %t) time 900us
  L: loss %dy = loss(%y)
  B1: bwd %g = aten.mm.default(%dy, %x) of F3 time 900us
  %tt = view of %t aten.t.default(%t)
  B2: bwd %dw = aten.addcmul.default(%g, %s, %tt) of F1 time 100us
}
bind {
  arg "args[0]" = %x
  param "w" = %w grad %dw
  result %y tangent %dy
}
schedule @p {
  F1; F2; free %s; F3; free %t; L; B1; free %dy; F1; F2; B2; free %g; free %s; free %t
}
"""


def fused(most: int = 3) -> tuple[Program, dict[str, str], Program]:
    """Fused with regions of at most so many calls; what names are instances of; and what it was
    made from."""
    program = parse_program(PROGRAM)
    apart = unrolled(program, program.schedules[0])
    may_fuse = [c.name for c in apart.program.graph.cnodes if ".mm." not in c.call.op][-most:]
    made = Fusing(
        apart.program,
        apart.schedule,
        lambda c: c.name in may_fuse,
        lambda c: Priced(150_000, c.workspace),
    ).done()
    return made.program, apart.origin, program


def test_the_kernel_is_held_against_one_that_is_given_the_value() -> None:
    made, origin, program = fused()
    asked: list[CNode] = []

    def price(c: CNode) -> Priced:
        asked.append(c)
        return Priced(50_000, c.workspace)

    shares = recomputation_shares(made, origin, program.graph, price)
    assert shares == {"F1": 0.25, "F2": 0.25}  # (150 - 50) us of 400
    (rest,) = asked
    assert rest.call.args == (Ref("g"), Ref("s.2"), Ref("tt.2"))
    assert [inner.call.op for inner in rest.call.region] == ["aten.addcmul.default"]
    assert rest.results == ("dw",)
    assert rest.time_ns == 100_000  # of its calls, as `price` is told of any


@pytest.mark.parametrize(("rest_ns", "share"), [(900_000, 0.01), (0, 0.375)])
def test_no_recomputation_is_priced_at_nothing(rest_ns: int, share: float) -> None:
    made, origin, program = fused()
    priced = recomputation_shares(
        made, origin, program.graph, lambda c: Priced(rest_ns, c.workspace)
    )
    assert priced == {"F1": share, "F2": share}


def test_what_has_no_price_is_left_out() -> None:
    made, origin, program = fused()
    assert recomputation_shares(made, origin, program.graph, lambda _: None) == {}


def test_what_runs_by_itself_takes_its_time() -> None:
    made, origin, program = fused(most=2)
    shares = recomputation_shares(
        made, origin, program.graph, lambda c: Priced(149_000, c.workspace)
    )
    assert shares == {"F1": 1.0, "F2": 0.01}


def test_a_graph_without_times_has_no_shares() -> None:
    made, origin, program = fused()
    timeless = replace(
        program.graph, cnodes=tuple(replace(c, time_ns=None) for c in program.graph.cnodes)
    )
    assert recomputation_shares(made, origin, timeless, lambda c: Priced(1, c.workspace)) == {}
