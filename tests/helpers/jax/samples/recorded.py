"""Sample calls that PyTorch's own samples of its operators make, forward and backward."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from helpers.jax.samples.calls import Call, Make, add
from helpers.paths import ROOT

AT_MOST = 4
"""Calls of an operator that are kept."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the calls of some operators, by their name in the IR."""

    def __init__(self, wanted: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, list[Call]] = {op: [] for op in wanted}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = self.calls.get(str(func).removeprefix("aten."))
        if kept is not None and len(kept) < AT_MOST:
            copied = tree_map(_copied, (args, kwargs or {}))
            kept.append(Call(*copied))
        return func(*args, **(kwargs or {}))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


@cache
def opinfos() -> dict[str, Any]:
    """PyTorch's samples, by the names that `run_operator_samples.py` gives them."""
    # Importing PyTorch's own tests would forbid to set its flags for the rest of the process.
    with patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal.common_methods_invocations import op_db
    return {".".join(filter(None, (i.name, i.variant_test_name))): i for i in op_db}


def recorded(name: str, wanted: set[str], dtype: torch.dtype) -> dict[str, list[Call]]:
    """The first calls of the wanted operators by one of PyTorch's samples; none where it does not
    know the dtype."""
    info, recorder = opinfos()[name], _Recorder(wanted)
    if dtype not in info.supported_dtypes("cpu"):
        return recorder.calls
    for sample in list(info.sample_inputs("cpu", dtype, requires_grad=True))[:6]:
        with recorder, suppress(NotImplementedError):  # a kernel that knows fewer dtypes
            made = tree_leaves(info.op(sample.input, *sample.args, **sample.kwargs))
            roots = [t for t in made if isinstance(t, Tensor) and t.requires_grad]
            torch.autograd.backward(roots, [torch.randn_like(t) for t in roots])
    return recorder.calls


def _add(name: str, op: str) -> None:
    add(op, lambda m: _of(name, op, m))


def _of(name: str, op: str, m: Make) -> list[Call]:
    return recorded(name, {op}, m.dtype)[op]


for line in (ROOT / "tests/helpers/jax/samples/recorded.txt").read_text().splitlines():
    of, _, ops = line.partition(": ")
    for each in ops.split():
        _add(of, each)
