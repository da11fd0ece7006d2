"""`LinearAttention`: a state of keys times values, carried from step to step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..call import Call, Value
from ..table import register

_RULES = ("linear", "gated", "delta", "gated_delta")
_MOST_STEPS = 4096


@register("LinearAttention")
def linear_attention(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    past: Value = None,
    decay: Value = None,
    beta: Value = None,
) -> tuple[Tensor, Tensor]:
    """Result and last state; step by step, at least in float32, as the standard writes it.

        S = exp(g_t) S + k_t (beta_t (v_t - (exp(g_t) S)' k_t))'        o_t = scale S' q_t

    Rules without decay have no exp(g_t), those without delta write v_t itself.
    """
    rule = call.one_of("update_rule", "gated_delta", _RULES)
    if (decay is not None, beta is not None) != ("gated" in rule, "delta" in rule):
        call.refuse(f'update rule "{rule}" does not go with the inputs that are given', "FB0606")
    kv_heads, q_heads = call.integer("kv_num_heads", 0), call.integer("q_num_heads", 0)
    if kv_heads < 1 or q_heads < 1 or q_heads % kv_heads:
        call.refuse("q_num_heads must be a multiple of kv_num_heads", "FB0606")
    query, key, value = call.tensor(q), call.tensor(k), call.tensor(v)
    if query.shape[1] > _MOST_STEPS:
        call.refuse(f"more than {_MOST_STEPS} steps", "FB0618")
    kind = torch.promote_types(query.dtype, torch.float32)
    # Steps come first. Query heads that share a state stand beside each other.
    queries = _heads(query, q_heads, kind)
    queries = queries.reshape(*queries.shape[:2], kv_heads, -1, queries.shape[-1])
    keys, values = _heads(key, kv_heads, kind), _heads(value, kv_heads, kind)
    keep = None if decay is None else _heads(call.tensor(decay), kv_heads, kind).exp()
    rate = call.optional(beta)
    rates = None if rate is None else _heads(rate, rate.shape[-1], kind)
    scale = call.number("scale", 0.0) or 1 / math.sqrt(queries.shape[-1])
    if past is None:
        state = keys.new_zeros(*keys.shape[1:], values.shape[-1])
    else:
        state = call.tensor(past).to(kind)
    outputs = []
    for t in range(keys.shape[0]):
        new = values[t]
        if keep is not None:
            state = state * keep[t].unsqueeze(-1)
        if rates is not None:
            new = rates[t] * (new - (keys[t].unsqueeze(-2) @ state).squeeze(-2))
        state = state + keys[t].unsqueeze(-1) * new.unsqueeze(-2)
        outputs.append(scale * (queries[t] @ state))
    out = torch.stack(outputs, 1).flatten(2).to(query.dtype)
    return out, state.to(query.dtype if past is None else call.tensor(past).dtype)


def _heads(packed: Tensor, count: int, kind: torch.dtype) -> Tensor:
    """(batch, step, heads * width) as (step, batch, head, width)."""
    batch, steps, size = packed.shape
    return packed.to(kind).transpose(0, 1).reshape(steps, batch, count, size // count)
