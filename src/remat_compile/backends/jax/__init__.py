"""JAX backend: a schedule becomes one readable module with a `jax.custom_vjp`.

Nothing here loads JAX before it is used.
"""

from __future__ import annotations

from .emit.module import emit, operators_of
from .observe.predict import predicted_temp_bytes

__all__ = ["emit", "operators_of", "predicted_temp_bytes"]
