"""Operators that PyTorch takes apart in Python while it traces, though eager has one kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch._C import DispatchKey

from .overloads import OpOverload, OpOverloadPacket, registered_operators

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)

_TAKEN_APART = re.compile("dropout|.*_batch_norm|_upsample_nearest.*|upsample_nearest[13]d.*")
"""Operators that are traced in another form of the same bits, which `prepare` and JAX lowerings
know."""


@cache
def _operators() -> tuple[OpOverload, ...]:
    """Interpolations, recurrent layers and others whose form in Python differs in bits."""
    operators = []
    for qualified in registered_operators():
        space, _, name = qualified.partition("::")
        name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
        if isinstance(packet, OpOverloadPacket) and not _TAKEN_APART.fullmatch(name):
            op = getattr(packet, overload or "default", None)
            if isinstance(op, OpOverload) and DispatchKey.Autograd in op.py_kernels:
                operators.append(op)
    return tuple(operators)


@contextmanager
def kept_whole() -> Iterator[None]:
    """Inside, tracing sees the kernels that eager runs. The check behind `torch.linalg` solvers,
    which computes nothing, has no token that orders it."""
    import torch._decomp  # registers the forms in Python

    check = torch._library.simple_registry.singleton.find("aten::_linalg_check_errors").effect
    effect = check.effect

    kernels = [(op, dict(op.py_kernels)) for op in _operators()]
    for op, _ in kernels:
        for key in _KEYS:
            op.py_kernels.pop(key, None)
        op._dispatch_cache.clear()
    check.register(None)
    try:
        yield
    finally:
        for op, before in kernels:
            op.py_kernels.update(before)
            op._dispatch_cache.clear()
        check.register(effect)
