"""`LSTM`, `GRU`, `RNN` and `LinearAttention`, step by step: every step's tensors are the planner's
to keep or drop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..call import Call, Value
from ..table import register

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "tanh": torch.tanh,
}


_DEFAULT = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class _Layer:
    """One direction: weights W (gates x input), R (gates x hidden), their biases, peepholes P."""

    call: Call
    w: Tensor
    r: Tensor
    wb: Tensor | None
    rb: Tensor | None
    peep: Tensor | None
    functions: Sequence[Callable[[Tensor], Tensor]]

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden state and cell; the cell of GRU and RNN is not used."""
        match self.call.op:
            case "LSTM":
                return self._lstm(x, h, c)
            case "GRU":
                return self._gru(x, h), c
            case _:
                total = F.linear(x, self.w, self.wb) + F.linear(h, self.r, self.rb)
                return self.functions[0](self._clip(total)), c

    def _lstm(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        f, g, out = self.functions
        gates = F.linear(x, self.w, self.wb) + F.linear(h, self.r, self.rb)
        i, o, forget, cell = gates.chunk(4, -1)
        pi, po, pf = (0, 0, 0) if self.peep is None else self.peep.chunk(3, -1)
        first = f(self._clip(i + pi * c))
        keep = 1 - first if self.call.flag("input_forget") else f(self._clip(forget + pf * c))
        c = keep * c + first * g(self._clip(cell))
        return f(self._clip(o + po * c)) * out(c), c

    def _gru(self, x: Tensor, h: Tensor) -> Tensor:
        f, g = self.functions
        size = h.shape[-1]
        xz, xr, xh = F.linear(x, self.w, self.wb).chunk(3, -1)
        update_bias = None if self.rb is None else self.rb[: 2 * size]
        hz, hr = F.linear(h, self.r[: 2 * size], update_bias).chunk(2, -1)
        z, reset = f(self._clip(xz + hz)), f(self._clip(xr + hr))
        bias = None if self.rb is None else self.rb[2 * size :]
        if self.call.flag("linear_before_reset"):
            inner = reset * F.linear(h, self.r[2 * size :], bias)
        else:
            inner = F.linear(reset * h, self.r[2 * size :], bias)
        return (1 - z) * g(self._clip(xh + inner)) + z * h

    def _clip(self, x: Tensor) -> Tensor:
        limit = self.call.number("clip", 0.0)
        return x.clamp(-limit, limit) if limit else x


@register("LSTM", "GRU", "RNN")
def recurrent(
    call: Call,
    data: Tensor,
    weights: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    length: Tensor | None = None,
    h0: Value = None,
    c0: Value = None,
    peep: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Y, the last hidden state and (LSTM) the last cell."""
    batch_first = call.flag("layout")
    data = data.transpose(0, 1) if batch_first else data
    if data.shape[0] > _MOST_STEPS:
        call.refuse(f"more than {_MOST_STEPS} steps", "FB0618")
    direction = call.one_of("direction", "forward", ("forward", "reverse", "bidirectional"))
    count, size = weights.shape[0], recurrence.shape[-1]
    first = [_initial(call, value, data, count, size, batch_first).unbind(0) for value in (h0, c0)]
    functions = _functions(call, count)
    everything, hidden, cells = [], [], []
    for i in range(count):
        backwards = direction == "reverse" or i == 1
        wb, rb = (None, None) if bias is None else bias[i].chunk(2)
        own = None if peep is None else peep[i]
        layer = _Layer(call, weights[i], recurrence[i], wb, rb, own, functions[i])
        order = _turned(data, length) if backwards else data
        y, h, c = _run(layer, order, first[0][i], first[1][i], length)
        everything.append(_turned(y, length) if backwards else y)
        hidden.append(h)
        cells.append(c)
    result = torch.stack(everything, 1)  # steps, directions, batch, hidden
    last, cell = torch.stack(hidden), torch.stack(cells)
    if batch_first:
        result, last, cell = result.permute(2, 0, 1, 3), last.transpose(0, 1), cell.transpose(0, 1)
    return (result, last, cell) if call.op == "LSTM" else (result, last)


def _run(
    layer: _Layer, data: Tensor, h: Tensor, c: Tensor, length: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = []
    for t, x in enumerate(data.unbind(0)):
        next_h, next_c = layer.step(x, h, c)
        if length is None:
            h, c = next_h, next_c
            outputs.append(h)
            continue
        inside = (length > t).unsqueeze(-1)
        h, c = torch.where(inside, next_h, h), torch.where(inside, next_c, c)
        outputs.append(torch.where(inside, next_h, 0.0))
    return torch.stack(outputs), h, c


def _initial(
    call: Call, value: Value, data: Tensor, count: int, size: int, batch_first: bool
) -> Tensor:
    if value is None:
        return data.new_zeros(count, data.shape[1], size)
    given = call.tensor(value)
    return given.transpose(0, 1) if batch_first else given


def _turned(data: Tensor, length: Tensor | None) -> Tensor:
    """Time reversed: of each sequence only the part that it has."""
    if length is None:
        return data.flip(0)
    t = torch.arange(data.shape[0], device=data.device).unsqueeze(1)
    index = torch.where(t < length, length - 1 - t, t).to(torch.int64)
    return data.gather(0, index.unsqueeze(-1).expand(data.shape))


def _functions(call: Call, count: int) -> list[list[Callable[[Tensor], Tensor]]]:
    """The activations of each direction."""
    given = call.attributes.get("activations")
    if call.attributes.get("activation_alpha") or call.attributes.get("activation_beta"):
        call.refuse("activations with parameters (activation_alpha, activation_beta)")
    if given is None:
        return [[_ACTIVATIONS[name] for name in _DEFAULT[call.op]]] * count
    names = [item.decode().lower() if isinstance(item, bytes) else str(item) for item in given]
    unknown = [name for name in names if name not in _ACTIVATIONS]
    if unknown:
        call.refuse(f"activation {unknown[0]}; supported: {', '.join(_ACTIVATIONS)}")
    each = len(_DEFAULT[call.op])
    return [[_ACTIVATIONS[n] for n in names[i * each : (i + 1) * each]] for i in range(count)]


_RULES = ("linear", "gated", "delta", "gated_delta")


@register("LinearAttention")
def linear_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
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
