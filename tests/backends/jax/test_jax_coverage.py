"""No operator is missing for the models that the JAX backend promises.

`python tests/backends/jax/test_jax_coverage.py` lists the operators of each model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from models import MODELS
from remat_compile.backends.jax.lowerings import missing
from remat_compile.backends.jax.support import operators
from remat_compile.frontends.torch_export import export, lower

try:
    from hf_models import HF_MODELS
except pytest.skip.Exception:
    HF_MODELS = {}


def operators_of(sample: Any) -> frozenset[str]:
    module, args, kwargs = sample
    with lower(export(module, args, kwargs)) as lowered:
        return operators(lowered.program.graph)


CASES: dict[str, Callable[[], Any]] = {
    **{name: lambda make=make: make(torch.float32) for name, make in MODELS.items()},
    **{f"hf-{name}": lambda make=make: make(torch.float32) for name, make in HF_MODELS.items()},
    **{
        f"hf-{name}-p0": lambda make=make: make(torch.float32, dropout=False)
        for name, make in HF_MODELS.items()
    },
}
"""Model -> its factory. Captured in float32: the operators do not depend on the dtype."""


@pytest.mark.parametrize("name", CASES)
def test_no_operator_is_missing(name: str) -> None:
    assert missing(operators_of(CASES[name]())) == []


if __name__ == "__main__":
    seen: dict[str, list[str]] = {}
    for name, make in CASES.items():
        for op in operators_of(make()):
            seen.setdefault(op, []).append(name)
    for op in sorted(seen):
        print(f"{op:64} {', '.join(seen[op])}")
    print(f"{len(seen)} operators in {len(CASES)} models; missing: {missing(seen) or 'none'}")
