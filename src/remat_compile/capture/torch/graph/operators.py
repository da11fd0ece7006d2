"""Calls that stand for others: replay forms, and zeros for what is left unwritten."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....ir.expr import Const
from ....ir.graph import Arg, Call, CNode, Replay
from ....operators.overloads import OpOverload

aten = torch.ops.aten


_FILLED = {
    "aten.empty.memory_format": ("aten.zeros.default", 1),
    "aten.empty_like.default": ("aten.zeros_like.default", 1),
    "aten.empty_permuted.default": ("aten.zeros.default", 1),
    "aten.empty_strided.default": ("aten.zeros.default", 1),
    "aten.new_empty.default": ("aten.new_zeros.default", 2),
    "aten.new_empty_strided.default": ("aten.new_zeros.default", 2),
}


def filled(call: Call, made: Tensor, like: object) -> Call | None:
    """Zeros in place of unwritten memory, which is no function of the arguments and would be
    other memory when it is made again; None where no operator makes zeros of these strides.
    `like` is the first argument."""
    name, places = _FILLED.get(call.op, ("", 0))
    if name == "aten.zeros_like.default":
        return replace(call, op=name)
    if name == "aten.new_zeros.default" and isinstance(like, Tensor) and not made.is_contiguous():
        same = like.shape == made.shape and like.stride() == made.stride()
        return Call("aten.zeros_like.default", call.args[:1], call.kwargs) if same else None
    if not name or not made.is_contiguous():
        return None
    kwargs = tuple((key, value) for key, value in call.kwargs if key != "memory_format")
    return Call(name, call.args[:places], kwargs)


def replay_without_effect(
    op: OpOverload, call: Call, writes: tuple[str | None, ...]
) -> Replay | None:
    """The form that every execution but the first runs, or None if it is the same.

    Training batch norm reads the running statistics only to update them; the form
    without them is bit-equal and touches no buffer. With an update it is cuDNN's (`prepare`).
    """
    if op is aten._batch_norm_with_update_functional.default:
        x, weight, bias, _, _, momentum, eps = call.args
        given: tuple[Arg, ...] = (x, weight, bias, None, None, True, momentum, eps)
        return Replay(writes[:4], Call("aten.cudnn_batch_norm.default", given), Const(0), None)
    if op is aten._native_batch_norm_legit_functional.default:
        x, weight, bias, _, _, training, momentum, eps = call.args
        if training is not True:
            return None
        args: tuple[Arg, ...] = (x, weight, bias, training, momentum, eps)
        return Replay(
            writes[:3], Call("aten._native_batch_norm_legit.no_stats", args), Const(0), None
        )
    return None


def is_compared(c: CNode) -> bool:
    """Return whether the check against eager runs the replay form too and compares the bits."""
    return c.replays_otherwise and c.token is None
