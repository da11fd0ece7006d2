"""Arguments of ATen calls that JAX lowerings honour, and permitted values of the others.

A lowering is a function of values, and has only parameters that its values depend on. The
table has the other parameters of PyTorch's schemas: those that mean nothing to the values,
whatever they say, and those that a lowering has for some of their values only; a call with
another one is refused (FB0947). Loads no JAX.

    aten.topk.default(%x, 2, -1, True, True)   ->   aten_topk_default(x, 2, -1, True)
    aten.topk.default(%x, 2, -1, True, False)       refused: only sorted=True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ...ir.graph import Arg, Atom, Call
from ...ir.program import Program
from ..views import with_calls


@dataclass(frozen=True, slots=True)
class Omitted:
    """A parameter of a schema that no lowering of it takes: `place` among the positional ones
    (None: by keyword alone), `only` the values that it may have (None: all mean the same)."""

    name: str
    place: int | None = None
    only: tuple[Arg, ...] | None = None


_EVERYWHERE = (
    Omitted("device"),
    Omitted("layout", only=(None, Atom("layout", "strided"))),
    Omitted("memory_format"),
    Omitted("non_blocking"),
    Omitted("pin_memory"),
    # A plan has tokens for random states, and lowerings draw from the key of their token.
    Omitted("generator", only=(None,)),
)
"""Where an array lies and how it is laid out is no matter of its values."""

OMITTED: Mapping[str, tuple[Omitted, ...]] = {
    # These kernels exist for training without dropout alone.
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (Omitted("dropout_p", 3, (0,)),),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (
        Omitted("dropout_p", 6, (0,)),
    ),
    "aten._linalg_svd.default": (Omitted("driver", only=(None,)),),
    "aten._linalg_solve_ex.default": (Omitted("check_errors", only=(False,)),),
    "aten._trilinear.default": (Omitted("unroll_dim", 7),),
    "aten.convolution_backward.default": (Omitted("bias_sizes", 3),),
    "aten.copy.default": (Omitted("non_blocking", 2),),
    # These three speak to the backward, which is another operator and is given them itself.
    "aten.embedding.default": (
        *(Omitted("padding_idx", 2), Omitted("scale_grad_by_freq", 3), Omitted("sparse", 4)),
    ),
    "aten.empty_strided.default": (Omitted("stride", 1),),
    "aten.expand.default": (Omitted("implicit"),),
    "aten.expand_copy.default": (Omitted("implicit"),),
    "aten.gather.default": (Omitted("sparse_grad"),),
    # The result has the sign of what it was computed from: PyTorch refuses negative slopes here.
    "aten.leaky_relu_backward.default": (Omitted("self_is_result", 3),),
    "aten.linalg_cholesky_ex.default": (Omitted("check_errors", only=(False,)),),
    "aten.linalg_inv_ex.default": (Omitted("check_errors", only=(False,)),),
    "aten.linalg_lu.default": (Omitted("pivot", only=(True,)),),
    "aten.linalg_lu_factor_ex.default": (
        *(Omitted("pivot", only=(True,)), Omitted("check_errors", only=(False,))),
    ),
    "aten.lu_unpack.default": (
        *(Omitted("unpack_data", 2, (True,)), Omitted("unpack_pivots", 3, (True,))),
    ),
    "aten.log_sigmoid_backward.default": (Omitted("buffer", 2),),
    # The indices of the forward say where each maximum came from.
    "aten.max_pool2d_with_indices_backward.default": (
        *(Omitted("kernel_size", 2), Omitted("stride", 3), Omitted("padding", 4)),
        *(Omitted("dilation", 5), Omitted("ceil_mode", 6)),
    ),
    "aten.max_pool3d_with_indices_backward.default": (
        *(Omitted("kernel_size", 2), Omitted("stride", 3), Omitted("padding", 4)),
        *(Omitted("dilation", 5), Omitted("ceil_mode", 6)),
    ),
    "aten.max_unpool3d.default": (Omitted("stride", 3), Omitted("padding", 4)),
    "aten.new_empty_strided.default": (Omitted("stride", 2),),
    "aten.repeat_interleave.self_int": (Omitted("output_size"),),
    # Unsorted, PyTorch gives the values in an order of its own.
    "aten.topk.default": (Omitted("sorted", 4, (True,)),),
}


def omitted(op: str) -> tuple[Omitted, ...]:
    """The parameters that the lowering of an operator does not take."""
    return (*_EVERYWHERE, *OMITTED.get(op, ()))


def honoured(call: Call) -> Call:
    """The call with only those arguments that its lowering takes."""
    places = {o.place for o in omitted(call.op)}
    names = {o.name for o in omitted(call.op)}
    return replace(
        call,
        args=tuple(arg for place, arg in enumerate(call.args) if place not in places),
        kwargs=tuple((name, arg) for name, arg in call.kwargs if name not in names),
    )


def for_jax(program: Program) -> Program:
    """The program whose calls are those of the lowerings."""
    return replace(program, graph=with_calls(program.graph, honoured))


def unhonoured(call: Call) -> Iterator[str]:
    """The part of a call that its lowering ignores, in words that follow the operator's name."""
    given = dict(call.kwargs)
    for o in omitted(call.op):
        if o.place is not None and o.place < len(call.args):
            given[o.name] = call.args[o.place]
        if o.only is not None and o.name in given and given[o.name] not in o.only:
            known = " or ".join(map(_shown, o.only))
            yield f"is given {o.name}={_shown(given[o.name])}; in JAX it has only {known}"
    taken = honoured(call)
    for arg in (*taken.args, *dict(taken.kwargs).values()):
        if isinstance(arg, Atom) and arg.kind != "dtype":
            yield f"is given the {arg.kind} {arg.value}, on which no lowering depends"


def _shown(arg: Arg) -> str:
    return arg.value if isinstance(arg, Atom) else repr(arg)
