"""`remat-compile show`, `planners` and `devices`."""

from __future__ import annotations

from pathlib import Path

from remat_compile.cli.show import curve

OFFLOAD = Path(__file__).parents[2] / "spec/conformance/valid/offload.fbir"


def test_curve_keeps_the_peak() -> None:
    lines = curve([1, 2, 1000, 2, 1] * 100, width=10, height=4)
    assert len(lines) == 5
    assert all(line.count("█") == 10 for line in lines[:4])
    assert curve([0, 0])[-1].endswith("+--")
