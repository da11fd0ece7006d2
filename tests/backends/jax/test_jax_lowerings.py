"""Every lowering against PyTorch: values, dtypes, shapes and signatures."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.jax.arrays import plain_code, quick_compilation, to_numpy, translated
from helpers.jax.samples import RANDOM, SAMPLES, Call, samples
from helpers.slow import default_only
from remat_compile.backends.jax.honoured import OMITTED, honoured, omitted
from remat_compile.backends.jax.lowerings import is_random, source_of, table
from remat_compile.ir import graph
from remat_compile.operators.aten import resolve_op

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
}
"""Largest difference, relative to the largest value (to 1 where all are smaller)."""

INT64 = 4
"""How a schema writes `torch.int64`."""

UNDEFINED_CONTENTS = {op for op in table() if "empty" in op}


def results(output: Any) -> tuple[Any, ...]:
    return tuple(output) if isinstance(output, tuple | list) else (output,)


def assert_same(ours: Any, theirs: Any, dtype: torch.dtype, *, values: bool = True) -> None:
    """Equal as far as the less precise of `dtype` and of the result's own dtype allows."""
    if theirs is None:
        assert ours is None
        return
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
    if not values:
        return
    tolerance = max(TOLERANCE[dtype], TOLERANCE.get(theirs.dtype, 0))
    a, b = to_numpy(ours), to_numpy(theirs)
    finite = np.isfinite(b)
    scale = max(1.0, float(np.abs(b[finite].astype(np.float64)).max(initial=0)))
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def of_arrays(op: str, c: Call) -> tuple[Callable[..., Any], list[jax.Array]]:
    """The lowering as a function of the call's arrays alone, and these."""
    taken = honoured(graph.Call(op, c.args, tuple(c.kwargs.items())))
    leaves, tree = jax.tree.flatten((translated(taken.args), translated(dict(taken.kwargs))))

    def function(arrays: list[jax.Array]) -> Any:
        given = iter(arrays)
        whole = [next(given) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(tree, whole)
        return table()[op](*args, **kwargs)

    return function, [leaf for leaf in leaves if isinstance(leaf, jax.Array)]


def check(op: str, dtype: torch.dtype, at_most: int = 99) -> None:
    calls = samples(op, dtype)[:at_most]
    for c, ours in zip(calls, computed(op, dtype, at_most), strict=True):
        with torch.no_grad():
            theirs = results(resolve_op(op)(*c.args, **c.kwargs))
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b, dtype, values=op not in UNDEFINED_CONTENTS)


TOGETHER = 24
"""Operators in one function for XLA: compiling is what these tests spend their time on."""


def computed(op: str, dtype: torch.dtype, at_most: int) -> list[tuple[Any, ...]]:
    """What the lowering gives for each call, from the function of the operator's neighbours; by
    itself where one of those fails."""
    ops = sorted(SAMPLES)
    first = ops.index(op) // TOGETHER * TOGETHER
    try:
        return compiled(tuple(ops[first : first + TOGETHER]), dtype, at_most)[op]
    except Exception:  # whatever a lowering or XLA raises
        return compiled((op,), dtype, at_most)[op]


@cache
def compiled(
    ops: tuple[str, ...], dtype: torch.dtype, at_most: int
) -> dict[str, list[tuple[Any, ...]]]:
    """What the lowerings give for the first calls of each operator, in one function."""
    made = {op: [of_arrays(op, c) for c in samples(op, dtype)[:at_most]] for op in ops}
    functions = {op: [function for function, _ in of_op] for op, of_op in made.items()}

    def every(arrays: dict[str, list[list[jax.Array]]]) -> dict[str, list[tuple[Any, ...]]]:
        return {
            op: [results(f(given)) for f, given in zip(functions[op], arrays[op], strict=True)]
            for op in ops
        }

    compiled = jax.jit(every, compiler_options=plain_code())
    return compiled({op: [arrays for _, arrays in of_op] for op, of_op in made.items()})


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation(x64=True):
        yield


def test_every_lowering_has_samples() -> None:
    assert set(table()) == set(SAMPLES) | RANDOM
    assert {op for op in table() if is_random(op)} == RANDOM


@pytest.mark.parametrize("op", sorted(SAMPLES))
def test_float64(op: str) -> None:
    check(op, torch.float64)


@pytest.mark.parametrize(
    "dtype",
    default_only([torch.float32, torch.bfloat16, torch.float16], [torch.bfloat16]),
)
@pytest.mark.parametrize("op", sorted(SAMPLES))
def test_narrower(op: str, dtype: torch.dtype) -> None:
    check(op, dtype, at_most=1 if dtype == torch.float16 else 2)


@pytest.mark.parametrize("op", sorted(SAMPLES))
def test_vmap_traces(op: str) -> None:
    """Each lowering under `jax.vmap` over all its arrays: the shapes, with an axis in front."""
    function, arrays = of_arrays(op, samples(op, torch.float32)[0])
    if not arrays:
        return
    plain = jax.eval_shape(function, arrays)
    mapped = jax.eval_shape(jax.vmap(function), [jnp.stack((a, a)) for a in arrays])
    for one, two in zip(jax.tree.leaves(plain), jax.tree.leaves(mapped), strict=True):
        assert two.shape == (2, *one.shape)
        assert two.dtype == one.dtype


@pytest.mark.parametrize("op", sorted(table()))
def test_signature_is_the_schema(op: str) -> None:
    """A lowering has the parameters of the schema, but for those that the table omits."""
    arguments = resolve_op(op)._schema.arguments
    left_out = {o.name for o in omitted(op)}
    taken = [argument for argument in arguments if argument.name not in left_out]
    ours = [p for p in inspect.signature(table()[op]).parameters.values() if not _is_key(p)]
    assert [p.name for p in ours] == [
        {"self": "x"}.get(argument.name, argument.name) for argument in taken
    ]
    places = {a.name: None if a.kwarg_only else i for i, a in enumerate(arguments)}
    for parameter in OMITTED.get(op, ()):
        assert places[parameter.name] == parameter.place, parameter.name
    for name, place in places.items():
        # A positional parameter that is left out is named in the operator's own row.
        own = {o.name for o in OMITTED.get(op, ())}
        assert place is None or name not in left_out or name in own, name
    for p, argument in zip(ours, taken, strict=True):
        assert (p.kind is inspect.Parameter.KEYWORD_ONLY) == argument.kwarg_only, p.name
        if argument.has_default_value():
            default = argument.default_value
            plain = tuple(default) if isinstance(default, list) else default
            if argument.name == "dtype" and plain == INT64:
                plain = jnp.int64
            assert p.default == plain, p.name
        else:
            assert p.default is inspect.Parameter.empty, p.name


@pytest.mark.parametrize("op", sorted(table()))
def test_a_lowering_reads_all_its_parameters(op: str) -> None:
    """A parameter that a function does not read would be ignored without a word."""
    function = ast.parse(source_of([op])).body[-1]
    assert isinstance(function, ast.FunctionDef)
    read = {n.id for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name)}
    assert set(inspect.signature(table()[op]).parameters) <= read


def test_the_table_has_known_operators_alone() -> None:
    assert set(OMITTED) <= set(table())


def _is_key(p: inspect.Parameter) -> bool:
    return p.name == "key" and p.kind is inspect.Parameter.KEYWORD_ONLY


def test_a_wrong_lowering_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = table()["aten.gelu.default"]
    wrong = {**table(), "aten.gelu.default": lambda x, **kw: right(x, **kw) + 1e-11}
    monkeypatch.setattr(f"{__name__}.table", lambda: wrong)
    monkeypatch.setattr(f"{__name__}.TOGETHER", 1)
    compiled.cache_clear()
    try:
        with pytest.raises(AssertionError):
            check("aten.gelu.default", torch.float64)
    finally:
        compiled.cache_clear()


def test_tensors_are_translated() -> None:
    assert isinstance(translated([torch.zeros(2), None])[0], jax.Array)
    assert not isinstance(translated(torch.zeros(2)), Tensor)
