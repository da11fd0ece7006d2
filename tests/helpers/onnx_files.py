"""Small ONNX files for the tests, made with `onnx.helper`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_compile.ir.diagnostics import Diagnostic, FBError

FLOAT = TensorProto.FLOAT


def write(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[Any]],
    weights: Mapping[str, Any],
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 20,
    elem_type: int = FLOAT,
) -> Path:
    """A file with the given nodes; inputs have `elem_type`; output shapes are not checked. Domains
    other than ONNX's own are of version 1."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, elem_type, list(d)) for n, d in inputs.items()],
        [helper.make_tensor_value_info(n, FLOAT, []) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
    )
    others = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in others)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


def linear(path: Path, batch: Any = 4, **options: Any) -> Path:
    """`y = Gemm(x, w, b)` with x of shape [batch, 3]."""
    rng = np.random.default_rng(0)
    weights = {
        "fc.weight": rng.standard_normal((2, 3)).astype(np.float32),
        "fc.bias": rng.standard_normal(2).astype(np.float32),
    }
    node = helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], name="fc", transB=1)
    return write(path, [node], {"x": [batch, 3]}, weights, **options)


def refusal(call: Any) -> Diagnostic:
    """The one diagnostic that `call()` raises."""
    with pytest.raises(FBError) as caught:
        call()
    assert len(caught.value.diagnostics) == 1
    return caught.value.diagnostics[0]
