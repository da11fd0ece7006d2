"""The lowering table against the float tests of the ONNX standard (`onnx.backend`)."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from helpers.onnx.cases import Ending, of_folder
from helpers.onnx.cases import run as run_case
from remat_compile.capture.onnx.builder import ModuleBuilder
from remat_compile.capture.onnx.file.load import read
from remat_compile.capture.onnx.inputs import declared_inputs
from remat_compile.capture.onnx.table import RANDOM, own_operators
from remat_compile.capture.onnx.weights import Role
from remat_compile.ir.diagnostics import FBError

FLOATS = (1, 10, 11, 16)
DRAWN = re.compile("bernoulli|training_dropout|train")
"""Tests whose numbers depend on a random generator: only shapes and types are compared."""
FIXED = {"mean", "var", "w", "weight"}
"""Statistics and class weights, with respect to which PyTorch has no gradient."""
FLAT = {"Binarizer", "Hardmax"}
"""Operators whose float result has no gradient."""
SHAPE_ONLY = {"scales", "roi"}


def is_float(value: Any) -> bool:
    kind = value.type.WhichOneof("value")
    return kind == "tensor_type" and value.type.tensor_type.elem_type in FLOATS


def float_tests() -> list[Any]:
    """Tests with a float input and a float output; those of expanded functions are left out."""
    tests = load_model_tests(kind="node")
    return [
        t
        for t in tests
        if "_expanded" not in t.name
        and any(map(is_float, t.model.graph.input))
        and any(map(is_float, t.model.graph.output))
    ]


def array_of(item: Any) -> Any:
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def tensor_of(array: Any) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, copy=True))


def run(test: Any, inputs: list[Any], file: Path) -> list[Any]:
    """Float inputs with dimensions are fed, with gradient; everything else is known."""
    onnx.save(test.model, file)
    source = read(file)
    declared = declared_inputs(source.model.graph)
    builder = ModuleBuilder(source.opset, file.parent, train_bn=False)
    feeds = []
    for item, value in zip(declared, inputs, strict=True):
        array = np.asarray(array_of(value))
        if item.dtype.is_floating_point and array.ndim and item.name not in SHAPE_ONLY:
            feeds.append(tensor_of(array).requires_grad_(item.name not in FIXED))
            builder.add_input(item.name, feeds[-1])
        else:
            builder.add_initialiser(numpy_helper.from_array(array, item.name), Role.CONSTANT)
    for tensor in source.model.graph.initializer:
        builder.add_initialiser(tensor, Role.CONSTANT)
    outputs = tuple(value.name for value in source.model.graph.output)
    builder.run(source.model.graph, set(outputs))
    fed = {item.name for item in declared} & set(builder.keys.values())
    names = tuple(item.name for item in declared if item.name in fed)
    result = builder.finish(names, outputs)(*feeds)
    results = list(result) if isinstance(result, tuple) else [result]
    if any(feed.requires_grad and feed.numel() for feed in feeds):
        step = test.model.graph.node[-1].op_type
        assert step in FLAT or any(tensor.requires_grad for tensor in results)
    return results


def check(test: Any, got: list[Any], wanted: list[Any]) -> None:
    for tensor, item in zip(got, wanted, strict=True):
        expected = np.asarray(array_of(item))
        assert tuple(tensor.shape) == expected.shape
        actual = tensor.detach()
        small = expected.dtype.itemsize < 4
        if actual.dtype == torch.bfloat16:
            actual, expected = actual.float(), expected.astype(np.float32)
        assert actual.numpy().dtype == expected.dtype
        if DRAWN.search(test.name):
            continue
        least = 1e-6 if "_dft_" in test.name else 1e-7  # stored with the rounding of a float32 FFT
        rtol, atol = (2e-2, 4e-3) if small else (max(test.rtol, 1e-3), max(test.atol, least))
        np.testing.assert_allclose(actual.numpy(), expected, rtol=rtol, atol=atol)


POOLS = ("averagepool", "lppool", "maxpool")
"""Three quarters of what it takes to make the tests: their reference loops in Python."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_float_test_passes_or_is_refused_with_a_code(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in POOLS if every > 1 else ():
        monkeypatch.setitem(sys.modules, f"onnx.backend.test.case.node.{name}", ModuleType(name))
    tests = float_tests()[::every]
    refused: Counter[str] = Counter()
    operators: set[str] = set()
    passed = 0
    for test in tests:
        try:
            for inputs, outputs in test.data_sets:
                got = run(test, inputs, tmp_path / "m.onnx")
                check(test, got, outputs)
        except FBError as error:
            refused[error.diagnostics[0].code] += 1
            continue
        except AssertionError as error:
            pytest.fail(f"{test.name}: {error}")
        passed += 1
        operators.update(node.op_type for node in test.model.graph.node)
    assert set(refused) <= {"FB0604", "FB0607", "FB0612", "FB0614"}, refused
    assert passed >= (885 if every == 1 else 200), refused
    assert len(operators & set(own_operators())) >= (110 if every == 1 else 70)
    assert set(own_operators()) >= RANDOM


def test_stored_pools_pass() -> None:
    stored = of_folder(Path(onnx.__file__).parent / "backend/test/data")
    endings = {case.name: run_case(case) for case in stored if "Pool" in case.name}
    assert len(endings) >= 14
    assert {name: e for name, e in endings.items() if e.ending is not Ending.PASSED} == {}
