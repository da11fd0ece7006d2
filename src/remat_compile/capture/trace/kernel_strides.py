"""Layouts of the results of real kernels, where tracing says otherwise.

What is traced has the strides that PyTorch's kernels for `meta` work out. Of a contiguous operand
those are right. Of others some are not: `BatchNorm1d` of a transposed tensor gives a contiguous
result, and its form on `meta` a transposed one; so for backwards of activations whose gradient lies
otherwise than their input, of log-softmax, and others. What follows is then traced for a layout
that never comes: a `reshape` as a view where eager copies, or the other way round.

So an operator with an operand that is not contiguous is run once for real, on zeros of these sizes
and strides, and what is traced is laid out as that result. A view has the strides of a real one, in
dimensions of one element too. This is the one file that touches the private parts of PyTorch for
that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import SymInt, Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...device.fake_tensors import FakeTensorMode
from ...device.strides import is_dense, outermost_first
from ...operators.instances import plain_mode
from ...operators.overloads import OpOverload

Orders = tuple[tuple[int, ...] | None, ...]
"""The strides of each result at the sample, where `meta` has others."""

MOST_WITHOUT_VALUES_BYTES = 2**26
"""Limit on all operands together, for a model without values: it may be larger than this
machine."""

_ALWAYS_RIGHT = frozenset(
    (
        *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "convolution"),
        *("clone", "_to_copy", "copy", "sum", "mean", "add", "mul", "sub", "embedding"),
        *("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros"),
        *("new_empty_strided", "empty_strided", "detach", "cat", "stack", "_softmax"),
    )
)
"""Operators of every layer whose results on `meta` were held against those of the kernels, in all
layouts (`tests/frontends/torch_export/test_kernel_strides.py`)."""

_BY_INDEX = frozenset(("max_unpool2d",))
"""Operators with an operand of integers that are tried all the same: zeros are indices."""

_OF_STATE = ("rnn", "lstm", "gru", "ctc", "quantize", "nested")
"""Parts of names of operators that read what another one wrote, or more than their operands say."""

_known: dict[str, Orders] = {}


@contextmanager
def laid_out_by_kernels(mode: FakeTensorMode, *, has_values: bool) -> Iterator[None]:
    """Inside, tensors that `mode` traces lie as real ones do."""
    by_meta, at_most = mode.dispatch, None if has_values else MOST_WITHOUT_VALUES_BYTES

    def dispatch(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        made = by_meta(func, types, args, kwargs or {})
        if func is torch.ops.aten.view.default:
            with mode:
                return _strided_as_real(args[0], made)
        if not _may_differ(func, args, kwargs or {}):
            return made
        orders = kernel_orders(func, args, kwargs or {}, made, at_most)
        with mode:
            return laid_out(made, orders)

    with mock.patch.object(mode, "dispatch", dispatch):
        yield


def kernel_orders(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    made: Any,
    at_most_bytes: int | None = None,
) -> Orders:
    """Return those results `made` by `meta` that a real kernel lays out otherwise. Of operands of
    more than `at_most_bytes`, of a device that is not here, or of numbers without which the
    operator does not run, none."""
    if not _may_differ(func, args, kwargs):
        return ()
    leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not all(map(_can_be_made, tensors)):
        return ()
    key = f"{func} {[_text(leaf) for leaf in leaves]}"
    if key not in _known:
        nbytes = sum(_span(t) * t.element_size() for t in tensors)
        if at_most_bytes is not None and nbytes > at_most_bytes:
            return ()
        _known[key] = _tried(func, leaves, spec, made)
    return _known[key]


def laid_out(made: Any, orders: Orders) -> Any:
    """Results with these strides, with dynamic sizes in that order of dimensions."""
    if not any(orders):
        return made
    leaves, spec = tree_flatten(made)
    laid = [
        leaf
        if strides is None
        else torch.empty_strided(
            leaf.shape, _strides_of(leaf, strides), dtype=leaf.dtype, device=leaf.device
        )
        for leaf, strides in zip(leaves, orders, strict=True)
    ]
    return tree_unflatten(laid, spec)


def _strided_as_real(tensor: Tensor, view: Tensor) -> Tensor:
    """A view with the strides of a real one. Dimensions of one element have others on fake tensors,
    and whether a tensor is channels_last hangs on those too."""
    numbers = (*tensor.shape, *tensor.stride(), *view.shape)
    if 1 not in view.shape or not all(isinstance(n, int) for n in numbers):
        return view
    with no_dispatch(), plain_mode(torch.device("cpu")):
        real = torch.empty_strided(tensor.shape, tensor.stride(), device="meta").view(view.shape)
    strides = real.stride()
    return view if strides == view.stride() else view.as_strided(view.shape, strides)


def _strides_of(tensor: Tensor, at_sample: Sequence[int]) -> Sequence[Any]:
    """In elements, for the sizes of this tensor."""
    if all(isinstance(size, int) for size in tensor.shape):
        return at_sample
    strides, step = [1] * tensor.dim(), 1
    for d in reversed(outermost_first(at_sample)):
        strides[d] = step
        step = step * tensor.shape[d]
    return strides


def _may_differ(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether it is an operator of PyTorch's own that gives tensors of its own, draws no
    random numbers, and has an operand that is not contiguous."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    if func.overloadpacket.__name__ in _ALWAYS_RIGHT or not _makes_new(func):
        return False
    operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    return _takes_zeros(func, operands) and any(
        t.dim() > 1 and not _is_contiguous(t) for t in operands
    )


def _takes_zeros(func: OpOverload, operands: Sequence[Tensor]) -> bool:
    """Return whether a kernel can be run on zeros. A workspace that another kernel wrote, and
    lengths and offsets, may end the process where they are zeros, as in the backward of an LSTM by
    oneDNN: operators with an operand of integers are left as `meta` has them."""
    name = func.overloadpacket.__name__
    if any(part in name for part in _OF_STATE):
        return False
    is_numeric = (
        t.dtype.is_floating_point or t.is_complex() or t.dtype == torch.bool for t in operands
    )
    return name in _BY_INDEX or all(is_numeric)


def _makes_new(func: OpOverload) -> bool:
    schema = func._schema
    return (
        bool(schema.returns)
        and not any(returned.alias_info for returned in schema.returns)
        and torch.Tag.nondeterministic_seeded not in func.tags
        and torch.Tag.dynamic_output_shape not in func.tags
        and torch.Tag.data_dependent_output not in func.tags
    )


def _is_contiguous(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return True  # of no concern here
    sizes = _numbers(tensor.shape)
    return 0 in sizes or is_dense(sizes, _numbers(tensor.stride()), range(len(sizes)))


def _numbers(sizes: Sequence[int | SymInt]) -> list[int]:
    """At the sample, without a guard on it; 0 where they are not known."""
    return [size if isinstance(size, int) else int(size.node.hint or 0) for size in sizes]


def _can_be_made(tensor: Tensor) -> bool:
    kind = tensor.device.type
    is_here = kind == "cpu" or (kind == "cuda" and torch.cuda.is_available())
    return is_here and tensor.layout is torch.strided


def _span(tensor: Tensor) -> int:
    """The elements from the first to the last."""
    sizes, strides = _numbers(tensor.shape), _numbers(tensor.stride())
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))


def _text(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        sizes, strides = _numbers(leaf.shape), _numbers(leaf.stride())
        return f"{leaf.dtype}{sizes}{strides}{leaf.device}"
    return repr(_plain(leaf))


def _plain(leaf: Any) -> Any:
    return int(leaf.node.hint or 0) if isinstance(leaf, SymInt) else leaf


def _tried(func: OpOverload, leaves: Sequence[Any], spec: Any, made: Any) -> Orders:
    device = next(leaf.device for leaf in leaves if isinstance(leaf, Tensor))
    try:
        with no_dispatch(), plain_mode(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = tree_unflatten([_zeros(leaf) for leaf in leaves], spec)
            real = func(*args, **kwargs)
    except Exception:  # an operator may refuse zeros
        return ()
    pairs = zip(tree_leaves(real), tree_leaves(made), strict=False)
    orders = tuple(_strides(one, other) for one, other in pairs)
    return orders if any(orders) else ()


def _zeros(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return _plain(leaf)
    sizes, strides = _numbers(leaf.shape), _numbers(leaf.stride())
    held = torch.zeros(_span(leaf), dtype=leaf.dtype, device=leaf.device)
    return held.as_strided(sizes, strides)


def _strides(real: Any, traced: Any) -> tuple[int, ...] | None:
    if not (isinstance(real, Tensor) and isinstance(traced, Tensor)):
        return None
    sizes, strides = [*real.shape], real.stride()
    order = outermost_first(strides)
    if sizes != _numbers(traced.shape) or 0 in sizes or not is_dense(sizes, strides, order):
        return None
    return None if [*strides] == _numbers(traced.stride()) else strides
