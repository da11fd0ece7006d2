"""ONNX tensors, attributes and names to what Python and torch use."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import torch
from torch import Tensor

from ....ir.diagnostics import Diagnostic, FBError
from ..call import DTYPES, decimal_float
from .load import load_weights
from .sparse import dense_of

LONGEST = 64
"""Characters of the name of a node in a place."""


def type_name(elem_type: int) -> str:
    """The ONNX name of an element type."""
    return str(onnx.TensorProto.DataType.Name(elem_type))


def to_tensor(proto: Any, base: Path) -> Tensor:
    """A `TensorProto` as a torch tensor that owns its storage. Raises FB0614."""
    if proto.data_type not in DTYPES:
        kind = type_name(proto.data_type)
        raise FBError(Diagnostic("FB0614", f'tensor "{proto.name}" has element type {kind}'))
    load_weights(proto, base)
    dtype = DTYPES[proto.data_type]
    try:
        array = np.asarray(onnx.numpy_helper.to_array(proto))
    except (ValueError, TypeError, OverflowError) as error:
        message = f'tensor "{proto.name}" of shape {list(proto.dims)} cannot be read: {error}'
        raise FBError(Diagnostic("FB0606", message)) from None
    if dtype == torch.bfloat16:
        if array.dtype == np.float32:  # onnx before 1.19
            return torch.from_numpy(array.copy()).to(dtype)
        bits = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        return bits.reshape(array.shape)
    return torch.from_numpy(np.array(array, copy=True, order="C"))


def attributes_of(node: Any, base: Path) -> dict[str, Any]:
    """Attributes by name; tensors and floats converted, graphs left as they are."""
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.type == onnx.AttributeProto.TENSOR:
            value = to_tensor(value, base)
        elif attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            value = to_tensor(dense_of(value), base)
        elif attribute.type == onnx.AttributeProto.FLOAT:
            value = decimal_float(value)
        elif attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
            value = list(value)
        attributes[attribute.name] = value
    return attributes


def metadata(proto: Any, key: str) -> str | None:
    """A `metadata_props` entry."""
    return next((p.value for p in proto.metadata_props if p.key == key), None)


def name_of(node: Any) -> str:
    """The node's name, or that of its first result."""
    return str(node.name or next((name for name in node.output if name), node.op_type))


def path_of(node: Any) -> tuple[str, ...]:
    """Where the node stands in the module tree: the exporter's module path, then its name.

    `torch.onnx.export` records the path; other exporters write it into the name
    (`/encoder/layer.0/MatMul`).
    """
    outer, leaf = _modules_of(node), name_of(node)
    parts = (*outer, leaf) if outer else tuple(filter(None, re.split(r"[/.]", leaf))) or (leaf,)
    return tuple(map(clean, parts))


def _modules_of(node: Any) -> list[str]:
    scopes = scopes_of(metadata(node, "pkg.torch.onnx.name_scopes") or "")
    modules = [scope for scope in scopes[:-1] if scope]
    return modules[-1].split(".") if modules else []


def place_of(node: Any, opset: int) -> str:
    """Return the place of a computation as a plan says it: modules, node, operator and opset."""
    name = name_of(node)
    if len(name) > LONGEST:
        name = f"{name[: LONGEST // 2]}...{name[-LONGEST // 2 :]}"
    path = "".join(c if c.isprintable() else "_" for c in ".".join((*_modules_of(node), name)))
    return f"{path} ({node.op_type}, opset {opset})"


def scopes_of(text: str) -> list[str]:
    """The exporter's list of module paths; empty where it is none."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [str(scope) for scope in scopes] if isinstance(scopes, list | tuple) else []


def clean(name: str) -> str:
    """A name that a module attribute may have."""
    return re.sub(r"\W", "_", name) or "_"
