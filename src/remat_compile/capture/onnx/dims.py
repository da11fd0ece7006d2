"""Sizes of the dimensions that an ONNX file leaves open. Needs no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...ir.diagnostics import Diagnostic, FBError, nearest
from .file.parse import parse

Dims = Mapping[str, Sequence[int | str]]
"""The dimensions of each input, in order: a size, a name, or the place of one without a name."""


def dims_of(graph: Any) -> dict[str, tuple[int | str, ...]]:
    """The dimensions of the inputs that are not initialisers."""
    given = {tensor.name for tensor in graph.initializer}
    values = [value for value in graph.input if value.name not in given]
    return {
        value.name: tuple(
            _dimension(dim, f"{value.name}[{i}]")
            for i, dim in enumerate(value.type.tensor_type.shape.dim)
        )
        for value in values
    }


def _dimension(dim: Any, place: str) -> int | str:
    """Exporters write -1, `?` or nothing for a dimension that they do not know."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    name = str(dim.dim_param)
    return name if any(map(str.isalpha, name)) else place


def check_dims(path: str | os.PathLike[str], dims: Mapping[str, str | int]) -> None:
    """Raises what `parse` and `bind_dims` raise."""
    bind_dims(dims_of(parse(Path(path))[1].graph), dims)


def bind_dims(
    inputs: Dims,
    dims: Mapping[str, str | int],
    sample: Mapping[str, Any] | None = None,
    planned: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, int]:
    """A size for every open dimension by name or by place (`x[0]`), which goes first: from `dims`,
    from the arrays of the sample, or from the shapes of a plan's arguments.

    Raises FB0608 (dimensions without a size, all of them) and FB0609 (a wrong `--dim`).
    """
    places = {
        f"{item}[{i}]": dim
        for item, of_one in inputs.items()
        for i, dim in enumerate(of_one)
        if isinstance(dim, str)
    }
    names = list(dict.fromkeys((*places.values(), *places)))
    problems = []
    bound: dict[str, int] = {}
    for name, text in dims.items():
        size = _size(name, text)
        if name not in names:
            known = ", ".join(f'"{n}"' for n in names) or "none"
            message = f'no input has a dynamic dimension "{name}" (there are: {known}).'
            problems.append(Diagnostic("FB0609", message + nearest(name, names)))
        elif isinstance(size, Diagnostic):
            problems.append(size)
        else:
            bound[name] = size
    if problems:
        raise FBError(problems, usage=True)
    for item, array in (sample or {}).items():
        for dim, size in zip(inputs.get(item, ()), np.shape(array), strict=False):
            if isinstance(dim, str):
                bound.setdefault(dim, int(size))
    for item, shape in (planned or {}).items():
        for i, size in enumerate(shape):
            if not bound.keys() & {f"{item}[{i}]", places.get(f"{item}[{i}]")}:
                bound[f"{item}[{i}]"] = size
    missing = dict.fromkeys(d for place, d in places.items() if not bound.keys() & {place, d})
    if missing:
        options = " ".join(f"--dim {_quoted(name)}=N" for name in missing)
        what = ", ".join(f'"{name}"' for name in missing)
        message = f"dynamic dimensions without a size: {what}"
        several = [p for p, d in places.items() if [*places.values()].count(d) > 1 and d in missing]
        by_place = f'; one of several places by itself: --dim "{several[0]}"=N' if several else ""
        raise FBError(Diagnostic("FB0608", message, hint=f"give {options}{by_place}"), usage=True)
    return bound


def shape_of(item: str, dims: Sequence[int | str], bound: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input with these dimensions."""
    return tuple(
        bound.get(f"{item}[{i}]", bound.get(dim, 0)) if isinstance(dim, str) else dim
        for i, dim in enumerate(dims)
    )


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
