"""What a graph of a device cannot hold: what is computed on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["OnDevice"]


class OnDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what computes on the host, since no graph of the device does it again."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(isinstance(t, Tensor) and t.device != self._device for t in tree_leaves(made)):
            raise RuntimeError(f"{func} computes on the host")
        return made
