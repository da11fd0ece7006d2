"""Attention, and what ONNX Runtime's optimiser fuses."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import DTYPES, MICROSOFT, Call, Value
from ..table import register


@register("Attention")
def attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    past_k: Value = None,
    past_v: Value = None,
    valid: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """`scaled_dot_product_attention` where it says the same, else spelled out."""
    flat = query.ndim == 3
    if flat:
        query = _heads(query, call.integer("q_num_heads", 1))
        key = _heads(key, call.integer("kv_num_heads", 1))
        value = _heads(value, call.integer("kv_num_heads", 1))
    past = 0
    if past_k is not None:
        past = call.tensor(past_k).shape[2]
        key = torch.cat([call.tensor(past_k), key], 2)
        value = torch.cat([call.tensor(past_v), value], 2)
    if bias is not None and bias.shape[-1] < key.shape[2]:
        fill = False if bias.dtype == torch.bool else -math.inf
        bias = F.pad(bias, [0, key.shape[2] - bias.shape[-1]], value=fill)
    scores: Tensor | None = None
    if _is_plain(call, query, bias, valid, past):
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            is_causal=call.flag("is_causal"),
            scale=_scale(call, query),
            enable_gqa=query.shape[1] != key.shape[1],
        )
    else:
        out, scores = _spelled_out(call, query, key, value, bias, valid, past)
    if flat:
        out = out.transpose(1, 2).flatten(2)
    return (out, key, value, scores)[: max(1, len(call.outputs))]


def _heads(x: Tensor, count: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _scale(call: Call, query: Tensor) -> float | None:
    """The attribute; None for the default, also where float32 cut its digits off."""
    given = call.attributes.get("scale")
    default = np.float32(1 / math.sqrt(query.shape[-1]))
    return None if given is None or np.float32(given) == default else call.number("scale", 0.0)


def _is_plain(
    call: Call, query: Tensor, bias: Tensor | None, valid: Tensor | None, past: int
) -> bool:
    window = call.integer("left_window_size", -1) >= 0 or call.integer("right_window_size", -1) >= 0
    causal = call.flag("is_causal")
    precision = call.integer("softmax_precision", 0)
    same = precision == 0 or DTYPES.get(precision) == query.dtype
    capped = call.number("softcap", 0.0) != 0.0
    unusual = window or capped or not same or valid is not None or call.has(3)
    return not unusual and not (causal and (bias is not None or past))


def _allowed(call: Call, query: Tensor, key: Tensor, valid: Tensor | None, past: int) -> Tensor:
    """Which keys a query may see, by causality, window and valid length: broadcasts to BHQK."""
    queries, keys = query.shape[2], key.shape[2]
    j = torch.arange(keys, device=query.device)
    i = torch.arange(queries, device=query.device).unsqueeze(1)
    if valid is not None and not past:
        offset = (valid.reshape(-1, 1, 1, 1) - queries).to(torch.int64)
    else:
        offset = torch.full((1, 1, 1, 1), past, device=query.device)
    position = i + offset
    allowed = torch.ones_like(position, dtype=torch.bool).expand(-1, -1, -1, keys)
    left, right = call.integer("left_window_size", -1), call.integer("right_window_size", -1)
    if call.flag("is_causal"):
        allowed = allowed & (j <= position)
    if left >= 0:
        allowed = allowed & (j >= position - left)
    if right >= 0:
        allowed = allowed & (j <= position + right)
    if valid is not None:
        allowed = allowed & (j < valid.reshape(-1, 1, 1, 1))
    return allowed


def _spelled_out(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    valid: Tensor | None,
    past: int,
) -> tuple[Tensor, Tensor]:
    """Output and the tensor that `qk_matmul_output_mode` asks for."""
    mode, cap = call.integer("qk_matmul_output_mode", 0), call.number("softcap", 0.0)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scale = _scale(call, query)
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = (query * root) @ (key * root).transpose(-2, -1)
    capped = cap * torch.tanh(scores / cap) if cap else scores
    total = _additive(_allowed(call, query, key, valid, past), bias, query.dtype)
    biased = capped + total
    stash = DTYPES.get(call.integer("softmax_precision", 0), query.dtype)
    blind = (total == -math.inf).all(-1, keepdim=True)
    # A row that sees no key gives zeros; its logits are replaced first, so that neither the
    # value nor the gradient is NaN.
    weights = torch.softmax(torch.where(blind, 0.0, biased).to(stash), -1)
    weights = torch.where(blind, 0.0, weights).to(query.dtype)
    shown = (scores, capped, biased, weights)[mode]
    return weights @ value, shown


def _additive(allowed: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if bias is not None and bias.dtype == torch.bool:
        allowed, bias = allowed & bias, None
    total = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    total = total.masked_fill(~allowed, -math.inf)
    return total if bias is None else total + bias


@register("Gelu", "BiasGelu", "FastGelu", domain=MICROSOFT)
def gelu(call: Call, data: Tensor, bias: Value = None) -> Tensor:
    data = data if bias is None else data + call.tensor(bias)
    return F.gelu(data, approximate="tanh" if call.op == "FastGelu" else "none")


@register("FusedMatMul", domain=MICROSOFT)
def fused_matmul(call: Call, left: Tensor, right: Tensor) -> Tensor:
    if call.flag("transBatchA") or call.flag("transBatchB"):
        call.refuse("transBatchA and transBatchB are not supported")
    left = left.transpose(-1, -2) if call.flag("transA") and left.ndim > 1 else left
    right = right.transpose(-1, -2) if call.flag("transB") and right.ndim > 1 else right
    product = torch.matmul(left, right)
    alpha = call.number("alpha", 1.0)
    return product if alpha == 1.0 else product * alpha


@register("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(
    call: Call, x: Tensor, skip: Tensor, weight: Tensor, beta: Value = None, bias: Value = None
) -> tuple[Tensor | None, ...]:
    """Normalises `x + skip + bias`; outputs 1 and 2 (mean, inverse deviation) are not written."""
    simplified = call.op == "SkipSimplifiedLayerNormalization"
    if simplified:  # its inputs are x, skip, gamma, bias
        beta, bias = None, beta
    total = x + skip
    total = total if bias is None else total + call.tensor(bias)
    eps = call.number("epsilon", 1e-12)
    if call.has(1) or call.has(2):
        call.refuse("the outputs mean and inv_std_var are not supported")
    if simplified:
        out = F.rms_norm(total, weight.shape, weight, eps)
    else:
        out = F.layer_norm(total, weight.shape, weight, call.optional(beta), eps)
    return out, None, None, total


@register("Attention", domain=MICROSOFT)
def packed_attention(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Value = None,
    mask: Tensor | None = None,
    past: Value = None,
    extra: Tensor | None = None,
) -> Tensor:
    """One projection to queries, keys and values, then attention."""
    if past is not None or call.has(1):
        call.refuse("past and present are not supported")
    projected = torch.matmul(x, weight)
    projected = projected if bias is None else projected + call.tensor(bias)
    sizes = call.integers("qkv_hidden_sizes", [weight.shape[1] // 3] * 3)
    q, k, v = torch.split(projected, sizes, -1)
    return _attend(call, q, k, v, mask, extra)


@register("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    call: Call,
    query: Value,
    key: Value = None,
    value: Value = None,
    bias: Value = None,
    mask: Tensor | None = None,
    extra: Tensor | None = None,
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
    return _attend(call, q, k, v, mask, extra)


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
