"""Mixed precision as it was around a model when it was captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["Autocast", "WeightCache"]


@dataclass(frozen=True, slots=True)
class Autocast:
    """The state of `torch.autocast` for a type of device. `dtype` is None where it is off."""

    device_type: str
    dtype: torch.dtype | None = None
    caches_weights: bool = True

    @classmethod
    def now(cls, device_type: str) -> Autocast:
        """What is around the caller."""
        if not torch.is_autocast_enabled(device_type):
            return cls(device_type)
        dtype = torch.get_autocast_dtype(device_type)
        return cls(device_type, dtype, torch.is_autocast_cache_enabled())

    def around(self) -> AbstractContextManager[object]:
        """Autocast in this state, or off."""
        return torch.autocast(
            self.device_type,
            self.dtype,
            enabled=self.dtype is not None,
            cache_enabled=self.caches_weights,
        )

    def __str__(self) -> str:
        if self.dtype is None:
            return "off"
        cache = "" if self.caches_weights else ", without its cache"
        return f"on in {str(self.dtype).removeprefix('torch.')}{cache}"


_CASTING = frozenset(
    (
        *(F.linear, F.conv1d, F.conv2d, F.conv3d, F.bilinear),
        *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        *(torch.mm, torch.bmm, torch.matmul, torch.addmm, torch.baddbmm, torch.mv),
        *(Tensor.mm, Tensor.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__),
        *(Tensor.addmm, Tensor.baddbmm, Tensor.mv),
    )
)
"""Functions that autocast runs in low precision, as far as they take weights themselves."""


class WeightCache(TorchFunctionMode):
    """Autocast's cache of cast weights, where PyTorch's own is off: while a graph is traced.

    A weight that is used twice is cast once, and its gradients are summed in low precision
    before they are cast back: it is the cache that decides on the bits.
    """

    def __init__(self, device_type: str, weights: Iterable[Tensor | None]):
        super().__init__()
        self._device_type = device_type
        self._weights = {
            id(w): w
            for w in weights
            if w is not None and w.requires_grad and w.dtype is torch.float32
        }
        self._cast: dict[tuple[int, torch.dtype], Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CASTING and torch.is_autocast_enabled(self._device_type):
            args = tuple(map(self._in_low_precision, args))
            kwargs = {key: self._in_low_precision(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)

    def _in_low_precision(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or self._weights.get(id(value)) is not value:
            return value
        dtype = torch.get_autocast_dtype(self._device_type)
        if (id(value), dtype) not in self._cast:
            self._cast[id(value), dtype] = value.to(dtype)
        return self._cast[id(value), dtype]
