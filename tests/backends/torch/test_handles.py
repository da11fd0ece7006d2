"""What stands in for handles of operators is the same operator, with the same arguments."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import remat_compile
from helpers.networks.linear import MLP
from remat_compile.ir.graph import Arg, Atom, Call, Ref
from remat_compile.ir.text.parser import parse_program

handles = import_module("remat_compile._torch.handles")
FUNCTIONS = handles.FUNCTIONS

X, Y, W, T, V, B3 = "x", "y", "w", "t", "v", "b3"
"""Tensors of [4, 4], the last two of them transposed, of [4] and of [2, 4, 4]."""
TENSORS = {
    X: torch.linspace(0.1, 2.0, 16).view(4, 4),
    Y: torch.linspace(1.0, 3.0, 16).view(4, 4),
    W: torch.linspace(-1.0, 1.0, 16).view(4, 4).t(),
    T: torch.linspace(0.1, 2.0, 16).view(4, 4).t(),
    V: torch.linspace(0.5, 1.5, 4),
    B3: torch.linspace(-2.0, 2.0, 32).view(2, 4, 4),
    "mask": torch.arange(16).view(4, 4) % 3 == 0,
    "index": torch.tensor([[0, 1, 2, 3]]),
    "ids": torch.tensor([3, 0]),
    "image": torch.linspace(-1.0, 1.0, 32).view(1, 2, 4, 4),
    "filter": torch.linspace(-1.0, 1.0, 54).view(3, 2, 3, 3),
    "half": torch.linspace(-1.0, 1.0, 16).view(4, 4).to(torch.float16),
    "heads": torch.linspace(-1.0, 1.0, 64).view(1, 2, 4, 8),
    "bias": torch.linspace(-1.0, 1.0, 32).view(1, 2, 4, 4),
}
ON_CPU = {"device": torch.device("cpu"), "pin_memory": False}
"""As a captured call has it."""
F64 = ("dtype", torch.float64)
CASES: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "mm.default": [((X, W), {}), ((W, X), {})],
    "addmm.default": [((V, X, W), {}), ((Y, X, W), {"beta": 2, "alpha": 0.5}), ((Y, W, X), {})],
    "bmm.default": [((B3, B3), {})],
    "baddbmm.default": [((B3, B3, B3), {}), ((B3, B3, B3), {"beta": 0, "alpha": 2})],
    "convolution.default": [
        (("image", "filter", bias, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {})
        for bias in (None, "three")
    ],
    **{
        f"{name}.Tensor": [((X, Y), {}), ((X, V), {}), ((X, 2), {}), ((X, 0.5), {})]
        for name in ("add", "sub", "mul", "div")
    },
    **{f"{name}.default": [((X, Y), {}), ((V, X), {})] for name in ("maximum", "minimum")},
    **{
        f"{name}.default": [((X,), {}), ((T,), {})]
        for name in (
            *("neg", "abs", "reciprocal", "sqrt", "rsqrt", "exp", "log", "sin", "cos"),
            *("erf", "tanh", "sigmoid", "relu", "silu"),
        )
    },
    "gelu.default": [((X,), {}), ((X,), {"approximate": "tanh"})],
    "pow.Tensor_Scalar": [((X, 2), {}), ((X, 0.5), {}), ((X, -1.0), {})],
    **{f"{name}.default": [(("mask",), {})] for name in ("bitwise_not", "logical_not")},
    **{f"{name}.Scalar": [((X, 1), {}), ((X, 0.5), {})] for name in ("le", "gt")},
    "sum.dim_IntList": [
        *(
            ((X, dims, keep), {})
            for dims in ([0], [-1], [0, 1], [], None)
            for keep in (True, False)
        ),
        ((X, [0]), {}),
        ((X, [0], True), dict([F64])),
        (("mask", [1]), {}),
    ],
    "mean.dim": [
        ((X, [-1], True), {}),
        ((X, [0, 1]), {}),
        ((X, None), {}),
        ((X, [0]), dict([F64])),
    ],
    "amax.default": [((X, [1], True), {}), ((X,), {}), ((X, []), {})],
    "where.self": [(("mask", X, Y), {}), (("mask", V, X), {})],
    "clone.default": [
        ((W,), {}),
        ((W,), {"memory_format": torch.contiguous_format}),
        ((W,), {"memory_format": torch.preserve_format}),
    ],
    "cat.default": [(([X, Y],), {}), (([X, W, Y], 1), {}), (([B3, B3], -1), {})],
    "gather.default": [((X, 0, "index"), {}), ((X, 1, "index"), {"sparse_grad": False})],
    "native_layer_norm.default": [((X, [4], V, V, 1e-5), {}), ((X, [4], None, None, 1e-5), {})],
    "embedding.default": [
        ((X, "ids"), {}),
        ((X, "ids", 0), {}),
        ((X, "ids", -1, False, False), {}),
    ],
    "native_batch_norm.default": [
        (("image", "two", "two", None, None, True, 0.1, 1e-5), {}),
        (("image", None, None, None, None, True, 0.1, 1e-5), {}),
    ],
    "_softmax.default": [((X, -1, False), {}), ((B3, 1, False), {})],
    "_softmax_backward_data.default": [((X, Y, -1, torch.float32), {})],
    "_log_softmax.default": [((X, -1, False), {})],
    "_log_softmax_backward_data.default": [((X, Y, -1, torch.float32), {})],
    "split.Tensor": [((X, 2), {}), ((X, 3, 1), {}), ((B3, 1, -1), {})],
    "select.int": [((X, 0, 1), {}), ((X, -1, -1), {})],
    "squeeze.dim": [(("index", 0), {}), ((X, -1), {})],
    "unbind.int": [((B3,), {}), ((X, 1), {})],
    "stack.default": [(([X, Y],), {}), (([X, W], -1), {})],
    **{
        f"{name}.{overload}": [((X, other), {})]
        for name in ("eq", "ne", "lt", "ge", "le", "gt")
        for overload, other in (("Scalar", 1.0), ("Tensor", Y))
        if overload == "Tensor" or name not in ("le", "gt")
    },
    "logical_and.default": [(("mask", X), {})],
    "bitwise_and.Tensor": [(("mask", "mask"), {})],
    "masked_fill.Scalar": [((X, "mask", 0.5), {}), ((X, "mask", float("-inf")), {})],
    "rsub.Scalar": [((X, 1), {}), ((X, 1.0, 2), {})],
    "sum.default": [((X,), {}), (("mask",), {}), ((X,), dict([F64]))],
    "mean.default": [((X,), {}), ((X,), dict([F64]))],
    "cumsum.default": [((X, 0), {}), ((X, -1), dict([F64]))],
    "clamp.default": [((X, 0.5, 1.0), {}), ((X, None, 1), {})],
    "clamp_min.default": [((X, 0.5), {})],
    "constant_pad_nd.default": [((X, [1, 1], 0.5), {}), ((X, [0, 1, 2, 0]), {})],
    "native_group_norm.default": [
        (("image", affine, affine, 1, 2, 16, 2, 1e-5), {}) for affine in (None, "two")
    ],
    "_scaled_dot_product_flash_attention_for_cpu.default": [
        (("heads", "heads", "heads"), {}),
        (("heads", "heads", "heads", 0.0, True), {}),
        (("heads", "heads", "heads"), {"attn_mask": "bias", "scale": 0.5}),
    ],
    "arange.default": [((4,), ON_CPU), ((4.5,), ON_CPU | dict([F64]))],
    "arange.start": [((1, 4), ON_CPU), ((1, 4.5), ON_CPU)],
    "arange.start_step": [((1, 9, 2), ON_CPU), ((0, 1, 0.25), ON_CPU | dict([F64]))],
    "full.default": [
        *(((sizes, value), ON_CPU) for sizes in ([2, 2], []) for value in (0.5, 3, True)),
        (([2], float("-inf")), ON_CPU | {"layout": torch.strided} | dict([F64])),
    ],
    **{
        f"{name}.default": [(([2, 2],), ON_CPU), (([2],), ON_CPU | dict([F64]))]
        for name in ("zeros", "ones")
    },
    "scalar_tensor.default": [((0.5,), ON_CPU), ((2,), ON_CPU | dict([F64]))],
    "leaky_relu.default": [((W,), {}), ((W, 0.1), {})],
    "avg_pool2d.default": [
        (("image", [2, 2]), {}),
        (("image", [2, 2], [2, 2], [1, 1], False, False), {}),
    ],
    "max_pool2d_with_indices.default": [
        (("image", [2, 2]), {}),
        (("image", [2, 2], [1, 1], [1, 1]), {}),
    ],
    "expand.default": [
        ((V, [4, 4]), {}),
        ((V, [2, -1]), {}),
        (("index", [3, 4]), {"implicit": False}),
    ],
}
TENSORS["two"], TENSORS["three"] = TENSORS[V][:2], TENSORS[V][:3]


def operator(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


class Recorder(TorchDispatchMode):
    """Operators as they arrive at their kernels, with what is given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def recorded(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    with Recorder() as recorder:
        made = run(*args, **kwargs)
    return recorder.calls, made


def given(arg: Any) -> Any:
    if isinstance(arg, str) and arg in TENSORS:
        return TENSORS[arg]
    return [given(part) for part in arg] if isinstance(arg, list) else arg


def equal(one: Any, other: Any) -> bool:
    """In type, and of tensors in every bit, strides and type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        described = [(t.dtype, t.shape, t.stride(), t.is_contiguous()) for t in (one, other)]
        return described[0] == described[1] and torch.equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def test_every_function_is_there_and_has_cases() -> None:
    assert FUNCTIONS.keys() == {f"aten.{name}" for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_function_runs_the_operator_and_no_overload_of_it(name: str) -> None:
    op = operator(f"aten.{name}")
    for args, kwargs in CASES[name]:
        args, kwargs = tuple(map(given, args)), {key: given(arg) for key, arg in kwargs.items()}
        of_handle, wanted = recorded(op._op, args, kwargs)
        functions, made = recorded(FUNCTIONS[f"aten.{name}"], args, kwargs)
        assert [func for func, *_ in functions] == [op] == [func for func, *_ in of_handle]
        assert equal(functions, of_handle), (args, kwargs)
        assert equal(made, wanted), (args, kwargs)


@pytest.mark.parametrize(
    "call",
    [
        Call("aten.mm.default", (Ref("x"),), (("mat2", Ref("y")),)),
        Call("aten.mm.default", (), (("self", Ref("x")), ("mat2", Ref("y")))),
        Call("aten.where.self", (Ref("m"), 1.0, Ref("x"))),
        Call("aten.maximum.default", (Ref("x"), 1.0)),
        Call("aten.mul.Tensor", (2.0, Ref("x"))),
        Call("aten.cat.default", ((Ref("x"), 1.0),)),
        Call("aten.mul.Scalar", (Ref("x"), 2.0)),
        Call("aten.add.Tensor", (Ref("x"), Ref("y")), (("out", Ref("y")),)),
        Call("aten.sum.dim_IntList", (Ref("x"), (0,), True, Atom("dtype", "f32"))),
        Call("aten.eq.Tensor", (Ref("x"), 1.0)),
        # Without them the function asks for a default that can be set; the operator does not.
        Call("aten.arange.default", (4,)),
        Call("aten.zeros.default", ((4,),), (("device", Atom("device", "cpu")),)),
    ],
)
def test_other_calls_have_their_handle(call: Call) -> None:
    assert handles.handle(call) is operator(call.op)._op


@pytest.mark.parametrize("other", [Ref("y"), 2, 0.5, True])
def test_a_number_may_be_the_second_of_a_sum(other: Arg) -> None:
    call = Call("aten.add.Tensor", (Ref("x"), other))
    assert handles.handle(call) is FUNCTIONS[call.op]


def test_one_call_that_does_not_fit_keeps_the_handle_for_all() -> None:
    text = """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %y : output f32[4] bytes 16
  %z : act f32[4] bytes 16
  %d : tangent f32[4] bytes 16
  F1: fwd %z = aten.mul.Tensor(%x, 2.0)
  F2: fwd %y = aten.mul.Tensor(SELF%z)
  L: loss %d = loss(%y)
}
bind {
  arg "x" = %x
  result %y tangent %d
}
"""
    op = operator("aten.mul.Tensor")
    of = {
        s: handles.fast_handles(parse_program(text.replace("SELF", s), "g.fbir").graph)
        for s in ("%z, ", "2.0, ")
    }
    assert of["%z, "] == {op._op: FUNCTIONS["aten.mul.Tensor"]}
    assert of["2.0, "] == {}


def test_a_planned_step_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any) -> Tensor:
        calls.append(len(args))
        return torch._C._VariableFunctions.mm(*args)

    monkeypatch.setitem(FUNCTIONS, "aten.mm.default", counted)  # type: ignore[arg-type]
    model, x = MLP(), torch.randn(4, 16)
    planned = remat_compile.compile(model, (x,), planner="store-all", progress=False)
    calls.clear()  # those of measured costs
    planned(x).sum().backward()
    assert calls


class Counting(TorchFunctionMode):
    """Counts what it is asked, and changes what multiplies matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_functions_around_those_of_pytorch_are_not_asked() -> None:
    with Counting() as mode, handles.kernels_alone():
        TENSORS[X].mm(TENSORS[W]).t()
        torch._C._VariableFunctions.relu(TENSORS[X])
    assert mode.seen == 0
