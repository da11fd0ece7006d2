"""Refusal of host work in a recorded step, since no CUDA graph replays it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OnDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what makes a tensor on the host, since no graph of the device does it again. Host
    memory that was there before may be copied to, and back."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        elsewhere = [t for t in _tensors(made) if t.device != self._device]
        if elsewhere:
            there = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
            if any(t.untyped_storage().data_ptr() not in there for t in elsewhere):
                raise RuntimeError(f"{func} computes on the host")
        return made


def _tensors(made: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
