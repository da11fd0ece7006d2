"""Views that are known by where they lie: one call each, whatever was written to derive them.

A view of a tensor is its storage with other sizes, strides and offset, and these depend on the
tensor's own sizes and strides alone. So the first call of a function of views runs it and notes
what it gave; a later one with a tensor that lies alike makes just that:

    def derive(base):
        if base.stride() == (384, 1) and base.shape == (1024, 384):
            if not modes() and type(base) is Tensor:
                return (
                    reinterpret(base, (8, 4, 128, 32), (49152, 32, 384, 1), 0),
                    reinterpret(base, (8, 4, 128, 32), (49152, 32, 384, 1), 128),
                )
        return calls(base)

No mode of dispatch would see these: where one is on (`make_fx`, fake tensors, a user's), or while
PyTorch traces, views are derived as written, and nothing is noted.

Numbers stand in its code: between two products of matrices, with cold caches, looking them up took
as long as deriving half of the views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["reinterpret_views"]

_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

Derive = Callable[[Tensor], Sequence[Tensor]]
_Place = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides, and the offset from where the tensor begins that is looked at."""


def reinterpret_views(space: dict[str, Any], names: Sequence[str]) -> None:
    """Lets functions of views of a module (`space` has its globals) note what they give when they
    are called first, and stand as such from then on.

    What is no function of sizes and strides (`as_strided` counts from where the storage begins),
    or looks at the bytes in another way (as another type, negated or conjugated), is derived as it
    is written, and so is all of it for a tensor that lies otherwise than the first.
    """
    reinterpret = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", None)
    if reinterpret is None:  # another release
        return
    for name in names:
        space[name] = _noting(space, name, space[name], reinterpret)


def _noting(space: dict[str, Any], name: str, calls: Derive, reinterpret: Any) -> Derive:
    # `torch.compile` around a step would look for the module of its text among those of files.
    calls._torchdynamo_disable = True  # type: ignore[attr-defined]

    def derive(base: Tensor) -> Sequence[Tensor]:
        views = calls(base)
        if _modes() or torch._C._get_tracing_state() is not None or type(base) is not Tensor:
            return views  # sizes may be no numbers
        places = _places(base, views)
        try:
            is_known = _are_alike(base, views) and _places_elsewhere(base, calls) == places
        except RuntimeError:  # an operator that runs on its device alone
            is_known = False
        space[name] = _derive_known(base, places, calls, reinterpret) if is_known else calls
        return views

    return derive


def _derive_known(
    base: Tensor, places: Sequence[_Place], calls: Derive, reinterpret: Any
) -> Derive:
    made = "".join(
        f"reinterpret(base, {sizes}, {strides}, {at}), " for sizes, strides, at in places
    )
    text = (
        "def derive(base):\n"
        f"    if base.stride() == {base.stride()} and base.shape == {tuple(base.shape)}:\n"
        "        if not modes() and type(base) is Tensor:\n"
        f"            return ({made})\n"
        "    return calls(base)\n"
    )
    known: dict[str, Any] = {"calls": calls, "reinterpret": reinterpret}
    known |= {"modes": _modes, "Tensor": Tensor}
    exec(compile(text, "<views>", "exec"), known)  # numbers of PyTorch's alone
    return known["derive"]  # type: ignore[no-any-return]


def _are_alike(base: Tensor, views: Sequence[Tensor]) -> bool:
    """Whether nothing but sizes, strides and offsets tells them apart. Views of a parameter say
    that they require gradients, which what is made here would not."""
    keys = torch._C._dispatch_keys(base)
    of_type = all(v.dtype == base.dtype and torch._C._dispatch_keys(v) == keys for v in views)
    return of_type and not base.requires_grad


def _places(base: Tensor, views: Sequence[Tensor]) -> list[_Place]:
    begin = base.storage_offset()
    return [(tuple(v.shape), v.stride(), int(v.storage_offset() - begin)) for v in views]


def _places_elsewhere(base: Tensor, calls: Derive) -> list[_Place]:
    """Of the same tensor elsewhere in a storage: without bytes, on no device, seen by no mode."""
    extent = sum((n - 1) * s for n, s in zip(base.shape, base.stride(), strict=True))
    begin = int(base.storage_offset()) + 1
    with _disable_current_modes():
        flat = torch.empty(begin + max(extent, 0) + 1, dtype=base.dtype, device="meta")
        moved = flat.as_strided(base.shape, base.stride(), begin)
        return _places(moved, calls(moved))
