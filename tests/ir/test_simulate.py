"""The simulator, byte for byte, against figures worked out by hand in the comments."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from helpers.paths import fbir
from helpers.programs.strategies import random_program, random_schedule, scheduled
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import evaluate
from remat_compile.ir.graph import CALLER_KINDS
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Free, Schedule
from remat_compile.ir.semantics.simulate import Trace, simulate
from remat_compile.ir.text.parser import parse_program

CHAIN = fbir("ir/texts/chain")
REPLAY = "replay { %b = again(%a) workspace 2 time 9ns }"


def program(
    steps: str, *, granularity: int = 1, grads: str = "fresh", replay: str = REPLAY
) -> Program:
    text = CHAIN.replace("GRANULARITY", str(granularity)).replace("GRADS", grads)
    return parse_program(text.replace("REPLAY", replay).replace("STEPS", steps))


def run(steps: str, *, granularity: int = 1, grads: str = "fresh") -> Trace:
    made = program(steps, granularity=granularity, grads=grads)
    return simulate(made, made.schedules[0])


def refused(steps: str) -> list[str]:
    with pytest.raises(FBError) as error:
        run(steps)
    return [d.code for d in error.value.diagnostics]


HELD = 100 + 10 + 1  # %x, %w, %rm
ALL = "F1; F2; free %a; F3; L; free %n; B1; free %dy; free %m; B2; free %b; B3; free %c"


def test_each_computation_once() -> None:
    trace = run(ALL)
    assert [bytes_ - HELD for bytes_ in trace.during] == [
        40 + 7 + 5,  # F1: results and workspace; no token, F1 runs once
        47 + 20 + 1 + 6,  # F2
        68,  # free %a counts what is there before it
        28 + 4,  # F3: %m, %b, %n and the new %y
        32 + 4 + 3,  # L
        36,  # free %n
        35 + 10,  # B1
        45,  # free %dy
        41,  # free %m
        34 + 10,  # B2: %b, %y, %g1 and the new %c
        44,  # free %b
        24 + 1,  # B3 takes no memory but its workspace
        24,  # free %c
    ]
    assert [bytes_ - HELD for bytes_ in trace.after] == [
        47, 68, 28, 32, 36, 35, 45, 41, 34, 44, 24, 24, 14,
    ]  # fmt: skip
    assert trace.peak_bytes == HELD + 74
    assert trace.peak_step == 1
    assert trace.time_ns == 10 + 20 + 30 + 40 + 50 + 60 + 70
    assert trace.loss_step == 4


def test_activation_bytes_leave_out_the_caller_and_parameter_gradients() -> None:
    trace = run(ALL)
    assert trace.activation_peak_bytes == 74
    # After B3 %g1 counts as %dw, which is the gradient of a parameter: %y and %c are left.
    assert trace.during_activation[-2:] == (24 + 1, 14)


def test_granularity_rounds_every_anode_and_workspace() -> None:
    trace = run(ALL, granularity=16)
    held = 112 + 16 + 16
    assert trace.during[0] == held + 48 + 16 + 16  # %a 40, %m 7, workspace 5
    assert trace.during[1] == held + 48 + 16 + 32 + 16 + 16  # with %b 20, %n 1, workspace 6


def test_existing_gradients_count_under_accumulate() -> None:
    assert run(ALL, grads="accumulate").peak_bytes == run(ALL).peak_bytes + 10


def test_token_exists_from_the_first_to_the_last_execution() -> None:
    steps = (
        "F1 nosave; F2; free %a; F3; L; free %n; F1; free %a; free %r;"
        "B1; free %dy; free %m; B2; free %b; B3; free %c"
    )
    trace = run(steps)
    assert trace.during[0] - HELD == 40 + 7 + 30 + 5  # results, token, workspace
    assert trace.after[0] - HELD == 40 + 30  # `nosave` has freed %m
    assert trace.during[6] - HELD == 30 + 20 + 4 + 4 + 40 + 7 + 5  # %r, %b, %y, %dy; the replay
    assert trace.after[8] - HELD == 20 + 4 + 4 + 7
    assert trace.executions["F1"] == 2
    assert trace.time_ns == 10 + 20 + 30 + 40 + 10 + 50 + 60 + 70


def test_replay_of_what_is_alive_is_computed_and_dropped() -> None:
    # %m is alive when F1 runs again: its 7 bytes count once more during that step only.
    steps = (
        "F1; F2; free %a; F3; L; free %n; F1; free %a; free %r;"
        "B1; free %dy; free %m; B2; free %b; B3; free %c"
    )
    trace = run(steps)
    before = 7 + 30 + 20 + 4 + 4  # %m, %r, %b, %y, %dy
    assert trace.during[6] - HELD == before + 40 + 7 + 5
    assert trace.after[6] - HELD == before + 40
    assert ("(dropped m)", 7) in trace.live_at(6)


def test_nosave_of_a_replay_leaves_no_phantom() -> None:
    # The phantom that was alive before goes too: after `nosave` none of the cNode's is alive.
    assert refused(
        "F1; F2; free %a; F3; L; free %n; F1 nosave; free %a; free %r;"
        "B1; free %dy; B2; free %b; B3; free %c"
    ) == ["FB0301"]


def test_replay_form_has_its_own_reads_writes_workspace_and_time() -> None:
    steps = (
        "F1; F2; F3; free %b; L; free %n; B1; free %dy; free %m; F2; free %a;"
        "B2; free %b; B3; free %c"
    )
    trace = run(steps)
    before = 40 + 4 + 10  # %a, %y, %g1
    assert trace.during[9] - HELD == before + 20 + 2  # no new %n; workspace 2, not 6
    assert trace.after[9] - HELD == before + 20
    assert trace.time_ns == 10 + 20 + 30 + 40 + 50 + 9 + 60 + 70


def test_accumulate_ends_one_name_and_begins_the_other() -> None:
    trace = run(ALL)
    alive = dict(trace.live_at(12))
    assert "g1" not in alive
    assert alive["dw"] == 10
    again = (
        "F1; F2; free %a; F3; L; free %n; B1; B2; B3; free %dw; B1; B3;"
        "free %dy; free %m; free %b; free %c"
    )
    assert run(again).executions["B3"] == 2


def test_accumulate_needs_its_first_operand_made_again() -> None:
    start = "F1; F2; free %a; F3; L; free %n; B1; B2; B3;"
    end = "free %dy; free %m; free %b; free %c"
    assert refused(f"{start} free %dw; B3; {end}") == ["FB0301"]
    assert refused(f"{start} B1; B3; {end}") == ["FB0304"]
    assert refused(f"{start} B2; {end}") == ["FB0301"]


def test_buffers_are_written_back_at_the_loss() -> None:
    early = "F1; F2; F2; free %a; F3; L; free %n; B1; free %dy; free %m; B2; free %b; B3; free %c"
    late = "F1; F2; F3; free %b; L; free %n; B1; free %dy; free %m; F2; free %n; free %a;"
    early_program = program(early, replay="")
    trace = simulate(early_program, early_program.schedules[0])
    assert trace.executions["F2"] == 2
    late_program = program(f"{late} B2; free %b; B3; free %c", replay="")
    with pytest.raises(FBError) as error:
        simulate(late_program, late_program.schedules[0])
    assert [d.code for d in error.value.diagnostics] == ["FB0303"]


def test_pending_is_freed_after_the_loss_and_not_before() -> None:
    assert refused(ALL.replace("F3; L; free %n", "free %n; F3; L")) == ["FB0301"]
    assert refused(ALL.replace("free %n; ", "")) == ["FB0306"]


def test_what_must_run_and_in_which_order() -> None:
    assert refused(ALL.replace("L; ", "L; L; ")) == ["FB0309"]
    late = "F2; F3; L; F1; free %n; free %a; B1; free %dy; free %m; B2; free %b; B3; free %c"
    assert refused(late) == ["FB0301", "FB0311"]


def test_all_violations_are_reported_with_the_places_they_rest_on() -> None:
    made = program(ALL.replace("B1;", "free %m; B1;"))
    with pytest.raises(FBError) as error:
        simulate(made, made.schedules[0])
    dead, freed_twice = error.value.diagnostics
    assert (dead.code, freed_twice.code) == ("FB0301", "FB0302")
    assert dead.span is not None
    (note,) = dead.notes
    assert note.span is not None
    assert (note.span.line, note.span.column) == (dead.span.line, dead.span.column - 9)


def test_sizes_at_other_values_of_the_symbols() -> None:
    made = parse_program("""fbir 1
sym b in [1, 64] = 8 of arg 0 dim 0
graph @g {
  %x : input f32[b] bytes 4*b
  %y : output f32[b] bytes 4*b
  %dy : tangent f32[b] bytes 4*b
  F1: fwd %y = relu(%x) workspace b
  L: loss %dy = loss(%y)
}
schedule @p { F1; L; free %dy }
""")
    plan = made.schedules[0]
    assert simulate(made, plan).peak_bytes == 96
    assert simulate(made, plan, {"b": 10}).peak_bytes == 120


@given(scheduled())
def test_books_balance(drawn: tuple[Program, Schedule]) -> None:
    """Bytes during a step are those of its owners; after the last step only kept ones live."""
    made, schedule = drawn
    trace = simulate(made, schedule)
    for step, during in enumerate(trace.during):
        assert sum(size for _, size in trace.live_at(step)) == during
    unit = made.target.granularity_bytes
    kept = [a for a in made.graph.anodes if a.kind in CALLER_KINDS | {"output", "param_grad"}]
    env = made.sample
    ended = sum(-(-evaluate(a.size, env) // unit) * unit for a in kept)
    if made.binding.grads == "accumulate":
        ended += sum(
            -(-evaluate(made.graph.anode[p.name].size, env) // unit) * unit
            for p in made.binding.params
            if p.grad is not None
        )
    assert trace.after[-1] == ended
    assert trace.peak_bytes >= max(trace.after)


def one_free(rng: Random) -> tuple[Program, Schedule, int]:
    """A program, a valid schedule of it, and the index of a `free` step."""
    while True:
        made = random_program(rng)
        schedule = random_schedule(rng, made)
        frees = [i for i, step in enumerate(schedule.steps) if isinstance(step, Free)]
        if frees:
            return made, schedule, rng.choice(frees)


@pytest.mark.parametrize("seed", range(40))
def test_a_repeated_free_is_refused(seed: int) -> None:
    made, schedule, at = one_free(Random(seed))
    steps = (*schedule.steps[: at + 1], *schedule.steps[at:])
    with pytest.raises(FBError) as error:
        simulate(made, Schedule("p", "", steps))
    assert [d.code for d in error.value.diagnostics] == ["FB0302"]


def test_a_free_left_out_is_refused_or_costs_memory() -> None:
    valid = 0
    for seed in range(60):
        made, schedule, at = one_free(Random(seed))
        steps = (*schedule.steps[:at], *schedule.steps[at + 1 :])
        try:
            peak = simulate(made, Schedule("p", "", steps)).peak_bytes
        except FBError as error:
            codes = {d.code for d in error.diagnostics}
        else:
            # It is made again (and dropped), and freed later.
            codes = set()
            valid += peak >= simulate(made, schedule).peak_bytes
        assert codes <= {"FB0302", "FB0304", "FB0306"}
    assert 0 < valid < 60
