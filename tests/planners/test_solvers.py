"""Linear programs with integers in processes that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest

from helpers.clock import HANGS_S, skips
from helpers.planners.exact_claims import holds, reachable
from helpers.planners.graphs import chain, random_dag, residual, stochastic, transformer
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget
from remat_compile.planners import NotApplicable, Optimal, TimedOut, parse_planner
from remat_compile.planners.isolation.process import WorkProcess, receive, send
from remat_compile.planners.programs import moccasin
from remat_compile.planners.solvers import SOLVERS, MilpBuilder, MilpSolver
from remat_compile.planners.solvers.milp import Milp

HANGING = """
import time
def solve(head, arrays, say):
    import numpy as np
    last = {"last": True, "status": "feasible"} if head.get("options") else {}
    say({"objective": 5.0, "bound": 1.0, **last}, {"point": np.array([1.0, 0.0])})
    print("what a library prints does not spoil the answers")
    while not last:
        time.sleep(600)
"""


def knapsack(items: int = 30, rows: int = 5) -> Milp:
    builder = MilpBuilder()
    rng = np.random.default_rng(7)
    columns = [builder.column(-float(rng.integers(10, 100))) for _ in range(items)]
    for _ in range(rows):
        builder.row([(c, float(rng.integers(5, 90))) for c in columns], upper=400.0)
    return builder.build()


def feasible(milp: Milp, point: np.ndarray) -> bool:
    for r in range(milp.rows):
        entries = slice(milp.starts[r], milp.starts[r + 1])
        total = milp.value[entries] @ point[milp.index[entries]]
        if not milp.row_lower[r] - 1e-6 <= total <= milp.row_upper[r] + 1e-6:
            return False
    return bool(np.all(np.abs(point - np.round(point)) < 1e-6))


def test_a_program_is_solved_and_its_points_are_told_as_they_are_found() -> None:
    milp = knapsack()
    objectives: list[float] = []
    with MilpSolver() as solver:
        first = solver.solve(
            milp, HANGS_S, on_point=lambda _, objective: objectives.append(objective)
        )
        relaxed = solver.solve(milp.relaxed(), HANGS_S)
        again = solver.solve(milp, HANGS_S, start=first.point)
    assert first.status == "optimal"
    assert first.point is not None
    assert feasible(milp, first.point)
    assert milp.cost @ first.point == pytest.approx(first.objective) == pytest.approx(first.bound)
    assert objectives
    assert objectives == sorted(objectives, reverse=True)
    assert relaxed.status == "optimal"
    assert relaxed.bound < first.objective - 1e-6
    assert again.objective == first.objective
    assert np.array_equal(np.round(first.point), np.round(again.point))  # type: ignore[arg-type]


def test_a_program_without_points_is_infeasible() -> None:
    builder = MilpBuilder()
    x, y = builder.column(1.0), builder.column(1.0)
    builder.row([(x, 1.0), (y, 1.0)], lower=3.0)
    with MilpSolver() as solver:
        solution = solver.solve(builder.build(), HANGS_S)
    assert (solution.status, solution.point) == ("infeasible", None)


BANNER = """
import os, sys
os.write(1, b"Running HiGHS 1.16.0\\n")
print("Copyright (c) 2026")
sys.path.remove({folder!r})
del sys.modules["highspy"]
import highspy
"""


def test_no_banner_of_a_solver_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "highspy.py").write_text(BANNER.format(folder=str(tmp_path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    with MilpSolver() as solver:
        assert solver.solve(knapsack(5, 2), HANGS_S).status == "optimal"
    assert capfd.readouterr() == ("", "")


def test_with_no_time_nothing_is_started() -> None:
    with MilpSolver() as solver:
        solution = solver.solve(knapsack(), 0.0)
        assert not solver.is_running
    assert (solution.status, solution.point) == ("unknown", None)


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that tells one point, and then never answers, unless it has an option."""
    (tmp_path / "hanging_solver.py").write_text(HANGING, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(SOLVERS, "hanging", "hanging_solver:solve")


@pytest.mark.usefixtures("hanging")
def test_a_solver_that_overruns_is_killed_and_leaves_its_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip = skips(monkeypatch)
    builder = MilpBuilder()
    builder.column(5.0), builder.column(1.0)
    with MilpSolver("hanging") as solver:
        solver.solve(builder.build(), HANGS_S, options={"hangs": False})  # it takes time to start
        assert solver.is_running
        looks: list[int] = []

        def past(*_: object) -> None:
            looks.append(skip.looks)
            skip(20 * HANGS_S)

        solution = solver.solve(builder.build(), 10 * HANGS_S, on_point=past)
        assert not solver.is_running
    assert skip.looks - looks[0] < 10
    assert solution.status == "feasible"
    assert (solution.objective, solution.bound) == (5.0, 1.0)
    assert solution.point is not None
    assert solution.point.tolist() == [1.0, 0.0]


@pytest.mark.usefixtures("hanging")
def test_a_solver_loads_no_module_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    process = WorkProcess("hanging_solver:solve", first={"time_limit_s": 60})
    process.inbox.get(timeout=HANGS_S)  # it is at work
    process.kill()
    assert not (tmp_path / "ran").exists()


def test_the_worker_loads_no_framework() -> None:
    code = (
        "import sys, remat_compile.planners.solvers.highs, highspy;"
        "print([m for m in ('torch', 'jax', 'onnx', 'ortools', 'lark') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert ran.stdout.strip() == "[]"


def test_planners_do_not_load_a_solver() -> None:
    code = (
        "import sys; from remat_compile.planners import available;"
        "[info.load() for info in available().values()];"
        "print([m for m in ('highspy', 'ortools', 'torch') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert ran.stdout.strip() == "[]"


def test_messages_survive_the_wire() -> None:
    arrays = {"a": np.arange(3, dtype=np.int32), "b": np.array([0.5, np.inf]), "none": np.zeros(0)}
    source, sink = Pipe(duplex=False)
    with source, sink:
        send(sink, {"bound": -float("inf"), "text": "ü\n"}, arrays)
        head, got = receive(source)
        assert head == {"bound": -float("inf"), "text": "ü\n"}
        assert all(np.array_equal(got[name], arrays[name]) for name in arrays)
        send(sink, {"last": True})
        assert receive(source) == ({"last": True}, {})
        sink.send_bytes(b'{"cut off": 1')
        with pytest.raises(ValueError, match="Expecting"):
            receive(source)


def test_an_interrupt_kills_the_solver(hanging: None) -> None:
    builder = MilpBuilder()
    builder.column(5.0), builder.column(1.0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with MilpSolver("hanging") as solver:
        with pytest.raises(KeyboardInterrupt):
            solver.solve(builder.build(), 60.0, on_point=interrupt)
        assert not solver.is_running


# -- Retention intervals in CP-SAT, and the refusal without it -------------------------------------


with_ortools = pytest.mark.skipif(find_spec("ortools") is None, reason="needs the extra cpsat")


@with_ortools
@pytest.mark.parametrize(
    ("graph", "share"),
    [
        (residual(2), 0.6),
        (stochastic(2), 0.4),
        (random_dag(7), 0.6),
        (transformer(1), 0.5),
    ],
)
def test_it_equals_rk_checkmate_where_two_runs_are_enough(graph, share: float) -> None:  # type: ignore[no-untyped-def]
    budget = reachable(graph, share)
    exact = parse_planner("rk-checkmate").plan(graph, budget)
    assert isinstance(exact, Optimal)
    assert max(holds(graph, budget, exact).executions.values()) <= 2
    result = parse_planner("moccasin").plan(graph, budget)
    holds(graph, budget, result)
    assert result.time_ns == exact.time_ns  # type: ignore[union-attr]


@with_ortools
def test_more_copies_reach_what_two_do_not() -> None:
    program = chain(7)
    budget = reachable(program, 0.1)
    exact = parse_planner("rk-checkmate").plan(program, budget)
    assert max(holds(program, budget, exact).executions.values()) > 2
    result = parse_planner("moccasin{copies=4}").plan(program, budget)
    holds(program, budget, result)
    assert result.time_ns == exact.time_ns  # type: ignore[union-attr]


@with_ortools
def test_no_time_still_answers() -> None:
    program = chain(9)
    result = parse_planner("moccasin").plan(program, reachable(program, 0.5), time_limit_s=0)
    assert isinstance(result, TimedOut)


def test_without_ortools_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moccasin, "find_spec", lambda name: None)
    program = chain(4)
    with pytest.raises(FBError) as caught:
        parse_planner("moccasin").plan(program, reachable(program, 0.5))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FB0410"
    assert "remat-compile[cpsat]" in (diagnostic.hint or "")


def test_a_graph_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moccasin, "find_spec", lambda name: object())
    program = chain(160)
    result = parse_planner("moccasin").plan(program, Budget(1000, "activation"))
    assert isinstance(result, NotApplicable)
    assert result.why.code == "FB0409"


def test_one_copy_is_no_plan() -> None:
    with pytest.raises(FBError) as caught:
        parse_planner("moccasin{copies=1}")
    assert caught.value.diagnostics[0].code == "FB0404"
