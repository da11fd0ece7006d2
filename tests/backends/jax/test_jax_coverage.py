"""No operator is missing for the models that the JAX backend promises.

`PYTHONPATH=tests:tests/backends/jax python tests/backends/jax/test_jax_coverage.py` lists
all of them and records those of each model; it needs `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.models import MODELS
from remat_compile.backends.jax.lowerings import missing
from remat_compile.backends.jax.support import operators
from remat_compile.capture.torch import export, lower

try:
    from helpers.jax.hf_models import HF_MODELS
except pytest.skip.Exception:
    HF_MODELS = {}


def operators_of(sample: Any) -> frozenset[str]:
    module, args, kwargs = sample
    with lower(export(module, args, kwargs)) as lowered:
        return operators(lowered.program.graph)


CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(make, torch.float32) for name, make in MODELS.items()},
    **{f"hf-{name}": partial(make, torch.float32) for name, make in HF_MODELS.items()},
    **{
        f"hf-{name}-p0": partial(make, torch.float32, dropout=False)
        for name, make in HF_MODELS.items()
    },
}
"""Model -> its factory. Captured in float32: the operators do not depend on the dtype."""

RECORDED = Path(__file__).parent / "golden" / "operators.txt"
"""The operators of every case. Where `transformers` is not installed, those of its models
stand for them."""


def recorded() -> dict[str, frozenset[str]]:
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    return {name: frozenset(ops.split()) for name, _, ops in (at.partition(": ") for at in lines)}


# The models of the tests need no capture here: test_jax_models runs each of them.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in MODELS])
def test_no_operator_is_missing(name: str) -> None:
    ops = operators_of(CASES[name]())
    assert missing(ops) == []
    assert ops == recorded()[name], f"run python {Path(__file__).name}"


def test_no_recorded_operator_is_missing() -> None:
    by_model = recorded()
    assert set(CASES) <= set(by_model)
    models = ("gpt2", "llama", "t5", "bart", "bert", "vit", "convnext")
    assert set(by_model) >= {f"hf-{name}{p0}" for name in models for p0 in ("", "-p0")}
    assert missing(op for ops in by_model.values() for op in ops) == []


if __name__ == "__main__":
    assert HF_MODELS, "transformers is not installed"
    seen = {name: sorted(operators_of(make())) for name, make in CASES.items()}
    lines = (f"{name}: {' '.join(ops)}\n" for name, ops in seen.items())
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text("".join(lines), encoding="utf-8")
    every = {op for ops in seen.values() for op in ops}
    print("\n".join(sorted(every)))
    print(f"{len(every)} operators in {len(seen)} models; missing: {missing(every) or 'none'}")
