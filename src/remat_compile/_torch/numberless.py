"""Tensors with a shape, a dtype and a device, and no numbers.

To a model's Python they are the tensors that it is given when it trains, `type(x) is Tensor`
included: what they stand for is noted on them and beside their class, not in it. Wherever PyTorch
calls no operator to look into one, `NoLooking` says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["NoLooking", "NoNumbers", "Numberless", "number_of"]

_NUMBER = "_remat_compile_number"


class NoNumbers(RuntimeError):
    """A call needs numbers: of PyTorch's kind, since the model's Python may go on from there."""


class _Ended(Tensor):
    """The class of those whose run is over, and of none in it."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise NoNumbers("a tensor without numbers is used outside of its run")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "a tensor without numbers, whose run is over"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Numberless:
    """Makes them, and counts them from 1. They are good inside a `with` block of it."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Tensor]] = []

    def new(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        made: Tensor = Tensor._make_wrapper_subclass(
            _Ended, shape, strides=stride, dtype=dtype, device=device
        )
        made.__class__ = Tensor
        self._made.append(weakref.ref(made))
        setattr(made, _NUMBER, len(self._made))
        return made

    def like(self, tensor: Tensor) -> Tensor:
        """A leaf, as parameters and arguments are."""
        made = self.new(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        made.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            made.__class__ = nn.Parameter
        return made

    def __enter__(self) -> Numberless:
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self._made:
            made = reference()
            if made is not None:  # the model's Python has kept it
                made.__class__ = _Ended


def number_of(value: object) -> int:
    """Of one of `Numberless`; 0 for everything else."""
    number: int = value.__dict__.get(_NUMBER, 0) if isinstance(value, Tensor) else 0
    return number


_LOOKING = frozenset(
    (
        *("numpy", "tolist", "data_ptr", "const_data_ptr", "storage", "untyped_storage"),
        *("_typed_storage", "__array__", "__dlpack__", "__repr__", "__format__", "__reduce_ex__"),
    )
)
"""Methods that look into a tensor and call no operator for it, or one on its memory."""


class NoLooking(TorchFunctionMode):
    """`refuse` gives the exception for a look into a tensor without numbers."""

    def __init__(self, refuse: Callable[[str], Exception]):
        super().__init__()
        self._refuse = refuse

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _LOOKING and args and number_of(args[0]):
            raise self._refuse(f"Python looks into a tensor ({func.__name__})")
        return func(*args, **(kwargs or {}))
