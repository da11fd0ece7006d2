"""Shapes and types of every name of a graph in JAX, found by tracing the views' lowerings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax

from ....ir.analysis.regions import renamed_call
from ....ir.expr import evaluate
from ....ir.graph import Call
from ....ir.program import Program
from ..arguments import jax_dtype
from ..runtime.interpret import apply


class Shapes:
    """The arrays, without values, that names of `program` stand for at its sample sizes. `origin`
    says of which name another one is an instance."""

    def __init__(self, program: Program):
        self.program = program
        self.origin: dict[str, str] = {}
        self._known: dict[str, jax.ShapeDtypeStruct] = {}
        self._made: dict[str, Any] = {}

    def of(self, name: str) -> jax.ShapeDtypeStruct:
        """The shape of an aNode, a view, or an instance of one."""
        name = self.origin.get(name, name)
        if name in self._known:
            return self._known[name]
        graph, env = self.program.graph, self.program.sample
        if name in graph.anode:
            a = graph.anode[name]
            shape = tuple(evaluate(extent, env) for extent in a.shape)
            self._known[name] = jax.ShapeDtypeStruct(shape, jax_dtype(a.dtype))  # type: ignore[no-untyped-call]
        for view in graph.views_below(name, self._known):
            made = self._traced(view.call, env)
            self._known[view.name] = made if view.index is None else made[view.index]
        return self._known[name]

    def _traced(self, call: Call, env: Mapping[str, int]) -> Any:
        """The shape of a view's call; calls that differ in names alone are traced once."""
        names = {read: f"a{place}" for place, read in enumerate(call.refs())}
        reads = {names[read]: self.of(read) for read in names}
        alike = renamed_call(call, names)
        key = repr((alike, reads))
        if key not in self._made:
            self._made[key] = jax.eval_shape(partial(_applied, alike, env), reads)
        return self._made[key]


def _applied(call: Call, env: Mapping[str, int], reads: Mapping[str, jax.Array]) -> Any:
    return apply(call, env, reads)
