"""Padding by reflection and repetition, and moving channels into pixels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ._registry import lowers


def _padded(x: Array, padding: tuple[int, ...], mode: str) -> Array:
    """`x` padded on its last axes; `padding` names the last axis first."""
    pairs = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)][::-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, mode=mode)


def _unpadded(grad_output: Array, x: Array, padding: tuple[int, ...], mode: str) -> Array:
    """The gradient of `_padded`, which is linear: its transpose."""
    (grad_input,) = jax.linear_transpose(lambda v: _padded(v, padding, mode), x)(grad_output)
    return jnp.asarray(grad_input)


@lowers("aten.reflection_pad1d.default", "aten.reflection_pad2d.default")
def aten_reflection_pad1d_default(x: Array, padding: tuple[int, ...]) -> Array:
    return _padded(x, padding, "reflect")


@lowers("aten.reflection_pad1d_backward.default", "aten.reflection_pad2d_backward.default")
def aten_reflection_pad1d_backward_default(
    grad_output: Array, x: Array, padding: tuple[int, ...]
) -> Array:
    return _unpadded(grad_output, x, padding, "reflect")


@lowers("aten.replication_pad1d.default", "aten.replication_pad2d.default")
def aten_replication_pad1d_default(x: Array, padding: tuple[int, ...]) -> Array:
    return _padded(x, padding, "edge")


@lowers("aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default")
def aten_replication_pad1d_backward_default(
    grad_output: Array, x: Array, padding: tuple[int, ...]
) -> Array:
    return _unpadded(grad_output, x, padding, "edge")


@lowers("aten.pixel_shuffle.default")
def aten_pixel_shuffle_default(x: Array, upscale_factor: int) -> Array:
    *outer, channels, height, width = x.shape
    r = upscale_factor
    parts = x.reshape(*outer, channels // r**2, r, r, height, width)
    mixed = jnp.moveaxis(parts, (-4, -3), (-3, -1))
    return mixed.reshape(*outer, channels // r**2, height * r, width * r)


@lowers("aten.pixel_unshuffle.default")
def aten_pixel_unshuffle_default(x: Array, downscale_factor: int) -> Array:
    *outer, channels, height, width = x.shape
    r = downscale_factor
    parts = x.reshape(*outer, channels, height // r, r, width // r, r)
    mixed = jnp.moveaxis(parts, (-3, -1), (-4, -3))
    return mixed.reshape(*outer, channels * r**2, height // r, width // r)
