"""A proof that a program with fused cNodes computes the values of the program it was made from.

Both graphs are unfolded into terms: a caller's content, or an operator applied to terms, where a
fused cNode is the composition of the calls inside. Terms are numbered, equal ones alike, so that
equality of values is equality of numbers. (An operator is a function of what it reads, by (P1);
nothing else is assumed, and no operator is looked into.)

    %t = mul(%x, %w); %y = tanh(%t)   and   %y = fused(%x, %w) { %t = mul(%x, %w); %y = tanh(%t) }
        both give  %y -> tanh(mul(x, w))

A proof about a schedule of the fused program then speaks of the operators of the other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...ir.diagnostics import Diagnostic
from ...ir.graph import (
    ACCUMULATE_OP,
    CALLER_KINDS,
    LOSS_OP,
    ANode,
    Arg,
    Call,
    CNode,
    Graph,
    Ref,
    View,
)
from ...ir.program import Program
from ..read.calls import names_in, same_call

SUM = "aten.add.Tensor"
"""Operator that `accumulate` computes, by (P3)."""


def same_values(original: Program, fused: Program) -> tuple[Diagnostic, ...]:
    """Where `fused` is not the same training step as `original`; nothing if it is.

    FB0876 for an aNode that has another value, or a new name that is not one more instance, made
    in the backward, of an aNode of the original; and for a call that the original does not make,
    read or not; FB0877 for what stands around them: binding, symbols,
    target, declarations, random operators, replay forms. Linear.
    """
    around = [*_around(original, fused)]
    if around:
        return tuple(around)
    terms = _Terms()
    ours = terms.of(original)
    added: list[CNode] = []
    theirs = terms.of(fused, added)
    return tuple(_differing(original, fused, ours, theirs)) or tuple(map(_added, added))


def instances(original: Program, fused: Program) -> dict[str, str]:
    """For each aNode and view of `fused` that `original` does not name, one there with the same
    term, type and shape."""
    terms = _Terms()
    ours, theirs = terms.of(original), terms.of(fused)
    known: dict[object, str] = {}
    for a in original.graph.anodes:
        known.setdefault((ours.get(a.name), a.dtype, a.shape), a.name)
    viewed = {ours[view.name]: view.name for view in original.graph.views}
    counterparts = {
        a.name: known.get((theirs.get(a.name), a.dtype, a.shape))
        for a in fused.graph.anodes
        if a.name not in original.graph.anode
    }
    for view in fused.graph.views:
        if view.name not in original.graph.view:
            counterparts[view.name] = viewed.get(theirs[view.name])
    return {name: first for name, first in counterparts.items() if first is not None}


def _added(c: CNode) -> Diagnostic:
    message = f"{c.name} makes a call that is not made where nothing is fused"
    return Diagnostic("FB0876", message, c.span, hint="fuse the plan again")


def _differing(
    original: Program, fused: Program, ours: Mapping[str, int], theirs: Mapping[str, int]
) -> Iterator[Diagnostic]:
    made: dict[int | None, list[ANode]] = {}
    for a in original.graph.anodes:
        made.setdefault(ours.get(a.name), []).append(a)
    graph = original.graph
    for a in fused.graph.anodes:
        term = theirs.get(a.name)
        is_same = a.name in graph.anode and term == ours.get(a.name)
        again = a.name not in ours and any(_is_another(a, first) for first in made.get(term, ()))
        if a.kind != "rng" and not is_same and not again:
            writers = (c for c in fused.graph.cnodes if a.name in c.writes)
            span = next((c.span for c in writers), a.span)
            message = f"%{a.name} is not the value that it has where nothing is fused"
            yield Diagnostic("FB0876", message, span, hint="fuse the plan again")
    viewed = {ours[view.name] for view in graph.views}
    for view in fused.graph.views:
        term = theirs[view.name]
        # By name, and as a view: what has storage there may not lose it here.
        is_same = view.name in graph.view and term == ours[view.name]
        if not is_same and (view.name in ours or term not in viewed):
            message = f"%{view.name} is not the view that it is where nothing is fused"
            yield Diagnostic("FB0876", message, view.span, hint="fuse the plan again")
    one, other = _loss(original), _loss(fused)
    read = [ours.get(name) for name in names_in(one.call)]
    if read != [theirs.get(name) for name in names_in(other.call)]:
        message = "the loss reads other values than where nothing is fused"
        yield Diagnostic("FB0876", message, other.span, hint="fuse the plan again")


def _is_another(a: ANode, first: ANode) -> bool:
    """Return whether `a` may be another instance of `first`: one that the backward makes."""
    return a == replace(first, name=a.name, kind="grad")


def _loss(program: Program) -> CNode:
    (loss,) = (c for c in program.graph.cnodes if c.phase == "loss")
    return loss


def _around(original: Program, fused: Program) -> Iterator[Diagnostic]:
    """Return what no term speaks of, and must be as it was."""

    def differs(what: str, c: CNode | ANode | None = None) -> Diagnostic:
        message = f"{what} is not as where nothing is fused"
        span = None if c is None else c.span
        return Diagnostic("FB0877", message, span, hint="fuse the plan again")

    if original.binding != fused.binding:
        yield differs("the binding")
    if original.symbols != fused.symbols or original.target != fused.target:
        yield differs("a symbol or the target")
    declared = {a.name: a for a in original.graph.anodes}
    for a in fused.graph.anodes:
        if declared.get(a.name) != a and (a.name in declared or a.kind != "grad"):
            yield differs(f"the declaration of %{a.name}", a)
    kept = {a.name for a in fused.graph.anodes}
    for a in original.graph.anodes:
        if a.name not in kept and a.kind in (*CALLER_KINDS, "output", "param_grad", "pending"):
            yield differs(f"%{a.name}, which is left out and belongs to the caller,")
    if [*map(_drawing, _stream(original))] != [*map(_drawing, _stream(fused))]:
        yield differs("the order of random operators and the loss")
    cnodes = {c.name: c for c in original.graph.cnodes}
    for c in fused.graph.cnodes:
        same = cnodes.get(c.name)
        if c.replay is None or same_call(c.replay.call, c.call):
            continue
        if same is None or not _replays_alike(c, same):
            yield differs(f"the replay form of {c.name}", c)


def _stream(program: Program) -> Iterable[CNode]:
    return (c for c in program.graph.cnodes if c.token is not None or c.phase == "loss")


def _drawing(c: CNode) -> tuple[str, str, str | None]:
    return c.name, c.call.op, c.token


def _replays_alike(c: CNode, other: CNode) -> bool:
    mine, own = c.replay, other.replay
    if mine is None or own is None:
        return False
    # The operands of a form are terms too; as names of one graph they may differ in meaning only
    # where an aNode does, which is told by itself.
    return mine.writes == own.writes and same_call(mine.call, own.call)


class _Terms:
    """Numbers terms, those of both graphs in one table."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def of(self, program: Program, added: list[CNode] | None = None) -> dict[str, int]:
        """The term of every aNode and view, tokens left out, by name; `added` gets the cNodes
        that make terms which are not there yet."""
        graph = program.graph
        terms = _Known(self, graph)
        for a in graph.anodes:
            if a.kind in CALLER_KINDS:
                terms[a.name] = self._number(("caller", a.name))
        for c in graph.cnodes:
            known = len(self._numbers)
            self._cnode(c, terms)
            if added is not None and len(self._numbers) > known:
                added.append(c)
        for view in graph.views:
            terms[view.name]
        return terms

    def _cnode(self, c: CNode, terms: dict[str, int]) -> None:
        if not c.call.region:
            own = c.name if c.token is not None or c.call.op == LOSS_OP else None
            self._write(c.writes, self._call(c.call, terms, own), terms)
            return
        inside = {name: terms[name] for name in names_in(c.call)}
        for inner in c.call.region:
            call = self._call(inner.call, inside)
            if inner.index is None:
                self._write(inner.writes, call, inside)
            else:
                (name,) = inner.writes
                inside[str(name)] = self._number(("result", call, inner.index))
        terms.update({name: inside[name] for name in c.writes if name is not None})

    def view(self, view: View, terms: dict[str, int]) -> int:
        return self._number(("result", self._call(view.call, terms), view.index))

    def _write(self, writes: Sequence[str | None], call: int, terms: dict[str, int]) -> None:
        """A result alone is all that the operator gives: `op(…)[0]` would be a part of it."""
        for index, name in enumerate(writes):
            if name is not None:
                place = index if len(writes) > 1 else None
                terms[name] = self._number(("result", call, place))

    def _call(self, call: Call, terms: Mapping[str, int], own: str | None = None) -> int:
        args = tuple(self._arg(arg, terms) for arg in call.args)
        kwargs = tuple((key, self._arg(arg, terms)) for key, arg in call.kwargs)
        op = SUM if call.op == ACCUMULATE_OP else call.op
        return self._number(("call", op, args, kwargs, own))

    def _arg(self, arg: Arg, terms: Mapping[str, int]) -> object:
        match arg:
            case Ref(name):
                return ("term", terms[name])
            case tuple():
                return tuple(self._arg(part, terms) for part in arg)
            case _:  # `1`, `1.0` and `true` are three arguments
                return repr(arg)

    def _number(self, term: object) -> int:
        return self._numbers.setdefault(term, len(self._numbers))


class _Known(dict[str, int]):
    """Terms by name; that of a view is found when it is read first."""

    def __init__(self, terms: _Terms, graph: Graph):
        super().__init__()
        self._terms = terms
        self._views = {view.name: view for view in graph.views}

    def __missing__(self, name: str) -> int:
        """With what it is a view of first, however many views that goes through."""
        todo = [name]
        while todo:
            view = self._views[todo[-1]]
            if before := [n for n in names_in(view.call) if n not in self]:
                todo.append(before[0])
            else:
                self[todo.pop()] = self._terms.view(view, self)
        return self[name]
