"""Checks that JAX can run the operators of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature

from ...ir.diagnostics import Diagnostic, FBError, nearest
from ...ir.graph import ACCUMULATE_OP, FUSED_OP, LOSS_OP, Call, Graph
from ...ir.span import Span
from .honoured import honoured, unhonoured
from .lowerings import is_random, table

_STRUCTURE = frozenset((ACCUMULATE_OP, FUSED_OP, LOSS_OP))
_SHOWN = 3


def operators(graph: Graph) -> frozenset[str]:
    """The operators of all cNodes, replay forms and views; `loss` and `accumulate` left out."""
    return frozenset(use.call.op for use in _uses(graph))


def require_lowerings(graph: Graph) -> None:
    """Raises FBError with all that JAX cannot run here, each with its model lines: FB0920 for
    an operator that has no lowering, FB0921 for complex numbers, FB0947 for an argument that
    a lowering does not honour, FB0948 for one that it does not know."""
    uses: dict[tuple[str, str, str], dict[str, Span | None]] = {}
    for use in _uses(graph):
        for problem in _problems(use):
            uses.setdefault(problem, {}).setdefault(use.place, use.span)
    diagnostics = []
    for (code, message, hint), spans in sorted(uses.items(), key=lambda use: use[0]):
        first = next((span for span in spans.values() if span is not None), None)
        similar = nearest(message.split()[0], table()) if code == "FB0920" else ""
        message += f"; used at {_listed(list(spans))}.{similar}"
        diagnostics.append(Diagnostic(code, message, first, hint=hint))
    diagnostics += _complex_numbers(graph)
    if diagnostics:
        raise FBError(diagnostics)


@dataclass(frozen=True)
class _Use:
    """A call, where in the model (or in the graph) it stands, and its place in the file."""

    call: Call
    place: str
    span: Span | None


def _uses(graph: Graph) -> Iterator[_Use]:
    for c in graph.cnodes:
        place = str(c.loc) if c.loc is not None else c.name
        for inner in c.call.region:
            yield _Use(inner.call, f"{place}, inside", c.span)
        if c.call.op not in _STRUCTURE:
            yield _Use(c.call, place, c.span)
        if c.replay is not None:
            yield _Use(c.replay.call, place, c.span)
    for view in graph.views:
        yield _Use(view.call, f"%{view.name}", view.span)


def _problems(use: _Use) -> Iterator[tuple[str, str, str]]:
    """Code, message and hint of each reason why JAX cannot make a call."""
    call, known = use.call, table()
    if call.op not in known:
        hint = (
            "rewrite these lines of the model with operators of "
            "remat_compile.backends.jax.lowerings.table() (docs/guide/jax.md)"
        )
        yield "FB0920", f"{call.op} has no JAX lowering", hint
        return
    hint = "change these lines of the model, or run the plan with PyTorch"
    for what in unhonoured(call):
        yield "FB0947", f"{call.op} {what}", hint
    taken = honoured(call)
    key = {"key": None} if is_random(call.op) else {}
    try:
        signature(known[call.op]).bind(*taken.args, **dict(taken.kwargs), **key)
    except TypeError as error:
        hint = "give the operator the arguments of PyTorch's schema"
        yield "FB0948", f"{call.op} cannot be called so in JAX: {error}", hint


def _complex_numbers(graph: Graph) -> list[Diagnostic]:
    nodes = [a for a in graph.anodes if a.dtype in ("c64", "c128")]
    if not nodes:
        return []
    shown = _listed([f"%{a.name}" for a in nodes])
    message = f"complex numbers have no JAX lowerings: {shown}"
    hint = "write real and imaginary parts as real tensors"
    return [Diagnostic("FB0921", message, nodes[0].span, hint=hint)]


def _listed(places: list[str]) -> str:
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(places[:_SHOWN]) + more
