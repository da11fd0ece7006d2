"""The stored tests of earlier releases of ONNX: right or refused with a code, and 95 % right.

One by one here; `make check` runs them together, each case of several releases once
(`runners/run_onnx_operators.py`)."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from helpers.onnx.cases import Ending, of_wheel, run
from helpers.onnx.releases import LEAST_CASES, LEAST_SHARE, RELEASES, faulty, wheel_of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("release", list(RELEASES))
def test_an_old_release(release: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        wheel = wheel_of(release, tmp_path_factory.getbasetemp().parent / "onnx-wheels")
    except (subprocess.SubprocessError, StopIteration) as error:
        pytest.skip(f"onnx {release} cannot be downloaded: {error}")
    floats: Counter[Ending] = Counter()
    bad = []
    for case in of_wheel(wheel):
        outcome = run(case)
        if outcome.ending in (Ending.WRONG, Ending.CRASHED):
            if faulty(release, case.name):  # the release itself is: no case to count
                continue
            bad.append(f"{case.name}: {outcome.ending.value}: {outcome.reason}")
        floats[outcome.ending] += case.is_float
    assert not bad, "\n".join(bad)
    assert sum(floats.values()) > LEAST_CASES
    assert floats[Ending.PASSED] >= LEAST_SHARE * sum(floats.values())
