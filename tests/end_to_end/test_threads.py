"""Planned steps and captures on several threads: who traces exchanges what others would read.

Nothing here hopes for a race: the one thread stands still in the middle of its trace until the
other one has come to where it reads, or waits.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import remat_compile
from helpers.clock import HANGS_S

OPTIONS: dict[str, Any] = {"activation_budget": "100%", "planner": "store-all"}


exclusive: Any = importlib.import_module("remat_compile.capture.trace.lock")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x).tanh())


def sample(rows: int = 6) -> Tensor:
    return torch.linspace(-1, 1, 4 * rows).reshape(rows, 4)


def gradients(model: nn.Module, x: Tensor, of: list[nn.Parameter] | None = None) -> list[Tensor]:
    """The gradient of the result is an expanded one. On a thread beside a trace parameters are
    given, as an optimizer holds them: those on the modules may be exchanged at that moment."""
    return [*torch.autograd.grad(model(x).sum(), [*model.parameters()] if of is None else of)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


class Standstill:
    """The first thread that traces stands still, with what it exchanged in place, until another
    one waits for a lock or has done its work."""

    def __init__(self) -> None:
        self.inside, self.may_go_on = threading.Event(), threading.Event()
        self.first: str | None = None

    def at(self) -> None:
        name = threading.current_thread().name
        if self.first is None:
            self.first = name
            self.inside.set()
            assert self.may_go_on.wait(HANGS_S)


class _Waited:
    """A lock that says when somebody comes to it."""

    def __init__(self, lock: Any, still: Standstill) -> None:
        self._lock, self._still = lock, still

    def __enter__(self) -> None:
        if self._still.inside.is_set() and threading.current_thread().name != self._still.first:
            self._still.may_go_on.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Standstill:
    whole: Any = importlib.import_module("remat_compile.capture.trace.module").WholeModel
    made, forward = Standstill(), whole.forward

    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        made.at()
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(whole, "forward", watched)
    for name in ("_TRACING", "_EXCHANGING"):
        monkeypatch.setattr(exclusive, name, _Waited(getattr(exclusive, name), made))
    return made


def together(still: Standstill, first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """What both give; the second begins where the first stands still."""
    made: dict[str, Any] = {}

    def run(name: str, work: Callable[[], Any]) -> None:
        try:
            made[name] = work()
        except BaseException as error:
            made[name] = error
        finally:
            if name == "second":
                still.may_go_on.set()

    one = threading.Thread(target=run, args=("first", first), name="first")
    other = threading.Thread(target=run, args=("second", second), name="second")
    one.start()
    assert still.inside.wait(HANGS_S)
    other.start()
    one.join(HANGS_S)
    other.join(HANGS_S)
    for result in made.values():
        if isinstance(result, BaseException):
            raise result
    return [made["first"], made["second"]]


@contextmanager
def armed_later(still: Standstill) -> Iterator[None]:
    """What is captured inside does not stand still."""
    still.first = "nobody"
    yield
    still.first = None


def test_a_step_waits_while_its_model_is_traced_by_another_thread(still: Standstill) -> None:
    x, model = sample(), Small()
    with armed_later(still):
        step = remat_compile.compile(model, (x,), **OPTIONS)
    expected = gradients(copy.deepcopy(model), x)
    made = together(
        still,
        lambda: remat_compile.compile(model, (x,), **OPTIONS),
        lambda: step(x).detach(),
    )
    assert same(gradients(made[0], x), expected)
    assert torch.equal(made[1], copy.deepcopy(model)(x))


def test_the_model_in_eager_waits_as_well(still: Standstill) -> None:
    x, model = sample(), Small()
    with armed_later(still):
        step = remat_compile.compile(model, (x,), **OPTIONS)

    def evaluated() -> Tensor:
        with torch.no_grad():
            made: Tensor = step(x)
        return made

    made = together(still, lambda: remat_compile.compile(model, (x,), **OPTIONS), evaluated)
    assert torch.equal(made[1], copy.deepcopy(model)(x))


def test_captures_on_two_threads_leave_nothing_exchanged(still: Standstill) -> None:
    x, models, filters = sample(), [Small(), Small()], [*warnings.filters]
    expected = [gradients(copy.deepcopy(model), x) for model in models]

    def compiled(model: nn.Module) -> nn.Module:
        made: nn.Module = remat_compile.compile(model, (x,), **OPTIONS)
        return made

    steps = together(still, lambda: compiled(models[0]), lambda: compiled(models[1]))
    assert all(same(gradients(step, x), of) for step, of in zip(steps, expected, strict=True))
    assert [*warnings.filters] == filters
    assert not torch.compiler.is_compiling()


def test_another_shape_is_planned_once_for_all_threads(still: Standstill) -> None:
    model = Small()
    with armed_later(still):
        step = remat_compile.compile(model, (sample(),), on_new_shape="replan", **OPTIONS)
    again: Any = step.planned_step.on_change  # type: ignore[union-attr, operator]
    again.planning = _Waited(again.planning, still)
    x = sample(3)
    expected = gradients(copy.deepcopy(model), x)
    held = [*step.parameters()]
    made = together(still, lambda: gradients(step, x, held), lambda: gradients(step, x, held))
    assert all(same(of, expected) for of in made)
    assert len(again.known) == 1


@pytest.mark.filterwarnings("error:.*FB0514")  # nobody looks into guards for what a model changes
def test_a_drop_in_inside_of_a_model_is_compared_as_its_original() -> None:
    """Its backward could ask for the lock on a thread of autograd's."""
    x, inner = sample(), Small()
    step = remat_compile.compile(inner, (x,), **OPTIONS)
    whole = nn.Sequential(step, nn.Linear(4, 4))
    starts: list[object] = []
    step.planned_step.flight.start = lambda *args: starts.append(args)  # type: ignore[union-attr, method-assign]
    outer = remat_compile.compile(whole, (x,), **OPTIONS)
    assert not starts
    assert same(gradients(outer, x), gradients(nn.Sequential(inner, whole[1]), x))


class Called(nn.Module):
    """Calls its part otherwise than that was compiled for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.out = inner, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.inner(x, twice=True))
        return made


class Optional(Small):
    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        made: Tensor = super().forward(x)
        return made * 2 if twice else made


@pytest.mark.filterwarnings("error:.*FB0514")
def test_a_drop_in_inside_of_a_model_may_be_called_as_its_plan_may_not() -> None:
    x, inner = sample(), Optional()
    whole = Called(remat_compile.compile(inner, (x,), **OPTIONS))
    outer = remat_compile.compile(whole, (x,), **OPTIONS)
    eager = Called(inner)
    eager.out = whole.out
    assert same(gradients(outer, x), gradients(eager, x))


def test_who_traces_runs_backwards_on_its_own_thread() -> None:
    """A thread of autograd's for a device may be in a backward that waits for the lock."""
    threads: list[bool] = []

    def ask() -> None:
        threads.append(torch._C._is_multithreading_enabled())

    with exclusive.tracing():
        ask()
        with exclusive.exchanging():
            ask()
            other = threading.Thread(target=ask)
            other.start()
            other.join()
        ask()
    ask()
    assert threads == [False, False, True, False, True]


FORKED = f"""
HANGS_S = {int(HANGS_S)}
import os, signal, threading
from remat_compile.capture.trace import lock as exclusive

inside, may_go_on = threading.Event(), threading.Event()

def trace():
    with exclusive.exchanging():
        inside.set()
        may_go_on.wait()

thread = threading.Thread(target=trace, daemon=True)
thread.start()
inside.wait()
child = os.fork()
if not child:
    signal.alarm(HANGS_S)
    with exclusive.exchanging():
        os._exit(exclusive.undisturbed(lambda: 0))
assert os.waitpid(child, 0)[1] == 0
may_go_on.set()
thread.join()
assert exclusive.undisturbed(lambda: 1) == 1
"""
"""In a process of its own: beside the threads of others that this one has, a fork may hang."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_is_forked_during_a_trace_can_trace() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * HANGS_S, check=False)
    assert done.returncode == 0, done.stderr


# -- Models that are spread over two processes train to the bits of eager, or ar ------------------

TESTS = Path(__file__).parents[1]


WAYS = {
    "DDP": True,
    "DDP(compile)": True,
    "compile(DDP)": True,
    "in(DDP)": "FB0956",
    "FSDP": True,
    "FSDP(compile)": True,
    "FSDP(compile), freed": True,
    "FSDP(compile), in parts": "FB0956",
    "compile(FSDP)": "FB0956",
}


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    assert dist.is_available()
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    runner = str(TESTS / "runners/train_in_two_processes.py")
    done = subprocess.run(
        [sys.executable, runner, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == WAYS
