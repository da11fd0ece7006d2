"""Recomputations in the backward as cNodes of their own: the same step, byte for byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from helpers.paths import fbir
from helpers.programs.random_plans import random_plan
from helpers.programs.random_programs import random_program
from remat_compile.fusion import Fusing, Priced, folded, gathered, unrolled
from remat_compile.ir.checks.wellformed import check_program
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier.check import Accepted, check
from remat_compile.verifier.obligations.same_values import instances, same_values

GATED = fbir("fusion/texts/gated")
"""A gated product: `%p` is made again for two products of matrices, one of which reads a view."""


def cnodes(schedule: Schedule) -> list[str]:
    return [step.cnode for step in schedule.steps if isinstance(step, Compute)]


def by_calls(c: CNode) -> Priced:
    return Priced(c.time_ns or 0, c.workspace)


def pointwise(name: str) -> bool:
    return ".mm." not in name


def test_readers_read_what_is_there() -> None:
    program = parse_program(GATED)
    apart = unrolled(program, program.schedules[0])
    graph = apart.program.graph
    assert cnodes(apart.schedule)[4:] == ["L", "F3.2", "B1", "B2", "B3"]
    assert graph.cnode["F3.2"].results == ("p.2",)
    assert graph.cnode["F3.2"].phase == "bwd"
    assert graph.anode["p.2"].kind == "grad"
    assert graph.reads(graph.cnode["B1"]) == ("dy", "p.2")
    assert graph.reads(graph.cnode["B3"]) == ("h", "p.2")
    assert Free("p.2") in apart.schedule.steps
    assert apart.origin == {"p.2": "p", "pt.2": "pt"}
    assert same_values(program, apart.program) == ()
    assert instances(program, apart.program) == apart.origin


def test_a_new_name_is_no_way_around_the_values() -> None:
    program = parse_program(GATED)
    apart = unrolled(program, program.schedules[0])
    text = format_program(replace(apart.program, schedules=(apart.schedule,)))
    for good, bad in (
        ("%p.2 = aten.mul.Tensor(%s, %a)", "%p.2 = aten.mul.Tensor(%a, %s)"),
        ("%p.2 : grad f32[4] bytes 16", "%p.2 : grad f32[4] bytes 32"),
        ("%p.2 : grad f32[4] bytes 16", "%p.2 : grad f32[2, 2] bytes 16"),
        ("aten.mm.default(%h, %p.2)", "aten.mm.default(%h, %s)"),
        ("aten.t.default(%p.2)", "aten.alias.default(%p.2)"),
    ):
        assert good in text
        wrong = same_values(program, parse_program(text.replace(good, bad)))
        assert {d.code for d in wrong} == {"FB0876"}, bad


def test_a_view_stays_a_view_and_what_has_storage_keeps_it() -> None:
    """Else a plan's bytes leave out a tensor, or count storage that another name shares."""
    uncounted = (
        GATED.replace("  %s : act f32[4] bytes 16\n", "")
        .replace("  F2: fwd %s = aten.silu.default(%a) time 2us\n", "")
        .replace("  F3: fwd", "  %s = view of %a aten.silu.default(%a)\n  F3: fwd")
        .replace("F1; F2;", "F1;")
        .replace("free %s; ", "")
    )
    shared = (
        GATED.replace("  %g : grad", "  %pt : grad f32[4] bytes 16\n  %g : grad")
        .replace("  %pt = view of %p aten", "  F9: bwd %pt = aten")
        .replace("aten.t.default(%p)", "aten.t.default(%p) of F3")
        .replace("F3; B1;", "F3; F9; B1; free %pt;")
    )
    for text, says in ((uncounted, "%s is declared a view of %a"), (shared, "%pt in the storage")):
        with pytest.raises(FBError, match=f"FB0904.*{says}"):
            parse_program(text)


def test_a_view_of_many_views_is_no_recursion() -> None:
    chain = "".join(
        f"  %v{i + 1} = view of %p aten.t.default(%v{i})\n".replace("%v0)", "%p)")
        for i in range(1500)
    )
    text = GATED.replace("  %pt = view of %p aten.t.default(%p)\n", chain)
    program = parse_program(text.replace("(%dy, %pt)", "(%dy, %v1500)"))
    apart = unrolled(program, program.schedules[0])
    assert apart.program.graph.reads(apart.program.graph.cnode["B1"]) == ("dy", "p.2")
    assert same_values(program, apart.program) == ()
    fused = Fusing(program, program.schedules[0], lambda _: True, by_calls, always=True).done()
    assert same_values(program, fused.program) == ()


def test_a_new_name_is_none_inside_a_region() -> None:
    text = GATED.replace(
        "  F2: fwd %s = aten.silu.default(%a) time 2us\n"
        "  F3: fwd %p = aten.mul.Tensor(%s, %a) time 2us",
        "  F2: fwd %s, %p = fused(%a) {\n    %s = aten.silu.default(%a)\n"
        "    %p.2 = aten.mul.Tensor(%s, %a)\n    %p = aten.neg.default(%p.2)\n  } time 4us",
    )
    text = text.replace("F2; F3;", "F2;").replace("F3; B1", "free %s; F2; B1").replace("F3 ", "F2 ")
    program = parse_program(text)
    apart = unrolled(program, program.schedules[0])
    assert apart.program.graph.cnode["F2.2"].results == ("s.2", "p.2_")
    checked(program, apart.program, apart.schedule, 0)


def test_what_runs_as_it_was_keeps_its_names() -> None:
    """B2 runs twice, so it reads `%s` under one name, and F2 keeps its own."""
    text = GATED.replace("F3; B1; free %dy; B2;", "F3; B1; free %dy; free %s; F2; B2; free %h; B2;")
    program = parse_program(text)
    apart = unrolled(program, program.schedules[0])
    assert [c for c in cnodes(apart.schedule) if c.startswith("F2")] == ["F2", "F2"]
    assert "F3.2" in cnodes(apart.schedule)
    assert simulate(apart.program, apart.schedule) is not None


def checked(program: Program, made: Program, schedule: Schedule, seed: int) -> None:
    assert check_program(made) == (), seed
    assert same_values(program, made) == (), seed
    text = format_program(replace(made, schedules=(schedule,)))
    assert parse_program(text).graph == made.graph, seed
    opinion = check(text, schedule.name)
    assert isinstance(opinion, Accepted), (seed, opinion)


def test_random_plans_take_the_same_bytes_and_time() -> None:
    again = 0
    for seed in range(60):
        rng = Random(seed)
        program = random_program(rng)
        schedule = random_plan(rng, program, copy=0.3 * (seed % 2))
        try:
            before = simulate(program, schedule)
        except FBError:
            continue  # a rare order of repeated accumulations
        apart = unrolled(program, schedule)
        again += len(apart.program.graph.cnodes) - len(program.graph.cnodes)
        checked(program, apart.program, apart.schedule, seed)
        after = simulate(apart.program, apart.schedule)
        assert after.peak_bytes == before.peak_bytes, seed
        assert after.activation_peak_bytes == before.activation_peak_bytes, seed
        assert after.time_ns == before.time_ns, seed
    assert again > 5


def test_what_is_read_by_fusible_ones_alone_is_not_saved() -> None:
    program = parse_program(GATED)
    schedule = program.schedules[0]
    made = folded(program, schedule, lambda c: pointwise(c.call.op))
    steps = [s.cnode if isinstance(s, Compute) else f"free {s.anode}" for s in made.steps]
    # `%s` is freed after the forward; F2 runs again for F3, and once more for B2.
    assert steps.index("free s") < steps.index("L")
    assert [s for s in steps if s.startswith(("F2", "F3", "B"))] == [
        *("F2", "F3", "F2", "F3", "B1", "F2", "B2", "B3")
    ]
    assert simulate(program, made).peak_bytes <= simulate(program, schedule).peak_bytes
    apart = unrolled(program, made)
    fused = Fusing(
        apart.program, apart.schedule, lambda c: pointwise(c.call.op), by_calls, always=True
    ).done()
    assert cnodes(fused.schedule) == ["F1", "F2_F3", "F4", "L", "F2.2_F3.2", "B1", "F2.3_B2", "B3"]
    checked(program, fused.program, fused.schedule, 0)


def test_what_is_small_beside_what_it_is_made_of_is_held() -> None:
    """`%s` of one number is made of `%a`, of 16 and of 15."""
    for n, held in ((16, True), (15, False)):
        whole = f"f32[{n}] bytes {4 * n}"
        text = GATED.replace("f32[4] bytes 16", whole)
        text = text.replace(f"%s : act {whole}", "%s : act f32[1] bytes 4")
        program = parse_program(text)
        made = folded(program, program.schedules[0], lambda c: pointwise(c.call.op))
        steps = [s.cnode if isinstance(s, Compute) else f"free {s.anode}" for s in made.steps]
        assert (steps.index("free s") > steps.index("L")) is held


def test_a_loss_may_run_without_saving() -> None:
    """It has no phantoms, so a planner may say so."""
    program = parse_program(GATED.replace("free %p; L\n", "free %p; L nosave\n"))
    schedule = program.schedules[0]
    assert Compute("L", nosave=True) in schedule.steps
    made = folded(program, schedule, lambda c: pointwise(c.call.op))
    assert len(cnodes(made)) > len(cnodes(schedule))


def test_folding_never_takes_more() -> None:
    less = 0
    for seed in range(90):
        rng = Random(seed)
        program = random_program(rng)
        schedule = random_plan(rng, program)
        some = {c.name for c in program.graph.cnodes if rng.random() < 0.7}
        try:
            before = simulate(program, schedule)
        except FBError:
            continue
        made = folded(program, schedule, lambda c, some=some: c.name in some)  # type: ignore[misc]
        after = simulate(program, made)
        assert after.peak_bytes <= before.peak_bytes, seed
        assert after.activation_peak_bytes <= before.activation_peak_bytes, seed
        apart = unrolled(program, made)
        checked(program, apart.program, apart.schedule, seed)
        fused = Fusing(apart.program, apart.schedule, lambda _: True, by_calls, always=True).done()
        again = unrolled(fused.program, fused.schedule)
        checked(program, again.program, again.schedule, seed)
        less += cnodes(made) != cnodes(schedule)
    assert less > 5


# -- Computations that may be fused stand next to each other, at no cost in byte ------------------

APART = fbir("fusion/texts/apart")


def is_pointwise(c: CNode) -> bool:
    return ".mm." not in c.call.op and not c.is_loss


def order(size: int) -> list[str]:
    program = parse_program(APART.replace("SIZE", str(size)))
    steps = gathered(program, program.schedules[0], is_pointwise).steps
    return [s.cnode for s in steps if isinstance(s, Compute)]


def test_a_reader_moves_up_to_the_maker() -> None:
    assert order(4) == ["F1", "F2", "L", "B1", "B3", "B2", "B4"]


def test_unless_the_peak_would_rise() -> None:
    assert order(2048) == ["F1", "F2", "L", "B1", "B2", "B3", "B4"]


def test_random_plans_stay_valid_and_take_no_byte_more() -> None:
    moved = 0
    for seed in range(30):
        rng = Random(seed)
        program = random_program(rng)
        schedule = random_plan(rng, program, copy=0.1 * (seed % 2))
        some = {c.name for c in program.graph.cnodes if rng.random() < 0.6}
        try:
            before = simulate(program, schedule)
        except FBError:
            continue  # a rare order of repeated accumulations
        made = gathered(program, schedule, lambda c, some=some: c.name in some)  # type: ignore[misc]
        after = simulate(program, made)
        moved += made.steps != schedule.steps
        assert Counter(made.steps) == Counter(schedule.steps)
        assert after.peak_bytes <= before.peak_bytes
        assert after.activation_peak_bytes <= before.activation_peak_bytes
    assert moved > 3
