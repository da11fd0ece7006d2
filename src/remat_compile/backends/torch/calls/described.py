"""An argument of a planned step as its guards compare it: shape, dtype, device, whether it asks for
a gradient, and strides; what is no tensor is itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ....device.strides import strides_of


def described(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        kind = Tensor if type(leaf) is nn.Parameter else type(leaf)
        form = (tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad, kind)
        return (*form, strides_of(leaf))
    return leaf


def is_as_described(leaf: Any, now: Any, sample: Any) -> bool:
    """Return whether an argument is as in the sample; what is no tensor must be the same to
    Python."""
    return bool(now == sample) if isinstance(leaf, Tensor) else _is_same(now, sample)


def has_another_shape_only(now: Any, sample: Any) -> bool:
    """Or lies otherwise in memory."""
    return isinstance(now, tuple) and isinstance(sample, tuple) and now[1:-1] == sample[1:-1]


def otherwise(index: int, now: Any, sample: Any) -> str:
    if has_another_shape_only(now, sample) and now[0] == sample[0]:
        own, other = (
            "sparse" if form[-1] is None else f"strides {list(form[-1])}" for form in (now, sample)
        )
        return f"argument {index} lies in memory with {own}; the plan is for {other}"
    return f"argument {index} is {_text(now)}; the plan is for {_text(sample)}"


def _text(form: Any) -> str:
    if not isinstance(form, tuple):
        return repr(form)
    shape, dtype, device, requires_grad, kind, _ = form
    grad = ", requires grad" if requires_grad else ""
    grad += "" if kind is Tensor else f", a {kind.__name__}"
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}{grad}"


def _is_same(now: Any, sample: Any) -> bool:
    """Return whether two values that are no tensors are the same to Python: 1 is not 1.0, nor 0.0
    -0.0."""
    if now is sample:
        return True
    if type(now) is not type(sample):
        return False
    if isinstance(now, float | complex):
        return repr(now) == repr(sample)
    if hasattr(now, "tobytes"):  # of NumPy
        form = [(x.dtype, x.shape, x.tobytes()) for x in (now, sample)]
        return form[0] == form[1]
    return isinstance(now, int | str | bytes) and bool(now == sample)
