"""Sparse initialisers: their values are trained, the zeros between them are not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from ....ir.diagnostics import Diagnostic, FBError
from .limits import check_bytes


def spread_sparse(model: Any) -> None:
    """Make every sparse initialiser a dense one of its values, and a scatter into zeros.

    The values keep the name; the dense tensor that nodes read is called `NAME/dense`.
    Raises FB0606 for indices that do not fit.
    """
    graph = model.graph
    made = []
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        flat, dims = _positions(sparse), list(sparse.dims)
        dense, step = f"{name}/dense", f"{name}/sparse"
        zero = onnx.helper.make_tensor(f"{step}/zero", sparse.values.data_type, [1], [0])
        for suffix, array in (("size", [math.prod(dims)]), ("at", flat), ("dims", dims)):
            array = np.asarray(array, np.int64)
            graph.initializer.append(onnx.numpy_helper.from_array(array, f"{step}/{suffix}"))
        graph.initializer.append(sparse.values)
        made += [
            onnx.helper.make_node(
                "ConstantOfShape", [f"{step}/size"], [f"{step}/zeros"], value=zero
            ),
            onnx.helper.make_node(
                "ScatterElements", [f"{step}/zeros", f"{step}/at", name], [f"{step}/flat"], axis=0
            ),
            onnx.helper.make_node("Reshape", [f"{step}/flat", f"{step}/dims"], [dense]),
        ]
        _rename_reads(graph, name, dense)
    if made:
        nodes = [*made, *graph.node]
        del graph.sparse_initializer[:]
        del graph.node[:]
        graph.node.extend(nodes)


def dense_of(sparse: Any) -> Any:
    """A sparse tensor as a dense `TensorProto`."""
    values = onnx.numpy_helper.to_array(sparse.values)
    flat = _positions(sparse)
    dense = np.zeros(math.prod(sparse.dims), values.dtype)
    dense[flat] = values
    return onnx.numpy_helper.from_array(dense.reshape(list(sparse.dims)), sparse.values.name)


def _positions(sparse: Any) -> Any:
    """Where the values stand in the flattened tensor; indices are flat, or one row a value."""
    name, dims = sparse.values.name, list(sparse.dims)
    check_bytes(f'the sparse tensor "{name}"', math.prod(dims) * 8)
    indices = onnx.numpy_helper.to_array(sparse.indices).astype(np.int64)
    count = sparse.values.dims[0] if len(sparse.values.dims) == 1 else -1
    shapes = ((count,), (count, len(dims)))
    if indices.shape not in shapes:
        raise _refused(name, f"indices of shape {list(indices.shape)} for {count} values")
    limits = dims if indices.ndim == 2 else [math.prod(dims)]
    if (indices < 0).any() or (indices >= np.asarray(limits)).any():
        raise _refused(name, "an index lies outside the tensor")
    if indices.ndim == 1:
        return indices
    return np.ravel_multi_index(tuple(indices.T), dims) if len(indices) else indices[:, 0]


def _refused(name: str, reason: str) -> FBError:
    return FBError(Diagnostic("FB0606", f'sparse tensor "{name}": {reason}'))


def _rename_reads(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_reads(attribute.g, old, new)
