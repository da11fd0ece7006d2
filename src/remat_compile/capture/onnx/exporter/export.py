"""Export a PyTorch module so that the ONNX file can still be trained."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

from ....ir.diagnostics import Diagnostic, FBError
from ..call import literals_of, widened
from ..weights import KEPT
from .capture import captured
from .record import FX_NODE, TRAINING, TrainingRecord


def export_trainable(
    module: nn.Module,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    opset_version: int | None = None,
    fold: bool = True,
) -> None:
    """Write `module` to `path` with every parameter under its own name, unfolded and untied.

    The file records which parameters are frozen (`requires_grad`) or tied, where gradients are
    cut (`detach`, `no_grad`), and the padding rows of embeddings. The exporter runs without its
    optimiser. With `fold`, the optimiser then runs while the floating-point initialisers pose
    as graph inputs, so that shape arithmetic disappears and no weight is touched. Needs
    `onnxscript` (FB0617).
    """
    if find_spec("onnxscript") is None:
        message = "exporting needs the package onnxscript"
        raise FBError(Diagnostic("FB0617", message, hint="pip install onnxscript"))
    capture = captured(module, args, kwargs, dynamic_shapes)
    program = torch.onnx.export(
        module if capture is None else capture,
        tuple(args),
        kwargs=dict(kwargs) if kwargs else None,
        dynamo=True,
        optimize=False,
        verbose=False,
        dynamic_shapes=dynamic_shapes,
        opset_version=opset_version,
    )
    if program is None:
        raise FBError(Diagnostic("FB0617", "torch.onnx.export returned nothing"))
    program.model.metadata_props[KEPT] = "yes"
    record = _record(module, set(program.model.graph.initializers), capture is not None)
    program.model.metadata_props[TRAINING] = record.text()
    if fold:
        _fold(program.model)
    program.save(os.fspath(path))


def _record(module: nn.Module, stored: set[str], cuts: bool) -> TrainingRecord:
    """Frozen parameters, and the names of those that the file holds under another."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    kept: dict[int, str] = {}
    for name, parameter in parameters.items():
        if name in stored:
            kept.setdefault(id(parameter), name)
    ties = {
        name: kept[id(parameter)]
        for name, parameter in parameters.items()
        if kept.get(id(parameter), name) != name
    }
    frozen = tuple(name for name, p in parameters.items() if not p.requires_grad)
    return TrainingRecord(frozen, ties, cuts)


def _widen(graph: Any) -> None:
    """Give float32 constants that are cast to float64 the digits of the PyTorch call back."""
    import onnx_ir as ir

    for node in list(graph):
        if node.op_type not in ("Cast", "CastLike") or node.inputs[0] is None:
            continue
        source = ir.convenience.get_const_tensor(node.inputs[0])
        to_double = (
            node.inputs[1].dtype == ir.DataType.DOUBLE
            if node.op_type == "CastLike"
            else node.attributes["to"].as_int() == ir.DataType.DOUBLE
        )
        if source is None or not to_double or source.dtype != ir.DataType.FLOAT or source.shape:
            continue
        value = widened(float(source.numpy()), literals_of(node.metadata_props.get(FX_NODE, "")))
        made = ir.node("Constant", [], {"value": ir.tensor(np.array(value, dtype=np.float64))})
        graph.insert_before(node, made)
        ir.convenience.replace_all_uses_with(node.outputs[0], made.outputs[0])


def _fold(model: Any) -> None:
    """Run the optimiser with the weights out of its reach."""
    from onnxscript import optimizer

    graph = model.graph
    _widen(graph)
    weights = [v for v in graph.initializers.values() if v.dtype.is_floating_point()]
    contents = [value.const_value for value in weights]
    for value in weights:
        graph.initializers.pop(value.name)
        graph.inputs.append(value)
        value.const_value = None
    # The optimiser removes every Identity, and with it the places that stop a gradient.
    cuts = [
        node
        for node in graph
        if node.op_type == "Identity" and "aten.detach." in node.metadata_props.get(FX_NODE, "")
    ]
    for node in cuts:
        node.domain, node.op_type = "remat_compile", "Detach"
    try:
        optimizer.optimize(model)
    finally:
        for node in cuts:
            node.domain, node.op_type = "", "Identity"
        for value, content in zip(weights, contents, strict=True):
            graph.inputs.remove(value)
            value.const_value = content
            graph.initializers[value.name] = value
