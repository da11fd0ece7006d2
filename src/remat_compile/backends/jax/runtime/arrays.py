"""Tensors of PyTorch as arrays of numpy and JAX, and back; entries of a `.npz` file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

Stored = Mapping[str, Mapping[str, Any]]
"""Arrays by kind (`param`, `grad`, ...) and name."""

_BITS: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}
"""Types that numpy lacks: the integer type of the same size, and the type of ml_dtypes."""


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A copy on the host, in ml_dtypes' type where numpy has none."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype in _BITS:
        bits, dtype = _BITS[plain.dtype]
        array: np.ndarray[Any, Any] = plain.view(bits).numpy().view(dtype).copy()
        return array
    made: np.ndarray[Any, Any] = plain.numpy().copy()
    return made


def to_tensor(array: Any, device: torch.device | str = "cpu") -> Tensor:
    """Inverse of `to_numpy`, for arrays of numpy and JAX."""
    plain = np.asarray(array)
    for dtype, (bits, own) in _BITS.items():
        if plain.dtype == own:
            integer = np.int16 if bits == torch.int16 else np.uint8
            return torch.from_numpy(plain.view(integer).copy()).view(dtype).to(device)
    return torch.from_numpy(plain.copy()).to(device)


def write_npz(file: IO[bytes], stored: Stored) -> None:
    """Entries `kind|name|dtype`; types that numpy cannot store go as integers."""
    entries: dict[str, Any] = {}
    for kind, arrays in stored.items():
        for name, array in arrays.items():
            plain = np.asarray(array)
            dtype = plain.dtype.name
            if plain.dtype.kind == "V" or dtype.startswith(("bfloat", "float8")):
                plain = plain.view(f"u{plain.dtype.itemsize}")
            entries[f"{kind}|{name}|{dtype}"] = plain
    np.savez(file, **entries)
