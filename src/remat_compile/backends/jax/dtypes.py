"""Dtypes of the IR in JAX. Does not load JAX."""

from __future__ import annotations

from ...ir.diagnostics import fail, nearest

JAX_DTYPES: dict[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool_",
    "c64": "complex64",
    "c128": "complex128",
}
"""A dtype of the IR -> its name in `jax.numpy`."""


def dtype_name(name: str) -> str:
    """`f32` -> `float32`. Raises FBError FB0902 for an unknown name."""
    if name not in JAX_DTYPES:
        fail("FB0902", f"unknown dtype {name}.{nearest(name, JAX_DTYPES)}")
    return JAX_DTYPES[name]
