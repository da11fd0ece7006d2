"""Whole steps by the table of lowerings, against PyTorch, on every model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch

from helpers.jax.arrays import quick_compilation, to_numpy
from helpers.jax.torch_reference import Reference, interpreted, reference
from helpers.models import BASE, LOSS_INSIDE, MODELS, SMALL
from helpers.networks.transformers import GPT
from helpers.slow import default_only
from remat_compile.backends.jax.runtime.interpret import Interpreted
from remat_compile.capture.torch import Lowered, export, lower
from remat_compile.ir.graph import Atom, Call

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest difference, relative to the largest gradient (or result)."""


@pytest.fixture
def x64() -> Iterator[None]:
    with quick_compilation(x64=True):
        yield


@pytest.fixture
def x32() -> Iterator[None]:
    """JAX's default: integers have 32 bits."""
    with quick_compilation(x64=False):
        yield


def lowered_reference(sample: Any) -> Reference:
    module, args, kwargs = sample
    with lower(export(module, args, kwargs)) as lowered:
        return reference(lowered)


def difference(ours: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> float:
    """The largest difference, relative to the largest value of all."""
    assert set(ours) == set(theirs)
    if not theirs:
        return 0.0
    largest = max(float(np.abs(to_numpy(t)).max(initial=0)) for t in theirs.values())
    apart = 0.0
    for name in theirs:
        a, b = to_numpy(ours[name]), to_numpy(theirs[name])
        assert a.shape == b.shape, name
        apart = max(apart, float(np.abs(a.astype(np.float64) - b).max(initial=0)))
    return apart / (largest or 1.0)


def dtype_here(dtype: torch.dtype) -> str:
    """A dtype of PyTorch as JAX has it: 32 bits where 64 are switched off."""
    name = str(dtype).removeprefix("torch.")
    return str(jax.dtypes.canonicalize_dtype(name))


def assert_equal(ours: Interpreted, ref: Reference, tolerance: float) -> None:
    for name, theirs in ref.computed.items():
        if name in ours.values and theirs.dtype != torch.uint8:  # a generator's state
            assert str(ours.values[name].dtype) == dtype_here(theirs.dtype), name
            assert tuple(ours.values[name].shape) == tuple(theirs.shape), name
    differences = {
        "results": difference(dict(enumerate(ours.results)), dict(enumerate(ref.results))),
        "gradients": difference(ours.param_grads, ref.param_grads),
        "gradients of inputs": difference(ours.input_grads, ref.input_grads),
        "buffers": difference(ours.buffers, ref.buffers),
    }
    assert {what: d for what, d in differences.items() if not d <= tolerance} == {}


DEFAULT = ("mlp", "small-gpt")
ONE_BLOCK = [f"small-{name}" for name in ("gpt", "resnet")]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", default_only([*BASE, *ONE_BLOCK, "gpt-p0", "two-inputgrad"], DEFAULT)
)
def test_float64(name: str) -> None:
    make = SMALL[name[6:]] if name in ONE_BLOCK else MODELS[name]
    ref = lowered_reference(make(torch.float64))
    assert_equal(interpreted(ref), ref, TOLERANCE[torch.float64])


@pytest.mark.usefixtures("x32")
@pytest.mark.filterwarnings("error:Explicitly requested dtype")
@pytest.mark.parametrize("name", default_only(LOSS_INSIDE, ("mlp-loss",)))
def test_float32_without_x64(name: str) -> None:
    ref = lowered_reference(MODELS[name](torch.float32))
    assert_equal(interpreted(ref), ref, TOLERANCE[torch.float32])


@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize("name", default_only(["mlp-loss", "gpt-loss"], ["mlp-loss"]))
def test_bfloat16(name: str) -> None:
    ref = lowered_reference(MODELS[name](torch.bfloat16))
    assert_equal(interpreted(ref), ref, 5e-2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("batch", default_only([2, 11], [11]))
def test_dynamic_batch(batch: int) -> None:
    """Sizes are Python integers when the step is traced, again for each batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = GPT(layers=1, seq=8).double()
        sample, ids = torch.randint(0, 61, (3, 8)), torch.randint(0, 61, (batch, 8))
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    with lower(export(module, (sample,), dynamic_shapes=shapes)) as lowered:
        ref = reference(lowered, (ids,))
    assert set(ref.env.values()) == {batch}
    assert_equal(interpreted(ref), ref, TOLERANCE[torch.float64])


@pytest.mark.usefixtures("x64")
def test_a_wrong_mask_is_seen() -> None:
    ref = lowered_reference(SMALL["gpt-flash"](torch.float64))
    for c in ref.program.graph.cnodes:
        if c.token is not None:
            mask = ref.computed[c.results[1]]
            mask.view(-1)[0] = not bool(mask.view(-1)[0])
            break
    with pytest.raises(AssertionError):
        assert_equal(interpreted(ref), ref, TOLERANCE[torch.float64])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["gpt2", "bart", "bert", "vit", "convnext"])
def test_transformers_float64(name: str) -> None:
    hf_models = pytest.importorskip("helpers.jax.hf_models")
    ref = lowered_reference(hf_models.HF_MODELS[name](torch.float64))
    assert_equal(interpreted(ref), ref, TOLERANCE[torch.float64])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_transformers_with_float32_inside(name: str) -> None:
    """These compute norms, angles and the weights of attention in float32 whatever their
    dtype. PyTorch's sums, cosines and exponentials in float32 are its own, to the last bit;
    with float64 in their place the same graph agrees as every other does."""
    hf_models = pytest.importorskip("helpers.jax.hf_models")
    module, args, kwargs = hf_models.HF_MODELS[name](torch.float64)
    with lower(export(module, args, kwargs)) as lowered:
        ref, wide = reference(lowered), reference(widened(lowered))
    assert any(t.dtype == torch.float32 for t in ref.computed.values())
    assert_equal(interpreted(ref), ref, 1e-6)
    assert not any(t.dtype == torch.float32 for t in wide.computed.values())
    assert_equal(interpreted(wide), wide, TOLERANCE[torch.float64])


def widened(lowered: Lowered) -> Lowered:
    """The same step with float64 wherever the model asks for float32."""
    graph = lowered.program.graph
    anodes = tuple(replace(a, dtype="f64") if a.dtype == "f32" else a for a in graph.anodes)
    views = tuple(replace(v, call=wide_call(v.call)) for v in graph.views)
    cnodes = tuple(replace(c, call=wide_call(c.call)) for c in graph.cnodes)
    graph = replace(graph, anodes=anodes, views=views, cnodes=cnodes)
    return lowered.with_program(replace(lowered.program, graph=graph))


def wide_call(call: Call) -> Call:
    def wide(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(wide, arg))
        return Atom("dtype", "f64") if arg == Atom("dtype", "f32") else arg

    return replace(call, args=wide(call.args), kwargs=wide(call.kwargs))
