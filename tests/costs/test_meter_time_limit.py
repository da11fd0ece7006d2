"""Timing operators ends at its limit: the clock moves on with each run, and runs are counted."""

from __future__ import annotations

import pytest
import torch

from helpers.clock import HANGS_S, skips
from remat_compile.costs.meter import Meter


def test_what_comes_past_the_limit_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes 10 of 100 units, and none gets more than a quarter of what is left: three of 100,
    two of 70 and of 50, and then one each time, as there must be a time for each."""
    unit_s, skip = 10 * HANGS_S, skips(monkeypatch)
    monkeypatch.setattr("remat_compile.costs.meter._ENOUGH_S", 1000 * unit_s)
    meter, counts = Meter(torch.device("cpu"), 1, 100 * unit_s), list[int]()

    def run() -> None:
        counts[-1] += 1
        skip(10 * unit_s)

    for _ in range(9):
        counts.append(0)
        meter._time_ns(run)
    assert counts == [3, 2, 2, 1, 1, 1, 1, 1, 1]
