"""The operators of PyTorch that a plan may call: they compute tensors and do nothing else.

A graph may come from a file that anyone wrote, and its operators are called by name. What an
operator does is told from its schema and its namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ..ir.checks.operators import operator_faults
from ..ir.diagnostics import Diagnostic, FBError, fail
from ..ir.graph import OWN_OPS, Arg, Call, Graph
from ..ir.span import Span
from . import PURE, Effects
from .aten import resolve_op
from .overloads import OpOverload
from .schema import effects_of

_HINT = "use a functional operator of aten, prims or a library of your own"


@lru_cache(maxsize=4096)
def callable_op(name: str) -> OpOverload:
    """The operator under a name of the IR.

    Raises FBError FB0901 when this PyTorch does not have it, FB0942 when a plan may not call it.
    """
    op = resolve_op(name)
    why: str | None = "it runs functions, and has no schema"
    if isinstance(op, OpOverload):
        known = effects_of(op)
        why = "it writes to its arguments" if known.writes((), {}) else known.refusal
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


def check_operators(graph: Graph) -> None:
    """FB0901, FB0942 and FB0944 with every call that PyTorch lacks, a plan may not make, or has
    fewer results or none to pick, and what `operator_faults` finds; each operator once."""
    diagnostics: dict[tuple[str, str], Diagnostic] = {}
    for owner, call, writes, index, span in _calls(graph):
        try:
            callable_op(call.op)
            check_call(call)
            check_results(call, writes)
            check_index(call, index)
        except FBError as error:
            for d in error.diagnostics:
                message = f"{owner}: {d.message}"
                placed = Diagnostic(d.code, message, span, d.notes, d.hint)
                diagnostics.setdefault((d.code, call.op), placed)
    for code, message, span, op, hint in operator_faults(graph, _known):
        diagnostics.setdefault((code, op), Diagnostic(code, message, span, hint=hint))
    if diagnostics:
        raise FBError(diagnostics.values())


def _known(name: str) -> Effects | None:
    """Return the effects of an operator; None of what is refused for itself, and of what the IR
    defines."""
    if name in OWN_OPS:
        return None
    try:
        return effects_of(callable_op(name))
    except FBError:
        return None


def _calls(
    graph: Graph,
) -> Iterator[tuple[str, Call, Sequence[str | None], int | None, Span | None]]:
    for view in graph.views:
        yield f"%{view.name}", view.call, (), view.index, view.span
    for c in graph.cnodes:
        for inner in c.call.region:
            writes = inner.writes if inner.index is None else ()
            yield f"{c.name}, inside", inner.call, writes, inner.index, c.span
        if c.call.op not in OWN_OPS:
            yield c.name, c.call, c.writes, None, c.span
        if c.replay is not None:
            yield c.name, c.replay.call, c.replay.writes, None, c.span


def _has_text(arg: Arg) -> bool:
    return isinstance(arg, str) or (isinstance(arg, tuple) and any(map(_has_text, arg)))
