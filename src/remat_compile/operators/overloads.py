"""PyTorch's types of operators, and the names of all that are registered."""

from __future__ import annotations

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = ["HigherOrderOperator", "OpOverload", "OpOverloadPacket", "registered_operators"]


def registered_operators() -> list[str]:
    """Names as `aten::add.Tensor`, without an overload where there is only one."""
    return [*torch._C._dispatch_get_all_op_names()]
