"""What the verifier does not take on trust: the graph's own statements, and time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from threading import Thread

import pytest

from helpers.programs.strategies import random_program, random_schedule
from helpers.verifier.step_text import GRAPH, PLAN, schedule
from remat_compile.ir.expr import Const, FloorDiv, Mul, Sym
from remat_compile.ir.graph import Call, CNode, Graph, Ref, Replay, View
from remat_compile.ir.program import Program, Symbol, Target
from remat_compile.ir.schedule import Compute, Free, Schedule
from remat_compile.verifier import (
    ProvenPlan,
    Refuted,
    Undecided,
    Verdict,
    certificate_sha256,
    check_certificate,
    smt,
    verify,
)
from remat_compile.verifier.arithmetic.walk import StepBytes, peaks, walk
from remat_compile.verifier.obligations.memory import Tally, encode_memory
from remat_compile.verifier.obligations.validity import encode_validity
from remat_compile.verifier.read.events import unfold
from remat_compile.verifier.read.sizes import Amounts, read_amounts, value
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import Encoding, Facts, machine

Change = Callable[[Graph], Graph]


def _cnode(name: str, change: Callable[[CNode], CNode]) -> Change:
    return lambda g: replace(g, cnodes=tuple(change(c) if c.name == name else c for c in g.cnodes))


def _size(name: str, size: object) -> Change:
    return lambda g: replace(
        g,
        anodes=tuple(replace(a, size=size) if a.name == name else a for a in g.anodes),  # type: ignore[arg-type]
    )


def _view(call: Call, base: str = "e", name: str = "ev") -> Change:
    return lambda g: replace(g, views=(View(name, base, call),))


CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "two aNodes of one name": (
        lambda g: replace(g, anodes=(*g.anodes, g.anodes[0])),
        "%x is declared twice",
    ),
    "two cNodes of one name": (
        lambda g: replace(g, cnodes=(*g.cnodes, g.cnodes[0])),
        "F1 is declared twice",
    ),
    "two losses": (_cnode("B5", lambda c: replace(c, phase="loss")), "2 cNodes of phase loss"),
    "a view named as an aNode": (
        _view(Call("aten.t.default", (Ref("e"),)), name="h"),
        "%h is declared twice",
    ),
    "a view of another storage than it reads": (
        _view(Call("aten.t.default", (Ref("d"),))),
        "says it is of %e but does not read it",
    ),
    "a view of nothing": (_view(Call("aten.t.default", (Ref("zz"),))), "reads %zz"),
    "a read of nothing": (
        _cnode("F3", lambda c: replace(c, call=Call("op", (Ref("nn"),)))),
        "F3 reads %nn, which is not declared",
    ),
    "a write of nothing": (_cnode("F5", lambda c: replace(c, writes=("yy",))), "F5 writes %yy"),
    "a write to a parameter": (
        _cnode("F5", lambda c: replace(c, writes=("w",))),
        "F5 writes %w, a param of the caller",
    ),
    "two writers": (
        _cnode("F5", lambda c: replace(c, writes=("y", "h"))),
        "%h is written by F1 and by F5",
    ),
    "a token that is no token": (
        _cnode("F5", lambda c: replace(c, token="de")),
        "%de is of kind grad",
    ),
    "a shared token": (_cnode("F5", lambda c: replace(c, token="r")), "%r is written by F3"),
    "a replay form that writes something else": (
        _cnode("F2", lambda c: replace(c, replay=Replay(("h",), Call("op", (Ref("x"),))))),
        "the replay form of F2 writes what F2 does not",
    ),
    "an accumulation of three": (
        _cnode("B1", lambda c: replace(c, call=Call("accumulate", (*c.call.args, Ref("de"))))),
        "B1 is not of the form",
    ),
    "an accumulation into another size": (_size("dw", Const(128)), "declared with 128 bytes"),
    "a size of less than nothing": (_size("h", Const(-1)), "the size of %h is -1 bytes"),
    "a size in an unknown symbol": (_size("h", Sym("s")), "the symbol s, which is not declared"),
    "a size divided by zero": (_size("h", FloorDiv(Const(1), 0)), "%h divides by zero"),
    "a workspace of less than nothing": (
        _cnode("F1", lambda c: replace(c, workspace=Mul((Const(-2), Const(8))))),
        "the workspace of F1 is -16 bytes",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradicting_statements_are_refused(name: str) -> None:
    change, words = CONTRADICTIONS[name]
    made, plan = schedule()
    broken = replace(made, graph=change(made.graph))
    answer = verify(broken, plan)
    assert isinstance(answer, Refuted), answer
    assert {d.code for d in answer.diagnostics} == {"FB0802"}
    assert any(words in d.message for d in answer.diagnostics), answer


def test_a_granularity_of_nothing_and_a_sample_out_of_range_are_refused() -> None:
    made, plan = schedule()
    for broken in (
        replace(made, target=Target(granularity_bytes=0)),
        replace(made, symbols=(Symbol("b", 1, 4, 5, 0, 0),)),
    ):
        answer = verify(broken, plan)
        assert isinstance(answer, Refuted)
        assert [d.code for d in answer.diagnostics] == ["FB0802"]


def test_a_view_that_reads_two_storages_needs_both() -> None:
    made, plan = schedule()
    call = Call("aten.expand_as.default", (Ref("e"), Ref("d")))
    answer = verify(replace(made, graph=_view(call)(made.graph)), plan)
    assert isinstance(answer, Refuted)
    assert answer.diagnostics[0].message.startswith('F5 (m.py:7 "head") reads %d (through %ev)')


def test_the_binding_is_demanded_even_where_a_kind_is_wrong() -> None:
    """A gradient that the binding promises must be there, whatever its aNode is called."""
    made, plan = schedule()
    grad = replace(made.binding.params[0], grad="g1")
    answer = verify(replace(made, binding=replace(made.binding, params=(grad,))), plan)
    assert isinstance(answer, Refuted)
    assert any(
        d.code == "FB0812" and 'the gradient of "w"' in d.message for d in answer.diagnostics
    )


@pytest.mark.parametrize("limit_s", [0.0, -1.0, 1e-9])
def test_no_time_is_undecided_and_never_proven(limit_s: float) -> None:
    answer = verify(*schedule(), time_limit_s=limit_s)
    assert isinstance(answer, Undecided)
    assert "time limit" in answer.why


def test_a_solver_that_gives_up_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """z3's own limit, met while it solves: `unknown` is neither of the two answers."""
    import z3

    monkeypatch.setattr(z3.Solver, "check", lambda self, *args: z3.unknown)
    monkeypatch.setattr(z3.Solver, "reason_unknown", lambda self: "canceled")
    answer = verify(*schedule())
    assert answer == Undecided("validity: z3: canceled")


def test_an_error_of_the_solver_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    import z3

    def fail(self: object, *args: object) -> None:
        raise z3.Z3Exception("out of memory")

    monkeypatch.setattr(z3.Solver, "check", fail)
    answer = verify(*schedule())
    assert answer == Undecided("validity: z3: out of memory")


def test_proofs_in_threads_do_not_meet() -> None:
    answers: list[Verdict] = []
    cases = [schedule(), schedule(PLAN.replace("free %c\n", ""))] * 4

    def work(made: Program, plan: Schedule) -> None:
        answers.append(verify(made, plan))

    threads = [Thread(target=work, args=case) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        sorted(type(answer).__name__ for answer in answers) == ["ProvenPlan"] * 4 + ["Refuted"] * 4
    )


def _encodings(made: Program, plan: Schedule) -> tuple[Encoding, Encoding]:
    statements = read_statements(made)
    assert isinstance(statements, Statements)
    events = unfold(statements, plan)
    assert isinstance(events, list)
    amounts = read_amounts(made, statements)
    assert isinstance(amounts, Amounts)
    bound = peaks(walk(statements, events, amounts.at(made.sample)))

    def memory(limit: StepBytes) -> Encoding:
        number = [value(form, made.sample) for form in amounts.forms]
        device, activation, host = map(Tally, limit.all)
        return encode_memory(
            statements,
            events,
            amounts,
            number,
            made.sample,
            lambda _: (device, activation),
            lambda _: host,
        )[0]

    short = memory(replace(bound, device=bound.device - 1))
    assert "sat" in {_check(part.text()) for part in short.parts if part.goals}
    return encode_validity(statements, events)[0], memory(bound)


def _check(script: str) -> str:
    import z3

    solver = z3.Solver()
    solver.from_string(script)
    return str(solver.check())


@pytest.mark.parametrize("late", [1, 500])
def test_a_closed_part_is_as_it_was(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed it takes goals still; a goal that is there already is not there twice."""
    monkeypatch.setattr(smt, "LATE_GOALS", late)
    encoding = Encoding()
    facts = Facts(encoding)
    fact = facts.change("alive", "a", "true")
    facts.claim("alive", "a", True)
    encoding.ask(f"(not (= {fact} true))")
    encoding.ask("first")
    part = encoding.parts[0]
    lines, goals = list(part.lines), list(part.goals)
    encoding.cut()
    assert (part.lines, list(part.goals)) == (lines, goals)
    assert facts.now("alive", "a") == fact
    assert list(part.goals) == goals
    facts.change("alive", "b", "true")
    encoding.cut()
    facts.now("alive", "b")
    assert list(encoding.parts[1].goals) == ["(not (= alive1_1 false))"]
    assert encoding.parts[2].lines == [
        machine(),
        "(declare-const alive1_1 Bool)(assert (= alive1_1 false))",
    ]


@pytest.mark.parametrize("lines", [20, 8000])
def test_no_proof_is_empty(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The definitions alone have a model, so that `unsat` is about the goal."""
    monkeypatch.setattr(smt, "PART_LINES", lines)
    for seed in range(8):
        made = random_program(Random(seed))
        plan = random_schedule(Random(seed), made)
        for encoding in _encodings(made, plan):
            assert encoding.parts[0].goals
            for part in encoding.parts:
                assert _check("\n".join(part.lines)) == "sat"
                assert not part.goals or _check(part.text()) == "unsat"


@pytest.mark.parametrize("lines", [20, 8000])
def test_every_constant_is_defined_once_and_before_its_use(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes the list of definitions have exactly one model."""
    monkeypatch.setattr(smt, "PART_LINES", lines)
    made, plan = schedule()
    for encoding in _encodings(made, plan):
        assert (len(encoding.parts) > 1) == (lines == 20)
        for part in encoding.parts:
            defined: set[str] = set()
            assert part.lines[0] == machine()
            functions = set(re.findall(r"\(define-fun (\S+) ", machine()))
            for line in part.lines[1:]:
                name, term = line.removeprefix("(declare-const ").split(" ", 1)
                body = term.split(f"(= {name} ", 1)[1]
                used = {word.strip("()") for word in body.split()}
                used = {word for word in used if word[:1].isalpha()} - {"true", "false"}
                assert used - functions <= defined
                assert name not in defined
                defined.add(name)


def test_the_certificate_is_about_the_graph_and_the_steps() -> None:
    made, plan = schedule()
    answer = verify(made, plan)
    assert isinstance(answer, ProvenPlan)
    proven = answer.proven
    assert proven.schedule == "plan"
    assert proven.prover.startswith("z3 ")
    assert proven.graph_sha256 == certificate_sha256(made, plan)
    held = replace(made, proven=(proven,))
    assert check_certificate(held, proven) is None

    renamed = replace(plan, planner="other")
    assert certificate_sha256(made, renamed) == proven.graph_sha256
    other_steps = [
        replace(plan, steps=plan.steps[1:]),
        replace(plan, steps=(Compute("F1"), *plan.steps[1:])),
        replace(plan, steps=(*plan.steps[:-1], Free("de"))),
    ]
    other_graph, _ = schedule(PLAN, GRAPH.replace("bytes 100", "bytes 101"))
    changed = [replace(held, schedules=(other,)) for other in other_steps]
    changed.append(replace(other_graph, proven=(proven,)))
    changed.append(replace(held, schedules=()))
    for program in changed:
        stale = check_certificate(program, proven)
        assert stale is not None
        assert stale.code == "FB0830"
