"""A bound on the bytes that a file may make us compute while its module is built.

A file of a hundred bytes may ask for a constant of 10^12 elements. Every operator that runs
on known values is therefore run on fake tensors first, which costs no memory, and refused
where its results would go beyond what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ....device.fake_tensors import FakeTensor, FakeTensorMode
from ....ir.diagnostics import Diagnostic, FBError

LARGEST_BYTES = 2**30
"""Limit on constants and made-up sample inputs, beyond the tensors that the file holds."""


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of the elements when each is stored; expanded dimensions count in full."""
    return tensor.numel() * tensor.dtype.itemsize


def check_bytes(what: str, wanted_bytes: int, limit_bytes: int = LARGEST_BYTES) -> None:
    """Raises FB0618 where `wanted_bytes` is more than the limit."""
    if wanted_bytes > limit_bytes:
        message = (
            f"{what} would take {wanted_bytes:,} bytes while the module is built; "
            f"{limit_bytes:,} are allowed"
        )
        raise FBError(Diagnostic("FB0618", message, hint="store the tensor in the file"))


class Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside it, no operator may allocate more than what is left of `limit_bytes`."""

    def __init__(self, fake: FakeTensorMode, limit_bytes: int = LARGEST_BYTES) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = fake
        self.left_bytes = limit_bytes
        self.node = "the graph"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, given))):
            return func(*args, **given)
        check_bytes(self.node, self._allocated(func, args, given), self.left_bytes)
        result = func(*args, **given)
        self.left_bytes -= _fresh_bytes(func, result)
        return result

    def _allocated(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> int:
        """Bytes that a call would allocate; 0 where only running it can tell."""
        if func.is_view:
            return 0
        with self.fake:
            faked = tree_map(self._faked, (args, dict(kwargs)))
            try:
                result = func(*faked[0], **faked[1])
            except Exception:  # whatever is wrong shows again, and is told, when it runs
                return 0
        return _fresh_bytes(func, result)

    def _faked(self, leaf: Any) -> Any:
        return self.fake.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf


def _fresh_bytes(func: Any, result: Any) -> int:
    if func.is_view:
        return 0
    return sum(bytes_of(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
