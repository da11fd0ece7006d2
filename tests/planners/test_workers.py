"""Jobs of planners done elsewhere: the same plan, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from helpers.clock import HANGS_S, Clock, skips
from helpers.planners.graphs import encoder_decoder, stochastic, transformer
from helpers.planners.matrix import check
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Budget
from remat_compile.ir.text.printer import format_program, format_schedule
from remat_compile.planners import Feasible, PlanResult, format_planner, parse_planner
from remat_compile.planners.auto import Auto
from remat_compile.planners.chains.rockmate import Rockmate
from remat_compile.planners.hierarchy.hiremate import Hiremate
from remat_compile.planners.instance import Instance
from remat_compile.planners.solvers import MilpSolver
from remat_compile.planners.workers import dask_workers, pool
from remat_compile.planners.workers.addresses import given_workers, with_workers
from remat_compile.planners.workers.pool import Workers, engine_at, workers_of

with_dask = pytest.mark.skipif(find_spec("distributed") is None, reason="needs the extra cluster")
PROGRAM = encoder_decoder(3)
HIREMATE = Hiremate(children=4, leaf=4, options=2, peaks=2, saves=1, processes=1)


def budget(share: float = 0.75) -> Budget:
    instance = Instance.of(PROGRAM, "activation")
    return Budget(int(share * instance.peak(instance.capture)), "activation")


def text(result: PlanResult) -> str:
    assert isinstance(result, Feasible)
    check(PROGRAM, budget(), result)
    return format_schedule(result.schedule)


@dataclass(frozen=True)
class Square:
    """A job."""

    number: int
    seconds: float = 0.0

    def run(self, solver: MilpSolver, limit_s: float) -> int:
        sleep(self.seconds)
        return self.number**2


@dataclass(frozen=True)
class Deadly:
    """A job that ends the first process that has begun it, which leaves the file `marker`."""

    job: Any
    marker: str

    def run(self, solver: MilpSolver, limit_s: float) -> Any:
        if not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.job.run(solver, limit_s)


@dataclass(frozen=True)
class Wrong:
    def run(self, solver: MilpSolver, limit_s: float) -> int:
        raise ZeroDivisionError


class Broken(Executor):
    """An engine that loses every job but the first, or has no workers."""

    size = 2

    def __init__(self, *, refuses: bool = False, is_alive: bool = True):
        self.refuses, self.is_alive, self.seen = refuses, is_alive, 0
        self.was_shut = False

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        if self.refuses:
            raise OSError("no route")
        future: Future[Any] = Future()
        self.seen += 1
        if not self.is_alive:
            return future
        if self.seen == 1:
            future.set_result(fn(*args))
        else:
            future.set_exception(ConnectionError("lost"))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.was_shut = True


JOBS = [Square(n) for n in range(7)]
SQUARES = [n * n for n in range(7)]


@pytest.mark.parametrize("engine", [Broken(), Broken(refuses=True), Broken(is_alive=False)])
def test_what_an_engine_loses_is_done_here(engine: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_GONE_S", 0.3)
    lines: list[str] = []
    workers = Workers(engine, "somewhere", 2, lines.append)
    assert list(workers.map(JOBS, monotonic() + 60)) == SQUARES
    assert engine.was_shut
    (line,) = lines
    assert "somewhere" in line
    assert "goes on here" in line
    workers.engine.shutdown()


def test_answers_come_in_the_order_of_the_jobs_and_end_with_the_deadline() -> None:
    jobs = [Square(n, seconds=0.05 * (3 - n)) for n in range(3)]
    with workers_of(None, 3, print) as workers:
        assert list(workers.map(jobs, monotonic() + 60)) == [0, 1, 4]
        assert list(workers.map(jobs, monotonic() - 1)) == [None] * 3
        with pytest.raises(ZeroDivisionError):
            list(workers.map([Wrong()], monotonic() + 60))


class Slow(Executor):
    """An engine for which time passes, and no test waits: `job_s` with each job that it does, or
    `look_s` with each look at one that never does any."""

    size = 1

    def __init__(self, skip: Clock, *, job_s: float = 0.0, look_s: float = 0.0):
        self.skip, self.job_s, self.look_s = skip, job_s, look_s
        self.looks, self.limits_s = 0, list[float]()

    @property
    def is_alive(self) -> bool:
        self.looks += 1
        self.skip(self.look_s)
        return True

    def submit(self, fn: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.limits_s.append(args[-1])
        if self.job_s:
            self.skip(self.job_s)
            future.set_result(fn(*args))
        return future


def test_no_job_is_begun_past_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 40 of 100 units, and is told what is left of them."""
    unit_s, skip = 10 * HANGS_S, skips(monkeypatch)
    engine = Slow(skip, job_s=40 * unit_s)
    answers = list(Workers(engine, None, 1, print).map(JOBS, monotonic() + 100 * unit_s))
    assert answers == [*SQUARES[:3], None, None, None, None]
    assert engine.limits_s == pytest.approx([n * unit_s for n in (100, 60, 20)], abs=unit_s)


def test_no_answer_is_waited_for_long_past_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes 30 units; the deadline and the grace are over after 110, so at the fourth."""
    unit_s, skip = 10 * HANGS_S, skips(monkeypatch)
    monkeypatch.setattr(pool, "_GRACE_S", 10 * unit_s)
    engine = Slow(skip, look_s=30 * unit_s)
    answers = list(Workers(engine, None, 1, print).map(JOBS, monotonic() + 100 * unit_s))
    assert answers == [None] * len(JOBS)
    assert (len(engine.limits_s), engine.looks) == (1, 4)


def test_the_address_is_no_part_of_a_plan() -> None:
    made = parse_planner('hiremate{leaf=6, workers="dask://host:8786"}')
    assert made == Hiremate(leaf=6, workers="dask://host:8786")
    assert format_planner(made) == "hiremate{leaf=6}"
    assert parse_planner(format_planner(made, where=True)) == made
    polish: Any = with_workers(parse_planner("polish{of=rockmate}"), "dask://h:1")
    assert polish.of == Rockmate(workers="dask://h:1")
    several: Any = given_workers(Auto((Rockmate(), parse_planner("dtr"))), "dask://[::1]:1")
    assert several.planners[0].workers == several.workers == "dask://[::1]:1"


@pytest.mark.parametrize(
    "address", ["host:8786", "ray://host:1", "dask://host", "dask://:1", "dask://a b:1", ""]
)
def test_an_address_that_is_none(address: str) -> None:
    for refuse in (
        lambda: parse_planner(f'rockmate{{workers="{address}"}}'),
        lambda: Hiremate(workers=address),
        lambda: with_workers(Auto(), address),
        lambda: Auto(workers=address).plan(PROGRAM, budget()),
    ):
        with pytest.raises(FBError) as refused:
            refuse()
        (diagnostic,) = refused.value.diagnostics
        assert diagnostic.code == "FB0404"
        assert "dask://HOST:PORT" in diagnostic.message


def test_a_planner_that_gives_no_work_away() -> None:
    with pytest.raises(FBError) as refused:
        with_workers(parse_planner("rotor"), "dask://host:8786")
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0729"
    assert "rotor" in diagnostic.message
    assert "hiremate" in (diagnostic.hint or "")


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(FBError) as refused:
        engine_at("dask://127.0.0.1:1")
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0410"
    assert "remat-compile[cluster]" in (diagnostic.hint or "")


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@with_dask
@pytest.mark.parametrize("listens", [False, True])
def test_an_address_where_nobody_answers(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused within 10 s; also where something listens that is no scheduler."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        port = other.getsockname()[1] if listens else closed_port()
        assert dask_workers.CONNECT_S + 1 < 10
        monkeypatch.setattr(dask_workers, "CONNECT_S", 2.0)
        planner = Auto if listens else Hiremate
        with pytest.raises(FBError) as refused:
            planner(workers=f"dask://127.0.0.1:{port}").plan(PROGRAM, budget())
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0727"
    assert str(port) in diagnostic.message
    assert "dask scheduler" in (diagnostic.hint or "")


@with_dask
def test_who_answers_too_late_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection stays that nobody uses, nor the threads behind it."""
    refused, closed = threading.Event(), threading.Event()

    class Late:
        def __init__(self, *_: object, **__: object) -> None:
            assert refused.wait(HANGS_S)

        def nthreads(self, **_: object) -> dict[str, int]:
            return {"worker": 1}

        def run(self, *_: object, **__: object) -> dict[str, str]:
            return {}

        def close(self, **_: object) -> None:
            closed.set()

    monkeypatch.setattr("distributed.Client", Late)
    monkeypatch.setattr(dask_workers, "CONNECT_S", 0.1)
    with pytest.raises(FBError, match="FB0727"):
        engine_at("dask://127.0.0.1:1")
    refused.set()
    assert closed.wait(HANGS_S)


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


@pytest.fixture
def cluster(running: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Is given all the time that a busy machine needs to answer."""
    for patience in ("CONNECT_S", "WORKER_S", "_ASKED_S"):
        monkeypatch.setattr(dask_workers, patience, HANGS_S)
    monkeypatch.setattr(pool, "_GONE_S", HANGS_S)
    return running


def address_of(cluster: Any) -> str:
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


@with_dask
def test_the_same_plan_with_a_worker_killed_in_the_middle(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = HIREMATE.plan(PROGRAM, budget())
    submit, marker = dask_workers.DaskWorkers.submit, tmp_path / "died"

    def submit_deadly(self: Any, fn: Any, job: Any, *args: Any) -> Future[Any]:
        return submit(self, fn, Deadly(job, str(marker)), *args)

    monkeypatch.setattr(dask_workers.DaskWorkers, "submit", submit_deadly)
    there = replace(HIREMATE, workers=address_of(cluster)).plan(PROGRAM, budget())
    assert marker.exists()
    assert text(there) == text(here)


@with_dask
def test_a_scheduler_that_stands_still_is_not_waited_for(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its connections, and answers nothing: the planner would hang with it."""
    engine = engine_at(address_of(cluster))
    assert engine.is_alive
    goes_on = threading.Event()
    cluster.loop.add_callback(goes_on.wait, 2 * HANGS_S)
    monkeypatch.setattr(dask_workers, "_ASKED_S", 0.3)
    try:
        sleep(2 * dask_workers._SEEN_S)
        assert not engine.is_alive
        assert not goes_on.is_set()
    finally:
        goes_on.set()
        engine.shutdown()


@with_dask
def test_a_worker_with_another_release(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "__version__", "0.0.0")
    with pytest.raises(FBError) as refused:
        engine_at(address_of(cluster))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "FB0728"
    assert "here is remat-compile 0.0.0" in diagnostic.message
    assert "0.0.0" in (diagnostic.hint or "")


def is_there(group: int) -> bool:
    """Whether a process of that group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@with_dask
def test_ctrl_c_leaves_nothing_behind(cluster: Any, tmp_path: Path) -> None:
    """No process and no file, soon."""
    (tmp_path / "graph.fbir").write_text(format_program(transformer(4)))
    for where in ([], ["--workers", address_of(cluster)]):
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "import sys; from remat_compile.cli import main;"
            "from remat_compile.planners.workers import dask_workers as dask;"
            f"dask.CONNECT_S = dask.WORKER_S = dask._ASKED_S = {HANGS_S};"
            "sys.exit(main(sys.argv[1:]))"
        )
        words = [str(tmp_path / "graph.fbir"), "-o", str(tmp_path / "plan.fbir"), *where]
        words += ["--activation-budget", "45%", "--planner", "hiremate"]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            assert process.stderr is not None
            assert any(" classes" in line for line in process.stderr)
            sleep(0.5)  # now there is work to be left
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANGS_S)
        assert process.returncode == 130
        until = monotonic() + HANGS_S
        while is_there(process.pid):
            assert monotonic() < until
            sleep(0.1)
        assert os.listdir(tmp_path) == ["graph.fbir"]


@pytest.mark.slow
@with_dask
def test_rockmate_plans_the_same_there(cluster: Any) -> None:
    program = stochastic(4)
    instance = Instance.of(program, "activation")
    bound = Budget(int(0.6 * instance.peak(instance.capture)), "activation")
    here = Rockmate(peaks=3, saves=2)
    there = replace(here, workers=address_of(cluster))
    first, second = (p.plan(program, bound, time_limit_s=300.0) for p in (here, there))
    assert isinstance(first, Feasible)
    assert isinstance(second, Feasible)
    assert format_schedule(first.schedule) == format_schedule(second.schedule)
