"""Sample inputs: from the declared types, or from an `.npz` file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...ir.diagnostics import Diagnostic, FBError, nearest
from .call import DTYPES
from .convert import type_name
from .limits import LARGEST_BYTES

__all__ = ["Declared", "bind_dims", "declared_inputs", "sample_inputs"]

_SEED = 0

_NUMPY_BITS = {torch.bfloat16: np.dtype(np.uint16)}
"""How `.npz` files hold types that numpy lacks: as their bits, without a name of their own."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A model input: its type and its dimensions, integers or names (`x[0]` if it has none)."""

    name: str
    dtype: torch.dtype
    dims: tuple[int | str, ...]


def declared_inputs(graph: Any) -> tuple[Declared, ...]:
    """The inputs that are not initialisers. Raises FB0614 for sequences, strings and the like."""
    given = {tensor.name for tensor in graph.initializer}
    declared, problems = [], []
    for value in graph.input:
        if value.name in given:
            continue
        kind = value.type.WhichOneof("value")
        tensor = value.type.tensor_type
        if kind != "tensor_type" or tensor.elem_type not in DTYPES:
            what = kind if kind != "tensor_type" else type_name(tensor.elem_type)
            problems.append(Diagnostic("FB0614", f'input "{value.name}" has type {what}'))
            continue
        dims = tuple(
            # Old exporters write -1 for a dimension that they do not know.
            dim.dim_value
            if dim.HasField("dim_value") and dim.dim_value >= 0
            else dim.dim_param or f"{value.name}[{i}]"
            for i, dim in enumerate(tensor.shape.dim)
        )
        declared.append(Declared(value.name, DTYPES[tensor.elem_type], dims))
    if problems:
        raise FBError(problems)
    return tuple(declared)


def bind_dims(
    inputs: tuple[Declared, ...], dims: Mapping[str, str | int], sample: Mapping[str, Any]
) -> dict[str, int]:
    """A size for every named dimension, from `dims` or from the sample's shapes.

    Raises FB0608 (dimensions without a size, all of them) and FB0609 (a wrong `--dim`).
    """
    names = {dim: None for item in inputs for dim in item.dims if isinstance(dim, str)}
    problems = []
    bound: dict[str, int] = {}
    for name, text in dims.items():
        if name not in names:
            known = ", ".join(f'"{n}"' for n in names) or "none"
            message = f'no input has a dimension "{name}" (there are: {known}).'
            problems.append(Diagnostic("FB0609", message + nearest(name, names)))
            continue
        size = _size(name, text)
        if isinstance(size, Diagnostic):
            problems.append(size)
        else:
            bound[name] = size
    if problems:
        raise FBError(problems, usage=True)
    for item in inputs:
        shape = np.shape(sample[item.name]) if item.name in sample else ()
        for dim, size in zip(item.dims, shape, strict=False):
            if isinstance(dim, str):
                bound.setdefault(dim, int(size))
    missing = [name for name in names if name not in bound]
    if missing:
        options = " ".join(f"--dim {_quoted(name)}=N" for name in missing)
        what = ", ".join(f'"{name}"' for name in missing)
        message = f"dynamic dimensions without a size: {what}"
        raise FBError(Diagnostic("FB0608", message, hint=f"give {options}"), usage=True)
    return bound


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def _size(name: str, text: str | int) -> int | Diagnostic:
    if isinstance(text, str) and ".." in text:
        message = f"--dim {name}={text}: a range is not supported for ONNX files yet"
        return Diagnostic("FB0609", message, hint=f"give one size, as in --dim {name}=8")
    try:
        size = int(text)
    except ValueError:
        return Diagnostic("FB0609", f'--dim {name}={text}: "{text}" is not an integer')
    if size < 1:
        return Diagnostic("FB0609", f"--dim {name}={size}: the size must be at least 1")
    return size


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
        shapes = [_shape(item, bound) for item in inputs]
        sizes = [math.prod(s) * i.dtype.itemsize for i, s in zip(inputs, shapes, strict=True)]
        _check_size(sum(sizes))
        return tuple(_made(item, _shape(item, bound), generator) for item in inputs)
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
            problems += _compare(item, _shape(item, bound), array)
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


def _shape(item: Declared, bound: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(bound[dim] if isinstance(dim, str) else dim for dim in item.dims)


def _made(item: Declared, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if item.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(item.dtype)
    return torch.zeros(shape, dtype=item.dtype)
