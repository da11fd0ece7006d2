"""Losses and their gradients. `reduction` is 0 for none, 1 for mean, 2 for sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ._dtypes import _wide
from ._registry import lowers, lowers_each


def _reduced(losses: Array, reduction: int) -> Array:
    """The losses, their mean or their sum."""
    return losses if reduction == 0 else (jnp.mean, jnp.sum)[reduction - 1](losses)


def _shared(grad_output: Array, reduction: int, count: int) -> Array:
    """Each element's share of the loss's gradient."""
    return _wide(grad_output) / count if reduction == 1 else _wide(grad_output)


@lowers("aten.mse_loss_backward.default")
def aten_mse_loss_backward_default(
    grad_output: Array, x: Array, target: Array, reduction: int
) -> Array:
    difference = _wide(x) - _wide(target)
    g = _shared(grad_output, reduction, difference.size)
    return (2 * difference * g).astype(x.dtype)


@lowers("aten.smooth_l1_loss.default")
def aten_smooth_l1_loss_default(
    x: Array, target: Array, reduction: int = 1, beta: float = 1.0
) -> Array:
    distance = jnp.abs(_wide(x) - _wide(target))
    losses = distance
    if beta > 0:
        losses = jnp.where(distance < beta, 0.5 * distance**2 / beta, distance - 0.5 * beta)
    return _reduced(losses, reduction).astype(x.dtype)


@lowers("aten.smooth_l1_loss_backward.default")
def aten_smooth_l1_loss_backward_default(
    grad_output: Array, x: Array, target: Array, reduction: int, beta: float
) -> Array:
    difference = _wide(x) - _wide(target)
    slope = jnp.clip(difference / beta, -1, 1) if beta > 0 else jnp.sign(difference)
    g = _shared(grad_output, reduction, difference.size)
    return (slope * g).astype(x.dtype)


@lowers("aten.huber_loss.default")
def aten_huber_loss_default(
    x: Array, target: Array, reduction: int = 1, delta: float = 1.0
) -> Array:
    distance = jnp.abs(_wide(x) - _wide(target))
    losses = jnp.where(distance <= delta, 0.5 * distance**2, delta * (distance - 0.5 * delta))
    return _reduced(losses, reduction).astype(x.dtype)


@lowers("aten.huber_loss_backward.default")
def aten_huber_loss_backward_default(
    grad_output: Array, x: Array, target: Array, reduction: int, delta: float
) -> Array:
    difference = _wide(x) - _wide(target)
    g = _shared(grad_output, reduction, difference.size)
    return (jnp.clip(difference, -delta, delta) * g).astype(x.dtype)


@lowers("aten.binary_cross_entropy.default")
def aten_binary_cross_entropy_default(
    x: Array, target: Array, weight: Array | None = None, reduction: int = 1
) -> Array:
    p, t = _wide(x), _wide(target)
    # PyTorch keeps each logarithm above -100.
    losses = (t - 1) * jnp.maximum(jnp.log1p(-p), -100) - t * jnp.maximum(jnp.log(p), -100)
    if weight is not None:
        losses = losses * _wide(weight)
    return _reduced(losses, reduction).astype(x.dtype)


@lowers("aten.binary_cross_entropy_backward.default")
def aten_binary_cross_entropy_backward_default(
    grad_output: Array,
    x: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    p, t = _wide(x), _wide(target)
    g = _shared(grad_output, reduction, p.size)
    if weight is not None:
        g = g * _wide(weight)
    return (g * (p - t) / jnp.maximum((1 - p) * p, 1e-12)).astype(x.dtype)


@lowers("aten.binary_cross_entropy_with_logits.default")
def aten_binary_cross_entropy_with_logits_default(
    x: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    logits, t = _wide(x), _wide(target)
    slack = jax.nn.softplus(-logits)
    if pos_weight is not None:
        slack = slack * ((_wide(pos_weight) - 1) * t + 1)
    losses = (1 - t) * logits + slack
    if weight is not None:
        losses = losses * _wide(weight)
    return _reduced(losses, reduction).astype(x.dtype)


def _class_weights(
    target: Array, weight: Array | None, ignore_index: int, like: Array
) -> tuple[Array, Array]:
    """The classes with ignored ones replaced by 0, and the weight of each, 0 if ignored."""
    kept = target != ignore_index
    classes = jnp.where(kept, target, 0)
    own = jnp.ones((), like.dtype) if weight is None else _wide(weight)[classes]
    return classes, jnp.where(kept, own, 0)


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def aten_nll_loss_forward_default(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """Losses of log-probabilities whose classes stand on axis 1 (on axis 0 if alone)."""
    scores, axis = _wide(x), min(x.ndim - 1, 1)
    classes, weights = _class_weights(target, weight, ignore_index, scores)
    picked = jnp.take_along_axis(scores, jnp.expand_dims(classes, axis), axis)
    losses = -jnp.squeeze(picked, axis) * weights
    if reduction == 0 and x.ndim > 1:
        return losses.astype(x.dtype), jnp.zeros((), x.dtype)
    total = jnp.sum(weights)
    loss = jnp.sum(losses)
    return (loss / total if reduction == 1 else loss).astype(x.dtype), total.astype(x.dtype)


@lowers("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def aten_nll_loss_backward_default(
    grad_output: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    g, axis = _wide(grad_output), min(x.ndim - 1, 1)
    classes, weights = _class_weights(target, weight, ignore_index, g)
    if reduction == 1:
        g = g / _wide(total_weight)
    hit = jnp.expand_dims(classes, axis) == jnp.expand_dims(
        jnp.arange(x.shape[axis]), tuple(a for a in range(x.ndim) if a != axis)
    )
    return jnp.where(hit, jnp.expand_dims(-g * weights, axis), 0).astype(x.dtype)


lowers_each(
    {
        "aten.mse_loss.default": lambda x, target, reduction=1: _reduced(
            jnp.square(_wide(x) - _wide(target)), reduction
        ).astype(x.dtype),
        "aten.soft_margin_loss.default": lambda x, target, reduction=1: _reduced(
            jnp.logaddexp(0, -_wide(x) * _wide(target)), reduction
        ).astype(x.dtype),
        "aten.soft_margin_loss_backward.default": lambda grad_output, x, target, reduction: (
            -_wide(target)
            * jax.nn.sigmoid(-_wide(x) * _wide(target))
            * _wide(grad_output)
            / (x.size if reduction == 1 else 1)
        ).astype(x.dtype),
    }
)
