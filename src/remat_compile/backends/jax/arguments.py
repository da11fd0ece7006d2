"""Arguments of the IR as the lowerings take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ...ir.expr import Add, CeilDiv, Const, FloorDiv, Max, Mul, RoundUp, Sym, evaluate
from ...ir.graph import Arg, Atom, Ref
from .dtypes import dtype_name


def jax_dtype(name: str) -> Any:
    """`f32` -> `jnp.float32`. Raises FBError FB0902 for an unknown name."""
    return getattr(jnp, dtype_name(name))


def to_jax(arg: Arg, env: Mapping[str, int], values: Mapping[str, Any]) -> Any:
    """An argument of the IR as a lowering takes it.

    `env` binds the symbols, `values` the names of aNodes and views.
    """
    match arg:
        case Ref(name):
            return values[name]
        case Atom("dtype", value):
            return jax_dtype(value)
        case Atom():
            raise ValueError(f"{arg} is no matter of values")
        case tuple():
            return tuple(to_jax(part, env, values) for part in arg)
        case Add() | CeilDiv() | Const() | FloorDiv() | Max() | Mul() | RoundUp() | Sym():
            return evaluate(arg, env)
        case _:
            return arg
