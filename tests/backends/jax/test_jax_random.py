"""Random lowerings: the key decides, statistics and masks are as in PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.jax.samples import RANDOM
from remat_compile.backends.jax.lowerings import table

KEY = jax.random.key(3)
OTHER = jax.random.key(4)
SIZE = (100, 200)
ONES = jnp.ones(SIZE)

DRAWS: dict[str, tuple[Any, ...]] = {
    "aten.bernoulli.default": (ONES * 0.25,),
    "aten.bernoulli.p": (ONES, 0.25),
    "aten.exponential.default": (ONES, 2.0),
    "aten.native_dropout.default": (ONES, 0.25, True),
    "aten.rand.default": (SIZE,),
    "aten.rand_like.default": (ONES,),
    "aten.randint.default": (9, SIZE),
    "aten.randint.low": (4, 9, SIZE),
    "aten.randn.default": (SIZE,),
    "aten.randn_like.default": (ONES,),
    "aten.randperm.default": (1000,),
}
MOMENTS: dict[str, tuple[float, float]] = {
    "aten.bernoulli.default": (0.25, 0.25 * 0.75),
    "aten.bernoulli.p": (0.25, 0.25 * 0.75),
    "aten.exponential.default": (0.5, 0.25),
    "aten.native_dropout.default": (1.0, 1 / 3),
    "aten.rand.default": (0.5, 1 / 12),
    "aten.rand_like.default": (0.5, 1 / 12),
    "aten.randint.default": (4.0, 80 / 12),
    "aten.randint.low": (6.0, 24 / 12),
    "aten.randn.default": (0.0, 1.0),
    "aten.randn_like.default": (0.0, 1.0),
    "aten.randperm.default": (499.5, (1000**2 - 1) / 12),
}
"""Mean and variance of what is drawn."""


def draw(op: str, key: jax.Array) -> tuple[np.ndarray[Any, Any], ...]:
    output = table()[op](*DRAWS[op], key=key)
    return tuple(np.asarray(f) for f in (output if isinstance(output, tuple) else (output,)))


@pytest.mark.parametrize("op", sorted(RANDOM))
def test_the_key_decides(op: str) -> None:
    first, again, other = draw(op, KEY), draw(op, KEY), draw(op, OTHER)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("op", sorted(RANDOM))
def test_moments(op: str) -> None:
    mean, variance = MOMENTS[op]
    drawn = draw(op, KEY)[0].astype(np.float64)
    error = 5 * np.sqrt(variance / drawn.size)
    assert abs(drawn.mean() - mean) < error + 1e-9
    assert abs(drawn.var() - variance) < 0.05 * variance


def test_a_permutation_is_one() -> None:
    assert sorted(draw("aten.randperm.default", KEY)[0]) == list(range(1000))


def test_bounds() -> None:
    assert set(np.unique(draw("aten.randint.low", KEY)[0])) == {4, 5, 6, 7, 8}
    uniform = draw("aten.rand.default", KEY)[0]
    assert uniform.min() >= 0
    assert uniform.max() < 1


def test_dropout_scales_what_its_mask_keeps_and_backward_uses_the_mask() -> None:
    x = jax.random.normal(OTHER, SIZE)
    out, mask = table()["aten.native_dropout.default"](x, 0.25, True, key=KEY)
    assert mask.dtype == jnp.bool_
    np.testing.assert_allclose(out, np.where(mask, x / 0.75, 0), rtol=1e-6)
    back = table()["aten.native_dropout_backward.default"](x, mask, 1 / 0.75)
    np.testing.assert_allclose(back, out, rtol=1e-6)


def test_dropout_at_its_ends() -> None:
    dropout = table()["aten.native_dropout.default"]
    for p, train in ((0.0, True), (0.5, False)):
        out, mask = dropout(ONES, p, train, key=KEY)
        np.testing.assert_array_equal(out, ONES)
        assert mask.all()
    out, mask = dropout(ONES, 1.0, True, key=KEY)
    assert not out.any()
    assert not mask.any()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dropout_keeps_the_dtype(dtype: Any) -> None:
    out, _ = table()["aten.native_dropout.default"](ONES.astype(dtype), 0.5, True, key=KEY)
    assert out.dtype == dtype


def test_raw_keys_serve_as_well() -> None:
    raw = jax.random.PRNGKey(3)
    np.testing.assert_array_equal(
        table()["aten.rand.default"](SIZE, key=raw), draw("aten.rand.default", KEY)[0]
    )
