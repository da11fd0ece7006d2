"""Convolutions of one to three spatial axes, also transposed, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ._registry import lowers


def _convolved(
    x: Array,
    weight: Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Array:
    """The convolution of x [N, C, ...] without bias; axes given once count for all."""
    rank = x.ndim - 2
    stride, padding, dilation, output_padding = (
        tuple(v) * rank if len(v) == 1 else tuple(v)
        for v in (stride, padding, dilation, output_padding)
    )
    letters = "DHW"[3 - rank :]
    layout = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    if not transposed:
        pads = [(p, p) for p in padding]
        return lax.conv_general_dilated(
            x, weight, stride, pads, None, dilation, layout, feature_group_count=groups
        )
    # The transpose: a convolution of the stretched input with the flipped kernel,
    # whose channels [C_in, C_out / groups] change places within each group.
    kernel = weight.shape[2:]
    flipped = jnp.flip(weight, tuple(range(2, weight.ndim)))
    grouped = flipped.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    turned = jnp.swapaxes(grouped, 1, 2).reshape(-1, weight.shape[0] // groups, *kernel)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    pads = [(r - p, r - p + o) for r, p, o in zip(reach, padding, output_padding, strict=True)]
    ones = (1,) * rank
    return lax.conv_general_dilated(
        x, turned, ones, pads, stride, dilation, layout, feature_group_count=groups
    )


@lowers("aten.convolution.default")
def aten_convolution_default(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Array:
    out = _convolved(input, weight, stride, padding, dilation, transposed, output_padding, groups)
    return out if bias is None else out + bias.reshape((1, -1) + (1,) * (out.ndim - 2))


@lowers("aten.convolution_backward.default")
def aten_convolution_backward_default(
    grad_output: Array,
    input: Array,
    weight: Array,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Array | None, Array | None, Array | None]:
    how = (stride, padding, dilation, transposed, output_padding, groups)
    grad_input = grad_weight = grad_bias = None
    # A convolution is linear in each operand: its transpose is the gradient, and the
    # forward is not run again.
    if output_mask[0]:
        (grad_input,) = jax.linear_transpose(lambda x: _convolved(x, weight, *how), input)(
            grad_output
        )
    if output_mask[1]:
        (grad_weight,) = jax.linear_transpose(lambda w: _convolved(input, w, *how), weight)(
            grad_output
        )
    if output_mask[2]:
        grad_bias = jnp.sum(grad_output, (0, *range(2, grad_output.ndim)))
    return grad_input, grad_weight, grad_bias
