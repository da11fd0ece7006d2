"""Whether a backward may write over what its forward saved: where nobody else can see it.

That is asked of the values themselves, as the backward begins, and not of who might hold them. A
graph that is kept, a hook, a second name, a view, an array of NumPy: each is one more reference to
the tensor, to its storage, or to the object that stands for either in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..._torch.instances import plain_mode

__all__ = ["are_private"]

_is_graph_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
"""Asked on the thread of a backward, and then whether `retain_graph` was given to it. PyTorch uses
it as its own functions (AOTAutograd, `ctx.maybe_clear_saved_tensors`) drop what was saved."""
_uses_of_storage = getattr(torch._C, "_storage_Use_Count", None)


def are_private(args: Sequence[Any], places: Sequence[int]) -> bool:
    """Whether the list `args` alone holds the tensors in these places, in memory that an allocator
    of PyTorch's gave them alone, and no later backward reads them."""
    if _is_graph_kept is None or _is_graph_kept() or (alone := _alone()) is None:
        return False
    try:
        return all(_references(args, place) == alone for place in places)
    except (NotImplementedError, RuntimeError):  # of a tensor without a storage
        return False


def _references(args: Sequence[Any], place: int) -> tuple[object, ...]:
    """What is counted of one argument: references by Python and by C++ to the tensor and to its
    storage. Memory of others (an array, a file, another process's) is not resizable, or shared.

    It stands in no variable here, which a debugger would hold on to.
    """
    return (
        type(args[place]),
        sys.getrefcount(args[place]),
        args[place]._use_count(),
        sys.getrefcount(args[place].untyped_storage()),
        _uses_of_storage(args[place].untyped_storage()._cdata),  # type: ignore[misc]
        args[place].untyped_storage().resizable(),
        args[place].untyped_storage().is_shared(),
    )


@cache
def _alone() -> tuple[object, ...] | None:
    """What is counted of a tensor that a list alone holds; None where this Python or this PyTorch
    does not count someone else."""
    others: Sequence[Any] = (lambda t: t, Tensor.detach, Tensor.untyped_storage, Tensor.__dlpack__)
    with plain_mode(torch.device("cpu")):
        try:
            alone = _references([torch.empty(1, device="cpu")], 0)
            for hold in others:
                args = [torch.empty(1, device="cpu")]
                held = hold(args[0])
                if _references(args, 0) == alone:
                    return None
                del held
        except (AttributeError, TypeError, RuntimeError):
            return None
    return alone
