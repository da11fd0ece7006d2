"""Whole files, from import to a step: the CNNs that the package `onnx` carries."""

from __future__ import annotations

import pytest

from helpers.onnx.light import LIGHT, run_light
from helpers.slow import default_only


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", default_only(LIGHT, ["squeezenet"]))
def test_a_planned_step_is_autograds(name: str) -> None:
    outcome = run_light(name)
    assert outcome.report.bit_equal, outcome.report.max_difference
    assert outcome.report.tensors > 10
    assert outcome.report.measured_bytes <= outcome.proven_bytes
    share = 0.75 if name == "vgg19" else 0.6
    assert outcome.activation_bytes <= share * outcome.unplanned_activation_bytes
