"""Obligation 3: what is read, drawn and handed over has the value of the unplanned graph."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest

from helpers.programs.strategies import random_program, random_schedule
from helpers.slow import default_only
from helpers.verifier.breaks import BREAKS
from helpers.verifier.step_text import GRAPH, PLAN, schedule
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Wait
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import Refuted, smt, verify
from remat_compile.verifier.explain.values import explain_wrong
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.obligations.values import WrongValues, encode_values, prove_values
from remat_compile.verifier.read.events import read_homes, unfold
from remat_compile.verifier.read.statements import Statements, read_statements
from remat_compile.verifier.smt import NoModel, OutOfTime

Term = object


def _prove(made: Program, plan: Schedule) -> NoModel | WrongValues | OutOfTime:
    statements = read_statements(made)
    assert isinstance(statements, Statements)
    statements = read_homes(statements, plan)
    assert isinstance(statements, Statements)
    events = unfold(statements, plan)
    assert isinstance(events, list)
    return prove_values(statements, events, Inquiry(60))


def _codes(made: Program, plan: Schedule) -> list[tuple[str, str]]:
    """Code of each wrong value and the step that it is shown at."""
    statements = read_statements(made)
    assert isinstance(statements, Statements)
    events = unfold(statements, plan)
    assert isinstance(events, list)
    wrong = prove_values(statements, events, Inquiry(60))
    assert isinstance(wrong, WrongValues), wrong
    diagnostics = explain_wrong(statements, plan, events, wrong)
    where = {
        step.span: str(getattr(step, "cnode", getattr(step, "anode", ""))) for step in plan.steps
    }
    return [(d.code, where.get(d.span, "end")) for d in diagnostics]


class _Interpreter:
    """A schedule run over terms, as nested tuples: the graph's own order gives the truth."""

    def __init__(self, made: Program):
        self.graph = made.graph
        self.binding = made.binding
        self.truth: dict[str, Term] = {}
        self.drawn: dict[str, Term] = {}
        self.stream: Term = "seed"
        self.store: dict[str, Term] = {
            a.name: ("caller", a.name)
            for a in made.graph.anodes
            if a.kind in ("input", "param", "buffer", "const", "opt_state")
        }
        self.truth |= self.store
        for c in made.graph.cnodes:
            if c.token is not None or c.is_loss:
                self.drawn[c.name] = self.truth[c.token or ""] = self.stream
                self.stream = ("after", c.name, self.stream)
            args = tuple(self.truth[name] for name in made.graph.reads(c))
            for name in c.results:
                self.truth[name] = (c.name, name, args, self.drawn.get(c.name))
        self.end, self.stream = self.stream, "seed"

    def right(self, plan: Schedule) -> bool:
        """Whether every read and draw is right, and everything is as it should be at the end."""
        runs: dict[str, int] = {}
        total = [s.cnode for s in plan.steps if isinstance(s, Compute)]
        host: dict[str, tuple[Term, int]] = {}
        nothing: tuple[Term, int] = ("nothing", 0)
        version: dict[str, int] = {}
        good, losses = True, 0
        for step in plan.steps:
            match step:
                case Free(name):
                    self.store.pop(name, None)
                case Offload(name):
                    host[name] = self.store.get(name, "nothing"), version.get(name, 0)
                case Prefetch(name):
                    term, made_at = host.get(name, nothing)
                    if made_at == version.get(name, 0):
                        self.store.setdefault(name, term)
                    else:
                        good = False
                case HostFree(name):
                    host.pop(name, None)
                case Wait():
                    pass
                case Compute(name, nosave):
                    c = self.graph.cnode[name]
                    n = runs[name] = runs.get(name, 0) + 1
                    reads = self.graph.reads(c, n)
                    good &= all(self.store.get(r, "nothing") == self.truth[r] for r in reads)
                    if name in self.drawn:
                        state = self.store.get(c.token or "", self.stream) if n > 1 else self.stream
                        good &= state == self.drawn[name]
                        if n == 1 or c.token not in self.store:
                            self.stream = ("after", name, self.stream)
                    for made in c.results_at(n):
                        # A wrong read was counted; what follows from it need not be.
                        self.store.setdefault(made, self.truth[made])
                    if c.token is not None and n == 1 and total.count(name) > 1:
                        self.store.setdefault(c.token, self.drawn[name])
                    if c.is_accumulate:
                        ended = self.graph.reads(c)[0]
                        self.store.pop(ended, None)
                        version[ended] = version.get(ended, 0) + 1
                    if nosave:
                        for made in c.results_at(n):
                            if self.graph.anode[made].kind == "phantom":
                                self.store.pop(made, None)
                    if c.is_loss:
                        losses += 1
                        for buffer in self.binding.buffers:
                            if buffer.update is not None:
                                self.store[buffer.name] = ("written back", buffer.name)
        kept = [a.name for a in self.graph.anodes if a.kind in ("output", "param_grad")]
        good &= all(self.store.get(name) == self.truth[name] for name in kept)
        return good and self.stream == self.end and losses == 1


@pytest.mark.parametrize("lines", [60, 8000])
@pytest.mark.parametrize("seeds", default_only([range(8), range(8, 20)], [range(8)]))
@pytest.mark.parametrize("name", ["", *BREAKS])
def test_z3_agrees_with_running_the_schedule_over_terms(
    name: str, seeds: range, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smt, "PART_LINES", lines)
    wrong = 0
    for seed in seeds:
        rng = Random(f"{name} {seed}")
        made = random_program(rng, size=6)
        plan = random_schedule(rng, made)
        steps = list(plan.steps)
        if name:
            BREAKS[name](rng, steps)
        plan = replace(plan, steps=tuple(steps))
        expected = _Interpreter(made).right(plan)
        answer = _prove(made, plan)
        assert isinstance(answer, NoModel if expected else WrongValues), (seed, answer)
        wrong += not expected
    assert (wrong == 0) == (name == "")


def test_a_wrong_value_is_told_where_it_arises_and_not_after() -> None:
    redrawn = PLAN.replace("free %r\n", "").replace("F3\nfree %n\n", "F3\nfree %r\nfree %n\n", 1)
    assert _codes(*schedule(redrawn)) == [("FB0841", "F3")]
    stale = PLAN.replace("F2\nfree %h\n", "", 1).replace("L\n", "L\nF2\nfree %h\n")
    assert ("FB0840", "F2") in _codes(*schedule(stale))
    undrawn = PLAN.replace("F4\n", "").replace("free %e\n", "").replace("free %q\n", "")
    assert ("FB0841", "L") in _codes(*schedule(undrawn))
    twice = PLAN.replace("L\nfree %nrm\n", "L\nL\nfree %nrm\n")
    assert ("FB0844", "end") in _codes(*schedule(twice))
    swapped = PLAN.replace("F5\nfree %e\nL\n", "L\nF5\nfree %e\n")
    assert ("FB0840", "L") in _codes(*schedule(swapped))


def test_the_order_of_a_sum_and_every_contribution_count() -> None:
    missing = PLAN.replace("B1\nfree %c\n", "free %c\nfree %g1\n")
    assert _codes(*schedule(missing)) == [("FB0843", "end")]
    # A graph that sums the other way round is another graph: the plan of it is no plan of this.
    other = GRAPH.replace("accumulate(%g1, %c)", "accumulate(%c, %g1)")
    made, plan = schedule(PLAN.replace("free %c", "free %g1"), other)
    assert isinstance(_prove(made, plan), NoModel)
    here, _ = schedule()
    assert isinstance(verify(here, plan), Refuted)


def test_a_replay_form_is_only_taken_to_be_equal_on_the_right_arguments() -> None:
    wrong = PLAN.replace("F1\nfree %hm\nF2\nfree %h\n", "F1\nfree %hm\nfree %h\nF2\n")
    assert ("FB0840", "F2") in _codes(*schedule(wrong))


COPIED = """\
F1 nosave
F2
free %h
F3
free %dm
free %n
F4
offload %d
F5
free %e
wait %d
free %d
L
free %nrm
B5
free %dy
F1
free %hm
F2
free %h
F3
free %r
prefetch %d
wait %d
hostfree %d
F4
free %d
free %q
B3
free %de
free %dm
B3b
free %n
free %e
B1
free %c
"""


def test_a_host_copy_carries_the_value() -> None:
    plan = COPIED.replace("F3\nfree %r\nprefetch %d\n", "F3\nfree %d\nfree %r\nprefetch %d\n")
    assert isinstance(_prove(*schedule(plan)), NoModel)
    assert not isinstance(verify(*schedule(plan)), Refuted), verify(*schedule(plan))
    lost = plan.replace("offload %d\nF5", "F5")
    assert ("FB0840", "F4") in _codes(*schedule(lost))


def test_a_host_copy_from_before_a_sum_is_an_older_version() -> None:
    plan = PLAN.replace("B3b\n", "B3b\noffload %g1\nwait %g1\n").replace(
        "B1\nfree %c\n", "B1\nfree %c\nprefetch %g1\nwait %g1\nhostfree %g1\nfree %g1\n"
    )
    assert ("FB0842", "g1") in _codes(*schedule(plan))


def test_definitions_and_assumptions_have_a_model() -> None:
    """So that `unsat` is about the clauses; the axioms of replay forms are among them."""
    import z3

    for seed in range(6):
        rng = Random(seed)
        made = random_program(rng, size=6)
        plan = random_schedule(rng, made)
        statements = read_statements(made)
        assert isinstance(statements, Statements)
        events = unfold(statements, plan)
        assert isinstance(events, list)
        for part in encode_values(statements, events).encoding.parts:
            solver = z3.Solver()
            solver.from_string("".join(part.lines))
            assert str(solver.check()) == "sat"


def test_what_a_part_assumes_of_contents_an_earlier_part_has_among_its_goals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the caller holds, and the state of the stream before the first draw, are given."""
    monkeypatch.setattr(smt, "PART_LINES", 12)
    assumed = 0
    for seed in range(20):
        rng = Random(seed)
        made = random_program(rng, size=8)
        plan = random_schedule(rng, made)
        statements = read_statements(made)
        assert isinstance(statements, Statements)
        events = unfold(statements, plan)
        assert isinstance(events, list)
        asked: set[str] = set()
        given = len(statements.caller) + 1
        for part in encode_values(statements, events).encoding.parts:
            taken = {
                match[1]
                for line in part.lines
                if (match := re.fullmatch(r"\(assert \(= v\d+ ([TR]\d+)\)\)", line))
            }
            given -= len(taken - asked)
            assumed += len(taken & asked)
            asked |= taken  # given once, or asked before
            asked |= {goal.split()[-1].rstrip(")") for goal in part.goals}
        assert given >= 0, seed
    assert assumed > 100


def test_a_tiny_limit_decides_nothing() -> None:
    made, plan = schedule()
    statements = read_statements(made)
    assert isinstance(statements, Statements)
    events = unfold(statements, plan)
    assert isinstance(events, list)
    assert isinstance(prove_values(statements, events, Inquiry(1e-9)), OutOfTime)


def test_reads_the_graphs_of_the_conformance_files() -> None:
    from pathlib import Path

    folder = Path(__file__).parents[2] / "spec" / "conformance" / "valid"
    count = 0
    for path in sorted(folder.glob("*.fbir")):
        made = parse_program(path.read_text(encoding="utf-8"), str(path))
        for plan in made.schedules:
            assert isinstance(_prove(made, plan), NoModel), path.name
            count += 1
    assert count > 3
