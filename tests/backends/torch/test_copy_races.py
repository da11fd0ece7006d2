"""Generated code relies on no timing of its copies: late copies, and streams that are clocks."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from helpers.emitted.torch_copy_faults import COPY_FAULTS
from helpers.execution.copied_steps import CopiedStep, copied_step, offloading_step
from helpers.execution.copy_engines import LateEngine, traced
from helpers.programs.waits import needed_waits
from remat_compile.backends.torch.runtime import AcceleratorEngine, CopyEngine, ThreadEngine
from remat_compile.ir.semantics.simulate import simulate

BATCH_NORM, OTHERS = "conv-bn-dropout-tied", ("two-towers", "resnet")
PLANS = [(name, seed) for name in ("resnet", "conv-bn-dropout-tied") for seed in range(4)]


def caught(step: CopiedStep, engine: LateEngine, source: str | None = None) -> str:
    """What the late engine says of code; nothing where it is right."""
    try:
        values, copies = step.run(engine, source)
    except Exception as error:  # poison may be an index that is none, a name may be unbound
        return f"{type(error).__name__}: {error}"
    if not step.is_right(values):
        return "wrong data"
    left = engine.pending or copies.flights or copies.host_bytes
    return "left under way" if left else ""


@pytest.mark.parametrize(("name", "seed"), PLANS)
def test_random_plans_are_right_with_every_engine(name: str, seed: int) -> None:
    step = copied_step(name, seed)
    with traced() as (engine, races):
        values, _ = step.run(engine)
        assert step.is_right(values)
        del values
    assert races.reports == []
    late: list[CopyEngine] = [LateEngine(), ThreadEngine(lambda *_: 2e-4), ThreadEngine()]
    peak = simulate(step.program, step.schedule).host_peak_bytes
    for one in late:
        values, copies = step.run(one)
        assert step.is_right(values)
        assert copies.host_peak_bytes == peak
        assert copies.host_bytes == 0


def test_each_wait_that_is_removed_is_caught_late() -> None:
    for step in (copied_step("resnet", 1), copied_step("conv-bn-dropout-tied", 2)):
        engine = LateEngine()
        step.run(engine)
        assert engine.waits >= 40
        missed = [i for i in range(engine.waits) if not caught(step, LateEngine(i))]
        assert missed == []


def test_each_wait_that_is_removed_is_a_race() -> None:
    """In a plan whose every wait stands right before what needs it."""
    step = offloading_step("two-towers")
    waits = needed_waits(step.schedule)
    assert len(waits) > 10
    for wait in waits:
        assert caught(step, LateEngine(wait))
        with traced(wait) as (clocks, races):
            values, _ = step.run(clocks)
            del values
        assert races.reports, f"wait {wait}"


def test_clocks_miss_no_event_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the event before a copy, it may start before its source is written."""
    step = offloading_step("two-towers")
    with traced() as (engine, races):
        values, _ = step.run(engine)
        del values
    assert races.reports == []
    issue = AcceleratorEngine.issue

    def too_early(self: AcceleratorEngine, *given: Any) -> Any:
        streams: dict[str, Any] = dict(self._streams)
        for stream in streams.values():
            monkeypatch.setattr(stream, "wait_event", lambda _: None, raising=False)
        return issue(self, *given)

    monkeypatch.setattr(AcceleratorEngine, "issue", too_early)
    with traced() as (engine, races):
        values, _ = step.run(engine)
        del values
    assert races.reports


@pytest.mark.parametrize(
    "name",
    [
        "wait_left_out",
        "freed_before_its_wait",
        "read_before_its_wait",
        "hostfree_before_its_wait",
        "offload_left_out",
        "hostfree_left_out",
    ],
)
def test_faults_of_copies_do_not_run_unseen(name: str) -> None:
    """Should the read-back ever let such code through, it does not compute wrong in silence."""
    tried = 0
    for seed in range(12):
        # What a random plan computes a second time may be dropped, whatever it read.
        is_read = name == "read_before_its_wait"
        step = offloading_step(OTHERS[seed % 2]) if is_read else copied_step(BATCH_NORM, seed)
        tree = ast.parse(step.source)
        if COPY_FAULTS[name](tree):
            tried += 1
            source = ast.unparse(ast.fix_missing_locations(tree))
            assert caught(step, LateEngine(), source), f"seed {seed}"
    assert tried
