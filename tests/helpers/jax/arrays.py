"""PyTorch tensors and arguments as JAX has them, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from remat_compile.backends.jax.arguments import jax_dtype
from remat_compile.operators.aten import from_torch_dtype

_PLAIN_CODE = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


@cache
def plain_code() -> dict[str, Any]:
    """Compiler options under which XLA compiles many small computations five times as fast; those
    of them that this XLA knows."""
    lowered = jax.jit(lambda x: x).lower(0.0)
    known: dict[str, Any] = {}
    for name, value in _PLAIN_CODE.items():
        with suppress(jax.errors.JaxRuntimeError):
            lowered.compile({name: value})  # type: ignore[dict-item]
            known[name] = value
    return known


@contextmanager
def quick_compilation(*, x64: bool) -> Iterator[None]:
    """XLA without most of its optimisations: compiling is what these tests spend time on.
    What the optimised code does is tested where plans are emitted."""
    with jax.enable_x64(x64):
        jax.config.update("jax_disable_most_optimizations", True)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            jax.config.update("jax_disable_most_optimizations", False)  # type: ignore[no-untyped-call]


def from_torch(tensor: Tensor) -> jax.Array:
    """A copy of a tensor as a JAX array of the same dtype."""
    plain = tensor.detach().contiguous()
    # `jnp.asarray` would compile a copy, or a conversion, for each shape.
    held: np.ndarray[Any, Any] = (
        plain.float().numpy().astype(jnp.bfloat16)
        if plain.dtype == torch.bfloat16
        else plain.numpy().copy()
    )
    array: jax.Array = jax.device_put(held)
    return array


def to_numpy(value: Tensor | jax.Array) -> np.ndarray[Any, Any]:
    """Values of either; bfloat16 as float32."""
    if isinstance(value, Tensor):
        plain = value.detach()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array


def translated(argument: Any) -> Any:
    """An argument of an ATen operator as its lowering takes it."""
    match argument:
        case Tensor():
            return from_torch(argument)
        case torch.dtype():
            return jax_dtype(from_torch_dtype(argument))
        case torch.device() | torch.layout() | torch.memory_format():
            return None
        case list() | tuple():
            return tuple(translated(part) for part in argument)
        case dict():
            return {key: translated(part) for key, part in argument.items()}
        case _:
            return argument
