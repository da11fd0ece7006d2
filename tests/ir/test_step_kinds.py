"""Every kind of step is known in every place that CONTRIBUTING's recipe names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import remat_compile.ir.text
from remat_compile.backends.jax.emit.order import numbered
from remat_compile.backends.torch.code.expressions import Expressions
from remat_compile.backends.torch.code.function import FunctionBody, Progress
from remat_compile.backends.torch.runtime import host_layout
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import (
    STORAGE_STEPS,
    Compute,
    ElementaryStep,
    Free,
    Home,
    Schedule,
    Step,
    StorageStep,
)
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.ir.text.printer import format_program, format_step
from remat_compile.ir.text.syntax import RESERVED_STEPS
from remat_compile.verifier import ProvenPlan, verify
from remat_compile.verifier.check import Accepted, check
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.statements import Statements, read_statements

ROOT = Path(__file__).parents[2]

# A new kind of step joins this plan.
PLAN = """fbir 1
target "t" { granularity 8 d2h 1GB/s h2d 500MB/s }
graph @g {
  %x : input u8[16] bytes 16
  %w : param u8[40] bytes 40
  %a : act u8[100] bytes 100
  %y : output u8[4] bytes 4
  %dy : tangent u8[4] bytes 4
  %gx : output u8[16] bytes 16
  F1: fwd %a = ns.f(%x, %w) time 10ns
  F2: fwd %y = ns.g(%a) time 30ns
  L: loss %dy = loss(%y)
  B1: bwd %gx = ns.df(%dy, %a) time 40ns
}
bind {
  arg "x" = %x grad %gx
  param "w" = %w
  result %y tangent %dy
}
schedule @plan {
  on host %w; prefetch %w; wait %w; F1; free %w; offload %a; F2; wait %a; free %a; L
  prefetch %a; wait %a; hostfree %a; B1; free %a; free %dy
}
"""

KINDS: dict[str, type[StorageStep]] = {kind.word: kind for kind in get_args(StorageStep)}


def planned() -> tuple[Program, Schedule]:
    program = parse_program(PLAN)
    return program, program.schedules[0]


def elementary(schedule: Schedule) -> list[Step]:
    """The steps that do something, in their parts."""
    return [step for step in schedule.elementary.steps if not isinstance(step, Home)]


def test_the_plan_has_every_kind() -> None:
    _, schedule = planned()
    assert {type(step) for step in schedule.steps} == {Compute, *KINDS.values()}


def test_each_kind_is_declared_once_and_does_something() -> None:
    assert STORAGE_STEPS == KINDS
    assert len(KINDS) == len(get_args(StorageStep))
    for kind in KINDS.values():
        assert kind.__doc__
        does = kind.copies is not None or kind.waits or kind.gives_back is not None
        assert does or kind is Home


def test_elementary_steps_are_their_own_parts() -> None:
    for kind in KINDS.values():
        parts = kind("a").parts()
        assert all(isinstance(part, ElementaryStep) for part in parts)
        assert (parts == (kind("a"),)) == (kind in get_args(ElementaryStep))


def test_the_grammar_has_the_words() -> None:
    grammar = Path(remat_compile.ir.text.__file__).with_name("fbir.lark").read_text("utf-8")
    match = re.search(r"^ON_STORAGE\.2: /\(\?:(.+)\)\(", grammar, re.MULTILINE)
    assert match is not None
    assert match[1].replace(r"[ \t]+", " ").split("|") == list(KINDS)
    assert set(KINDS) <= RESERVED_STEPS
    explained = (ROOT / "spec" / "grammar.md").read_text("utf-8")
    assert all(f"`{word}`" in explained for word in RESERVED_STEPS)


@pytest.mark.parametrize("alone", [True, False])
def test_both_readers_read_what_the_printer_writes(alone: bool) -> None:
    program, schedule = planned()
    again = read_syntax(format_program(program), by_grammar_alone=alone)
    assert again == program
    words = [
        format_step(step).rpartition(" ")[0] for step in schedule.steps if hasattr(step, "anode")
    ]
    assert set(words) == set(KINDS)


@pytest.mark.parametrize("word", KINDS)
def test_an_unknown_storage_is_refused(word: str) -> None:
    with pytest.raises(FBError) as refused:
        parse_program(PLAN.replace("free %dy", f"free %dy; {word} %nothing"))
    assert [d.code for d in refused.value.diagnostics] == ["FB0308"]


def test_a_schedule_and_its_elementary_one_take_the_same() -> None:
    program, schedule = planned()
    whole, parts = simulate(program, schedule), simulate(program, schedule.elementary)
    assert whole.peak_bytes == parts.peak_bytes
    assert whole.host_peak_bytes == parts.host_peak_bytes
    assert whole.time_ns == parts.time_ns


def test_the_verifier_reads_the_same_on_its_own() -> None:
    program, schedule = planned()
    statements = read_statements(program)
    assert isinstance(statements, Statements)
    events = unfold(statements, schedule)
    assert [getattr(event, "step", None) for event in events] == elementary(schedule)


def test_solver_and_independent_checker_accept_the_plan() -> None:
    program, schedule = planned()
    trace = simulate(program, schedule)
    proof = verify(program, schedule)
    assert isinstance(proof, ProvenPlan), proof
    assert proof.bounds[0].device_bytes == trace.peak_bytes
    assert isinstance(check(PLAN, "plan"), Accepted)


def test_backends_express_each_kind_or_refuse_it() -> None:
    program, schedule = planned()
    steps = elementary(schedule)
    assert [now.step for now in numbered(program.graph, steps)] == steps
    body = FunctionBody(program, Expressions(program), Progress({}))
    body.steps(step for step in steps if not isinstance(step, Compute))
    said = re.findall(r"copies\.(\w+)\('[aw]'", body.text().replace('"', "'"))
    assert said == [s.word for s in steps if not isinstance(s, Compute | Free)]
    trace = simulate(program, schedule)
    at_home = sum(trace.anode_bytes[name] for name in schedule.homes)
    assert host_layout(program, schedule).size_bytes + at_home == trace.host_peak_bytes
