"""What reading, planning and proving let go of, which on 10^6 computations is gigabytes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from helpers.planners.graphs import transformer
from remat_compile.ir.graph import Graph
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.text.parser import read_quickly
from remat_compile.ir.text.printer import format_program
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.eviction.keep import keep_what_fits
from remat_compile.planners.eviction.walk import Heuristic, Scope, Walk
from remat_compile.planners.instance import Instance, Order
from remat_compile.plans import run_planner
from remat_compile.plans.budget import Baseline
from remat_compile.plans.run_planner import Attempt, Phases


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is left then is left by a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind: str) -> int:
    return sum(type(one).__name__ == kind for one in gc.get_objects())


def walked(limit: float = 0.5) -> tuple[Instance, Order, int]:
    """An order of GPT-2 with recomputations, under a share of its activations."""
    instance = Instance.of(transformer(3), "activation")
    most = int(limit * instance.peak(instance.capture))
    order = Walk(Scope(instance, False), most, Heuristic(), 10**6).run()
    return instance, order, int(1.2 * most)


def test_the_pass_that_keeps_what_fits_leaves_no_cycle(no_collector: None) -> None:
    instance, order, limit = walked()
    assert len(keep_what_fits(instance, order, limit)) < len(order)
    assert alive("_InstanceLife") == 0


def test_the_reader_of_regular_lines_goes_with_what_it_remembers(no_collector: None) -> None:
    text = format_program(transformer(2))
    assert isinstance(read_quickly(text), Program)
    assert alive("_LineReader") == 0


def test_a_graph_forgets_its_look_ups_and_finds_them_again() -> None:
    graph = transformer(2).graph
    before = {c.name: (graph.reads(c), graph.reads(c, 2)) for c in graph.cnodes}
    readers, writer, storage = graph.readers, graph.writer, graph.storage
    graph.forget()
    assert set(vars(graph)) == {"name", "anodes", "views", "cnodes"}
    assert {c.name: (graph.reads(c), graph.reads(c, 2)) for c in graph.cnodes} == before
    assert (graph.readers, graph.writer, graph.storage) == (readers, writer, storage)


def test_a_large_graph_is_proven_without_its_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a small one are kept: many plans of it may be proven."""
    program = transformer(2)
    budget = Budget(Baseline.of(program).activation_peak_bytes // 2, "activation")
    schedule = getattr(Dtr(rounds=0).plan(program, budget), "schedule")  # noqa: B009
    forgotten: list[Graph] = []
    monkeypatch.setattr(Graph, "forget", lambda graph: forgotten.append(graph))
    attempt = Attempt(program, Dtr(rounds=0), budget, 10, Phases())
    few = attempt.prove(schedule, None, "dtr")
    assert forgotten == []
    monkeypatch.setattr(run_planner, "LARGE", len(program.graph.cnodes))
    again = Attempt(program, Dtr(rounds=0), budget, 10, Phases()).prove(schedule, None, "dtr")
    assert forgotten == [program.graph]
    bound_ns = few.lower_bound_ns  # how far it is looked for depends on the clock
    assert replace(again, lower_bound_ns=bound_ns) == few
    assert 0 < again.activation_peak_bytes <= budget.bytes
