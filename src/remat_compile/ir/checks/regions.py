"""Well-formedness of regions: a fused cNode is a function of its arguments, and nothing more.

Names inside are the region's own: a call reads arguments of the cNode and what stands before it.
So a region has no cycle, and what it computes is the composition of its calls.
"""

from __future__ import annotations

from ..graph import FUSED_OP, OWN_OPS, Call, CNode, Graph, Ref
from ..span import Span
from .findings import Findings

NOT_INSIDE = OWN_OPS
"""The attributes that have a meaning between cNodes only."""

MOST_RESULTS = 2**16
"""Limit on the index of a picked result: generated code names all before it."""


def check_regions(graph: Graph, findings: Findings) -> None:
    """FB0322 for the form of a fused cNode, FB0323 to FB0326 for what stands inside."""
    for v in graph.views:
        if v.call.op == FUSED_OP:
            _form(f"%{v.name} is a view", v.span, findings)
    for c in graph.cnodes:
        if c.replay is not None and c.replay.call.op == FUSED_OP:
            _form(f"{c.name} replays a region", c.span, findings)
        if c.is_fused or c.call.region:
            _fused(c, findings)


def _form(what: str, span: Span | None, findings: Findings) -> None:
    hint = "write `F1: fwd %y = fused(%x, %w) { … }` with one call on each line between the braces"
    findings.add("FB0322", f"{what}, which is no form of a region", span, hint=hint)


def _fused(c: CNode, findings: Findings) -> None:
    match c.call:
        case Call(op) if op != FUSED_OP:
            _form(f"{c.name} gives a region to {op}", c.span, findings)
            return
        case Call(region=()):
            _form(f"{c.name} has no calls", c.span, findings)
            return
    given = [arg.name for arg in c.call.args if isinstance(arg, Ref)]
    if len(given) < len(c.call.args) or c.call.kwargs or len({*given}) < len(given):
        _form(f"{c.name} takes other arguments than names, or one twice", c.span, findings)
    if c.token is not None or c.replay is not None or c.phase not in ("fwd", "bwd"):
        what = f"{c.name} has a phase, a token or a replay form of its own"
        _form(what, c.span, findings)
    _inside(c, given, findings)


def _inside(c: CNode, given: list[str], findings: Findings) -> None:
    known: dict[str, None] = dict.fromkeys(given)
    made = {name for inner in c.call.region for name in inner.writes if name is not None}
    unread = {*given}
    for inner in c.call.region:
        if inner.call.op in NOT_INSIDE:
            hint = "let it stand as a cNode of its own"
            findings.add("FB0325", f"{inner.call.op} stands inside {c.name}", c.span, hint=hint)
        for name in inner.call.refs():
            unread.discard(name)
            if name not in known:
                why = "which is made later" if name in made else "which it is not given"
                near = findings.nearest(name, known)
                message = f"{c.name} reads %{name} inside, {why}.{near}"
                hint = "a region reads its arguments and what stands before, in this order"
                findings.add("FB0323", message, c.span, hint=hint)
        if inner.index is not None and len(inner.writes) != 1:
            message = f"{c.name} picks result {inner.index} of {inner.call.op} for several names"
            findings.add("FB0324", message, c.span, hint="write one name, and an index from 0")
        if inner.index is not None and not 0 <= inner.index < MOST_RESULTS:
            message = f"{c.name} picks result {inner.index} of {inner.call.op}"
            hint = f"write an index from 0 to {MOST_RESULTS - 1}"
            findings.add("FB0324", message, c.span, hint=hint)
        for result in (name for name in inner.writes if name is not None):
            if result in known:
                message = f"{c.name} writes %{result} twice inside, or writes an argument"
                findings.add("FB0324", message, c.span, hint="give each result a name of its own")
            known[result] = None
    for written in c.writes:
        if written is None or written not in made:
            shown = "_" if written is None else f"%{written}"
            hint = "a fused cNode writes what calls inside it write, under the same names"
            findings.add("FB0326", f"{c.name} gives {shown}, which no call inside writes", c.span,
                         hint=hint)  # fmt: skip
    for name in sorted(unread):
        message = f"{c.name} is given %{name}, which no call inside reads"
        findings.add("FB0326", message, c.span, word=f"%{name}", hint="leave it away")
