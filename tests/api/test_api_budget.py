"""Budgets as people write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from remat_compile import FBError, load
from remat_compile.costs import measured_link
from remat_compile.ir.program import Budget, Target
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.plans.budget import Baseline, format_bytes, parse_budget, resolve_budget
from remat_compile.plans.link.link import parse_link
from remat_compile.plans.link.other_link import link_of_device, other_link

BASE = Baseline(
    peak_bytes=1000,
    activation_peak_bytes=600,
    time_ns=1,
    floor_bytes=200,
    floor_at="F1",
    activation_floor_bytes=100,
    activation_floor_at="F1",
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (8, 8),
        ("8B", 8),
        ("8 b", 8),
        ("8kB", 8000),
        ("8KB", 8000),
        ("1.5MiB", 3 * 2**19),
        ("8gib", 8 * 2**30),
        ("8GB", 8 * 10**9),
        (" 2TiB ", 2**41),
        ("+.5KiB", 512),
        ("1.9B", 1),
        ("50%", 500),
        ("12.5%", 125),
        ("150%", 1500),
        ("range:0", 200),
        ("range:0.5", 600),
        ("range:1", 1000),
    ],
)
def test_device_budgets(text: str | int, count: int) -> None:
    assert resolve_budget(parse_budget(text), BASE) == Budget(count, "device")


@pytest.mark.parametrize(("text", "count"), [("50%", 300), ("1KiB", 1024), ("range:0.5", 350)])
def test_activation_budgets(text: str, count: int) -> None:
    budget = resolve_budget(parse_budget(text, "activation"), BASE)
    assert budget == Budget(count, "activation")


@pytest.mark.parametrize(
    "text", [0, -1, "0", "-8", "0GiB", "-8GiB", "0%", "-50%", "0.1B", "range:-1"]
)
def test_not_more_than_zero(text: str | int) -> None:
    with pytest.raises(FBError) as caught:
        parse_budget(text)
    assert [d.code for d in caught.value.diagnostics] == ["FB0451"]
    assert caught.value.usage


@pytest.mark.parametrize(
    "text",
    [
        *("", "8", "8.5", "GiB", "8Gb", "8 G B", "eight", "1e3GiB", "nan%", "8GiB/s", "8;GiB"),
        *("range:", "range:x", "range:50%", 0.5, None, True),
    ],
)
def test_unreadable(text: object) -> None:
    with pytest.raises(FBError) as caught:
        parse_budget(text)  # type: ignore[arg-type]
    assert [d.code for d in caught.value.diagnostics] == ["FB0450"]
    assert caught.value.usage


def test_nearest_unit() -> None:
    with pytest.raises(FBError, match='Did you mean "GiB"'):
        parse_budget("8Gi")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (15 * 1024, "15.0 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (141 * 2**30, "141 GiB"),
        (5 * 2**50, "5120 TiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_a_host_budget_is_bytes() -> None:
    assert resolve_budget(parse_budget("2KiB", "host"), BASE) == Budget(2048, "host")
    for text in ("50%", "range:0.5"):
        with pytest.raises(FBError) as refused:
            parse_budget(text, "host")
        assert [d.code for d in refused.value.diagnostics] == ["FB0450"]
    with pytest.raises(FBError) as refused:
        parse_budget("0B", "host")
    assert [d.code for d in refused.value.diagnostics] == ["FB0451"]
    assert 'host budget "0B"' in refused.value.diagnostics[0].message


# -- A plan with copies on a machine with another link than it was made for ------------------------


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
