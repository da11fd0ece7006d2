"""The lowering table against the float tests of the ONNX standard (`onnx.backend`)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from helpers.onnx.cases import Ending, of_folder, of_installed_nodes, run
from remat_compile.capture.onnx.table import RANDOM, own_operators

POOLS = ("averagepool", "lppool", "maxpool")
"""Three quarters of what it takes to make the tests: their reference loops in Python."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_float_test_passes_or_is_refused_with_a_code(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in POOLS if every > 1 else ():
        monkeypatch.setitem(sys.modules, f"onnx.backend.test.case.node.{name}", ModuleType(name))
    refused: Counter[str] = Counter()
    operators: set[str] = set()
    passed = 0
    for case in [case for case in of_installed_nodes() if case.is_float][::every]:
        outcome = run(case, trained=True)
        if outcome.ending is Ending.REFUSED:
            refused[outcome.code] += 1
            continue
        assert outcome.ending is Ending.PASSED, f"{case.name}: {outcome.reason}"
        passed += 1
        operators |= {node.op_type for node in onnx.load_from_string(case.model).graph.node}
    assert set(refused) <= {"FB0604", "FB0607", "FB0612", "FB0614"}, refused
    assert passed >= (885 if every == 1 else 200), refused
    assert len(operators & set(own_operators())) >= (110 if every == 1 else 70)
    assert set(own_operators()) >= RANDOM


def test_stored_pools_pass() -> None:
    stored = of_folder(Path(onnx.__file__).parent / "backend/test/data")
    endings = {case.name: run(case) for case in stored if "Pool" in case.name}
    assert len(endings) >= 14
    assert {name: e for name, e in endings.items() if e.ending is not Ending.PASSED} == {}
