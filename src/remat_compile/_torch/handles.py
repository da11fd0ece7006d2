"""What runs an operator with the least on the way to its kernel.

The handle of an operator (`torch.ops.aten.mm.default._op`) turns each argument into a value of
PyTorch's interpreter. `torch.mm` parses its arguments for this one operator and calls it, in 0.3
to 2 us less, which is a fifth and more of a small step. So a step that runs takes PyTorch's own
function where it has one that is the operator and no other overload of it: for calls that give
tensors in place of tensors. The text of generated code names operators.

Nor does a step pass by autograd, whose graph it is one node of, or by functions that a user puts
around those of PyTorch (`torch.set_default_device` does): eager calls these for what the model
calls, and captured is what they made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..ir.graph import Arg, Call, Graph, Ref
from .callable import callable_op

__all__ = ["FUNCTIONS", "fast_handles", "handle", "kernels_alone"]

Handle = Callable[..., Any]

_FUNCTIONS = """
    mm.default addmm.default bmm.default baddbmm.default convolution.default
    add.Tensor sub.Tensor mul.Tensor div.Tensor maximum.default minimum.default
    neg.default abs.default reciprocal.default sqrt.default rsqrt.default
    exp.default log.default sin.default cos.default erf.default tanh.default sigmoid.default
    relu.default pow.Tensor_Scalar bitwise_not.default logical_not.default le.Scalar gt.Scalar
    sum.dim_IntList mean.dim amax.default where.self clone.default cat.default gather.default
    native_layer_norm.default embedding.default native_batch_norm.default
    _softmax.default _softmax_backward_data.default
    _log_softmax.default _log_softmax_backward_data.default
    split.Tensor select.int squeeze.dim unbind.int stack.default
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor ge.Scalar ge.Tensor
    le.Tensor gt.Tensor logical_and.default bitwise_and.Tensor masked_fill.Scalar
    rsub.Scalar sum.default mean.default cumsum.default clamp.default clamp_min.default
    constant_pad_nd.default native_group_norm.default
    _scaled_dot_product_flash_attention_for_cpu.default
    arange.default arange.start arange.start_step full.default zeros.default ones.default
    scalar_tensor.default
"""
"""Of `torch`."""
_NN_FUNCTIONS = """
    gelu.default silu.default leaky_relu.default avg_pool2d.default max_pool2d_with_indices.default
"""
"""Of `torch._C._nn`."""
_METHODS = "expand.default"
"""Of tensors alone."""


def _bound(names: str, space: object) -> dict[str, Handle]:
    pairs = ((f"aten.{name}", getattr(space, name.split(".")[0], None)) for name in names.split())
    return {op: function for op, function in pairs if function is not None}


FUNCTIONS: Mapping[str, Handle] = {
    **_bound(_FUNCTIONS, torch._C._VariableFunctions),
    **_bound(_NN_FUNCTIONS, torch._C._nn),
    **_bound(_METHODS, torch._C.TensorBase),
}
"""PyTorch's functions that run one operator each, by its name in the IR."""

_NUMBERS_TOO = frozenset(
    ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor")
)
"""These take a number as their second argument, as their handles do."""


def handle(call: Call) -> Handle:
    """What runs the operator of a call. FBError as `callable_op`."""
    op = callable_op(call.op)
    fast = FUNCTIONS.get(call.op)
    return fast if fast is not None and _fits(call) else op._op


def fast_handles(graph: Graph) -> dict[Handle, Handle]:
    """What runs instead of the handles of operators whose calls in `graph` all fit."""
    fits: dict[str, bool] = {}
    for call in graph.calls():
        if call.op in FUNCTIONS:
            fits[call.op] = fits.get(call.op, True) and _fits(call)
    return {callable_op(op)._op: FUNCTIONS[op] for op, fit in fits.items() if fit}


@contextmanager
def kernels_alone() -> Iterator[None]:
    """Operators go to their kernels: past autograd, and past functions around PyTorch's own."""
    with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
        yield


def _fits(call: Call) -> bool:
    """Whether the function reads the arguments of a call as those of this operator."""
    positional, named, tensors = _parameters(callable_op(call.op))
    if len(call.args) > len(positional) or not named.issuperset(key for key, _ in call.kwargs):
        return False
    given = [*zip(positional, call.args, strict=False), *call.kwargs]
    if not tensors and not {"device", "pin_memory"} <= {name for name, _ in given}:
        return False  # the function would fill in what `torch.set_default_tensor_type` says
    if call.op in _NUMBERS_TOO and len(call.args) == 2:
        given = [pair for pair in given if pair[0] != positional[1]]
    return all(_is_tensor(arg) for name, arg in given if name in tensors)


@lru_cache(maxsize=256)
def _parameters(op: OpOverload) -> tuple[Sequence[str], frozenset[str], frozenset[str]]:
    """Positional parameters in order, those given by name, and those that are tensors."""
    arguments = op._schema.arguments
    return (
        [a.name for a in arguments if not a.kwarg_only],
        frozenset(a.name for a in arguments if a.kwarg_only),
        frozenset(a.name for a in arguments if "Tensor" in str(a.type)),
    )


def _is_tensor(arg: Arg) -> bool:
    """Or several, or none."""
    return (
        arg is None
        or isinstance(arg, Ref)
        or (isinstance(arg, tuple) and all(map(_is_tensor, arg)))
    )
