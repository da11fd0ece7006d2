"""Abstract arguments of a generated step."""

from __future__ import annotations

from typing import Any

import jax

from ....ir.expr import evaluate
from ....ir.program import Program
from ..arguments import jax_dtype
from ..emit.tables import SEED


def example(program: Program) -> tuple[Any, ...]:
    """Abstract arguments of a generated `step` at the sample: parameters, buffers, inputs,
    key and tangents."""
    graph, binding = program.graph, program.binding

    def of(name: str) -> jax.ShapeDtypeStruct:
        node = graph.anode[name]
        shape = tuple(evaluate(extent, program.sample) for extent in node.shape)
        dtype = jax.dtypes.canonicalize_dtype(jax_dtype(node.dtype))
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]

    random = any(c.token is not None for c in graph.cnodes)
    tangents = tuple(None if r.tangent is None else of(r.tangent) for r in binding.results)
    return (
        {p.names[0]: of(p.name) for p in binding.params},
        {b.names[0]: of(b.name) for b in binding.buffers},
        tuple(of(a.name) for a in binding.arguments),
        jax.eval_shape(lambda: jax.random.key(SEED)) if random else None,
        tangents,
    )
