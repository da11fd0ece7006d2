"""A target with another link, and what stays as it is where none can be measured."""

from __future__ import annotations

import pytest
import torch

from remat_compile.costs import measured_link
from remat_compile.ir.program import Target

TARGET = Target("gpu", 1 << 30, granularity_bytes=512, host_bytes=1 << 31)


def test_rates_take_the_place_of_the_targets_own() -> None:
    made = TARGET.with_link(20, 10, 25, 3, 2)
    assert made.has_link
    assert (made.d2h_bytes_per_s, made.h2d_bytes_per_s) == (20, 10)
    assert (made.both_bytes_per_s, made.copy_latency_ns, made.copy_issue_ns) == (25, 3, 2)
    assert made.with_link(5, 6).both_bytes_per_s is None
    assert made.with_link(5, 6).copy_issue_ns == 0
    assert (made.name, made.host_bytes) == (TARGET.name, TARGET.host_bytes)


def test_without_memory_to_measure_it_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    answers = iter([torch.OutOfMemoryError("none left"), None])

    def measured(of: torch.device) -> tuple[int, int, int, int, int]:
        assert of == device
        if (error := next(answers)) is not None:
            raise error
        return 20, 10, 25, 3, 2

    monkeypatch.setattr(measured_link, "_measured", measured)
    assert measured_link.with_measured_link(TARGET, device) == TARGET
    assert measured_link.with_measured_link(TARGET, device) == TARGET.with_link(20, 10, 25, 3, 2)
