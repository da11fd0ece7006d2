"""Which operators of PyTorch a plan may call: those that compute tensors and do nothing else.

A graph may come from a file that anyone wrote, and its operators are called by name. What an
operator does is told from its schema and its namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch._ops import HigherOrderOperator, OpOverload

from ..ir.diagnostics import Diagnostic, FBError, fail
from ..ir.graph import ACCUMULATE_OP, FUSED_OP, LOSS_OP, Arg, Call, Graph
from ..ir.span import Span
from .ops import resolve_op

__all__ = ["OF_PYTORCH", "PURE", "callable_op", "check_call", "check_operators", "check_results"]

PURE = frozenset(("aten", "prims"))
"""PyTorch's own namespaces of tensor arithmetic."""

OF_PYTORCH = frozenset(
    (
        *PURE,
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test"),
        *("_native", "_quantized", "_test", "c10d", "c10d_functional", "debug_mode_ops"),
        *("debugprims", "export", "flex_lib", "fsdp", "inductor", "inductor_prims", "mkl"),
        *("mkldnn", "mkldnn_prepacked", "onednn", "onnx_symbolic", "prim", "profiler"),
        *("quantization", "quantized", "rngprims", "sparse", "static_runtime", "streams"),
        *("symm_mem", "torchbind", "xnnpack"),
    )
)
"""The namespaces that PyTorch registers. Those not in `PURE` talk to other processes, record
profiles, hand out raw memory or serve a compiler; any other namespace is a user's library."""

UNCHECKED = frozenset(
    (
        *("_reshape_alias", "segment_reduce", "_segment_reduce_backward"),
        *("resize", "resize_as", "_resize_output", "set"),
        *("_sparse_coo_tensor_unsafe", "_sparse_compressed_tensor_unsafe"),
        *(f"_sparse_{form}_tensor_unsafe" for form in ("csr", "csc", "bsr", "bsc")),
    )
)
"""Operators that build tensors over memory that is not theirs, and that no training step needs.
Many kernels besides trust their arguments (`max_pool2d_with_indices_backward` its indices), and
training needs them: that is why a plan of a stranger is run in a process with limits."""

_HINT = "use a functional operator of aten, prims or a library of your own"


@lru_cache(maxsize=4096)
def callable_op(name: str) -> OpOverload:
    """The operator under a name of the IR.

    Raises FBError FB0901 when this PyTorch does not have it, FB0942 when a plan may not call it.
    """
    op = resolve_op(name)
    why = _objection(op, name.split(".")[0])
    if why is not None:
        fail("FB0942", f"a plan may not call {name}: {why}", hint=_HINT)
    assert isinstance(op, OpOverload)
    return op


def check_call(call: Call) -> None:
    """FB0942 where a call hands text to an operator of a user's library. Text of aten and
    prims chooses between modes of computing; that of others may name files."""
    if call.op.split(".")[0] in PURE:
        return
    if any(map(_has_text, (*call.args, *(value for _, value in call.kwargs)))):
        why = "it is given text, which may name a file, and is no operator of aten or prims"
        fail("FB0942", f"a plan may not call {call.op}: {why}", hint=_HINT)


def check_results(call: Call, writes: Sequence[str | None]) -> None:
    """FB0944 where a call is said to have more results than its operator gives."""
    returns = [str(returned.type) for returned in callable_op(call.op)._schema.returns]
    if len(writes) > len(returns) and not any(t.startswith("List") for t in returns):
        message = f"{len(writes)} results of {call.op}, which has {len(returns)}"
        fail("FB0944", message, hint="name as many as the operator gives")


def check_index(call: Call, index: int | None) -> None:
    """FB0944 where a result is picked that the operator does not give: of one that gives a single
    tensor, an index would be a part of that."""
    returns = [str(returned.type) for returned in callable_op(call.op)._schema.returns]
    several = len(returns) > 1 or any(t.startswith("List") for t in returns)
    if index is not None and (not several or (index >= len(returns) > 1)):
        given = "one" if len(returns) == 1 else str(len(returns))
        message = f"result {index} is picked of {call.op}, which gives {given}"
        fail("FB0944", message, hint="pick one of several results, counted from 0")


def check_inside(call: Call) -> None:
    """FB0914 for an operator that draws random numbers: no region holds one."""
    if torch.Tag.nondeterministic_seeded in callable_op(call.op).tags:
        message = f"{call.op} draws random numbers, which a region cannot replay"
        fail("FB0914", message, hint="let it stand as a cNode of its own, with a token")


def check_operators(graph: Graph) -> None:
    """FB0901, FB0914, FB0942 and FB0944 with every call that PyTorch lacks, a plan may not make (or
    not inside a region), or has fewer results or none to pick, each operator once."""
    diagnostics: dict[tuple[str, str], Diagnostic] = {}
    for owner, call, writes, index, span in _calls(graph):
        try:
            callable_op(call.op)
            check_call(call)
            check_results(call, writes)
            check_index(call, index)
            if owner.endswith(", inside"):
                check_inside(call)
        except FBError as error:
            for d in error.diagnostics:
                message = f"{owner}: {d.message}"
                placed = Diagnostic(d.code, message, span, d.notes, d.hint)
                diagnostics.setdefault((d.code, call.op), placed)
    if diagnostics:
        raise FBError(diagnostics.values())


def _calls(
    graph: Graph,
) -> Iterator[tuple[str, Call, Sequence[str | None], int | None, Span | None]]:
    for view in graph.views:
        yield f"%{view.name}", view.call, (), view.index, view.span
    for c in graph.cnodes:
        for inner in c.call.region:
            writes = inner.writes if inner.index is None else ()
            yield f"{c.name}, inside", inner.call, writes, inner.index, c.span
        if c.call.op not in (LOSS_OP, ACCUMULATE_OP, FUSED_OP):
            yield c.name, c.call, c.writes, None, c.span
        if c.replay is not None:
            yield c.name, c.replay.call, c.replay.writes, None, c.span


def _objection(op: OpOverload | HigherOrderOperator, namespace: str) -> str | None:
    """Why a plan may not call an operator."""
    if isinstance(op, HigherOrderOperator):
        return "it runs functions, and has no schema"
    if namespace in OF_PYTORCH - PURE:
        return f"operators of {namespace} do more than compute tensors"
    schema = op._schema
    if schema.is_mutable:
        return "it writes to its arguments"
    if not schema.returns:
        return "it returns nothing, so it is called for an effect"
    if not any("Tensor" in str(returned.type) for returned in schema.returns):
        return "it returns no tensor"
    if namespace in PURE and schema.name.partition("::")[2] in UNCHECKED:
        return "it trusts the sizes and indices it is given, and reads beyond its tensors"
    types = [str(argument.type) for argument in schema.arguments]
    if any("str" in t for t in types) and not any("Tensor" in t for t in types):
        return "it takes text and no tensor, so what it computes comes from elsewhere"
    return None


def _has_text(arg: Arg) -> bool:
    return isinstance(arg, str) or (isinstance(arg, tuple) and any(map(_has_text, arg)))
