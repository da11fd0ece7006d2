"""Mixed precision as it was around a model when it was captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack as _modes


@dataclass(frozen=True, slots=True)
class Autocast:
    """The state of `torch.autocast` for a type of device. `dtype` is None where it is off."""

    device_type: str
    dtype: torch.dtype | None = None
    caches_weights: bool = True

    @classmethod
    def now(cls, device_type: str) -> Autocast:
        """Return the setting around the caller."""
        if not torch.is_autocast_enabled(device_type):
            return cls(device_type)
        dtype = torch.get_autocast_dtype(device_type)
        return cls(device_type, dtype, torch.is_autocast_cache_enabled())

    def around(self) -> AbstractContextManager[object]:
        """Autocast in this state, or off. Where it is so already, no block begins: casts of weights
        are kept until the outermost one ends."""
        if self == Autocast.now(self.device_type):
            return nullcontext()
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


_BLOCKS = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)


def _is_inside_block() -> bool:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


class WeightCache(PreDispatchTorchFunctionMode):
    """Autocast's cache of cast weights, where PyTorch's own is off: while a graph is traced.

    A weight that is used twice is cast once, and its gradients are summed in low precision
    before they are cast back: it is the cache that decides on the bits. PyTorch tells a mode of
    this class, and no other, where a block of autocast ends.
    """

    def __init__(self, device_type: str, weights: Iterable[Tensor | None]):
        TorchFunctionMode.__init__(self)
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
        # A block that begins or ends by itself tells so, with this mode still on the stack.
        modes: list[Any] = _modes() if func in _BLOCKS else []  # type: ignore[no-untyped-call]
        is_told = any(mode is self for mode in modes)
        made = None if is_told else func(*args, **kwargs)
        if func is _BLOCKS[1] and not _is_inside_block():
            self._cast.clear()
        return made

    def _in_low_precision(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or self._weights.get(id(value)) is not value:
            return value
        if not torch.is_autocast_cache_enabled():
            return value
        dtype = torch.get_autocast_dtype(self._device_type)
        if (id(value), dtype) not in self._cast:
            self._cast[id(value), dtype] = value.to(dtype)
        return self._cast[id(value), dtype]
