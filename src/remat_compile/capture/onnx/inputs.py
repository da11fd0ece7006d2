"""Sample inputs: from the declared types, or from an `.npz` file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.helper
import onnx.numpy_helper
import torch
from torch import Tensor

from ...ir.diagnostics import Diagnostic, FBError, nearest
from .call import DTYPES
from .dims import dims_of, shape_of
from .file.convert import type_name
from .file.limits import LARGEST_BYTES

_SEED = 0

_NUMPY_BITS = {torch.bfloat16: np.dtype(np.uint16)}
"""Types that numpy lacks, as `.npz` files hold them: as their bits, without a name of their own."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A model input: its type and its dimensions, integers or names (`x[0]` if it has none)."""

    name: str
    dtype: torch.dtype
    dims: tuple[int | str, ...]


def declared_inputs(graph: Any) -> tuple[Declared, ...]:
    """The inputs that are not initialisers. Raises FB0614 for sequences, strings and the like."""
    given = {tensor.name for tensor in graph.initializer}
    declared, problems, dims = [], [], dims_of(graph)
    for value in graph.input:
        if value.name in given:
            continue
        kind = value.type.WhichOneof("value")
        tensor = value.type.tensor_type
        if kind != "tensor_type" or tensor.elem_type not in DTYPES:
            what = kind if kind != "tensor_type" else type_name(tensor.elem_type)
            problems.append(Diagnostic("FB0614", f'input "{value.name}" has type {what}'))
            continue
        declared.append(Declared(value.name, DTYPES[tensor.elem_type], dims[value.name]))
    if problems:
        raise FBError(problems)
    return tuple(declared)


def fixed_inputs(
    graph: Any, given: Mapping[str, str | float], bound: Mapping[str, int]
) -> list[onnx.TensorProto]:
    """Return the inputs that `--input NAME=VALUE` fixes: constants, each of one value or of a list.

    Raises FB0621 for what is no input, or no value of its type and shape.
    """
    values, dims = {value.name: value for value in graph.input}, dims_of(graph)
    made, problems = [], []
    for name, text in given.items():
        if name not in dims:
            message = f'--input {name}={text}: there is no input "{name}".{nearest(name, dims)}'
            problems.append(Diagnostic("FB0621", message))
            continue
        kind, shape = values[name].type.tensor_type.elem_type, shape_of(name, dims[name], bound)
        try:
            value = np.asarray(json.loads(str(text).lower()))
            array = np.broadcast_to(value, shape).astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
            # Integers must be themselves; a float has a rounding of its own.
            is_float = DTYPES[kind].is_floating_point
            if value.dtype.kind not in "biuf" or not (is_float or (array == value).all()):
                raise ValueError
        except (ValueError, TypeError, KeyError, OverflowError):
            message = f"--input {name}={text}: the input is {type_name(kind)}{list(shape)}"
            hint = "give a number, true or false, or a list: [1,2]"
            problems.append(Diagnostic("FB0621", message, hint=hint))
        else:
            made.append(onnx.numpy_helper.from_array(array, name))
    if problems:
        raise FBError(problems, usage=True)
    return made


def read_sample(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of an `.npz` file. Raises FB0610."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise ValueError("it holds one array and no names")
            return {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, OSError, ValueError, EOFError: all mean the same here
        reason = getattr(error, "strerror", None) or str(error)
        message = f'cannot read sample inputs from "{os.fspath(path)}": {reason}'
        hint = "write it with numpy.savez(path, input_name=array, ...)"
        raise FBError(Diagnostic("FB0610", message, hint=hint)) from error


def sample_inputs(
    inputs: tuple[Declared, ...], bound: Mapping[str, int], sample: Mapping[str, Any] | None
) -> tuple[Tensor, ...]:
    """Floats from a normal distribution with a fixed seed, integers 0, booleans false;
    or the arrays of the sample, which must fit (FB0610)."""
    if sample is None:
        generator = torch.Generator().manual_seed(_SEED)
        shapes = [shape_of(item.name, item.dims, bound) for item in inputs]
        sizes = [math.prod(s) * i.dtype.itemsize for i, s in zip(inputs, shapes, strict=True)]
        _check_size(sum(sizes))
        return tuple(_made(i, s, generator) for i, s in zip(inputs, shapes, strict=True))
    wanted = [item.name for item in inputs]
    problems = [
        _mismatch(f'array "{n}" is no input.{nearest(n, wanted)}')
        for n in sample
        if n not in wanted
    ]
    problems += [_mismatch(f'input "{n}" has no array') for n in wanted if n not in sample]
    for item in inputs:
        if item.name in sample:
            array = np.asarray(sample[item.name])
            problems += _compare(item, shape_of(item.name, item.dims, bound), array)
    if problems:
        raise FBError(problems)
    return tuple(_from_array(item, sample[item.name]) for item in inputs)


def _check_size(wanted_bytes: int) -> None:
    if wanted_bytes > LARGEST_BYTES:
        message = f"sample inputs of {wanted_bytes:,} bytes; {LARGEST_BYTES:,} are made at most"
        hint = "give smaller sizes, or inputs of your own: --sample inputs.npz"
        raise FBError(Diagnostic("FB0618", message, hint=hint))


def _mismatch(message: str) -> Diagnostic:
    return Diagnostic("FB0610", f"sample inputs: {message}")


def _compare(item: Declared, shape: tuple[int, ...], array: Any) -> list[Diagnostic]:
    problems = []
    if array.shape != shape:
        text = f'"{item.name}" has shape {list(array.shape)}, the model wants {list(shape)}'
        problems.append(_mismatch(text))
    wanted = _NUMPY_BITS.get(item.dtype) or torch.empty(0, dtype=item.dtype).numpy().dtype
    if array.dtype != wanted and not (item.dtype == torch.bfloat16 and array.dtype.str == "|V2"):
        kind = "bfloat16 (its bits as uint16)" if item.dtype == torch.bfloat16 else wanted
        problems.append(_mismatch(f'"{item.name}" has type {array.dtype}, the model wants {kind}'))
    return problems


def _from_array(item: Declared, array: Any) -> Tensor:
    flat = np.array(array, order="C").reshape(-1)
    if item.dtype in _NUMPY_BITS:
        return torch.from_numpy(flat.view(np.int16)).view(item.dtype).reshape(np.shape(array))
    return torch.from_numpy(flat).reshape(np.shape(array))


def _made(item: Declared, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if item.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(item.dtype)
    return torch.zeros(shape, dtype=item.dtype)
