"""What an operator is, told from its schema and tags; and the replay forms."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from ...ir.expr import Const
from ...ir.graph import Arg, Call, CNode, Replay

__all__ = ["draws_random_numbers", "is_compared", "replay_without_effect"]

aten = torch.ops.aten


def draws_random_numbers(node: fx.Node) -> bool:
    """Whether this call advances a generator.

    The tag alone is too wide: attention carries it even when its dropout probability
    is zero and nothing is drawn.
    """
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    for index, parameter in enumerate(op._schema.arguments):
        if parameter.name == "dropout_p":
            if parameter.name in node.kwargs:
                return bool(node.kwargs[parameter.name] != 0.0)
            given = node.args[index] if index < len(node.args) else parameter.default_value
            return bool(given != 0.0)
    return True


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
    """Whether the check against eager runs the replay form too and compares the bits."""
    return c.replays_otherwise and c.token is None
