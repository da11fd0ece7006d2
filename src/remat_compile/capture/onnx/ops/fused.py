"""Operators that ONNX Runtime's optimiser fuses (domain `com.microsoft`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Value
from ..table import MICROSOFT, register


@register("Gelu", "BiasGelu", "FastGelu", domain=MICROSOFT)
def gelu(call: Call, x: Value, bias: Value = None) -> Tensor:
    data = call.tensor(x)
    data = data if bias is None else data + call.tensor(bias)
    return F.gelu(data, approximate="tanh" if call.op == "FastGelu" else "none")


@register("QuickGelu", domain=MICROSOFT)
def quick_gelu(call: Call, x: Value) -> Tensor:
    data = call.tensor(x)
    return data * torch.sigmoid(call.number("alpha", 1.702) * data)


@register("FusedMatMul", domain=MICROSOFT)
def fused_matmul(call: Call, a: Value, b: Value) -> Tensor:
    left, right = call.tensor(a), call.tensor(b)
    if call.flag("transBatchA") or call.flag("transBatchB"):
        call.refuse("transBatchA and transBatchB are not supported")
    left = left.transpose(-1, -2) if call.flag("transA") and left.ndim > 1 else left
    right = right.transpose(-1, -2) if call.flag("transB") and right.ndim > 1 else right
    product = torch.matmul(left, right)
    alpha = call.number("alpha", 1.0)
    return product if alpha == 1.0 else product * alpha


@register("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(
    call: Call, x: Value, skip: Value, gamma: Value, beta: Value = None, bias: Value = None
) -> tuple[Tensor | None, ...]:
    """Normalises `x + skip + bias`; outputs 1 and 2 (mean, inverse deviation) are not written."""
    simplified = call.op == "SkipSimplifiedLayerNormalization"
    if simplified:  # its inputs are x, skip, gamma, bias
        beta, bias = None, beta
    total = call.tensor(x) + call.tensor(skip)
    total = total if bias is None else total + call.tensor(bias)
    weight = call.tensor(gamma)
    eps = call.number("epsilon", 1e-12)
    if call.has(1) or call.has(2):
        call.refuse("the outputs mean and inv_std_var are not supported")
    if simplified:
        out = F.rms_norm(total, weight.shape, weight, eps)
    else:
        out = F.layer_norm(total, weight.shape, weight, call.optional(beta), eps)
    return out, None, None, total


@register("Attention", domain=MICROSOFT)
def attention(
    call: Call,
    x: Value,
    weights: Value,
    bias: Value = None,
    mask: Value = None,
    past: Value = None,
    extra: Value = None,
) -> Tensor:
    """One projection to queries, keys and values, then attention."""
    if past is not None or call.has(1):
        call.refuse("past and present are not supported")
    weight = call.tensor(weights)
    projected = torch.matmul(call.tensor(x), weight)
    projected = projected if bias is None else projected + call.tensor(bias)
    sizes = call.integers("qkv_hidden_sizes", [weight.shape[1] // 3] * 3)
    q, k, v = torch.split(projected, sizes, -1)
    return _attend(call, q, k, v, call.optional(mask), call.optional(extra))


@register("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    call: Call,
    query: Value,
    key: Value = None,
    value: Value = None,
    bias: Value = None,
    mask: Value = None,
    extra: Value = None,
    past_key: Value = None,
    past_value: Value = None,
) -> Tensor:
    if key is None or value is None or past_key is not None or past_value is not None:
        call.refuse("packed queries and past keys are not supported")
    parts = [call.tensor(one) for one in (query, key, value)]
    if any(part.ndim != 3 for part in parts) or call.has(1):
        call.refuse("only 3-dimensional queries, keys and values, and one output, are supported")
    if bias is not None:
        added = torch.split(call.tensor(bias), [part.shape[-1] for part in parts])
        parts = [part + own for part, own in zip(parts, added, strict=True)]
    q, k, v = parts
    return _attend(call, q, k, v, call.optional(mask), call.optional(extra))


def _attend(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, extra: Tensor | None
) -> Tensor:
    heads = call.integer("num_heads", 1)
    q, k, v = (p.reshape(*p.shape[:2], heads, -1).transpose(1, 2) for p in (q, k, v))
    scale = call.number("scale", 0.0) or None
    bias = extra
    if mask is not None:
        hidden = _hidden(call, mask, q.shape[2], k.shape[2])
        filled = hidden.to(q.dtype) * call.number("mask_filter_value", -10000.0)
        bias = filled if bias is None else bias + filled
    if call.flag("unidirectional"):
        future = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        start = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias
        bias = torch.where(future, torch.finfo(q.dtype).min, start)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    return out.transpose(1, 2).flatten(2)


def _hidden(call: Call, mask: Tensor, queries: int, keys: int) -> Tensor:
    """Which keys are hidden, from lengths (batch), or from 0 and 1 (batch, [queries,] keys)."""
    if mask.ndim == 1:
        place = torch.arange(keys, device=mask.device)
        return (place >= mask.unsqueeze(1)).unsqueeze(1).unsqueeze(1)
    if mask.ndim == 2 and mask.shape[1] == keys:
        return mask.eq(0).unsqueeze(1).unsqueeze(1)
    if mask.ndim == 3 and mask.shape[1:] == (queries, keys):
        return mask.eq(0).unsqueeze(1)
    return call.refuse(f"a mask of shape {list(mask.shape)} is not supported")
