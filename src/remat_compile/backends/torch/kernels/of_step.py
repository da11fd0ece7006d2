"""The kernels of a step: one for each function of its generated code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from ....ir.expr import Const
from ....ir.graph import CNode
from .made import Kernel, Kernels


def make_kernels(
    kernels: Kernels, of: Mapping[str, Sequence[tuple[CNode, Sequence[Tensor]]]]
) -> dict[str, Kernel]:
    """A kernel for each function of generated code, which the given cNodes call with tensors like
    these; left out where they are not all alike, where there is none, or where it takes more
    workspace on this machine than was proven."""
    by_function: dict[str, Kernel] = {}
    for name, users in of.items():
        first = _shared(kernels.kernel(c, args) for c, args in users)
        if first is None:
            continue
        least = _planned_bytes(users, first.workspace_bytes)
        if least < first.workspace_bytes:
            needs = f"needs {first.workspace_bytes} bytes of workspace here, {least} were planned"
            kernels.failures.append(f"{users[0][0].name}: its kernel {needs}")
            continue
        by_function[name] = first
    kernels.by_calls = len(of) - len(by_function)
    return by_function


def _shared(made: Iterable[Kernel | None]) -> Kernel | None:
    first, *others = made
    return first if all(kernel is first for kernel in others) else None


def _planned_bytes(users: Sequence[tuple[CNode, Sequence[Tensor]]], otherwise: int) -> int:
    """The least workspace that was proven."""
    planned = (c.workspace.value for c, _ in users if isinstance(c.workspace, Const))
    return min(planned, default=otherwise)
