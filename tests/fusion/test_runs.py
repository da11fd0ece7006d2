"""Fusion after planning: which runs, what is left of the graph, and that it is the same step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from helpers.paths import fbir
from helpers.programs.random_plans import random_plan
from helpers.programs.random_programs import random_program
from remat_compile.fusion import Fused, Fusing, Priced, recomputation_shares, unrolled
from remat_compile.ir.checks.wellformed import check_program
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import CNode, Ref
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import ProvenPlan, verify
from remat_compile.verifier.check import Accepted, check
from remat_compile.verifier.obligations.same_values import same_values

FOLDED = fbir("fusion/texts/folded")
"""`%a` is computed again for B2 alone, which reads a view of it."""


def by_calls(c: CNode) -> Priced:
    return Priced(c.time_ns or 0, c.workspace)


def pointwise(c: CNode) -> bool:
    return ".mm." not in c.call.op


def fused(program: Program, schedule: Schedule) -> Fused:
    return Fusing(program, schedule, lambda _: True, by_calls, always=True).done()


def test_recomputation_is_folded_into_the_backward_that_needs_it() -> None:
    program = parse_program(FOLDED)
    made = Fusing(
        program, program.schedules[0], pointwise, lambda c: Priced(4000, c.workspace)
    ).done()
    assert made.cnodes == ("F1_B2",)
    text = format_program(replace(made.program, schedules=(made.schedule,)))
    assert (
        """  F1_B2: bwd %dw = fused(%x, %w, %g) {
    %a = aten.mul.Tensor(%x, %w)
    %at = aten.t.default(%a)
    %dw = aten.add.Tensor(%g, %at)
  } of F1 workspace 16 time 4us
"""
        in text
    )
    assert "F1: fwd %a = aten.mul.Tensor(%x, %w) time 4us" in text  # of the forward
    steps = [s.cnode for s in made.schedule.steps if isinstance(s, Compute)]
    assert steps == ["F1", "F2", "F3", "L", "B1", "F1_B2"]
    before = simulate(program, program.schedules[0])
    after = simulate(made.program, made.schedule)
    assert (before.time_ns, after.time_ns) == (39_000, 35_000)
    assert after.peak_bytes == before.peak_bytes
    assert same_values(program, made.program) == ()


def test_only_what_is_faster_is_fused() -> None:
    program = parse_program(FOLDED)

    def times(time_ns: int) -> tuple[str, ...]:
        made = Fusing(
            program, program.schedules[0], pointwise, lambda c: Priced(time_ns, c.workspace)
        ).done()
        return made.cnodes

    assert times(7999)
    assert times(8000) == ()  # as long as both calls
    never: Callable[[CNode], None] = lambda _: None  # noqa: E731
    assert Fusing(program, program.schedules[0], pointwise, never).done().cnodes == ()


def test_what_saves_no_bytes_must_be_faster_by_more_than_chance() -> None:
    program = parse_program(
        """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %w : param f32[4] bytes 16
  %y : output f32[4] bytes 16
  %dy : tangent f32[4] bytes 16
  %g : grad f32[4] bytes 16
  %dw : param_grad f32[4] bytes 16
  %dx : output f32[4] bytes 16
  F1: fwd %y = aten.mm.default(%x, %w) time 9us
  L: loss %dy = loss(%y)
  B1: bwd %g = aten.mul.Tensor(%dy, %x) time 4us
  B2: bwd %dw = aten.neg.default(%g) of F1 time 4us
  B3: bwd %dx = aten.mm.default(%g, %w) of F1 time 9us
}
bind {
  arg "args[0]" = %x grad %dx
  param "w" = %w grad %dw
  result %y tangent %dy
}
schedule @p { F1; L; B1; B2; B3; free %dy; free %g }
"""
    )

    def cnodes(time_ns: int) -> tuple[str, ...]:
        price = lambda c: Priced(time_ns, c.workspace)  # noqa: E731
        return Fusing(program, program.schedules[0], pointwise, price).done().cnodes

    assert cnodes(7759) == ("B1_B2",)
    assert cnodes(7761) == ()  # of 8000, and both results live on


def test_a_kernel_is_asked_for_where_equal_runs_take_some_of_the_step() -> None:
    program = parse_program(FOLDED)
    asked: list[str] = []

    def price(c: CNode) -> Priced:
        asked.append(c.call.op)
        return Priced(1, c.workspace)

    def cnodes(products_ns: int, always: bool = False) -> tuple[str, ...]:
        asked.clear()
        longer = (
            replace(c, time_ns=products_ns) if ".mm." in c.call.op else c
            for c in program.graph.cnodes
        )
        own = replace(program, graph=replace(program.graph, cnodes=tuple(longer)))
        made = Fusing(own, program.schedules[0], pointwise, price, always=always).done()
        assert bool(made.cnodes) is bool(asked)
        return made.cnodes

    assert "F1_B2" in cnodes(100_000)
    assert cnodes(10_000_000) == ()
    assert "F1_B2" in cnodes(10_000_000, always=True)


def test_one_call_becomes_a_kernel_where_that_is_much_faster() -> None:
    program = parse_program(FOLDED)
    asked: list[CNode] = []

    def cnodes(time_ns: int, may_fuse: Callable[[CNode], bool]) -> tuple[str, ...]:
        def price(c: CNode) -> Priced:
            asked.append(c)
            return Priced(time_ns, c.workspace)

        return Fusing(program, program.schedules[0], may_fuse, price).done().cnodes

    assert cnodes(3879, lambda c: c.name == "B2") == ("B2_B2",)
    assert cnodes(3881, lambda c: c.name == "B2") == ()  # of 4000
    asked.clear()
    cnodes(0, lambda _: False)
    assert asked == []
    short = replace(
        program,
        graph=replace(
            program.graph,
            cnodes=tuple(
                replace(c, time_ns=80) if c.name == "B2" else c for c in program.graph.cnodes
            ),
        ),
    )
    made = Fusing(short, program.schedules[0], lambda c: c.name == "B2", by_calls).done()
    assert made.cnodes == ()


def test_a_run_that_would_raise_the_peak_is_taken_apart() -> None:
    """Its arguments live until it ends: where that is too much, the frees stay between calls."""
    program = parse_program(
        """fbir 1
graph @g {
  %x : input f32[1] bytes 4
  %a : act f32[100] bytes 400
  %b : act f32[1] bytes 4
  %c : act f32[100] bytes 400
  %y : output f32[1] bytes 4
  F1: fwd %a = aten.expand_copy.default(%x, [100])
  F2: fwd %b = aten.mm.default(%a)
  F3: fwd %c = aten.add.Tensor(%b, %b)
  F4: fwd %y = aten.mm.default(%c)
  L: loss loss(%y)
}
schedule @p { F1; F2; free %a; F3; free %b; F4; free %c; L }
"""
    )
    schedule = program.schedules[0]
    assert simulate(program, schedule).peak_bytes == 408

    def cnodes(price: Callable[[CNode], Priced]) -> tuple[str, ...]:
        made = Fusing(program, schedule, lambda c: c.name != "F1", price, always=True).done()
        assert simulate(made.program, made.schedule).peak_bytes <= 408
        return made.cnodes

    assert cnodes(by_calls) == ()  # %a and %c at once are 800 bytes, %b, %c and %y are 408 and %x
    assert cnodes(lambda c: Priced(0, Const(0))) == ("F2_F4",)  # a kernel does without %c
    assert cnodes(lambda c: Priced(0, Const(1))) == ("F3_F4",)  # one byte more, and %a does not fit


VIEWED = fbir("fusion/texts/viewed")


def regions(text: str) -> str:
    """What is fused of it, as text; the same step as before."""
    program = parse_program(text)
    made = Fusing(program, program.schedules[0], pointwise, by_calls, always=True).done()
    assert check_program(made.program) == ()
    assert same_values(program, made.program) == ()
    before, after = simulate(program, program.schedules[0]), simulate(made.program, made.schedule)
    assert after.peak_bytes <= before.peak_bytes
    return format_program(made.program)


def test_views_of_arguments_are_made_inside() -> None:
    """And a sum in place whose term is a view of another shape goes inside with it."""
    text = """fused(%h, %g) {
    %hv = aten.view.default(%h, [4, 2])
    %s = aten.add.Tensor(%g, %hv)
    %dx = aten.neg.default(%s)
    %hh = aten.alias.default(%h)
    %dw = aten.neg.default(%hh)
  }"""
    assert text in regions(VIEWED)


@pytest.mark.parametrize(
    "view", ["aten.view.dtype(%h, dtype:i32)", "aten.view.dtype(%h, dtype:f64)"]
)
def test_a_term_that_is_read_as_another_type_is_added_in_place(view: str) -> None:
    text = regions(VIEWED.replace("aten.view.default(%h, [4, 2])", view))
    assert "B3: bwd %s = accumulate(%g, %hv)" in text


def test_views_of_complex_numbers_stay_outside() -> None:
    """No kernel is generated for an operator that gives them."""
    text = VIEWED.replace("%h : grad f32[8] bytes 32", "%h : grad c64[4] bytes 32")
    text = regions(text.replace("aten.alias.default(%h)", "aten.view_as_real.default(%h)"))
    assert "fused(%s, %hh) {" in text
    assert "%hh = view of %h aten.view_as_real.default(%h)" in text


def test_a_view_that_counts_from_where_the_storage_begins_stays_outside() -> None:
    """A kernel counts from where its argument begins: elsewhere, in a caller's tensor."""
    view = "aten.as_strided.default(%h, [8], [1], 0)"
    text = regions(VIEWED.replace("aten.alias.default(%h)", view))
    assert f"%hh = view of %h {view}" in text
    assert f"%hh = {view}" not in text


@pytest.mark.parametrize("copy", [0.0, 0.3])
def test_random_plans_are_the_same_step_when_fused(copy: float) -> None:
    """Well-formed, equal in every value, no byte more, and accepted by the independent checker."""
    runs = 0
    for seed in range(40):
        rng = Random(seed)
        program = random_program(rng)
        schedule = random_plan(rng, program, copy=copy)
        try:
            before = simulate(program, schedule)
        except FBError:
            continue  # a rare order of repeated accumulations
        made = fused(program, schedule)
        runs += len(made.cnodes)
        assert check_program(made.program) == (), seed
        assert same_values(program, made.program) == (), seed
        after = simulate(made.program, made.schedule)
        assert after.peak_bytes <= before.peak_bytes, seed
        assert after.activation_peak_bytes <= before.activation_peak_bytes, seed
        text = format_program(replace(made.program, schedules=(made.schedule,)))
        assert parse_program(text).graph == made.program.graph, seed
        opinion = check(text, made.schedule.name)
        assert isinstance(opinion, Accepted), (seed, opinion)
        assert opinion.peak.device == after.peak_bytes
    assert runs > (10 if copy else 30)


def test_fused_plans_are_proven() -> None:
    for seed in range(3):
        rng = Random(seed)
        program = random_program(rng)
        schedule = random_plan(rng, program)
        made = fused(program, schedule)
        assert made.cnodes
        answer = verify(made.program, made.schedule)
        assert isinstance(answer, ProvenPlan), answer
        assert any(a.key == "fused" for a in answer.assuming)


def test_what_is_fused_can_be_fused_again() -> None:
    """The calls of both regions, with names apart."""
    program = parse_program(FOLDED)
    once = Fusing(program, program.schedules[0], pointwise, by_calls, always=True).done()
    twice = Fusing(once.program, once.schedule, lambda _: True, by_calls, always=True).done()
    assert twice.cnodes
    assert check_program(twice.program) == ()
    assert same_values(program, twice.program) == ()


UNREAD = fbir("fusion/texts/unread")
"""A kernel writes `%m`, which is freed at once."""


@pytest.mark.parametrize(("time_ns", "cnodes"), [(3999, ("F1_F1",)), (4000, ())])
def test_a_kernel_does_not_write_what_is_freed_at_once(
    time_ns: int, cnodes: tuple[str, ...]
) -> None:
    program = parse_program(UNREAD)

    def made(steps: Schedule) -> Fused:
        return Fusing(program, steps, pointwise, lambda c: Priced(time_ns, c.workspace)).done()

    (schedule,) = program.schedules
    leaner = made(schedule)
    assert leaner.cnodes == cnodes
    assert check_program(leaner.program) == ()
    assert same_values(program, leaner.program) == ()
    written = {name for c in leaner.program.graph.cnodes for name in c.results}
    assert ("m" in written) == (not cnodes)
    first, freed, second, *rest = schedule.steps
    held = replace(schedule, steps=(first, second, freed, *rest))
    assert made(held).cnodes == ()


def test_calls_that_were_fused_before_are_priced_by_their_own_time() -> None:
    """As it was: a kernel was priced at its share of the time of the kernels that it is made of."""
    program = parse_program(FOLDED)

    def fifth(c: CNode) -> Priced:
        return Priced((c.time_ns or 0) // 5, c.workspace)

    asked: list[int] = []

    def asks(c: CNode) -> Priced:
        asked.append(c.time_ns or 0)
        return fifth(c)

    def all_of(once: Fused) -> int:
        asked.clear()
        Fusing(
            once.program,
            once.schedule,
            lambda _: True,
            asks,
            always=True,
            calls_ns=lambda c: 5 * (c.time_ns or 0) if c.is_fused else c.time_ns,
        ).done()
        return max(asked)

    once = Fusing(program, program.schedules[0], pointwise, fifth, always=True).done()
    assert any(c.is_fused for c in once.program.graph.cnodes)
    assert all_of(once) == all_of(Fused(program, program.schedules[0]))


# -- What a recomputation takes inside a kernel ---------------------------------------------------

PROGRAM = fbir("fusion/texts/runs")


def with_regions(most: int = 3) -> tuple[Program, dict[str, str], Program]:
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
    made, origin, program = with_regions()
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
    made, origin, program = with_regions()
    priced = recomputation_shares(
        made, origin, program.graph, lambda c: Priced(rest_ns, c.workspace)
    )
    assert priced == {"F1": share, "F2": share}


def test_what_has_no_price_is_left_out() -> None:
    made, origin, program = with_regions()
    assert recomputation_shares(made, origin, program.graph, lambda _: None) == {}


def test_what_runs_by_itself_takes_its_time() -> None:
    made, origin, program = with_regions(most=2)
    shares = recomputation_shares(
        made, origin, program.graph, lambda c: Priced(149_000, c.workspace)
    )
    assert shares == {"F1": 1.0, "F2": 0.01}


def test_a_graph_without_times_has_no_shares() -> None:
    made, origin, program = with_regions()
    timeless = replace(
        program.graph, cnodes=tuple(replace(c, time_ns=None) for c in program.graph.cnodes)
    )
    assert recomputation_shares(made, origin, timeless, lambda c: Priced(1, c.workspace)) == {}
