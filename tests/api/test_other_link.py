"""A plan with copies on a machine with another link than it was made for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from remat_compile import load
from remat_compile.costs import measured_link
from remat_compile.ir.program import Target
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.plans.link.link import parse_link
from remat_compile.plans.link.other_link import link_of_device, other_link

VALID = Path(__file__).parents[2] / "spec" / "conformance" / "valid"
GPU = torch.device("cuda")


def measuring(monkeypatch: pytest.MonkeyPatch, *link: int | None) -> None:
    """The link of a device is found to be this."""

    def linked(target: Target, device: torch.device) -> Target:
        assert device == GPU
        return target.with_link(*link)  # type: ignore[arg-type]

    monkeypatch.setattr(measured_link, "with_measured_link", linked)


def test_the_link_of_a_machine_is_told_with_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load(VALID / "copy_issue.fbir", "one_stream")
    assert plan.trace.time_ns == 8500
    rates = (10**8, 2 * 10**8, 2 * 10**8, 1000)
    measuring(monkeypatch, *rates, 900)
    warning = link_of_device(plan, GPU)
    assert warning is not None
    assert warning.code == "FB0478"
    slow = replace(plan.program, target=plan.program.target.with_link(*rates, 900))
    assert simulate(slow, plan.schedule).time_ns == 9800
    assert "the step takes 8.5 µs" in warning.message
    assert "(each copy takes 900 ns to issue) it takes 9.8 µs" in warning.message
    # Of 8500 ns, 400 are less than a twentieth, and 500 are more.
    measuring(monkeypatch, *rates, 450)
    assert link_of_device(plan, GPU) is None
    measuring(monkeypatch, *rates, 0)
    assert (warning := link_of_device(plan, GPU)) is not None
    assert "it takes 8 µs" in warning.message


def test_what_copies_nothing_or_runs_on_the_cpu_asks_for_no_link() -> None:
    plan = load(VALID / "copy_issue.fbir", "token")
    assert link_of_device(plan, torch.device("cpu")) is None
    still = load(VALID / "mlp.fbir")
    assert not still.schedule.has_copies
    assert link_of_device(still, GPU) is None
    assert other_link(still, parse_link("1MB/s")) is None
