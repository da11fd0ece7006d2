"""Text forms, options and entry points of planners."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from subprocess import run
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.clock import HANGS_S
from helpers.planners.graphs import chain, transformer
from helpers.planners.plugin import install_module
from remat_compile.ir.diagnostics import Diagnostic, FBError
from remat_compile.ir.graph import Graph
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.text.parser import read_quickly
from remat_compile.ir.text.printer import format_program
from remat_compile.planners import (
    Feasible,
    Infeasible,
    Optimal,
    Planner,
    PlannerInfo,
    PlanResult,
    available,
    format_planner,
    parse_planner,
    registry,
)
from remat_compile.planners.auto import Auto
from remat_compile.planners.baselines.chen import Chen
from remat_compile.planners.baselines.periodic import Periodic
from remat_compile.planners.baselines.store_all import StoreAll
from remat_compile.planners.contract import Progress
from remat_compile.planners.eviction.dtr import Dtr
from remat_compile.planners.eviction.keep import keep_what_fits
from remat_compile.planners.eviction.walk import Heuristic, Scope, Walk
from remat_compile.planners.instance import Instance, Order
from remat_compile.planners.results import check_budget
from remat_compile.plans import run_planner
from remat_compile.plans.budget import Baseline
from remat_compile.plans.run_planner import Attempt, Phases


@dataclass(frozen=True)
class Toy:
    """A plug-in with an option of every type."""

    name: ClassVar[str] = "toy"
    ratio: float = 0.5
    label: str = "plain"
    eager: bool = False
    inner: Planner = field(default_factory=StoreAll)

    def plan(
        self,
        program: Program,
        budget: Budget | None,
        *,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> PlanResult:
        return self.inner.plan(program, budget, time_limit_s=time_limit_s, progress=progress)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registers `toy` and two plug-ins that do not load."""
    more = (
        PlannerInfo("toy", f"{__name__}:Toy", "toys"),
        PlannerInfo("gone", "no_such_module:Planner", "toys"),
        PlannerInfo("odd", "remat_compile.ir.graph:Graph", "toys"),
    )
    known = registry.registered()
    monkeypatch.setattr(registry, "registered", lambda: (*known, *more))
    return iter(())


def refusals(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(FBError) as caught:
        parse_planner(text)
    return caught.value.diagnostics


def test_the_planners_of_the_package_are_registered() -> None:
    assert {"store-all", "periodic", "chen", "dtr", "auto"} <= set(available())
    for name, info in available().items():
        if info.package == "remat-compile":
            assert info.load().name == name
            assert isinstance(info.load()(), Planner)


def test_what_is_installed_or_removed_meanwhile_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "late" not in available()
    install_module(tmp_path, "late_plugin", "", "late = late_plugin:Late")
    assert available()["late"].target == "late_plugin:Late"
    rmtree(tmp_path / "late_plugin-1.dist-info")
    assert "late" not in available()


def test_listing_planners_imports_nothing_heavy() -> None:
    code = (
        "import sys, remat_compile.planners as p; p.available(); p.parse_planner('dtr');"
        "print([m for m in ('torch', 'onnx', 'jax', 'z3', 'highspy', 'lark') if m in sys.modules])"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "planner"),
    [
        ("store-all", StoreAll()),
        ("periodic", Periodic()),
        ("periodic{segments=4}", Periodic(4)),
        ("periodic{segments=4, by=memory}", Periodic(4, "memory")),
        ("chen", Chen()),
        ("dtr{scope=all, rounds=7, seed=-1}", Dtr("all", 7, -1)),
        ("auto{planners=[dtr{rounds=0}, chen]}", Auto((Dtr(rounds=0), Chen()))),
    ],
)
def test_text_round_trips(text: str, planner: Planner) -> None:
    assert parse_planner(text) == planner
    assert format_planner(planner) == text


def test_spaces_braces_and_defaults_are_free() -> None:
    assert parse_planner(" periodic { segments = 4 , by = none } ") == Periodic(4)
    assert parse_planner("store-all{}") == StoreAll()
    assert parse_planner("auto{planners=[]}") == Auto()


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.booleans(),
    st.integers(1, 99) | st.none(),
)
def test_every_option_type_round_trips(
    ratio: float, label: str, eager: bool, segments: int | None
) -> None:
    planner = Toy(ratio, label, eager, Periodic(segments))
    text = format_planner(planner)
    with pytest.MonkeyPatch.context() as patch:
        toy = PlannerInfo("toy", f"{__name__}:Toy", "toys")
        known = registry.registered()
        patch.setattr(registry, "registered", lambda: (*known, toy))
        assert parse_planner(text) == planner


def test_unknown_planner_shows_the_nearest_name() -> None:
    (diagnostic,) = refusals("perodic{segments=4}")
    assert diagnostic.code == "FB0401"
    assert diagnostic.span is not None
    assert (diagnostic.span.line, diagnostic.span.column, diagnostic.span.end_column) == (1, 1, 8)
    assert 'Did you mean "periodic"?' in diagnostic.message


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("periodic{", 10),
        ("periodic{segments}", 18),
        ("periodic{segments=}", 19),
        ("periodic{segments=4", 20),
        ("periodic{segments=4,}", 21),
        ("periodic{segments=4} dtr", 22),
        ("periodic{segments=4x}", 19),
        ("periodic{segments=?}", 19),
        ("auto{planners=[dtr chen]}", 20),
        ('dtr{scope="\\q"}', 11),
        (f"rotor{{slots={'9' * 5000}}}", 13),
    ],
)
def test_unreadable_text(text: str, column: int) -> None:
    (diagnostic,) = refusals(text)
    assert diagnostic.code == "FB0402"
    assert diagnostic.span is not None
    assert diagnostic.span.column == column


def test_all_wrong_options_are_reported_at_once() -> None:
    diagnostics = refusals("periodic{segment=4, segments=many, by=memory, by=count}")
    assert [d.code for d in diagnostics] == ["FB0403", "FB0404", "FB0405"]
    assert [d.span.column for d in diagnostics if d.span] == [10, 21, 47]
    assert 'Did you mean "segments"?' in diagnostics[0].message
    assert "must be an integer or none, not many" in diagnostics[1].message


def test_values_out_of_range() -> None:
    refused = refusals("dtr{rounds=-1, scope=backward}")
    assert [d.code for d in refused] == ["FB0404", "FB0404"]
    with pytest.raises(FBError) as caught:
        Periodic(segments=0)
    assert caught.value.diagnostics[0].code == "FB0404"


def test_errors_inside_a_list_of_planners_keep_their_place() -> None:
    (diagnostic,) = refusals("auto{planners=[chen, dtrr]}")
    assert diagnostic.code == "FB0401"
    assert diagnostic.span is not None
    assert diagnostic.span.column == 22


@pytest.mark.usefixtures("plugins")
def test_a_plugin_that_does_not_load_is_named_and_stops_nobody() -> None:
    assert {"toy", "gone", "odd"} <= set(available())
    for name in ("gone", "odd"):
        (diagnostic,) = refusals(name)
        assert diagnostic.code == "FB0406"
        assert name in diagnostic.message
    lines: list[str] = []
    result = parse_planner("auto").plan(
        chain(6), Budget(700, "activation"), time_limit_s=HANGS_S, progress=lines.append
    )
    assert isinstance(result, Feasible | Optimal)
    assert any("gone left out" in line for line in lines)


@pytest.mark.parametrize("planner", sorted(available()))
@pytest.mark.parametrize("amount", [0, -5])
def test_a_budget_must_be_positive(planner: str, amount: int) -> None:
    with pytest.raises(FBError) as caught:
        parse_planner(planner).plan(chain(3), Budget(amount))
    assert [d.code for d in caught.value.diagnostics] == ["FB0408"]


def test_a_refusal_says_what_would_fit_and_what_holds_it() -> None:
    result = parse_planner("dtr").plan(chain(8), Budget(10))
    assert isinstance(result, Infeasible)
    assert result.why.code == "FB0407"
    assert result.min_budget is not None
    assert str(result.min_budget.bytes) in result.why.message
    notes = "\n".join(note.message for note in result.why.notes)
    assert "model.py:" in notes
    assert f"less than {result.floor_bytes} bytes" in notes


def test_no_plain_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parse_planner("auto").plan(chain(6), Budget(2000))
    assert list(tmp_path.iterdir()) == []


def test_auto_says_who_won_and_asks_for_acceptance() -> None:
    program = chain(8)
    budget = Budget(820, "activation")
    best = Auto().plan(program, budget, time_limit_s=HANGS_S)
    assert not isinstance(best, Infeasible)
    assert best.schedule is not None
    winner = best.schedule.planner
    assert parse_planner(winner).name in available()
    other = Auto().plan(program, budget, time_limit_s=HANGS_S, accept=lambda s: s.planner != winner)
    assert not isinstance(other, Infeasible)
    assert other.schedule is not None
    assert other.schedule.planner != winner


def test_a_host_budget_is_not_for_planners() -> None:
    with pytest.raises(FBError) as caught:
        check_budget(Budget(100, "host"))
    assert [d.code for d in caught.value.diagnostics] == ["FB0408"]


# -- What reading, planning and proving let go of --------------------------------------------------


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
