"""Faults of the graph itself: refused for what the statements imply, or for the recorded hash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from remat_compile.ir.expr import Const
from remat_compile.ir.graph import Call, CNode, Ref
from remat_compile.ir.program import Budget, Program

from .case import Case, Mutant
from .registry import seeds

HASH = "FB0830"


def _graph(program: Program, **changes: Any) -> Program:
    return replace(program, graph=replace(program.graph, **changes))


def _with_cnode(program: Program, changed: CNode, **fields: Any) -> Program:
    made = replace(changed, **fields)
    cnodes = tuple(made if c.name == changed.name else c for c in program.graph.cnodes)
    return _graph(program, cnodes=cnodes)


def _refs_of(c: CNode) -> list[str]:
    return [a.name for a in c.call.args if isinstance(a, Ref)]


@seeds("wrong workspace", "graph")
def workspace(case: Case, kind: str) -> Iterator[Mutant]:
    for c in case.cnodes.values():
        if c.workspace != Const(0):
            made = _with_cnode(case.program, c, workspace=Const(0))
            yield case.mutant(kind, None, HASH, program=made)


@seeds("wrong size", "graph")
def size(case: Case, kind: str) -> Iterator[Mutant]:
    for a in case.program.graph.anodes:
        if isinstance(a.size, Const) and a.size.value > 1:
            less = replace(a, size=Const(a.size.value - 1))
            anodes = tuple(less if x is a else x for x in case.program.graph.anodes)
            ends = {n for e in case.events if e.ends for n in (e.ends, *e.makes)}
            if a.name not in ends:
                yield case.mutant(kind, None, HASH, program=_graph(case.program, anodes=anodes))


@seeds("gradient of the wrong node", "graph")
def wrong_gradient(case: Case, kind: str) -> Iterator[Mutant]:
    """Two parameters get each other's gradient."""
    binding = case.program.binding
    trained = [p for p in binding.params if p.grad is not None]
    for one, two in pairwise(trained):
        swap = {one.name: two.grad, two.name: one.grad}
        params = tuple(replace(p, grad=swap.get(p.name, p.grad)) for p in binding.params)
        made = replace(case.program, binding=replace(binding, params=params))
        yield case.mutant(kind, None, HASH, program=made)


@seeds("gradient of what is freed", "graph")
def freed_gradient(case: Case, kind: str) -> Iterator[Mutant]:
    binding = case.program.binding
    freed = [life for life in case.last.values() if life.freed and case.kind[life.anode] == "grad"]
    for life, p in zip(freed, binding.params, strict=False):
        assert life.end is not None
        params = tuple(replace(x, grad=life.anode) if x is p else x for x in binding.params)
        made = replace(case.program, binding=replace(binding, params=params))
        words = f'the gradient of "{p.names[0]}"'
        yield case.mutant(kind, None, "FB0812", life.end, words=words, program=made)


@seeds("BatchNorm updated twice", "graph")
def batch_norm(case: Case, kind: str) -> Iterator[Mutant]:
    """Without its replay form the second run reads the buffer that the first one changed."""
    for event in case.events:
        c = event.cnode
        if c is None or c.replay is None or not any(case.kind.get(n or "") == "pending"
                                                    for n in c.writes):  # fmt: skip
            continue
        if event.again and event.index > case.loss:
            made = _with_cnode(case.program, c, replay=None)
            words = "after its new contents were written back"
            yield case.mutant(kind, None, "FB0807", event.index, words=words, program=made)


@seeds("random operator without a state", "graph")
def no_token(case: Case, kind: str) -> Iterator[Mutant]:
    for c in case.cnodes.values():
        if c.token is not None and case.total[c.name] == 1:
            made = _with_cnode(case.program, c, token=None)
            anodes = tuple(a for a in case.program.graph.anodes if a.name != c.token)
            yield case.mutant(kind, None, HASH, program=_graph(made, anodes=anodes))


@seeds("random state shared by two operators", "graph")
def shared_token(case: Case, kind: str) -> Iterator[Mutant]:
    drawn = [c for c in case.cnodes.values() if c.token is not None]
    for one, two in pairwise(drawn):
        made = _with_cnode(case.program, two, token=one.token)
        yield case.mutant(kind, None, "FB0802", words=f"is written by {one.name}", program=made,
                          place=two.span)  # fmt: skip


@seeds("operands swapped", "graph")
def operands(case: Case, kind: str) -> Iterator[Mutant]:
    for c in case.cnodes.values():
        names = _refs_of(c)
        if c.call.op != "accumulate" and len(names) >= 2 and names[0] != names[1]:
            swap = {names[0]: Ref(names[1]), names[1]: Ref(names[0])}
            args = tuple(swap[a.name] if isinstance(a, Ref) and a.name in swap else a
                         for a in c.call.args)  # fmt: skip
            call = replace(c.call, args=args)
            made = _with_cnode(case.program, c, call=call)
            yield case.mutant(kind, None, HASH, program=made)


@seeds("call of a region left out", "graph")
def call_left_out(case: Case, kind: str) -> Iterator[Mutant]:
    for c in case.cnodes.values():
        for inner in c.call.region:
            call = replace(c.call, region=tuple(i for i in c.call.region if i is not inner))
            made = _with_cnode(case.program, c, call=call)
            words = next((f"%{name}" for name in inner.writes if name is not None), None)
            if words is not None:
                yield case.mutant(kind, None, "FB0802", words=words, program=made, place=c.span)


@seeds("calls of a region in a circle", "graph")
def circle(case: Case, kind: str) -> Iterator[Mutant]:
    for c in case.cnodes.values():
        for one, two in pairwise(c.call.region):
            if not {*one.writes}.isdisjoint(two.call.refs()):
                swap = {one: two, two: one}
                call = replace(c.call, region=tuple(swap.get(i, i) for i in c.call.region))
                made = _with_cnode(case.program, c, call=call)
                words = "inside before it is there"
                yield case.mutant(kind, None, "FB0802", words=words, program=made, place=c.span)


@seeds("sum in place inside a region", "graph")
def sum_inside(case: Case, kind: str) -> Iterator[Mutant]:
    for c in case.cnodes.values():
        for inner in c.call.region:
            other = replace(inner, call=Call("accumulate", inner.call.args))
            call = replace(c.call, region=tuple(other if i is inner else i for i in c.call.region))
            made = _with_cnode(case.program, c, call=call)
            words = f"accumulate stands inside {c.name}"
            yield case.mutant(kind, None, "FB0802", words=words, program=made, place=c.span)


@seeds("view of another storage", "graph")
def wrong_view(case: Case, kind: str) -> Iterator[Mutant]:
    views = case.program.graph.views
    for v in views:
        others = [w.base for w in views if w.base != v.base]
        if others and set(_names(v.call)) <= {v.base}:
            wrong = tuple(replace(w, base=others[0]) if w is v else w for w in views)
            words = f"view %{v.name} says it is of %{others[0]}"
            made = _graph(case.program, views=wrong)
            yield case.mutant(kind, None, "FB0802", words=words, program=made, place=v.span)


def _names(call: Call) -> list[str]:
    return [a.name for a in call.args if isinstance(a, Ref)]


@seeds("two writers", "graph")
def two_writers(case: Case, kind: str) -> Iterator[Mutant]:
    plain = [c for c in case.cnodes.values() if c.phase == "fwd" and c.call.op != "accumulate"]
    for one, two in pairwise(plain):
        written = next(filter(None, one.writes), None)
        if written is not None:
            made = _with_cnode(case.program, two, writes=(*two.writes, written))
            words = f"%{written} is written by {one.name} and by {two.name}"
            yield case.mutant(kind, None, "FB0802", words=words, program=made, place=two.span)


@seeds("read of what is not declared", "graph")
def undeclared(case: Case, kind: str) -> Iterator[Mutant]:
    for c in case.cnodes.values():
        if c.phase != "loss" and c.call.op != "accumulate" and _refs_of(c):
            call = replace(c.call, args=(Ref("nothing"), *c.call.args[1:]))
            made = _with_cnode(case.program, c, call=call)
            words = f"{c.name} reads %nothing"
            yield case.mutant(kind, None, "FB0802", words=words, program=made, place=c.span)


@seeds("gradients that the caller holds not counted", "graph")
def held_gradients(case: Case, kind: str) -> Iterator[Mutant]:
    peak = case.run.peak()
    binding = replace(case.program.binding, grads="accumulate")
    made = replace(case.program, binding=binding)
    extra = sum(case.size[p.name] for p in binding.params if p.grad is not None)
    above = [e.index for e, size in zip(case.events, case.run.device, strict=True)
             if size + extra > peak and e.cnode is not None]  # fmt: skip
    budgets = (Budget(peak),)
    yield case.mutant(kind, None, "FB0820", *above, budgets=budgets, program=made)


@seeds("buffer update forgotten", "graph")
def forgotten_update(case: Case, kind: str) -> Iterator[Mutant]:
    binding = case.program.binding
    for b in binding.buffers:
        if b.update is not None:
            buffers = tuple(replace(x, update=None) if x is b else x for x in binding.buffers)
            made = replace(case.program, binding=replace(binding, buffers=buffers))
            yield case.mutant(kind, None, HASH, program=made)
