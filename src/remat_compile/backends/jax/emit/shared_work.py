"""Work that a computation and its backward share: XLA would do it once, and keep it between.

    gelu(x) = x / 2 · (1 + erf(x / √2))        its backward has erf(x / √2) too

A plan that makes `gelu(x)` again right before its backward holds that one array; XLA, which merges
equal operations, would hold `erf(x / √2)` beside it. What is cheap (sums, products, comparisons,
changes of shape) XLA does not keep: it computes it again in each loop that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from jax.extend import core

from ....ir.analysis.regions import region_function
from ....ir.expr import evaluate
from ....ir.graph import Call, CNode
from ....ir.program import Program
from ..arguments import jax_dtype
from ..runtime.interpret import apply, as_function
from .tables import needs_x64

_CHEAP = frozenset(
    (
        *("abs", "add", "add_any", "and", "broadcast_in_dim", "ceil", "clamp", "concatenate"),
        *("convert_element_type", "copy", "dynamic_slice", "eq", "expand_dims", "floor", "gather"),
        *("ge", "gt", "integer_pow", "iota", "is_finite", "le", "lt", "max", "min", "mul", "ne"),
        *("neg", "not", "or", "pad", "reshape", "rev", "round", "select_n", "sign", "slice"),
        *("split", "square", "squeeze", "stop_gradient", "sub", "transpose", "xor"),
    )
)
"""Primitives whose operations XLA computes more than once rather than keep (`IsExpensive` in
xla/service/instruction_fusion.cc names none of them)."""

_Value = tuple[int, frozenset[str]]
"""A number, equal for equal operations on equal values, and the aNodes that it depends on."""


@dataclass
class SharedWork:
    """Traces computations of a program at its sample sizes, each once."""

    program: Program
    _numbers: dict[object, int] = field(default_factory=dict)
    _known: dict[tuple[str, bool], Mapping[int, frozenset[str]]] = field(default_factory=dict)

    def operands(self, again_name: str, backward_name: str) -> tuple[str, ...]:
        """The aNodes, no parameters, on which costly operations depend that two cNodes both do:
        one when it runs again, its backward when it runs for the first time."""
        graph = self.program.graph
        again, backward = graph.cnode[again_name], graph.cnode[backward_name]
        reads = graph.reads(backward)
        if {*reads}.isdisjoint(graph.reads(again, 2)):
            return ()
        ours, theirs = self._costly(again, is_first=False), self._costly(backward, is_first=True)
        shared = {name for number in ours.keys() & theirs.keys() for name in ours[number]}
        return tuple(name for name in reads if name in shared and not self._is_param(name))

    def _is_param(self, name: str) -> bool:
        return self.program.graph.anode[name].kind == "param"

    def _costly(self, c: CNode, *, is_first: bool) -> Mapping[int, frozenset[str]]:
        """The numbers of its costly operations, with the aNodes that each depends on."""
        if c.is_loss or c.is_accumulate or c.token is not None:
            return {}
        key = (c.name, is_first or c.replay is None)
        if key not in self._known:
            call = c.call_at(1 if is_first else 2)
            read = tuple(dict.fromkeys(self.program.graph.storage[r] for r in call.refs()))
            with jax.enable_x64(needs_x64(self.program)):
                given = [self._shape(name) for name in read]
                traced = jax.make_jaxpr(partial(self._run, c, call, read))(*given).jaxpr
            values = [(self._number(("read", name)), frozenset((name,))) for name in read]
            made: dict[int, frozenset[str]] = {}
            self._walk(traced, values, made)
            self._known[key] = made
        return self._known[key]

    def _shape(self, name: str) -> jax.ShapeDtypeStruct:
        a = self.program.graph.anode[name]
        shape = tuple(evaluate(extent, self.program.sample) for extent in a.shape)
        return jax.ShapeDtypeStruct(shape, jax_dtype(a.dtype))  # type: ignore[no-untyped-call]

    def _run(self, c: CNode, call: Call, read: Sequence[str], *arrays: jax.Array) -> Any:
        """The computation, with the views that it reads."""
        graph, env = self.program.graph, self.program.sample
        values: dict[str, Any] = dict(zip(read, arrays, strict=True))
        for name in call.refs():
            for view in graph.views_below(name, values):
                made = apply(view.call, env, values)
                values[view.name] = made if view.index is None else made[view.index]
        if c.is_fused:
            return as_function(region_function(c), env)(*(values[r] for r in call.refs()))
        return apply(call, env, values)

    def _number(self, value: object) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def _walk(
        self, jaxpr: core.Jaxpr, given: Sequence[_Value], costly: dict[int, frozenset[str]]
    ) -> list[_Value]:
        """Numbers what a traced program computes, inner programs in place; its results."""
        values: dict[core.Var, _Value] = dict(zip(jaxpr.invars, given, strict=True))

        def value(atom: Any) -> _Value:
            if isinstance(atom, core.Literal):
                return self._number(("literal", str(atom.aval), repr(atom.val))), frozenset()
            return values.get(atom) or (self._number(("constant", id(atom))), frozenset())

        for eqn in jaxpr.eqns:
            reads = [value(atom) for atom in eqn.invars]
            inner = _inner(eqn)
            if inner is not None:
                values.update(zip(eqn.outvars, self._walk(inner, reads, costly), strict=True))
                continue
            depends = frozenset[str]().union(*(names for _, names in reads))
            params = repr(sorted((key, repr(of)) for key, of in eqn.params.items()))
            numbers = tuple(number for number, _ in reads)
            number = self._number((eqn.primitive.name, params, numbers))
            if eqn.primitive.name not in _CHEAP and _elements(eqn) > 1:
                costly[number] = depends
            for place, out in enumerate(eqn.outvars):
                values[out] = self._number((number, place)), depends
        return [value(atom) for atom in jaxpr.outvars]


def _inner(eqn: core.JaxprEqn) -> core.Jaxpr | None:
    """The program that a call runs as it is; none for loops and other operations."""
    for key in ("jaxpr", "call_jaxpr"):
        inner = getattr(eqn.params.get(key), "jaxpr", eqn.params.get(key))
        if isinstance(inner, core.Jaxpr) and len(inner.invars) == len(eqn.invars):
            return None if eqn.primitive.name in ("scan", "while", "cond") else inner
    return None


def _elements(eqn: core.JaxprEqn) -> int:
    return max((int(getattr(out.aval, "size", 1)) for out in eqn.outvars), default=0)
